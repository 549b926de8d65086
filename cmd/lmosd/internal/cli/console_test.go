package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// printed shows a view in a form.
func printed(t *testing.T, v View, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	a := New(nil, nil, &out, &out)
	a.Flags.Output = "table"
	for i := 0; i < len(args); i += 2 {
		map[string]func(string){"-o": func(s string) { a.Flags.Output = s }, "--jq": func(s string) { a.Flags.Output, a.Flags.jq = "json", s }}[args[i]](args[i+1])
	}
	if err := a.Show(v); err != nil {
		return "error: " + err.Error()
	}
	return out.String()
}

func TestFormsOfAView(t *testing.T) {
	t.Parallel()
	list := View{Doc: map[string]any{"kind": "L", "items": []map[string]any{{"n": 1}, {"n": "<b>"}}}, Names: []string{"x\x1b", "y"},
		People: func(s *terminal.Screen, wide bool) { s.Line(map[bool]string{true: "wide", false: "narrow"}[wide]) }}
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "narrow\n"},
		{[]string{"-o", "wide"}, "wide\n"},
		{[]string{"-o", "json"}, `{"items":[{"n":1},{"n":"<b>"}],"kind":"L"}` + "\n"},
		{[]string{"-o", "jsonl"}, "{\"n\":1}\n{\"n\":\"<b>\"}\n"},
		{[]string{"-o", "name"}, "x\ufffd\ny\n"},
		{[]string{"-o", "yaml"}, "items:\n- \"n\": 1\n- \"n\": <b>\nkind: L\n"},
		{[]string{"--jq", ".items[].n"}, "1\n<b>\n"},
		{[]string{"--jq", ".items[1]"}, "{\"n\":\"<b>\"}\n"},
		{[]string{"--jq", ".kind, halt"}, "L\n"},
		{[]string{"--jq", "empty"}, ""},
		{[]string{"--jq", ".kind.x"}, "error: --jq failed: expected an object but got: string (\"L\")"},
		{[]string{"--jq", "$x"}, "error: expected a jq expression after --jq: variable not defined: $x"},
	} {
		if got := printed(t, list, test.args...); got != test.want {
			t.Errorf("%v: got %q, want %q", test.args, got, test.want)
		}
	}
	if got := printed(t, View{Doc: map[string]int{"a": 1}}, "-o", "jsonl"); got != "{\"a\":1}\n" {
		t.Errorf("a document without items: %q", got)
	}
	if got := printed(t, View{Doc: map[string]any{"items": []int{}}}, "-o", "jsonl"); got != "" {
		t.Errorf("an empty list: %q", got)
	}
	for _, form := range []string{"json", "jsonl", "yaml"} {
		if got := printed(t, View{Doc: func() {}}, "-o", form); !strings.HasPrefix(got, "error: ") {
			t.Errorf("%s of a function: %q", form, got)
		}
	}
}

// failed prints err as the program does at its end.
func failed(err error, asJSON bool, env ...string) (string, int) {
	var talk bytes.Buffer
	a := New(env, nil, &bytes.Buffer{}, &talk)
	a.Flags.Output = "table"
	code := a.Fail(err, asJSON)
	return talk.String(), code
}

func TestErrorsForPeople(t *testing.T) {
	t.Parallel()
	many := make([]td.Issue, maxIssues+5)
	for name, test := range map[string]struct {
		err  error
		code int
		want string
	}{
		"with a cause": {&interact.Error{Code: interact.NodeLost, Title: "it broke", Hint: "lmosd status", Err: errors.New("EOF\nhere")}, 3,
			"error: it broke  LMOS-3002\n  cause  EOF here\n  hint   lmosd status\n"},
		"without title and hint": {&interact.Error{Code: interact.NotFound}, 4,
			"error: Agent not found  LMOS-1404\n  hint   lmosd errors explain LMOS-1404\n"},
		"with places": {&interact.Error{Code: interact.BadTD, Title: "t", Hint: "h", Issues: []td.Issue{{Pointer: "/a", Reason: "wrong"}, {Reason: "missing"}}}, 2,
			"error: t  LMOS-2011\n  at     /a: wrong\n  at     missing\n  hint   h\n"},
		"of nobody in particular": {errors.New("disk on fire"), 1,
			"error: disk on fire  LMOS-1500\n  hint   lmosd errors explain LMOS-1500\n"},
		"with one place, which the title names": {&interact.Error{Code: interact.BadTD, Title: "x: /a: wrong (and 0 more)", Hint: "h",
			Issues: []td.Issue{{Pointer: "/a", Reason: "wrong"}}}, 2, "error: x: /a: wrong (and 0 more)  LMOS-2011\n  hint   h\n"},
		"silent": {SilentError(4), 4, ""},
		"from strangers": {&interact.Error{Code: interact.AgentFailed, Title: "a\x1b[31m\nb", Hint: "h\x07"}, 5,
			"error: a\ufffd[31m b  LMOS-1502\n  hint   h\ufffd\n"},
	} {
		if got, code := failed(test.err, false); got != test.want || code != test.code {
			t.Errorf("%s: exit %d\n got %q\nwant %q", name, code, got, test.want)
		}
	}
	if got, _ := failed(&interact.Error{Code: interact.BadTD, Issues: many}, false); strings.Count(got, "\n") != maxIssues+3 ||
		!strings.Contains(got, "and 5 more places") {
		t.Errorf("many places: %q", got)
	}
}

func TestErrorsOfTheConfiguration(t *testing.T) {
	t.Parallel()
	_, err := configs.Load(configs.LoadOptions{Env: []string{"LMOSD_MESH__NETWORK=A B"}})
	got, code := failed(err, false, "LMOSD_FORCE_TTY=200", "NO_COLOR=1")
	head, _, _ := strings.Cut(got, "\n")
	if code != ExitUsage || !strings.HasPrefix(head, "error: env LMOSD_MESH__NETWORK: ") || !strings.HasSuffix(head, "LMOS-2002") {
		t.Errorf("exit %d: %q", code, got)
	}
	got, _ = failed(err, true)
	if !strings.HasPrefix(got, `{"apiVersion":"lmosd/v1","error":{"type":"urn:lmosd:error:config-invalid-value"`) || strings.Count(got, "\n") != 1 {
		t.Errorf("for programs: %q", got)
	}
}

func TestWantsJSON(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]bool{
		"find -o json": true, "find -ojson": true, "find -o=json": true, "find --output json": true, "find --output=jsonl": true,
		"find --jq .x": true, "find --jq=.x": true, "find": false, "find -o table": false, "find -o": false, "call a b -- -o json": false,
		"find --owner json": false, "find -o yaml": false,
	} {
		if got := WantsJSON(strings.Fields(line)); got != want {
			t.Errorf("%s: got %t", line, got)
		}
	}
}

func TestTheLastOfEqualVariablesCounts(t *testing.T) {
	t.Parallel()
	c := New([]string{"A=1", "AB=2", "A=", "A=3=4"}, nil, &bytes.Buffer{}, &bytes.Buffer{})
	if c.Variable("A") != "3=4" || c.Variable("B") != "" {
		t.Errorf("A is %q, B is %q", c.Variable("A"), c.Variable("B"))
	}
}

func TestEveryCodeHasAnExitCode(t *testing.T) {
	t.Parallel()
	for _, c := range interact.Codes() {
		if exit, ok := exits[c]; !ok || exit == exitOK {
			t.Errorf("%s has no exit code", c)
		}
	}
	if len(exits) != len(interact.Codes()) {
		t.Errorf("%d codes, %d exit codes", len(interact.Codes()), len(exits))
	}
	if ExitOf(9999) != ExitInternal {
		t.Error("an unknown code must not be a success")
	}
}
