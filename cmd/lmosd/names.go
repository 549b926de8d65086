package main

import (
	"strings"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/confusable"
	"github.com/lmosd/lmosd/td"
)

// shortKey is how many letters of an owner's key are shown: enough to be unique among what one person sees, and a prefix
// that every command takes.
const shortKey = 12

// copyable returns a reference of g that can be copied into the next command.
func copyable(g api.Agent) string {
	key := g.Owner.Multibase()
	if g.Name == "" || key == "" {
		return g.Ref
	}
	return g.Name + "@" + key[:min(len(key), shortKey)]
}

// shortNames returns the short and the full name of an agent of a list: its reference where another one there has both its name
// and its owner.
func shortNames(items []api.Agent) func(api.Agent) (short, full string) {
	has := map[string]int{}
	for _, g := range items {
		has[copyable(g)]++
	}
	return func(g api.Agent) (short, full string) {
		if has[copyable(g)] == 1 {
			return copyable(g), fullName(g)
		}
		return shortRef(g.Ref), g.Ref
	}
}

// shortRef cuts the owner's key in a reference, unless it is part of the id.
func shortRef(ref string) string {
	r := td.ParseRef(ref)
	if strings.HasPrefix(r.Owner, "z6Mk") {
		r.Owner = r.Owner[:min(len(r.Owner), shortKey)]
	}
	return r.String()
}

// fullName returns the name of g with the whole key of its owner.
func fullName(g api.Agent) string {
	if key := g.Owner.Multibase(); g.Name != "" && key != "" {
		return g.Name + "@" + key
	}
	return g.Ref
}

// state says whether g can be called now, or that nobody knows which of two agents is meant; and marks a name that looks like another.
func state(g api.Agent) string {
	if g.Resembles == "" {
		return standing(g)
	}
	mark := standing(g) + ", ≈ " + g.Resembles
	if odd := confusable.Odd(g.Name, g.Resembles); odd != "" {
		mark += " (" + odd + ")"
	}
	return mark
}

func standing(g api.Agent) string {
	switch {
	case g.State == api.StateUnreachable, g.State == api.StateRefused:
		return string(g.State)
	case g.Equivocation != nil:
		return "equivocal"
	case g.Local:
		return "here"
	}
	return string(g.State)
}

func joinDIDs(ids []did.DID) string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = string(id)
	}
	return strings.Join(texts, ",")
}
