package node

import (
	"context"
	"fmt"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/td"
)

// A network is the libp2p host of a node with its peers.
type network struct {
	host.Host           // checks the peers of streams
	own       *p2p.Host // nil if Options.Host is another
	self      did.DID
	peers     *p2p.Peers
	bootstrap *p2p.Bootstrap
}

// openNetwork opens the host, which does not listen yet: handlers precede the first peer. A given host listens already.
func (n *Node) openNetwork() (_ *network, err error) {
	o := &n.opts
	w, base := &network{self: n.DID()}, o.Host
	if base == nil {
		w.own, err = p2p.New(p2p.Options{Key: n.key, Version: o.Version, Network: o.Network,
			Listen: o.Listen, ListenExplicit: o.ListenExplicit, Announce: o.Announce, NoAnnounce: o.NoAnnounce, PublicOnly: o.PublicOnly,
			Admits: n.policy.Connects, Loopback: o.Loopback, DialPublic: o.Internet,
			NoNoise: o.NoNoise, NAT: o.NAT, Limits: o.Limits, Metrics: n.metrics.Registerer(), Log: o.Log})
		if err != nil {
			return nil, err
		}
		n.life.onClose(w.own.Close)
		base = w.own
	}
	w.Host = p2p.Gate(base, n.policy.Connects)
	if w.ID() != peer.ID(n.key.Peer()) {
		return nil, fmt.Errorf("the host is %s and the key that of %s", w.ID(), w.self)
	}
	if w.bootstrap, err = p2p.NewBootstrap(base, o.Bootstrap, n.stores.peers(), o.Log); err != nil {
		return nil, err
	}
	n.life.onRun(w.bootstrap.Run)
	if o.MDNS {
		n.life.onRun(func(ctx context.Context) error { return w.bootstrap.RunMDNS(ctx, o.Network) })
	}
	w.peers = p2p.NewPeers(p2p.PeersOptions{Host: base, Network: o.Network, Admits: n.policy.Connects, Trust: n.policy.Trust, Ranges: o.Ranges,
		Bootstrap: w.bootstrap})
	return w, nil
}

// records returns the addresses of this node as its records contain them.
func (w *network) records() []td.Host {
	return []td.Host{{Node: w.self, Addrs: p2p.RecordAddrs(w.Addrs())}}
}
