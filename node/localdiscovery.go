package node

import (
	"context"

	"github.com/lmosd/lmosd/did/web"
	"github.com/lmosd/lmosd/discovery/dnssd"
	"github.com/lmosd/lmosd/discovery/explore"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/servient"
	"github.com/lmosd/lmosd/internal/netguard"
)

// An introducer announces this node on the local network and yields the introductions of others: a dnssd.Service.
type introducer interface {
	explore.Source
	Host() string
	Announce(port uint16, https bool)
	Close() error
}

// openLocal opens DNS-SD and the exploration of introductions, and the view that consists of the directory and the discovered Things.
func (n *Node) openLocal() error {
	o := explore.Options{Self: n.DID(), Verifier: n.mesh.verifier, Network: n.opts.Network, Directory: n.mesh.directory, Publishes: n.mesh.index.Offers,
		Configured: n.opts.Introductions, Resolver: web.New(n.opts.Sites), Public: netguard.Public().Check, Pause: n.opts.introducerPause,
		Log: n.opts.Log}
	for _, where := range o.Configured {
		if err := explore.CheckConfigured(where); err != nil {
			return &interact.Error{Code: interact.ConfigInvalid, Title: "invalid entry in mesh.introductions", Err: err,
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
	found, err := explore.New(o)
	if err != nil {
		return err
	}
	n.view = explore.View{Directory: n.mesh.directory, Discoveries: found, Self: n.DID(), Explain: n.reporter.WithClock}
	n.life.onRun(func(ctx context.Context) error {
		if n.local != nil { // announced if other hosts may read the directory
			n.local.Announce(n.gateway.AnnouncedPort(), false)
		}
		return found.Run(ctx)
	})
	return nil
}

// openDNSSD returns nil if DNS-SD is off. A host without multicast only logs that.
func (n *Node) openDNSSD() introducer {
	open := n.opts.introducer
	if open == nil {
		if !n.opts.MDNS {
			return nil
		}
		open = func(o dnssd.Options) (introducer, error) { return dnssd.New(o) }
	}
	local, err := open(dnssd.Options{Name: n.opts.Name, Network: n.opts.Network, Log: n.opts.Log})
	if err != nil {
		n.opts.Log.Warn("introductions on the local network not started", "err", err)
		return nil
	}
	n.life.onClose(local.Close)
	return local
}
