package render

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
)

// GroupTable is the table of the groups of a node.
func GroupTable(items []api.Group, wide bool) *terminal.Table {
	return terminal.TableOf(items, wide, []terminal.Column[api.Group]{
		{Name: "NAME", Keep: true, Cell: terminal.TextOf(func(g api.Group) string { return g.Name })},
		{Name: "STATE", Keep: true, Cell: terminal.TextOf(func(g api.Group) string { return g.State })},
		{Name: "ROLE", Cell: terminal.TextOf(func(g api.Group) string { return g.Role })},
		{Name: "MEMBERS", Cell: terminal.TextOf(func(g api.Group) string { return strconv.Itoa(g.Count) })},
		{Name: "LABELS", Cell: terminal.TextOf(func(g api.Group) string { return labels(g.Labels) })},
		{Name: "ID", Wide: true, Cell: terminal.TextOf(func(g api.Group) string { return g.ID })},
	})
}

func labels(all map[string]string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		parts = append(parts, name+"="+all[name])
	}
	return strings.Join(parts, " ")
}

// GroupSheet writes a group with its members.
func GroupSheet(s *terminal.Screen, g *api.Group, wide bool) {
	sheet := &terminal.Sheet{}
	sheet.Add("group", g.Name)
	if g.Title != g.Name {
		sheet.Add("title", g.Title)
	}
	sheet.Add("id", g.ID)
	sheet.Add("state", g.State)
	if g.Role != "" {
		sheet.Add("role", g.Role)
	}
	if len(g.Labels) > 0 {
		sheet.Add("labels", labels(g.Labels))
	}
	if g.Threshold > 1 {
		sheet.Add("threshold", terminal.Count(g.Threshold, "admin agrees", "admins agree")+" to a change of the admins and to the end")
	}
	for _, r := range g.Join {
		sheet.Add("join", fmt.Sprintf("%s/%s as %s", r.Issuer, r.Role, r.As))
	}
	sheet.Add("log", fmt.Sprintf("%s, the newest of %s", terminal.Count(g.Entries, "entry", "entries"), Stamp(g.Changed)))
	for _, p := range g.Pending {
		sheet.Add("pending", fmt.Sprintf("%s %s %s: %d of %d admins", p.Kind, p.Member.Short(), p.Role, p.Approved, p.Needed))
	}
	for _, split := range g.Splits {
		text := fmt.Sprintf("after %.12s…: %s", split.After, terminal.Count(len(split.Entries), "entry", "entries"))
		if split.Signer != "" {
			text += ", all signed by " + split.Signer.Short()
		}
		sheet.Add("split", text)
	}
	sheet.Write(s)
	s.Line("")
	GroupMembers(g.Members, wide).Write(s)
	if wide {
		for _, f := range g.Former {
			word := "left"
			if f.Removed {
				word = "was removed"
			}
			s.Line(fmt.Sprintf("%s %s with entry %d", f.DID.Short(), word, f.Until))
		}
	}
}

// GroupMembers is the table of the members of a group.
func GroupMembers(items []api.GroupMember, wide bool) *terminal.Table {
	return terminal.TableOf(items, wide, []terminal.Column[api.GroupMember]{
		{Name: "MEMBER", Keep: true, Cell: func(m api.GroupMember) terminal.Cell { return terminal.Short(m.DID.Short(), string(m.DID)) }},
		{Name: "ROLE", Keep: true, Cell: terminal.TextOf(func(m api.GroupMember) string { return m.Role })},
		{Name: "ORGANIZATION", Cell: terminal.TextOf(func(m api.GroupMember) string { return organization(m.Org) })},
		{Name: "NOTE", Cell: terminal.TextOf(func(m api.GroupMember) string {
			if m.Problem == "" && !m.Until.IsZero() {
				return "until " + Stamp(m.Until)
			}
			return m.Problem
		})},
		{Name: "NODE", Wide: true, Cell: terminal.TextOf(func(m api.GroupMember) string { return string(m.Node) })},
	})
}

// organization returns the domain of an organization, or the DID.
func organization(id did.DID) string {
	if parts := strings.SplitN(string(id), ":", 4); len(parts) == 4 && parts[1] == "webvh" {
		return parts[3]
	}
	return string(id)
}
