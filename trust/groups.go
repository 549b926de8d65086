package trust

import (
	"context"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/trust/exchange"
)

// A Carried answers requests of nodes that this package carries for another one: at most 64 KiB, with at most 512 KiB. An error goes to the node.
type Carried = func(ctx context.Context, from *did.Principal, body []byte) ([]byte, error)

// Groups are what package group does with requests about groups, which this package carries.
type Groups struct {
	Serve Carried
	// Of returns the groups of a node, and those of the agents that are reached through it. It must not call the Trust, nor block.
	Of func(node did.DID) ([]did.Membership, []did.AgentMembership)
	// Met is called when a node is connected and has said who it is. It must not block.
	Met func(node did.DID)
}

// ServeGroups carries requests about groups. It is called once, before peers connect.
func (t *Trust) ServeGroups(g Groups) { t.groups.Store(&g) }

// ServeDelegations carries requests about delegations. It is called once, before peers connect.
func (t *Trust) ServeDelegations(serve Carried) { t.delegations.Store(&serve) }

// carried answers a request of a node that is not barred.
func (t *Trust) carried(ctx context.Context, id did.DID, q *exchange.Request, serve Carried) (*exchange.Response, error) {
	t.Wait(ctx, id)
	p := t.Principal(id)
	if p.Barred != "" {
		return nil, refused
	}
	body, err := serve(ctx, p, q.Body)
	if err != nil {
		return nil, err
	}
	return &exchange.Response{Body: body}, nil
}

// AskGroup sends a request about a group to a connected node, or to one at addresses, and returns its response.
func (t *Trust) AskGroup(ctx context.Context, node did.DID, body []byte, addrs ...string) ([]byte, error) {
	return t.carry(ctx, exchange.OpGroup, node, body, addrs...)
}

// AskDelegation sends a request about a delegation to a connected node, and returns its response.
func (t *Trust) AskDelegation(ctx context.Context, node did.DID, body []byte) ([]byte, error) {
	return t.carry(ctx, exchange.OpDelegate, node, body)
}

func (t *Trust) carry(ctx context.Context, op exchange.Op, node did.DID, body []byte, addrs ...string) ([]byte, error) {
	r, err := t.net.Ask(ctx, node, &exchange.Request{Op: op, Body: body}, addrs...)
	if err != nil {
		return nil, err
	}
	return r.Body, nil
}

// GroupsChanged evaluates nodes whose groups have changed.
func (t *Trust) GroupsChanged(nodes []did.DID) {
	t.mu.Lock()
	for _, id := range nodes {
		t.touched[id] = true
	}
	t.mu.Unlock()
	t.update()
}

// addGroupsLocked adds the groups of a node that is not barred. The membership of one that joined as a member of an organization ends with that.
func (t *Trust) addGroupsLocked(p *did.Principal) {
	g := t.groups.Load()
	if g == nil || p.Barred != "" {
		return
	}
	counts := func(m did.Membership) bool {
		return m.Org == "" || m.Org == p.Org || t.authorities[webvh.SCID(m.Org)] == nil
	}
	own, agents := g.Of(p.Node)
	for _, m := range own {
		if counts(m) {
			p.Groups = append(p.Groups, m)
		}
	}
	for _, m := range agents {
		if counts(m.Membership) {
			p.Agents = append(p.Agents, m)
		}
	}
}

// met reports a node that is connected. One that is in a group only, and no member or partner, exchanges no hello with what is new: this node asks
// for the restricted descriptions that it may have missed.
func (t *Trust) met(node did.DID) {
	g := t.groups.Load()
	if g == nil {
		return
	}
	g.Met(node)
	if p := t.Principal(node); p.Relation < did.Partner && p.Grouped() {
		t.learn(node, []exchange.Known{{Kind: exchange.KindThings}})
	}
}
