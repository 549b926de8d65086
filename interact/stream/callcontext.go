package stream

import (
	"context"
	"sync"
	"time"
)

// A work is the context of the work for one call that is served: it ends with the call's deadline, with the session, or with
// the caller's interest. Short work never looks whether it was cancelled, so the channel and the timer that this takes are
// made when somebody asks for Done.
type work struct {
	mu       sync.Mutex
	deadline time.Time       // zero: none; set before the work begins
	real     context.Context // made by Done
	cancel   context.CancelFunc
	err      error // why the work ended before real was made
}

func (w *work) Deadline() (time.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.deadline, !w.deadline.IsZero()
}

func (w *work) Done() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.real == nil {
		if w.deadline.IsZero() {
			w.real, w.cancel = context.WithCancel(context.Background())
		} else {
			w.real, w.cancel = context.WithDeadline(context.Background(), w.deadline)
		}
		if w.err != nil {
			w.cancel()
		}
	}
	return w.real.Done()
}

func (w *work) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.real != nil {
		return w.real.Err()
	}
	if w.err == nil && !w.deadline.IsZero() && !time.Now().Before(w.deadline) {
		w.err = context.DeadlineExceeded
	}
	return w.err
}

// Value holds nothing of its own. Contexts that are derived from this one find the real one by it, and need no goroutine.
func (w *work) Value(key any) any {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.real == nil {
		return nil
	}
	return w.real.Value(key)
}

// until sets the deadline.
func (w *work) until(deadline time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deadline = deadline
}

// end cancels the work, unless it has ended.
func (w *work) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.cancel != nil:
		w.cancel()
	case w.err == nil:
		w.err = context.Canceled
	}
}
