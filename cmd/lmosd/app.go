package main

import (
	"context"
	"io"
	"sync/atomic"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/nodeaddr"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
)

// An app is one execution of the program.
type app struct {
	*cli.Console
	target *nodeaddr.Target // the node of this command; nil before the first request
	shared *api.Client      // of target; see client
	warned bool             // the user was warned of an unencrypted token
	// service is whether SIGHUP reloads the configuration; hangups receives these signals.
	service atomic.Bool
	hangups chan struct{}
	here    bool // the agent is on the host of target, or of this command if target is nil
}

func newApp(env []string, stdin io.Reader, stdout, stderr io.Writer) *app {
	return &app{Console: cli.New(env, stdin, stdout, stderr), hangups: make(chan struct{}, 1)}
}

// run executes the command line and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	args = meant(args)
	a.Args = args
	root := newRootCommand(a, args...)
	a.Flagged = a.flagged
	root.SetArgs(args)
	root.SetIn(a.Stdin)
	root.SetOut(a.Out)
	root.SetErr(a.Talk)
	defer func() {
		if a.shared != nil {
			a.shared.Close()
		}
	}()
	if err := root.ExecuteContext(ctx); err != nil {
		// The output flag may follow the flag that is not valid.
		return a.Fail(a.target.Explain(err), a.Programs() || cli.WantsJSON(args))
	}
	return 0
}

// client returns the client of the node of this command, which [app.run] closes. It sends nothing.
func (a *app) client() (_ *api.Client, err error) {
	if a.shared == nil {
		a.shared, err = a.dial()
	}
	return a.shared, err
}

// dial returns a new client of the node of this command.
func (a *app) dial() (*api.Client, error) {
	t, err := nodeaddr.Find(a.Console)
	if err != nil {
		return nil, err
	}
	a.target = t
	a.Note("asking %s (%s)", t.Addr, t.Why)
	a.warnOfToken(t)
	c, err := api.Dial(t.Addr, t.Token())
	if err == nil {
		c.Observe(a.Requesting)
		c.As(did.DID(a.Variable("LMOSD_AS")))
	}
	return c, err
}

// warnOfToken warns once, for all output formats, if the token is sent unencrypted.
func (a *app) warnOfToken(t *nodeaddr.Target) {
	if a.warned || !t.InTheClear() {
		return
	}
	a.warned = true
	a.Warn("LMOS-W071 token-in-the-clear: the token goes to " + terminal.OneLine(t.Addr) +
		" over plain HTTP, and every host between can read it; use https://, or a tunnel (ssh -L) to an address of this host")
}
