package render

import (
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

// ForeignIssuers returns the table of foreign issuers.
func ForeignIssuers(items []api.ForeignIssuer) *terminal.Table {
	return terminal.TableOf(items, false, []terminal.Column[api.ForeignIssuer]{
		{Name: "ISSUER", Keep: true, Cell: terminal.TextOf(func(i api.ForeignIssuer) string { return i.Name })},
		{Name: "ROLES", Keep: true, Cell: terminal.TextOf(func(i api.ForeignIssuer) string { return strings.Join(i.Roles, " ") })},
		{Name: "DID", Cell: terminal.TextOf(func(i api.ForeignIssuer) string { return string(i.DID) })},
	})
}

// ForeignCredentials returns the table of credentials of foreign issuers.
func ForeignCredentials(items []api.ForeignCredential, now time.Time) *terminal.Table {
	return terminal.TableOf(items, false, []terminal.Column[api.ForeignCredential]{
		{Name: "CREDENTIAL", Keep: true, Cell: terminal.TextOf(func(c api.ForeignCredential) string { return c.Hash[:min(len(c.Hash), 12)] })},
		{Name: "ISSUER", Keep: true, Cell: terminal.TextOf(func(c api.ForeignCredential) string {
			if c.IssuerName != "" {
				return c.IssuerName
			}
			return c.Issuer.Short()
		})},
		{Name: "OF", Keep: true, Cell: terminal.TextOf(func(c api.ForeignCredential) string {
			if c.Held {
				return "this node"
			}
			return c.Subject.Short()
		})},
		{Name: "TYPE", Cell: terminal.TextOf(func(c api.ForeignCredential) string { return strings.Join(c.Types, " ") })},
		{Name: "ROLES", Cell: terminal.TextOf(func(c api.ForeignCredential) string { return strings.Join(c.Roles, " ") })},
		{Name: "SHOWN TO", Cell: terminal.TextOf(shownTo)},
		{Name: "UNTIL", Keep: true, Cell: func(c api.ForeignCredential) terminal.Cell { return until(c.Until, now) }},
	})
}

// shownTo returns the nodes to which a held credential is shown.
func shownTo(c api.ForeignCredential) string {
	switch {
	case !c.Held:
		return ""
	case len(c.To) == 0:
		return "partners"
	}
	names := make([]string, len(c.To))
	for i, id := range c.To {
		names[i] = id.Short()
	}
	return strings.Join(names, " ")
}
