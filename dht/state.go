package dht

import (
	"context"
	"fmt"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
)

// An AgentState is how the agent of a thing is at the node that is asked, which speaks of what it hosts only.
type AgentState byte

// The states, as they are on the wire; a reader takes any other for AgentPresent, of which nothing follows.
const (
	AgentNotHere AgentState = iota // the node does not host the thing, or tells nobody of it
	AgentPresent                   // it answers, or nobody has seen that it does not
	AgentAway                      // it does not answer its host
)

// States asks p for the states of things that it hosts, by the keys of their records, [MaxStates] at most. An answer of any kind
// means that p was reached. The error says that it was not, or that it keeps to no protocol; ctx should have a deadline.
func (d *DHT) States(ctx context.Context, p peer.ID, keys [][32]byte) ([]AgentState, error) {
	q := &question{Op: opState}
	for _, key := range keys {
		q.Keys = append(q.Keys, key[:]...)
	}
	var states []AgentState
	_, err := d.exchange(ctx, p, q, func(a *answer) (bool, error) {
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

// states answers how agents of this node are. Who asks learns nothing that a call would not tell.
func (s *recordServer) states(st network.Stream, raw []byte) error {
	keys := make([][32]byte, 0, len(raw)/keySize)
	for ; len(raw) > 0; raw = raw[keySize:] {
		keys = append(keys, [32]byte(raw))
	}
	ctx, cancel := context.WithTimeout(context.Background(), recordsTime)
	defer cancel()
	a := &answer{}
	for _, state := range s.d.o.States(ctx, keys) {
		a.States = append(a.States, byte(state))
	}
	if err := s.send(st, a); err != nil {
		return err
	}
	return s.send(st, &answer{End: true})
}
