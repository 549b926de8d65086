// Package login implements lmosd login and lmosd logout: the OAuth 2.1 logins of this host at MCP servers.
package login

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/bridge/mcp/client"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/configcmd"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/oauth"
)

// flags are the flags of lmosd login.
type flags struct {
	clientID  string
	scopes    []string
	port      int
	timeout   time.Duration
	noBrowser bool
}

// NewCommand returns lmosd login.
func NewCommand(c *cli.Console) *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "login [mcp:https://…]",
		Short: "log in to an MCP server with OAuth 2.1, in a browser",
		Long: "Logs this host in to an MCP server: the user approves the request in a browser of this machine. The tokens are\n" +
			"stored next to the credentials of the node and renewed when they expire; the node of this machine and lmosd\n" +
			"expose use them. Without a terminal, the URL is only printed. A host with a client secret or key in its\n" +
			"credentials file needs no login. Without a server, the command lists the logins of this host.",
		Example: `  lmosd login
  lmosd login mcp:https://mcp.example/mcp
  lmosd login mcp:https://mcp.example/mcp --scope files:write
  lmosd login mcp:https://mcp.example/mcp --client-id lmosd-of-ann --port 8910`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd logout, lmosd expose"),
		Args:        cli.Takes(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return login(cmd.Context(), c, args[0], f)
			}
			if slices.ContainsFunc([]string{"client-id", "scope", "port", "timeout", "no-browser"}, cmd.Flags().Changed) {
				return cli.Usage("", "where is this host to log in?").Then(interact.StepLogin, "mcp:https://mcp.example/mcp")
			}
			return list(c)
		},
	}
	cmd.Flags().StringVar(&f.clientID, "client-id", "", "the `ID` of this host, where hosts do not register by themselves")
	cmd.Flags().StringArrayVar(&f.scopes, "scope", nil, "a `SCOPE` in addition to those that the server requires")
	cmd.Flags().IntVar(&f.port, "port", 0, "the `PORT` on 127.0.0.1 that the browser is redirected to; 0: any free port")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 5*time.Minute, "time limit of the approval in the browser")
	cmd.Flags().BoolVar(&f.noBrowser, "no-browser", false, "only print the address")
	return cmd
}

// options returns the options of a login at target, which must be a remote MCP server.
func options(c *cli.Console, target, verb string) (o client.LoginOptions, err error) {
	server, ok := strings.CutPrefix(target, "mcp:")
	if !ok || !strings.HasPrefix(server, "https://") && !strings.HasPrefix(server, "http://") {
		return o, cli.Usage("", "%s is no MCP server elsewhere", target).Then(cli.StepCommand, "lmosd "+verb+" mcp:https://mcp.example/mcp")
	}
	secrets, err := credentialsOf(c)
	return client.LoginOptions{Server: server, Credentials: secrets, Log: configcmd.CommandLogger(c),
		Transport: http.DefaultTransport.(*http.Transport).Clone()}, err
}

// credentialsOf loads the credentials in the data directory of this command.
func credentialsOf(c *cli.Console) (credentials.Store, error) {
	conf, err := configcmd.Load(c, nil)
	if err != nil {
		return credentials.Store{}, err
	}
	return credentials.Load(conf.CredentialsFile())
}

// An account is a login of this host: an item of a list.
type account struct {
	Server  string    `json:"server"`
	Issuer  string    `json:"issuer"`
	Scopes  []string  `json:"scopes"`
	Expires time.Time `json:"expires,omitzero"`
	Renews  bool      `json:"renews"` // without the user
	File    string    `json:"file"`
}

func newAccount(server string, g oauth.Grant, secrets credentials.Store) account {
	return account{server, g.Issuer, append([]string{}, g.Scopes...), g.Expires, g.Refresh != "", oauth.GrantsOf(secrets).Path()}
}

// ends returns when the login ends; empty if unknown.
func (l account) ends() string {
	switch {
	case l.Renews:
		return "never: it is renewed"
	case !l.Expires.IsZero():
		return l.Expires.Local().Format(time.DateTime)
	}
	return ""
}

// login logs this host in, with the user in a browser.
func login(ctx context.Context, c *cli.Console, target string, f flags) error {
	o, err := options(c, target, "login")
	if err != nil {
		return err
	}
	o.ClientID, o.Port = f.clientID, f.port
	o.Show = func(_ context.Context, address string) error {
		c.Talk.Line("open this address in a browser:")
		c.Talk.Line(terminal.OneLine(address))
		if c.Talk.TTY && !f.noBrowser && c.HasBrowser() {
			c.Browse(address)
		}
		return nil
	}
	l := client.NewLogin(o)
	defer l.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, f.timeout,
		interact.Errorf(interact.Timeout, "--timeout gives more time", "the login was not approved within %v", f.timeout))
	defer cancel()
	g, err := l.Authorize(ctx, f.scopes)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	doc := struct {
		cli.Head
		account
	}{cli.NewHead("Login"), newAccount(o.Server, g, o.Credentials)}
	err = c.Show(cli.View{Doc: doc, Names: []string{doc.Issuer}, People: func(to *terminal.Screen, _ bool) {
		to.Line(to.Paint(terminal.Green, "logged in") + " at " + terminal.OneLine(doc.Issuer))
		s := &terminal.Sheet{}
		s.Add("server", doc.Server)
		s.Add("scope", doc.Scopes...)
		s.Add("ends", doc.ends())
		s.Add("kept in", doc.File)
		s.Write(to)
	}})
	if err == nil {
		c.Next("lmosd expose " + terminal.Shell("mcp:"+doc.Server))
	}
	return err
}

// list prints the logins of this host.
func list(c *cli.Console) error {
	secrets, err := credentialsOf(c)
	if err != nil {
		return err
	}
	all, err := oauth.GrantsOf(secrets).All()
	if err != nil {
		return err
	}
	doc := cli.List[account]{Head: cli.NewHead("LoginList"), Items: []account{}}
	for _, server := range slices.Sorted(maps.Keys(all)) {
		for _, g := range all[server] {
			doc.Items = append(doc.Items, newAccount(server, g, secrets))
		}
	}
	t := terminal.TableOf(doc.Items, false, []terminal.Column[account]{
		{Name: "SERVER", Keep: true, Cell: terminal.TextOf(func(l account) string { return "mcp:" + l.Server })},
		{Name: "ISSUER", Cell: terminal.TextOf(func(l account) string { return l.Issuer })},
		{Name: "ENDS", Keep: true, Cell: terminal.TextOf(func(l account) string { return cmp.Or(l.ends(), "-") })},
		{Name: "SCOPES", Cell: terminal.TextOf(func(l account) string { return strings.Join(l.Scopes, " ") })},
	})
	if err := c.Show(cli.View{Doc: doc, Names: servers(secrets), People: cli.Body(t)}); err != nil {
		return err
	}
	if len(doc.Items) > 0 {
		c.Next("lmosd logout " + terminal.Shell("mcp:"+doc.Items[0].Server))
		return nil
	}
	if c.ForPeople() {
		c.Talk.Line("no logins")
	}
	c.Next("lmosd login mcp:https://mcp.example/mcp")
	return nil
}

// servers returns the servers at which this host is logged in, as arguments of the commands.
func servers(secrets credentials.Store) (all []string) {
	grants, _ := oauth.GrantsOf(secrets).All() // an unreadable file has none
	for _, server := range slices.Sorted(maps.Keys(grants)) {
		all = append(all, "mcp:"+server)
	}
	return all
}
