package dht

import (
	"maps"
	"slices"
	"sync"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
)

// places bounds the inbound streams that are served at once, in all and of one peer. It is safe for concurrent use.
type places struct {
	total, perPeer int

	// What follows is owned by mu.
	mu      sync.Mutex
	streams map[network.Stream]struct{}
	peers   map[peer.ID]int
	closed  bool
	serving sync.WaitGroup
}

func newPlaces(total, perPeer int) *places {
	return &places{
		total: total, perPeer: perPeer,
		streams: map[network.Stream]struct{}{},
		peers:   map[peer.ID]int{},
	}
}

// enter takes a place for s, without waiting, or says with what code to reset it.
func (p *places) enter(s network.Stream) network.StreamErrorCode {
	id := s.Conn().RemotePeer()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return network.StreamShutdown
	case len(p.streams) >= p.total, p.peers[id] >= p.perPeer:
		return network.StreamRateLimited
	}
	p.streams[s] = struct{}{}
	p.peers[id]++
	p.serving.Add(1)
	return network.StreamNoError
}

// leave gives up the place of s.
func (p *places) leave(s network.Stream) {
	id := s.Conn().RemotePeer()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.streams, s)
	if p.peers[id]--; p.peers[id] == 0 {
		delete(p.peers, id)
	}
	p.serving.Done()
}

// close refuses newcomers, ends the streams that are being served, and returns when the last handler has.
func (p *places) close() {
	p.mu.Lock()
	p.closed = true
	open := slices.Collect(maps.Keys(p.streams))
	p.mu.Unlock()
	for _, s := range open {
		_ = s.ResetWithError(network.StreamShutdown)
	}
	p.serving.Wait()
}
