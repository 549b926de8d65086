package backoff

import (
	"testing"
	"time"
)

func TestBudget(t *testing.T) {
	t.Parallel()
	var b Budget
	now := time.Unix(1000, 0)
	take := func(want int) {
		t.Helper()
		got := 0
		for b.Take(now) {
			got++
		}
		if got != want {
			t.Errorf("%d further tries, want %d", got, want)
		}
	}
	take(3)
	now = now.Add(time.Second)
	take(3)
	now = now.Add(time.Hour)
	take(3)
	for range 45 {
		b.Call(now)
	}
	take(4)
	for range 2000 {
		b.Call(now)
	}
	take(100)
}
