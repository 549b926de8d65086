package dht

import (
	"testing"
	"time"
)

func TestMeter(t *testing.T) {
	t.Parallel()
	m := newMeter(10, 20)
	now := time.Unix(1e9, 0)
	taken := 0
	for m.take("a", now) {
		taken++
	}
	if taken != 20 {
		t.Errorf("a burst gave %d tokens, want 20", taken)
	}
	if !m.take("b", now) {
		t.Error("one peer's burst took another's tokens")
	}
	now = now.Add(500 * time.Millisecond)
	for taken = 0; m.take("a", now); {
		taken++
	}
	if taken != 5 {
		t.Errorf("half a second gave %d tokens, want 5", taken)
	}
	now = now.Add(time.Hour)
	for taken = 0; m.take("a", now); {
		taken++
	}
	if taken != 20 {
		t.Errorf("an hour gave %d tokens, want the burst of 20", taken)
	}
}

func TestMeterCharges(t *testing.T) {
	t.Parallel()
	m := newMeter(10, 20)
	now := time.Unix(1e9, 0)
	m.charge("a", 1e6, now)
	if m.take("a", now.Add(2*time.Second)) || m.take("a", now.Add(2050*time.Millisecond)) {
		t.Error("a token for who owes some")
	}
	m.take("b", now.Add(3*time.Second)) // sweeps
	if !m.take("a", now.Add(2200*time.Millisecond)) || len(m.buckets) != 2 {
		t.Error("the debt was forgotten, or has no end")
	}
}

func TestMeterForgetsFullBuckets(t *testing.T) {
	t.Parallel()
	m := newMeter(10, 20)
	now := time.Unix(1e9, 0)
	for i := range 1000 {
		m.take(testPeer(t, i), now)
	}
	now = now.Add(3 * time.Second)
	m.take("late", now)
	if n := len(m.buckets); n != 1 {
		t.Errorf("%d buckets are kept, want 1", n)
	}
}
