package render

import (
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

// Tokens returns the table of access tokens.
func Tokens(items []api.Token, now time.Time) *terminal.Table {
	return terminal.TableOf(items, false, []terminal.Column[api.Token]{
		{Name: "TOKEN", Keep: true, Cell: terminal.TextOf(func(t api.Token) string { return t.Name })},
		{Name: "SCOPES", Keep: true, Cell: terminal.TextOf(func(t api.Token) string { return strings.Join(t.Scopes, " ") })},
		{Name: "ROLES", Cell: terminal.TextOf(func(t api.Token) string { return strings.Join(t.Roles, " ") })},
		{Name: "CREATED", Cell: func(t api.Token) terminal.Cell { return terminal.Short(terminal.Ago(t.Created, now), Stamp(t.Created)) }},
		{Name: "EXPIRES", Keep: true, Cell: func(t api.Token) terminal.Cell {
			if t.Expired {
				return terminal.Short("expired", "expired "+Stamp(t.Expires))
			}
			return terminal.Short("in "+terminal.Span(t.Expires.Sub(now)), Stamp(t.Expires))
		}},
	})
}
