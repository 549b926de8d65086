package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// commandLine matches a command line of a page, without its prompt.
var commandLine = regexp.MustCompile("(?m)(?:^[a-z0-9-]*\\$ |`|\\()(lmosd [a-z][^`\\n]*)")

// TestCommandsOfTheFederationPage finds commands and flags of docs/federation.md that do not exist. The page needs two nodes that run, so
// that its output is not compared here.
func TestCommandsOfTheFederationPage(t *testing.T) {
	t.Parallel()
	root, found := newTree(&bytes.Buffer{}), 0
	for _, m := range commandLine.FindAllStringSubmatch(readFile(t, "docs/federation.md"), -1) {
		words := strings.Fields(strings.Split(m[1], "   #")[0])
		if strings.Join(words[1:min(len(words), 3)], " ") == "trust why" || strings.Contains(m[1], "--for") && words[1] == "expose" {
			continue // of lmosd policy
		}
		cmd, _, err := root.Find(words[1:])
		if err != nil || !cmd.HasParent() || cmd.HasSubCommands() && len(words) > 2 && cmd.ValidateArgs(words[2:3]) != nil {
			t.Errorf("%s: %v", m[1], err)
			continue
		}
		found++
		for _, word := range words {
			if flag, ok := strings.CutPrefix(word, "--"); ok && !hasFlag(cmd, strings.Trim(flag, ")\"")) {
				t.Errorf("%s: %s has no flag %s", m[1], cmd.CommandPath(), word)
			}
		}
	}
	if found < 25 {
		t.Errorf("found %d commands", found)
	}
}

func hasFlag(cmd *cobra.Command, name string) bool {
	return cmd.Flags().Lookup(name) != nil || cmd.InheritedFlags().Lookup(name) != nil
}
