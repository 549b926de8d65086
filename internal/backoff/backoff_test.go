package backoff

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

func TestSleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, test := range []struct {
			delay, took time.Duration
			err         error
		}{{-1, 0, nil}, {0, 0, nil}, {30 * time.Second, 30 * time.Second, nil}, {time.Hour, 30 * time.Second, context.DeadlineExceeded}} {
			began := time.Now()
			if err := Sleep(ctx, test.delay); !errors.Is(err, test.err) || time.Since(began) != test.took {
				t.Errorf("a delay of %v took %v, %v", test.delay, time.Since(began), err)
			}
		}
	})
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	b := Backoff{First: time.Second, Max: 5 * time.Second}
	for range 2 {
		for i, want := range []time.Duration{1, 2, 4, 5, 5} {
			if got := b.Next(); got != want*time.Second {
				t.Errorf("pause %d: got %v, want %v", i, got, want*time.Second)
			}
		}
		b.Reset()
	}
	b.Max = 0
	for range 10 {
		b.Next()
	}
	if got := b.Next(); got != 1024*time.Second {
		t.Errorf("without a maximum: got %v", got)
	}
}

func TestJitter(t *testing.T) {
	t.Parallel()
	b := Backoff{First: time.Second, Max: time.Second, Jitter: 0.5}
	shorter, longer := 0, 0
	for range 1000 {
		switch d := b.Next(); {
		case d < time.Second/2 || d > 3*time.Second/2:
			t.Fatalf("got %v, want 500ms to 1.5s", d)
		case d < time.Second:
			shorter++
		default:
			longer++
		}
	}
	if shorter < 400 || longer < 400 {
		t.Errorf("%d pauses are shorter, %d longer", shorter, longer)
	}
	for _, d := range []time.Duration{-1, 0, 1} {
		if got := Jitter(d, 0.1); got != d {
			t.Errorf("jitter of %v: got %v", d, got)
		}
	}
}

func TestBackoffSleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		b := Backoff{First: time.Second}
		for range 3 {
			if err := b.Sleep(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took != 7*time.Second {
			t.Errorf("took %v, want 7s", took)
		}
	})
}
