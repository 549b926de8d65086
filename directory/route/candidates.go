package route

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/internal/textmatch"
	"github.com/lmosd/lmosd/td"
)

// A candidateSet has the agents for one task, with the lexical scores of their examples.
type candidateSet struct {
	about       string   // the text of the task
	agents      []*agent // selectable ones: best first, then by reference
	unavailable []*agent // never selected: unreachable, or their hosts reject this node
}

// An agent is a member of a candidateSet.
type agent struct {
	desc   *td.Description
	points []point
	score  float64 // of its best point
	words  uint32  // all content words of the task that its points match; 0 if stop words gave the score

	state AgentState
	same  []*agent // others with an equal description or, after foldEquals, the same words: best first
}

// A point is a text by which an agent is matched: an example of a capability, or the description of a capability without examples.
type point struct {
	capability *td.Capability
	text       string
	score      float64 // 0 to 1
	words      uint32  // the content words of the task that it matches, one bit each
}

// newCandidateSet scores all examples of the agents by words. One of several agents with equal descriptions represents all.
func newCandidateSet(descs []*td.Description, about string, state func(*td.Description) AgentState) *candidateSet {
	f := &candidateSet{about: about}
	for _, d := range descs {
		a := &agent{desc: d, points: pointsOf(d), state: state(d)}
		if a.state.Unreachable || a.state.Refused {
			f.unavailable = append(f.unavailable, a)
		} else {
			f.agents = append(f.agents, a)
		}
	}
	f.agents = fold(f.agents)
	f.scoreByWords()
	return f
}

// Limits of the comparison, because tasks and descriptions are untrusted.
const (
	maxAsked  = 32 // different words of a task; also the bits of point.words
	maxPoints = 16 // examples of an agent
	maxWords  = 64 // words of an example
)

// pointsOf returns the texts of an agent, at most maxPoints. lmos-classifier skips capabilities without examples; here their descriptions are
// used, so that each agent can be found.
func pointsOf(d *td.Description) []point {
	var all []point
	for i := range d.Capabilities {
		if len(all) >= maxPoints {
			break
		}
		c := &d.Capabilities[i]
		for _, example := range c.Examples {
			all = append(all, point{capability: c, text: example})
		}
		if len(c.Examples) == 0 {
			all = append(all, point{capability: c, text: strings.Join([]string{c.Name, c.ID, c.Description}, " ")})
		}
	}
	all = all[:min(len(all), maxPoints)]
	if len(all) == 0 {
		all = append(all, point{capability: &td.Capability{ID: d.Title, Name: d.Title, Description: d.Description}, text: d.Title + " " + d.Description})
	}
	return all
}

// scoreByWords scores each point by the part of the task's words that it matches, where frequent words count less.
func (f *candidateSet) scoreByWords() {
	content, every := different(textmatch.Content(f.about)), different(textmatch.Split(f.about))
	texts := map[*point][]string{}
	having := make([]int, len(content)) // number of points with a matching word
	n := 0
	for _, a := range slices.Concat(f.agents, f.unavailable) {
		for i := range a.points {
			p := &a.points[i]
			// With stop words, for tasks without other words.
			text := textmatch.Split(clipped(p.capability.Name) + " " + clipped(p.text))
			texts[p] = text[:min(len(text), maxWords)]
			n++
			for j, w := range content {
				if likeAny(w, texts[p]) {
					having[j]++
				}
			}
		}
	}
	weights, all := make([]float64, len(content)), 0.0
	for j := range content {
		if weights[j] = math.Log1p(float64(n) / float64(1+having[j])); having[j] == 0 {
			weights[j] = math.Log1p(1) // no point has it
		}
		all += weights[j]
	}
	informative := textmatch.IsInformative(f.about) // else content has stop words
	for p, text := range texts {
		p.score, p.words = 0, 0
		for j, w := range content {
			if all > 0 && likeAny(w, text) {
				p.score += weights[j] / all
				if informative {
					p.words |= 1 << j
				}
			}
		}
		if s := p.stopWordScore(every); s > p.score {
			p.score, p.words = s, 0
		}
	}
	f.rank()
}

// different returns the distinct words in all, at most maxAsked.
func different(all []string) []string {
	all = slices.Compact(slices.Sorted(slices.Values(all)))
	return all[:min(len(all), maxAsked)]
}

// stopWordScore scores an example that has only stop words, such as "who are you". If the task has all of them, the score is their part of
// the task's words.
func (p *point) stopWordScore(words []string) float64 {
	own := different(textmatch.Split(clipped(p.text)))
	if len(p.capability.Examples) == 0 || len(own) == 0 || len(words) == 0 || textmatch.IsInformative(p.text) {
		return 0
	}
	for _, w := range own {
		if !slices.Contains(words, w) {
			return 0
		}
	}
	return float64(len(own)) / float64(len(words))
}

func likeAny(word string, among []string) bool {
	return slices.ContainsFunc(among, func(w string) bool { return textmatch.Like(word, w) })
}

// rank orders agents, best first.
func (f *candidateSet) rank() {
	for _, all := range [][]*agent{f.agents, f.unavailable} {
		for _, a := range all {
			a.score, a.words = 0, 0
			for _, p := range a.points {
				a.score = max(a.score, p.score)
				a.words |= p.words
			}
			if len(a.points) > 0 && a.top().words == 0 {
				a.words = 0
			}
		}
		slices.SortStableFunc(all, func(a, b *agent) int { return cmp.Compare(b.score, a.score) })
	}
}

// best returns the first agents.
func (f *candidateSet) best(n int) []*agent { return f.agents[:min(n, len(f.agents))] }

// Thresholds of a lexical decision: the best agent matches half of the task, and clearly more than the second one.
const (
	leastWords  = 0.5
	leastAhead  = 1.0 / 3 // of the best's score
	leastCounts = 0.05    // below it, an agent is no candidate
)

// byWords decides by words alone; why is the reason for this, if another method was requested.
func (f *candidateSet) byWords(why string) *Decision {
	say := func(s string) string {
		if why == "" {
			return s
		}
		return why + ": " + s
	}
	n := f.equals()
	switch {
	case len(f.agents) == 0:
		return f.decision(nil, Lexical, say(f.noAgent()))
	case f.agents[0].score < leastCounts:
		return f.decision(nil, Lexical, say("no agent matches a word of the task"))
	case f.agents[0].score < leastWords:
		return f.decision(nil, Lexical, say(fmt.Sprintf("the best agent, %s, matches %.0f %% of the task; at least 50 %% is required",
			f.agents[0].desc.Name(), 100*f.agents[0].score)))
	case len(f.agents) > n && f.agents[0].score-f.agents[n].score < leastAhead*f.agents[0].score:
		return f.decision(nil, Lexical, say(fmt.Sprintf("%s and %s match equally well", f.agents[0].desc.Name(), f.agents[n].desc.Name())))
	}
	f.agents = slices.Insert(f.agents[n:], 0, foldInto(f.agents[:n]))
	best := f.agents[0]
	return f.decision(best, Lexical, say(fmt.Sprintf("%q matches best: %.0f %% of the task", clipped(best.top().text), 100*best.score)))
}

// equals returns the number of first agents that match the same words of the task equally well; 0 without agents. The tie-break may select
// one of them. Agents that match different words mean that the task is about several things, and stop words mean nothing, so these are not equals.
func (f *candidateSet) equals() int {
	n := min(1, len(f.agents))
	for n > 0 && n < len(f.agents) && f.agents[0].words != 0 && f.agents[n].words == f.agents[0].words && f.agents[n].score == f.agents[0].score {
		n++
	}
	return n
}

// top returns the best point.
func (a *agent) top() point {
	return slices.MaxFunc(a.points, func(p, q point) int { return cmp.Compare(p.score, q.score) })
}

// descriptions returns the descriptions of an agent's capabilities.
func (a *agent) descriptions() []string {
	var all []string
	for _, p := range a.points {
		text := clipped(cmp.Or(p.capability.Description, p.capability.Name, p.capability.ID))
		if !slices.Contains(all, text) && len(all) < 16 {
			all = append(all, text)
		}
	}
	return all
}

// decision returns the decision. Candidates are the agents that match at all, and the selected one.
func (f *candidateSet) decision(chosen *agent, m Method, reason string) *Decision {
	d := &Decision{Candidates: []Candidate{}, Method: m, Reason: reason}
	for _, a := range f.agents {
		if a == chosen || a.score >= leastCounts && len(d.Candidates) < maxCandidates {
			d.Candidates = append(d.Candidates, a.candidate())
		}
		for _, other := range a.same {
			if other.score = a.score; other.score >= leastCounts && len(d.Candidates) < maxCandidates {
				c := other.candidate()
				c.Score = a.score
				d.Candidates = append(d.Candidates, c)
			}
		}
	}
	if chosen != nil {
		c := chosen.candidate()
		d.Agent = &c
		if len(chosen.same) > 0 {
			why := ""
			d.TieBreak, why = chosen.preferred()
			d.Reason += "; " + why
		}
	}
	if m == Lexical || chosen == nil {
		d.Reason += f.missing(chosen)
	}
	return d
}

// missing returns a text about an unreachable agent that matches better than the selected one, or "".
func (f *candidateSet) missing(chosen *agent) string {
	if len(f.unavailable) == 0 || len(f.agents) == 0 || f.unavailable[0].score < leastWords || chosen != nil && f.unavailable[0].score <= chosen.score {
		return ""
	}
	return "; " + f.unavailable[0].desc.Name() + " matches better, but " + f.unavailable[0].unavailability()
}

// noAgent returns the reason why no agent can be selected.
func (f *candidateSet) noAgent() string {
	if len(f.unavailable) == 0 {
		return "no agent is available"
	}
	return fmt.Sprintf("no agent is available: %s, the best match, %s", f.unavailable[0].desc.Name(), f.unavailable[0].unavailability())
}

// unavailability returns the reason why an agent is never selected.
func (a *agent) unavailability() string {
	if a.state.Refused {
		return "rejects this node"
	}
	return "is unreachable"
}

func (a *agent) candidate() Candidate {
	c := Candidate{ID: a.desc.Ref(), Name: a.desc.Name(), Score: a.score, Capabilities: []Capability{}}
	for _, p := range a.points {
		i := slices.IndexFunc(c.Capabilities, func(have Capability) bool { return have.ID == p.capability.ID })
		if i < 0 && len(c.Capabilities) < 8 {
			c.Capabilities = append(c.Capabilities, Capability{ID: p.capability.ID, Description: clipped(p.capability.Description), Examples: []string{}})
			i = len(c.Capabilities) - 1
		}
		if i >= 0 && len(p.capability.Examples) > 0 && len(c.Capabilities[i].Examples) < 4 {
			c.Capabilities[i].Examples = append(c.Capabilities[i].Examples, clipped(p.text))
		}
	}
	return c
}
