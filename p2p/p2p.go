// Package p2p creates the libp2p host of a node: transports, connection gating, resource limits and advertised addresses. The
// protocols are others' business.
package p2p

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	basichost "github.com/libp2p/go-libp2p/p2p/host/basic"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
)

// Options of a host. All but Key may be left out; the zero value listens nowhere.
type Options struct {
	// Key is the host's identity.
	Key *keystore.Key
	// Version is told to peers; empty means "dev".
	Version string
	// Network is part of the names of the protocols whose streams are limited.
	Network string
	// Listen are multiaddrs. If ListenExplicit, a busy port is an error; else a free one is taken.
	Listen         []string
	ListenExplicit bool
	// Announce replaces the addresses that peers learn; NoAnnounce drops those with a prefix, PublicOnly private ones.
	Announce, NoAnnounce []string
	PublicOnly           bool
	// Admits returns an error for a peer that may not be connected; nil admits all. It is called by many at once.
	Admits func(did.DID) error
	// Loopback lets the host dial 127.0.0.1. DialPublic keeps it from dialling private addresses: in a network of strangers they
	// lead to somebody else's neighbours.
	Loopback, DialPublic bool
	// NoNoise leaves out Noise.
	NoNoise bool
	NAT     NAT
	Limits  Limits
	// Metrics takes what the library counts; nil counts nothing.
	Metrics prometheus.Registerer
	Log     *slog.Logger // nil discards
}

// NAT says how a node behind an address translator is reached. The zero value is for machines that reach each other.
type NAT struct {
	// Relay lets the node be reached through relays, and meet its peers directly by hole punching.
	Relay bool
	// AutoNAT asks peers which of the node's addresses they reach, and answers the same question.
	AutoNAT bool
	// PortMap asks the router for a port by UPnP or NAT-PMP.
	PortMap bool
}

// A Host is a libp2p host and what must be closed with it. It is put together here from its parts: the library's own
// constructor links transports for browsers that a node does not listen on (8 MB of program, 8 MB of memory).
type Host struct {
	*basichost.BasicHost
	o       Options
	listen  []ma.Multiaddr
	rm      network.ResourceManager
	gater   *gater
	swarm   *swarm.Swarm
	refused *refusals
	closers []func() error // in the order of opening
}

// New makes a host that does not listen yet: handlers come before the first peer. The caller starts and closes it. An address
// that is none is an [*interact.Error] of code ConfigInvalid.
func New(o Options) (_ *Host, err error) {
	o.Version, o.Limits = cmp.Or(o.Version, "dev"), o.Limits.WithDefaults()
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	h := &Host{o: o, gater: &gater{admits: o.Admits, loopback: o.Loopback, public: o.DialPublic}}
	if h.listen, err = multiaddrs("listen.p2p", o.Listen); err != nil {
		return nil, err
	}
	announce, err := announced(&o)
	if err != nil {
		return nil, err
	}
	priv, err := crypto.UnmarshalPrivateKey(o.Key.Libp2p())
	if err != nil {
		return nil, fmt.Errorf("read the node key: %w", err)
	}
	if err := h.open(priv, announce); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// Start listens and lets peers come. It is called once. A port that is busy is an [*interact.Error] of code PortBusy if
// Options.ListenExplicit; an address that cannot be listened on is one of code ConfigInvalid.
func (h *Host) Start() error {
	if err := h.listenAll(); err != nil {
		return err
	}
	h.BasicHost.Start() // after the last address, or the host would not know them at once
	return nil
}

// Connect implements the host interface of libp2p. A connection that the peer closed at once is tried again twice: its reason can be lost.
func (h *Host) Connect(ctx context.Context, p peer.AddrInfo) (err error) {
	for range 3 {
		err = h.refused.received(p.ID, h.BasicHost.Connect(ctx, p))
		if err != nil || h.Network().Connectedness(p.ID) != network.NotConnected || h.Refused(p.ID) {
			break
		}
	}
	return err
}

// NewStream implements the host interface of libp2p.
func (h *Host) NewStream(ctx context.Context, id peer.ID, protocols ...protocol.ID) (network.Stream, error) {
	s, err := h.BasicHost.NewStream(ctx, id, protocols...)
	return s, h.refused.received(id, err)
}

// Ban refuses connections of a peer, in both directions, for as long as that. Those that are open stay.
func (h *Host) Ban(id peer.ID, how time.Duration) { h.gater.ban(id, how, time.Now()) }

// Refused reports whether the policy of a peer refused this node in the last minute, the last attempt to connect included.
func (h *Host) Refused(id peer.ID) bool {
	h.refused.catchUp(id, h.Network())
	return h.refused.has(id)
}

// RefusedBefore is Refused without what has just happened, for who asks of many.
func (h *Host) RefusedBefore(id peer.ID) bool { return h.refused.has(id) }

// Close closes the host, then its parts, in reverse.
func (h *Host) Close() error {
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
