package render

import (
	"slices"
	"strings"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/internal/confusable"
	"github.com/lmosd/lmosd/td"
)

// ShortKey is the number of letters of an owner's key in a short name. All commands accept a prefix of a key.
const ShortKey = 12

// Name returns a short reference of g, which all commands accept.
func Name(g api.Agent) string {
	key := g.Owner.Multibase()
	if g.Name == "" || key == "" {
		return g.Ref
	}
	return g.Name + "@" + key[:min(len(key), ShortKey)]
}

// PeerName returns a node as all tables and log lines have it: its name, if it is known, and the beginning of its key. The name comes from the node itself,
// so the key is always there.
func PeerName(name string, id did.DID) string {
	if name = terminal.OneLine(name); name == "" {
		return id.Short()
	}
	return name + " (" + id.Short() + ")"
}

// fullName returns the name of g with the whole key of its owner.
func fullName(g api.Agent) string {
	if key := g.Owner.Multibase(); g.Name != "" && key != "" {
		return g.Name + "@" + key
	}
	return g.Ref
}

// Names returns a function for the short and the full name of an agent of a list. It is the reference of the agent if another one in
// the list has the same name and the same owner.
func Names(items []api.Agent) func(api.Agent) (short, full string) {
	count := map[string]int{}
	for _, g := range items {
		count[Name(g)]++
	}
	return func(g api.Agent) (short, full string) {
		if count[Name(g)] == 1 {
			return Name(g), fullName(g)
		}
		r := td.ParseRef(g.Ref)
		if strings.HasPrefix(r.Owner, "z6Mk") {
			r.Owner = r.Owner[:min(len(r.Owner), ShortKey)]
		}
		return r.String(), g.Ref
	}
}

// CandidateName returns a short reference of c.
func CandidateName(c *api.Candidate) string {
	return Name(api.Agent{Name: c.Name, Owner: did.DID(WithMethod(td.ParseRef(c.ID).Owner)), Ref: c.ID})
}

// WithMethod completes the key of a did:key to the DID.
func WithMethod(owner string) string {
	if strings.HasPrefix(owner, "z6Mk") {
		return "did:key:" + owner
	}
	return owner
}

// stateText returns the state of g: whether it can be called now, whether its owner signed contradictory records, and whether its name
// resembles another.
func stateText(g api.Agent) string {
	s := string(g.State)
	switch {
	case g.State == api.StateUnreachable, g.State == api.StateRefused:
	case g.Equivocation != nil:
		s = "equivocal"
	case g.Local:
		s = "here"
	}
	if g.Resembles == "" {
		return s
	}
	s += ", ≈ " + g.Resembles
	if odd := confusable.Odd(g.Name, g.Resembles); odd != "" {
		s += " (" + odd + ")"
	}
	return s
}

// stateColor returns the color of the state of g.
func stateColor(g api.Agent) string {
	switch {
	case g.State == api.StateUnreachable || g.State == api.StateRefused:
		return terminal.Red
	case g.Equivocation != nil || g.Resembles != "":
		return terminal.Yellow
	case g.State == api.StateReachable || g.Local:
		return terminal.Green
	}
	return ""
}

// AffiliationText returns an organization as it is shown: its state, its name, and of a claim the beginning of the SCID. The state comes first, so that
// a name cannot state another one.
func AffiliationText(o *api.OrganizationClaim) string {
	if o == nil {
		return ""
	}
	text := o.State + " " + terminal.OneLine(o.Name)
	if scid := webvh.SCID(o.DID); o.State == "claimed" && scid != "" {
		text += " (" + scid[:8] + "…)"
	}
	return text
}

// Join joins the parts that are not empty.
func Join(sep string, parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), sep)
}

// dids returns ids as texts.
func dids(ids []did.DID) []string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = string(id)
	}
	return texts
}
