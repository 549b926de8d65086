package ratelimit

import (
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func after(seconds float64) time.Time { return noon.Add(time.Duration(seconds * float64(time.Second))) }

func TestBucketBurstAndRate(t *testing.T) {
	t.Parallel()
	for _, l := range []Limit{{1, 1}, {3, 3}, {7, 100}, {1000, 1}, {0.1, 5}, {1e6, 1e6}} {
		var b Bucket
		taken := 0
		for b.Take(l, 1, noon) {
			taken++
		}
		if taken != int(l.Burst) {
			t.Errorf("%v: %d tokens at once, want %g", l, taken, l.Burst)
		}
		if b.IsFull(noon) || b.Left(l, noon) != 0 {
			t.Errorf("%v: %d left", l, b.Left(l, noon))
		}
		wait := b.Wait(l, 1, noon)
		if b.Take(l, 1, noon.Add(wait-1)) {
			t.Errorf("%v: a token before the wait %v ended", l, wait)
		}
		if !b.Take(l, 1, noon.Add(wait)) {
			t.Errorf("%v: no token after the wait %v", l, wait)
		}
		if full := noon.Add(wait).Add(l.cost(l.Burst)); !b.IsFull(full) {
			t.Errorf("%v: not full at %v", l, full)
		}
	}
}

func TestTakeIsAtomic(t *testing.T) {
	t.Parallel()
	l := Limit{Rate: 10, Burst: 20}
	var b Bucket
	if b.Take(l, 21, noon) {
		t.Error("removed more tokens than the bucket holds")
	}
	if !b.Take(l, 20, noon) {
		t.Error("a failed Take removed tokens")
	}
	if got := b.Wait(l, 5, noon); got != 500*time.Millisecond {
		t.Errorf("wait %v for 5 tokens at 10/s, want 500ms", got)
	}
}

func TestChargeDebtIsBounded(t *testing.T) {
	t.Parallel()
	l := Limit{Rate: 10, Burst: 20}
	var b Bucket
	b.Charge(l, 30, noon)
	if got := b.Left(l, noon); got != -10 {
		t.Errorf("%d left after 30 of 20, want -10", got)
	}
	b.Charge(l, 1e9, noon)
	if got := b.Left(l, noon); got != -20 {
		t.Errorf("%d left, want the minimum, -20", got)
	}
	if b.Take(l, 1, after(2)) || !b.Take(l, 1, after(2.1)) {
		t.Error("a debt of 20 at 10/s is not paid after 2.1 s")
	}
}

func TestNoLimit(t *testing.T) {
	t.Parallel()
	var b Bucket
	l := Limit{Burst: 5}
	b.Charge(l, 1e9, noon)
	if !b.Take(l, 1e9, noon) || !b.IsFull(noon) || b.Left(l, noon) != 5 {
		t.Error("a rate of 0 limits")
	}
	if NewLimiter[string](Limit{Rate: -1}, 1).Take("a", 1e9, noon) != 0 {
		t.Error("a negative rate limits")
	}
}

func TestChangedLimitScalesTheTokens(t *testing.T) {
	t.Parallel()
	var b Bucket
	b.Take(Limit{Rate: 10, Burst: 10}, 5, noon)
	if got := b.Left(Limit{Rate: 5, Burst: 5}, noon); got != 2 {
		t.Errorf("half of a bucket of 5: %d, want 2", got)
	}
}

func TestKeysHaveTheirOwnBuckets(t *testing.T) {
	t.Parallel()
	l := NewLimiter[string](Limit{Rate: 1, Burst: 1}, 2)
	for _, k := range []string{"a", "b", "c"} {
		if wait := l.Take(k, 1, noon); wait != 0 {
			t.Errorf("%s waits %v for its first token", k, wait)
		}
	}
	if wait := l.Take("a", 1, noon); wait != time.Second {
		t.Errorf("a waits %v, want 1s", wait)
	}
	if l.Take("d", 1, noon) == 0 {
		t.Error("keys beyond the limit do not share a bucket")
	}
	if n := l.Len(); n != 3 {
		t.Errorf("%d keys, want 2 and the shared one", n)
	}
	if wait := l.Take("e", 1, after(1)); wait != 0 || l.Len() != 1 {
		t.Errorf("full buckets were not forgotten: wait %v, %d keys", wait, l.Len())
	}
	l.Charge("e", 1, after(1))
	if wait := l.Take("e", 1, after(2)); wait != time.Second {
		t.Errorf("after a charge e waits %v, want 1s", wait)
	}
}

func TestInflight(t *testing.T) {
	t.Parallel()
	f := NewInflight[string](2, 3)
	for i, step := range []struct {
		key  string
		want Outcome
	}{{"a", Entered}, {"a", Entered}, {"a", KeyFull}, {"b", Entered}, {"b", AllFull}} {
		if got := f.Enter(step.key); got != step.want {
			t.Errorf("step %d, %s: %d, want %d", i, step.key, got, step.want)
		}
	}
	f.Leave("a")
	if got := f.Enter("b"); got != Entered {
		t.Errorf("after a leave: %d", got)
	}
	f.Leave("a")
	f.Leave("b")
	f.Leave("b")
	if len(f.byKey) != 0 || f.total != 0 {
		t.Errorf("left %v, %d", f.byKey, f.total)
	}
}

func TestEvery(t *testing.T) {
	t.Parallel()
	l := Every(3, 500*time.Millisecond)
	var b Bucket
	for range 3 {
		b.Take(l, 1, noon)
	}
	if got := b.Wait(l, 1, noon); got != 500*time.Millisecond {
		t.Errorf("wait %v after the burst, want 500ms", got)
	}
}

// A rate of one token in a time longer than any clock must not overflow to a wait of zero.
func TestSlowRates(t *testing.T) {
	t.Parallel()
	l := Limit{Rate: 1e-300, Burst: 1}
	var b Bucket
	if !b.Take(l, 1, noon) || b.Take(l, 1, noon) || b.Wait(l, 1, noon) < 24*time.Hour {
		t.Errorf("wait %v for the second token", b.Wait(l, 1, noon))
	}
}
