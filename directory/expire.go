package directory

import (
	"context"
	"time"
)

// expire drops what is due, when it is due, until ctx ends.
func (d *Directory) expire(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		case <-timer.C:
		}
		timer.Reset(d.dropDue(time.Now()))
	}
}

// nudge tells expire that something may be due earlier than it thinks.
func (d *Directory) nudge() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// aWhile is how long expire sleeps at most.
const aWhile = time.Hour

// dropAtOnce is how many things dropDue ends while everybody waits.
const dropAtOnce = 256

// dropDue ends the descriptions that have expired, forgets what can be forgotten, and returns how long nothing is due.
func (d *Directory) dropDue(now time.Time) time.Duration {
	for {
		if next, done := d.dropSome(now); done {
			return next
		}
	}
}

// dropSome drops some of what is due, and reports whether that was all.
func (d *Directory) dropSome(now time.Time) (next time.Duration, done bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	left := dropAtOnce
	for ; left > 0 && len(d.living) > 0 && !alive(d.living[0].view.record, now); left-- {
		d.endLocked(d.living[0], Expired)
		d.count.expired.Add(1)
	}
	for ; left > 0 && len(d.gone) > 0 && !now.Before(d.gone[0].until); left-- {
		d.forgetLocked(d.gone[0])
	}
	next = aWhile
	if len(d.living) > 0 {
		next = min(next, d.living[0].due().Sub(now))
	}
	if len(d.gone) > 0 {
		next = min(next, d.gone[0].due().Sub(now))
	}
	d.asleep = now.Add(next)
	return next, left > 0
}
