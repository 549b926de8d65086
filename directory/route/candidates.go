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

// A field has the agents for one question, with the lexical scores of their examples.
type candidateSet struct {
	about       string
	agents      []*agent // selectable ones: best first, then by reference
	unavailable []*agent // never selected: unreachable, or refusing this node
}

// An agent is a member of a field.
type agent struct {
	desc   *td.Description
	points []point
	score  float64 // of its best point

	state AgentState
	same  []*agent // others with an equal description, best first
}

// A point is a text by which an agent is matched: an example of a capability, or the description of a capability without examples.
type point struct {
	capability *td.Capability
	text       string
	score      float64 // 0 to 1
}

// newCandidateSet scores all examples of the agents by words. One of several agents with equal descriptions represents all.
func newCandidateSet(descs []*td.Description, about string, standing func(*td.Description) AgentState) *candidateSet {
	f := &candidateSet{about: about}
	for _, d := range descs {
		a := &agent{desc: d, points: pointsOf(d), state: standing(d)}
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

// Limits of the comparison, because questions and descriptions are untrusted.
const (
	maxAsked  = 32 // different words of a question
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

// scoreByWords scores each point by the part of the question's words that it matches, where frequent words count less.
func (f *candidateSet) scoreByWords() {
	asked, every := different(textmatch.Content(f.about)), different(textmatch.Split(f.about))
	texts := map[*point][]string{}
	having := make([]int, len(asked)) // number of points with a matching word
	n := 0
	for _, a := range slices.Concat(f.agents, f.unavailable) {
		for i := range a.points {
			p := &a.points[i]
			// With stop words, for questions that have no other words.
			text := textmatch.Split(clipped(p.capability.Name) + " " + clipped(p.text))
			texts[p] = text[:min(len(text), maxWords)]
			n++
			for j, w := range asked {
				if likeAny(w, texts[p]) {
					having[j]++
				}
			}
		}
	}
	weights, all := make([]float64, len(asked)), 0.0
	for j := range asked {
		if weights[j] = math.Log1p(float64(n) / float64(1+having[j])); having[j] == 0 {
			weights[j] = math.Log1p(1) // no point has it
		}
		all += weights[j]
	}
	for p, text := range texts {
		for j, w := range asked {
			if all > 0 && likeAny(w, text) {
				p.score += weights[j] / all
			}
		}
		p.score = max(p.score, p.stopWordScore(every))
	}
	f.rank()
}

// different returns the distinct words among some, at most maxAsked.
func different(all []string) []string {
	all = slices.Compact(slices.Sorted(slices.Values(all)))
	return all[:min(len(all), maxAsked)]
}

// stopWordScore scores an example of stop words only, like "who are you": if the question has all of them, the part of the question's words that
// they are.
func (p *point) stopWordScore(asked []string) float64 {
	own := different(textmatch.Split(clipped(p.text)))
	if len(p.capability.Examples) == 0 || len(own) == 0 || len(asked) == 0 || textmatch.IsInformative(p.text) {
		return 0
	}
	for _, w := range own {
		if !slices.Contains(asked, w) {
			return 0
		}
	}
	return float64(len(own)) / float64(len(asked))
}

func likeAny(word string, among []string) bool {
	return slices.ContainsFunc(among, func(w string) bool { return textmatch.Like(word, w) })
}

// rank orders agents, best first.
func (f *candidateSet) rank() {
	for _, all := range [][]*agent{f.agents, f.unavailable} {
		for _, a := range all {
			a.score = 0
			for _, p := range a.points {
				a.score = max(a.score, p.score)
			}
		}
		slices.SortStableFunc(all, func(a, b *agent) int { return cmp.Compare(b.score, a.score) })
	}
}

// best returns the first agents.
func (f *candidateSet) best(n int) []*agent { return f.agents[:min(n, len(f.agents))] }

// Thresholds of a lexical decision: the best agent matches half of the question, and clearly more than the second one.
const (
	leastWords  = 0.5
	leastAhead  = 1.0 / 3 // of the best's score
	leastCounts = 0.05    // below it, an agent is no candidate
)

// byWords decides by words alone; why is the reason if another method was requested.
func (f *candidateSet) byWords(why string) *Decision {
	say := func(s string) string {
		if why == "" {
			return s
		}
		return why + ": " + s
	}
	switch {
	case len(f.agents) == 0:
		return f.decision(nil, Lexical, say(f.noAgent()))
	case f.agents[0].score < leastCounts:
		return f.decision(nil, Lexical, say("no agent has a word of what is asked for"))
	case f.agents[0].score < leastWords:
		return f.decision(nil, Lexical, say(fmt.Sprintf("the best agent, %s, has %.0f %% of what is asked for; half is needed",
			f.agents[0].desc.Name(), 100*f.agents[0].score)))
	case len(f.agents) > 1 && f.agents[0].score-f.agents[1].score < leastAhead*f.agents[0].score:
		return f.decision(nil, Lexical, say(fmt.Sprintf("%s and %s fit equally well", f.agents[0].desc.Name(), f.agents[1].desc.Name())))
	}
	best := f.agents[0]
	return f.decision(best, Lexical, say(fmt.Sprintf("%q fits best: %.0f %% of what is asked for", clipped(best.top().text), 100*best.score)))
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
	return "; " + f.unavailable[0].desc.Name() + " fits better, and " + f.unavailable[0].unavailability()
}

// noAgent returns the reason why no agent can be selected.
func (f *candidateSet) noAgent() string {
	if len(f.unavailable) == 0 {
		return "there is no agent to choose from"
	}
	return fmt.Sprintf("there is no agent to choose from: %s, which fits best of those known, %s", f.unavailable[0].desc.Name(), f.unavailable[0].unavailability())
}

// unavailability returns why an agent is never selected.
func (a *agent) unavailability() string {
	if a.state.Refused {
		return "refuses this node"
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
