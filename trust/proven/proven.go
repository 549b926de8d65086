// Package proven remembers organizations whose domain served their log, and the nodes that have shown a credential of one. They are neither the
// own organization nor partners: a proof lets their names be shown and searched, and gives no rights.
//
// A proof is as good as the web server of the domain, and ends with the time to live of the log. Sources: did:webvh 1.0; Bitstring Status List 1.0.
package proven

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/boundedmap"
	"github.com/lmosd/lmosd/internal/weblocation"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/trust/authority"
	"github.com/lmosd/lmosd/trust/organization"
)

const (
	maxProof         = 24 * time.Hour // whatever time to live the log states
	maxLists         = 16             // status lists that are fetched
	maxOrganizations = 256
	maxMembers       = 1 << 12 // of one
	maxTried         = 1 << 12
	tryAgain         = 30 * time.Second // until the same owner is asked again
)

// Organizations are the proven organizations of a node. The zero value has none. It is safe for concurrent use.
type Organizations struct {
	mu    sync.Mutex            // owns what follows
	all   map[string]*proof     // by SCID
	tried map[did.DID]time.Time // owners that were asked, with the time
}

// A proof is that of an organization, until a time. Its authority does not change.
type proof struct {
	*authority.Authority
	until   time.Time
	members map[did.DID]*vc.Credential
}

// has reports whether a node is a verified member at this time.
func (p *proof) has(node did.DID, now time.Time) bool {
	c := p.members[node]
	return c != nil && !now.After(c.Until) && !p.Revokes(c, now)
}

// getLocked returns the organization with a SCID, or nil. o.mu is held.
func (o *Organizations) getLocked(scid string, now time.Time) *proof {
	if p := o.all[scid]; p != nil && now.Before(p.until) {
		return p
	}
	return nil
}

// Get returns the organization with a SCID, or nil. The caller must not change it.
func (o *Organizations) Get(scid string, now time.Time) *authority.Authority {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p := o.getLocked(scid, now); p != nil {
		return p.Authority
	}
	return nil
}

// Named returns the organization with a domain, a SCID or a DID, or "".
func (o *Organizations) Named(name string, now time.Time) did.DID {
	scid := webvh.SCID(did.DID(name))
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.all {
		if id := p.DID(); now.Before(p.until) && (name == td.OrganizationDomain(id) || name == p.SCID() || scid == p.SCID()) {
			return id
		}
	}
	return ""
}

// Members returns the verified members of the organization with a SCID.
func (o *Organizations) Members(scid string, now time.Time) (all []did.DID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p := o.getLocked(scid, now); p != nil {
		for id := range p.members {
			if p.has(id, now) {
				all = append(all, id)
			}
		}
	}
	return all
}

// HasMember reports whether a node is a verified member of the organization with a SCID.
func (o *Organizations) HasMember(scid string, node did.DID, now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.getLocked(scid, now)
	return p != nil && p.has(node, now)
}

// Of returns the organization of which a node is a verified member, or "". It leaves out those with a SCID for which except returns true.
func (o *Organizations) Of(node did.DID, now time.Time, except func(scid string) bool) did.DID {
	o.mu.Lock()
	defer o.mu.Unlock()
	for scid, p := range o.all {
		if now.Before(p.until) && p.has(node, now) && !except(scid) {
			return p.DID()
		}
	}
	return ""
}

// Try reports whether an owner may be asked for its credential, and notes that it is asked now: once in 30 seconds.
func (o *Organizations) Try(owner did.DID, now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now.Sub(o.tried[owner]) < tryAgain {
		return false
	}
	boundedmap.Put(&o.tried, owner, now, maxTried, func(at time.Time) bool { return now.Sub(at) >= tryAgain })
	return true
}

// AddMember adds a node that has shown a credential of the organization with a SCID. The error says why it proves nothing. An organization whose
// proof has ended since gets no members.
func (o *Organizations) AddMember(ctx context.Context, scid string, node did.DID, credential []byte, now time.Time) error {
	a := o.Get(scid, now)
	if a == nil {
		return nil
	}
	c, err := vc.Verify(ctx, credential, vc.Check{Resolver: a, Now: now})
	if err != nil {
		return err
	}
	if c.Subject != node || c.Type != vc.Node || a.List(c.Method) == nil || c.Status.List != a.List(c.Method).ID || a.Revokes(c, now) {
		return interact.Errorf(interact.Forbidden, "", "the credential does not prove that %s is a member", node.Short())
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if p := o.getLocked(scid, now); p != nil && p.Authority == a {
		boundedmap.Put(&p.members, node, c, maxMembers, func(c *vc.Credential) bool { return now.After(c.Until) })
	}
	return nil
}

// Remove ends the proofs of a location, as the DID of an organization has it.
func (o *Organizations) Remove(location string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.removeLocked(location)
}

func (o *Organizations) removeLocked(location string) {
	for scid, p := range o.all {
		if webvh.Location(p.DID()) == location {
			delete(o.all, scid)
		}
	}
}

// Prove adds the organization whose log its domain serves, in place of the one that the domain served before, and fetches its status lists from
// there. Problems are the issuing keys whose credentials do not count, because their list could not be fetched.
func (o *Organizations) Prove(ctx context.Context, web weblocation.Options, l *webvh.Log, now time.Time) (until time.Time, problems []string) {
	p := &proof{Authority: authority.New(l), until: now.Add(min(l.TTL(), maxProof))}
	problems = fetchLists(ctx, web, p.Authority, now)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.removeLocked(webvh.Location(l.DID()))
	boundedmap.Put(&o.all, l.SCID(), p, maxOrganizations, func(p *proof) bool { return now.After(p.until) })
	clear(o.tried)
	return p.until.UTC(), problems
}

// fetchLists gets the status lists of an organization from its domain. Credentials of a key without a list do not count.
func fetchLists(ctx context.Context, web weblocation.Options, a *authority.Authority, now time.Time) (problems []string) {
	client := weblocation.NewClient(web)
	for _, method := range a.Methods()[:min(len(a.Methods()), maxLists)] {
		raw, err := client.Fetch(ctx, organization.ListID(method), "application/vc, application/json;q=0.9", vc.MaxList)
		var l *vc.List
		if err == nil {
			l, err = vc.VerifyList(ctx, raw, vc.Check{Resolver: a, Now: now})
		}
		if err == nil && (l.Method != method || l.ID != organization.ListID(method)) {
			err = errors.New("it is the list of another key")
		}
		if err != nil {
			_, fragment, _ := strings.Cut(method, "#")
			problems = append(problems, fmt.Sprintf("members with credentials of the key #%s are not proven: its status list: %s", fragment,
				interact.Excerpt(err.Error(), 300)))
			continue
		}
		a.SetList(l, a.AfterList(l), now)
	}
	return problems
}
