package node

import (
	"context"
	"net"
	"net/url"
	"slices"
	"strconv"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/web"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/discovery/dnssd"
	"github.com/lmosd/lmosd/discovery/explore"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/servient"
	"github.com/lmosd/lmosd/internal/netguard"
	"github.com/lmosd/lmosd/td"
)

// An introducer tells the local network of this node, and this node of what others introduce there: an mdns.Service.
type introducer interface {
	explore.Source
	Host() string
	Announce(port uint16, https bool)
	Close() error
}

// openLocal opens DNS-SD, and what makes things of introductions. A host without multicast is no reason not to start.
func (n *Node) openLocal() (err error) {
	o := explore.Options{Self: n.DID(), Verifier: n.verifier, Network: n.opts.Network, Known: n.knows, Publishes: n.offered.Offers, Log: n.log,
		OnChange: n.notifyDiscovered, Pause: n.opts.introducerPause}
	o.Configured, o.Resolver, o.Public = n.opts.Introductions, web.New(web.Options{}), netguard.Public().Check
	for _, where := range o.Configured {
		if err := explore.CheckConfigured(where); err != nil {
			return &interact.Error{Code: interact.ConfigInvalid, Title: "mesh.introductions names what cannot be read", Err: err,
				Hint: "for example did:web:things.example, or https://things.example/.well-known/wot"}
		}
	}
	if n.opts.Direct != servient.DirectOff {
		o.Connect = func(dial explore.Dialer, secure bool) explore.Connection {
			return n.servient.Connect(servient.Dialer(dial), secure)
		}
	}
	if n.local = n.openDNSSD(); n.local != nil {
		o.Source = n.local
	}
	n.discoveries, err = explore.New(o)
	return err
}

// openDNSSD returns nil where there is none.
func (n *Node) openDNSSD() introducer {
	open := n.opts.introducer
	if open == nil {
		if !n.opts.MDNS {
			return nil
		}
		open = func(o dnssd.Options) (introducer, error) { return dnssd.New(o) }
	}
	local, err := open(dnssd.Options{Name: n.opts.Name, Network: n.opts.Network, Log: n.log})
	if err != nil {
		n.log.Warn("nothing is introduced on the local network", "err", err)
		return nil
	}
	n.onClose(local.Close)
	return local
}

// runLocal announces the directory if others may read it, and explores what they introduce.
func (n *Node) runLocal(ctx context.Context) error {
	if n.local != nil {
		n.local.Announce(n.gateway.Introducible(), false)
	}
	return n.discoveries.Run(ctx)
}

// hostNames are the names of the API: on the local network, that of the announcement, too.
func (n *Node) hostNames(h *HTTP) []string {
	if n.local == nil || !h.OpenDirectory {
		return h.Hosts
	}
	return append(slices.Clone(h.Hosts), n.local.Host())
}

// localURL returns the address of the API for the TD of the node. If the API is announced on the local network, an address that only this host
// can use is replaced.
func (n *Node) localURL(api string) string {
	port := n.gateway.Introducible()
	if u, err := url.Parse(api); n.local == nil || port == 0 || err != nil || !onLoopback(u.Host) {
		return api
	}
	return "http://" + net.JoinHostPort(n.local.Host(), strconv.Itoa(int(port)))
}

// knows reports whether a thing that is found on the local network comes by the mesh: a thing of this node, or a node or thing of
// the mesh whose id carries its key. Another id is anybody's to claim.
func (n *Node) knows(id string) bool {
	owner := did.DID(td.ParseRef(id).Owner)
	return n.offered.Offers(id) || owner == n.DID() || owner != "" && (n.dir.Hosts(owner) || len(n.Lookup(id)) > 0)
}

// notifyDiscovered notifies watchers of a change of a discovered Thing.
func (n *Node) notifyDiscovered(kind directory.ChangeKind, thing, was *td.Description) {
	why := directory.Discovered
	if kind == directory.Removed {
		why = directory.Vanished
	}
	n.dir.Notify(kind, why, thing, was)
}

// A finder locates what this node's consumers ask for.
type finder struct{ node *Node }

// Locate implements [interact.Finder].
func (f finder) Locate(ctx context.Context, ref string) (interact.Thing, error) {
	n := f.node
	h, err := n.named(ctx, ref)
	switch {
	case err != nil:
		return nil, n.WithClock(err)
	case h != nil:
		return h.Agent, nil
	}
	t, err := n.dir.Locate(ctx, ref)
	return t, n.WithClock(err)
}
