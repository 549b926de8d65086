package main

import (
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
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

// leader returns what makes the commands of a hint act on the node of this command, wherever that is: it gives them the flags
// that this one has. Hints of another node (remote) are for that one, unless they only ask something of the mesh, or its agent is
// here. A hint that has such a flag already stays as it is.
func (a *app) leader(root *cobra.Command) func(hint string, remote bool) string {
	return func(hint string, remote bool) string {
		for _, flag := range []string{" --data-dir", " --node", " --config"} {
			if strings.Contains(hint, flag) {
				return hint
			}
		}
		return hinted.ReplaceAllStringFunc(hint, func(found string) string {
			name, ok := strings.CutPrefix(found, "lmosd ")
			i := slices.IndexFunc(root.Commands(), func(c *cobra.Command) bool { return ok && c.Name() == name })
			switch {
			case i < 0 || slices.Contains(noNode, name) || remote && !a.here && root.Commands()[i].GroupID != "use":
				return found
			case slices.Contains(ofFolder, name) && a.target != nil:
				return "lmosd" + a.target.Folder() + " " + name
			case slices.Contains(ofFolder, name):
				return "lmosd" + a.Folder() + " " + name
			}
			return "lmosd" + a.Same() + " " + name
		})
	}
}

// hint is one of this node, on one line, so that it can be copied.
func (a *app) hint(text string) string { return terminal.OneLine(a.Lead(text, false)) }
