package main

import (
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
)

// Commands of hints that are not like the others: noNode have nothing to do with the node of this command (where a hint speaks of
// `lmosd id`, it is another node's), and ofFolder act on its folder, whether it runs or not.
var (
	noNode   = []string{"completion", "config", "demo", "errors", "help", "id", "testnet", "validate", "version"}
	ofFolder = []string{"login", "logout", "run"}
)

// A hinted is a command in a hint, or a word of a shell in quotes as [interact.Quote] or %q write it, which may be whatever a
// stranger calls a thing. One that was clipped goes to the end.
var hinted = regexp.MustCompile(`(?:^|\s)'[^']*(?:'\\''[^']*)*(?:'|$)|(?:^|\s)"(?:[^"\\]|\\.)*"|\blmosd ([a-z]+)\b`)

// flagged returns what makes commands act on the node of this command, wherever that is: the flags that this one has. Advice of
// another node (remote) is for that one, unless it only asks something of the mesh, or its agent is here.
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

// lead gives the commands in a hint of this program the flags of [app.flagged]. A hint that has such a flag already stays as it is.
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

// hint returns the advice of the node of this command on one line, so that it can be copied.
func (a *app) hint(text string, next []interact.Step) string {
	return terminal.OneLine(a.Advice(text, next, false))
}
