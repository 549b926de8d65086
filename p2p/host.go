package p2p

import (
	"context"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/sec"
	"github.com/libp2p/go-libp2p/core/transport"
	basichost "github.com/libp2p/go-libp2p/p2p/host/basic"
	blankhost "github.com/libp2p/go-libp2p/p2p/host/blank"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"
	"github.com/libp2p/go-libp2p/p2p/host/observedaddrs"
	"github.com/libp2p/go-libp2p/p2p/host/peerstore/pstoremem"
	"github.com/libp2p/go-libp2p/p2p/net/connmgr"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/net/upgrader"
	"github.com/libp2p/go-libp2p/p2p/protocol/autonatv2"
	circuit "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	"github.com/libp2p/go-libp2p/p2p/protocol/holepunch"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	libp2pquic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"github.com/quic-go/quic-go"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/p2p/relay"
)

// open creates the parts: QUIC first, then TCP with TLS (which has the post-quantum key exchange) before Noise. After an error,
// Close closes the parts created so far.
func (h *Host) open(priv crypto.PrivKey, announce func([]ma.Multiaddr) []ma.Multiaddr) (err error) {
	if h.rm, err = resourceManager(h.o.Limits, h.o.Network); err != nil {
		return err
	}
	h.closers = append(h.closers, h.rm.Close)
	bus := eventbus.NewBus()
	if h.refused, err = watchRefusals(bus); err != nil {
		return err
	}
	h.closers = append(h.closers, h.refused.close)
	if h.swarm, err = h.network(priv, bus); err != nil {
		return err
	}
	h.swarm.Notify(h.refused)
	return h.assemble(priv, bus, announce)
}

// network creates the swarm with its transports.
func (h *Host) network(priv crypto.PrivKey, bus event.Bus, opts ...swarm.Option) (*swarm.Swarm, error) {
	id, err := peer.IDFromPrivateKey(priv)
	if err != nil {
		return nil, err
	}
	book, err := pstoremem.NewPeerstore()
	if err != nil {
		return nil, err
	}
	h.closers = append(h.closers, book.Close)
	if err := errors.Join(book.AddPrivKey(id, priv), book.AddPubKey(id, priv.GetPublic())); err != nil {
		return nil, err
	}
	reuse, err := quicSockets(priv, h.rm)
	if err != nil {
		return nil, err
	}
	h.closers = append(h.closers, reuse.Close)
	ours := []swarm.Option{swarm.WithConnectionGater(h.gater), swarm.WithResourceManager(h.rm), swarm.WithDialRanker(ranker{isNear}.rank)}
	s, err := swarm.NewSwarm(id, book, bus, append(ours, opts...)...)
	if err != nil {
		return nil, err
	}
	h.closers = append(h.closers, s.Close)
	return s, h.addTransports(s, priv, reuse)
}

func (h *Host) addTransports(s *swarm.Swarm, priv crypto.PrivKey, reuse *quicreuse.ConnManager) error {
	certificate, err := timeless()
	if err != nil {
		return err
	}
	q, err := libp2pquic.NewTransport(priv, reuse, nil, h.gater, h.rm, libp2pquic.WithTLSIdentityOption(certificate))
	if err != nil {
		return err
	}
	up, err := h.upgrader(priv)
	if err != nil {
		return err
	}
	var opts []tcp.Option
	if !h.o.NAT.Relay {
		// Dialing from the listening port is needed for hole punching only. Without it, a redial cannot collide with a connection
		// in TIME_WAIT, and a dead peer's port refuses at once.
		opts = append(opts, tcp.DisableReuseport())
	}
	t, err := tcp.NewTCPTransport(up, h.rm, nil, opts...)
	if err != nil {
		return err
	}
	return errors.Join(s.AddTransport(q), s.AddTransport(t))
}

// upgrader secures and multiplexes TCP connections.
func (h *Host) upgrader(priv crypto.PrivKey) (transport.Upgrader, error) {
	t, err := newTLS(priv, muxers())
	if err != nil {
		return nil, err
	}
	security := []sec.SecureTransport{t}
	if !h.o.NoNoise {
		n, err := noise.New(noise.ID, priv, muxers())
		if err != nil {
			return nil, err
		}
		security = append(security, n)
	}
	return upgrader.New(security, muxers(), nil, h.rm, h.gater)
}

// quicSockets shares UDP sockets between listening and dialing. The resource manager counts connections before their handshake.
func quicSockets(priv crypto.PrivKey, rm network.ResourceManager) (*quicreuse.ConnManager, error) {
	secret, err := priv.Raw()
	if err != nil {
		return nil, err
	}
	var reset quic.StatelessResetKey
	var token quic.TokenGeneratorKey
	for info, key := range map[string][]byte{"libp2p quic stateless reset key": reset[:], "libp2p quic token generator key": token[:]} {
		k, err := hkdf.Key(sha256.New, secret, nil, info, len(key))
		if err != nil {
			return nil, err
		}
		copy(key, k)
	}
	return quicreuse.NewConnManager(reset, token,
		quicreuse.VerifySourceAddress(func(addr net.Addr) bool { return rm.VerifySourceAddress(addr) }),
		quicreuse.ConnContext(func(ctx context.Context, c *quic.ClientInfo) (context.Context, error) {
			addr, err := quicreuse.ToQuicMultiaddr(c.RemoteAddr, quic.Version1)
			if err != nil {
				addr = nil // the resource manager decides without it
			}
			scope, err := rm.OpenConnection(network.DirInbound, false, addr)
			if err != nil {
				return ctx, err
			}
			context.AfterFunc(ctx, scope.Done)
			return network.WithConnManagementScope(ctx, scope), nil
		}))
}

// assemble creates the host on the network.
func (h *Host) assemble(priv crypto.PrivKey, bus event.Bus, announce func([]ma.Multiaddr) []ma.Multiaddr) error {
	cm, err := connmgr.NewConnManager(h.o.Limits.PeersLow, h.o.Limits.PeersHigh,
		connmgr.WithGracePeriod(30*time.Second), connmgr.WithSilencePeriod(10*time.Second))
	if err != nil {
		return err
	}
	opts := &basichost.HostOpts{EventBus: bus, ConnManager: cm, AddrsFactory: h.withRelays(announce), EnablePing: true,
		UserAgent: "lmosd/" + h.o.Version, ProtocolVersion: "lmos/1", DisableNonPublicAddrPublishing: h.o.PublicOnly,
		EnableMetrics: h.o.Metrics != nil, PrometheusRegisterer: h.o.Metrics}
	observed, err := observedaddrs.NewManager(bus, h.swarm)
	if err != nil {
		return err
	}
	opts.ObservedAddrsManager = observed
	if h.o.NAT.PortMap {
		opts.NATManager = basichost.NewNATManager
	}
	if h.o.NAT.AutoNAT {
		if opts.AutoNATv2, err = h.autoNAT(); err != nil {
			return err
		}
	}
	var streams network.Network = h.swarm
	if h.o.Streams != nil {
		streams = &gatedSwarm{h.swarm, h.o.Streams, Free(h.o.Network)}
	}
	if h.BasicHost, err = basichost.NewHost(streams, opts); err != nil {
		return err
	}
	observed.Start(h.swarm)
	h.closers = append(h.closers, observed.Close)
	if h.o.NAT.Serve && h.o.Relays != nil && h.isPlaced(announce(nil)) {
		h.service, err = relay.Serve(relay.ServiceOptions{Host: h.BasicHost, Terms: h.terms, Private: h.o.NAT.PrivateRelays, Log: h.o.Log})
		if err != nil {
			return err
		}
		h.closers = append(h.closers, h.service.Close)
	}
	if !h.o.NAT.Relay {
		return nil
	}
	return h.openRelays(priv, observed, announce)
}

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
	if err := circuit.AddTransport(h.BasicHost, up); err != nil {
		return err
	}
	// The service of the host would wait for a public address, which a network of private ones never has.
	punch, err := holepunch.NewService(h.BasicHost, h.IDService(), func() []ma.Multiaddr { return h.punchAddrs(observed, announce) },
		holepunch.WithAddrFilter(punches{h}))
	if err != nil {
		return err
	}
	h.closers = append(h.closers, punch.Close)
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

// isPlaced reports whether others can reach this node at a public address, or at a private one in a network that has no others.
func (h *Host) isPlaced(configured []ma.Multiaddr) bool {
	return h.o.NAT.PrivateRelays || slices.ContainsFunc(h.listen, hasPublic) || slices.ContainsFunc(configured, manet.IsPublicAddr)
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

// FilterRemote implements [holepunch.AddrFilter].
func (p punches) FilterRemote(from peer.ID, as []ma.Multiaddr) []ma.Multiaddr {
	as = p.FilterLocal(from, as)
	return as[:min(len(as), maxPunched)]
}

// punchAddrs returns the addresses that a peer punches to: those at which one peer has seen this node, and its own that it announces.
func (h *Host) punchAddrs(observed *observedaddrs.Manager, announce func([]ma.Multiaddr) []ma.Multiaddr) []ma.Multiaddr {
	all := append(observed.Addrs(1), announce(h.AllAddrs())...)
	return slices.DeleteFunc(all, func(a ma.Multiaddr) bool {
		return relay.IsCircuit(a) || manet.IsIPLoopback(a) || h.o.PublicOnly && !manet.IsPublicAddr(a)
	})
}

// autoNAT requests and answers reachability checks. It dials back from a host with another key, so that existing connections do not
// influence the result.
func (h *Host) autoNAT() (*autonatv2.AutoNAT, error) {
	dialer, err := h.dialBack()
	if err != nil {
		return nil, err
	}
	return autonatv2.New(blankhost.NewBlankHost(dialer))
}

// dialBack returns a network with another key, which only dials. It has no counters of black holes: as a second network, whose dials are few, it
// would never leave their first state, in which the detector refuses all QUIC and IPv6 addresses.
func (h *Host) dialBack() (*swarm.Swarm, error) {
	priv, _, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		return nil, err
	}
	return h.network(priv, eventbus.NewBus(), swarm.WithReadOnlyBlackHoleDetector(), swarm.WithUDPBlackHoleSuccessCounter(nil),
		swarm.WithIPv6BlackHoleSuccessCounter(nil), swarm.WithDialRanker(swarm.NoDelayDialRanker))
}
