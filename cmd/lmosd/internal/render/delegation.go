package render

import (
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

// DelegationTable is the table of what consumers of a node delegated.
func DelegationTable(items []api.Delegation, wide bool, now time.Time) *terminal.Table {
	return terminal.TableOf(items, wide, slices.Concat(rightColumns, []terminal.Column[api.Delegation]{
		{Name: "TO", Cell: func(d api.Delegation) terminal.Cell { return terminal.Short(d.To.Short(), string(d.To)) }},
		endColumn(now),
		{Name: "BY", Wide: true, Cell: terminal.TextOf(func(d api.Delegation) string { return d.By })},
		{Name: "WHERE", Wide: true, Cell: terminal.TextOf(func(d api.Delegation) string { return strings.Join(d.Where, ", ") })},
		{Name: "HOST", Wide: true, Cell: terminal.TextOf(func(d api.Delegation) string { return string(d.Host) })},
	}))
}

// IssuedTable is the table of what a host permitted others to delegate.
func IssuedTable(items []api.Delegation, wide bool, now time.Time) *terminal.Table {
	return terminal.TableOf(items, wide, slices.Concat(rightColumns, []terminal.Column[api.Delegation]{
		{Name: "BY", Cell: terminal.TextOf(func(d api.Delegation) string { return d.By })},
		endColumn(now),
	}))
}

var rightColumns = []terminal.Column[api.Delegation]{
	{Name: "ID", Keep: true, Cell: func(d api.Delegation) terminal.Cell { return terminal.Short(d.ID[:min(len(d.ID), 12)], d.ID) }},
	{Name: "RIGHT", Keep: true, Cell: terminal.TextOf(func(d api.Delegation) string { return d.Op + " " + d.Agent + "/" + d.Name })},
}

func endColumn(now time.Time) terminal.Column[api.Delegation] {
	return terminal.Column[api.Delegation]{Name: "ENDS", Cell: func(d api.Delegation) terminal.Cell {
		if d.Revoking {
			return terminal.Short("revoking", "revoking, "+Stamp(d.Expires))
		}
		return terminal.Short("in "+terminal.Span(d.Expires.Sub(now)), Stamp(d.Expires))
	}}
}
