package main

import (
	"context"
	"io"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/nodeaddr"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

// An app is one execution of the program, and the node that it asks.
type app struct {
	*cli.Console
	target *nodeaddr.Target // the node that was asked; nil as long as there is none
	warned bool             // of a token that goes in the clear
	here   bool             // what an agent says is said on the host of target, or of this command if that is nil
}

func newApp(env []string, stdin io.Reader, stdout, stderr io.Writer) *app {
	return &app{Console: cli.New(env, stdin, stdout, stderr)}
}

// run executes the command line and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	root := newRootCommand(a)
	a.Lead, a.Flagged = a.lead, a.flagged(root)
	root.SetArgs(args)
	root.SetIn(a.Stdin)
	root.SetOut(a.Out)
	root.SetErr(a.Talk)
	if err := root.ExecuteContext(ctx); err != nil {
		// The flag may stand behind the one that could not be read.
		return a.Fail(a.target.Explain(err), a.Programs() || cli.WantsJSON(args))
	}
	return 0
}

// client returns a client of the node to ask. Nothing is sent yet.
func (a *app) client() (*api.Client, error) {
	t, err := nodeaddr.Find(a.Console)
	if err != nil {
		return nil, err
	}
	a.target = t
	a.Note("asking %s (%s)", t.Addr, t.Why)
	a.warnOfToken(t)
	return api.Dial(t.Addr, t.Token())
}

// warnOfToken warns once if the token goes to a node in the clear. Programs that read JSON are told too: on standard error.
func (a *app) warnOfToken(t *nodeaddr.Target) {
	if a.warned || !t.InTheClear() {
		return
	}
	a.warned = true
	a.Talk.Item(a.Talk.Paint(terminal.Yellow, "warning: "), 9, "LMOS-W071 token-in-the-clear: the token goes to "+terminal.OneLine(t.Addr)+
		" over plain HTTP, and who is on the way can read it; use https://, or a tunnel (ssh -L) to an address of this host")
}
