package node

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	libp2p "github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/p2p/relay"
	"github.com/lmosd/lmosd/td"
)

// behindRouters starts a relay, and two nodes that nobody can dial, which are connected with a third one only.
func behindRouters(t *testing.T, change func(*Options)) (caller, hidden, through *running) {
	t.Helper()
	o := quiet()
	o.NAT = p2p.NAT{Relay: true, Serve: true, PrivateRelays: true}
	change(&o)
	through, between := start(t, o), start(t, quiet())
	o.NAT.Serve, o.Listen = false, nil
	caller, hidden = start(t, o), start(t, o)
	for _, n := range []*running{through, hidden, caller} {
		connect(t, n, between)
	}
	until(t, "an address through the relay", func() bool { return len(hidden.network.Addrs()) == 1 })
	return caller, hidden, through
}

// Nodes that nobody can dial call each other through a relay that they have found by the DHT.
func TestCallThroughARelay(t *testing.T) {
	t.Parallel()
	caller, hidden, through := behindRouters(t, func(*Options) {})
	if a := hidden.network.Addrs()[0].String(); !strings.HasSuffix(a, "/p2p/"+through.network.ID().String()+"/p2p-circuit") {
		t.Errorf("the address is %s", a)
	}
	ref := publish(t, hidden, toolAt("Kettle", "urn:x:kettle", newAgent(t).url))
	knows(t, caller, ref)
	if err := ask(t, caller, ref); err != nil {
		t.Fatal(err)
	}
	if got := caller.network.Network().Connectedness(peer.ID(hidden.key.Peer())); got != libp2p.Limited {
		t.Errorf("the connection is %s", got)
	}
	_, service := through.network.own.Relays()
	st := service.Stats()
	if !slices.ContainsFunc(st.Circuits, func(c *relay.Circuit) bool { // either may have dialed
		return c.From == caller.DID() && c.To == hidden.DID() || c.From == hidden.DID() && c.To == caller.DID()
	}) {
		t.Errorf("the relay has %+v", st)
	}
}

// A Thing whose record is older than the relay of its host is called through that relay.
func TestCallAfterTheAddressChanged(t *testing.T) {
	t.Parallel()
	between := start(t, quiet())
	o := quiet()
	o.NAT, o.Listen = p2p.NAT{Relay: true, PrivateRelays: true}, nil
	caller, hidden := start(t, o), start(t, o)
	connect(t, caller, between)
	connect(t, hidden, between)
	ref := publish(t, hidden, toolAt("Kettle", "urn:x:kettle", newAgent(t).url))
	knows(t, caller, ref)
	wantCode(t, ask(t, caller, ref), interact.Unreachable)
	o = quiet()
	o.NAT = p2p.NAT{Relay: true, Serve: true, PrivateRelays: true}
	through := start(t, o)
	connect(t, through, between)
	until(t, "an address through the relay", func() bool { return len(hidden.network.Addrs()) == 1 })
	until(t, "an answer", func() bool { return ask(t, caller, ref) == nil })
}

// A node whose relay has gone announces its new addresses once, whatever the number of its Things, and others have them before they call.
func TestOneRecordFollowsTheAddresses(t *testing.T) {
	t.Parallel()
	caller, hidden, through := behindRouters(t, func(*Options) {})
	const things = 5
	var ref string
	for i := range things {
		ref = publish(t, hidden, toolAt("Kettle", fmt.Sprintf("urn:x:kettle-%d", i), newAgent(t).url))
	}
	knows(t, caller, ref)
	until(t, "the record of the node", func() bool { return len(addrsOf(caller, hidden)) > 0 })
	before := hidden.mesh.gossip.Stats().Published
	o := quiet()
	o.NAT = p2p.NAT{Relay: true, Serve: true, PrivateRelays: true}
	next := start(t, o)
	connect(t, hidden, next)
	_ = through.stop()
	isNew := func(a multiaddr.Multiaddr) bool { return strings.Contains(a.String(), next.network.ID().String()) }
	until(t, "an address through the other relay", func() bool { return slices.ContainsFunc(hidden.network.Addrs(), isNew) })
	until(t, "the caller has it", func() bool { return slices.ContainsFunc(addrsOf(caller, hidden), isNew) })
	if n := hidden.mesh.gossip.Stats().Published - before; n > 3 {
		t.Errorf("%d records were announced for %d Things", n, things)
	}
	if err := ask(t, caller, ref); err != nil {
		t.Error(err)
	}
}

// A subscription uses a relayed connection with the limits of members. With those of untrusted nodes it is refused with the limits, and the host
// stays reachable for calls.
func TestSubscriptionsOnRelayedConnections(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		relation did.Relation
		want     string
	}{"members": {did.Own, ""}, "untrusted nodes": {did.Untrusted, "limits of 128 KiB in each direction and 2m0s"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			caller, hidden, _ := behindRouters(t, func(o *Options) {
				o.Policy.Principal = func(id did.DID) *did.Principal {
					p := did.NodePrincipal(id, "")
					p.Relation = c.relation
					return p
				}
			})
			draft, err := td.Draft([]byte(`{"id":"urn:x:clock","title":"Clock","actions":{"echo":{}},"events":{"tick":{}}}`))
			if err != nil {
				t.Fatal(err)
			}
			p, err := hidden.Offer(t.Context(), draft, clock{})
			if err != nil {
				t.Fatal(err)
			}
			knows(t, caller, p.Ref)
			as := interact.Chain(caller.Mesh(), interact.As(did.Consumer(did.Process, "")))
			m, err := interact.Call(t.Context(), as, &interact.Message{Type: interact.SubscribeEvent, Thing: p.Ref, Name: "tick"})
			switch {
			case c.want == "" && (err != nil || string(m.Data) != "1"):
				t.Errorf("the first event is %v, %v", m, err)
			case c.want != "" && (codeOf(err) != interact.RelayLimited || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v", err)
			}
			if err := ask(t, caller, p.Ref); err != nil {
				t.Error(err)
			}
		})
	}
}

// A clock answers calls, and sends events.
type clock struct{}

func (clock) Do(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		if m.Type == interact.SubscribeEvent {
			yield(m.Reply(interact.Event, interact.JSON, []byte("1")), nil)
			return
		}
		yield(m.ReplyStatus(interact.StatusCompleted, interact.JSON, []byte(`"x"`)), nil)
	}
}

// addrsOf returns the addresses that a node has signed, as another one knows them.
func addrsOf(n, of *running) []multiaddr.Multiaddr {
	return n.mesh.nodes.Addrs(of.network.ID(), time.Now())
}
