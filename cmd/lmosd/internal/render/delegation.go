package render

import (
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

// DelegationTable is the table of the delegations of a node.
func DelegationTable(items []api.Delegation, wide bool, now time.Time) *terminal.Table {
	return terminal.TableOf(items, wide, []terminal.Column[api.Delegation]{
		{Name: "ID", Keep: true, Cell: func(d api.Delegation) terminal.Cell { return terminal.Short(d.ID[:min(len(d.ID), 12)], d.ID) }},
		{Name: "RIGHT", Keep: true, Cell: terminal.TextOf(func(d api.Delegation) string { return d.Op + " " + d.Agent + "/" + d.Name })},
		{Name: "TO", Cell: func(d api.Delegation) terminal.Cell { return terminal.Short(d.To.Short(), string(d.To)) }},
		{Name: "ENDS", Cell: func(d api.Delegation) terminal.Cell {
			return terminal.Short("in "+terminal.Span(d.Expires.Sub(now)), Stamp(d.Expires))
		}},
		{Name: "BY", Wide: true, Cell: terminal.TextOf(func(d api.Delegation) string { return d.By })},
		{Name: "WHERE", Wide: true, Cell: terminal.TextOf(func(d api.Delegation) string { return strings.Join(d.Where, ", ") })},
		{Name: "HOST", Wide: true, Cell: terminal.TextOf(func(d api.Delegation) string { return string(d.Host) })},
	})
}
