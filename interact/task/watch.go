package task

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/lmosd/lmosd/interact"
)

const (
	// ahead is how many states a follower may be behind before the agent waits for it.
	ahead = 4
	// timeout is how long the agent waits for a follower that takes nothing.
	timeout = 10 * time.Second
	// maxFollowers is how many consumers follow one task.
	maxFollowers = 64
)

// A follower is a consumer that waits for a task.
type follower struct {
	m    *interact.Message
	task *task
	late bool // it came after the first part of the output; set before the task's goroutine knows it

	replies chan *interact.Message // the goroutine of the task sends and closes
	left    chan struct{}          // closed when the consumer has left
	// last and err are how it ended for the follower, once replies is closed.
	last *interact.Message
	err  *interact.Error
}

// invoke begins an action, or follows the run of the same key, and yields its states.
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

// follow yields what the task says, until it ends or ctx does.
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
					last.Time = f.task.over.UTC() // it changes no more
				}
				yield(last, nil)
				return
			case !yield(r, nil):
				return
			}
		case <-ctx.Done():
			yield(nil, f.tired(ctx.Err()))
			return
		}
	}
}

// tired is the error of a consumer that waits no longer.
func (f *follower) tired(err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &interact.Error{Code: interact.Timeout, Title: fmt.Sprintf("%s took longer than the consumer waits", f.m.Name),
		Err: err, Started: true,
		Hint: "wait longer; or ask for it detached, and then for its state (queryaction)"}
}

// address makes of what the agent said a reply to the follower.
func (f *follower) address(r *interact.Message) *interact.Message {
	c := *f.m.Reply(r.Type, r.ContentType, r.Data)
	c.ID, c.Status, c.Timing = r.ID, r.Status, r.Timing
	c.ActionID, c.Began, c.Time = f.task.id, f.task.began.UTC(), r.Time
	return &c
}

// send gives r to the follower. It waits while the follower is behind; the error says why it gave up.
func (f *follower) send(ctx context.Context, r *interact.Message) *interact.Error {
	c := f.address(r)
	if f.late {
		c.Data, c.ContentType = nil, "" // it will get the whole
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
			Started: true,
			Hint:    "ask for its state (queryaction)"}
	case <-late.C:
		return interact.Errorf(interact.Overloaded, "read on all the time; its state can be asked for (queryaction)",
			"the consumer reads too slowly: %s has been waiting for %v", f.task.name, timeout)
	}
}

// end is the last that the follower hears. Only the goroutine of the task calls it, once; or whoever made the follower, if the
// task has ended.
func (f *follower) end(last *interact.Message, err *interact.Error) {
	f.last, f.err = last, err
	close(f.replies)
}

// leave ends the following. A task that is not detached is cancelled with its last follower.
func (h *host) leave(f *follower) {
	close(f.left)
	if h.unfollow(f) {
		f.task.cancel(errLeft)
	}
}

// unfollow reports whether nobody is left for whom the task runs.
func (h *host) unfollow(f *follower) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := f.task
	if i := slices.Index(t.followers, f); i >= 0 {
		t.followers = slices.Delete(slices.Clone(t.followers), i, i+1)
	}
	return len(t.followers) == 0 && !t.detached && !t.state.Final()
}

// chunks is the request stream in, which ends with an error when the follower has left: what it would have sent is not known.
func (f *follower) chunks(in iter.Seq2[[]byte, error]) iter.Seq2[[]byte, error] {
	gone := interact.Errorf(interact.Cancelled, "send it again", "the consumer left before the end of its input")
	return func(yield func([]byte, error) bool) {
		if f.hasLeft() {
			yield(nil, gone) // in may not be read any more
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
