package help

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/interact"
)

// help runs a line of a small program, and returns what it printed.
func help(t *testing.T, line string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c := cli.New([]string{"SOURCE_DATE_EPOCH=1767225600"}, nil, &out, &out)
	root := &cobra.Command{Use: "lmosd", Short: "Agents.", Example: "  lmosd call", SilenceErrors: true, SilenceUsage: true}
	c.Flags.Register(root.PersistentFlags())
	root.AddGroup(&cobra.Group{ID: "use", Title: "USE"})
	call := &cobra.Command{Use: "call <agent>", Short: "call an agent", Example: "  lmosd call weather", GroupID: "use",
		Annotations: cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd find", "lmosd task"), Run: func(*cobra.Command, []string) {}}
	call.Flags().Bool("async", false, "do not wait")
	root.AddCommand(call, &cobra.Command{Use: "secret", Hidden: true, Run: func(*cobra.Command, []string) {}})
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(NewManCommand(c))
	root.SetHelpCommand(NewHelpCommand(c))
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { Print(c, cmd) })
	root.SetArgs(strings.Fields(line))
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func TestPages(t *testing.T) {
	t.Parallel()
	for line, wants := range map[string][]string{
		"--help":          {"Agents.\n\n  lmosd call\n\nUSE\n  call                   call an action; follow", "\nEVERY COMMAND\n", "topic: config, environment, exit-codes"},
		"help":            {"Agents.\n"},
		"help call":       {"Call an agent.\n\nUsage:\n  lmosd call <agent>", "\nFlags:\n  --async   do not wait\n", "See also: lmosd find, lmosd task\n"},
		"help exit-codes": {"\n    0   ok\n"},
	} {
		out, err := help(t, line)
		for _, want := range wants {
			if err != nil || !strings.Contains(out, want) {
				t.Errorf("%s: no %q in %q, %v", line, want, out, err)
			}
		}
		if strings.Contains(out, "secret") && line != "help exit-codes" {
			t.Errorf("%s shows what is hidden", line)
		}
	}
	_, err := help(t, "help exit-code")
	if e := interact.AsError(err); err == nil || e.Code != interact.Usage || e.Hint != `did you mean "exit-codes"?` {
		t.Errorf("an unknown topic gives %v", err)
	}
}

func TestHelpForPrograms(t *testing.T) {
	t.Parallel()
	out, err := help(t, "help -o json")
	var tree Tree
	if err != nil || json.Unmarshal([]byte(out), &tree) != nil || tree.Kind != "Help" || len(tree.Topics) != len(topicNames()) {
		t.Fatalf("got %s, %v", out, err)
	}
	for _, c := range tree.Commands {
		if c.Path == "lmosd call" && (c.Scope != "mesh" || c.Impact != "rw" || c.Group != "use" || len(c.Flags) != 1 || c.Flags[0].Name != "async") {
			t.Errorf("call is described as %+v", c)
		}
		if c.Path == "lmosd" && len(c.Flags) != 6 {
			t.Errorf("%d flags of every command", len(c.Flags))
		}
	}
}
