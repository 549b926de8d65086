package journal

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/liveheap"
)

func texts(events []api.NodeEvent) string {
	var all []string
	for _, e := range events {
		all = append(all, e.Text)
	}
	return strings.Join(all, " ")
}

func TestEventsAscend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := New()
		begin := j.Mark()
		for _, text := range []string{"a", "b", "c"} { // at one time
			j.Add(api.NodeEvent{Kind: api.EventPeerConnected, Text: text})
		}
		found, lost := j.Events(begin, j.Mark(), 10)
		if texts(found) != "a b c" || lost != 0 || found[0].Seq <= begin || found[0].Seq >= found[1].Seq || found[1].Seq >= found[2].Seq {
			t.Errorf("got %+v, lost %d", found, lost)
		}
		if found, _ := j.Events(found[0].Seq, j.Mark(), 1); texts(found) != "b" {
			t.Errorf("one after a: got %q", texts(found))
		}
		if found, _ := j.Events(begin, found[1].Seq, 10); texts(found) != "a b" {
			t.Errorf("up to b: got %q", texts(found))
		}
		if found, _ := j.Events(j.Before(2), j.Mark(), 10); texts(found) != "b c" {
			t.Errorf("the last two: got %q", texts(found))
		}
		if found, _ := j.Events(j.Before(99), j.Mark(), 10); texts(found) != "a b c" {
			t.Errorf("all: got %q", texts(found))
		}
	})
}

// The numbers do not depend on earlier events: a reader that may not see one cannot tell that there was one.
func TestNumbersAreTimes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := New()
		time.Sleep(time.Second)
		j.Add(api.NodeEvent{Text: "a"})
		time.Sleep(time.Second)
		j.Add(api.NodeEvent{Text: "b"})
		all, _ := j.Events(0, j.Mark(), 10)
		if all[1].Seq-all[0].Seq != 1e6 || !all[1].At.Equal(time.Now()) {
			t.Errorf("got %+v", all)
		}
	})
}

func TestOldEventsAreLost(t *testing.T) {
	t.Parallel()
	j := New()
	begin := j.Mark()
	for range maxEvents + 5 {
		j.Add(api.NodeEvent{Kind: api.EventPeerConnected})
	}
	found, lost := j.Events(begin, j.Mark(), maxEvents+5)
	if len(found) != maxEvents || lost == 0 || lost >= found[0].Seq || lost <= begin {
		t.Errorf("got %d events, lost %d", len(found), lost)
	}
	if _, again := j.Events(lost, j.Mark(), 1); again != 0 {
		t.Errorf("after the gap: lost %d", again)
	}
}

// A restarted node has none of the events before; its numbers are higher.
func TestRestartIsAGap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		before := New()
		for range 100 {
			before.Add(api.NodeEvent{})
		}
		last := before.Mark()
		time.Sleep(time.Millisecond)
		after := New()
		if _, lost := after.Events(last, after.Mark(), 10); lost <= last {
			t.Errorf("lost %d, want more than %d", lost, last)
		}
		if _, lost := after.Events(after.Mark(), after.Mark(), 10); lost != 0 {
			t.Errorf("from now on: lost %d", lost)
		}
	})
}

// Readers receive 10,000 changes of a second, or know that they miss some. A reader that reads nothing delays no writer.
func TestManyChanges(t *testing.T) {
	t.Parallel()
	j := New()
	release := j.Open() // reads nothing
	defer release()
	const writers, each = 4, 5000
	var work sync.WaitGroup
	begin := j.Mark()
	for range writers {
		work.Go(func() {
			for range each {
				j.Add(api.NodeEvent{Kind: api.EventAgentChanged})
			}
		})
	}
	done := make(chan struct{})
	go func() { work.Wait(); close(done) }()
	read, gaps, after := 0, 0, begin
	for ended := false; !ended; {
		select {
		case <-j.More(after, false):
		case <-done:
			ended = true
		}
		for {
			upTo := j.Mark()
			found, lost := j.Events(after, upTo, 256)
			if lost > 0 {
				gaps++
			}
			for _, e := range found {
				if e.Seq <= after {
					t.Fatalf("%d after %d", e.Seq, after)
				}
				after = e.Seq
			}
			read += len(found)
			if len(found) < 256 {
				break
			}
		}
	}
	if read != writers*each && gaps == 0 {
		t.Errorf("read %d of %d without a gap", read, writers*each)
	}
}

func TestMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := New()
		is := func(c <-chan struct{}) bool {
			select {
			case <-c:
				return true
			default:
				return false
			}
		}
		at := j.Mark()
		events, both := j.More(at, false), j.More(at, true)
		ask(t, j, &interact.Message{Type: interact.ReadProperty}, answer)
		if is(events) || !is(both) {
			t.Error("a call wakes readers of events, or none of calls")
		}
		j.Add(api.NodeEvent{})
		if !is(events) || !is(j.More(at, false)) || is(j.More(j.Mark(), true)) {
			t.Error("an event does not wake, or for ever")
		}
	})
}

// Sources are compared every five seconds, and each second while there are readers.
func TestWatchIsFasterForReaders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := New()
		ctx, cancel := context.WithCancel(t.Context())
		var compared, sampled atomic.Int64
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			j.Watch(ctx, func(isSample bool) {
				if compared.Add(1); isSample {
					sampled.Add(1)
				}
			})
		}()
		want := func(what string, c, s int64) {
			t.Helper()
			synctest.Wait()
			if gotC, gotS := compared.Swap(0), sampled.Swap(0); gotC != c || gotS != s {
				t.Errorf("%s: compared %d times, sampled %d times, want %d, %d", what, gotC, gotS, c, s)
			}
		}
		want("at first", 1, 0)
		time.Sleep(3 * Step)
		want("without readers", 3, 3)
		first, second := j.Open(), j.Open()
		time.Sleep(2 * Step)
		want("with readers", 10, 2)
		first()
		first()
		if !j.IsRead() {
			t.Error("the other reader is forgotten")
		}
		second()
		time.Sleep(2 * Step)
		want("after them", 3, 2) // the pause of a second had begun
		cancel()
		<-ended
	})
}

func TestSamples(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := New()
		peers := func(n int) (all []int) {
			samples, _ := j.Series(n)
			for _, s := range samples {
				all = append(all, s.Peers)
			}
			return all
		}
		equal := func(what string, got []int, want ...int) {
			t.Helper()
			if len(got) != len(want) {
				t.Fatalf("%s: got %v, want %v", what, got, want)
			}
			for i := range got {
				if got[i] != want[i] {
					t.Fatalf("%s: got %v, want %v", what, got, want)
				}
			}
		}
		equal("none", peers(2), -1, -1)
		j.Sample(Sample{Peers: 1})
		time.Sleep(Step)
		j.Sample(Sample{Peers: 2})
		equal("two", peers(3), -1, 1, 2)
		time.Sleep(3 * Step) // suspended
		j.Sample(Sample{Peers: 3})
		equal("after a pause", peers(5), 1, 2, -1, -1, 3)
		for range maxSamples {
			time.Sleep(Step)
			j.Sample(Sample{Peers: 4})
		}
		if all := peers(1 << 20); len(all) != maxSamples || all[0] != 4 {
			t.Errorf("a day: %d samples", len(all))
		}
		time.Sleep(24 * time.Hour)
		j.Sample(Sample{Peers: 5})
		equal("after a day", peers(2), -1, 5)
		if _, to := j.Series(1); !to.Equal(time.Now()) {
			t.Errorf("the last one is of %v", to)
		}
	})
}

// Events, samples and calls have at most 8 MB, whatever is in them.
func TestMemory(t *testing.T) { // not parallel: it measures the heap
	long := func(c string) string { return strings.Repeat(c, 4<<10) }
	before := liveheap.Bytes()
	j := New()
	for range 3 * maxEvents {
		j.Add(api.NodeEvent{Kind: api.EventAgentAdded, DID: did.DID("did:key:" + long("d")[:60]), Thing: strings.Clone(long("t")[:2300]), Name: long("n"), Code: "LMOS-0001",
			Text: long("x"), ID: long("i"), TraceID: long("t")})
	}
	for range 2 * maxCalls {
		ask(t, j, &interact.Message{ID: long("m"), Type: interact.InvokeAction, Thing: strings.Clone(long("u")), Name: long("a"), Data: make([]byte, 64<<10)}, answer)
	}
	for range 2 * maxSamples {
		j.Sample(Sample{})
	}
	if used := liveheap.Bytes() - before; used > 8<<20 {
		t.Errorf("a journal has %d bytes, want 8 MB at most", used)
	} else {
		t.Logf("%d kB with long texts, %d events", used>>10, j.events.n)
	}
	short := New()
	before = liveheap.Bytes()
	for range maxEvents {
		short.Add(api.NodeEvent{Kind: api.EventPeerConnected, DID: did.DID(strings.Clone("did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH"))})
	}
	if used := liveheap.Bytes() - before; used > 4<<20 || short.events.n != maxEvents {
		t.Errorf("10,000 events of peers have %d bytes, %d are kept", used, short.events.n)
	}
	if j.events.n == 0 {
		t.Error("no events")
	}
}

func TestChanged(t *testing.T) {
	t.Parallel()
	j := New()
	for _, kind := range []string{"trust", "policy", "token", "key"} {
		j.Changed(kind, "detail of "+kind)
	}
	var kinds []string
	all, _ := j.Events(0, j.Mark(), 10)
	for _, e := range all {
		kinds = append(kinds, e.Kind+" "+e.Text)
	}
	want := "trust.changed detail of trust|config.reloaded access rules|trust.policy detail of policy|trust.token detail of token|trust.key detail of key"
	if got := strings.Join(kinds, "|"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
