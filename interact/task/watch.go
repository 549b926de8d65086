package task

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/lmosd/lmosd/interact"
)

const (
	// ahead is the number of buffered states of a follower; a full buffer delays the agent.
	ahead = 4
	// timeout limits the wait for a follower.
	timeout = 10 * time.Second
	// maxFollowers limits the consumers that follow one task.
	maxFollowers = 64
)

// A follower is a consumer that waits for a task.
type follower struct {
	m    *interact.Message
	task *task
	late bool // it joined after the first part of the output; set before the goroutine of the task uses it

	replies chan *interact.Message // the goroutine of the task sends and closes
	left    chan struct{}          // closed when the consumer has left
	// last and err are the result for the follower, after replies is closed.
	last *interact.Message
	err  *interact.Error
}

// invoke starts an action, or follows the run of the same key, and yields its states.
func (h *host) invoke(ctx context.Context, m *interact.Message, detached bool) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		if !m.Deadline.IsZero() {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, m.Deadline)
			defer cancel()
		}
		if err := ctx.Err(); err != nil {
			yield(nil, err)
			return
		}
		f, err := h.join(m, detached)
		if err != nil {
			yield(nil, err)
			return
		}
		defer h.leave(f)
		pending := m.Reply(interact.ActionStatus, "", nil)
		pending.Status, pending.ActionID, pending.Began = interact.StatusPending, f.task.id, f.task.began.UTC()
		if yield(pending, nil) {
			f.follow(ctx, yield)
		}
	}
}

// follow yields the states of the task until its end or that of ctx.
func (f *follower) follow(ctx context.Context, yield func(*interact.Message, error) bool) {
	for {
		select {
		case r, ok := <-f.replies:
			switch {
			case !ok && f.err != nil:
				yield(nil, f.err)
				return
			case !ok:
				last := f.address(f.last)
				if last.Time.IsZero() {
					last.Time = f.task.over.UTC() // it is final
				}
				yield(last, nil)
				return
			case !yield(r, nil):
				return
			}
		case <-ctx.Done():
			yield(nil, f.timedOut(ctx.Err()))
			return
		}
	}
}

// timedOut returns the error of a consumer whose deadline has passed.
func (f *follower) timedOut(err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &interact.Error{Code: interact.Timeout, Title: f.m.Name + " exceeded the deadline of the consumer", Err: err, Started: true,
		Hint: "allow more time, or invoke it detached and query its state (queryaction)"}
}

// address returns a reply of the agent as a reply to the follower.
func (f *follower) address(r *interact.Message) *interact.Message {
	c := *f.m.Reply(r.Type, r.ContentType, r.Data)
	c.ID, c.Status, c.Timing = r.ID, r.Status, r.Timing
	c.ActionID, c.Began, c.Time = f.task.id, f.task.began.UTC(), r.Time
	return &c
}

// send sends r to the follower. It waits for a slow follower; the error is the reason to disconnect it.
func (f *follower) send(ctx context.Context, r *interact.Message) *interact.Error {
	c := f.address(r)
	if f.late {
		c.Data, c.ContentType = nil, "" // it gets the whole output at the end
	}
	select {
	case f.replies <- c:
		return nil
	case <-f.left:
		return nil
	default:
	}
	late := time.NewTimer(timeout)
	defer late.Stop()
	select {
	case f.replies <- c:
		return nil
	case <-f.left:
		return nil
	case <-ctx.Done():
		return &interact.Error{Code: interact.Cancelled, Title: f.task.name + " was cancelled: " + context.Cause(ctx).Error(),
			Started: true, Hint: "read its state (queryaction)"}
	case <-late.C:
		return interact.Errorf(interact.Overloaded, "read without pauses, or query its state (queryaction)",
			"the consumer reads too slowly: %s has been waiting for %v", f.task.name, timeout)
	}
}

// end sends the result to the follower. Only the goroutine of the task calls it, once; or the creator of the follower, if the task
// has ended.
func (f *follower) end(last *interact.Message, err *interact.Error) {
	f.last, f.err = last, err
	close(f.replies)
}

// leave removes the follower. A task that is not detached is cancelled with its last follower.
func (h *host) leave(f *follower) {
	close(f.left)
	if h.unfollow(f) {
		f.task.cancel(errLeft)
	}
}

// unfollow removes the follower, and reports whether the task must be cancelled: it is not detached, runs, and has no follower.
func (h *host) unfollow(f *follower) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := f.task
	if i := slices.Index(t.followers, f); i >= 0 {
		t.followers = slices.Delete(slices.Clone(t.followers), i, i+1)
	}
	return len(t.followers) == 0 && !t.detached && !t.state.Final()
}

// chunks returns the request stream in, which ends with an error after the follower has left.
func (f *follower) chunks(in iter.Seq2[[]byte, error]) iter.Seq2[[]byte, error] {
	gone := interact.Errorf(interact.Cancelled, "send it again", "the consumer left before the end of its input")
	return func(yield func([]byte, error) bool) {
		if f.hasLeft() {
			yield(nil, gone) // in must not be read now
			return
		}
		for b, err := range in {
			if f.hasLeft() {
				break
			}
			if !yield(b, err) || err != nil {
				return
			}
			if f.hasLeft() {
				break
			}
		}
		if f.hasLeft() {
			yield(nil, gone)
		}
	}
}

func (f *follower) hasLeft() bool {
	select {
	case <-f.left:
		return true
	default:
		return false
	}
}
