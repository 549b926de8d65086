package directory

import (
	"context"
	"slices"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Organizations knows the organizations of the owners of Things (trust.Trust).
type Organizations interface {
	// Named returns the organization that this node calls name: the own one, a partner, or one that was proven. It does not know claims.
	OrganizationNamed(name string) (did.DID, error)
	// MembersOf returns the verified members of an organization, sorted. It must not block.
	MembersOf(organization did.DID) []did.DID
	// VerifyMembers determines whether the owners of Things are members of the organizations that they claim, as far as those are known here. It
	// sends a request at most to the hosts of such Things, and returns when ctx ends.
	VerifyMembers(ctx context.Context, things []*td.Description)
	// Affiliation returns the organization of the owner of a Thing: the verified one, else [Claim]. It must not block.
	Affiliation(d *td.Description) *Affiliation
}

// An Affiliation is the organization of the owner of a Thing as it is shown.
type Affiliation struct {
	Name  string           `json:"name"`          // as this node calls it: of a partner its local name, of others the domain or the vendor
	DID   did.DID          `json:"did,omitempty"` // empty for a vendor
	State AffiliationState `json:"state"`
}

// An AffiliationState is how far an affiliation is proven.
type AffiliationState string

// The states of an affiliation.
const (
	OwnOrganization     AffiliationState = "own"     // a verified member of the organization of this node
	PartnerOrganization AffiliationState = "partner" // a verified member of a partner
	ProvenOrganization  AffiliationState = "proven"  // a verified member of an organization whose domain serves its log
	ClaimedOrganization AffiliationState = "claimed" // anything else
)

// Claim returns the organization that a description claims; nil: none.
func Claim(d *td.Description) *Affiliation {
	switch {
	case d.MemberOf != "":
		name := td.OrganizationDomain(d.MemberOf)
		if name == "" {
			name = string(d.MemberOf)
		}
		return &Affiliation{name, d.MemberOf, ClaimedOrganization}
	case d.Metadata != nil && d.Metadata.VendorName != "":
		return &Affiliation{Name: d.Metadata.VendorName, State: ClaimedOrganization}
	}
	return nil
}

// Affiliation returns the organization of the owner of a Thing, for the caller of ctx; nil: none. Consumers and members learn what this node
// verified; others learn only what the description claims, because partners are nobody else's business.
func (d *Directory) Affiliation(ctx context.Context, desc *td.Description) *Affiliation {
	if d.opts.Organizations == nil || !knowsNames(ctx) {
		return Claim(desc)
	}
	return d.opts.Organizations.Affiliation(desc)
}

// knowsNames reports whether the caller of ctx knows the names of organizations at this node: a consumer of it, or a member of the own one.
func knowsNames(ctx context.Context) bool {
	p := did.PrincipalOf(ctx)
	return p != nil && p.Relation >= did.Own
}

// VerifyMembers determines the affiliation of Things that are shown next (Organizations.VerifyMembers).
func (d *Directory) VerifyMembers(ctx context.Context, things ...*td.Description) {
	if d.opts.Organizations != nil && knowsNames(ctx) {
		d.opts.Organizations.VerifyMembers(ctx, things)
	}
}

// withMembers returns q with the members of its organizations. With fetch, Things that claim to be of such an organization are verified
// first. The error is NotFound for an unknown name, unless claims count.
func (d *Directory) withMembers(ctx context.Context, q td.Query, fetch bool) (td.Query, error) {
	if !namesOrganization(&q) {
		return q, nil
	}
	q.Or, q.Not = slices.Clone(q.Or), slices.Clone(q.Not)
	for part := range q.Parts() {
		if part.Organization == "" {
			continue
		}
		members, _, err := d.membership(ctx, part.Organization, fetch)
		if err != nil && !part.Claimed {
			return q, err
		}
		part.Members = members
	}
	return q, nil
}

// matchesVerified reports whether a result of a source matches q once the membership of its owner is determined.
func (d *Directory) matchesVerified(ctx context.Context, q *td.Query, desc *td.Description) bool {
	if desc.MemberOf == "" || !namesOrganization(q) {
		return false
	}
	d.VerifyMembers(ctx, desc)
	again, err := d.withMembers(ctx, *q, false)
	return err == nil && again.Match(desc)
}

func namesOrganization(q *td.Query) bool {
	for part := range q.Parts() {
		if part.Organization != "" {
			return true
		}
	}
	return false
}

// membership returns the verified members of an organization, for the caller of ctx. With fetch, known Things that claim to be of it are
// verified first.
func (d *Directory) membership(ctx context.Context, name string, fetch bool) (*td.Membership, did.DID, error) {
	unknown := interact.Errorf(interact.NotFound, "see the list of partners", "no organization is called %q here", interact.Excerpt(name, 100))
	if d.opts.Organizations == nil || !knowsNames(ctx) {
		return nil, "", unknown
	}
	id, err := d.opts.Organizations.OrganizationNamed(name)
	if err != nil {
		return nil, "", err
	}
	m := &td.Membership{ID: webvh.SCID(id)}
	if m.ID == "" {
		m.ID = string(id)
	}
	if fetch {
		claims := td.Query{Organization: m.ID, Claimed: true, Limit: maxClaims}
		d.opts.Organizations.VerifyMembers(ctx, slices.Collect(d.FindLocal(ctx, claims)))
	}
	m.Nodes = d.opts.Organizations.MembersOf(id)
	return m, id, nil
}

// maxClaims is the number of Things whose claim is verified for one query.
const maxClaims = 64

// A reference is a reference with the verified members of the organization that it names.
type reference struct {
	td.Ref
	organization did.DID
	members      *td.Membership // nil: it names none
}

// fits is [td.Ref.Owns] of the owner of a record, for members of the organization only.
func (r reference) fits(rec *td.Record) bool {
	return r.Ref.Owns(rec.Owner) && (r.Organization == "" || r.members.Vouches(rec))
}
