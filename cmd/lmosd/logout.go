package main

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/bridge/mcp/client"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/configcmd"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/oauth"
)

func newLogoutCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "logout <mcp:https://…>",
		Short: "delete a login at an MCP server and revoke its tokens",
		Long: "Deletes the tokens of a login. A running node stops using them within seconds. If the authorization server\n" +
			"supports revocation, the tokens are revoked; tokens that could not be revoked are listed, and the command still\n" +
			"succeeds. The credentials file is not changed.",
		Example: `  lmosd logout mcp:https://mcp.example/mcp
  lmosd login -o name | xargs -n1 lmosd logout`,
		Annotations:       cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd login"),
		Args:              cli.Takes(1, 1),
		ValidArgsFunction: a.completeLogin,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.logout(cmd.Context(), args[0])
		},
	}
}

// serverOf is the address of a target, which has to be an MCP server elsewhere.
func serverOf(target, command string) (string, error) {
	server, ok := strings.CutPrefix(target, "mcp:")
	if !ok || !strings.HasPrefix(server, "https://") && !strings.HasPrefix(server, "http://") {
		return "", cli.Usage(command+" mcp:https://mcp.example/mcp", "%s is no MCP server elsewhere", target)
	}
	return server, nil
}

// secrets are those of this command's folder.
func (a *app) secrets() (credentials.Store, error) {
	c, err := configcmd.Load(a.Console, nil)
	if err != nil {
		return credentials.Store{}, err
	}
	return credentials.Load(c.CredentialsFile())
}

// A loggedOut is the document of `lmosd logout`.
type loggedOut struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"` // Logout
	Server     string   `json:"server"`
	File       string   `json:"file"`
	Grants     []ending `json:"grants"`
}

// An ending is what became of what an issuer had granted.
type ending struct {
	Issuer  string    `json:"issuer"`
	Revoked bool      `json:"revoked"`
	Reason  string    `json:"reason,omitempty"` // why not
	Expires time.Time `json:"expires,omitzero"` // when the access token ends by itself
}

// logout forgets a login.
func (a *app) logout(ctx context.Context, target string) error {
	server, err := serverOf(target, "lmosd logout")
	if err != nil {
		return err
	}
	secrets, err := a.secrets()
	if err != nil {
		return err
	}
	l := client.NewLogin(client.LoginOptions{Server: server, Credentials: secrets, Log: a.ownLogger(),
		Transport: http.DefaultTransport.(*http.Transport).Clone()})
	defer l.Close()
	all, err := l.Logout(ctx)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		hint := cli.HintFor(target, logins(secrets), "lmosd login   # lists the logins of this host")
		return interact.Errorf(interact.NotFound, hint, "this host is not logged in at %s", target)
	}
	doc := loggedOut{APIVersion: api.APIVersion, Kind: "Logout", Server: server, File: oauth.GrantsOf(secrets).Path()}
	for _, e := range all {
		one := ending{Issuer: e.Issuer, Revoked: e.Err == nil, Expires: e.Expires}
		if e.Err != nil {
			one.Reason = e.Err.Error()
		}
		doc.Grants = append(doc.Grants, one)
	}
	return a.showLogout(doc)
}

func (a *app) showLogout(doc loggedOut) error {
	v := cli.View{Doc: doc, People: func(to *terminal.Screen, _ bool) {
		to.Line(to.Paint(terminal.Green, "logged out") + " of " + terminal.OneLine(doc.Server))
		s := &terminal.Sheet{}
		for _, g := range doc.Grants {
			if g.Revoked {
				s.Add("revoked at", g.Issuer)
			} else {
				s.Add("forgotten", "what "+g.Issuer+" granted")
			}
		}
		s.Write(to)
	}}
	for _, g := range doc.Grants {
		v.Names = append(v.Names, g.Issuer)
	}
	if err := a.Show(v); err != nil || !a.ForPeople() {
		return err
	}
	for _, g := range doc.Grants {
		if !g.Revoked {
			a.Talk.Item(a.Talk.Paint(terminal.Yellow, "warning: "), 9, "the tokens of "+g.Issuer+" are not revoked: "+g.Reason+
				". Whoever has a copy of them can use them until they end.")
		}
	}
	return nil
}

// A loginList is the document of `lmosd login` without a server.
type loginList struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"` // LoginList
	Items      []loggedIn `json:"items"`
}

// listLogins says where this host is logged in.
func (a *app) listLogins() error {
	secrets, err := a.secrets()
	if err != nil {
		return err
	}
	all, err := oauth.GrantsOf(secrets).All()
	if err != nil {
		return err
	}
	list := loginList{APIVersion: api.APIVersion, Kind: "LoginList", Items: []loggedIn{}}
	for _, server := range slices.Sorted(maps.Keys(all)) {
		for _, g := range all[server] {
			list.Items = append(list.Items, newLoggedIn(server, g, secrets))
		}
	}
	v := cli.View{Doc: list, Names: logins(secrets), People: func(s *terminal.Screen, _ bool) { loginTable(list.Items).Write(s) }}
	if err := a.Show(v); err != nil {
		return err
	}
	if len(list.Items) > 0 {
		a.Next("lmosd logout " + terminal.Shell("mcp:"+list.Items[0].Server))
		return nil
	}
	if a.ForPeople() {
		a.Talk.Line("no logins")
	}
	a.Next("lmosd login mcp:https://mcp.example/mcp")
	return nil
}

func loginTable(items []loggedIn) *terminal.Table {
	t := &terminal.Table{Header: []string{"SERVER", "ISSUER", "ENDS", "SCOPES"}, Keep: []int{0, 2}}
	for _, one := range items {
		ends := one.ends()
		if ends == "" {
			ends = "-"
		}
		t.Add(terminal.Texts("mcp:"+one.Server, one.Issuer, ends, strings.Join(one.Scopes, " "))...)
	}
	return t
}

// logins are the servers at which this host is logged in, as they are written on a command line.
func logins(secrets credentials.Store) (all []string) {
	kept, _ := oauth.GrantsOf(secrets).All() // without an answer there are none
	for _, server := range slices.Sorted(maps.Keys(kept)) {
		all = append(all, "mcp:"+server)
	}
	return all
}

// completeLogin completes the servers at which this host is logged in.
func (a *app) completeLogin(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	secrets, err := a.secrets()
	if err != nil || len(args) > 0 {
		return nil, noFiles
	}
	return logins(secrets), noFiles
}
