package td

import (
	"iter"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/internal/textmatch"
	"github.com/lmosd/lmosd/td/schema"
)

// memberOfTerm is the organization of the owner, a claim of the owner (lmosd:memberOf).
const memberOfTerm = "lmosd:memberOf"

// maxMemberOf limits lmosd:memberOf, in bytes.
const maxMemberOf = 512

// readMemberOf returns the organization that a TD names; "" if it names none.
func readMemberOf(doc map[string]any) did.DID {
	name := text(doc[memberOfTerm])
	if len(name) > maxMemberOf {
		return ""
	}
	id, err := did.Parse(name)
	if err != nil {
		return ""
	}
	return id
}

func (c *checker) checkMemberOf() {
	value, there := c.doc[memberOfTerm]
	if there && readMemberOf(c.doc) == "" {
		c.violation(ownTerm, schema.Pointer(memberOfTerm), "expected the DID of an organization, got %s", schema.Show(text(value)))
	}
}

// WithMemberOf returns a TD that names the organization of its owner (lmosd:memberOf). A TD that names one, or that is signed, is unchanged,
// and so is text that is not a TD.
func WithMemberOf(raw []byte, organization did.DID) []byte {
	members, err := jcs.Members(raw)
	if err != nil || organization == "" ||
		slices.ContainsFunc(members, func(m jcs.Member) bool { return m.Name == memberOfTerm || m.Name == "proof" }) {
		return raw
	}
	return addMember(raw, memberOfTerm, bytesOf(string(organization)))
}

// ClaimedOrganizations yields the names of the organization that t claims, in the form of [OrganizationKey]: the vendor of lmos:metadata, and
// of lmosd:memberOf the DID, the SCID and the domain.
func (t *Thing) ClaimedOrganizations() iter.Seq[string] {
	return func(yield func(string) bool) {
		scid, _ := location(t.MemberOf)
		names := []string{string(t.MemberOf), scid, OrganizationDomain(t.MemberOf)}
		if t.Metadata != nil {
			names = append(names, t.Metadata.VendorName)
		}
		for _, name := range names {
			if key := OrganizationKey(name); key != "" && !yield(key) {
				return
			}
		}
	}
}

// OrganizationKey returns the form of the name of an organization for comparison.
func OrganizationKey(name string) string { return textmatch.Fold(name) }

// OrganizationDomain returns the domain in the DID of an organization, with its port and its path: "example.com:8443/sales". It is a claim.
func OrganizationDomain(id did.DID) string {
	_, place := location(id)
	host, path, _ := strings.Cut(place, ":")
	host = strings.NewReplacer("%3A", ":", "%3a", ":").Replace(host)
	if path != "" {
		host += "/" + strings.ReplaceAll(path, ":", "/")
	}
	return host
}

// location returns the SCID of a did:webvh and the location in a did:webvh or did:web; both are empty for other DIDs.
func location(id did.DID) (scid, place string) {
	if rest, ok := strings.CutPrefix(string(id), "did:webvh:"); ok {
		scid, place, _ = strings.Cut(rest, ":")
		return scid, place
	}
	place, _ = strings.CutPrefix(string(id), "did:web:")
	if id.Method() != "web" {
		place = ""
	}
	return "", place
}

// A Membership is what a node knows of the organization of a [Query].
type Membership struct {
	ID    string    // its SCID, or its DID
	Nodes []did.DID // its verified members, sorted
}

// Has reports whether a node is a verified member.
func (m *Membership) Has(node did.DID) bool {
	if m == nil {
		return false
	}
	_, found := slices.BinarySearch(m.Nodes, node)
	return found
}

// Vouches reports whether all that are responsible for a Thing are verified members: a host that is none must not answer in the name of the organization.
func (m *Membership) Vouches(r *Record) bool {
	for node := range r.Responsible() {
		if !m.Has(node) {
			return false
		}
	}
	return r.Grant == nil || len(r.Hosts) > 0
}

// holdsOrganization reports whether the owner of d is a verified member of the organization of the query, or claims to be if claims count.
func (q *Query) holdsOrganization(d *Description) bool {
	if q.Organization == "" || q.Members.Vouches(d.Record) {
		return true
	}
	if !q.Claimed {
		return false
	}
	want := OrganizationKey(q.Organization)
	for claimed := range d.ClaimedOrganizations() {
		if claimed == want || q.Members != nil && claimed == OrganizationKey(q.Members.ID) {
			return true
		}
	}
	return false
}

// ClaimToFind returns the claim of an organization by which other nodes find the candidates of q, which know other names and other members;
// "" without one.
func (q *Query) ClaimToFind() string {
	switch {
	case q.Claimed:
		return q.Organization
	case q.Members != nil:
		return q.Members.ID
	}
	return ""
}

// Parts yields q, the alternatives of Or and the exclusions of Not, which the caller may change.
func (q *Query) Parts() iter.Seq[*Query] {
	return func(yield func(*Query) bool) {
		if !yield(q) {
			return
		}
		for _, list := range [][]Query{q.Or, q.Not} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}
