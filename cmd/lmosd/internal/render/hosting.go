package render

import (
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
)

// HostedTable returns the table of the Things of other owners that a node hosts.
func HostedTable(items []api.Hosted, now time.Time) *terminal.Table {
	nodes := func(ids []did.DID) terminal.Cell {
		short := make([]string, 0, len(ids))
		for _, id := range ids {
			short = append(short, id.Short())
		}
		return terminal.Short(strings.Join(short, " "), strings.Join(dids(ids), " "))
	}
	return terminal.TableOf(items, false, []terminal.Column[api.Hosted]{
		{Name: "NAME", Keep: true, Cell: func(h api.Hosted) terminal.Cell { return terminal.Short(h.Name, h.Ref) }},
		{Name: "STATE", Keep: true, Cell: terminal.TextOf(func(h api.Hosted) string { return h.State })},
		{Name: "ENDS", Keep: true, Cell: func(h api.Hosted) terminal.Cell {
			if h.State == api.HostedGrantEnded {
				return terminal.Short("ended", Stamp(h.Expires))
			}
			return terminal.Short("in "+terminal.Span(h.Expires.Sub(now)), Stamp(h.Expires))
		}},
		{Name: "HOSTS", Cell: func(h api.Hosted) terminal.Cell { return nodes(h.Hosts) }},
		{Name: "OWNER", Cell: func(h api.Hosted) terminal.Cell { return terminal.Short(h.Owner.Short(), string(h.Owner)) }},
		{Name: "GRANT", Wide: true, Cell: terminal.TextOf(func(h api.Hosted) string { return strconv.FormatUint(h.Number, 10) })},
		{Name: "NODES", Wide: true, Cell: func(h api.Hosted) terminal.Cell { return nodes(h.Nodes) }},
	})
}
