package trust

import (
	"context"
	"slices"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/trust/exchange"
)

// ServeLinks carries requests about the connections of this node (package node/topology).
func (t *Trust) ServeLinks(serve Carried) { t.links.Store(&serve) }

// AskLinks asks a connected node for its connections, and returns its response, at most [exchange.MaxLinks] bytes.
func (t *Trust) AskLinks(ctx context.Context, node did.DID) ([]byte, error) {
	return t.carry(ctx, exchange.OpLinks, node, nil)
}

// OwnMembers returns the verified members of the own organization that this node knows, sorted and without itself: those that are connected, and
// those whose credential it has seen. A nil Trust knows none.
func (t *Trust) OwnMembers() (all []did.DID) {
	if t == nil {
		return nil
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	for id, n := range t.nodes {
		if id != t.self && n.principal.Relation == did.Own && n.principal.Barred == "" {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	return all
}

// OrganizationOf returns the name of the verified organization of a node as this node calls it, and whether it is the own one; "" for none.
func (t *Trust) OrganizationOf(node did.DID) (name string, own bool) {
	a := t.affiliationOf(node)
	if a == nil {
		return "", false
	}
	return a.Name, a.State == directory.OwnOrganization
}
