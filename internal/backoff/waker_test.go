package backoff

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestWaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, calls, start := NewWaker(), []time.Duration(nil), time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
		defer cancel()
		go func() {
			time.Sleep(12 * time.Second)
			w.Wake()
		}()
		w.Loop(ctx, func() time.Duration {
			calls = append(calls, time.Since(start)/time.Second)
			return 10 * time.Second
		})
		if len(calls) != 4 || calls[0] != 0 || calls[1] != 10 || calls[2] != 12 || calls[3] != 22 || time.Since(start) != 25*time.Second {
			t.Errorf("got calls after %d s, end after %v", calls, time.Since(start))
		}
	})
}
