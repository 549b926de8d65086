package route

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// An AgentState is the state of an agent besides its description.
type AgentState struct {
	Unreachable bool          // it is unreachable: never selected
	Refused     bool          // a policy of its host or of this node rejects the connection: never selected
	Reached     bool          // it is connected, or was reached recently
	Local       bool          // this node hosts it
	Trust       float64       // of its owner, 0 to 1
	RoundTrip   time.Duration // to its host; 0: not measured
}

// A TieBreak is the criterion that selected one of several agents with equal descriptions or matches.
type TieBreak string

// The tie-breaks in order. Anyone can copy a description and have a low latency, so trust precedes latency.
const (
	ByLocal     TieBreak = "local"
	ByTrust     TieBreak = "trust"
	ByReached   TieBreak = "reached"
	ByRoundTrip TieBreak = "round_trip"
	ByReference TieBreak = "reference" // no other difference
)

// compare orders equal agents, the better one first, and returns the criterion.
func compare(a, b *agent) (int, TieBreak) {
	far := func(t time.Duration) time.Duration { // unmeasured is more than any measured one
		if t == 0 {
			return 1<<63 - 1
		}
		return t
	}
	first := func(x, y bool) int {
		switch {
		case x == y:
			return 0
		case x:
			return -1
		}
		return 1
	}
	s, o := a.state, b.state
	for _, by := range []struct {
		order int
		tie   TieBreak
	}{
		{first(s.Local, o.Local), ByLocal}, {cmp.Compare(o.Trust, s.Trust), ByTrust}, {first(s.Reached, o.Reached), ByReached},
		{cmp.Compare(far(s.RoundTrip), far(o.RoundTrip)), ByRoundTrip},
	} {
		if by.order != 0 {
			return by.order, by.tie
		}
	}
	return strings.Compare(a.desc.Ref(), b.desc.Ref()), ByReference
}

// fold reduces agents with equal texts to the best one; the others are in its same.
func fold(agents []*agent) (kept []*agent) {
	groups := map[string][]*agent{}
	var order []string
	for _, a := range agents {
		key := a.texts()
		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], a)
	}
	for _, key := range order {
		kept = append(kept, foldInto(groups[key]))
	}
	return kept
}

// foldInto returns the best of equal agents, of which there is at least one; the others are in its same.
func foldInto(group []*agent) *agent {
	var all []*agent
	for _, a := range group {
		all = append(append(all, a), a.same...)
		a.same = nil
	}
	slices.SortFunc(all, func(a, b *agent) int { n, _ := compare(a, b); return n })
	all[0].same = all[1:]
	return all[0]
}

// texts returns all texts by which agents are compared.
func (a *agent) texts() string {
	var b strings.Builder
	for _, p := range a.points {
		fmt.Fprintf(&b, "%q %q %q\n", p.capability.ID, p.capability.Version, p.text)
	}
	return b.String()
}

// preferred returns the reason why the agent has precedence over those in its same.
func (a *agent) preferred() (TieBreak, string) {
	_, by := compare(a, a.same[0])
	why := map[TieBreak]string{ByLocal: "this node hosts this one", ByTrust: "the owner of this one is trusted more", ByReached: "this one is known to be reachable",
		ByRoundTrip: "this one is the nearest, " + a.state.RoundTrip.Round(10*time.Microsecond).String() + " away",
		ByReference: "no known state distinguishes them, so the first by reference is chosen"}[by]
	n, own := len(a.same)+1, interact.Clip(a.desc.Name(), 60)
	if texts := a.texts(); !slices.ContainsFunc(a.same, func(other *agent) bool { return other.texts() != texts }) {
		return by, fmt.Sprintf("%d agents have the same description (%s also of %s): %s", n, own, a.same[0].desc.Record.Owner.Short(), why)
	}
	const named = 3
	var others []string
	for _, other := range a.same[:min(named, len(a.same))] {
		others = append(others, interact.Clip(other.desc.Name(), 60)+"@"+other.desc.Record.Owner.Short())
	}
	if n > named+1 {
		others = append(others, "…")
	}
	return by, fmt.Sprintf("%d agents match the same words (%s, also %s): %s", n, own, strings.Join(others, ", "), why)
}
