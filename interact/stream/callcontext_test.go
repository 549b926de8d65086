package stream

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestUnobservedAction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w work
		if d, ok := w.Deadline(); ok || w.Err() != nil {
			t.Errorf("work without a deadline has %v, %v", d, w.Err())
		}
		w.until(time.Now().Add(time.Second))
		if _, ok := w.Deadline(); !ok || w.Err() != nil {
			t.Errorf("a second before its deadline: %v", w.Err())
		}
		time.Sleep(time.Second)
		if err := w.Err(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after its deadline: %v", err)
		}
		w.end()
		if err := w.Err(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the reason changed to %v", err)
		}
		<-w.Done()
		if err := context.Cause(&w); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the cause is %v", err)
		}
	})
}

func TestWorkThatIsWatched(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		deadline time.Duration // 0: none
		end      bool
		want     error
	}{
		"cancelled":                   {0, true, context.Canceled},
		"cancelled before a deadline": {time.Hour, true, context.Canceled},
		"past its deadline":           {time.Second, false, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var w work
				if c.deadline > 0 {
					w.until(time.Now().Add(c.deadline))
				}
				child, cancel := context.WithCancel(&w) // starts no goroutine: the bubble would wait for it
				defer cancel()
				if w.Err() != nil || child.Err() != nil {
					t.Fatalf("ended at once: %v", w.Err())
				}
				if c.end {
					w.end()
				}
				<-child.Done()
				<-w.Done()
				if !errors.Is(w.Err(), c.want) || !errors.Is(child.Err(), c.want) {
					t.Errorf("got %v and %v, want %v", w.Err(), child.Err(), c.want)
				}
			})
		})
	}
}

func TestWorkThatEndedBeforeItWasWatched(t *testing.T) {
	t.Parallel()
	var w work
	w.end()
	w.end()
	<-w.Done()
	if !errors.Is(w.Err(), context.Canceled) || w.Value("key") != nil {
		t.Errorf("got %v", w.Err())
	}
}
