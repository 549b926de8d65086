package directory

import "time"

// maxSleep is the longest pause of dropDue.
const maxSleep = time.Hour

// dropAtOnce is the number of Things that dropDue ends per acquisition of the lock.
const dropAtOnce = 256

// dropDue ends expired descriptions, drops entries that are no longer needed, and returns the time until the next one.
func (d *Directory) dropDue(now time.Time) time.Duration {
	for {
		if next, done := d.dropSome(now); done {
			return next
		}
	}
}

// dropSome drops some of the due entries, and reports whether these were all.
func (d *Directory) dropSome(now time.Time) (next time.Duration, done bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	left := dropAtOnce
	for ; left > 0 && len(d.living) > 0 && !alive(d.living[0].view.record, now); left-- {
		d.endLocked(d.living[0], Expired)
		d.count.inc(&d.count.Expired)
	}
	for ; left > 0 && len(d.gone) > 0 && !now.Before(d.gone[0].until); left-- {
		d.forgetLocked(d.gone[0])
	}
	next = maxSleep
	if len(d.living) > 0 {
		next = min(next, d.living[0].due().Sub(now))
	}
	if len(d.gone) > 0 {
		next = min(next, d.gone[0].due().Sub(now))
	}
	d.wakeAt = now.Add(next)
	return next, left > 0
}
