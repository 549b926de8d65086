package render

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
)

// Agents returns the table of agents that were found. Narrow terminals keep AGENT, STATE and SEEN.
func Agents(items []api.Agent, wide bool, now time.Time) *terminal.Table {
	name := Names(items)
	// A list of the own organization alone, or of vendors, needs no column.
	others := slices.ContainsFunc(items, func(g api.Agent) bool {
		return g.Organization != nil && g.Organization.DID != "" && g.Organization.State != "own"
	})
	return terminal.TableOf(items, wide, []terminal.Column[api.Agent]{
		{Name: "AGENT", Keep: true, Cell: func(g api.Agent) terminal.Cell { return terminal.Short(name(g)) }},
		{Name: "CAPABILITIES", Cell: terminal.TextOf(func(g api.Agent) string { return strings.Join(g.Capabilities, ",") })},
		{Name: "ACTIONS", Cell: terminal.TextOf(func(g api.Agent) string { return strings.Join(g.Actions, ",") })},
		{Name: "ORGANIZATION", Wide: !others, Cell: terminal.TextOf(func(g api.Agent) string { return AffiliationText(g.Organization) })},
		{Name: "STATE", Keep: true, Cell: func(g api.Agent) terminal.Cell { return terminal.Text(stateText(g)).In(stateColor(g)) }},
		{Name: "SEEN", Keep: true, Cell: func(g api.Agent) terminal.Cell {
			return terminal.Short(terminal.Ago(g.LastSeen, now), g.LastSeen.Format(time.RFC3339))
		}},
		{Name: "TITLE", Wide: true, Cell: terminal.TextOf(func(g api.Agent) string { return g.Title })},
		{Name: "ID", Wide: true, Cell: terminal.TextOf(func(g api.Agent) string { return g.ID })},
		{Name: "OWNER", Wide: true, Cell: terminal.TextOf(func(g api.Agent) string { return string(g.Owner) })},
		{Name: "HOSTS", Wide: true, Cell: terminal.TextOf(func(g api.Agent) string { return strings.Join(dids(g.Hosts), ",") })},
		{Name: "EXPIRES", Wide: true, Cell: terminal.TextOf(func(g api.Agent) string { return g.Expires.Format(time.RFC3339) })},
	})
}

// Scores returns the table of agents with the factors of their scores.
func Scores(items []api.Agent, wide bool) *terminal.Table {
	name := Names(items)
	return terminal.TableOf(items, wide, []terminal.Column[api.Agent]{
		{Name: "AGENT", Keep: true, Cell: func(g api.Agent) terminal.Cell { return terminal.Short(name(g)) }},
		{Name: "SCORE", Keep: true, Cell: terminal.TextOf(func(g api.Agent) string { return fmt.Sprintf("%.3f", g.Score) })},
		{Name: "WHY", Cell: terminal.TextOf(func(g api.Agent) string { return strings.Join(cli.Each(g.ScoreFactors, factor), ", ") })},
	})
}

// Choices returns the table of agents in the order of a call, with the reasons.
func Choices(items []api.Agent) *terminal.Table {
	name := Names(items)
	return terminal.TableOf(items, false, []terminal.Column[api.Agent]{
		{Name: "CANDIDATE", Keep: true, Cell: func(g api.Agent) terminal.Cell { return terminal.Short(name(g)) }},
		{Name: "REASON", Cell: terminal.TextOf(Reason)},
	})
}

// Reason returns the reason of the place of an agent in the order of a call; "" without one.
func Reason(g api.Agent) string {
	if g.Choice == nil {
		return ""
	}
	return g.Choice.Reason
}

func factor(w api.ScoreFactor) string {
	switch {
	case w.Signal == "fallback":
		return "(" + w.Found + ")"
	case w.Asked != "" && w.Asked != w.Found:
		return fmt.Sprintf("%s ≈ %s in %s %.3f", w.Asked, w.Found, w.Field, w.Amount)
	case w.Asked != "":
		return fmt.Sprintf("%s in %s %.3f", w.Asked, w.Field, w.Amount)
	case w.Found != "":
		return fmt.Sprintf("%s (%s) %.3f", w.Signal, w.Found, w.Amount)
	}
	return fmt.Sprintf("%s %.3f", w.Signal, w.Amount)
}

// Coverage returns a line about the completeness of a list.
func Coverage(list *api.AgentList, now time.Time) string {
	c := list.Coverage
	hosts, states := map[did.DID]bool{}, map[api.State]int{}
	for _, g := range list.Items {
		for _, h := range g.Hosts {
			hosts[h] = true
		}
		states[g.State]++
	}
	asked := "asked no other node"
	if c.Asked > 0 {
		asked = fmt.Sprintf("asked %s, %d answered", terminal.Count(c.Asked, "node", "nodes"), c.Answered)
	}
	if c.Unreachable > 0 {
		asked += fmt.Sprintf(", %d unreachable", c.Unreachable)
	}
	if !c.Oldest.IsZero() {
		asked += ", oldest " + terminal.Ago(c.Oldest, now)
	}
	shown := terminal.Count(len(list.Items), "agent", "agents")
	switch {
	case list.Total != nil && *list.Total > len(list.Items):
		shown = fmt.Sprintf("%d of %s", len(list.Items), terminal.Count(*list.Total, "agent", "agents"))
	case len(list.Items) == 0:
		shown = "no agents"
	}
	if len(hosts) > 0 {
		shown += " from " + terminal.Count(len(hosts), "node", "nodes")
	}
	parts := []string{shown, asked}
	if n := states[api.StateUnreachable]; n > 0 {
		parts = append(parts, terminal.Count(n, "agent is unreachable", "agents are unreachable"))
	}
	if c.Refused > 0 {
		parts = append(parts, terminal.Count(c.Refused, "agent is refused to this node", "agents are refused to this node")+" (LMOS-1403)")
	}
	if n := states[api.StateUnknown]; n > 0 {
		parts = append(parts, terminal.Count(n, "agent was not reached yet", "agents were not reached yet"))
	}
	switch {
	case c.Truncated:
		parts = append(parts, "incomplete: cut at the deadline or another bound")
	case !c.Complete():
		parts = append(parts, "incomplete")
	}
	return strings.Join(append(parts, terminal.Millis(list.Took)), " · ")
}

// signs are the first characters of the lines of changes.
var signs = map[string]string{"known": " ", "added": "+", "changed": "~", "removed": "-", "overflow": "!"}

// Change prints a line for a change.
func Change(s *terminal.Screen, c api.AgentChange, now time.Time) {
	what := "changes were missed: look again with lmosd find"
	if c.Agent != nil {
		what = Name(*c.Agent)
		if !s.TTY {
			what = fullName(*c.Agent)
		}
	}
	at := c.Time
	if at.IsZero() {
		at = now
	}
	why := c.Reason
	if why == "" && c.Agent != nil {
		why = stateText(*c.Agent)
	}
	if !s.TTY {
		s.Line(strings.Join([]string{signs[c.Change], at.Format(time.RFC3339Nano), terminal.OneLine(what), why}, "\t"))
		return
	}
	s.Line(fmt.Sprintf("%s %s  %s  %s", s.Paint(terminal.Bold, signs[c.Change]), s.Paint(terminal.Dim, at.Local().Format("15:04:05")),
		s.Paint(terminal.Bold, terminal.OneLine(what)), why))
}

// Route prints the selected agent; wide, with the other candidates.
func Route(s *terminal.Screen, d *api.RouteAnswer, wide bool) {
	picked := "no agent fits"
	if d.Agent != nil {
		picked = terminal.OneLine(d.Agent.Name) + "  " + terminal.OneLine(d.Agent.ID)
		if s.TTY {
			picked = terminal.OneLine(CandidateName(d.Agent))
		}
	}
	s.Line(s.Paint(terminal.Bold, picked))
	s.Line(fmt.Sprintf("%s: %s", d.Method, terminal.OneLine(d.Reason)))
	if !wide || len(d.Candidates) == 0 {
		return
	}
	t := terminal.TableOf(d.Candidates, wide, []terminal.Column[api.Candidate]{
		{Name: "CANDIDATE", Keep: true, Cell: func(c api.Candidate) terminal.Cell { return terminal.Short(CandidateName(&c), c.ID) }},
		{Name: "SCORE", Keep: true, Cell: terminal.TextOf(func(c api.Candidate) string { return fmt.Sprintf("%.3f", c.Score) })},
		{Name: "CAPABILITIES", Cell: terminal.TextOf(func(c api.Candidate) string {
			return strings.Join(cli.Each(c.Capabilities, func(c api.CandidateCapability) string { return c.ID }), ",")
		})},
	})
	t.Write(s)
}
