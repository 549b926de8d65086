package login

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/bridge/mcp/client"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/oauth"
)

// NewLogoutCommand returns lmosd logout.
func NewLogoutCommand(c *cli.Console) *cobra.Command {
	return &cobra.Command{
		Use:   "logout <mcp:https://…>",
		Short: "delete a login at an MCP server and revoke its tokens",
		Long: "Deletes the tokens of a login. A running node stops using them within seconds. If the authorization server\n" +
			"supports revocation, the tokens are revoked; tokens that could not be revoked are listed, and the command still\n" +
			"succeeds. The credentials file is not changed.",
		Example: `  lmosd logout mcp:https://mcp.example/mcp
  lmosd login -o name | xargs -n1 lmosd logout`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd login"),
		Args:        cli.Takes(1, 1),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			secrets, err := credentialsOf(c)
			if err != nil || len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return servers(secrets), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return logout(cmd.Context(), c, args[0])
		},
	}
}

// A loggedOut is the document of lmosd logout.
type loggedOut struct {
	cli.Head
	Server string  `json:"server"`
	File   string  `json:"file"`
	Grants []grant `json:"grants"`
}

// A grant is the result for the tokens of one issuer.
type grant struct {
	Issuer  string    `json:"issuer"`
	Revoked bool      `json:"revoked"`
	Reason  string    `json:"reason,omitempty"` // why it is not revoked
	Expires time.Time `json:"expires,omitzero"` // of the access token
}

// logout deletes a login.
func logout(ctx context.Context, c *cli.Console, target string) error {
	o, err := options(c, target, "logout")
	if err != nil {
		return err
	}
	l := client.NewLogin(o)
	defer l.Close()
	all, err := l.Logout(ctx)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return cli.Similar(interact.Errorf(interact.NotFound, "", "this host is not logged in at %s", target), target, servers(o.Credentials),
			"lmosd login   # lists the logins of this host")
	}
	doc := loggedOut{Head: cli.NewHead("Logout"), Server: o.Server, File: oauth.GrantsOf(o.Credentials).Path()}
	s := &terminal.Sheet{}
	for _, e := range all {
		g := grant{Issuer: e.Issuer, Revoked: e.Err == nil, Expires: e.Expires}
		if g.Revoked {
			s.Add("revoked at", g.Issuer)
		} else {
			s.Add("forgotten", "what "+g.Issuer+" granted")
			g.Reason = e.Err.Error()
		}
		doc.Grants = append(doc.Grants, g)
	}
	err = c.Show(cli.View{Doc: doc, Names: cli.Each(doc.Grants, func(g grant) string { return g.Issuer }), People: func(to *terminal.Screen, _ bool) {
		to.Line(to.Paint(terminal.Green, "logged out") + " of " + terminal.OneLine(doc.Server))
		s.Write(to)
	}})
	for _, g := range doc.Grants {
		if !g.Revoked && err == nil && c.ForPeople() {
			c.Warn("the tokens of " + g.Issuer + " are not revoked: " + g.Reason + ". Copies of them remain valid until they expire.")
		}
	}
	return err
}
