package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func TestWriteOutput(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		media, output string
		tty           bool
		want          string
	}{
		"nothing":                              {"application/json", "", false, ""},
		"a string is its text":                 {"application/json", `"a\nb"`, false, "a\nb\n"},
		"a number":                             {"application/json", "12", false, "12\n"},
		"null":                                 {"application/json", "null", false, "null\n"},
		"an empty string":                      {"application/json", `""`, false, "\n"},
		"an object in a pipe":                  {"application/json; charset=utf-8", `{"a":1}`, false, "{\"a\":1}\n"},
		"an object on a terminal":              {"application/td+json", `{"a":1}`, true, "{\n  \"a\": 1\n}\n"},
		"what says it is JSON and is not":      {"application/json", `{"a`, true, "{\"a\n"},
		"text with an end":                     {"text/plain", "a\n", false, "a\n"},
		"text without an end":                  {"text/plain", "a", false, "a\n"},
		"bytes in a pipe are not touched":      {"image/png", "\x89PNG\xff", false, "\x89PNG\xff"},
		"bytes on a terminal are no commands":  {"image/png", "\x1b[2J\xff", true, "\ufffd[2J\ufffd"},
		"text on a terminal gives no commands": {"application/json", `"a\u001b[31mb"`, true, "a\ufffd[31mb\n"},
		"text in a pipe is as it was":          {"application/json", `"a\u001b[31mb"`, false, "a\x1b[31mb\n"},
		"a type that nobody knows":             {";", "a", false, "a"},
	} {
		var b bytes.Buffer
		writeOutput(&screen{Writer: &b, tty: test.tty, width: 80}, []byte(test.output), test.media)
		if b.String() != test.want {
			t.Errorf("%s: got %q, want %q", name, b.String(), test.want)
		}
	}
}

// printed shows a view in a form.
func printed(t *testing.T, v view, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	a := newApp(nil, nil, &out, &out)
	a.flags.output = "table"
	for i := 0; i < len(args); i += 2 {
		map[string]func(string){"-o": func(s string) { a.flags.output = s }, "--jq": func(s string) { a.flags.output, a.flags.jq = "json", s }}[args[i]](args[i+1])
	}
	if err := a.show(v); err != nil {
		return "error: " + err.Error()
	}
	return out.String()
}

func TestFormsOfAView(t *testing.T) {
	t.Parallel()
	list := view{doc: map[string]any{"kind": "L", "items": []map[string]any{{"n": 1}, {"n": "<b>"}}}, names: []string{"x\x1b", "y"},
		people: func(s *screen, wide bool) { s.line(map[bool]string{true: "wide", false: "narrow"}[wide]) }}
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
		{[]string{"--jq", "$x"}, "error: --jq is no jq expression: variable not defined: $x"},
	} {
		if got := printed(t, list, test.args...); got != test.want {
			t.Errorf("%v: got %q, want %q", test.args, got, test.want)
		}
	}
	if got := printed(t, view{doc: map[string]int{"a": 1}}, "-o", "jsonl"); got != "{\"a\":1}\n" {
		t.Errorf("a document without items: %q", got)
	}
	if got := printed(t, view{doc: map[string]any{"items": []int{}}}, "-o", "jsonl"); got != "" {
		t.Errorf("an empty list: %q", got)
	}
	for _, form := range []string{"json", "jsonl", "yaml"} {
		if got := printed(t, view{doc: func() {}}, "-o", form); !strings.HasPrefix(got, "error: ") {
			t.Errorf("%s of a function: %q", form, got)
		}
	}
}

// failed prints err as the program does at its end.
func failed(err error, asJSON bool, env ...string) (string, int) {
	var talk bytes.Buffer
	a := newApp(env, nil, &bytes.Buffer{}, &talk)
	a.flags.output = "table"
	code := a.fail(err, asJSON)
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
		"silent": {silentError(4), 4, ""},
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
	if code != exitUsage || !strings.HasPrefix(head, "error: env LMOSD_MESH__NETWORK: ") || !strings.HasSuffix(head, "LMOS-2002") {
		t.Errorf("exit %d: %q", code, got)
	}
	got, _ = failed(err, true)
	if !strings.HasPrefix(got, `{"apiVersion":"lmosd/v1","error":{"type":"urn:lmosd:error:config-invalid-value"`) || strings.Count(got, "\n") != 1 {
		t.Errorf("for programs: %q", got)
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		raw  string
		err  error
		code interact.Code
	}{
		"valid":     {string(weatherTD), nil, 0},
		"no JSON":   {"{", nil, interact.NotJSON},
		"no TD":     {"{}", nil, interact.BadTD},
		"too large": {"", interact.Errorf(interact.TooLarge, "", "x has more than 5 bytes"), interact.TooLarge},
	} {
		v := judge(t.Context(), name, []byte(test.raw), test.err)
		if v.Valid != (test.code == 0) || !v.Valid && (v.code != test.code || len(v.Issues) == 0) || v.Warnings == nil || v.Issues == nil {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

func TestReached(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]gateway.Publication{
		"gossip 1 peer, dht 3/3":                                     {GossipPeers: 1, Replicas: 3, Wanted: 3},
		"pending: no peers yet; it is announced when there are some": {Pending: true},
	} {
		if got := reached(&p); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestVersionIsNeverEmpty(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{"": "dev", "(devel)": "dev", "v0.1.0": "0.1.0", "v0.0.0-20261121111051-0f089d02ace0+dirty": "dev",
		"v0.1.1-0.20261121111051-0f089d02ace0": "0.1.1-0.20261121111051-0f089d02ace0"} {
		if got := nameOf(version); got != want {
			t.Errorf("%s is shown as %s, want %s", version, got, want)
		}
	}
	if v := buildInfo(); v.Version == "" || v.Go == "" || !strings.Contains(v.Platform, "/") || v.Version != version() {
		t.Errorf("got %+v", v)
	}
}
