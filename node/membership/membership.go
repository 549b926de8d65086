// Package membership connects groups and delegations, which nodes exchange requests about, with the package trust, which carries these requests
// and knows the nodes.
package membership

import (
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/group"
	"github.com/lmosd/lmosd/policy/delegation"
	"github.com/lmosd/lmosd/trust"
)

// Groups opens the groups of a node. It fills in the options that t has.
func Groups(t *trust.Trust, o group.Options) (*group.Groups, error) {
	o.Ask, o.Principal, o.Organization, o.OnChange = t.AskGroup, t.Principal, t.Named, t.GroupsChanged
	o.Credentials = func(id did.DID) (all []group.Credential) {
		if p := t.Principal(id); p.Org != "" && p.Pending == "" && p.Barred == "" {
			all = append(all, group.Credential{Issuer: p.Org, Roles: p.Roles, Org: true})
		}
		for _, c := range t.CredentialsOf(id) {
			all = append(all, group.Credential{Issuer: c.Issuer, Roles: c.Roles, Hash: c.Multihash(), Until: c.Until})
		}
		return all
	}
	g, err := group.Open(o)
	if err == nil {
		t.ServeGroups(trust.Groups{Serve: g.Serve, Of: g.Of, Met: g.Met})
	}
	return g, err
}

// Delegations opens the delegations of a node. It fills in the options that t has.
func Delegations(t *trust.Trust, o delegation.Options) (*delegation.Delegations, error) {
	o.Ask = t.AskDelegation
	d, err := delegation.Open(o)
	if err == nil {
		t.ServeDelegations(d.Serve)
	}
	return d, err
}
