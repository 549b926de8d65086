package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/help"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"

	"github.com/rogpeppe/go-internal/testscript"
)

// visible returns every command that people see, root first.
func visible(root *cobra.Command) []*cobra.Command {
	list := []*cobra.Command{root}
	for _, c := range root.Commands() {
		if !c.Hidden {
			list = append(list, visible(c)...)
		}
	}
	return list
}

func newTree(out *bytes.Buffer) *cobra.Command {
	root := newRootCommand(newApp(nil, strings.NewReader(""), out, out))
	root.InitDefaultHelpCmd()
	return root
}

// The table has each command under its own name, and a command line gets what it needs.
func TestCommandsAreMadeAsNeeded(t *testing.T) {
	t.Parallel()
	a := newApp(nil, strings.NewReader(""), io.Discard, io.Discard)
	for _, c := range allCommands() {
		if built := c.build(a); built.Name() != c.name || len(built.Aliases) > 0 {
			t.Errorf("%s has the name %s and the aliases %v", c.name, built.Name(), built.Aliases)
		}
		if c.name != "completion" && c.name != "man" && len(needed([]string{c.name, "--help"})) != 1 {
			t.Errorf("%s makes other commands, too", c.name)
		}
	}
	all := len(allCommands())
	for _, args := range [][]string{nil, {"--help"}, {"help", "find"}, {"completion", "bash"}, {"__complete", "find", ""}, {"-o", "json", "find"}, {"fnd"}} {
		if n := len(needed(args)); n != all {
			t.Errorf("%v makes %d commands, want %d", args, n, all)
		}
	}
}

// TestHelp compares the help of all commands with testdata/help.golden; -update rewrites it.
func TestHelp(t *testing.T) {
	t.Parallel()
	var got bytes.Buffer
	for _, c := range visible(newTree(&got)) {
		got.WriteString("$ " + c.CommandPath() + " --help\n")
		c.InitDefaultHelpFlag()
		if err := c.Help(); err != nil {
			t.Fatal(err)
		}
		got.WriteString("\n")
	}
	file := filepath.Join("testdata", "help.golden")
	if *update {
		if err := os.WriteFile(file, got.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	gotLines, wantLines := strings.Split(got.String(), "\n"), strings.Split(string(want), "\n")
	for i := range max(len(gotLines), len(wantLines)) {
		if i >= len(gotLines) || i >= len(wantLines) || gotLines[i] != wantLines[i] {
			t.Fatalf("%s differs from line %d on; look at the difference of go test ./cmd/lmosd -run TestHelp -update", file, i+1)
		}
	}
}

// Bounds of help pages at 80 columns.
const (
	pageLines, pageColumns = 45, 80
	longLines              = 6
)

// short reports a page of help that is too long or too wide.
func short(t *testing.T, name, page string) {
	t.Helper()
	if n := strings.Count(page, "\n"); n > pageLines {
		t.Errorf("the page of %s has %d lines, want %d at most: shorten the texts of its flags, or show fewer examples", name, n, pageLines)
	}
	for line := range strings.Lines(page) {
		if n := terminal.Columns(strings.TrimSuffix(line, "\n")); n > pageColumns {
			t.Errorf("the page of %s has %d columns, want %d at most: %s", name, n, pageColumns, line)
		}
	}
}

func TestHelpIsShort(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	root := newTree(&out)
	for _, c := range visible(root) {
		out.Reset()
		c.InitDefaultHelpFlag()
		if err := c.Help(); err != nil {
			t.Fatal(err)
		}
		short(t, c.CommandPath(), out.String())
		switch {
		case c == root:
		case c.Short == "" || strings.ToLower(c.Short[:1]) != c.Short[:1] || len(c.Short) > 60:
			t.Errorf("%s: the short text is %q", c.CommandPath(), c.Short)
		case strings.Count(strings.TrimSpace(terminal.Reflow(c.Long, pageColumns)), "\n") >= longLines:
			t.Errorf("%s: the long text has more than %d lines at %d columns", c.CommandPath(), longLines, pageColumns)
		case len(strings.Split(c.Example, "\n")) < 2:
			t.Errorf("%s has fewer than 2 examples", c.CommandPath())
		case c.Annotations["scope"] == "" || c.Annotations["impact"] == "":
			t.Errorf("%s does not say what it reaches and changes", c.CommandPath())
		}
	}
}

// Pages of help have the width of the terminal, within bounds; no page is lost on a narrow one.
func TestHelpHasTheWidthOfTheTerminal(t *testing.T) {
	t.Parallel()
	for columns, want := range map[string]int{"1": 40, "20": 40, "40": 40, "60": 60, "100": 100, "120": 120, "300": 120} {
		var out bytes.Buffer
		root := newRootCommand(newApp([]string{"LMOSD_FORCE_TTY=" + columns}, strings.NewReader(""), &out, &out))
		root.InitDefaultHelpCmd()
		widest := 0
		for _, c := range visible(root) {
			out.Reset()
			c.InitDefaultHelpFlag()
			if err := c.Help(); err != nil {
				t.Fatal(err)
			}
			if out.Len() < 200 || !utf8.Valid(out.Bytes()) {
				t.Errorf("%s at %s columns: %q", c.CommandPath(), columns, out.String())
			}
			// A quoted word of an example is not broken.
			before, examples, _ := strings.Cut(out.String(), "\nExamples:\n")
			_, after, _ := strings.Cut(examples, "\n\n")
			if c == root {
				_, before, _ = strings.Cut(before, "\nUSE")
			}
			for line := range strings.Lines(before + after) {
				n := terminal.Columns(strings.TrimSuffix(line, "\n"))
				if n > want && len(strings.Fields(line)) > 1 {
					t.Errorf("%s: %d columns at a width of %d: %s", c.CommandPath(), n, want, line)
				}
				widest = max(widest, n)
			}
		}
		if widest < min(want, 100)-8 {
			t.Errorf("pages at %s columns are %d columns wide", columns, widest)
		}
	}
}

// The rows of the first page have every command once.
func TestFirstPageHasEveryCommand(t *testing.T) {
	t.Parallel()
	root, rows := newTree(&bytes.Buffer{}), map[string]string{}
	for group, names := range help.FirstPage() {
		for _, name := range names {
			if at, twice := rows[name]; twice {
				t.Errorf("%s is in two rows, of %s and %s", name, at, group)
			}
			rows[name] = group
		}
	}
	for _, c := range root.Commands() {
		switch group, ok := rows[c.Name()]; {
		case c.Hidden:
		case !ok:
			t.Errorf("%s has no row on the first page: add it to firstPage in cmd/lmosd/internal/help/first.go", c.Name())
		case group != c.GroupID:
			t.Errorf("%s has a row of the group %s, and is of %s", c.Name(), group, c.GroupID)
		}
	}
}

func TestRootHasSixFlags(t *testing.T) {
	t.Parallel()
	r := lmosd(t.Context(), home(t), "", "help", "-o", "json")
	var doc help.Tree
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil || doc.Kind != "Help" {
		t.Fatalf("%v in %s", err, r.out)
	}
	i := slices.IndexFunc(doc.Commands, func(c help.Command) bool { return c.Path == "lmosd" })
	if n := len(doc.Commands[i].Flags); n != 6 {
		t.Errorf("%d flags on every help page, want 6", n)
	}
	j := slices.IndexFunc(doc.Commands, func(c help.Command) bool { return c.Path == "lmosd call" })
	if c := doc.Commands[j]; c.Scope != cli.ScopeMesh || c.Impact != cli.ReadWrite || c.Example == "" || len(c.Flags) == 0 {
		t.Errorf("call is described as %+v", c)
	}
}

func TestTopics(t *testing.T) {
	t.Parallel()
	var doc help.Tree
	if err := json.Unmarshal([]byte(lmosd(t.Context(), home(t), "", "help", "-o", "json").out), &doc); err != nil || len(doc.Topics) < 3 {
		t.Fatalf("the topics are %q, %v", doc.Topics, err)
	}
	for _, name := range doc.Topics {
		r := lmosd(t.Context(), home(t), "", "help", name)
		if r.code != 0 || len(r.out) < 200 {
			t.Errorf("%s: exit code %d, %q", name, r.code, r.out)
		}
		short(t, name, r.out)
	}
	r := lmosd(t.Context(), home(t), "", "help", "exit-code")
	if r.code != cli.ExitUsage || !strings.Contains(r.errors, `did you mean "exit-codes"?`) {
		t.Errorf("an unknown topic gives %d %s", r.code, r.errors)
	}
	for _, args := range [][]string{{"help", "config", "show"}, {"help", "call"}, {"call", "--help"}, {"--help"}, {}} {
		if r := lmosd(t.Context(), home(t), "", args...); r.code != 0 || !strings.Contains(r.out, "lmosd") || r.errors != "" {
			t.Errorf("%v gives %d %q %q", args, r.code, r.out, r.errors)
		}
	}
}

// TestExamples runs every example of every help page that needs no node of its own, as a shell would, against the fake
// node. What is around lmosd in them (curl, ssh) is a script that answers.
func TestExamples(t *testing.T) {
	t.Parallel()
	var script strings.Builder
	for _, c := range visible(newTree(&bytes.Buffer{})) {
		top := strings.Fields(c.CommandPath() + " lmosd")[1]
		if slices.Contains([]string{"run", "demo", "testnet", "expose", "keys", "login", "logout", "mcp", "upgrade", "lmosd"}, top) {
			continue // they start nodes, do not end, or need other nodes, and have their own tests
		}
		for line := range strings.SplitSeq(c.Example, "\n") {
			command, _, _ := strings.Cut(strings.TrimSpace(line), "   #")
			command = strings.NewReplacer("lmosd run ", "true ", "audit tail ", "audit tail --timeout 1ms ", "lmosd top -o", "lmosd top --once -o", "http://127.0.0.1:4670", "$URL").Replace(command)
			if c.Annotations["impact"] == cli.Danger && !strings.Contains(command, "--yes") { // there is no terminal
				command += " --yes"
			}
			if strings.Contains(command, "task answer") { // a task that requires it
				year := map[bool]string{true: "6", false: "5"}[strings.Contains(command, "--root")]
				command = "lmosd call curious getReport year=" + year + " || " + strings.ReplaceAll(command, "3f2a", "a5c0")
			}
			script.WriteString("exec sh -c " + quoteArg(command) + "\n")
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "examples.txtar"), []byte(script.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{Dir: dir, RequireExplicitExec: true, Setup: func(env *testscript.Env) error {
		if err := setUp(env); err != nil {
			return err
		}
		return exampleFiles(env)
	}})
}

// quoteArg returns s as one argument of a script of testscript.
func quoteArg(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// exampleFiles puts what the examples name.
func exampleFiles(env *testscript.Env) error {
	bin := filepath.Join(env.WorkDir, "bin")
	for name, content := range map[string]string{
		"bin/curl":                            "#!/bin/sh\ncat '" + filepath.Join(env.WorkDir, "weather.td.json") + "'\n",
		"bin/nano":                            "#!/bin/sh\n",
		"bin/ssh":                             "#!/bin/sh\nshift\nexec \"$@\"\n",
		"bin/systemctl":                       "#!/bin/sh\necho LoadState=loaded; echo ActiveState=active\n",
		"agents/weather.td.json":              string(weatherTD),
		"lmosd.yaml":                          "profile: lan\n",
		"invitation":                          invite + "\n",
		"office.token":                        "secret\n",
		"passphrase":                          "correct horse\n",
		"adjuster.json":                       `{"type":["VerifiableCredential"],"proof":{}}`,
		"acme.root":                           "-----BEGIN AGE ENCRYPTED FILE-----\ncorrect horse\n",
		"copy.pem":                            fakeKey,
		"acme.example.recovery":               fakeKey,
		"policy.yaml":                         "apiVersion: lmosd/v1\nrules: []\n",
		"new-policy.yaml":                     "apiVersion: lmosd/v1\nrules: []\n",
		"home/.local/share/lmosd/policy.yaml": "apiVersion: lmosd/v1\nrules: []\n",
		"question.ogg":                        "OggS\x00",
		"pay.token":                           fakeDelegation("did:key:" + twin1),
		"home/.config/fish/completions/x":     "",
		"home/.local/share/bash-completion/completions/x": "",
	} {
		path := filepath.Join(env.WorkDir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o700); err != nil {
			return err
		}
	}
	env.Setenv("EDITOR", "nano")
	env.Setenv("PATH", bin+string(os.PathListSeparator)+env.Getenv("PATH"))
	home := filepath.Join(env.WorkDir, "home", ".local", "share", "lmosd")
	return errors.Join(os.Rename(filepath.Join(env.WorkDir, "data", "audit"), filepath.Join(home, "audit")),
		os.Rename(filepath.Join(env.WorkDir, "data", "identity.pem"), filepath.Join(home, "identity.pem")))
}

func TestASecondRunStartsAfresh(t *testing.T) {
	t.Parallel()
	env := home(t, withToken(newFakeNode(t))...)
	for range 2 {
		if r := lmosd(context.Background(), env, "", "find", "weather", "-o", "name"); r.code != 0 || strings.Count(r.out, "\n") != 1 {
			t.Errorf("exit code %d, %q", r.code, r.out)
		}
	}
}

// BenchmarkHelp shows what a command costs before it does anything.
func BenchmarkHelp(b *testing.B) {
	for b.Loop() {
		if r := lmosd(b.Context(), nil, "", "--help"); r.code != 0 {
			b.Fatal(r.errors)
		}
	}
}
