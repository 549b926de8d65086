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
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/td"
)

const (
	redialTimeout = 2 * time.Second // for a lost peer, before its Things are marked unreachable
	fetchTimeout  = 10 * time.Second
	maxFetches    = 16              // new peers at once
	maxRecords    = 256             // of a new peer
	maxFailed     = 64              // failed hosts that are reported to a new peer
	reportDelay   = 5 * time.Second // of that report: by then the new peer has the records of their Things
)

// Run fetches the records that a new peer hosts, so that a late joiner knows the Things of its peers at once, and reports failed hosts to
// it. It redials a lost peer, and marks its Things unreachable if that fails. It ends with ctx.
func (m *Monitor) Run(ctx context.Context) error {
	sub, err := m.o.Host.EventBus().Subscribe([]any{new(event.EvtPeerIdentificationCompleted), new(event.EvtPeerConnectednessChanged)})
	if err != nil {
		return err
	}
	defer sub.Close()
	var tasks sync.WaitGroup
	defer tasks.Wait()
	for _, p := range m.o.Host.Network().Peers() {
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
					wasAlone = wasAlone || m.o.Peers.IsAlone()
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
	m.fetchRecords(ctx, p)
	select {
	case <-ctx.Done():
	case <-time.After(reportDelay):
		m.o.Suspicion.SyncPeer(ctx, p, m.o.Directory.Down(maxFailed))
	}
}

// fetchRecords fetches the records of the Things that a new peer hosts. The directory verifies them.
func (m *Monitor) fetchRecords(ctx context.Context, p peer.ID) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	select {
	case m.fetches <- struct{}{}:
		defer func() { <-m.fetches }()
	case <-ctx.Done():
		return
	}
	for s, err := range m.o.DHT.Query(ctx, p, td.Query{Limit: maxRecords}) {
		if err != nil {
			m.o.Log.Debug("record fetch from new peer failed", "peer", p, "err", err)
			return
		}
		m.o.Directory.Enqueue(s)
	}
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
