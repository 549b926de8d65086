package main

import (
	"slices"

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

// hint returns a hint of the node of this command on one line, so that it can be copied.
func (a *app) hint(text string, next []interact.Step) string {
	return terminal.OneLine(a.Advice(text, next, false))
}
