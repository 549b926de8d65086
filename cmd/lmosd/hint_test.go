package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/nodeaddr"
	"github.com/lmosd/lmosd/interact"
)

// The commands in a hint act on the node of the command that failed, as far as they are for that node.
func TestHints(t *testing.T) {
	t.Parallel()
	const dir = "--data-dir '/a b'"
	contexts := filepath.Join(t.TempDir(), "lmosd")
	if err := os.MkdirAll(contexts, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(contexts, "contexts.yaml"), []byte("contexts: {other: {node: unix:/o/lmosd.sock, data_dir: /o}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		flags      cli.Flags
		hint, want string
		said       string // where: "" is this command or its node, else by an agent "far" or "here"
		asked      bool   // a node was
	}{
		"another folder":               {cli.Flags{DataDir: "/a b"}, "lmosd login mcp:https://a.example", "lmosd " + dir + " login mcp:https://a.example", "", false},
		"all flags":                    {cli.Flags{Config: "c", DataDir: "d", Node: "n"}, "lmosd show x", "lmosd --config c --data-dir d --node n show x", "", false},
		"no flags":                     {cli.Flags{}, "lmosd show x", "lmosd show x", "", false},
		"words around it":              {cli.Flags{DataDir: "d"}, "it is away: lmosd show tells, or lmosd find", "it is away: lmosd --data-dir d show tells, or lmosd --data-dir d find", "", false},
		"below a command":              {cli.Flags{DataDir: "d"}, "lmosd task wait 3f2a", "lmosd --data-dir d task wait 3f2a", "", false},
		"no command":                   {cli.Flags{DataDir: "d"}, "see that lmosd runs there", "see that lmosd runs there", "", false},
		"of any node":                  {cli.Flags{DataDir: "d"}, "lmosd errors explain LMOS-1404", "lmosd errors explain LMOS-1404", "", false},
		"of the other node":            {cli.Flags{DataDir: "d"}, "copy a line that `lmosd id` prints there", "copy a line that `lmosd id` prints there", "", false},
		"it says where":                {cli.Flags{DataDir: "d"}, "lmosd run --data-dir DIR", "lmosd run --data-dir DIR", "", false},
		"a name of a stranger":         {cli.Flags{DataDir: "d"}, "lmosd show 'x lmosd run'", "lmosd --data-dir d show 'x lmosd run'", "", false},
		"with a quote in it":           {cli.Flags{DataDir: "/a b"}, `lmosd show 'it'\''s lmosd run' x`, "lmosd " + dir + ` show 'it'\''s lmosd run' x`, "", false},
		"clipped":                      {cli.Flags{DataDir: "/a b"}, `lmosd show 'it'\''s lmosd run…`, "lmosd " + dir + ` show 'it'\''s lmosd run…`, "", false},
		"in other quotes":              {cli.Flags{DataDir: "d"}, `did you mean "a \" lmosd run"? lmosd show x`, `did you mean "a \" lmosd run"? lmosd --data-dir d show x`, "", false},
		"said elsewhere":               {cli.Flags{DataDir: "d"}, "lmosd login mcp:https://a.example", "lmosd login mcp:https://a.example", "far", false},
		"said by an agent of the node": {cli.Flags{DataDir: "d"}, "lmosd login mcp:https://a.example", "lmosd --data-dir d login mcp:https://a.example", "here", true},
		"asked elsewhere":              {cli.Flags{DataDir: "d"}, "lmosd show x", "lmosd --data-dir d show x", "far", false},
		"a context's folder":           {cli.Flags{Node: "other"}, "lmosd login mcp:https://a.example", "lmosd --data-dir /o login mcp:https://a.example", "", true},
		"a context":                    {cli.Flags{Node: "other"}, "lmosd show x", "lmosd --node other show x", "", true},
		"a node that is far":           {cli.Flags{Node: "http://192.0.2.1:1"}, "lmosd run", "lmosd run", "", true},
	} {
		var out bytes.Buffer
		a := newApp(home(t, "XDG_CONFIG_HOME="+filepath.Dir(contexts)), strings.NewReader(""), &out, &out)
		a.Lead = a.leader(newRootCommand(a))
		a.Flags, a.here = test.flags, test.said == "here"
		a.Flags.Output = "table"
		if test.asked {
			var err error
			if a.target, err = nodeaddr.Find(a.Console); err != nil {
				t.Fatal(name, err)
			}
		}
		a.Fail(&interact.Error{Code: interact.NotAllowed, Title: "no", Hint: test.hint, Remote: test.said != ""}, false)
		if _, got, _ := strings.Cut(out.String(), "  hint   "); got != test.want+"\n" {
			t.Errorf("%s: the hint is %q, want %q", name, got, test.want)
		}
	}
}

// The exceptions among the commands of hints are commands.
func TestHintedCommands(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	var names []string
	for _, c := range newTree(&out).Commands() {
		names = append(names, c.Name())
	}
	for _, name := range slices.Concat(noNode, ofFolder) {
		if !slices.Contains(names, name) {
			t.Errorf("%s is no command", name)
		}
	}
}
