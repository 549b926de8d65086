package p2p

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"
	"github.com/quic-go/quic-go"

	"github.com/lmosd/lmosd/internal/boundedmap"
)

// Limits of the stored refusals.
const (
	maxRefusals = 1024
	refusedFor  = time.Minute // its policy may have changed then
)

// refusals are the peers that closed a connection of this node by policy, with the error code network.ConnGated. The identify
// protocol then fails at the dialer, unless the connection was closed before it began; then a stream on the closed connection
// fails. A false refusal only harms its sender, which is not called.
type refusals struct {
	network.NotifyBundle
	sub  event.Subscription
	mark event.Emitter
	done chan struct{} // closed at the end of watch

	mu     sync.Mutex
	at     map[peer.ID]time.Time     // owned by mu
	dialed map[network.Conn]struct{} // connections of this node whose end was not seen; owned by mu
}

// A mark is an event that is delivered after all events sent before it.
type mark struct{ passed chan struct{} }

// watchRefusals subscribes to bus.
func watchRefusals(bus event.Bus) (*refusals, error) {
	r := &refusals{at: map[peer.ID]time.Time{}, dialed: map[network.Conn]struct{}{}, done: make(chan struct{})}
	r.ConnectedF, r.DisconnectedF = r.connected, func(_ network.Network, c network.Conn) { r.ended(c) }
	var err error
	r.sub, err = bus.Subscribe([]any{new(event.EvtPeerIdentificationFailed), new(event.EvtPeerIdentificationCompleted), new(mark)},
		eventbus.BufSize(256), eventbus.Name("lmosd/refusals"))
	if err != nil {
		return nil, err
	}
	if r.mark, err = bus.Emitter(new(mark)); err != nil {
		return nil, errors.Join(err, r.sub.Close())
	}
	go r.watch()
	return r, nil
}

func (r *refusals) watch() {
	defer close(r.done)
	for e := range r.sub.Out() {
		switch e := e.(type) {
		case event.EvtPeerIdentificationFailed:
			_ = r.received(e.Peer, e.Reason)
		case event.EvtPeerIdentificationCompleted:
			r.forget(e.Peer)
		case mark:
			close(e.passed)
		}
	}
}

// isRefusal reports whether err of a connection or stream means that the policy of the peer rejects this node.
func isRefusal(err error) bool {
	var early *quic.ApplicationError // of a QUIC dial that the peer closed early
	return errors.Is(err, &network.ConnError{Remote: true, ErrorCode: network.ConnGated}) ||
		errors.As(err, &early) && early.Remote && early.ErrorCode == quic.ApplicationErrorCode(network.ConnGated)
}

// received returns err of a dial, and records it if it is a refusal.
func (r *refusals) received(id peer.ID, err error) error {
	if isRefusal(err) {
		r.note(id, time.Now())
	}
	return err
}

func (r *refusals) note(id peer.ID, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	boundedmap.Put(&r.at, id, now, maxRefusals, func(at time.Time) bool { return now.Sub(at) > refusedFor })
}

func (r *refusals) forget(id peer.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.at, id)
}

// connected records a connection before the dialer receives it.
func (r *refusals) connected(_ network.Network, c network.Conn) {
	if c.Stat().Direction != network.DirOutbound {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dialed[c] = struct{}{}
}

// ended records the reason of a closed connection.
func (r *refusals) ended(c network.Conn) {
	r.mu.Lock()
	_, dialed := r.dialed[c]
	r.mu.Unlock()
	if !dialed {
		return
	}
	_, err := c.NewStream(context.Background()) // fails at once: the connection is closed
	_ = r.received(c.RemotePeer(), err)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.dialed, c) // last: until then catchUp checks the connection
}

// catchUp waits until earlier events of connections with a peer are processed.
func (r *refusals) catchUp(id peer.ID, of network.Network) {
	m := mark{make(chan struct{})}
	if r.mark.Emit(m) == nil {
		select {
		case <-m.passed:
		case <-r.done:
		}
	}
	r.mu.Lock()
	all := slices.Collect(maps.Keys(r.dialed))
	r.mu.Unlock()
	for _, c := range all {
		if c.RemotePeer() == id && (c.IsClosed() || !slices.Contains(of.ConnsToPeer(id), c)) {
			r.ended(c)
		}
	}
}

// has reports whether a peer rejected this node in the last minute.
func (r *refusals) has(id peer.ID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.at[id]
	return ok && time.Since(at) < refusedFor
}

func (r *refusals) close() error {
	err := errors.Join(r.mark.Close(), r.sub.Close())
	<-r.done
	return err
}
