package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/nodeaddr"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
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
		flags         cli.Flags
		command, want string
		asked         bool // a node was
	}{
		"another folder":     {cli.Flags{DataDir: "/a b"}, "lmosd login mcp:https://a.example", "lmosd " + dir + " login mcp:https://a.example", false},
		"all flags":          {cli.Flags{Config: "c", DataDir: "d", Node: "n"}, "lmosd show x", "lmosd --config c --data-dir d --node n show x", false},
		"no flags":           {cli.Flags{}, "lmosd show x", "lmosd show x", false},
		"a comment":          {cli.Flags{DataDir: "d"}, "lmosd find   # or lmosd show", "lmosd --data-dir d find # or lmosd show", false},
		"below a command":    {cli.Flags{DataDir: "d"}, "lmosd task wait 3f2a", "lmosd --data-dir d task wait 3f2a", false},
		"of any node":        {cli.Flags{DataDir: "d"}, "lmosd errors explain LMOS-1404", "lmosd errors explain LMOS-1404", false},
		"of no command":      {cli.Flags{DataDir: "d"}, "lmosd --help", "lmosd --help", false},
		"it says where":      {cli.Flags{DataDir: "d"}, "lmosd run --data-dir DIR", "lmosd run --data-dir DIR", false},
		"a name of anyone":   {cli.Flags{DataDir: "d"}, "lmosd show 'x lmosd run'", "lmosd --data-dir d show 'x lmosd run'", false},
		"a context's folder": {cli.Flags{Node: "other"}, "lmosd login mcp:https://a.example", "lmosd --data-dir /o login mcp:https://a.example", true},
		"a context":          {cli.Flags{Node: "other"}, "lmosd show x", "lmosd --node other show x", true},
		"a node that is far": {cli.Flags{Node: "http://192.0.2.1:1"}, "lmosd run", "lmosd run", true},
	} {
		var out bytes.Buffer
		a := newApp(home(t, "XDG_CONFIG_HOME="+filepath.Dir(contexts)), strings.NewReader(""), &out, &out)
		a.Flagged = a.flagged
		a.Flags = test.flags
		a.Flags.Output = "table"
		if test.asked {
			var err error
			if a.target, err = nodeaddr.Find(a.Console); err != nil {
				t.Fatal(name, err)
			}
		}
		for _, hint := range []struct{ text, want string }{{"", test.want}, {"look", "look: " + test.want}, {"lmosd show x?", "lmosd show x? " + test.want}} {
			out.Reset()
			e := interact.Error{Code: interact.NotAllowed, Title: "no", Hint: hint.text, Next: interact.Next(cli.StepCommand, test.command)}
			a.Fail(&e, false)
			if _, got, _ := strings.Cut(out.String(), "  hint   "); got != hint.want+"\n" {
				t.Errorf("%s: the hint is %q, want %q", name, got, hint.want)
			}
		}
	}
}

// Steps become commands that act on the node of this command, as far as they are for that node.
func TestSteps(t *testing.T) {
	t.Parallel()
	next := interact.Next
	const far, here = "far", "here"
	for name, test := range map[string]struct {
		hint string
		next []interact.Step
		from string // "" is this command or its node, else an agent far away or here
		want string
	}{
		"a reference":           {"", next(interact.StepShow, "urn:x"), "", "lmosd --data-dir d show urn:x"},
		"of another node":       {"", next(interact.StepShow, "urn:x"), far, "lmosd --data-dir d show urn:x"},
		"with words":            {"see it", next(interact.StepShow, "urn:x"), "", "see it: lmosd --data-dir d show urn:x"},
		"several":               {"", (&interact.Error{}).Then(interact.StepFind).Then(interact.StepTasks).Next, "", "lmosd --data-dir d find, or lmosd --data-dir d task ls"},
		"a name with a command": {"", next(interact.StepShow, "x;reboot"), far, "lmosd --data-dir d show 'x;reboot'"},
		"a name like a flag":    {"", next(interact.StepShow, "--node=x"), far, "lmosd --data-dir d show -- --node=x"},
		"a value":               {"", next(interact.StepWrite, "a", "b c"), "", "lmosd --data-dir d write a 'b c' VALUE"},
		"a missing argument":    {"", next(interact.StepPublish), "", "lmosd --data-dir d publish FILE"},
		"a setting":             {"", next(interact.StepRun, "http.listen", "127.0.0.1:0"), "", "lmosd --data-dir d run --http.listen 127.0.0.1:0"},
		"another folder":        {"", next(interact.StepRun, "data-dir", "DIR"), "", "lmosd run --data-dir DIR"},
		"another node":          {"", next(interact.StepStatus, "unix:/a"), "", "lmosd status --node unix:/a"},
		"a far program":         {"start it", next(interact.StepExpose, "exec:reboot"), far, "start it"},
		"a far option":          {"wait", next(interact.StepOption, "timeout", "60s"), far, "wait: --timeout 60s"},
		"a far login":           {"", next(interact.StepLogin, "mcp:https://a.example", "r", "w"), far, "lmosd login mcp:https://a.example --scope r --scope w"},
		"a far folder":          {"see", next(interact.StepFind, "x", "data-dir", "/evil"), far, "see: lmosd --data-dir d find x"},
		"a far node":            {"", next(interact.StepStatus, "http://evil.example"), far, "lmosd status"},
		"a far file":            {"", next(interact.StepConfig, ".bashrc"), far, "lmosd config describe"},
		"a far global option":   {"wait", next(interact.StepOption, "node", "http://evil.example"), far, "wait"},
		"a far second option":   {"wait", next(interact.StepOption, "async", "--node=x"), far, "wait"},
		"options of such names": {"", next(interact.StepLogin, "-x", "r"), "", "lmosd --data-dir d login --scope r -- -x"},
		"a login":               {"", next(interact.StepLogin, "mcp:https://a.example"), here, "lmosd --data-dir d login mcp:https://a.example"},
		"candidates":            {"use one", interact.UseOne([]string{"a", "b c"}), "", "use one: a, 'b c'"},
		"a changed setting":     {"", next(interact.StepSet, "telemetry.metrics", "true"), "", "lmosd config set telemetry.metrics true"},
		"a key alone":           {"", next(interact.StepSet, "http.listen"), "", "lmosd config set http.listen VALUE"},
		"a far setting":         {"wait", next(interact.StepSet, "trust.untrusted", "open"), far, "wait"},
		"a file":                {"", next(interact.StepConfig, "/etc/a b"), "", "lmosd config describe > '/etc/a b'"},
		"on the other host":     {"", next(interact.StepID), "", "lmosd id"},
		"unknown":               {"words", next("sing"), far, "words"},
	} {
		var out bytes.Buffer
		a := newApp(home(t), strings.NewReader(""), &out, &out)
		a.Flagged = a.flagged
		a.Flags, a.here = cli.Flags{DataDir: "d", Output: "table"}, test.from == here
		a.Fail(&interact.Error{Code: interact.NotAllowed, Title: "no", Hint: test.hint, Next: test.next, Remote: test.from != ""}, false)
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

func TestClarify(t *testing.T) {
	t.Parallel()
	show := func(ref string) string { return "lmosd show " + ref }
	ambiguous := func(refs ...string) error {
		return &interact.Error{Code: interact.Ambiguous, Hint: "use one", Next: interact.UseOne(refs)}
	}
	for name, test := range map[string]struct {
		err         error
		asked       string
		hint, cause string
	}{
		"a near name":            {interact.Errorf(interact.NotFound, "", "x").Then(interact.StepShow, "weather"), "weathr", `did you mean "weather"? lmosd show weather`, ""},
		"a near name with signs": {interact.Errorf(interact.NotFound, "", "x").Then(interact.StepShow, "a;b"), "a", `did you mean "a;b"? lmosd show 'a;b'`, ""},
		"nothing near":           {interact.Errorf(interact.NotFound, "see", "x").Then(interact.StepFind), "weathr", "see", ""},
		"two owners": {ambiguous("urn:lmos:did:key:"+twin1+":w", "urn:x:w@"+twin2), "w",
			"lmosd show w@" + twin1[:render.ShortKey], "w@" + twin1[:render.ShortKey] + ", w@" + twin2[:render.ShortKey]},
		"one owner":        {ambiguous("urn:x:a@"+twin1, "urn:x:b@"+twin1), "w", "use one", ""},
		"a key":            {ambiguous("urn:x:a@" + twin1), "z6Mk", "use one", ""},
		"no list":          {interact.Errorf(interact.Ambiguous, "say more", "x"), "w", "say more", ""},
		"another error":    {interact.Errorf(interact.Timeout, "wait", "x"), "w", "wait", ""},
		"of nobody at all": {errors.New("boom"), "w", "", "boom"},
	} {
		e := interact.AsError(clarify(test.err, test.asked, show))
		cause := ""
		if e.Err != nil {
			cause = e.Err.Error()
		}
		if ownAdvice(e) != test.hint || cause != test.cause {
			t.Errorf("%s: hint %q, cause %q; want %q, %q", name, ownAdvice(e), cause, test.hint, test.cause)
		}
	}
	if clarify(nil, "w", show) != nil {
		t.Error("no error became one")
	}
}

func TestMisfit(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"an input with places":  {&interact.Error{Code: interact.Invalid, Hint: "old", Issues: []td.Issue{{Reason: "x"}}}, "lmosd call a b"},
		"an input without them": {&interact.Error{Code: interact.Invalid, Hint: "old"}, "old"},
		"another error":         {&interact.Error{Code: interact.Timeout, Hint: "old", Issues: []td.Issue{{}}}, "old"},
	} {
		if got := ownAdvice(interact.AsError(misfit(test.err, "lmosd call a b"))); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

func TestAgain(t *testing.T) {
	t.Parallel()
	for want, rest := range map[string][]string{
		"lmosd call w":           nil,
		"lmosd call w act":       {"act"},
		"lmosd call w 'a b' k=v": {"a b", "k=v"},
		"lmosd call w '$(rm)' …": {"$(rm)", strings.Repeat("x", 300)},
	} {
		if got := again("call", "w", rest); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// ownAdvice returns the hint of e with the steps of this program.
func ownAdvice(e *interact.Error) string {
	next := slices.DeleteFunc(slices.Clone(e.Next), func(s interact.Step) bool { return s.Kind != cli.StepCommand })
	return new(cli.Console).Advice(e.Hint, next, false)
}
