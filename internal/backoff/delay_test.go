package backoff

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A delay lasts as long as it should, and ends with its context.
func TestFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, test := range []struct {
			delay, took time.Duration
			err         error
		}{{-1, 0, nil}, {0, 0, nil}, {30 * time.Second, 30 * time.Second, nil}, {time.Hour, 30 * time.Second, context.DeadlineExceeded}} {
			began := time.Now()
			if err := For(ctx, test.delay); !errors.Is(err, test.err) || time.Since(began) != test.took {
				t.Errorf("a delay of %v took %v, %v", test.delay, time.Since(began), err)
			}
		}
	})
}
