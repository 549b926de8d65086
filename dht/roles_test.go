package dht

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/network"
)

// A node becomes a relay for others to find when its host reports that it can be reached, and renews the role as long as that is so.
func TestRelayRoleFollowsTheHost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(t)
		defer s.close()
		nodes := s.mesh(5)
		var reached atomic.Bool
		through := s.add(nodes[0], func(o *Options) { o.Relay = reached.Load })
		joined(t, nodes)
		report, err := through.host.EventBus().Emitter(new(event.EvtLocalReachabilityChanged))
		if err != nil {
			t.Fatal(err)
		}
		defer report.Close()
		changes := func(to network.Reachability) {
			reached.Store(to == network.ReachabilityPublic)
			if err := report.Emit(event.EvtLocalReachabilityChanged{Reachability: to}); err != nil {
				t.Fatal(err)
			}
			s.wait(10 * time.Second)
		}
		found := func() (n int) {
			for ai := range nodes[3].Relays(t.Context()) {
				if ai.ID != through.host.ID() {
					t.Errorf("%s is no relay", ai.ID)
				}
				n++
			}
			return n
		}
		changes(network.ReachabilityPrivate)
		if n := found(); n != 0 {
			t.Errorf("%d relays before", n)
		}
		changes(network.ReachabilityPublic)
		provided := through.provided.len()
		if n := found(); n != 1 || provided != 1 {
			t.Errorf("%d relays, %d keys are renewed", n, provided)
		}
		changes(network.ReachabilityPublic) // again
		changes(network.ReachabilityPrivate)
		if n := through.provided.len(); n != 0 {
			t.Errorf("%d keys are renewed afterwards", n)
		}
	})
}
