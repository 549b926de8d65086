package presence

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/boundedmap"
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/td"
)

const (
	redialTimeout = 2 * time.Second // for a lost peer, before its Things are marked unreachable
	fetchTimeout  = 10 * time.Second
	maxFetches    = 16              // new peers at once
	maxRecords    = 256             // of a new peer
	joinTime      = time.Minute     // after the first connection: by then reconciliation has run with several peers
	fetchPause    = time.Minute     // between two fetches from one peer, unless it was down in between
	maxFailed     = 64              // failed hosts that are reported to a new peer
	reportDelay   = 5 * time.Second // of that report: by then the new peer has the records of their Things
)

// Run fetches the records that a new peer hosts, so that a late joiner knows the Things of its peers at once, and reports failed hosts to
// it. Hosts whose Things are known are not asked, see [newcomers]. It redials a lost peer, and marks its Things unreachable if that fails. It
// ends with ctx.
func (m *Monitor) Run(ctx context.Context) error {
	sub, err := m.o.Host.EventBus().Subscribe([]any{new(event.EvtPeerIdentificationCompleted), new(event.EvtPeerConnectednessChanged)})
	if err != nil {
		return err
	}
	defer sub.Close()
	var tasks sync.WaitGroup
	defer tasks.Wait()
	for _, p := range m.o.Host.Network().Peers() {
		m.newcomers.join(time.Now())
		tasks.Go(func() { m.onConnected(ctx, p) })
	}
	wasAlone := false // this node may have lost its network, and hosts may only seem down
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, ok := <-sub.Out():
			if !ok {
				return nil
			}
			switch e := e.(type) {
			case event.EvtPeerIdentificationCompleted:
				m.newcomers.join(time.Now())
				if wasAlone {
					wasAlone = false
					m.o.Directory.Retry()
				}
				tasks.Go(func() { m.onConnected(ctx, e.Peer) })
			case event.EvtPeerConnectednessChanged:
				if e.Connectedness == network.NotConnected {
					if id, err := did.FromPeer([]byte(e.Peer)); err == nil {
						m.o.Directory.Disconnected(id)
					}
					if m.o.Peers.IsAlone() {
						wasAlone = true
						m.newcomers.leave()
					}
					tasks.Go(func() { m.redial(ctx, e.Peer) })
				}
			}
		}
	}
}

func (m *Monitor) onConnected(ctx context.Context, p peer.ID) {
	id, err := did.FromPeer([]byte(p))
	if err != nil {
		return
	}
	m.o.Directory.SetReachable(id, true)
	if m.newcomers.begin(id, m.o.Directory.Hosts(id), time.Now()) && !m.fetchRecords(ctx, p) {
		m.newcomers.failed(id)
	}
	select {
	case <-ctx.Done():
	case <-time.After(reportDelay):
		m.o.Suspicion.SyncPeer(ctx, p, m.o.Directory.Down(maxFailed))
	}
}

// fetchRecords fetches the records of the Things that a new peer hosts, and reports whether it has answered. The directory verifies them.
func (m *Monitor) fetchRecords(ctx context.Context, p peer.ID) (ok bool) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	select {
	case m.fetches <- struct{}{}:
		defer func() { <-m.fetches }()
	case <-ctx.Done():
		return false
	}
	for s, err := range m.o.DHT.Query(ctx, p, td.Query{Limit: maxRecords}) {
		if err != nil {
			m.o.Log.Debug("record fetch from new peer failed", "peer", did.ShortPeer(p), "err", err)
			return false
		}
		m.o.Directory.Enqueue(s)
	}
	return true
}

// newcomers chooses the peers whose records are fetched when they connect. In a large mesh most connections are made by searches, to hosts that
// gossip has announced; asking each of them for its records would double the questions of a search. So a peer is asked if
//   - this node has joined the mesh, or was alone, within joinTime,
//   - the peer was down since it was asked: gossip between the two may have been interrupted, or
//   - no Thing of it is known, and it was not asked within fetchPause.
//
// What gossip has lost of other peers, reconciliation brings. It is safe for concurrent use; the zero value has not joined.
type newcomers struct {
	mu      sync.Mutex // owns the rest
	joined  time.Time  // zero: this node has no peer
	fetched map[did.DID]time.Time
	missed  map[did.DID]bool // hosts that were down
}

// join records that this node has a peer.
func (c *newcomers) join(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.joined.IsZero() {
		c.joined = now
	}
}

// leave records that this node is alone.
func (c *newcomers) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.joined, c.fetched = time.Time{}, nil
}

// down records that a host was down.
func (c *newcomers) down(node did.DID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	boundedmap.Put(&c.missed, node, true, maxRequested, nil)
}

// begin reports whether the records of a connected peer are to be fetched now. known reports whether a Thing that it hosts is known. If the fetch
// fails, the caller calls failed.
func (c *newcomers) begin(node did.DID, known bool, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, asked := c.fetched[node]
	asked = asked && now.Sub(at) < fetchPause
	joins := c.joined.IsZero() || now.Sub(c.joined) < joinTime
	if !c.missed[node] && (asked || known && !joins) {
		return false
	}
	delete(c.missed, node)
	boundedmap.Put(&c.fetched, node, now, maxRequested, func(at time.Time) bool { return now.Sub(at) >= fetchPause })
	return true
}

// failed records that the peer did not answer: it is asked again when it is connected again.
func (c *newcomers) failed(node did.DID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.fetched, node)
	boundedmap.Put(&c.missed, node, true, maxRequested, nil)
}

// redial dials a lost host once.
func (m *Monitor) redial(ctx context.Context, p peer.ID) {
	id, err := did.FromPeer([]byte(p))
	if err != nil || !m.o.Directory.Hosts(id) {
		return
	}
	limited, cancel := context.WithTimeout(ctx, redialTimeout)
	defer cancel()
	if err = m.o.Peers.Redial(limited, p); err != nil && ctx.Err() == nil && !p2p.IsLocalFailure(err) {
		m.SetReachable(id, false)
	}
}

// SetReachable records whether a node could be reached. A node that refuses this one has not failed.
func (m *Monitor) SetReachable(id did.DID, ok bool) {
	if ok || m.o.Peers.Refusal(id) == nil {
		m.o.Directory.SetReachable(id, ok)
	}
}

// OnResult is [Monitor.SetReachable] for a peer.
func (m *Monitor) OnResult(p peer.ID, ok bool) {
	if id, err := did.FromPeer([]byte(p)); err == nil {
		m.SetReachable(id, ok)
	}
}

// IsDown reports whether attempts to reach a peer have failed.
func (m *Monitor) IsDown(p peer.ID) bool {
	id, err := did.FromPeer([]byte(p))
	return err == nil && m.o.Directory.HostDown(id)
}

// OnTimeout queues a probe of a peer that did not answer, unless it refuses this node.
func (m *Monitor) OnTimeout(p peer.ID) {
	if id, err := did.FromPeer([]byte(p)); err == nil && m.o.Peers.Refusal(id) == nil {
		m.o.Suspicion.Suspect(id)
	}
}

// OnDown reports a failed host of known Things to the peers.
func (m *Monitor) OnDown(id did.DID) {
	m.newcomers.down(id)
	if raw, err := id.Peer(); err == nil {
		m.o.DHT.Forget(peer.ID(raw))
	}
	m.o.Suspicion.Report(id)
}

// Dial dials a host, also at the addresses in the records of its Things.
func (m *Monitor) Dial(ctx context.Context, node did.DID) error {
	var addrs []string
	for d := range m.o.Directory.FindLocal(did.AsProcess(ctx), td.Query{Host: node, Limit: 1}) {
		for _, h := range d.Record.Hosts {
			if h.Node == node {
				addrs = h.Addrs
			}
		}
	}
	return m.o.Peers.Dial(ctx, node, addrs)
}

// Probe dials a host that was reported as down. An error means that the cause is at this node.
func (m *Monitor) Probe(ctx context.Context, id did.DID) (reached bool, err error) {
	err = m.Dial(ctx, id)
	switch {
	case err == nil:
		return true, nil
	case p2p.IsLocalFailure(err):
		return false, err
	case m.o.Peers.IsAlone():
		return false, errors.New("no peer is connected")
	}
	return false, nil
}
