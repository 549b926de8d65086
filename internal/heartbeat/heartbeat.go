// Package heartbeat finds the loops of a node that hang.
package heartbeat

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	slack = 30 * time.Second // in addition to twice the interval: for a machine with a high load
	step  = 25 * time.Second // the longest time between two beats that counts; less than slack
)

// Loops are the loops of a node. Its time is measured at the beats of all loops and at the checks, and no step of it is longer than 25 s: the
// time in which the machine or the process was suspended does not count. It does not depend on the system clock. The zero value is ready. It
// is safe for concurrent use.
type Loops struct {
	mu    sync.Mutex
	seen  time.Time     // these are owned by mu: the last measurement
	now   time.Duration // the time that counts
	loops map[string]*Loop
}

// A Loop is one loop, which beats each time that it runs. A nil Loop ignores all calls.
type Loop struct {
	all      *Loops
	name     string
	vital    bool
	interval time.Duration
	due      time.Duration // owned by all.mu
	last     time.Duration // owned by all.mu
}

type key struct{}

// Context returns a context in which [Start] and [StartVital] add loops to l.
func (l *Loops) Context(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, l) }

// Start adds a loop that beats once per interval until its context ends. Without [Loops] in the context, it returns nil. A loop with the name
// of an earlier one replaces it.
func Start(ctx context.Context, name string, interval time.Duration) *Loop {
	return start(ctx, &Loop{name: name, interval: interval})
}

// StartVital is Start for a loop without which the node does not work. It must not wait for a disk, another host or an agent: a node is
// restarted if a vital loop hangs, which ends only a deadlock.
func StartVital(ctx context.Context, name string, interval time.Duration) *Loop {
	return start(ctx, &Loop{name: name, interval: interval, vital: true})
}

func start(ctx context.Context, p *Loop) *Loop {
	l, _ := ctx.Value(key{}).(*Loops)
	if l == nil {
		return nil
	}
	p.all = l
	l.mu.Lock()
	if l.loops == nil {
		l.loops = map[string]*Loop{}
	}
	l.loops[p.name] = p
	l.mu.Unlock()
	p.Beat()
	return p
}

// Beat records that the loop runs. The next beat is expected after the interval of the loop.
func (p *Loop) Beat() {
	if p != nil {
		p.Wait(p.interval)
	}
}

// Wait is Beat before a pause of another length than the interval.
func (p *Loop) Wait(pause time.Duration) {
	if p == nil {
		return
	}
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	p.last = p.all.measureLocked()
	p.due = p.last + 2*max(pause, 0) + slack
}

// measureLocked returns the time that counts.
func (l *Loops) measureLocked() time.Duration {
	now := time.Now()
	if !l.seen.IsZero() {
		l.now += min(now.Sub(l.seen), step)
	}
	l.seen = now
	return l.now
}

// Late is a loop that has not beaten within twice its interval and 30 s.
type Late struct {
	Name  string
	Vital bool
	Since time.Duration // its last beat
}

func (l Late) String() string { return fmt.Sprintf("%s for %v", l.Name, l.Since.Round(time.Second)) }

// Late returns the loops that hang, the vital ones first. It should be called regularly: if all loops hang, time advances only with these calls.
func (l *Loops) Late() (late []Late) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.measureLocked()
	for _, p := range l.loops {
		if now > p.due {
			late = append(late, Late{p.name, p.vital, now - p.last})
		}
	}
	slices.SortFunc(late, func(a, b Late) int {
		if a.Vital != b.Vital {
			if a.Vital {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Name, b.Name)
	})
	return late
}

// Names returns the names of all loops, and those of the vital ones, sorted.
func (l *Loops) Names() (all, vital []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, p := range l.loops {
		all = append(all, name)
		if p.vital {
			vital = append(vital, name)
		}
	}
	slices.Sort(all)
	slices.Sort(vital)
	return all, vital
}
