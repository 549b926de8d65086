package dht

import (
	"context"
	"fmt"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
)

// An AgentState is the state of the agent of a Thing at its node.
type AgentState byte

// The states in the protocol. Unknown values mean AgentPresent, which has no effect.
const (
	AgentNotHere AgentState = iota // the node does not host the Thing, or it is unlisted
	AgentPresent                   // the agent answers, or was not probed
	AgentAway                      // the agent does not answer its host
)

// States queries p for the states of Things that it hosts, by record key, at most [MaxStates]. Any response means that p was reached.
// An error means that it was not, or that it violated the protocol; ctx should have a deadline.
func (d *DHT) States(ctx context.Context, p peer.ID, keys [][32]byte) ([]AgentState, error) {
	q := &recordsRequest{Op: opState}
	for _, key := range keys {
		q.Keys = append(q.Keys, key[:]...)
	}
	var states []AgentState
	_, err := d.exchange(ctx, p, q, func(a *recordsResponse) (bool, error) {
		if states != nil || len(a.States) != len(keys) {
			return false, fmt.Errorf("%w: want %d states", errWire, len(keys))
		}
		for _, s := range a.States {
			states = append(states, AgentState(s))
		}
		return true, nil
	})
	if err == nil && states == nil {
		err = fmt.Errorf("%w: no states", errWire)
	}
	return states, err
}

// states sends the states of agents of this node. A call would show the same.
func (s *recordServer) states(st network.Stream, raw []byte) error {
	keys := make([][32]byte, 0, len(raw)/keySize)
	for ; len(raw) > 0; raw = raw[keySize:] {
		keys = append(keys, [32]byte(raw))
	}
	ctx, cancel := context.WithTimeout(s.caller(st), recordsTime)
	defer cancel()
	a := &recordsResponse{}
	for _, state := range s.d.o.States(ctx, keys) {
		a.States = append(a.States, byte(state))
	}
	if err := s.send(st, a); err != nil {
		return err
	}
	return s.send(st, &recordsResponse{End: true})
}
