package trust

import (
	"context"
	"slices"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/trust/exchange"
	"github.com/lmosd/lmosd/trust/partners"
)

// Limits of the verification of claimed memberships.
const (
	maxVerified  = 64 // owners of one call
	maxVerifying = 4  // owners at once
	verifyWait   = time.Second
)

// MemberOf returns the organization that the descriptions of this node name as that of their owner. An organization that the node made by itself
// is not named: its name tells others nothing, and would connect the nodes of one user.
func (t *Trust) MemberOf() did.DID {
	if t == nil {
		return ""
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.org == nil || t.org.Auto() || t.credentialLocked() == nil {
		return ""
	}
	return t.org.DID()
}

// OrganizationNamed implements [directory.Organizations]: name is "own", the name, the domain, the SCID or the DID of the own organization, the
// name, the SCID or the DID of a partner, or the domain, the SCID or the DID of an organization that was proven.
func (t *Trust) OrganizationNamed(name string) (did.DID, error) {
	unknown := interact.Errorf(interact.NotFound, "see the list of partners", "no organization is called %q here", interact.Excerpt(name, 100))
	if t == nil {
		return "", unknown
	}
	now, scid := t.now(), webvh.SCID(did.DID(name))
	t.mu.RLock()
	defer t.mu.RUnlock()
	if own := t.org; own != nil {
		if name == "own" || name == partners.NameOf(own.DID()) || name == td.OrganizationDomain(own.DID()) || name == own.SCID() || scid == own.SCID() {
			return own.DID(), nil
		}
	} else if name == "own" {
		return "", interact.Errorf(interact.NotFound, "", "this node is in no organization").Then(interact.StepOrgInit).Then(interact.StepOrgJoin)
	}
	if p := t.book.Find(name); p != nil {
		if p.IsRemoved() || p.HasEnded(now) {
			return "", interact.Errorf(interact.NotFound, "see the list of partners", "the partnership with %s has ended", p.Name)
		}
		return p.DID, nil
	}
	if id := t.proven.Named(name, now); id != "" {
		return id, nil
	}
	return "", unknown
}

// MembersOf implements [directory.Organizations].
func (t *Trust) MembersOf(organization did.DID) (all []did.DID) {
	if t == nil {
		return nil
	}
	now, scid := t.now(), webvh.SCID(organization)
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.org != nil && t.org.SCID() == scid {
		all = append(all, t.self)
	}
	for id, n := range t.nodes {
		if id != t.self && n.principal.Relation >= did.Partner && webvh.SCID(n.principal.Org) == scid {
			all = append(all, id)
		}
	}
	if t.authorities[scid] == nil {
		all = append(all, t.proven.Members(scid, now)...)
	}
	slices.Sort(all)
	return all
}

// Affiliation implements [directory.Organizations].
func (t *Trust) Affiliation(d *td.Description) *directory.Affiliation {
	var of *directory.Affiliation
	for node := range d.Record.Responsible() {
		a := t.affiliationOf(node)
		if a == nil || of != nil && (a.State != of.State || a.DID != of.DID) { // a Thing of several hosts is that of an organization if all are
			return directory.Claim(d)
		}
		of = a
	}
	if of == nil {
		return directory.Claim(d)
	}
	return of
}

// affiliationOf returns the verified organization of a node, or nil.
func (t *Trust) affiliationOf(id did.DID) *directory.Affiliation {
	if t == nil {
		return nil
	}
	now := t.now()
	t.mu.RLock()
	defer t.mu.RUnlock()
	if id == t.self {
		if t.org == nil {
			return nil
		}
		return &directory.Affiliation{Name: partners.NameOf(t.org.DID()), DID: t.org.DID(), State: directory.OwnOrganization}
	}
	if n := t.nodes[id]; n != nil && n.principal.Relation >= did.Partner && n.principal.Org != "" {
		a := t.authorities[webvh.SCID(n.principal.Org)]
		switch {
		case a == nil: // the principal is evaluated again
		case a.partner == nil:
			return &directory.Affiliation{Name: partners.NameOf(a.DID()), DID: a.DID(), State: directory.OwnOrganization}
		default:
			return &directory.Affiliation{Name: a.partner.Name, DID: a.DID(), State: directory.PartnerOrganization}
		}
	}
	if org := t.proven.Of(id, now, func(scid string) bool { return t.authorities[scid] != nil }); org != "" {
		return &directory.Affiliation{Name: td.OrganizationDomain(org), DID: org, State: directory.ProvenOrganization}
	}
	return nil
}

// A suspect is an owner that claims a membership.
type suspect struct {
	id    did.DID
	scid  string
	addrs []string
	known bool // the organization is the own one or a partner; otherwise its domain was proven
}

// VerifyMembers implements [directory.Organizations]. Only owners that claim the own organization, a partner or an organization whose domain was
// proven are asked, once each, at the address of their record.
func (t *Trust) VerifyMembers(ctx context.Context, things []*td.Description) {
	if t == nil {
		return
	}
	all := t.suspects(things)
	if len(all) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, verifyWait)
	defer cancel()
	done := make(chan struct{}, len(all))
	for _, one := range all {
		t.start(func(life context.Context) {
			t.verifySuspect(life, one)
			done <- struct{}{}
		})
	}
	for range all {
		select {
		case <-done:
		case <-ctx.Done():
			return
		}
	}
}

// suspects returns the owners of Things that are to be asked now.
func (t *Trust) suspects(things []*td.Description) (all []suspect) {
	now := t.now()
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, d := range things {
		id, scid := d.Record.Owner, webvh.SCID(d.MemberOf)
		if len(all) == maxVerified || t.closed || scid == "" || id == t.self {
			continue
		}
		one := suspect{id: id, scid: scid, known: t.authorities[scid] != nil}
		n := t.nodes[id]
		if !one.known && (t.proven.Get(scid, now) == nil || t.proven.HasMember(scid, id, now)) ||
			n != nil && (n.principal.Barred != "" || one.known && (n.principal.Relation >= did.Partner || n.hello != nil && n.done)) {
			continue
		}
		for _, h := range d.Record.Hosts {
			if h.Node == id {
				one.addrs = h.Addrs
			}
		}
		if (len(one.addrs) > 0 || n != nil && n.hello != nil) && t.proven.Try(id, now) {
			all = append(all, one)
		}
	}
	return all
}

// verifySuspect gets the credential of an owner: by a hello if the organization is known, and else by a request.
func (t *Trust) verifySuspect(ctx context.Context, one suspect) {
	select {
	case t.verifying <- struct{}{}:
		defer func() { <-t.verifying }()
	case <-ctx.Done():
		return
	}
	ctx, cancel := context.WithTimeout(ctx, exchange.Timeout)
	defer cancel()
	err := error(nil)
	if one.known {
		err = t.introduce(ctx, one.id, one.addrs...)
		for pause := (backoff.Backoff{First: 10 * time.Millisecond, Max: 200 * time.Millisecond}); err == nil && t.Principal(one.id).Pending != ""; {
			err = pause.Sleep(ctx)
		}
	} else {
		err = t.fetchCredential(ctx, one)
	}
	if err != nil {
		t.o.Log.Debug("membership not verified", "peer", one.id.Short(), "organization", one.scid, "err", err)
	}
}

// fetchCredential gets the credential of a member of a proven organization.
func (t *Trust) fetchCredential(ctx context.Context, one suspect) error {
	r, err := t.net.Ask(ctx, one.id, &exchange.Request{Op: exchange.OpCredential, Seeks: [][]byte{exchange.Seek(one.scid, t.self, one.id)}}, one.addrs...)
	if err != nil {
		return err
	}
	return t.proven.AddMember(ctx, one.scid, one.id, r.Credential, t.now())
}

// serveCredential shows the credential of this node to a node that names its organization, if a public description of this node names it too.
func (t *Trust) serveCredential(id did.DID, q *exchange.Request) (*exchange.Response, error) {
	things := t.things.Load()
	t.mu.RLock()
	defer t.mu.RUnlock()
	c := t.credentialLocked()
	if c == nil || things == nil || things.Named == nil || len(q.Seeks) != 1 || !containsSeek(q.Seeks, exchange.Seek(t.org.SCID(), id, t.self)) ||
		!things.Named(t.org.DID()) {
		return nil, refused
	}
	return &exchange.Response{Credential: c.Raw}, nil
}
