package main

import (
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
)

// Commands in hints that get other flags: noNode do not use the node of this command (a hint with lmosd id means another node), and
// ofFolder use its data directory.
var (
	noNode   = []string{"completion", "config", "demo", "errors", "help", "id", "testnet", "validate", "version"}
	ofFolder = []string{"login", "logout", "run"}
)

// hinted matches a command in a hint. It also matches quoted words ([interact.Quote], %q), which come from other hosts and stay
// unchanged; a clipped one extends to the end.
var hinted = regexp.MustCompile(`(?:^|\s)'[^']*(?:'\\''[^']*)*(?:'|$)|(?:^|\s)"(?:[^"\\]|\\.)*"|\blmosd ([a-z]+)\b`)

// flagged returns a function for the flags that make a command use the node of this command. A hint of another node (remote) concerns
// that node, unless the command queries the mesh or the agent is on this host.
func (a *app) flagged(root *cobra.Command) func(name string, remote bool) string {
	return func(name string, remote bool) string {
		i := slices.IndexFunc(root.Commands(), func(c *cobra.Command) bool { return c.Name() == name })
		switch {
		case i < 0 || slices.Contains(noNode, name) || remote && !a.here && root.Commands()[i].GroupID != "use":
			return ""
		case slices.Contains(ofFolder, name) && a.target != nil:
			return a.target.Folder()
		case slices.Contains(ofFolder, name):
			return a.Folder()
		}
		return a.Same()
	}
}

// lead adds the flags of [app.flagged] to the commands in a hint, unless it has such a flag already.
func (a *app) lead(hint string) string {
	for _, flag := range []string{" --data-dir", " --node", " --config"} {
		if strings.Contains(hint, flag) {
			return hint
		}
	}
	return hinted.ReplaceAllStringFunc(hint, func(found string) string {
		if name, ok := strings.CutPrefix(found, "lmosd "); ok {
			return "lmosd" + a.Flagged(name, false) + " " + name
		}
		return found
	})
}

// hint returns a hint of the node of this command on one line, so that it can be copied.
func (a *app) hint(text string, next []interact.Step) string {
	return terminal.OneLine(a.Advice(text, next, false))
}
