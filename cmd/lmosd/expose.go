package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/agent"
	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a"
	"github.com/lmosd/lmosd/bridge/mcp"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/configcmd"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/input"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/expose"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/td"
)

func newExposeCommand(a *app) *cobra.Command {
	var s expose.Spec
	var secret bool
	cmd := &cobra.Command{
		Use:   "expose <exec:COMMAND | mcp:COMMAND | mcp:https://… | a2a:URL | openapi:FILE | http(s)://… | file.td.json>",
		Short: "expose a command, an MCP server or a web server as an agent",
		Long: "Serves an agent until Ctrl-C. A command runs once per call: it reads the input from standard input and writes " +
			"the output to standard output. For a URL, the type of the server is detected; one with an OpenAPI document or " +
			"a Thing Description stays published (lmosd unpublish). Later changes of the tools of an MCP server are " +
			"withheld until --approve. The key agents of the configuration takes the same arguments.",
		Example: `  lmosd expose exec:./weather.sh --name weather --capability urn:example:weather
  lmosd expose 'exec:tail -n 3 -f log.txt' --name log --delimiter '\n'
  lmosd expose a2a:https://agent.example --name helper --for globex
  lmosd expose openapi:pets.yaml --server http://127.0.0.1:8080
  lmosd expose http://127.0.0.1:8080`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd publish, lmosd call, lmosd help environment"),
		Args:        cli.Takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s.Target = args[0]
			return a.expose(cmd.Context(), s, secret)
		},
	}
	cmd.Flags().BoolVar(&secret, "caller-secret", false, callerSecretUsage)
	expose.Flags(&s, func(to *string, name, usage string) { cmd.Flags().StringVar(to, name, "", usage) },
		func(to *[]string, name, usage string) { cmd.Flags().StringArrayVar(to, name, nil, usage) },
		func(to *bool, name, usage string) { cmd.Flags().BoolVar(to, name, false, usage) })
	return cmd
}

// expose publishes the agent of s: until ctx ends if it needs this process, else without limit.
func (a *app) expose(ctx context.Context, s expose.Spec, secret bool) error {
	began := time.Now()
	client, err := a.client()
	if err != nil {
		return err
	}
	log := configcmd.CommandLogger(a.Console)
	secrets, agents, err := a.imports()
	if err != nil {
		return err
	}
	x, err := expose.Open(ctx, s, bridges(secrets, mcp.Options{}, agents, log), log)
	if err != nil {
		a.target, a.here = nil, true // hints are about this host, whose credentials were used
		return err
	}
	defer x.Close()
	e := &exposing{app: a, client: client, spec: s, agent: x, began: began}
	if s.HasKey() {
		c, err := configcmd.Load(a.Console, nil)
		if err != nil {
			return err
		}
		if e.own, err = a.openOwnKey(c.Node.DataDir, s, x); err != nil {
			return err
		}
	}
	if x.Thing != nil && secret {
		return cli.Usage("leave the flag out: this process calls the agent itself",
			"--caller-secret is for a web server that the node calls, and %s is not one", terminal.OneLine(s.Target))
	}
	if x.Thing != nil {
		return e.attach(ctx, log)
	}
	publish := func() (*api.Publication, error) {
		return client.PublishWith(ctx, x.TD, api.PublishOptions{For: s.For, CallerSecret: secret})
	}
	if e.own != nil {
		if secret {
			return cli.Usage("leave one of them out", "--caller-secret is for agents that the node owns")
		}
		publish = func() (*api.Publication, error) { return e.own.host(ctx, client, x, s) }
	}
	p, err := publish()
	if err != nil {
		return err
	}
	e.secret = p.CallerSecret
	for _, w := range p.Warnings {
		x.Warnings = append(x.Warnings, w.String())
	}
	return e.offered(ctx, p.Ref, reached(p))
}

// imports returns the credentials and the settings of the node of this host.
func (a *app) imports() (credentials.Store, a2a.Options, error) {
	c, err := configcmd.Load(a.Console, nil)
	if err != nil { // another node can be used with a broken configuration
		return credentials.Store{}, a2a.Options{}, nil
	}
	secrets, err := credentials.Load(c.CredentialsFile())
	return secrets, imported(c), err
}

// imported returns the options for the import of A2A agents.
func imported(c *configs.Config) a2a.Options {
	return a2a.Options{KeyOrigins: c.A2A.KeyOrigins, CardRefresh: time.Duration(c.A2A.CardRefresh)}
}

// exposing is one execution of lmosd expose.
type exposing struct {
	*app
	client *api.Client
	spec   expose.Spec
	agent  *expose.Agent
	began  time.Time
	shown  bool    // the agent was shown
	secret string  // a new caller secret
	own    *ownKey // that of the agent; nil: none
}

// attach attaches the agent to the node until ctx ends, and connects again after a failure. At the end it removes the agent.
func (e *exposing) attach(ctx context.Context, log *slog.Logger) error {
	defer context.AfterFunc(ctx, e.stopping)()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	now := &changing{td: e.agent.TD, next: make(chan struct{})}
	if e.agent.Changes != nil {
		var work sync.WaitGroup
		defer work.Wait()
		defer cancel(nil)
		work.Go(func() {
			for raw := range e.agent.Changes(ctx) {
				now.set(raw)
				log.Warn("agent definition changed, node updated", "target", e.spec.Target)
			}
		})
	}
	to := agent.Node{Addr: e.target.Addr, Token: e.target.Token(), For: e.spec.For}
	if e.own != nil {
		to.Key, to.Visibility, to.Roles = e.own.holder.Key, e.own.holder.Visibility, e.spec.Roles
	}
	thing := e.agent.Thing
	if e.ForPeople() {
		thing = (&callLines{to: e.Talk, now: time.Now}).withLines(thing)
	}
	err := agent.AttachChanging(ctx, to, now.get, thing, func(id string) {
		if err := e.offered(ctx, id, "until this command ends"); err != nil {
			cancel(err)
		}
	}, log)
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	if err == nil && e.Talk.TTY && e.ForPeople() {
		e.Talk.Line("stopped")
	}
	return err
}

// A changing holds the current description of an agent.
type changing struct {
	mu   sync.Mutex
	td   []byte
	next chan struct{} // closed when td changes
}

func (c *changing) get() ([]byte, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.td, c.next
}

func (c *changing) set(raw []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.next)
	c.td, c.next = raw, make(chan struct{})
}

// offered shows the agent, once.
func (e *exposing) offered(ctx context.Context, ref, how string) error {
	d, err := e.client.Agent(ctx, ref)
	if err != nil {
		return err
	}
	g := d.Agent
	t, err := td.Parse(d.TD)
	if err != nil {
		return err
	}
	if e.shown {
		e.Note("%s is attached again", render.Name(g))
		return nil
	}
	e.shown = true
	doc := exposure{cli.NewHead("Exposure"), g.ID, g.Ref, g.Name, g.Owner, e.spec.Target, e.agent.Thing != nil,
		g.Capabilities, g.Actions, e.spec.For, t.Visibility, e.secret, e.own.file(), api.Milliseconds(time.Since(e.began)), e.agent.Warnings}
	err = e.Show(cli.View{Doc: doc, Names: []string{g.Ref}, People: func(to *terminal.Screen, _ bool) {
		to.Line(to.Paint(terminal.Green, "exposed") + " " + terminal.OneLine(render.Name(g)) + " · " + how)
		s := &terminal.Sheet{}
		s.Add("id", g.ID)
		if e.own != nil {
			s.Add("owner", string(g.Owner))
			s.Add("key file", e.own.path)
		}
		s.Add("capability", g.Capabilities...)
		s.Add("action", g.Actions...)
		if t.Visibility != td.Public {
			s.Add("visibility", t.Visibility.String())
		}
		s.Write(to)
		e.showCallerSecret(e.secret)
	}})
	if err != nil || !e.ForPeople() {
		return err
	}
	if s, err := e.client.Status(ctx); err == nil {
		e.printCallers(s.Callers, e.spec.For, t.Visibility)
	}
	for _, w := range e.agent.Warnings {
		e.Warn(w)
	}
	// Only clients of its protocol use a tunnel.
	i := slices.IndexFunc(g.Actions, func(name string) bool { return !bridge.IsTunnel(t.Actions[name].Types) })
	if i >= 0 {
		e.Next("lmosd call " + terminal.Shell(render.Name(g)) + " " + terminal.Shell(g.Actions[i]) + " " +
			cmp.Or(input.Sample(t.Actions[g.Actions[i]].InputWithVariables()), "…"))
	}
	return nil
}

// An exposure is the document of lmosd expose.
type exposure struct {
	cli.Head
	ID           string        `json:"id"`
	Ref          string        `json:"ref"`
	Name         string        `json:"name"`
	Owner        did.DID       `json:"owner"`
	Target       string        `json:"target"`
	Attached     bool          `json:"attached"` // until the command ends
	Capabilities []string      `json:"capabilities"`
	Actions      []string      `json:"actions"`
	For          []string      `json:"for,omitempty"`
	Visibility   td.Visibility `json:"visibility,omitempty"`
	CallerSecret string        `json:"caller_secret,omitempty"`
	KeyFile      string        `json:"key_file,omitempty"` // of the agent's own key
	Took         float64       `json:"took_ms"`
	Warnings     []string      `json:"warnings,omitempty"`
}

// bridges returns the bridges of this program. The credentials are for imported agents.
func bridges(secrets credentials.Store, m mcp.Options, a a2a.Options, log *slog.Logger) []bridge.Bridge {
	m.Credentials, a.Credentials, m.Log, a.Log, m.Version = secrets, secrets, log, log, version()
	return []bridge.Bridge{mcp.New(m), a2a.New(a)}
}
