// Package p2p creates the libp2p host of a node: transports, connection gating, resource limits and advertised addresses.
//
// [Peers] dials, lists, pings and bans connected nodes. [Bootstrap] stores the addresses of peers for the next start and dials the nodes that
// mDNS finds; package dht redials the configured peers. recordaddrs.go selects the addresses for records,
// relays.go opens what reaches nodes behind routers, and reachability.go determines whether others can dial this node.
package p2p

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/core/transport"
	basichost "github.com/libp2p/go-libp2p/p2p/host/basic"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/p2p/relay"
)

// Options configure [New]. Only Key is required; the zero value does not listen.
type Options struct {
	// Key is the identity of the host.
	Key *keystore.Key
	// Version is the agent version sent to peers; empty means "dev".
	Version string
	// Network is part of the ids of protocols with stream limits.
	Network string
	// Listen are multiaddrs. If ListenExplicit, a busy port is an error; else a free one is taken.
	Listen         []string
	ListenExplicit bool
	// Web sets what else is served on TCP ports of Listen.
	Web Web
	// Announce replaces the advertised addresses; NoAnnounce removes those with a prefix, PublicOnly private ones.
	Announce, NoAnnounce []string
	PublicOnly           bool
	// Filter are address ranges, as 10.8.0.0/16, whose addresses are neither announced nor dialed.
	Filter []string
	// Admits returns an error for a peer that may not connect; nil admits all. It is called concurrently.
	Admits func(did.DID) error
	// Refused is called for each inbound connection that is closed because of Admits; nil ignores them. It must not block.
	Refused func(did.DID)
	// Streams returns an error for a peer whose streams are reset, except those of [Free]; nil admits all. It may wait.
	Streams func(did.DID) error
	// Loopback allows dials of 127.0.0.1. DialPublic forbids dials of private addresses: those of untrusted peers lead to hosts of
	// other networks.
	Loopback, DialPublic bool
	// NoNoise disables Noise.
	NoNoise bool
	// Relays reports whether this node relays for another one, and the relation of that one: members and partners get more, and are preferred
	// as relays of this node. Nil: it relays for nobody.
	Relays func(did.DID) (bool, did.Relation)
	// Settle waits a moment until it is known who a connected node is; nil does not wait.
	Settle func(context.Context, did.DID)
	// FindRelays yields relays besides the connected ones; nil: none.
	FindRelays func(ctx context.Context) iter.Seq[peer.AddrInfo]
	NAT        NAT
	Limits     Limits
	// Transport returns the only transport of the host, for simulations; nil: QUIC, TCP and WebSockets.
	Transport Transport
	// Metrics registers the metrics of libp2p; nil disables them.
	Metrics prometheus.Registerer
	Log     *slog.Logger // nil discards

	roots    *x509.CertPool                             // of tests: the certificates that WebSockets with TLS are dialed with; nil: those of the system
	resolver network.MultiaddrDNSResolver               // of tests; nil: that of the system
	mapper   func(network.Network) basichost.NATManager // of tests; nil: newPortMapper
	accept   time.Duration                              // of tests; 0: acceptFor
}

// A Transport returns a transport, given what limits its connections.
type Transport func(network.ResourceManager) (transport.Transport, error)

// Web configures HTTP and WebSockets on the TCP ports of the host.
type Web struct {
	// Listen is the address, host:port, of the HTTP server of the node. [Host.HTTP] has the connections of the ports that have this address
	// ([SharesPort]). Empty: none.
	Listen string
	// Certificate returns the configuration of TLS for HTTP on these ports, and for WebSockets; nil: HTTP is plain. It is called once.
	Certificate func(*slog.Logger) (*tls.Config, error)
}

// NAT configures how a node behind a NAT is reached. The zero value is for directly reachable nodes.
type NAT struct {
	// Relay enables connections through relays, hole punching, and the reservations of this node at relays.
	Relay bool
	// Serve lets this node relay for others, as far as Options.Relays permits, while they can reach it: a public address of it is proven to work, or
	// PrivateRelays is set.
	Serve bool
	// PrivateRelays permits relays with private addresses, for networks without public ones.
	PrivateRelays bool
	// AutoNAT requests reachability checks of the addresses of the node from peers, and answers theirs.
	AutoNAT bool
	// PortMap requests a port from the router by UPnP or NAT-PMP.
	PortMap bool
}

// A Host is a libp2p host with its parts. It is assembled here because the constructors of libp2p link browser transports that a
// node does not use (8 MB of program, 8 MB of memory).
type Host struct {
	*basichost.BasicHost
	o       Options
	listen  []ma.Multiaddr
	rm      network.ResourceManager
	gater   *gater
	swarm   *swarm.Swarm
	ports   *ports
	refused *refusals
	reach   *reachability
	punches punchLog
	dials   sync.WaitGroup                     // beside punches
	service atomic.Pointer[relay.Service]      // nil: this node relays for nobody
	places  atomic.Pointer[relay.Reservations] // nil without NAT.Relay; set once, but the host reads its addresses before
	closers []func() error                     // in the order of opening
}

// New creates a host that does not listen yet, so that handlers can be set before the first peer connects. The caller starts and
// closes it. An invalid address is an [*interact.Error] of code ConfigInvalid.
func New(o Options) (_ *Host, err error) {
	o.Version, o.Limits = cmp.Or(o.Version, "dev"), o.Limits.WithDefaults()
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	h := &Host{o: o, gater: &gater{self: peer.ID(o.Key.Peer()), admits: o.Admits, refused: o.Refused, loopback: o.Loopback, public: o.DialPublic}}
	if h.listen, err = multiaddrs("listen.p2p", o.Listen); err != nil {
		return nil, err
	}
	if h.gater.filter, err = prefixes("mesh.filter", o.Filter); err != nil {
		return nil, err
	}
	if h.ports, err = newPorts(&o, h.listen); err != nil {
		return nil, err
	}
	announcer, err := newAnnouncer(&o, h.listen, h.gater.filter, h.ports.tls)
	if err != nil {
		return nil, err
	}
	priv, err := crypto.UnmarshalPrivateKey(o.Key.Libp2p())
	if err != nil {
		return nil, fmt.Errorf("read the node key: %w", err)
	}
	if err := h.open(priv, announcer.announce); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	h.reach.refresh()
	return h, nil
}

// Start listens and accepts peers. It is called once; a nil host does nothing. A busy port is an [*interact.Error] of code PortBusy if
// Options.ListenExplicit; an address that cannot be listened on is one of code ConfigInvalid.
func (h *Host) Start() error {
	if h == nil {
		return nil
	}
	if err := h.listenAll(); err != nil {
		return err
	}
	h.BasicHost.Start() // after the last address, so that the host has all of them
	h.reach.refresh()
	return nil
}

// Run follows the reachability of this node and keeps its reservations at relays, until ctx ends. It is called after Start.
func (h *Host) Run(ctx context.Context) error {
	if h == nil {
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return h.reach.run(ctx) })
	if places := h.places.Load(); places != nil {
		g.Go(func() error { return places.Run(ctx) })
	}
	return g.Wait()
}

// CanServe reports whether this node relays for others. It changes before the event of the reachability is emitted.
func (h *Host) CanServe() bool { return h != nil && h.service.Load() != nil }

// Relays returns the reservations of this node at relays, and its service for others; nil if it has none.
func (h *Host) Relays() (*relay.Reservations, *relay.Service) {
	return h.places.Load(), h.service.Load()
}

// StandingChanged lets a relay that refused this node be tried again at once, after its standing or that of this node has changed.
func (h *Host) StandingChanged(node did.DID) {
	if h == nil {
		return
	}
	h.places.Load().Retry(peerIDOf(node))
}

// Connect implements the host interface of libp2p. If the peer closes the connection at once, Connect retries twice, because the
// reason can be lost.
func (h *Host) Connect(ctx context.Context, p peer.AddrInfo) (err error) {
	for range 3 {
		err = h.dialed(p.ID, h.BasicHost.Connect(ctx, p))
		if err != nil || h.Network().Connectedness(p.ID) != network.NotConnected || h.Refused(p.ID) {
			break
		}
	}
	return err
}

// NewStream implements the host interface of libp2p.
func (h *Host) NewStream(ctx context.Context, id peer.ID, protocols ...protocol.ID) (network.Stream, error) {
	s, err := h.BasicHost.NewStream(ctx, id, protocols...)
	return s, h.dialed(id, err)
}

// dialed returns the error of a dial, after it has noted what the error shows about the peer.
func (h *Host) dialed(id peer.ID, err error) error {
	return h.gater.dialed(id, h.refused.received(id, err), time.Now())
}

// Network implements the host interface of libp2p.
func (h *Host) Network() network.Network { return h.swarm }

// Ban rejects new connections of a peer, in both directions, for a time. Open ones stay.
func (h *Host) Ban(id peer.ID, how time.Duration) { h.gater.ban(id, how, time.Now()) }

// Refused reports whether the policy of a peer rejected this node in the last minute, including the last dial.
func (h *Host) Refused(id peer.ID) bool {
	h.refused.catchUp(id, h.Network())
	return h.refused.has(id)
}

// RefusedBefore is Refused without waiting for pending events, for checks of many peers.
func (h *Host) RefusedBefore(id peer.ID) bool { return h.refused.has(id) }

// Close closes the host, then its parts, in reverse.
func (h *Host) Close() error {
	var errs []error
	h.gater.closing.Store(true)
	if h.BasicHost != nil { // New succeeded
		if h.reach.mapper != nil { // first: the library forgets a mapping without a request if its listener ends at the same time
			errs = append(errs, h.reach.mapper.Close())
		}
		// The network first: the host would otherwise wait 5 s for a push to a dead peer.
		errs = append(errs, h.Network().Close(), h.BasicHost.Close())
	}
	for i := len(h.closers) - 1; i >= 0; i-- {
		errs = append(errs, h.closers[i]())
	}
	return errors.Join(errs...)
}
