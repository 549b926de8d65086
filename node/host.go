package node

import (
	"context"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/sec"
	"github.com/libp2p/go-libp2p/core/transport"
	basichost "github.com/libp2p/go-libp2p/p2p/host/basic"
	blankhost "github.com/libp2p/go-libp2p/p2p/host/blank"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"
	"github.com/libp2p/go-libp2p/p2p/host/observedaddrs"
	"github.com/libp2p/go-libp2p/p2p/host/peerstore/pstoremem"
	"github.com/libp2p/go-libp2p/p2p/muxer/yamux"
	"github.com/libp2p/go-libp2p/p2p/net/connmgr"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/net/upgrader"
	"github.com/libp2p/go-libp2p/p2p/protocol/autonatv2"
	relay "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	libp2pquic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/quic-go/quic-go"

	"github.com/lmosd/lmosd/gateway"
)

// NAT says how a node behind an address translator is reached. The zero value is for machines that reach each other.
type NAT struct {
	// Relay lets the node be reached through relays, and meet its peers directly by hole punching.
	Relay bool
	// AutoNAT asks peers which of the node's addresses they reach, and answers the same question.
	AutoNAT bool
	// PortMap asks the router for a port by UPnP or NAT-PMP.
	PortMap bool
}

// A libp2pHost is a host and what must be closed with it. It is put together here from its parts: the library's own
// constructor links transports for browsers that a node does not listen on (8 MB of program, 8 MB of memory).
type libp2pHost struct {
	*basichost.BasicHost
	closers []func() error // in the order of opening
}

// Close closes the host, then its parts, in reverse.
func (h *libp2pHost) Close() error {
	var errs []error
	if h.BasicHost != nil { // It was made to the end.
		// The network first: the host would wait five seconds for a push to a peer that died and was not missed yet.
		errs = append(errs, h.Network().Close(), h.BasicHost.Close())
	}
	for i := len(h.closers) - 1; i >= 0; i-- {
		errs = append(errs, h.closers[i]())
	}
	return errors.Join(errs...)
}

// NewHost makes only the libp2p host of a node with these options: the way into a network for tools that speak its protocols
// themselves. It does not listen. The caller closes it.
func NewHost(o Options) (host.Host, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if o.Key, err = openKey(&o); err != nil {
		return nil, err
	}
	o.Metrics = gateway.NewMetrics()
	h, err := newHost(&o, &gater{loopback: o.Loopback})
	if err != nil {
		return nil, err
	}
	h.Start()
	return h, nil
}

// newHost makes the host: QUIC first, then TCP with TLS (which carries the post-quantum exchange) before Noise. It does not
// listen yet: handlers come before the first peer, and Start after the last address, or the host would not know them at once.
func newHost(o *Options, g *gater) (_ *libp2pHost, err error) {
	told, err := announced(o)
	if err != nil {
		return nil, err
	}
	h := &libp2pHost{}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Close())
		}
	}()
	priv, err := crypto.UnmarshalPrivateKey(o.Key.Libp2p())
	if err != nil {
		return nil, fmt.Errorf("read the node key: %w", err)
	}
	rm, err := resourceManager(o.Limits, o.Network)
	if err != nil {
		return nil, err
	}
	h.closers = append(h.closers, rm.Close)
	bus := eventbus.NewBus()
	net, err := h.network(priv, bus, rm, g, o)
	if err != nil {
		return nil, err
	}
	return h, h.assemble(net, bus, o, priv, rm, g, told)
}

// network makes the swarm with its transports.
func (h *libp2pHost) network(priv crypto.PrivKey, bus event.Bus, rm network.ResourceManager, g *gater, o *Options, opts ...swarm.Option) (*swarm.Swarm, error) {
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
	reuse, err := quicSockets(priv, rm)
	if err != nil {
		return nil, err
	}
	h.closers = append(h.closers, reuse.Close)
	opts = append([]swarm.Option{swarm.WithConnectionGater(g), swarm.WithResourceManager(rm), swarm.WithDialRanker(rankDials)}, opts...)
	s, err := swarm.NewSwarm(id, book, bus, opts...)
	if err != nil {
		return nil, err
	}
	h.closers = append(h.closers, s.Close)
	return s, addTransports(s, priv, reuse, rm, g, o)
}

func addTransports(s *swarm.Swarm, priv crypto.PrivKey, reuse *quicreuse.ConnManager, rm network.ResourceManager, g *gater, o *Options) error {
	q, err := libp2pquic.NewTransport(priv, reuse, nil, g, rm)
	if err != nil {
		return err
	}
	up, err := newUpgrader(priv, rm, g, o)
	if err != nil {
		return err
	}
	var opts []tcp.Option
	if !o.NAT.Relay {
		// Dialling from the listening port serves hole punching only. Without it a redial never meets what the kernel still
		// remembers of the last connection, and a dead peer's port refuses at once.
		opts = append(opts, tcp.DisableReuseport())
	}
	t, err := tcp.NewTCPTransport(up, rm, nil, opts...)
	if err != nil {
		return err
	}
	return errors.Join(s.AddTransport(q), s.AddTransport(t))
}

// newUpgrader makes a TCP connection a secure, multiplexed one.
func newUpgrader(priv crypto.PrivKey, rm network.ResourceManager, g *gater, o *Options) (transport.Upgrader, error) {
	muxers := []upgrader.StreamMuxer{{ID: yamux.ID, Muxer: yamux.DefaultTransport}}
	t, err := libp2ptls.New(libp2ptls.ID, priv, muxers)
	if err != nil {
		return nil, err
	}
	security := []sec.SecureTransport{t}
	if !o.Lean {
		n, err := noise.New(noise.ID, priv, muxers)
		if err != nil {
			return nil, err
		}
		security = append(security, n)
	}
	return upgrader.New(security, muxers, nil, rm, g)
}

// quicSockets shares UDP sockets between listening and dialling. Connections are counted by the resource manager before
// their handshake costs anything.
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
				addr = nil // The resource manager decides without it.
			}
			scope, err := rm.OpenConnection(network.DirInbound, false, addr)
			if err != nil {
				return ctx, err
			}
			context.AfterFunc(ctx, scope.Done)
			return network.WithConnManagementScope(ctx, scope), nil
		}))
}

// assemble makes the host of a network.
func (h *libp2pHost) assemble(net *swarm.Swarm, bus event.Bus, o *Options, priv crypto.PrivKey, rm network.ResourceManager, g *gater,
	told func([]ma.Multiaddr) []ma.Multiaddr) error {
	cm, err := connmgr.NewConnManager(o.Limits.PeersLow, o.Limits.PeersHigh,
		connmgr.WithGracePeriod(30*time.Second), connmgr.WithSilencePeriod(10*time.Second))
	if err != nil {
		return err
	}
	opts := &basichost.HostOpts{EventBus: bus, ConnManager: cm, AddrsFactory: told, EnablePing: true,
		UserAgent: "lmosd/" + o.Version, ProtocolVersion: "lmos/1", DisableNonPublicAddrPublishing: o.PublicOnly,
		EnableHolePunching: o.NAT.Relay, EnableMetrics: true, PrometheusRegisterer: o.Metrics.Registerer()}
	observed, err := observedaddrs.NewManager(bus, net)
	if err != nil {
		return err
	}
	opts.ObservedAddrsManager = observed
	if o.NAT.PortMap {
		opts.NATManager = basichost.NewNATManager
	}
	if o.NAT.AutoNAT {
		if opts.AutoNATv2, err = h.autoNAT(o, rm, g); err != nil {
			return err
		}
	}
	if h.BasicHost, err = basichost.NewHost(net, opts); err != nil {
		return err
	}
	observed.Start(net)
	h.closers = append(h.closers, observed.Close)
	if o.NAT.Relay {
		up, err := newUpgrader(priv, rm, g, o)
		if err != nil {
			return err
		}
		if err := relay.AddTransport(h.BasicHost, up); err != nil {
			return err
		}
	}
	return nil
}

// autoNAT asks and answers which addresses are reached. It dials back from a host of its own, with a key that nobody knows,
// so that a dial says nothing about connections that exist.
func (h *libp2pHost) autoNAT(o *Options, rm network.ResourceManager, g *gater) (*autonatv2.AutoNAT, error) {
	priv, _, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		return nil, err
	}
	dialer, err := h.network(priv, eventbus.NewBus(), rm, g, o, swarm.WithReadOnlyBlackHoleDetector(), swarm.WithDialRanker(swarm.NoDelayDialRanker))
	if err != nil {
		return nil, err
	}
	return autonatv2.New(blankhost.NewBlankHost(dialer))
}
