package p2p

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did"
	didweb "github.com/lmosd/lmosd/did/web"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/weblocation"
)

// Times of a node without peers, which looks at the documents of its organization and of partners.
const (
	aloneFirst = 30 * time.Second // after the start, and after the last peer has gone; the pauses double
	aloneMax   = 10 * time.Minute
)

// documentsOf returns a resolver of the documents of organizations.
func documentsOf(o weblocation.Options) did.Resolver {
	return did.Resolvers(map[string]did.Resolver{"web": didweb.New(o), "webvh": webvh.New(o)})
}

// locate returns the URL of the document of a did:web, or of the log of a did:webvh.
func locate(id did.DID) (string, error) {
	if id.Method() == "webvh" {
		return webvh.URL(id)
	}
	return didweb.URL(id)
}

// inDocument fetches the document of an organization, and returns the nodes that it lists.
func inDocument(ctx context.Context, r did.Resolver, id did.DID) ([]peer.AddrInfo, error) {
	doc, err := r.Resolve(ctx, id)
	if err != nil {
		return nil, err
	}
	peers := meshPeers(doc)
	if len(peers) == 0 {
		return nil, fmt.Errorf("the document has no service %s with the address of a node with its id", did.MeshService)
	}
	return peers, nil
}

// meshPeers returns the nodes in the services of type [did.MeshService] of a document, at no more than 32 addresses. Endpoints that are
// not multiaddrs with /p2p are ignored.
func meshPeers(doc *did.Document) []peer.AddrInfo {
	texts := doc.Endpoints(did.MeshService)
	var all []ma.Multiaddr
	for _, text := range texts[:min(len(texts), maxNameAddrs)] {
		if a, err := ma.NewMultiaddr(text); err == nil {
			all = append(all, a)
		}
	}
	return peersAt(all)
}

// runOrganizations looks for nodes in the documents of organizations while none of the bootstrap peers is reached, until ctx ends. A node without
// any, as the first one of a mesh, fetches nothing.
func (b *Bootstrap) runOrganizations(ctx context.Context) {
	pauses := backoff.Backoff{First: b.alone, Max: aloneMax}
	for b.organizations != nil && backoff.Sleep(ctx, pauses.Next()) == nil {
		switch {
		case len(b.host.Network().Peers()) > 0:
			pauses.Reset()
		case len(b.names) > 0 || len(b.Peers()) > 0:
			b.askOrganizations(ctx)
		}
	}
}

// askOrganizations adds the nodes that the stored documents list, and those of the documents that the domains serve now.
func (b *Bootstrap) askOrganizations(ctx context.Context) {
	for _, stored := range b.organizations() {
		peers := meshPeers(stored)
		if isServed(stored.ID) {
			served, err := inDocument(ctx, b.guarded, stored.ID)
			if err != nil && !errors.Is(err, context.Canceled) {
				b.log.Debug("document of an organization not fetched", "name", string(stored.ID), "err", err)
			}
			peers = append(served, peers...)
		}
		for _, p := range peers {
			if p.ID != b.host.ID() {
				b.HandlePeerFound(p)
			}
		}
	}
}

// isServed reports whether a web server may have the document of id. The domain internal is for private use: organizations that a node makes by
// itself are below it.
func isServed(id did.DID) bool {
	address, err := locate(id)
	if err != nil {
		return false
	}
	u, err := url.Parse(address)
	return err == nil && !strings.HasSuffix(strings.ToLower(u.Hostname()), ".internal")
}
