package p2p

import (
	"cmp"
	"context"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"net"
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
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	libp2pquic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/quic-go/quic-go"
)

// open creates the parts: QUIC first, then TCP with TLS (which has the post-quantum key exchange) before Noise. After an error,
// Close closes the parts created so far.
func (h *Host) open(priv crypto.PrivKey, announce func([]ma.Multiaddr) []ma.Multiaddr) (err error) {
	if h.rm, err = resourceManager(h.o.Limits, h.o.Network); err != nil {
		return err
	}
	h.closers = append(h.closers, h.rm.Close, h.ports.close)
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
	ours := []swarm.Option{swarm.WithConnectionGater(h.gater), swarm.WithResourceManager(h.rm), swarm.WithDialRanker(ranker{isNear}.rank)}
	if h.o.resolver != nil {
		ours = append(ours, swarm.WithMultiaddrResolver(h.o.resolver))
	}
	s, err := swarm.NewSwarm(id, book, bus, append(ours, opts...)...)
	if err != nil {
		return nil, err
	}
	h.closers = append(h.closers, s.Close)
	if h.o.Transport == nil {
		return s, h.addTransports(s, priv)
	}
	t, err := h.o.Transport(h.rm)
	if err != nil {
		return nil, err
	}
	return s, s.AddTransport(t)
}

func (h *Host) addTransports(s *swarm.Swarm, priv crypto.PrivKey) error {
	reuse, err := quicSockets(priv, h.rm)
	if err != nil {
		return err
	}
	h.closers = append(h.closers, reuse.Close)
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
	t, err := tcp.NewTCPTransport(portUpgrader{up, h.ports}, h.rm, nil, opts...)
	if err != nil {
		return err
	}
	w, err := h.newWebTransport(up)
	if err != nil {
		return err
	}
	return errors.Join(s.AddTransport(q), s.AddTransport(&tcpTransport{t, w, s.Peerstore().Addrs}), s.AddTransport(w))
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
	return upgrader.New(security, muxers(), nil, h.rm, h.gater, upgrader.WithAcceptTimeout(cmp.Or(h.o.accept, acceptFor)))
}

// acceptFor limits the handshakes of an inbound connection, which has one of the few places of transient connections until their end. The library
// lets one that sends nothing more have it for 15 s.
const acceptFor = 5 * time.Second

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
	h.reach = h.newReachability(announce)
	if h.o.NAT.PortMap {
		opts.NATManager = func(n network.Network) basichost.NATManager {
			newMapper := newPortMapper
			if h.o.mapper != nil {
				newMapper = h.o.mapper
			}
			h.reach.mapper = newMapper(n)
			return h.reach.mapper
		}
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
	if err := h.openReachability(observed); err != nil {
		return err
	}
	if !h.o.NAT.Relay {
		return nil
	}
	return h.openRelays(priv, observed, announce)
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
