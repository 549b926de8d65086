package render

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/input"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// Agent returns the sheet of an agent, whose description is t.
func Agent(d *api.AgentDetail, t *td.Thing, now time.Time) *terminal.Sheet {
	g := d.Agent
	s := &terminal.Sheet{}
	s.Add("agent", Name(g))
	s.Add("moved from", d.MovedFrom)
	s.Add("title", g.Title)
	s.Add("about", g.Description)
	s.Add("id", g.ID)
	s.Add("owner", string(g.Owner))
	var found struct {
		At string `json:"lmosd:discovered"`
	}
	if json.Unmarshal(d.TD, &found) == nil {
		s.Add("found at", found.At)
	}
	s.Add("host", dids(g.Hosts)...)
	s.Add("signature", signature(d.Signature, g.Owner))
	s.Add("record", fmt.Sprintf("revision %d · %s · sha256 %s", d.Signature.Seq, terminal.Size(d.Signature.Size), d.Signature.Hash))
	for _, other := range d.Namesakes {
		s.Add("namesake", other+" · has the name too; this one is of this node, or trusted")
	}
	if e := d.Agent.Equivocation; e != nil {
		s.Add("warning", fmt.Sprintf("equivocation: its owner signed two different records of revision %d, seen %s ago; two programs may use its key",
			e.Seq, terminal.Ago(e.Seen, now)))
	}
	s.Add("state", fmt.Sprintf("%s · seen %s ago · expires in %s", stateText(g), terminal.Ago(g.LastSeen, now), terminal.Span(g.Expires.Sub(now))))
	for _, c := range t.Capabilities {
		if c.Name == c.ID {
			c.Name = ""
		}
		s.Add("capability", Join(" · ", c.ID, c.Name, c.Version, c.Description))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Actions)) {
		s.Add("action", Join(" · ", strings.TrimSpace(name+" "+input.Usage(t.Actions[name].InputWithVariables())), t.Actions[name].Description))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Properties)) {
		s.Add("property", Join(" · ", name, access(t.Properties[name]), t.Properties[name].Affordance.Description))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Events)) {
		s.Add("event", Join(" · ", name, t.Events[name].Description))
	}
	return s
}

// signature returns the result of the verification as text.
func signature(s api.Signature, owner did.DID) string {
	if !s.Verified {
		return "✗ not verified: do not rely on anything here"
	}
	key := ""
	if s.Method != string(owner)+"#"+owner.Multibase() {
		key = ", key " + s.Method // one of several keys of the owner
	}
	return fmt.Sprintf("✓ verified: signed by the owner %s at %s (%s%s)", owner.Short(), s.Created.Format(time.RFC3339), s.Suite, key)
}

// access returns the operations of a property.
func access(p *td.Property) string {
	switch {
	case p.ReadOnly:
		return "read only"
	case p.WriteOnly:
		return "write only"
	}
	return "read, write"
}

// Tasks returns the table of tasks.
func Tasks(items []api.Task, now time.Time) *terminal.Table {
	return terminal.TableOf(items, false, []terminal.Column[api.Task]{
		{Name: "TASK", Keep: true, Cell: func(i api.Task) terminal.Cell { return terminal.Short(i.ID[:min(len(i.ID), shortTask)], i.ID) }},
		{Name: "AGENT", Cell: func(i api.Task) terminal.Cell { return terminal.Short(i.Name, i.Thing) }},
		{Name: "ACTION", Cell: terminal.TextOf(func(i api.Task) string { return i.Action })},
		{Name: "STATUS", Keep: true, Cell: terminal.TextOf(func(i api.Task) string {
			if i.Status == api.UnknownTask {
				return fmt.Sprintf("%s (%s %s ago)", i.Status, i.LastStatus, terminal.Ago(i.LastSeen, now))
			}
			return i.Status
		})},
		{Name: "BEGAN", Keep: true, Cell: func(i api.Task) terminal.Cell {
			return terminal.Short(terminal.Ago(i.Requested, now), i.Requested.Format(time.RFC3339))
		}},
		{Name: "TOOK", Keep: true, Cell: func(i api.Task) terminal.Cell { return duration(i, now) }},
	})
}

// duration returns how long a task took, or has taken until now.
func duration(i api.Task, now time.Time) terminal.Cell {
	if i.Status == api.UnknownTask {
		return terminal.Text("–")
	}
	if !i.Ended.IsZero() {
		now = i.Ended
	}
	took := now.Sub(i.Requested)
	return terminal.Short(terminal.Span(took), took.Round(time.Millisecond).String())
}

// shortTask is the length of an id on a terminal: a UUID up to its first hyphen.
const shortTask = 8

// Paths returns the table of the paths to an agent.
func Paths(items []api.Path) *terminal.Table {
	return terminal.TableOf(items, false, []terminal.Column[api.Path]{
		{Name: "WAY", Keep: true, Cell: terminal.TextOf(func(p api.Path) string { return p.Name })},
		{Name: "STATE", Keep: true, Cell: terminal.TextOf(func(p api.Path) string {
			if p.Down {
				return "down"
			}
			return "up"
		})},
		{Name: "TOOK", Keep: true, Cell: terminal.TextOf(func(p api.Path) string { return measured(p.Took) })},
		{Name: "ADDRESS", Cell: terminal.TextOf(func(p api.Path) string { return p.Href })},
	})
}

// Ping returns the sheet of a measurement.
func Ping(p *api.Ping) *terminal.Sheet {
	s := &terminal.Sheet{}
	s.Add("host", string(p.Node))
	s.Add("way", p.Path)
	if len(p.RTT) == 0 || slices.Max(p.RTT) == 0 {
		return s // this node is the host
	}
	sum, each := 0.0, make([]string, len(p.RTT))
	for i, rtt := range p.RTT {
		sum += rtt
		each[i] = terminal.Millis(rtt)
	}
	s.Add("rtt", strings.Join(each, "  "))
	if len(p.RTT) > 1 {
		s.Add("least", terminal.Millis(slices.Min(p.RTT)))
		s.Add("mean", terminal.Millis(sum/float64(len(p.RTT))))
		s.Add("most", terminal.Millis(slices.Max(p.RTT)))
	}
	return s
}

// Stamp returns a time as text; empty if it is zero.
func Stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.RFC3339)
}
