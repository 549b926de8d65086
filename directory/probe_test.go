package directory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// A lab is a set of nodes that are probed.
type lab struct {
	mu      sync.Mutex
	up      map[did.DID]bool
	slow    time.Duration
	probes  map[did.DID]int
	now     int
	most    int // at once
	started time.Time
	times   []time.Duration
}

func (l *lab) probe(ctx context.Context, node did.DID) error {
	l.mu.Lock()
	l.probes[node]++
	l.times = append(l.times, time.Since(l.started))
	l.now++
	l.most = max(l.most, l.now)
	slow, up := l.slow, l.up[node]
	l.mu.Unlock()
	ok := slow == 0 || sleep(ctx, slow)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now--
	if !ok || !up {
		return errors.New("no answer")
	}
	return nil
}

// A node that is down is probed ever more seldom, and its things are back by themselves when it is.
func TestProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &lab{up: map[did.DID]bool{}, probes: map[did.DID]int{}, started: time.Now()}
		host, idle := key(t, 7).DID(), key(t, 8).DID()
		desc := with(plain(t, 1, "a", "A"), func(r *td.Record) {
			r.Hosts, r.Expires = []td.Host{{Node: host}}, r.Expires.Add(10*time.Hour)
		})
		d := filled(t, Options{Probe: l.probe}, desc)
		start := d.changed.last()
		run(t, d)
		d.SetReachable(host, false)
		d.SetReachable(idle, false) // hosts nothing: nobody's concern
		time.Sleep(time.Hour)
		synctest.Wait()
		if d.reachable(desc.Record, time.Now()) {
			t.Error("after an hour it counts as up")
		}
		// 5 s, 10, 20, 40, 80, 160, then 300: each less up to a fifth.
		if n := l.probes[host]; n < 15 || n > 22 || l.probes[idle] != 0 || d.Stats().Down != 1 {
			t.Errorf("%d probes of it, %d of what hosts nothing, %d nodes down", n, l.probes[idle], d.Stats().Down)
		}
		for i, at := range l.times[1:] {
			gap, want := at-l.times[i], min(probeFirst<<(i+1), probeLast)
			if gap < want*4/5 || gap > want {
				t.Errorf("probe %d comes %v after the one before, want %v", i+1, gap, want)
			}
		}
		l.mu.Lock()
		l.up[host] = true
		l.mu.Unlock()
		time.Sleep(probeLast)
		synctest.Wait()
		if got := told(t, d, td.Query{}, start); got != "~a:unreachable ~a:reachable" || !d.reachable(desc.Record, time.Now()) || d.Stats().Down != 0 {
			t.Errorf("told %s, reachable %v, %d down", got, d.reachable(desc.Record, time.Now()), d.Stats().Down)
		}
		n := d.Stats().Probes
		time.Sleep(time.Hour)
		if d.Stats().Probes != n {
			t.Error("a node that is up is probed")
		}
	})
}

// Many nodes that go down at once are probed a few at a time, and a hanging probe ends.
func TestProbesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &lab{up: map[did.DID]bool{}, probes: map[did.DID]int{}, started: time.Now(), slow: time.Hour}
		d := openDirectory(t, Options{Probe: l.probe})
		for i := range 40 {
			host := did.DID(fmt.Sprintf("did:key:%d", i))
			desc := with(plain(t, 1, fmt.Sprint(i), "A"), func(r *td.Record) { r.Hosts = []td.Host{{Node: host}} })
			if _, err := d.put(desc, received); err != nil {
				t.Fatal(err)
			}
			d.SetReachable(host, false)
		}
		stop := run(t, d)
		time.Sleep(probeFirst + 5*probeTimeout)
		synctest.Wait()
		l.mu.Lock()
		if l.most != probesAtOnce || len(l.probes) < 4*probesAtOnce || l.now != probesAtOnce {
			t.Errorf("%d at once, %d at the end, %d nodes probed", l.most, l.now, len(l.probes))
		}
		l.mu.Unlock()
		stop() // and with it the probes
	})
}

// Who is found to be down is told once, until it is reached again, if it hosts anything.
func TestLostHostsAreTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lost []did.DID
		host, idle := key(t, 7).DID(), key(t, 8).DID()
		desc := with(plain(t, 1, "a", "A"), func(r *td.Record) { r.Hosts = []td.Host{{Node: host}} })
		d := filled(t, Options{OnDown: func(node did.DID) { lost = append(lost, node) }}, desc)
		check := func(what string, told int, expected bool, down ...did.DID) {
			t.Helper()
			if got := d.Down(2); len(lost) != told || d.Tracks(host) != expected || d.Tracks(idle) || !slices.Equal(got, down) {
				t.Errorf("%s: told %v, expected %v, down %v", what, lost, d.Tracks(host), got)
			}
		}
		check("at first", 0, true)
		d.SetReachable(idle, false)
		check("another is down", 0, true)
		d.SetReachable(host, false)
		d.SetReachable(host, false)
		check("down", 1, false, host)
		if got := d.Down(0); len(got) != 0 {
			t.Errorf("of none: %v", got)
		}
		d.SetReachable(host, true)
		check("up", 1, true)
		d.SetReachable(host, false)
		check("down again", 2, false, host)
		time.Sleep(downFor)
		check("nobody probes it", 2, true)
	})
}

// A host that was down for long is probed within seconds when a record is heard that was made since, or when this node was cut off
// itself; but a record brings one probe a minute.
func TestProbesAreBroughtForward(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &lab{up: map[did.DID]bool{}, probes: map[did.DID]int{}, started: time.Now()}
		host, seq := key(t, 7).DID(), uint64(1)
		record := func(age time.Duration) *td.Description {
			seq++
			return with(plain(t, 1, "a", "A"), func(r *td.Record) {
				r.Hosts, r.Seq, r.Issued, r.Expires = []td.Host{{Node: host}}, seq, time.Now().Add(-age), time.Now().Add(24*time.Hour)
			})
		}
		desc := record(0)
		d := filled(t, Options{Probe: l.probe}, desc)
		run(t, d)
		d.SetReachable(host, false)
		probes := func(after time.Duration) int {
			before := d.Stats().Probes
			time.Sleep(after)
			synctest.Wait()
			return int(d.Stats().Probes - before)
		}
		// settle waits until it was just probed, with minutes until the next one.
		settle := func() {
			for probes(time.Second) == 0 {
			}
		}
		hear := func(age time.Duration) {
			if _, err := d.put(record(age), received); err != nil {
				t.Fatal(err)
			}
		}
		probes(time.Hour)
		settle()
		hear(2 * time.Hour)
		if n := probes(5 * time.Second); n != 0 {
			t.Errorf("an old record: %d probes", n)
		}
		brought := 0
		for range 5 {
			hear(0)
			brought += probes(time.Second)
		}
		if brought != 1 {
			t.Errorf("five new records bring %d probes", brought)
		}
		settle()
		d.Retry()
		if n := probes(probeFirst); n != 1 {
			t.Errorf("cut off: %d probes", n)
		}
		probes(time.Hour)
		settle()
		l.mu.Lock()
		l.up[host] = true
		l.mu.Unlock()
		hear(0)
		if probes(time.Second); !d.reachable(desc.Record, time.Now()) {
			t.Error("a second after its new record it counts as down")
		}
	})
}
