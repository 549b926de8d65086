package task

import (
	"slices"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// An account has the tasks of one caller: a node, or this machine. The consumers of a node share its limits, because the node chooses their
// names.
// The owner of a task is in the task. Runner.mu guards the fields.
type account struct {
	base    string // [did.Principal.Base]
	local   bool
	tasks   []*task // in order of their start
	running int
	held    int64 // bytes of its tasks
	kept    int64 // of ended tasks
}

// keptTasks and keptBytes are the resources for which tasks are dropped.
func keptTasks(c *account) int64 { return int64(len(c.tasks) - c.running) }
func keptBytes(c *account) int64 { return c.kept }

// admitLocked adds t to the tasks of its consumer. The error is Overloaded or ShuttingDown.
func (r *Runner) admitLocked(t *task) error {
	if r.closed {
		return interact.HostShutdownError("retry later")
	}
	c := r.accounts[t.m.From.Base()]
	if c == nil {
		c = &account{base: t.m.From.Base(), local: t.m.From.Local()}
	}
	t.owner = c
	switch {
	case c.running >= r.o.MaxPerCaller:
		return interact.Errorf(interact.Overloaded, "wait until one has ended, or cancel one",
			"%d tasks of the caller run already", c.running)
	case !c.local && len(r.tasks) >= r.o.MaxTasks-min(r.o.MaxPerCaller, r.o.MaxTasks/4) && !r.forgetLocked(c, keptTasks),
		len(r.tasks) >= r.o.MaxTasks && !r.forgetLocked(c, keptTasks): // the last slots are for consumers on this machine
		return interact.Errorf(interact.Overloaded, "retry later", "%d tasks are running", r.o.MaxTasks)
	case !r.holdLocked(t, int64(len(t.m.Data))):
		return interact.Errorf(interact.Overloaded, "retry later, or send less",
			"there is no room for an input of %d bytes", len(t.m.Data))
	}
	c.tasks = append(c.tasks, t)
	c.running++
	r.accounts[c.base], r.tasks[t.id] = c, t
	if t.key != (key{}) {
		r.keys[t.key] = t
	}
	return nil
}

// holdLocked charges n bytes to t, and drops ended tasks to make room. If there is no room, it charges nothing.
func (r *Runner) holdLocked(t *task, n int64) bool {
	if n > r.o.MaxOutput/2 {
		return false
	}
	for t.owner.held+n > r.o.MaxOutput/2 {
		if t.owner.kept == 0 || !r.forgetOldestLocked(t.owner) {
			return false
		}
	}
	for r.held+n > r.o.MaxOutput {
		if !r.forgetLocked(t.owner, keptBytes) {
			return false
		}
	}
	t.held, t.owner.held, r.held = t.held+n, t.owner.held+n, r.held+n
	return true
}

// releaseLocked releases n bytes of t.
func (r *Runner) releaseLocked(t *task, n int64) {
	t.held, t.owner.held, r.held = t.held-n, t.owner.held-n, r.held-n
}

// forgetLocked drops the oldest ended task of the consumer that uses most of a resource. A consumer that uses as much as any other
// drops its own.
func (r *Runner) forgetLocked(newcomer *account, scarce func(*account) int64) bool {
	most := newcomer
	for _, c := range r.accounts {
		if scarce(c) > scarce(most) {
			most = c
		}
	}
	return scarce(most) > 0 && r.forgetOldestLocked(most)
}

// forgetOldestLocked drops the task of c that ended first.
func (r *Runner) forgetOldestLocked(c *account) bool {
	for e := r.ended.Front(); e != nil; e = e.Next() {
		if t := e.Value.(*task); t.owner == c {
			r.dropLocked(t)
			return true
		}
	}
	return false
}

// sweep drops tasks that ended longer than Keep ago.
func (r *Runner) sweep(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sweepLocked(now)
}

// sweepLocked is sweep at now. Ages are by the monotonic clock, so that a change of the system clock has no effect.
func (r *Runner) sweepLocked(now time.Time) {
	for e := r.ended.Front(); e != nil && now.Sub(e.Value.(*task).over) >= r.o.Keep; e = r.ended.Front() {
		r.dropLocked(e.Value.(*task))
	}
}

// dropLocked drops an ended task.
func (r *Runner) dropLocked(t *task) {
	c := t.owner
	r.ended.Remove(t.place)
	c.kept -= t.held
	r.releaseLocked(t, t.held)
	delete(r.tasks, t.id)
	r.unkeyLocked(t)
	i := slices.Index(c.tasks, t)
	c.tasks = slices.Delete(c.tasks, i, i+1)
	if len(c.tasks) == 0 {
		delete(r.accounts, c.base)
	}
}

// unkeyLocked releases the key of t for another run.
func (r *Runner) unkeyLocked(t *task) {
	if r.keys[t.key] == t {
		delete(r.keys, t.key)
	}
}
