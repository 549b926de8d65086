package reachability

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/boundedmap"
	"github.com/lmosd/lmosd/td"
)

const (
	// downFor is how long a node counts as down without probes. Then it is tried again.
	downFor = 10 * time.Minute
	// reachedFor is how long a node without a connection counts as reachable after it was reached.
	reachedFor = 2 * time.Minute
	// awayFor is how long an agent counts as away after its host reported that it does not answer.
	awayFor = 10 * time.Minute
	// Limits of the recorded states. A dropped state is unknown, or that of the host.
	maxDown     = 4096
	maxContacts = 8192
	maxAway     = 4096
)

// Options configure a [Tracker]. Functions must not block, except Probe. Nil functions do nothing and report false.
type Options struct {
	// Self is this node. It is always reachable.
	Self did.DID
	// Connected reports whether a node is connected.
	Connected func(node did.DID) bool
	// Probe tries to reach a node that is down, see [Tracker.Run]. Nil probes nothing: then a node counts as up again after 10 minutes.
	Probe func(ctx context.Context, node did.DID) error
	// Hosts reports whether a node hosts known Things. Other nodes are not probed. Required.
	Hosts func(node did.DID) bool
	// ConnectionMatters reports whether a connection change is reported to OnChange.
	ConnectionMatters func(node did.DID) bool
	// OnChange is called after the reachability of a node or of its agents has changed, at most twice in 10 s per node, and once more at the
	// end of that time: a flapping node causes few calls. Calls do not overlap. Required.
	OnChange func(node did.DID)
	// OnDown is called once for each node that goes down and hosts a known Thing, until it is reached again.
	OnDown func(node did.DID)
}

// A Tracker has the states of nodes and agents. Its methods are safe for concurrent use.
type Tracker struct {
	o       Options
	prober  backoff.Waker // for a new node to probe, or an earlier probe
	damper  damper
	probes  atomic.Uint64
	anyAway atomic.Bool // away is not empty

	mu       sync.Mutex // owns the following fields
	down     map[did.DID]*outage
	contacts map[did.DID]contact
	away     map[agentAt]time.Time // agents that do not answer their hosts, with the end of that state
}

// An outage is the state of a node that is down.
type outage struct {
	since          time.Time
	until          time.Time // end without probes
	next           time.Time // next probe
	broughtForward time.Time // when a new record brought a probe forward
	pauses         backoff.Backoff
	probing        bool
}

// A contact is the last contact with a node.
type contact struct {
	at   time.Time
	lost bool // the connection has ended since
}

// An agentAt is a Thing at one of its hosts.
type agentAt struct {
	key  [32]byte
	host did.DID
}

// New returns a tracker without states.
func New(o Options) *Tracker {
	return &Tracker{o: o, prober: backoff.NewWaker(), damper: newDamper(), down: map[did.DID]*outage{}, contacts: map[did.DID]contact{},
		away: map[agentAt]time.Time{}}
}

// Run probes nodes that are down, and reports delayed changes, until ctx ends.
func (t *Tracker) Run(ctx context.Context) {
	var g sync.WaitGroup
	if t.o.Probe != nil {
		g.Go(func() { t.probeAll(ctx) })
	}
	t.damper.wake.Loop(ctx, t.reportDelayed)
	g.Wait()
}

// SetReachable records that node was reached, or could not be. A node counts as down until it is reached, at the latest by a probe; without
// probes for 10 minutes.
func (t *Tracker) SetReachable(node did.DID, ok bool) {
	if !t.setReachable(node, ok, time.Now()) {
		t.ConnectionChanged(node)
		return
	}
	t.report(node)
	if !ok && t.o.OnDown != nil && t.o.Hosts(node) {
		t.o.OnDown(node)
	}
}

// setReachable reports whether the state has changed.
func (t *Tracker) setReachable(node did.DID, ok bool, now time.Time) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.down[node]
	was := t.isDown(o, now)
	if ok {
		t.contactLocked(node, contact{at: now})
		delete(t.down, node)
		return was
	}
	if o == nil {
		o = &outage{since: now, pauses: backoff.Backoff{First: probeFirst, Max: probeLast}}
		o.next = now.Add(o.pause())
		// A node whose outage is dropped at the limit counts as up until the next failure.
		boundedmap.Put(&t.down, node, o, maxDown, func(o *outage) bool { return !t.isDown(o, now) })
		t.prober.Wake()
	}
	o.until = now.Add(downFor)
	return !was
}

// ConnectionChanged records that a connection to a node has started or ended, as Options.Connected reports.
func (t *Tracker) ConnectionChanged(node did.DID) {
	if t.o.ConnectionMatters != nil && t.o.ConnectionMatters(node) {
		t.report(node)
	}
}

// Disconnected records that the connection to a node has ended, which does not make it unreachable.
func (t *Tracker) Disconnected(node did.DID) {
	t.mu.Lock()
	t.contactLocked(node, contact{at: time.Now(), lost: true})
	t.mu.Unlock()
	t.ConnectionChanged(node)
}

// Received records a new record: a host that went down before the record was issued may be back, and is probed soon.
func (t *Tracker) Received(r *td.Record, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range r.Hosts {
		o := t.down[h.Node]
		if o == nil || !r.Issued.After(o.since) || now.Sub(o.broughtForward) < probeInterval {
			continue
		}
		o.broughtForward = now
		if soon := now.Add(rand.N(time.Second)); soon.Before(o.next) {
			o.next = soon
			t.prober.Wake()
		}
	}
}

// SetAway records whether the agent of a Thing does not answer its host, as the host, node, reports.
func (t *Tracker) SetAway(desc *td.Description, node did.DID, away bool) {
	if t.setAway(agentAt{desc.Record.Key(), node}, away, time.Now()) {
		t.report(node)
	}
}

// setAway reports whether the state has changed.
func (t *Tracker) setAway(at agentAt, away bool, now time.Time) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := now.Before(t.away[at])
	if !away {
		delete(t.away, at)
		t.anyAway.Store(len(t.away) > 0)
		return was
	}
	boundedmap.Put(&t.away, at, now.Add(awayFor), maxAway, func(until time.Time) bool { return !now.Before(until) })
	t.anyAway.Store(true)
	return !was
}

// Answered records that a Thing with one host has answered. It is cheap unless some agent is away.
func (t *Tracker) Answered(desc *td.Description) {
	if t.anyAway.Load() {
		t.SetAway(desc, desc.Record.Hosts[0].Node, false)
	}
}

// IsDown reports whether a node counts as down.
func (t *Tracker) IsDown(node did.DID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.isDown(t.down[node], time.Now())
}

// Tracks reports whether node hosts known Things and does not count as down.
func (t *Tracker) Tracks(node did.DID) bool { return t.o.Hosts(node) && !t.IsDown(node) }

// HostDown reports whether node hosts known Things and counts as down. It is probed.
func (t *Tracker) HostDown(node did.DID) bool { return t.IsDown(node) && t.o.Hosts(node) }

// Down returns nodes that host known Things and count as down, at most limit.
func (t *Tracker) Down(limit int) (down []did.DID) {
	for _, node := range t.allDown(time.Now()) {
		if len(down) < limit && t.o.Hosts(node) {
			down = append(down, node)
		}
	}
	return down
}

// allDown returns the nodes that are down, in any order.
func (t *Tracker) allDown(now time.Time) (nodes []did.DID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for node, o := range t.down {
		if t.isDown(o, now) {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// Counts returns the number of nodes that are recorded as down, and of the probes until now.
func (t *Tracker) Counts() (down int, probes uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.down), t.probes.Load()
}

// IsReachable reports whether no path to a Thing is known to be broken.
func (t *Tracker) IsReachable(r *td.Record, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range r.Hosts {
		if !t.brokenLocked(r, h.Node, now) {
			return true
		}
	}
	return len(r.Hosts) == 0
}

// brokenLocked reports whether a Thing is known to be unreachable through one of its hosts.
func (t *Tracker) brokenLocked(r *td.Record, host did.DID, now time.Time) bool {
	return host != t.o.Self && t.isDown(t.down[host], now) || len(t.away) > 0 && now.Before(t.away[agentAt{r.Key(), host}])
}

// isDown reports whether an outage, or nil, continues.
func (t *Tracker) isDown(o *outage, now time.Time) bool {
	return o != nil && (t.o.Probe != nil || now.Before(o.until))
}

func (t *Tracker) contactLocked(node did.DID, c contact) {
	boundedmap.Put(&t.contacts, node, c, maxContacts, nil)
}
