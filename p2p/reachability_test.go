package p2p

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/network"
	basichost "github.com/libp2p/go-libp2p/p2p/host/basic"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/poll"
)

func anyNode(did.DID) (bool, did.Relation) { return true, did.Untrusted }

// reported returns a function with the last reachability that the events of a host report.
func reported(t *testing.T, h *Host) func() network.Reachability {
	t.Helper()
	events, err := h.EventBus().Subscribe(new(event.EvtLocalReachabilityChanged))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = events.Close() })
	last := network.Reachability(-1)
	return func() network.Reachability {
		for {
			select {
			case e := <-events.Out():
				last = e.(event.EvtLocalReachabilityChanged).Reachability
			default:
				return last
			}
		}
	}
}

// netOf returns the state of a host as the API shows it.
func netOf(h *Host) *api.Net { return NewPeers(PeersOptions{Host: h}).Net() }

// Each host reports a reachability before it has peers, and relays if others can dial it.
func TestReachabilityFromTheStart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		o     Options
		event network.Reachability
		text  string
		serve bool
	}{
		"in a private network": {Options{Listen: []string{anyTCP}, NAT: NAT{PrivateRelays: true}}, network.ReachabilityPublic, api.ReachableLocal, true},
		"without listeners":    {Options{NAT: NAT{PrivateRelays: true}}, network.ReachabilityUnknown, api.ReachableUnknown, false},
		"in a public network":  {Options{Listen: []string{anyTCP}, PublicOnly: true}, network.ReachabilityPrivate, api.ReachablePrivate, false},
		"in any network":       {Options{Listen: []string{anyTCP}}, network.ReachabilityUnknown, api.ReachableUnknown, false},
		"with a configured public address": {Options{Listen: []string{anyTCP}, Announce: []string{"/ip4/11.0.0.1/tcp/4667"}, PublicOnly: true},
			network.ReachabilityPublic, api.ReachablePublic, true},
		"with a configured private address": {Options{Listen: []string{anyTCP}, Announce: []string{"/ip4/10.0.0.1/tcp/4667"}, PublicOnly: true},
			network.ReachabilityPrivate, api.ReachablePrivate, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.o.Relays, c.o.NAT.Serve = anyNode, true
			h := made(t, c.o)
			state := reported(t, h)
			poll.Until(t, "the event "+c.event.String(), func() bool { return state() == c.event })
			if err := h.Start(); err != nil {
				t.Fatal(err)
			}
			state = reported(t, h)
			poll.Until(t, "the event "+c.event.String(), func() bool { return state() == c.event })
			if n := netOf(h); n.Reachability != c.text || (n.Serving != nil) != c.serve || h.CanServe() != c.serve {
				t.Errorf("the reachability is %s, it relays: %v; want %s, %v", n.Reachability, h.CanServe(), c.text, c.serve)
			}
		})
	}
}

// A router maps a port on request, with a public address, until it forgets it.
type router struct{ forgot atomic.Bool }

const mapped = "/ip4/11.0.0.9/tcp/5000"

func (r *router) GetMapping(ma.Multiaddr) ma.Multiaddr {
	if r.forgot.Load() {
		return nil
	}
	return ma.StringCast(mapped)
}
func (r *router) HasDiscoveredNAT() bool { return true }
func (r *router) Close() error           { return nil }

// A mapped port is believed once AutoNAT confirms it. The node relays from then on, until AutoNAT or the router says that it is closed.
func TestMappedPort(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(r *router, checked func(reachable, unreachable []ma.Multiaddr)){
		"AutoNAT finds it closed": func(_ *router, checked func(reachable, unreachable []ma.Multiaddr)) {
			checked(nil, []ma.Multiaddr{ma.StringCast(mapped)})
		},
		"the router forgets it": func(r *router, checked func(reachable, unreachable []ma.Multiaddr)) {
			r.forgot.Store(true)
			checked(nil, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var at router
			h := started(t, Options{Listen: []string{anyTCP}, PublicOnly: true, Relays: anyNode, NAT: NAT{PortMap: true, Serve: true},
				mapper: func(network.Network) basichost.NATManager { return &at }})
			runs(t, h)
			emitter, err := h.EventBus().Emitter(new(event.EvtHostReachableAddrsChanged), eventbus.Stateful)
			if err != nil {
				t.Fatal(err)
			}
			defer emitter.Close()
			checked := func(reachable, unreachable []ma.Multiaddr) {
				if err := emitter.Emit(event.EvtHostReachableAddrsChanged{Reachable: reachable, Unreachable: unreachable}); err != nil {
					t.Error(err)
				}
			}
			state := reported(t, h)
			relays := func() bool { return h.CanServe() && slices.Contains(h.Mux().Protocols(), proto.ProtoIDv2Hop) }
			poll.Until(t, "the mapping", func() bool { return netOf(h).PortMapping.State == api.MappingMapped })
			if n := netOf(h); n.Reachability != api.ReachablePrivate || len(n.Addrs) != 1 || n.Addrs[0] != (api.NetAddr{Addr: mapped, Source: api.SourceMapping,
				Proof: api.SourceMapping, Announced: true}) || relays() {
				t.Errorf("before the check: %+v", n)
			}
			poll.Until(t, "the event", func() bool { return state() == network.ReachabilityPrivate })
			checked([]ma.Multiaddr{ma.StringCast(mapped)}, nil)
			poll.Until(t, "a relay", func() bool { return relays() && state() == network.ReachabilityPublic })
			if n := netOf(h); n.Reachability != api.ReachablePublic || !n.Addrs[0].Usable || n.Addrs[0].Checked != api.CheckedReachable || n.Serving == nil {
				t.Errorf("after the check: %+v", n)
			}
			end(&at, checked)
			poll.Until(t, "the end of the relay", func() bool {
				return !h.CanServe() && !slices.Contains(h.Mux().Protocols(), proto.ProtoIDv2Hop) && state() == network.ReachabilityPrivate
			})
		})
	}
}

// A connFrom is a connection as a reachability sees it.
type connFrom struct {
	network.Conn
	from string
	dir  network.Direction
}

func (c connFrom) RemoteMultiaddr() ma.Multiaddr { return ma.StringCast(c.from) }
func (c connFrom) Stat() network.ConnStats {
	return network.ConnStats{Stats: network.Stats{Direction: c.dir}}
}

// Only a connection from an address to which the node has not sent proves that its router lets others in: AutoNAT takes one that filters by
// address for open.
func TestProofByAConnection(t *testing.T) {
	t.Parallel()
	const seen, dialed = "/ip4/11.0.0.9/tcp/5000", "/ip4/11.0.0.1/udp/1/quic-v1"
	for name, c := range map[string]struct {
		conn   connFrom
		proves bool
	}{
		"of another address":        {connFrom{from: "/ip4/11.0.0.2/tcp/1", dir: network.DirInbound}, true},
		"of an address it has sent": {connFrom{from: "/ip4/11.0.0.1/tcp/9", dir: network.DirInbound}, false},
		"to another address":        {connFrom{from: "/ip4/11.0.0.2/tcp/1", dir: network.DirOutbound}, false},
		"of the local network":      {connFrom{from: "/ip4/10.0.0.2/tcp/1", dir: network.DirInbound}, false},
		"through a relay": {connFrom{from: "/ip4/11.0.0.2/tcp/1/p2p/12D3KooWGC6TvWhfapngX6wvJHMYvKpDMXPb3ZnCZ6dMoaMtimQ5/p2p-circuit",
			dir: network.DirInbound}, false},
		"by another transport": {connFrom{from: "/ip4/11.0.0.2/udp/1/quic-v1", dir: network.DirInbound}, false},
		"by another version":   {connFrom{from: "/ip6/2a00::2/tcp/1", dir: network.DirInbound}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// An address that peers see, and AutoNAT confirms.
			h := started(t, Options{Listen: []string{anyTCP}, PublicOnly: true})
			h.reach.announce = func([]ma.Multiaddr) []ma.Multiaddr { return []ma.Multiaddr{ma.StringCast(seen)} }
			h.reach.reachable = h.reach.announce(nil)
			state := reported(t, h)
			runs(t, h)
			_ = h.gater.InterceptAddrDial(h.ID(), ma.StringCast(dialed))
			if n := netOf(h); n.Reachability != api.ReachablePrivate || n.Addrs[0].Source != api.SourceObserved || n.Addrs[0].Proof != "" {
				t.Fatalf("before: %+v", n)
			}
			h.reach.Connected(nil, c.conn)
			if !c.proves {
				if n := netOf(h); n.Reachability != api.ReachablePrivate || n.Addrs[0].Proof != "" {
					t.Errorf("after: %+v", n)
				}
				return
			}
			poll.Until(t, "the event", func() bool { return state() == network.ReachabilityPublic })
			if n := netOf(h); n.Reachability != api.ReachablePublic || n.Addrs[0].Proof != api.ProofInbound {
				t.Errorf("after: %+v", n)
			}
		})
	}
}

// With more addresses than are kept, no connection is a proof.
func TestTooManyAddressesForAProof(t *testing.T) {
	t.Parallel()
	r := &reachability{inbound: map[endpoint]time.Time{}, wake: make(chan struct{}, 1)}
	at := netip.MustParseAddr("11.1.0.0")
	for range maxSent {
		r.noteSent(at)
		at = at.Next()
	}
	stranger := connFrom{from: "/ip4/11.9.0.1/tcp/1", dir: network.DirInbound}
	if r.noteInbound(stranger); len(r.inbound) != 1 {
		t.Error("the connection proves nothing")
	}
	clear(r.inbound)
	r.noteSent(at)
	if r.noteInbound(stranger); len(r.inbound) != 0 || len(r.sent) > maxSent {
		t.Errorf("%d addresses are kept, %d proofs", len(r.sent), len(r.inbound))
	}
}

// What peers see of a node shows how its router translates addresses.
func TestKindOfNAT(t *testing.T) {
	t.Parallel()
	own := "/ip4/127.0.0.1/udp/4667/quic-v1"
	for name, c := range map[string]struct {
		seen map[string]int // by peers
		want string
	}{
		"nothing":                   {nil, api.NATUnknown},
		"one peer":                  {map[string]int{"/ip4/11.0.0.9/udp/1/quic-v1": 1}, api.NATUnknown},
		"the same address":          {map[string]int{"/ip4/11.0.0.9/udp/1/quic-v1": 2, "/ip4/11.0.0.9/udp/2/quic-v1": 1}, api.NATIndependent},
		"other ports":               {map[string]int{"/ip4/11.0.0.9/udp/1/quic-v1": 1, "/ip4/11.0.0.9/udp/2/quic-v1": 1}, api.NATDependent},
		"between two routers":       {map[string]int{"/ip4/11.0.0.9/udp/1/quic-v1": 1, "/ip4/10.0.0.9/udp/2/quic-v1": 1}, api.NATUnknown},
		"its own address":           {map[string]int{own: 1}, api.NATNone},
		"a mapped port":             {map[string]int{"/ip4/11.0.0.9/udp/1/quic-v1": 1, "/ip4/11.0.0.9/udp/7/quic-v1": 1}, api.NATUnknown},
		"ports of other transports": {map[string]int{"/ip4/11.0.0.9/udp/1/quic-v1": 1, "/ip4/11.0.0.9/tcp/2": 2}, api.NATUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &reachability{observed: seenBy(c.seen), mapped: []mapping{{external: ma.StringCast("/ip4/11.0.0.9/udp/7/quic-v1")}}}
			if got := r.natKind(true); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// seenBy are addresses with the numbers of their observers.
type seenBy map[string]int

// Addrs implements [basichost.ObservedAddrsManager].
func (s seenBy) Addrs(observers int) (all []ma.Multiaddr) {
	for a, n := range s {
		if n >= observers {
			all = append(all, ma.StringCast(a))
		}
	}
	return all
}

// AddrsFor implements [basichost.ObservedAddrsManager].
func (s seenBy) AddrsFor(ma.Multiaddr) []ma.Multiaddr { return nil }
