package main

import (
	"context"
	"fmt"
	"html"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

func newConsoleCommand(a *app) *cobra.Command {
	var rights string
	var noOpen, end bool
	cmd := &cobra.Command{
		Use:   "console",
		Short: "open the console of the node in a browser, signed in",
		Long: "Opens the console, the page of the node, in a browser that is then signed in. The link works once, within a minute. A session ends after 12\n" +
			"hours, after 30 minutes without a request, by signing out, or when the node ends. Without a session a browser can look, and neither call\n" +
			"agents nor change the node. Over SSH, or without a display, the command prints the link and the tunnel for it.",
		Example: `  lmosd console
  lmosd console --rights read --no-open
  lmosd console --end`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd status, lmosd token"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case end && (noOpen || rights != ""):
				return cli.Usage("", "--end takes no other option")
			case end:
				return a.endConsole(cmd.Context())
			}
			return a.openConsole(cmd.Context(), rights, !noOpen)
		},
	}
	cmd.Flags().StringVar(&rights, "rights", "", "`RIGHTS` of the session: read, call (agents) or admin (change the node); all that you have if not given")
	cmd.Flags().BoolVar(&noOpen, "no-open", false, "only print the link")
	cmd.Flags().BoolVar(&end, "end", false, "end all sessions of browsers at the node")
	if err := cmd.RegisterFlagCompletionFunc("rights", cobra.FixedCompletions([]string{"read", "call", "admin"}, noFiles)); err != nil {
		panic(err) // the flag exists
	}
	return cmd
}

// endConsole ends the sessions of all browsers.
func (a *app) endConsole(ctx context.Context) error {
	type ended struct {
		cli.Head
		Ended bool `json:"ended"`
	}
	doc, err := send(a, func(c *api.Client) (ended, error) { return ended{cli.NewHead("ConsoleEnd"), true}, c.EndSessions(ctx) })
	if err != nil {
		return err
	}
	return a.Show(cli.View{Doc: doc, People: cli.Line("all sessions of browsers ended")})
}

// openConsole opens the console in a browser, or prints the link.
func (a *app) openConsole(ctx context.Context, rights string, open bool) error {
	link, err := send(a, func(c *api.Client) (*api.ConsoleLink, error) { return c.OpenConsole(ctx, rights) })
	if err != nil {
		return err
	}
	remote := a.Variable("SSH_CONNECTION")
	if a.ForPeople() && open && remote == "" && a.HasBrowser() && isWebAddress(link.URL) && a.browseConsole(link.URL) {
		a.Talk.Line("opened the console in a browser, with the right " + terminal.OneLine(link.Rights))
		a.Next("lmosd console --no-open   # print the link instead")
		return nil
	}
	if err := a.Show(cli.View{Doc: link, Names: []string{link.URL}, People: cli.Line(link.URL)}); err != nil || !a.ForPeople() {
		return err
	}
	if tunnel := tunnelFor(link.URL, remote, a.Variable("USER")); tunnel != "" {
		a.Talk.Line("to open it on another machine, run there: " + terminal.OneLine(tunnel))
	}
	a.Talk.Line("the link signs one browser in, within a minute, with the right " + terminal.OneLine(link.Rights))
	return nil
}

// isWebAddress reports whether a browser loads a link from the network: the node that answers could name a script or a file of this machine.
func isWebAddress(link string) bool {
	u, err := url.Parse(link)
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}

// redirect is the file that leads a browser to a link. The link is not an argument of the browser, because all users of a machine see arguments.
const redirect = `<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url=%[1]s">
<title>lmosd</title>
<p><a href="%[1]s">the console of the node</a></p>
`

// redirectFiles is the pattern of the names of these files.
const redirectFiles = "lmosd-console-*.html"

// browseConsole opens a link in a browser, by a file that only the user can read. The browser reads it later, so the next call removes it; its
// link is then of no use.
func (a *app) browseConsole(link string) bool {
	dir := a.Variable("XDG_RUNTIME_DIR")
	if dir == "" {
		dir = os.TempDir()
	}
	old, _ := filepath.Glob(filepath.Join(dir, redirectFiles)) // the pattern is valid
	for _, name := range old {
		if info, err := os.Lstat(name); err == nil && time.Since(info.ModTime()) > time.Minute {
			_ = os.Remove(name) // those of other users stay
		}
	}
	f, err := os.CreateTemp(dir, redirectFiles) // of mode 0600
	if err != nil {
		a.Note("no browser: %v", err)
		return false
	}
	_, err = fmt.Fprintf(f, redirect, html.EscapeString(link))
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		a.Note("no browser: %v", err)
	}
	if err != nil || !a.Browse(f.Name()) {
		_ = os.Remove(f.Name())
		return false
	}
	return true
}

// tunnelFor returns the command that forwards the port of a link from another machine, or "" if that can reach it. connection is the value of SSH_CONNECTION:
// the address and port of the client, then those of this machine.
func tunnelFor(link, connection, user string) string {
	u, err := url.Parse(link)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(u.Hostname()); ip == nil || !ip.IsLoopback() {
		return ""
	}
	host, port := "HOST", ""
	if part := strings.Fields(connection); len(part) == 4 && net.ParseIP(part[2]) != nil {
		if host = part[2]; part[3] != "22" {
			port = "-p " + terminal.Shell(part[3]) + " "
		}
	}
	if user != "" {
		host = user + "@" + host
	}
	return "ssh -N -L " + u.Port() + ":" + u.Host + " " + port + terminal.Shell(host)
}
