package gcpace

import (
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/lmosd/lmosd/internal/poll"
)

func TestNext(t *testing.T) {
	t.Parallel()
	const MiB = 1 << 20
	for _, c := range []struct {
		percent int
		pause   time.Duration
		live    int64
		want    int
	}{
		{100, time.Minute, 10 * MiB, 100},
		{100, 100 * time.Millisecond, 10 * MiB, 100},
		{100, 10 * time.Millisecond, 10 * MiB, 400},
		{100, 10 * time.Millisecond, 0, 400},
		{400, 500 * time.Millisecond, 10 * MiB, 400}, // it is collected less often because of the percentage
		{400, 2 * time.Second, 10 * MiB, 100},
		{400, 10 * time.Millisecond, 100 * MiB, 250}, // at most 256 MiB of garbage
		{400, 10 * time.Millisecond, 1000 * MiB, 100},
	} {
		if got := next(c.percent, c.pause, c.live, 256*MiB); got != c.want {
			t.Errorf("after %d, %v and %d bytes: %d, want %d", c.percent, c.pause, c.live, got, c.want)
		}
	}
}

// The percentage follows the collections of the process.
func TestStart(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(idlePercent)
	defer debug.SetGCPercent(before)
	stop := Start(1 << 40)
	defer stop()
	poll.Until(t, "a higher percentage under load", func() bool { return burst() == busyPercent })
	stop()
	if got := burst(); got != idlePercent {
		t.Errorf("%d after the end", got)
	}
}

var sink []byte

// burst allocates the garbage of several collections, and returns the percentage then.
func burst() uint64 {
	for range 1000 {
		sink = make([]byte, 64<<10)
	}
	percent := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(percent)
	return percent[0].Value.Uint64()
}

// A percentage of the user stays.
func TestUser(t *testing.T) {
	t.Setenv("GOGC", "50")
	before := debug.SetGCPercent(50)
	defer debug.SetGCPercent(before)
	defer Start(1 << 40)()
	if got := burst(); got != 50 {
		t.Errorf("got %d", got)
	}
}
