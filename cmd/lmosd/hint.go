package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Commands in hints that get other flags: noNode do not use the node of this command (a hint with lmosd id means another node), and
// ofFolder use its data directory.
var (
	noNode   = []string{"completion", "config", "context", "demo", "errors", "help", "id", "testnet", "validate", "version"}
	ofFolder = []string{"audit", "keys", "login", "logout", "run"}
)

// flagged returns the flags that make a command use the node of this command. A hint of another node (remote) concerns that node, unless
// the command queries the mesh or the agent is on this host.
func (a *app) flagged(name string, remote bool) string {
	all := allCommands()
	i := slices.IndexFunc(all, func(c command) bool { return c.name == name })
	switch {
	case i < 0 || slices.Contains(noNode, name) || remote && !a.here && all[i].group != "use":
		return ""
	case slices.Contains(ofFolder, name) && a.target != nil:
		return a.target.Folder()
	case slices.Contains(ofFolder, name):
		return a.Folder()
	}
	return a.Same()
}

// hint returns a hint of the node of this command on one line, so that it can be copied.
func (a *app) hint(text string, next []interact.Step) string {
	return terminal.OneLine(a.Advice(text, next, false))
}

// nameless rejects an empty name, which would change the route of the request.
func nameless(ref string) error {
	if strings.TrimSpace(ref) == "" {
		return cli.Usage("", "the name of the agent is empty").Then(cli.StepCommand, "lmosd find   # lists the agents by name")
	}
	return nil
}

// clarify adds a command to an error about the name of an agent: with a similar name, or with one of several agents. command returns the
// command line with another name in place of asked.
func clarify(err error, asked string, command func(ref string) string) error {
	var e *interact.Error
	if !errors.As(err, &e) {
		return err
	}
	better := *e
	switch e.Code {
	case interact.NotFound:
		if len(e.Next) == 0 || e.Next[0].Kind != interact.StepShow || len(e.Next[0].Args) == 0 {
			return err
		}
		near := e.Next[0].Args[0]
		better.Hint, better.Next = fmt.Sprintf("did you mean %q?", near), interact.Next(cli.StepCommand, command(terminal.Shell(near)))
	case interact.Ambiguous:
		names := candidates(e.Next, asked)
		if len(names) == 0 {
			return err
		}
		better.Err = errors.New(strings.Join(names, ", "))
		better.Hint, better.Next = "", interact.Next(cli.StepCommand, command(terminal.Shell(names[0])))
	default:
		return err
	}
	return &better
}

// candidates returns short names for the references of an ambiguous name, if they are unique.
func candidates(next []interact.Step, asked string) (names []string) {
	if strings.HasPrefix(asked, "z6Mk") { // a prefix of a key
		return nil
	}
	seen := map[string]bool{}
	for _, s := range next {
		if s.Kind != interact.StepUse {
			continue
		}
		for _, ref := range s.Args {
			key := strings.TrimPrefix(td.ParseRef(ref).Owner, "did:key:")
			if key = key[:min(len(key), render.ShortKey)]; key == "" || seen[key] {
				return nil // two agents of one owner
			}
			seen[key] = true
			names = append(names, td.ParseRef(asked).Name+"@"+key)
		}
	}
	return names
}

// misfit adds a command with a valid input to an error about an input.
func misfit(err error, command string) error {
	var e *interact.Error
	if !errors.As(err, &e) || e.Code != interact.Invalid || len(e.Issues) == 0 {
		return err
	}
	better := *e
	better.Hint, better.Next = "", interact.Next(cli.StepCommand, command)
	return &better
}

// noAffordance returns the error for an unknown name, with the known names.
func (c *conversation) noAffordance(kind, name string, known []string, verb string) error {
	e := &interact.Error{Code: interact.NoAffordance, Title: fmt.Sprintf("%s has no %s %q", c.asked, kind, name),
		Err: fmt.Errorf("what it has: %s", cmp.Or(strings.Join(known, ", "), "none"))}
	near := cli.Nearest(name, known)
	if near == "" {
		return e.Then(interact.StepShow, c.asked)
	}
	if name != c.asked && slices.Contains(c.Args, name) {
		return cli.InPlaceOf(e, name, near)
	}
	e.Hint = fmt.Sprintf("did you mean %q?", near)
	return e.Then(cli.StepCommand, "lmosd "+verb+" "+terminal.Shell(c.asked)+" "+terminal.Shell(near))
}
