package node

import (
	"slices"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/p2p/relay"
)

// Nodes that nobody can dial call each other through a relay that they have found by the DHT.
func TestCallThroughARelay(t *testing.T) {
	t.Parallel()
	nat := p2p.NAT{Relay: true, PrivateRelays: true}
	o := quiet()
	o.NAT, o.NAT.Serve = nat, true
	through, between := start(t, o), start(t, quiet())
	o = quiet()
	o.NAT, o.Listen = nat, nil
	caller, hidden := start(t, o), start(t, o) // no address of either leads to the other
	for _, n := range []*running{through, hidden, caller} {
		connect(t, n, between)
	}
	until(t, "an address through the relay", func() bool { return len(hidden.network.Addrs()) == 1 })
	if a := hidden.network.Addrs()[0].String(); !strings.HasSuffix(a, "/p2p/"+through.network.ID().String()+"/p2p-circuit") {
		t.Errorf("the address is %s", a)
	}
	ref := publish(t, hidden, toolAt("Kettle", "urn:x:kettle", newAgent(t).url))
	knows(t, caller, ref)
	if err := ask(t, caller, ref); err != nil {
		t.Fatal(err)
	}
	if caller.network.Network().Connectedness(peer.ID(hidden.key.Peer())).String() != "Limited" {
		t.Errorf("the connection is %s", caller.network.Network().Connectedness(peer.ID(hidden.key.Peer())))
	}
	_, service := through.network.own.Relays()
	st := service.Stats()
	if !slices.ContainsFunc(st.Circuits, func(c *relay.Circuit) bool { // either may have dialed
		return c.From == caller.DID() && c.To == hidden.DID() || c.From == hidden.DID() && c.To == caller.DID()
	}) {
		t.Errorf("the relay has %+v", st)
	}
}
