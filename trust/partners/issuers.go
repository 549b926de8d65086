package partners

import (
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/interact"
)

// MaxIssuers limits the foreign issuers of a [Book], with former ones.
const MaxIssuers = 64

// An Issuer is an issuer of credentials that is no organization: its credentials make no members, and give roles. An Issuer in a [Book] is
// immutable.
type Issuer struct {
	Name string  `json:"name"` // the petname in rules; one issuer has it forever
	DID  did.DID `json:"did"`  // a did:key or a did:web
	// Roles are those that its credentials may give: "adjuster" if the subject has it as role or in roles, "adjuster=TYPE" if the credential has
	// the type.
	Roles []string  `json:"roles"`
	Since time.Time `json:"since"`
	// Removed is the time of the end by the operator; zero: its credentials count.
	Removed time.Time `json:"removed,omitzero"`
}

// IsRemoved reports whether the operator has ended the trust in the issuer.
func (i *Issuer) IsRemoved() bool { return !i.Removed.IsZero() }

func (i *Issuer) valid() bool { return i != nil && CheckName(i.Name) == nil && i.check() == nil }

// check returns an error if the issuer cannot be one in a book, whatever its name is.
func (i *Issuer) check() error {
	if m := i.DID.Method(); m != "key" && m != "web" {
		return interact.Errorf(interact.Usage, "an organization with a did:webvh becomes a partner by an invitation", "expected a did:key or did:web, got %q",
			interact.Excerpt(string(i.DID), 100))
	}
	if _, err := did.ParseForeign(string(i.DID)); err != nil {
		return interact.Errorf(interact.Usage, "for example did:web:registry.example", "not a DID: %v", err)
	}
	if len(i.Roles) == 0 || len(i.Roles) > vc.MaxRoles {
		return interact.Errorf(interact.Usage, "for example adjuster, or adjuster=https://claims.example/Adjuster",
			"expected 1 to %d roles that its credentials may give, got %d", vc.MaxRoles, len(i.Roles))
	}
	for _, text := range i.Roles {
		if role, typ, hasType := strings.Cut(text, "="); !vc.ValidRole(role) || hasType && typ == "" || len(typ) > 500 {
			return interact.Errorf(interact.Usage, "for example adjuster, or adjuster=https://claims.example/Adjuster", "%q is not a role",
				interact.Excerpt(text, 100))
		}
	}
	return nil
}

// FindIssuer returns the foreign issuer with a name or a DID, removed or not; nil if there is none.
func (b *Book) FindIssuer(name string) *Issuer {
	i := slices.IndexFunc(b.Foreign, func(i *Issuer) bool { return i.Name == name || string(i.DID) == name })
	if i < 0 {
		return nil
	}
	return b.Foreign[i]
}

// PutIssuer adds a foreign issuer, or replaces the entry of the same DID. Its name is that of no partner and of no other issuer. own is the own
// organization, or empty.
func (b *Book) PutIssuer(i *Issuer, own did.DID) error {
	if err := CheckName(i.Name); err != nil {
		return err
	}
	if err := i.check(); err != nil {
		return err
	}
	if taken := b.FindIssuer(i.Name); taken != nil && taken.DID != i.DID || b.Find(i.Name) != nil || own != "" && NameOf(own) == i.Name {
		return interact.Errorf(interact.Usage, "choose another name: rules name issuers by it", "the name %q is taken", i.Name)
	}
	switch at := slices.IndexFunc(b.Foreign, func(old *Issuer) bool { return old.DID == i.DID }); {
	case at >= 0:
		b.Foreign[at] = i
	case len(b.Foreign) >= MaxIssuers:
		return interact.Errorf(interact.Usage, "use one that there is", "there are %d foreign issuers, with former ones, the most that are possible", MaxIssuers)
	default:
		b.Foreign = append(b.Foreign, i)
	}
	return nil
}
