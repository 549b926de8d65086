// Package choice orders what can answer one message, by what this node has measured: the Things that a search has found, and the hosts of one Thing.
//
// A [Meter] measures the calls of this node. It does not use what a Thing or its host reports about itself: anyone can claim to be fast and idle.
package choice

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Candidate is a Thing or a host that can answer, with its state.
type Candidate[K comparable] struct {
	Key         K             // of its measurements
	Local       bool          // this node hosts it
	Unsure      bool          // a call would have to connect first, or its host has sent nothing for too long
	Unreachable bool          // no host could be reached, or the agent does not answer its host
	Refused     bool          // a policy of its hosts or of this node rejects the connection
	RoundTrip   time.Duration // to its nearest host; 0: unknown
}

// A Choice is a candidate in the order in which they should be tried.
type Choice struct {
	Index   int           // of the candidate
	Reason  string        // what the order follows from, one line
	Cost    time.Duration // the expected time of a call
	Running int           // calls of this node that it has not answered
}

const (
	// floor is the least average that counts: differences below it are noise.
	floor = time.Millisecond
	// passedOver is the part by which an average becomes lower with each call of another one: after 44 calls it is half as high.
	passedOver = 64
	// localFactor is how much a Thing of this node may cost more than the best one.
	localFactor = 2
)

// A group orders candidates before their costs do.
type group int

const (
	fit group = iota
	unsure
	failing
	unreachable
	refused
)

// A rated is a candidate with what orders it.
type rated struct {
	index   int
	running int
	cost    time.Duration
	group   group
	local   bool
}

// Order returns the candidates in the order in which they should be tried, with the reasons. It is that of [Meter.Indices].
func (m *Meter[K]) Order(candidates []Candidate[K]) []Choice {
	now := time.Now()
	states := m.states(candidates)
	choices := make([]Choice, 0, len(candidates))
	for _, r := range m.order(candidates, states, now) {
		choices = append(choices, Choice{r.index, reason(&states[r.index], candidates[r.index], now), r.cost, r.running})
	}
	return choices
}

// Indices returns the indices of the candidates in the order in which they should be tried: those that are unsure, fail, are unreachable or refuse
// this node are last. The cost of the others is the average time of a call, times one more than the number of running calls. A Thing of this node is
// first if its cost is at most twice the lowest. Of the others, two are picked at random and the better one is first, so that callers do not all move
// to one at once; the rest follows by cost. The caller calls the first one: the averages of the others become a little lower, so that one that was slow
// once is tried again.
func (m *Meter[K]) Indices(candidates []Candidate[K]) []int {
	indices := make([]int, 0, len(candidates))
	all := m.order(candidates, m.states(candidates), time.Now())
	m.mu.Lock()
	defer m.mu.Unlock()
	for n, r := range all {
		indices = append(indices, r.index)
		if s := m.all[candidates[r.index].Key]; n > 0 && r.group == fit && s != nil && s.running == 0 {
			s.average -= s.average / passedOver
		}
	}
	return indices
}

func (m *Meter[K]) order(candidates []Candidate[K], states []state, now time.Time) []rated {
	all := rate(candidates, states, now)
	m.shuffle(all) // for equal costs
	slices.SortStableFunc(all, func(a, b rated) int { return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.cost, b.cost)) })
	others := all
	if n := slices.IndexFunc(all, func(r rated) bool { return r.group != all[0].group || r.group > unsure }); n >= 0 {
		others = all[:n]
	}
	if l := slices.IndexFunc(others, func(r rated) bool { return r.local }); l >= 0 && others[l].cost <= localFactor*others[0].cost {
		moveToFront(others, l)
		others = others[1:]
	}
	if n := len(others); n > 2 {
		i, j := m.intn(n), m.intn(n-1)
		if j >= i {
			j++
		}
		moveToFront(others, min(i, j))
	}
	return all
}

func moveToFront(all []rated, i int) {
	first := all[i]
	copy(all[1:], all[:i])
	all[0] = first
}

func (m *Meter[K]) shuffle(all []rated) {
	for i := len(all) - 1; i > 0; i-- {
		j := m.intn(i + 1)
		all[i], all[j] = all[j], all[i]
	}
}

func (m *Meter[K]) intn(n int) int {
	if m.Intn != nil {
		return m.Intn(n)
	}
	return rand.IntN(n)
}

// rate returns the candidates with their costs, in their order. The average of one that was not measured is assumed to be the round trip to its
// host, or the median of the measured ones.
func rate[K comparable](candidates []Candidate[K], states []state, now time.Time) []rated {
	averages := make([]time.Duration, 0, len(candidates))
	for i := range states {
		if s := &states[i]; s.isMeasured(now) {
			averages = append(averages, s.average)
		}
	}
	median := floor
	if slices.Sort(averages); len(averages) > 0 {
		median = averages[len(averages)/2]
	}
	all := make([]rated, len(candidates))
	for i, c := range candidates {
		s := &states[i]
		base := cmp.Or(c.RoundTrip, median)
		switch {
		case s.isMeasured(now):
			base = s.average
		case c.Local:
			base = floor
		}
		all[i] = rated{i, s.running, max(base, floor) * time.Duration(1+s.running), groupOf(s, c, now), c.Local}
	}
	return all
}

func groupOf[K comparable](s *state, c Candidate[K], now time.Time) group {
	switch {
	case c.Refused:
		return refused
	case c.Unreachable:
		return unreachable
	case s.isOpen(now):
		return failing
	case c.Unsure:
		return unsure
	}
	return fit
}

func reason[K comparable](s *state, c Candidate[K], now time.Time) string {
	switch groupOf(s, c, now) {
	case refused:
		return "a policy rejects the connection"
	case unreachable:
		return "unreachable"
	case failing:
		return fmt.Sprintf("%d of the last %d calls failed", s.failures(), s.calls)
	}
	var parts []string
	if c.Local {
		parts = append(parts, "on this node")
	}
	switch {
	case s.isMeasured(now):
		parts = append(parts, milliseconds(s.average)+" on average")
	case c.RoundTrip > 0:
		parts = append(parts, "not measured yet, its host is "+milliseconds(c.RoundTrip)+" away")
	default:
		parts = append(parts, "not measured yet")
	}
	switch {
	case s.running == 1:
		parts = append(parts, "1 call runs")
	case s.running > 1:
		parts = append(parts, strconv.Itoa(s.running)+" calls run")
	}
	return strings.Join(parts, ", ")
}

// milliseconds writes a duration with one decimal below 10 ms.
func milliseconds(d time.Duration) string {
	decimals := 0
	if d < 10*time.Millisecond {
		decimals = 1
	}
	return strconv.FormatFloat(d.Seconds()*1000, 'f', decimals, 64) + " ms"
}
