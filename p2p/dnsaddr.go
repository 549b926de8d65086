package p2p

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	ma "github.com/multiformats/go-multiaddr"
	madns "github.com/multiformats/go-multiaddr-dns"

	"github.com/lmosd/lmosd/internal/backoff"
)

// Limits of names in mesh.bootstrap. The TXT records of /dnsaddr may lead to further names.
const (
	maxNameDepth   = 4
	maxNameAddrs   = 32 // of one name
	nameTimeout    = 10 * time.Second
	nameInterval   = 10 * time.Minute // between two lookups of all names
	nameRetry      = 5 * time.Second  // the first pause after a failure; the pauses double
	maxNameRetries = 5 * time.Minute
)

// systemNames resolves names with the resolver of the system.
var systemNames network.MultiaddrDNSResolver = swarm.ResolverFromMaDNS{Resolver: madns.DefaultResolver}

// isName reports whether a is /dnsaddr with a domain and nothing else: the peers are in its TXT records.
func isName(a ma.Multiaddr) bool { return len(a) == 1 && a[0].Protocol().Code == ma.P_DNSADDR }

// resolve returns the peers in the TXT records of _dnsaddr below the domain of name, each "dnsaddr=" and a multiaddr with /p2p. Other records
// are ignored; it is an error if none is left.
func resolve(ctx context.Context, r network.MultiaddrDNSResolver, name ma.Multiaddr) ([]peer.AddrInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, nameTimeout)
	defer cancel()
	all, err := r.ResolveDNSAddr(ctx, "", name, maxNameDepth, maxNameAddrs)
	if err != nil {
		return nil, err
	}
	infos := peersAt(all)
	if len(infos) == 0 {
		return nil, fmt.Errorf("no TXT record of _dnsaddr.%s has the address of a node with its id", name[0].Value())
	}
	return infos, nil
}

// peersAt returns the peers at the addresses that end with the id of a peer.
func peersAt(all []ma.Multiaddr) []peer.AddrInfo {
	valid := slices.DeleteFunc(all, func(a ma.Multiaddr) bool {
		_, err := peer.AddrInfoFromP2pAddr(a)
		return err != nil
	})
	infos, _ := peer.AddrInfosFromP2pAddrs(valid...)
	return infos
}

// A name is an entry of mesh.bootstrap that leads to peers: a /dnsaddr name, or the DID of an organization.
type name struct {
	text   string
	lookup func(context.Context) ([]peer.AddrInfo, error)
}

// runNames resolves the configured names until ctx ends, and has their peers dialed. If a lookup fails, the peers of the last one stay.
func (b *Bootstrap) runNames(ctx context.Context) {
	retries := backoff.Backoff{First: nameRetry, Max: maxNameRetries}
	for len(b.names) > 0 {
		pause := nameInterval
		if retry := retries.Next(); b.resolveNames(ctx, retry) {
			retries.Reset()
		} else {
			pause = retry
		}
		if backoff.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// resolveNames resolves all names once, at the same time. It returns false if one failed: then all are resolved again after retry.
func (b *Bootstrap) resolveNames(ctx context.Context, retry time.Duration) bool {
	var lookups sync.WaitGroup
	var failed atomic.Bool
	for _, n := range b.names {
		lookups.Go(func() {
			peers, err := n.lookup(ctx)
			if err != nil {
				if failed.Store(true); ctx.Err() == nil {
					b.resolvedName(n.text, err, retry)
				}
				return
			}
			b.mu.Lock()
			b.resolved[n.text] = peers
			b.mu.Unlock()
			b.resolvedName(n.text, nil, 0)
			for _, p := range peers {
				select {
				case b.queue <- p:
				default: // package dht dials it later
				}
			}
		})
	}
	lookups.Wait()
	return !failed.Load()
}
