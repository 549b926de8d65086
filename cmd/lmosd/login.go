package main

import (
	"context"
	"net/http"
	"os/exec"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/bridge/mcp/client"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/oauth"
)

// A loginFlags says as what this host is logged in, and how.
type loginFlags struct {
	clientID  string
	scopes    []string
	port      int
	wait      time.Duration
	noBrowser bool
}

func newLoginCommand(a *app) *cobra.Command {
	var f loginFlags
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
				return a.login(cmd.Context(), args[0], f)
			}
			if slices.ContainsFunc([]string{"client-id", "scope", "port", "timeout", "no-browser"}, cmd.Flags().Changed) {
				return cli.Usage("lmosd login mcp:https://mcp.example/mcp", "where is this host to log in?")
			}
			return a.listLogins()
		},
	}
	cmd.Flags().StringVar(&f.clientID, "client-id", "", "the `ID` of this host, where hosts do not register by themselves")
	cmd.Flags().StringArrayVar(&f.scopes, "scope", nil, "a `SCOPE` beside those that the server asks for")
	cmd.Flags().IntVar(&f.port, "port", 0, "where the browser comes back to on 127.0.0.1; 0: any free `PORT`")
	cmd.Flags().DurationVar(&f.wait, "timeout", 5*time.Minute, "time limit of the approval in the browser")
	cmd.Flags().BoolVar(&f.noBrowser, "no-browser", false, "only print the address")
	return cmd
}

// A loggedIn is the document of `lmosd login`, and an item of the list.
type loggedIn struct {
	APIVersion string    `json:"apiVersion,omitempty"`
	Kind       string    `json:"kind,omitempty"` // Login
	Server     string    `json:"server"`
	Issuer     string    `json:"issuer"`
	Scopes     []string  `json:"scopes"`
	Expires    time.Time `json:"expires,omitzero"`
	Renews     bool      `json:"renews"` // without a person
	File       string    `json:"file"`
}

func newLoggedIn(server string, g oauth.Grant, kept credentials.Store) loggedIn {
	return loggedIn{Server: server, Issuer: g.Issuer, Scopes: append([]string{}, g.Scopes...), Expires: g.Expires,
		Renews: g.Refresh != "", File: oauth.GrantsOf(kept).Path()}
}

// ends says when it does; empty if nobody knows.
func (l loggedIn) ends() string {
	switch {
	case l.Renews:
		return "never: it is renewed"
	case !l.Expires.IsZero():
		return l.Expires.Local().Format(time.DateTime)
	}
	return ""
}

// login has somebody log this host in.
func (a *app) login(ctx context.Context, target string, f loginFlags) error {
	server, err := serverOf(target, "lmosd login")
	if err != nil {
		return err
	}
	secrets, err := a.secrets()
	if err != nil {
		return err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	l := client.NewLogin(client.LoginOptions{Server: server, Credentials: secrets, Transport: transport, ClientID: f.clientID, Port: f.port,
		Log: a.ownLogger(), Show: func(ctx context.Context, address string) error {
			a.Talk.Line("open this address in a browser:")
			a.Talk.Line(terminal.OneLine(address))
			if a.Talk.TTY && !f.noBrowser {
				a.browse(address)
			}
			return nil
		}})
	defer l.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, f.wait,
		interact.Errorf(interact.Timeout, "--timeout gives more time", "the request was not approved within %v", f.wait))
	defer cancel()
	g, err := l.Authorize(ctx, f.scopes)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	doc := newLoggedIn(server, g, secrets)
	doc.APIVersion, doc.Kind = api.APIVersion, "Login"
	return a.showLogin(doc)
}

func (a *app) showLogin(doc loggedIn) error {
	err := a.Show(cli.View{Doc: doc, Names: []string{doc.Issuer}, People: func(to *terminal.Screen, _ bool) {
		to.Line(to.Paint(terminal.Green, "logged in") + " at " + terminal.OneLine(doc.Issuer))
		s := &terminal.Sheet{}
		s.Add("server", doc.Server)
		for _, one := range doc.Scopes {
			s.Add("scope", one)
		}
		if ends := doc.ends(); ends != "" {
			s.Add("ends", ends)
		}
		s.Add("kept in", doc.File)
		s.Write(to)
	}})
	if err == nil {
		a.Next("lmosd expose " + terminal.Shell("mcp:"+doc.Server))
	}
	return err
}

// browse opens an address, if there is something that does. A browser outlives this command.
func (a *app) browse(address string) {
	name, args := "xdg-open", []string{address}
	switch runtime.GOOS {
	case "darwin":
		name = "open"
	case "windows":
		name, args = "rundll32", []string{"url.dll,FileProtocolHandler", address}
	default:
		if a.Variable("DISPLAY") == "" && a.Variable("WAYLAND_DISPLAY") == "" {
			return
		}
	}
	cmd := exec.Command(name, args...)
	if err := cmd.Start(); err != nil {
		a.Note("no browser: %v", err)
		return
	}
	_ = cmd.Process.Release() // nobody waits for it
}
