package fetch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/td"
)

// A fetch continues for the other callers if the first one is canceled.
func TestFetchOutlivesItsFirstCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := New(func(ctx context.Context, _ *td.Record) ([]byte, error) {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(2 * time.Second):
				return []byte("body"), nil
			}
		})
		r := &td.Record{Hash: [32]byte{1}}
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		done := make(chan error, 1)
		go func() {
			_, err := f.TD(impatient, r)
			done <- err
		}()
		synctest.Wait()
		body, err := f.TD(t.Context(), r)
		if err != nil || string(body) != "body" {
			t.Errorf("got %q, %v", body, err)
		}
		if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the deadline of the first", err)
		}
		if len(f.jobs) != 0 || len(f.hosts) != 0 || len(f.failures) != 0 {
			t.Errorf("left over: %v %v %v", f.jobs, f.hosts, f.failures)
		}
	})
}

func TestFailuresAreBounded(t *testing.T) {
	t.Parallel()
	f := New(nil)
	for i := range maxFailures + 10 {
		f.Failed(&td.Record{Hash: [32]byte{byte(i), byte(i >> 8)}})
	}
	if n := len(f.failures); n != maxFailures {
		t.Errorf("got %d, want %d", n, maxFailures)
	}
}
