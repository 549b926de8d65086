package node

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/audit"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/group"
	"github.com/lmosd/lmosd/interact/stream"
	"github.com/lmosd/lmosd/node/datadir"
	"github.com/lmosd/lmosd/node/membership"
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/policy/delegation"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/trust"
)

// A network is the libp2p host of a node with its peers.
type network struct {
	host.Host           // checks the peers of streams
	own       *p2p.Host // nil if Options.Host is another
	self      did.DID
	peers     *p2p.Peers
	trust     *trust.Trust            // nil without Options.Dir
	groups    *group.Groups           // nil without Options.Dir
	lent      *delegation.Delegations // nil without Options.Dir
	bootstrap *p2p.Bootstrap
}

// openNetwork opens the host, which does not listen yet: handlers precede the first peer. A given host listens already.
func (n *Node) openNetwork() (err error) {
	o, w, base := &n.opts, n.network, n.opts.Host
	streams := func(id did.DID) error {
		if n.policy.Connects(id) != nil {
			w.trust.Wait(n.life.ctx, id)
		}
		return n.recordDenied(id, n.policy.Connects(id))
	}
	if base == nil {
		admits := n.policy.Connects
		if o.Dir != "" { // others show credentials after they have connected
			admits = n.policy.Denies
		}
		w.own, err = p2p.New(p2p.Options{Key: n.key, Version: o.Version, Network: o.Network,
			Listen: o.Listen, ListenExplicit: o.ListenExplicit, Announce: o.Announce, NoAnnounce: o.NoAnnounce, PublicOnly: o.PublicOnly, Filter: o.Filter, Web: o.Web,
			Admits: admits, Streams: streams, Refused: func(id did.DID) { _ = n.recordDenied(id, n.policy.Connects(id)) },
			Relays: n.policy.Relays, Settle: func(ctx context.Context, id did.DID) { w.trust.Wait(ctx, id) }, FindRelays: func(ctx context.Context) iter.Seq[peer.AddrInfo] { return n.mesh.dht.Relays(ctx) },
			Loopback: o.Loopback, DialPublic: o.Internet, NoNoise: o.NoNoise, NAT: o.NAT, Transport: o.Transport, Limits: o.Limits, Metrics: n.metrics.Registerer(), Log: o.Log})
		if err != nil {
			return err
		}
		n.life.onClose(w.own.Close)
		n.life.onRun(w.own.Run)
		base = w.own
	}
	w.Host = p2p.Gate(base, streams)
	if w.ID() != peer.ID(n.key.Peer()) {
		return fmt.Errorf("the host is %s and the key that of %s", w.ID(), w.self)
	}
	if w.bootstrap, err = p2p.NewBootstrap(p2p.BootstrapOptions{Host: base, Configured: o.Bootstrap, Organizations: w.trust.Documents, Alone: o.alone,
		Store: n.stores.Peers(), Log: o.Log}); err != nil {
		return err
	}
	n.life.onRun(w.bootstrap.Run)
	if o.MDNS {
		n.life.onRun(func(ctx context.Context) error { return w.bootstrap.RunMDNS(ctx, o.Network) })
	}
	w.peers = p2p.NewPeers(p2p.PeersOptions{Host: base, Network: o.Network, Admits: n.policy.Connects, Trust: n.policy.Trust, Ranges: o.Ranges,
		Bootstrap: w.bootstrap})
	if w.trust != nil {
		w.trust.Start(base, func() []string { return p2p.FullAddrs(base) })
		n.life.onClose(w.trust.Close)
		n.life.onRun(w.trust.Run)
		return n.openGroups()
	}
	return nil
}

// openGroups opens the groups and the delegations of a node with a data directory.
func (n *Node) openGroups() (err error) {
	w, names := n.network, stream.NewPseudonyms(n.key)
	connect := func(ctx context.Context, id did.DID) error { return n.mesh.monitor.Dial(ctx, id) }
	record := func(text string) { n.stores.Audit.Change(audit.ChangeTrust, text) }
	if w.groups, err = membership.Groups(w.trust, group.Options{Dir: n.opts.Dir, Signer: n.key, Network: n.opts.Network, Addrs: n.Addrs, Sender: names.Name,
		Connect: connect, OnNames: n.namesChanged, Record: record, Log: n.opts.Log}); err != nil {
		return datadir.Error(n.opts.Dir, err)
	}
	n.life.onClose(w.groups.Close)
	n.life.onRun(w.groups.Run)
	if w.lent, err = membership.Delegations(w.trust, delegation.Options{Dir: n.opts.Dir, Signer: n.key, As: names.Of, May: n.policy.MayDelegate,
		Find: func(ctx context.Context, ref string) (*td.Description, error) { return n.view.Get(ctx, ref) },
		Own:  func(thing string) *td.Description { return n.mesh.index.Description(thing) }, Connect: connect,
		OnEnd: n.policy.EndDelegation, Record: record, Log: n.opts.Log}); err != nil {
		return datadir.Error(n.opts.Dir, err)
	}
	n.life.onRun(w.lent.Run)
	n.policy.UseDelegations(w.lent)
	return nil
}

// openTrust opens the organization and the partners of a node with a data directory.
func (n *Node) openTrust() (*trust.Trust, error) {
	if n.opts.Dir == "" {
		return nil, nil
	}
	return trust.New(trust.Options{Dir: n.opts.Dir, Self: n.DID(), Network: n.opts.Network, Log: n.opts.Log, Web: n.opts.Sites,
		Rotation: n.stores.Rotation, Checkpoints: n.stores.Audit, OnChange: n.standingChanged,
		Joins: func() bool {
			_, connect, _ := n.policy.Settings()
			return n.opts.MDNS && cmp.Or(connect, access.ConnectAnyone) == access.ConnectAnyone
		},
		Record:  func(text string) { n.stores.Audit.Change(audit.ChangeTrust, text) },
		OnNames: n.namesChanged,
		OnHello: func(id did.DID) {
			if n.policy.Rejects(id) {
				_ = n.recordDenied(id, n.policy.Connects(id)) // the peer sees the end of the connection
				n.network.peers.Disconnect(id)
			}
		}})
}

// standingChanged ends what a node may not continue, after its standing has changed. A standing that only rises does not end the connection,
// which may carry the reply to an invitation.
func (n *Node) standingChanged(id did.DID, before, after *did.Principal) {
	n.policy.Recheck(id)
	n.network.own.StandingChanged(id)
	n.network.groups.StandingChanged(after)
	denied, lost := n.policy.Denies(id) != nil, after.Lost(before)
	if denied || lost {
		n.servient.CancelOf(id)
	}
	for _, m := range before.Agents {
		if denied || lost || !slices.Contains(after.Agents, m) {
			n.servient.CancelOf(m.Agent)
		}
	}
	if denied || (lost || before.Pending != "") && n.policy.Rejects(id) {
		n.network.peers.Disconnect(id)
	}
}

// namesChanged reads the access rules again after names of organizations or groups have changed.
func (n *Node) namesChanged() {
	if err := n.policy.Load(); err != nil {
		n.opts.Log.Error("access rules rejected, the old ones stay in force", "err", err)
	}
}

// rulesChanged records that other access rules are in force: other nodes may find restricted Things.
func (n *Node) rulesChanged(changes string) {
	n.stores.Audit.Change(audit.ChangePolicy, "access rules in force: "+changes)
	n.network.thingsChanged()
}

// thingsChanged notifies members and partners that other restricted descriptions are theirs to find.
func (w *network) thingsChanged() {
	if w.trust != nil {
		w.trust.ThingsChanged()
	}
}

// records returns the addresses of this node as its records contain them.
func (w *network) records() []td.Host {
	return []td.Host{{Node: w.self, Addrs: p2p.RecordAddrs(w.Addrs())}}
}
