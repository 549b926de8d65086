package p2p

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	basichost "github.com/libp2p/go-libp2p/p2p/host/basic"
	"github.com/libp2p/go-libp2p/p2p/host/observedaddrs"
	circuit "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	"github.com/libp2p/go-libp2p/p2p/protocol/holepunch"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/p2p/relay"
)

// withRelays adds the addresses of this node at its relays to the announced ones, whatever AutoNAT finds: behind a router that filters by address
// only, it takes the node for reachable, because it dials back from an address that the node has sent to.
func (h *Host) withRelays(announce func([]ma.Multiaddr) []ma.Multiaddr) func([]ma.Multiaddr) []ma.Multiaddr {
	return func(as []ma.Multiaddr) []ma.Multiaddr {
		return append(slices.DeleteFunc(announce(as), relay.IsCircuit), h.places.Load().Addrs()...)
	}
}

// openRelays opens the transport of circuits, hole punching, and the reservations at relays.
func (h *Host) openRelays(priv crypto.PrivKey, observed *observedaddrs.Manager, announce func([]ma.Multiaddr) []ma.Multiaddr) error {
	up, err := h.upgrader(priv)
	if err != nil {
		return err
	}
	circuits := &relay.Circuits{}
	h.gater.avoids.Store(circuits)
	if err := circuit.AddTransport(hops{h.BasicHost}, circuits.Upgrader(up)); err != nil {
		return err
	}
	// The service of the host would wait for a public address, which a network of private ones never has.
	punch, err := holepunch.NewService(h.BasicHost, h.IDService(), func() []ma.Multiaddr { return h.punchAddrs(observed, announce) },
		holepunch.WithAddrFilter(punches{h}), holepunch.WithTracer(&h.punches))
	if err != nil {
		return err
	}
	h.closers = append(h.closers, func() error { h.dials.Wait(); return nil }, punch.Close)
	t, err := newTLS(priv, muxers())
	if err != nil {
		return err
	}
	places, err := relay.New(relay.Options{Host: h.BasicHost, Find: h.o.FindRelays, Rank: h.rank, IsSelf: t.isSelf, Private: h.o.NAT.PrivateRelays,
		Log: h.o.Log})
	if err != nil {
		return err
	}
	h.closers = append(h.closers, places.Close)
	h.places.Store(places)
	return nil
}

// hops is the host of the transport of circuits. It dials a relay that has only a relayed connection to this node, as after a call of the relay: the host
// would wait for a direct one instead, until its time ends.
type hops struct{ *basichost.BasicHost }

// NewStream implements [host.Host].
func (h hops) NewStream(ctx context.Context, id peer.ID, ids ...protocol.ID) (network.Stream, error) {
	return h.BasicHost.NewStream(network.WithForceDirectDial(ctx, "relay"), id, ids...)
}

// terms returns the terms by which this node relays for another one.
func (h *Host) terms(node did.DID) relay.Terms {
	allowed, relation := h.o.Relays(node)
	switch {
	case !allowed:
		return relay.Refused
	case relation >= did.Partner:
		return relay.Long
	}
	return relay.Short
}

// rank prefers relays of the own organization, then those of partners.
func (h *Host) rank(node did.DID) int {
	if h.o.Relays == nil {
		return 0
	}
	_, relation := h.o.Relays(node)
	return int(did.Local - relation)
}

// serve relays for others from now on, or no more.
func (h *Host) serve(on bool) {
	old := h.service.Load()
	switch {
	case !h.o.NAT.Serve || h.o.Relays == nil || on == (old != nil):
	case on:
		s, err := relay.Serve(relay.ServiceOptions{Host: h.BasicHost, Terms: h.terms, Settle: h.o.Settle, Private: h.o.NAT.PrivateRelays, Log: h.o.Log})
		if err != nil {
			h.o.Log.Warn("this node cannot relay", "err", err)
			return
		}
		h.service.Store(s)
	default:
		h.service.Store(nil)
		_ = old.Close() // its parts only end
	}
}

// maxPunched limits the addresses of a peer to which this node punches.
const maxPunched = 8

// punches filters the addresses of hole punching: none for peers that the policy refuses.
type punches struct{ h *Host }

// FilterLocal implements [holepunch.AddrFilter].
func (p punches) FilterLocal(to peer.ID, as []ma.Multiaddr) []ma.Multiaddr {
	if p.h.o.Streams != nil && checkPeer(to, p.h.o.Streams) != nil {
		return nil
	}
	return as
}

// FilterRemote implements [holepunch.AddrFilter]. A peer can name the address of another host, which gets few dials: two ports of each transport, since a router
// may have mapped one and assigned another.
func (p punches) FilterRemote(from peer.ID, as []ma.Multiaddr) []ma.Multiaddr {
	var all []ma.Multiaddr
	type target struct {
		ip   netip.Addr
		quic bool
	}
	seen := map[target]int{}
	for _, a := range p.FilterLocal(from, as) {
		ip, ok := ipOf(a)
		to := target{ip, isQUIC(a)}
		if !ok || seen[to] == 2 || relay.IsCircuit(a) || len(all) == maxPunched {
			continue
		}
		seen[to]++
		all = append(all, a)
	}
	p.dial(from, all)
	return all
}

// punchFor limits a dial beside a punch; an attempt of the library takes as long.
const punchFor = 5 * time.Second

// dial dials the addresses of a caller beside the punch, from a node whose router maps to another port for each destination. The library lets the
// called node wait for the dial of the caller, which goes to a port of an earlier destination, and swaps the roles in its third attempt only.
func (p punches) dial(caller peer.ID, as []ma.Multiaddr) {
	if !slices.ContainsFunc(p.h.Network().ConnsToPeer(caller), func(c network.Conn) bool {
		return c.Stat().Direction == network.DirInbound && relay.IsCircuit(c.RemoteMultiaddr())
	}) {
		return // this node is the caller: it dials in the punch
	}
	as = slices.DeleteFunc(slices.Clone(as), func(a ma.Multiaddr) bool {
		e, _ := endpointOf(a)
		return p.h.reach.natKind(e.udp) != api.NATDependent
	})
	if len(as) == 0 {
		return
	}
	p.h.dials.Go(func() {
		ctx, cancel := context.WithTimeout(network.WithForceDirectDial(context.Background(), "punch"), punchFor)
		defer cancel()
		if err := p.h.Connect(ctx, peer.AddrInfo{ID: caller, Addrs: as}); err != nil {
			p.h.o.Log.Debug("dial beside a punch failed", "peer", did.ShortPeer(caller), "err", err)
		}
	})
}

// punchAddrs returns the addresses that a peer punches to: those at which one peer has seen this node, and its own that it announces.
func (h *Host) punchAddrs(observed *observedaddrs.Manager, announce func([]ma.Multiaddr) []ma.Multiaddr) []ma.Multiaddr {
	all := append(observed.Addrs(1), announce(h.AllAddrs())...)
	return slices.DeleteFunc(all, func(a ma.Multiaddr) bool {
		return relay.IsCircuit(a) || manet.IsIPLoopback(a) || h.o.PublicOnly && !manet.IsPublicAddr(a)
	})
}
