package directory

import "time"

// maxSleep is the longest pause of dropDue: the heartbeat of the directory, which finds a deadlock.
const maxSleep = time.Minute

// dropBatch is the number of Things that dropDue ends per acquisition of the lock.
const dropBatch = 256

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
	left := dropBatch
	for ; left > 0 && len(d.live) > 0 && !now.Before(d.live[0].due()); left-- {
		if d.renewHostsLocked(d.live[0], now) {
			continue
		}
		d.removeLocked(d.live[0], Expired)
		d.count.inc(&d.count.Expired)
	}
	for ; left > 0 && len(d.removed) > 0 && !now.Before(d.removed[0].until); left-- {
		d.forgetLocked(d.removed[0])
	}
	next = maxSleep
	if len(d.live) > 0 {
		next = min(next, d.live[0].due().Sub(now))
	}
	if len(d.removed) > 0 {
		next = min(next, d.removed[0].due().Sub(now))
	}
	d.wakeAt = now.Add(next)
	return next, left > 0
}
