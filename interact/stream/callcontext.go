package stream

import (
	"context"
	"sync"
	"time"
)

// A work is the context of one call that is served. It ends at the deadline of the call, with the session, or when the caller cancels.
// Short calls do not use Done, so Done creates the channel and the timer.
type work struct {
	mu       sync.Mutex
	deadline time.Time       // zero: none; set before the work starts
	real     context.Context // made by Done
	cancel   context.CancelFunc
	err      error // reason of the end, before real was made
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

// Value has no values of its own. Derived contexts find the real one with it and need no goroutine.
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
