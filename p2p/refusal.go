package p2p

import (
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"
)

// Bounds of what is remembered of peers that refused this node.
const (
	maxRefusals = 1024
	refusedFor  = time.Minute // it may have changed its mind then
)

// refusals are the peers that closed a connection of this node because their policy refuses it. They say so with the error code of
// the connection (network.ConnGated), which every dialler's identification of the peer fails with; a peer that lies about it harms
// itself: it is there, and is not called.
type refusals struct {
	sub  event.Subscription
	mark event.Emitter
	done chan struct{} // closed when watch has ended

	mu sync.Mutex
	at map[peer.ID]time.Time // owned by mu
}

// A mark goes through the events behind those that were sent before it.
type mark struct{ passed chan struct{} }

// watchRefusals begins to listen on bus.
func watchRefusals(bus event.Bus) (*refusals, error) {
	r := &refusals{at: map[peer.ID]time.Time{}, done: make(chan struct{})}
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
			if IsRefusal(e.Reason) {
				r.note(e.Peer, time.Now())
			}
		case event.EvtPeerIdentificationCompleted:
			r.forget(e.Peer)
		case mark:
			close(e.passed)
		}
	}
}

// IsRefusal reports whether a connection or stream failed with err because the peer's policy refuses this node.
func IsRefusal(err error) bool {
	return errors.Is(err, &network.ConnError{Remote: true, ErrorCode: network.ConnGated})
}

func (r *refusals) note(id peer.ID, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.at) >= maxRefusals {
		maps.DeleteFunc(r.at, func(_ peer.ID, at time.Time) bool { return now.Sub(at) > refusedFor })
	}
	for other := range r.at {
		if len(r.at) < maxRefusals {
			break
		}
		delete(r.at, other)
	}
	r.at[id] = now
}

func (r *refusals) forget(id peer.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.at, id)
}

// catchUp waits until what happened before the call is noted.
func (r *refusals) catchUp() {
	m := mark{make(chan struct{})}
	if r.mark.Emit(m) == nil {
		select {
		case <-m.passed:
		case <-r.done:
		}
	}
}

// has reports whether a peer refused this node in the last minute.
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
