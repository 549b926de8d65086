// Package presence watches the connections of a node, dials lost hosts once, and requests the state of agents from their hosts.
//
// It reports what it finds to package reachability, which has the state of each Thing and uses no network, and to the failure detector
// (package suspicion), which informs peers. It also measures the round trip to a host (ping.go).
package presence

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/dht"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/directory/reachability"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/choice"
	"github.com/lmosd/lmosd/internal/boundedmap"
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/publication"
	"github.com/lmosd/lmosd/pubsub/suspicion"
	"github.com/lmosd/lmosd/td"
)

// Limits of requests for the states of agents.
const (
	lookWait        = 400 * time.Millisecond // of Look; later results count from then on
	lookTimeout     = 3 * time.Second        // of one host
	requestPause    = 10 * time.Second       // between requests to one host
	requestPauseMin = time.Second            // the same after a host could not reach an agent
	maxHosts        = 32                     // requested at once for one Look
	maxRequested    = 4096                   // hosts with a recorded request
)

// Options configure a [Monitor]. All but Pause are required.
type Options struct {
	Self      did.DID
	Host      host.Host
	Peers     *p2p.Peers
	Directory *directory.Directory
	DHT       *dht.DHT
	Suspicion *suspicion.Detector
	Index     *publication.Index
	Publisher *publication.Publisher
	// Trust returns the trust in an owner, 0 to 1.
	Trust func(owner did.DID) (amount float64, why string)
	// Go runs f in the background with a context that ends when the node closes. It reports false, and runs nothing, once the node closes.
	Go func(f func(ctx context.Context)) bool
	// Pause is the shortest interval between requests to one host; zero means 10 s.
	Pause time.Duration
	Log   *slog.Logger
}

// A Monitor finds out which hosts and agents can be reached. Its methods are safe for concurrent use.
type Monitor struct {
	o         Options
	requests  requests
	newcomers newcomers
	fetches   chan struct{}          // an element per new peer whose records are being fetched
	meter     choice.Meter[[32]byte] // by the key of the record
}

// New returns a monitor.
func New(o Options) *Monitor {
	o.Pause = cmp.Or(o.Pause, requestPause)
	return &Monitor{o: o, requests: requests{last: map[did.DID]time.Time{}, waiting: map[did.DID]bool{}}, fetches: make(chan struct{}, maxFetches)}
}

// Presence returns the known state of a Thing. If only a record names this node as the host of a Thing, the state is unknown.
func (m *Monitor) Presence(d *td.Description) reachability.Presence {
	p := m.o.Directory.Presence(d)
	if m.o.Index.Has(d) {
		return p
	}
	if p.State == reachability.Reachable && !m.hasOtherHost(d) {
		p.State, p.LastSeen = reachability.Unknown, d.Record.Issued
	}
	if m.o.Peers.Refuse(d.Record.Hosts) {
		p.State = reachability.Refused
	}
	return p
}

func (m *Monitor) hasOtherHost(d *td.Description) bool {
	for _, h := range d.Record.Hosts {
		if h.Node != m.o.Self {
			return true
		}
	}
	return false
}

// Look finds out whether Things can be reached, for [Monitor.Presence]. It probes the agents of this node and requests the states of the others
// from their hosts, every 10 s at most from each. Hosts that are down are skipped: the directory probes them. Look returns after 400 ms at
// most; the directory gets later results, too.
func (m *Monitor) Look(ctx context.Context, things ...*td.Description) {
	done := make(chan struct{})
	if !m.o.Go(func(life context.Context) {
		defer close(done)
		m.look(life, things)
	}) {
		return
	}
	timer := time.NewTimer(lookWait)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// look returns when all have answered, or after lookTimeout.
func (m *Monitor) look(ctx context.Context, things []*td.Description) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	var g sync.WaitGroup
	defer g.Wait()
	at := map[did.DID][]*td.Description{}
	for _, d := range things {
		if pub := m.o.Index.Of(d); pub != nil {
			g.Go(func() { m.o.Publisher.IsUp(ctx, pub) })
			continue
		}
		for _, h := range d.Record.Hosts {
			if h.Node != m.o.Self && len(at[h.Node]) < dht.MaxStates && (at[h.Node] != nil || len(at) < maxHosts && !m.o.Directory.IsDown(h.Node)) {
				at[h.Node] = append(at[h.Node], d)
			}
		}
	}
	now := time.Now()
	for node, hosted := range at {
		if m.requests.begin(node, m.o.Pause, now) {
			g.Go(func() { m.request(ctx, node, hosted) })
		}
	}
}

// request requests the states of the agents of Things from a host.
func (m *Monitor) request(ctx context.Context, node did.DID, things []*td.Description) {
	raw, err := node.Peer()
	if err != nil {
		return
	}
	if !m.o.Peers.IsConnected(node) {
		reached, err := m.Probe(ctx, node)
		if errors.Is(ctx.Err(), context.Canceled) || err != nil { // the node closes, or the failure is local
			return
		}
		if m.SetReachable(node, reached); !reached {
			return
		}
	}
	keys := make([][32]byte, len(things))
	for i, d := range things {
		keys[i] = d.Record.Key()
	}
	states, err := m.o.DHT.States(ctx, peer.ID(raw), keys)
	if err != nil {
		m.o.Log.Debug("request for the states of agents failed", "host", node.Short(), "err", err)
		return
	}
	m.SetReachable(node, true)
	for i, s := range states {
		m.o.Directory.SetAway(things[i], node, s == dht.AgentAway || s == dht.AgentNotHere)
	}
}

// Middleware returns the layer around a Thing of another node, which also measures it for [Monitor.Choose]. After a call that the host could not deliver to
// the agent, it requests the state of the agent. A reply shows that the agent is up.
func (m *Monitor) Middleware(d *td.Description) interact.Middleware {
	return func(t interact.Thing) interact.Thing {
		return interact.Chain(interact.Func(func(ctx context.Context, msg *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(yield func(*interact.Message, error) bool) {
				t.Do(ctx, msg)(func(r *interact.Message, err error) bool {
					e, failed := errors.AsType[*interact.Error](err)
					switch {
					case err == nil && len(d.Record.Hosts) == 1:
						m.o.Directory.Answered(d)
					case failed && e.Remote && e.Code == interact.Unreachable:
						m.requestSoon(d)
					}
					return yield(r, err)
				})
			}
		}), m.meter.Middleware(d.Record.Key()))
	}
}

// requestSoon requests the state of a Thing from its hosts, once a second from each.
func (m *Monitor) requestSoon(d *td.Description) {
	if m.o.Directory.Presence(d).State == reachability.Unreachable {
		return
	}
	for _, h := range d.Record.Hosts {
		wait, first := m.requests.wait(h.Node, time.Now())
		if !first {
			continue
		}
		m.o.Go(func(life context.Context) {
			timer := time.NewTimer(wait)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-life.Done():
			}
			m.requests.waited(h.Node, time.Now())
			ctx, cancel := context.WithTimeout(life, lookTimeout)
			defer cancel()
			m.request(ctx, h.Node, []*td.Description{d})
		})
	}
}

// requests limit the rate of requests to each host.
type requests struct {
	mu      sync.Mutex
	last    map[did.DID]time.Time // these are owned by mu
	waiting map[did.DID]bool      // hosts with a request that requestSoon has scheduled
}

// begin reports whether a host may get a request now, and records it.
func (r *requests) begin(node did.DID, pause time.Duration, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, ok := r.last[node]; ok && now.Sub(at) < pause {
		return false
	}
	boundedmap.Put(&r.last, node, now, maxRequested, nil)
	return true
}

// wait schedules a request to a host after the returned time. It reports false if one is scheduled already.
func (r *requests) wait(node did.DID, now time.Time) (wait time.Duration, first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting[node] || len(r.waiting) >= maxRequested {
		return 0, false
	}
	r.waiting[node] = true
	if at, ok := r.last[node]; ok {
		wait = requestPauseMin - now.Sub(at)
	}
	return max(wait, 0), true
}

// waited records that a scheduled request is sent now.
func (r *requests) waited(node did.DID, now time.Time) {
	r.begin(node, 0, now)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, node)
}
