package heartbeat

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// run runs a loop that beats at each tick, until hang is closed or ctx ends.
func run(ctx context.Context, loop *Loop, interval time.Duration, hang <-chan struct{}) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			loop.Beat()
		case <-hang:
			<-ctx.Done()
			return
		}
	}
}

func names(late []Late) (all []string) {
	for _, l := range late {
		all = append(all, l.Name)
	}
	return all
}

func TestHangingLoopsAreFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l Loops
		ctx, cancel := context.WithCancel(l.Context(t.Context()))
		defer cancel()
		hangVital, hangOther := make(chan struct{}), make(chan struct{})
		go run(ctx, StartVital(ctx, "z", time.Second), time.Second, hangVital)
		go run(ctx, Start(ctx, "a", 20*time.Second), 20*time.Second, hangOther)
		go run(ctx, Start(ctx, "hourly", time.Hour), time.Hour, nil)
		time.Sleep(90 * time.Minute)
		if late := l.Late(); len(late) != 0 {
			t.Fatalf("late while all loops run: %v", late)
		}
		close(hangVital)
		time.Sleep(30 * time.Second)
		if late := l.Late(); len(late) != 0 {
			t.Fatalf("late within 30 s: %v", late)
		}
		time.Sleep(5 * time.Second)
		if late := l.Late(); !slices.Equal(names(late), []string{"z"}) || !late[0].Vital || late[0].Since < 30*time.Second || late[0].Since > 40*time.Second {
			t.Fatalf("late: %+v; want z", late)
		}
		close(hangOther)
		for range 10 { // as a watchdog: all that measures time now
			time.Sleep(10 * time.Second)
			l.Late()
		}
		if late := l.Late(); !slices.Equal(names(late), []string{"z", "a"}) || late[1].Vital {
			t.Fatalf("late: %+v; want z, which is vital, and a", late)
		}
		if all, vital := l.Names(); !slices.Equal(all, []string{"a", "hourly", "z"}) || !slices.Equal(vital, []string{"z"}) {
			t.Errorf("loops %v, vital %v", all, vital)
		}
	})
}

// A process that was suspended for hours finds no loop late, also if a check runs before all loops.
func TestSuspendedTimeDoesNotCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l Loops
		loop := StartVital(l.Context(t.Context()), "gossip", time.Second)
		time.Sleep(5 * time.Hour)
		if late := l.Late(); len(late) != 0 {
			t.Errorf("late after a suspension: %v", late)
		}
		time.Sleep(time.Second)
		loop.Beat()
		if late := l.Late(); len(late) != 0 {
			t.Errorf("late after a beat: %v", late)
		}
	})
}

func TestPausesOfOtherLengths(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l Loops
		ctx, cancel := context.WithCancel(l.Context(t.Context()))
		defer cancel()
		go run(ctx, Start(ctx, "clock", time.Second), time.Second, nil)
		loop := Start(ctx, "dht", time.Second)
		loop.Wait(time.Hour)
		time.Sleep(2 * time.Hour)
		if late := l.Late(); len(late) != 0 {
			t.Errorf("late in a long pause: %v", late)
		}
		time.Sleep(time.Minute)
		if late := l.Late(); len(late) != 1 || late[0].String() != "dht for 2h1m0s" {
			t.Errorf("late: %v", late)
		}
		loop.Beat()
		if late := l.Late(); len(late) != 0 {
			t.Errorf("late after a beat: %v", late)
		}
	})
}

// Parts that run without a node have no Loops.
func TestLoopsWithoutANode(t *testing.T) {
	t.Parallel()
	loop := Start(t.Context(), "gossip", time.Second)
	loop.Beat()
	loop.Wait(time.Hour)
	if loop != nil {
		t.Error("a loop without Loops is registered")
	}
}

func BenchmarkBeat(b *testing.B) {
	var l Loops
	loop := Start(l.Context(b.Context()), "gossip", time.Second)
	b.ReportAllocs()
	for b.Loop() {
		loop.Beat()
	}
}
