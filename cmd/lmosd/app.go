package main

import (
	"context"
	"io"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/console"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/target"
	"github.com/lmosd/lmosd/gateway"
)

// An app is one execution of the program, and the node that it asks.
type app struct {
	*console.Console
	target *target.Target // the node that was asked; nil as long as there is none
	here   bool           // what an agent says is said on the host of target, or of this command if that is nil
}

func newApp(env []string, stdin io.Reader, stdout, stderr io.Writer) *app {
	return &app{Console: console.New(env, stdin, stdout, stderr)}
}

// run executes the command line and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	root := newRootCommand(a)
	a.Lead = a.leader(root)
	root.SetArgs(args)
	root.SetIn(a.Stdin)
	root.SetOut(a.Out)
	root.SetErr(a.Talk)
	if err := root.ExecuteContext(ctx); err != nil {
		// The flag may stand behind the one that could not be read.
		return a.Fail(a.target.Explain(err), a.Programs() || console.WantsJSON(args))
	}
	return 0
}

// client returns a client of the node to ask. Nothing is sent yet.
func (a *app) client() (*gateway.Client, error) {
	t, err := target.Find(a.Console)
	if err != nil {
		return nil, err
	}
	a.target = t
	a.Note("asking %s (%s)", t.Addr, t.Why)
	return gateway.Dial(t.Addr, t.Token())
}
