package dht

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
)

// A host reports the state of each agent, also of Things that it does not host.
func TestStates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		net := newSimulated(t)
		defer net.close()
		var asked [][32]byte
		want := []AgentState{AgentPresent, AgentAway, AgentNotHere}
		a := net.add(nil, func(o *Options) {
			o.States = func(_ context.Context, keys [][32]byte) []AgentState {
				asked = keys
				return want[:len(keys)]
			}
		})
		b := net.add(a)
		joined(t, []*node{a, b})
		keys := [][32]byte{{1}, {2}, {3}}
		if got, err := b.States(t.Context(), a.host.ID(), keys); err != nil || !slices.Equal(got, want) || !slices.Equal(asked, keys) {
			t.Errorf("got %v, %v, for %v", got, err, asked)
		}
		if got, err := a.States(t.Context(), b.host.ID(), keys[:1]); err != nil || !slices.Equal(got, []AgentState{AgentNotHere}) {
			t.Errorf("of a node that hosts nothing: %v, %v", got, err)
		}
		want = []AgentState{AgentPresent}
		if got, err := b.States(t.Context(), a.host.ID(), keys[:1]); err != nil || len(got) != 1 {
			t.Errorf("got %v, %v", got, err)
		}
		if _, err := b.States(t.Context(), a.host.ID(), make([][32]byte, MaxStates+1)); err == nil || errors.Is(err, errRemote) {
			t.Errorf("more than are possible: %v, want a reset", err)
		}
	})
}
