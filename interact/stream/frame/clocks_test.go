package frame

import (
	"bytes"
	"testing"
	"time"
)

// TestDeadlinesNeedNoClock writes a request with three seconds left by clocks that differ by minutes and hours, and reads it by
// others: the bytes are the same, and each reader has three seconds by its own clock.
func TestDeadlinesNeedNoClock(t *testing.T) {
	t.Parallel()
	clock := time.Unix(1_800_000_000, 0)
	write := func(now time.Time) []byte {
		m := call("a", `"x"`)
		m.ID = "m1"
		m.Deadline = now.Add(3 * time.Second)
		b, err := AppendRequest(nil, m, Extra{}, TimeLeft(m.Deadline, now))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	want := write(clock)
	for _, off := range []time.Duration{time.Minute, -time.Minute, time.Hour, -time.Hour, 24 * 365 * time.Hour} {
		if got := write(clock.Add(off)); !bytes.Equal(got, want) {
			t.Errorf("by a clock %v ahead the request is %x, want %x", off, got, want)
		}
		here := clock.Add(off)
		m, _, err := ReadRequest(want, here)
		if err != nil || !m.Deadline.Equal(here.Add(3*time.Second)) {
			t.Errorf("by a clock %v ahead it is read as until %v, %v; now is %v", off, m.Deadline, err, here)
		}
	}
}
