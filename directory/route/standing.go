package route

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// A Standing is what is known of an agent besides its description.
type Standing struct {
	Gone      bool          // it is known to be unreachable: it is never picked
	Refused   bool          // a policy keeps its host and this node apart, as is known: it is never picked
	Reached   bool          // it is connected, or was reached lately
	Local     bool          // this node hosts it
	Trust     float64       // of its owner, 0 to 1
	RoundTrip time.Duration // to its host, as it was measured; 0: not known
}

// A TieBreak says by what one of several agents was picked that offer the very same.
type TieBreak string

// The tie-breaks, in the order in which they are tried. Anybody can copy a description, and be near: so trust goes before speed.
const (
	ByLocal     TieBreak = "local"
	ByTrust     TieBreak = "trust"
	ByReached   TieBreak = "reached"
	ByRoundTrip TieBreak = "round_trip"
	ByReference TieBreak = "reference" // nothing else tells them apart
)

// compare orders agents that offer the very same, the better first, and says what tells them apart.
func compare(a, b *agent) (int, TieBreak) {
	far := func(t time.Duration) time.Duration { // what was not measured is farther than all that was
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
	s, o := a.standing, b.standing
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

// fold leaves one of the agents that offer the very same, by the texts by which they are known; the others are its same.
func fold(agents []*agent) (kept []*agent) {
	groups := map[string][]*agent{}
	var order []string
	for _, a := range agents {
		key := a.offers()
		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], a)
	}
	for _, key := range order {
		group := groups[key]
		slices.SortFunc(group, func(a, b *agent) int { n, _ := compare(a, b); return n })
		group[0].same = group[1:]
		kept = append(kept, group[0])
	}
	return kept
}

// offers is all that an agent is compared by.
func (a *agent) offers() string {
	var b strings.Builder
	for _, p := range a.points {
		fmt.Fprintf(&b, "%q %q %q\n", p.capability.ID, p.capability.Version, p.text)
	}
	return b.String()
}

// preferred says why the agent was preferred to those that offer the same.
func (a *agent) preferred() (TieBreak, string) {
	_, by := compare(a, a.same[0])
	why := map[TieBreak]string{ByLocal: "this one is here", ByTrust: "the owner of this one is trusted more", ByReached: "this one is known to be reachable",
		ByRoundTrip: "this one is the nearest, " + a.standing.RoundTrip.Round(10*time.Microsecond).String() + " away",
		ByReference: "nothing is known that tells them apart, so it is the first by reference"}[by]
	return by, fmt.Sprintf("%d agents offer the same (%s also of %s): %s", len(a.same)+1, interact.Clip(a.desc.Name(), 60),
		a.same[0].desc.Record.Owner.Short(), why)
}
