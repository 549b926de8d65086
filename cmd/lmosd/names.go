package main

import (
	"strings"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway"
)

// shortKey is how many letters of an owner's key are shown: enough to be unique among what one person sees, and a prefix
// that every command takes.
const shortKey = 12

// copyable returns a reference of g that can be copied into the next command.
func copyable(g gateway.Agent) string {
	key := g.Owner.Multibase()
	if g.Name == "" || key == "" {
		return g.Ref
	}
	return g.Name + "@" + key[:min(len(key), shortKey)]
}

// fullName returns the name of g with the whole key of its owner.
func fullName(g gateway.Agent) string {
	if key := g.Owner.Multibase(); g.Name != "" && key != "" {
		return g.Name + "@" + key
	}
	return g.Ref
}

// state says whether g can be called now, or that nobody knows which of two agents is meant.
func state(g gateway.Agent) string {
	switch {
	case !g.Local && !g.Reachable:
		return "unreachable"
	case g.Equivocal:
		return "equivocal"
	case g.Local:
		return "here"
	}
	return "reachable"
}

func joinDIDs(ids []did.DID) string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = string(id)
	}
	return strings.Join(texts, ",")
}
