package render

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
)

// Topology writes a table of the nodes of a map, and one of the connections between them.
func Topology(s *terminal.Screen, m *api.Topology, wide bool) {
	names := nodeNames(m)
	terminal.TableOf(m.Nodes, wide, []terminal.Column[api.TopologyNode]{
		{Name: "NODE", Keep: true, Cell: func(n api.TopologyNode) terminal.Cell { return terminal.Text(names[n.DID]) }},
		{Name: "DID", Cell: func(n api.TopologyNode) terminal.Cell { return terminal.Short(n.DID.Short(), string(n.DID)) }},
		{Name: "ORGANIZATION", Cell: terminal.TextOf(func(n api.TopologyNode) string { return terminal.OneLine(n.Organization) })},
		{Name: "ROLES", Cell: terminal.TextOf(func(n api.TopologyNode) string { return terminal.OneLine(strings.Join(n.Roles, ",")) })},
		{Name: "AGENTS", Keep: true, Cell: terminal.TextOf(func(n api.TopologyNode) string { return strconv.Itoa(n.Agents) })},
		{Name: "STATE", Keep: true, Cell: terminal.TextOf(stateOfNode)},
		{Name: "SOURCE", Cell: terminal.TextOf(func(n api.TopologyNode) string { return n.Source })},
		{Name: "VERSION", Wide: true, Cell: terminal.TextOf(func(n api.TopologyNode) string { return terminal.OneLine(n.Version) })},
	}).Write(s)
	s.Line("")
	terminal.TableOf(m.Links, wide, []terminal.Column[api.TopologyLink]{
		{Name: "FROM", Keep: true, Cell: func(l api.TopologyLink) terminal.Cell { return terminal.Text(names[l.From]) }},
		{Name: "TO", Keep: true, Cell: func(l api.TopologyLink) terminal.Cell { return terminal.Text(names[l.To]) }},
		{Name: "RTT", Keep: true, Cell: terminal.TextOf(func(l api.TopologyLink) string { return measured(l.RTT) })},
		{Name: "PATH", Keep: true, Cell: func(l api.TopologyLink) terminal.Cell {
			if l.Relay == "" {
				return terminal.Text("direct")
			}
			return terminal.Short("via "+l.Relay.Short(), "via "+string(l.Relay))
		}},
		{Name: "TRANSPORT", Cell: terminal.TextOf(func(l api.TopologyLink) string { return terminal.OneLine(l.Transport) })},
		{Name: "SEEN BY", Wide: true, Cell: func(l api.TopologyLink) terminal.Cell { return terminal.Text(names[l.SeenBy]) }},
	}).Write(s)
}

func stateOfNode(n api.TopologyNode) string {
	switch {
	case n.Self:
		return "this node"
	case n.Reachable:
		return "reachable"
	}
	return "not reached"
}

// nodeNames returns a name for each node of a map: its own one, or the short form of its DID.
func nodeNames(m *api.Topology) map[did.DID]string {
	names := make(map[did.DID]string, len(m.Nodes))
	for _, n := range m.Nodes {
		if names[n.DID] = terminal.OneLine(n.Name); names[n.DID] == "" {
			names[n.DID] = n.DID.Short()
		}
	}
	return names
}

// TopologyCoverage describes how complete a map is.
func TopologyCoverage(m *api.Topology) string {
	text := terminal.Count(len(m.Nodes), "node", "nodes") + ", " + terminal.Count(len(m.Links), "connection", "connections")
	if c := m.Coverage; c.Asked > 0 {
		text += fmt.Sprintf("; %d of %s answered", c.Answered, terminal.Count(c.Asked, "member", "members"))
		if c.Unreachable > 0 {
			text += fmt.Sprintf(", %d not reached", c.Unreachable)
		}
	}
	if m.Coverage.Truncated {
		text += "; there are more"
	}
	return text
}

// Dot writes a map in the language of Graphviz. Relayed connections are dashed.
func Dot(s *terminal.Screen, m *api.Topology) {
	names := nodeNames(m)
	s.Line("graph mesh {")
	for _, n := range m.Nodes {
		s.Line("  " + quoteDot(string(n.DID)) + " [label=" + quoteDot(names[n.DID]) + "];")
	}
	for _, l := range m.Links {
		line := "  " + quoteDot(string(l.From)) + " -- " + quoteDot(string(l.To))
		if l.Relay != "" {
			line += " [style=dashed]"
		}
		s.Line(line + ";")
	}
	s.Line("}")
}

// quoteDot returns text as a quoted id of Graphviz, in which a backslash begins an escape.
func quoteDot(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}
