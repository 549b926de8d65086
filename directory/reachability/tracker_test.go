package reachability

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
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/td"
)

const (
	self, host, other, idle did.DID = "did:x:self", "did:x:host", "did:x:other", "did:x:idle"
)

// thing returns a description of a Thing at hosts.
func thing(id string, hosts ...did.DID) *td.Description {
	r := &td.Record{Owner: "did:x:owner", Thing: id, Issued: time.Now(), Expires: time.Now().Add(24 * time.Hour)}
	for _, h := range hosts {
		r.Hosts = append(r.Hosts, td.Host{Node: h})
	}
	return &td.Description{Record: r}
}

// start returns a tracker in which all nodes but idle host Things.
func start(o Options) *Tracker {
	o.Hosts = func(node did.DID) bool { return node != idle }
	if o.OnChange == nil {
		o.OnChange = func(did.DID) {}
	}
	return New(o)
}

// run runs a tracker until the returned function is called, or the test ends.
func run(t *testing.T, r *Tracker) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// A lab has nodes that are probed.
type probedNodes struct {
	mu      sync.Mutex
	up      map[did.DID]bool
	slow    time.Duration
	probes  map[did.DID]int
	running int
	most    int // of running
	started time.Time
	times   []time.Duration
}

func (l *probedNodes) probe(ctx context.Context, node did.DID) error {
	l.mu.Lock()
	l.probes[node]++
	l.times = append(l.times, time.Since(l.started))
	l.running++
	l.most = max(l.most, l.running)
	slow, up := l.slow, l.up[node]
	l.mu.Unlock()
	ok := slow == 0 || backoff.Sleep(ctx, slow) == nil
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	if !ok || !up {
		return errors.New("no answer")
	}
	return nil
}

// The pauses between the probes of a node grow, and a successful probe makes its Things reachable.
func TestProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &probedNodes{up: map[did.DID]bool{}, probes: map[did.DID]int{}, started: time.Now()}
		desc := thing("a", host)
		var changes []bool
		var d *Tracker
		d = start(Options{Probe: l.probe, OnChange: func(did.DID) { changes = append(changes, d.IsReachable(desc.Record, time.Now())) }})
		run(t, d)
		d.SetReachable(host, false)
		d.setReachable(idle, false, time.Now())
		time.Sleep(time.Hour)
		synctest.Wait()
		if d.IsReachable(desc.Record, time.Now()) {
			t.Error("the host counts as up after an hour")
		}
		// 5 s, 10, 20, 40, 80, 160, then 300: each less up to a fifth.
		if n, down := l.probes[host], len(d.down); n < 15 || n > 22 || l.probes[idle] != 0 || down != 1 {
			t.Errorf("%d probes of the host, %d of a node without Things, %d nodes down", n, l.probes[idle], down)
		}
		for i, at := range l.times[1:] {
			gap, want := at-l.times[i], min(probeFirst<<(i+1), probeLast)
			if gap < want*4/5 || gap > want {
				t.Errorf("probe %d is %v after the previous one, want at most %v", i+1, gap, want)
			}
		}
		l.mu.Lock()
		l.up[host] = true
		l.mu.Unlock()
		time.Sleep(probeLast)
		synctest.Wait()
		down, n := d.Counts()
		if !slices.Equal(changes, []bool{false, true}) || down != 0 {
			t.Errorf("changes %v, %d down", changes, down)
		}
		time.Sleep(time.Hour)
		if d.probes.Load() != n {
			t.Error("a node that is up is probed")
		}
	})
}

// Few probes run concurrently, and each has a time limit.
func TestProbesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &probedNodes{up: map[did.DID]bool{}, probes: map[did.DID]int{}, started: time.Now(), slow: time.Hour}
		d := start(Options{Probe: l.probe})
		for i := range 40 {
			d.SetReachable(did.DID(fmt.Sprintf("did:key:%d", i)), false)
		}
		stop := run(t, d)
		time.Sleep(probeFirst + 5*probeTimeout)
		synctest.Wait()
		l.mu.Lock()
		if l.most != probesAtOnce || len(l.probes) < 4*probesAtOnce || l.running != probesAtOnce {
			t.Errorf("%d concurrent probes, %d at the end, %d nodes probed", l.most, l.running, len(l.probes))
		}
		l.mu.Unlock()
		stop()
	})
}

// OnDown is called once for each node that hosts Things, until it is reached again.
func TestOnDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lost []did.DID
		d := start(Options{OnDown: func(node did.DID) { lost = append(lost, node) }})
		check := func(what string, calls int, tracked bool, down ...did.DID) {
			t.Helper()
			if got := d.Down(2); len(lost) != calls || d.Tracks(host) != tracked || d.Tracks(idle) || !slices.Equal(got, down) {
				t.Errorf("%s: called for %v, tracked %v, down %v", what, lost, d.Tracks(host), got)
			}
		}
		check("start", 0, true)
		d.SetReachable(idle, false)
		check("another node is down", 0, true)
		d.SetReachable(host, false)
		d.SetReachable(host, false)
		check("down", 1, false, host)
		if got := d.Down(0); len(got) != 0 {
			t.Errorf("limit 0: got %v", got)
		}
		d.SetReachable(host, true)
		check("up", 1, true)
		d.SetReachable(host, false)
		check("down again", 2, false, host)
		time.Sleep(downFor)
		check("up again without probes", 2, true)
	})
}

// A host that was down for long is probed within seconds after a newer record of it arrived, at most once a minute, and after Retry.
func TestProbesAreBroughtForward(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &probedNodes{up: map[did.DID]bool{}, probes: map[did.DID]int{}, started: time.Now()}
		desc := thing("a", host)
		d := start(Options{Probe: l.probe})
		run(t, d)
		d.SetReachable(host, false)
		probes := func(after time.Duration) int {
			before := d.probes.Load()
			time.Sleep(after)
			synctest.Wait()
			return int(d.probes.Load() - before)
		}
		// settle waits for a probe, minutes before the next one.
		settle := func() {
			for probes(time.Second) == 0 {
			}
		}
		receive := func(age time.Duration) {
			r := thing("a", host).Record
			r.Issued = r.Issued.Add(-age)
			d.Received(r, time.Now())
		}
		probes(time.Hour)
		settle()
		receive(2 * time.Hour)
		if n := probes(5 * time.Second); n != 0 {
			t.Errorf("an old record: %d probes", n)
		}
		brought := 0
		for range 5 {
			receive(0)
			brought += probes(time.Second)
		}
		if brought != 1 {
			t.Errorf("five new records bring %d probes", brought)
		}
		settle()
		d.Retry()
		if n := probes(probeFirst); n != 1 {
			t.Errorf("after Retry: %d probes", n)
		}
		probes(time.Hour)
		settle()
		l.mu.Lock()
		l.up[host] = true
		l.mu.Unlock()
		receive(0)
		if probes(time.Second); !d.IsReachable(desc.Record, time.Now()) {
			t.Error("the host counts as down 1 s after its new record")
		}
	})
}

// A Thing is reachable if one of its hosts is connected or was reached recently. A valid record alone is not sufficient.
func TestPresence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		connected := map[did.DID]bool{}
		a, both, here, nowhere := thing("a", host), thing("both", host, other), thing("here", self), thing("nowhere")
		d := start(Options{Self: self, Connected: func(n did.DID) bool { return connected[n] }})
		issued := a.Record.Issued
		check := func(what string, desc *td.Description, state State, seen time.Time) {
			t.Helper()
			if got := d.Presence(desc); got.State != state || !got.LastSeen.Equal(seen) {
				t.Errorf("%s: got %s, seen %v, want %s, %v", what, got.State, got.LastSeen, state, seen)
			}
		}
		time.Sleep(time.Minute)
		check("record only", a, Unknown, issued)
		check("at this node", here, Reachable, time.Now())
		check("no host", nowhere, Unknown, issued)

		connected[host] = true
		check("connected", a, Reachable, time.Now())
		check("one of two connected", both, Reachable, time.Now())
		d.SetAway(a, host, true)
		check("agent away", a, Unreachable, time.Now())
		check("another agent of the host", both, Reachable, time.Now())
		d.SetAway(both, host, true)
		check("away at one host, the other unknown", both, Unknown, time.Now())
		d.SetAway(both, other, true)
		check("away at both", both, Unreachable, time.Now())
		d.SetAway(a, host, false)
		check("agent back", a, Reachable, time.Now())

		ended := time.Now()
		delete(connected, host)
		d.Disconnected(host)
		time.Sleep(time.Second)
		check("disconnected", a, Unknown, ended)
		d.SetReachable(host, false)
		check("redial failed", a, Unreachable, ended)
		d.SetReachable(host, true)
		reached := time.Now()
		time.Sleep(reachedFor - 1)
		check("reached recently", a, Reachable, reached)
		time.Sleep(time.Nanosecond)
		check("reached 2 min ago", a, Unknown, reached)

		d.SetAway(here, self, true)
		check("an away agent of this node", here, Unreachable, time.Now())
		time.Sleep(awayFor)
		check("10 min later", here, Reachable, time.Now())
	})
}

// The recorded states are bounded, and changes of agents are damped like those of hosts.
func TestPresenceIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, changes := thing("a", host), 0
		d := start(Options{OnChange: func(did.DID) { changes++ }})
		for range 100 {
			d.SetAway(a, host, true)
			d.SetAway(a, host, true)
			d.SetAway(a, host, false)
		}
		if changes != flapReports {
			t.Errorf("%d reports at once", changes)
		}
		for i := range maxContacts + maxAway {
			d.setReachable(did.DID(string(rune('a'+i))), true, time.Now())
			d.setAway(agentAt{key: [32]byte{byte(i), byte(i >> 8)}, host: host}, true, time.Now())
		}
		if len(d.contacts) > maxContacts || len(d.away) > maxAway {
			t.Errorf("%d contacts and %d agents are recorded", len(d.contacts), len(d.away))
		}
	})
}

// The recorded nodes are bounded. Those with a delayed report are kept.
func TestDamperIsBounded(t *testing.T) {
	t.Parallel()
	d := newDamper()
	now := time.Now()
	for i := range 2 * maxFlaps {
		node := did.DID(rune(i + 1))
		for range 3 {
			d.allowLocked(node, now)
		}
	}
	if len(d.nodes) != maxFlaps {
		t.Errorf("%d nodes are recorded", len(d.nodes))
	}
	for _, f := range d.nodes {
		f.delayed = false
	}
	d.allowLocked("one more", now.Add(flapWindow))
	if len(d.nodes) != 1 {
		t.Errorf("%d nodes are recorded after their window", len(d.nodes))
	}
}
