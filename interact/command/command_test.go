//go:build unix

package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/td"
)

func TestMain(m *testing.M) {
	if os.Getenv(helperMode) != "" {
		helper()
		return
	}
	testmain.Run(m)
}

func newAgent(t *testing.T, o Options) *Agent {
	t.Helper()
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

func invoke(data string) *interact.Message {
	return &interact.Message{Type: interact.InvokeAction, Thing: "urn:x:a", ID: "m1", Name: "run", Data: []byte(data)}
}

// ask calls the agent and returns the last reply as "media data".
func ask(t *testing.T, a *Agent, m *interact.Message) string {
	t.Helper()
	r, err := interact.Call(t.Context(), a, m)
	if err != nil {
		t.Errorf("got error %v", err)
		return ""
	}
	if r.Type != interact.ActionStatus || r.Status != interact.StatusCompleted || r.Correlation != "m1" || r.Name != "run" {
		t.Errorf("got %+v, want a completed status of the call", r)
	}
	return r.Media() + " " + string(r.Data)
}

// fails returns the error of a call, which must be one of ours.
func fails(t *testing.T, a interact.Thing, m *interact.Message) *interact.Error {
	t.Helper()
	return failsIn(t.Context(), t, a, m)
}

func failsIn(ctx context.Context, t *testing.T, a interact.Thing, m *interact.Message) *interact.Error {
	t.Helper()
	var e *interact.Error
	r, err := interact.Call(ctx, a, m)
	if !errors.As(err, &e) {
		t.Fatalf("got %v, %v; want an *interact.Error", r, err)
	}
	return e
}

func TestInputAndOutput(t *testing.T) {
	t.Parallel()
	const js, oct = "application/json ", "application/octet-stream "
	for name, c := range map[string]struct{ command, media, in, want string }{
		"an object":                     {"cat", "", `{"a":[1,2]}`, js + `{"a":[1,2]}`},
		"an object is not touched":      {"cat", "", ` { "b":1.50, "a":1e2 } `, js + `{ "b":1.50, "a":1e2 }`},
		"a string comes as text":        {"cat", "", `"über \"alles\"\n"`, js + `"über \"alles\""`},
		"text with quotes in it":        {`cat; printf '"'`, "", `"\"a b"`, js + `"a b"`},
		"a string is not a line":        {"od -An -tx1 | tr -d ' '", "", `"ab"`, js + `6162`},
		"the number in a string":        {"cat", "", `"42"`, js + `42`},
		"text":                          {"echo hello world", "", ``, js + `"hello world"`},
		"text of lines":                 {`printf 'a\nb\n\n'`, "", ``, js + `"a\nb\n"`},
		"a line end of Windows":         {`printf 'a\r\n'`, "", ``, js + `"a"`},
		"marks are not escaped":         {`echo '<b> & "c"'`, "", ``, js + `"<b> & \"c\""`},
		"JSON with a line end":          {`echo ' {"a":1} '`, "", ``, js + `{"a":1}`},
		"a JSON string":                 {`echo '"x"'`, "", ``, js + `"x"`},
		"null":                          {`echo null`, "", ``, js + `null`},
		"two values are text":           {`echo '1 2'`, "", ``, js + `"1 2"`},
		"a name twice is text":          {`echo '{"a":1,"a":2}'`, "", ``, js + `"{\"a\":1,\"a\":2}"`},
		"nothing":                       {"true", "", ``, js},
		"an empty line":                 {"echo", "", ``, js + `""`},
		"octets":                        {`printf '\377\376\n'`, "", ``, oct + "\xff\xfe\n"},
		"no input is an empty stdin":    {"wc -c | tr -d ' '", "", ``, js + `0`},
		"an empty string as input":      {"wc -c | tr -d ' '", "", `""`, js + `0`},
		"input that is not read":        {"echo x", "", `"` + strings.Repeat("y", 300<<10) + `"`, js + `"x"`},
		"more input than a pipe holds":  {"wc -c | tr -d ' '", "", `"` + strings.Repeat("y", 300<<10) + `"`, js + `307200`},
		"other types come as they are":  {"cat", "text/plain", `"quoted"`, js + `"quoted"`},
		"octets in":                     {"cat", octets, "\x00\xff", oct + "\x00\xff"},
		"CBOR comes as JSON":            {"cat", "application/cbor", "\xa1\x61a\x01", js + `{"a":1}`},
		"a CBOR string comes as text":   {"od -An -tx1 | tr -d ' '", "application/cbor", "\x62ab", js + `6162`},
		"output only on stderr":         {"echo warning >&2; echo 1", "", ``, js + `1`},
		"a pipeline":                    {"echo b a | tr ' ' '\n' | sort | head -n 1", "", ``, js + `"a"`},
		"the end of a background job":   {"(echo late; exit 3) & echo early; wait $!; true", "", ``, js},
		"a nul byte":                    {`printf 'a\000b'`, "", ``, js + `"a\u0000b"`},
		"nothing of the input is shell": {"cat", "", `"$(echo no) ; exit 1"`, js + `"$(echo no) ; exit 1"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := invoke(c.in)
			m.ContentType = c.media
			got := ask(t, newAgent(t, Options{Command: c.command}), m)
			if c.want == js && strings.Contains(name, "background") {
				if !strings.Contains(got, "early") || !strings.Contains(got, "late") {
					t.Errorf("got %q, want both words", got)
				}
			} else if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestArgs(t *testing.T) {
	t.Parallel()
	a := newAgent(t, Options{Args: []string{"printf", "%s|%s", "$HOME; *", "b"}})
	if got := ask(t, a, invoke("")); got != `application/json "$HOME; *|b"` {
		t.Errorf("got %s", got)
	}
}

// described returns a description with the action run, whose output has the schema.
func described(t *testing.T, schema string) *td.Thing {
	t.Helper()
	raw, err := td.Draft([]byte(`{"title":"x","id":"urn:x:a","actions":{"run":{"output":` + schema + `}}}`))
	if err != nil {
		t.Fatal(err)
	}
	thing, err := td.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return thing
}

func TestTheSchemaDecides(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ schema, command, want string }{
		{`{"type":"string"}`, "echo 42", `"42"`},
		{`{"type":"string"}`, "echo true", `"true"`},
		{`{"type":"string"}`, `echo '{"a":1}'`, `"{\"a\":1}"`},
		{`{"type":"string"}`, `echo '"said"'`, `"said"`},
		{`{"type":"string"}`, `true`, `""`},
		{`{"enum":["1","2"]}`, "echo 1", `"1"`},
		{`{"type":"number"}`, "echo 42", `42`},
		{`{}`, "echo 42", `42`},
		{`{}`, "true", ``},
	} {
		a := newAgent(t, Options{Command: c.command, Thing: described(t, c.schema)})
		if got := ask(t, a, invoke("")); got != "application/json "+c.want {
			t.Errorf("%s, %s: got %s, want %s", c.schema, c.command, got, c.want)
		}
	}
	m := invoke("")
	m.Name = "other"
	r, err := interact.Call(t.Context(), newAgent(t, Options{Command: "echo 42", Thing: described(t, `{"type":"string"}`)}), m)
	if err != nil || string(r.Data) != "42" {
		t.Errorf("an action without schema: got %s, %v", r.Data, err)
	}
}

// TestEnvironment is not parallel: it sets variables of this process.
func TestEnvironment(t *testing.T) {
	t.Setenv("LMOSD_TOKEN", "hunter2")
	t.Setenv("TRACEPARENT", "00-stale")
	t.Setenv("GOTRACEBACK", "crash")
	t.Setenv("TRACESTATE", "stale=1")
	t.Setenv("INHERITED", "yes")
	dir := t.TempDir()
	a := newAgent(t, Options{Agent: "greeter", Command: "env; echo DIR=$(pwd -P)", Dir: dir, Env: []string{"MINE=a=b",
		"LMOSD_ACTION=forged", "INHERITED=changed"}})
	env := func(m *interact.Message) map[string]string {
		r, err := interact.Call(t.Context(), a, m)
		if err != nil {
			t.Fatal(err)
		}
		var text string
		if err := json.Unmarshal(r.Data, &text); err != nil {
			t.Fatal(err)
		}
		vars := map[string]string{}
		for line := range strings.SplitSeq(text, "\n") {
			name, value, _ := strings.Cut(line, "=")
			vars[name] = value
		}
		return vars
	}
	m := invoke("")
	m.TraceParent, m.TraceState = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "v=1"
	m.From = did.NodePrincipal("did:key:z6Mkcaller", "")
	m.Deadline = time.Now().Add(time.Hour)
	full, bare := env(m), env(invoke(""))
	real, _ := filepath.EvalSymlinks(dir)
	for name, want := range map[string]string{"LMOSD_AGENT": "greeter", "LMOSD_ACTION": "run", "LMOSD_CALLER": "did:key:z6Mkcaller",
		"TRACEPARENT": m.TraceParent, "TRACESTATE": "v=1", "MINE": "a=b", "INHERITED": "changed", "DIR": real} {
		if full[name] != want {
			t.Errorf("%s is %q, want %q", name, full[name], want)
		}
	}
	end, err := time.Parse(time.RFC3339, full["LMOSD_DEADLINE"])
	if err != nil || m.Deadline.Sub(end).Abs() > time.Millisecond || !strings.HasSuffix(full["LMOSD_DEADLINE"], "Z") {
		t.Errorf("the deadline is %q, want %v", full["LMOSD_DEADLINE"], m.Deadline)
	}
	for _, name := range []string{"LMOSD_CALLER", "LMOSD_DEADLINE"} {
		if v, ok := bare[name]; !ok || v != "" {
			t.Errorf("%s is %q, %v; want it empty", name, v, ok)
		}
	}
	for _, name := range []string{"TRACEPARENT", "TRACESTATE", "LMOSD_TOKEN", "GOTRACEBACK"} {
		if v, ok := bare[name]; ok {
			t.Errorf("%s is %q, want it absent", name, v)
		}
	}
	if full["LMOSD_TOKEN"] != "" {
		t.Error("the node's token is shown to the command")
	}
	a.o.Agent = ""
	if got := env(invoke(""))["LMOSD_AGENT"]; got != "urn:x:a" {
		t.Errorf("an agent without name is %q, want the name in the call", got)
	}
}

func TestUnsendableMessages(t *testing.T) {
	t.Parallel()
	a := newAgent(t, Options{Command: "true"})
	for _, name := range []string{"a\x00b", strings.Repeat("x", 20<<10)} {
		m := invoke("")
		m.Name = name
		if e := fails(t, a, m); e.Code != interact.Invalid || !strings.Contains(e.Title, "LMOSD_ACTION") {
			t.Errorf("got %v", e)
		}
	}
	m := invoke(`"open`)
	if e := fails(t, a, m); e.Code != interact.Invalid {
		t.Errorf("a broken string: got %v", e)
	}
	m = invoke("\xa1\xff")
	m.ContentType = interact.CBOR
	if e := fails(t, a, m); e.Code != interact.Invalid {
		t.Errorf("broken CBOR: got %v", e)
	}
	m = invoke("1")
	m.Chunks = chunks("x")
	if e := fails(t, a, m); e.Code != interact.Invalid || e.Started {
		t.Errorf("input and a stream: got %v", e)
	}
}

func TestOnlyActions(t *testing.T) {
	t.Parallel()
	a := newAgent(t, Options{Command: "touch " + t.TempDir() + "/ran"})
	for _, typ := range []interact.Type{interact.ReadProperty, interact.WriteProperty, interact.ObserveProperty,
		interact.SubscribeEvent,
		interact.ReadAllProperties, interact.QueryAction, interact.CancelAction} {
		if e := fails(t, a, &interact.Message{Type: typ, Name: "run"}); e.Code != interact.NotAllowed || e.Hint == "" && e.Next == nil {
			t.Errorf("%s: got %v", typ.Op(), e)
		}
	}
}

func TestFailure(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ command, want string }{
		"a code and stderr":         {`echo out; echo "no  such	city" >&2; exit 3`, "run failed: exit status 3: no such city"},
		"a code alone":              {`exit 7`, "run failed: exit status 7"},
		"lines, and a terminal's":   {`printf 'a\nb\033[31mc\r' >&2; exit 1`, "run failed: exit status 1: a b [31mc"},
		"a signal":                  {`kill -SEGV $$`, "run failed: signal: segmentation fault"},
		"a signal and a core":       {`kill -KILL $$`, "run failed: signal: killed"},
		"no such program":           {`surely-not-here`, "exit status 127: /bin/sh: 1: surely-not-here: not found"},
		"the end of a long message": {`head -c 100000 /dev/zero | tr '\0' x >&2; echo ' the end' >&2; exit 1`, "xxx the end"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := fails(t, newAgent(t, Options{Command: c.command}), invoke(""))
			if e.Code != interact.AgentFailed || !e.Remote || e.Hint == "" && e.Next == nil || len(e.Title) > maxStderr+100 {
				t.Errorf("got %+v", e)
			}
			if name == "no such program" { // each shell has words of its own
				c.want = "surely-not-here"
			}
			if !strings.HasSuffix(strings.TrimSuffix(e.Error(), " (core dumped)"), c.want) && !strings.Contains(e.Error(),
				"surely-not-here") {
				t.Errorf("got %q, want %q", e.Error(), c.want)
			}
		})
	}
}

func TestTail(t *testing.T) {
	t.Parallel()
	full := strings.Repeat("ä", 10_000) // 20,000 bytes
	for _, size := range []int{1, 2, 3, 1000, 4095, 4096, 4097, 20_000} {
		var last tail
		for b := []byte(full); len(b) > 0; b = b[min(size, len(b)):] {
			if n, err := last.Write(b[:min(size, len(b))]); n != min(size, len(b)) || err != nil {
				t.Fatalf("wrote %d, %v", n, err)
			}
		}
		if got := last.String(); got != "…"+strings.Repeat("ä", 2048) {
			t.Errorf("in steps of %d: got %d bytes, %q…", size, len(got), got[:8])
		}
	}
	var cut, short tail
	_, _ = cut.Write([]byte("\x80" + strings.Repeat("x", maxStderr-1) + "y")) // the first byte kept is x
	_, _ = short.Write([]byte(" a\n"))
	if got := cut.String(); got != "…"+strings.Repeat("x", maxStderr-1)+"y" || short.String() != "a" {
		t.Errorf("got %.10q and %q", got, short.String())
	}
}

func TestTooMuchOutput(t *testing.T) {
	t.Parallel()
	a := newAgent(t, Options{Command: "echo $$ >&2; exec cat /dev/zero", MaxOutput: 100_000, Grace: time.Minute})
	e := fails(t, a, invoke(""))
	if e.Code != interact.TooLarge || e.Remote || !e.Started || !strings.Contains(e.Title, "100000 bytes") ||
		len(e.Next) != 1 || !slices.Contains(e.Next[0].Args, "delimiter") {
		t.Errorf("got %+v", e)
	}
	exact := newAgent(t, Options{Command: "head -c 1000 /dev/zero | tr '\\0' x", MaxOutput: 1000})
	if got := ask(t, exact, invoke("")); got != `application/json "`+strings.Repeat("x", 1000)+`"` {
		t.Errorf("an output of exactly the limit: got %d bytes", len(got))
	}
}

// replies are all replies to m as "status media data".
func replies(t *testing.T, a *Agent, m *interact.Message) []string {
	t.Helper()
	var all []string
	for r, err := range a.Do(t.Context(), m) {
		if err != nil {
			return append(all, "error "+interact.AsError(err).Code.Slug())
		}
		all = append(all, r.Status.String()+" "+r.Media()+" "+string(r.Data))
	}
	return all
}

func TestParts(t *testing.T) {
	t.Parallel()
	const js = "running application/json "
	for name, c := range map[string]struct {
		command, chunk, accept string
		want                   []string
	}{
		"lines":                      {`printf 'one\r\ntwo\n'`, "\n", "", []string{js + `"one\r\n"`, js + `"two\n"`}},
		"the last without delimiter": {`printf 'one\ntwo'`, "\n", "", []string{js + `"one\n"`, js + `"two"`}},
		"JSON lines":                 {`printf '{"a":1}\n[2]\n'`, "\n", interact.JSON, []string{js + `{"a":1}`, js + `[2]`}},
		"an empty line":              {`printf 'a\n\nb\n'`, "\n", "", []string{js + `"a\n"`, js + `"\n"`, js + `"b\n"`}},
		"a long delimiter":           {`printf 'a--b-- -c-'`, "--", "", []string{js + `"a--"`, js + `"b--"`, js + `" -c-"`}},
		"a delimiter in two writes":  {`printf 'a-'; sleep 0.01; printf -- '-b'`, "--", "", []string{js + `"a--"`, js + `"b"`}},
		"no output":                  {`true`, "\n", "", nil},
		"a failure after parts":      {`echo a; exit 1`, "\n", "", []string{js + `"a\n"`, "error agent-failed"}},
		"octets in a part":           {`printf '\377\n'`, "\n", "", []string{"running application/octet-stream \xff\n"}},
		"a type of its own":          {`printf 'a\nb\n'`, "\n", "text/plain", []string{"running text/plain a\nb\n"}},
		"the same without a delimiter": {`printf 'a\nb\n'`, "", "audio/pcm;rate=16000",
			[]string{"running audio/pcm;rate=16000 a\nb\n"}},
		"a range of types":               {`printf a`, "", "audio/*", []string{"running application/octet-stream a"}},
		"a raw stream without output":    {`true`, "", "audio/pcm", nil},
		"a raw stream that fails":        {`exit 1`, "", "audio/pcm", []string{"error agent-failed"}},
		"any type is JSON":               {`printf a`, "", "*/*", []string{"completed application/json \"a\""}},
		"CBOR is the binding's to write": {`printf a`, "", "application/cbor", []string{"completed application/json \"a\""}},
		"and so are events":              {`printf a`, "", "text/event-stream", []string{"completed application/json \"a\""}},
		"an Accept that is none":         {`printf a`, "", ";;", []string{"completed application/json \"a\""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := invoke("")
			m.Accept = c.accept
			got := replies(t, newAgent(t, Options{Command: c.command, Chunk: c.chunk}), m)
			if last := ""; len(c.want) == 0 || strings.HasPrefix(c.want[len(c.want)-1], "running") {
				if len(got) > 0 {
					last, got = got[len(got)-1], got[:len(got)-1]
				}
				if last != "completed application/json " {
					t.Errorf("the last is %q, want it completed without data", last)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestPartsJoinToOutput: the parts of a text are together what the command wrote.
func TestPartsJoinToOutput(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"one\ntwo\n", "one\n\n two", "\n", "a\r\nb\r\n"} {
		a := newAgent(t, Options{Args: []string{"printf", "%s", text}, Chunk: "\n"})
		var parts []interact.Part
		for r, err := range a.Do(t.Context(), invoke("")) {
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Data) > 0 {
				parts = append(parts, interact.Part{Data: r.Data, ContentType: r.Media()})
			}
		}
		data, _ := interact.Join(parts)
		if got := ""; json.Unmarshal(data, &got) != nil || got != text {
			t.Errorf("%q became %s", text, data)
		}
	}
}

func TestPartsComeWhileItRuns(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "go")
	mkfifo(t, fifo)
	a := newAgent(t, Options{Command: "echo first; cat " + fifo + " >/dev/null; echo second", Chunk: "\n"})
	var got []string
	for r, err := range a.Do(t.Context(), invoke("")) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(r.Data))
		if len(got) == 1 {
			// It waits for this: the first part came before the second was written.
			if err := os.WriteFile(fifo, nil, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !slices.Equal(got, []string{`"first\n"`, `"second\n"`, ""}) {
		t.Errorf("got %q", got)
	}
}

func TestAPartThatIsTooLong(t *testing.T) {
	t.Parallel()
	a := newAgent(t, Options{Command: "echo ok; exec cat /dev/zero", Chunk: "\n", MaxOutput: 10_000})
	if got := replies(t, a, invoke("")); !slices.Equal(got, []string{`running application/json "ok\n"`, "error too-large"}) {
		t.Errorf("got %.200q", got)
	}
	all := newAgent(t, Options{Command: "head -c 3000000 /dev/zero | tr '\\0' x", MaxOutput: 1000})
	m := invoke("")
	m.Accept = octets
	size := 0
	for r, err := range all.Do(t.Context(), m) {
		if err != nil {
			t.Fatal(err)
		}
		if size += len(r.Data); len(r.Data) > maxPiece {
			t.Errorf("a part of %d bytes", len(r.Data))
		}
	}
	if size != 3_000_000 {
		t.Errorf("a raw stream, which has no limit: got %d bytes", size)
	}
}

// chunks is a request stream.
func chunks(parts ...string) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for _, p := range parts {
			if !yield([]byte(p), nil) {
				return
			}
		}
	}
}

func TestARequestStream(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		command, chunk, accept string
		want                   []string
	}{
		"octets by default": {"cat", "", "", []string{"running application/octet-stream ab\xffc",
			"completed application/json "}},
		"the type that is accepted": {"cat", "", "audio/pcm", []string{"running audio/pcm ab\xffc", "completed application/json "}},
		"one JSON value of it":      {"wc -c | tr -d ' '", "", interact.JSON, []string{"completed application/json 4"}},
		"lines of it": {"wc -c | tr -d ' '; echo end", "\n", "", []string{"running application/json 4",
			`running application/json "end\n"`, "completed application/json "}},
		"what is not read is no woe": {"true", "", "", []string{"completed application/json "}},
		"nor what is read in part": {"head -c 1", "", "", []string{"running application/octet-stream a",
			"completed application/json "}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := invoke("")
			m.Chunks, m.Accept = chunks("a", "b\xff", "", "c"), c.accept
			got := replies(t, newAgent(t, Options{Command: c.command, Chunk: c.chunk}), m)
			for len(got) > 2 && strings.HasPrefix(got[1], "running application/octet-stream ") { // how the parts are cut is open
				got = append([]string{got[0] + strings.TrimPrefix(got[1], "running application/octet-stream ")}, got[2:]...)
			}
			for len(got) > 2 && strings.HasPrefix(got[1], "running audio/pcm ") {
				got = append([]string{got[0] + strings.TrimPrefix(got[1], "running audio/pcm ")}, got[2:]...)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestBothWaysAtOnce sends a chunk only after the echo of the one before came.
func TestBothWaysAtOnce(t *testing.T) {
	t.Parallel()
	echoed := make(chan struct{}, 1)
	m := invoke("")
	m.Chunks = func(yield func([]byte, error) bool) {
		for i := range 20 {
			if !yield(fmt.Appendf(nil, "%d\n", i), nil) {
				return
			}
			<-echoed
		}
	}
	a := newAgent(t, Options{Command: "while read -r x; do echo \"$x\"; done", Chunk: "\n"})
	n := 0
	for r, err := range a.Do(t.Context(), m) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Status == interact.StatusRunning {
			if string(r.Data) != fmt.Sprint(n) {
				t.Errorf("got %s, want %d", r.Data, n)
			}
			n++
			echoed <- struct{}{}
		}
	}
	if n != 20 {
		t.Errorf("got %d echoes", n)
	}
}

func TestAnUploadThatBreaks(t *testing.T) {
	t.Parallel()
	broken := errors.New("the consumer is gone")
	for want, cause := range map[interact.Code]error{
		interact.Cancelled: broken,
		interact.TooLarge:  &interact.Error{Code: interact.TooLarge},
	} {
		m := invoke("")
		m.Chunks = func(yield func([]byte, error) bool) { _ = yield([]byte("a"), nil) && yield(nil, cause) }
		if e := fails(t, newAgent(t, Options{Command: "exec sleep 1000"}), m); e.Code != want || !errors.Is(e, cause) {
			t.Errorf("got %+v, want %v of %v", e, want, cause)
		}
	}
}

// TestAnUploadWithoutEnd goes on after the command: its reader ends with the next chunk.
func TestAnUploadWithoutEnd(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	next := make(chan struct{})
	m := invoke("")
	m.Accept = interact.JSON
	m.Chunks = func(yield func([]byte, error) bool) {
		defer close(ended)
		for yield([]byte("x"), nil) {
			<-next
		}
	}
	if got := ask(t, newAgent(t, Options{Command: "head -c 1"}), m); got != `application/json "x"` {
		t.Errorf("got %q", got)
	}
	close(next)
	<-ended
}

func TestMoreCallsThanProcesses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := newAgent(t, Options{Dir: dir, MaxConcurrent: 3,
		Command: `mkdir lock.$LMOSD_CALLER; ls -d lock.* | wc -l | tr -d ' '; rmdir lock.$LMOSD_CALLER`})
	var most atomic.Int64
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			m := invoke("")
			m.From = did.NodePrincipal(did.DID(fmt.Sprintf("did:key:%d", i)), "")
			r, err := interact.Call(t.Context(), a, m)
			if err != nil {
				t.Error(err)
				return
			}
			n := int64(0)
			_ = json.Unmarshal(r.Data, &n)
			for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
			}
		})
	}
	wg.Wait()
	if n := most.Load(); n < 1 || n > 3 {
		t.Errorf("%d ran at once, want at most 3", n)
	}
}

func TestBusyUntilTheDeadline(t *testing.T) {
	t.Parallel()
	a := newAgent(t, Options{Command: "echo up; exec sleep 1000", MaxConcurrent: 1, Chunk: "\n"})
	for r, err := range a.Do(t.Context(), invoke("")) {
		if err != nil {
			t.Fatal(err)
		}
		m := invoke("")
		m.Deadline = time.Now().Add(20 * time.Millisecond)
		if e := fails(t, a, m); e.Code != interact.Overloaded || e.Started || !strings.Contains(e.Title, "busy") {
			t.Errorf("got %+v, want it overloaded", e)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if e := failsIn(ctx, t, a, invoke("")); e.Code != interact.Cancelled || e.Started {
			t.Errorf("got %+v, want it cancelled", e)
		}
		a.waiting.Store(maxWaiting)
		if e := fails(t, a, invoke("")); e.Code != interact.Overloaded {
			t.Errorf("got %+v, want it overloaded at once", e)
		}
		a.waiting.Store(0)
		_ = r
		break
	}
}

// writeProgram writes a program. No process is forked meanwhile: it would have the file open for writing, and the program could not be started.
func writeProgram(t *testing.T, path, text string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
}

func TestUnstartablePrograms(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script := filepath.Join(dir, "agent")
	writeProgram(t, script, "#!/nowhere/interpreter\n")
	a := newAgent(t, Options{Args: []string{"./agent"}, Dir: dir})
	if e := fails(t, a, invoke("1")); e.Code != interact.Unreachable || e.Started || e.Remote || e.Err == nil {
		t.Errorf("got %+v", e)
	}
	writeProgram(t, script, "#!/bin/sh\ncat\n")
	if got := ask(t, a, invoke("1")); got != "application/json 1" {
		t.Errorf("a program in its directory: got %q", got)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if e := fails(t, a, invoke("")); e.Code != interact.Unreachable {
		t.Errorf("got %+v", e)
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]Options{
		"nothing to run":          {},
		"blanks":                  {Command: " \n"},
		"an empty program":        {Args: []string{""}},
		"both":                    {Command: "x", Args: []string{"y"}},
		"no such program":         {Args: []string{"surely-not-here"}},
		"no program":              {Args: []string{file}},
		"no such directory":       {Command: "x", Dir: file + "x"},
		"a file as directory":     {Command: "x", Dir: file},
		"a NUL byte":              {Command: "a\x00b"},
		"a NUL byte in arguments": {Args: []string{"cat", "\x00"}},
		"no name":                 {Command: "x", Env: []string{"=1"}},
		"no value":                {Command: "x", Env: []string{"A"}},
		"a NUL byte in a value":   {Command: "x", Env: []string{"A=\x00"}},
	} {
		_, err := New(o)
		var e *interact.Error
		if !errors.As(err, &e) || e.Code != interact.ConfigInvalid || e.Hint == "" && e.Next == nil {
			t.Errorf("%s: got %v", name, err)
		}
	}
	a := newAgent(t, Options{Command: "x", MaxOutput: -1, Grace: -1, MaxConcurrent: -1})
	if a.o.MaxOutput != 4<<20 || a.o.Grace != 2*time.Second || cap(a.slots) != 16 {
		t.Errorf("got %+v", a.o)
	}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, title string
		actions     []string
		called      string
		want        []string
	}{
		{"greeter", "", nil, "greeter", []string{"run"}},
		{"greeter", "The Greeter", []string{"greet", "sag <hallo>"}, "the-greeter", []string{"greet", "sag <hallo>"}},
		{"bad \xff", "", nil, "bad", []string{"run"}},
	} {
		raw, err := td.Draft(Describe(c.name, c.title, []string{"urn:x:greeting"}, c.actions))
		if err != nil {
			t.Fatal(err)
		}
		thing, err := td.Parse(raw)
		if err != nil {
			t.Fatalf("%v: %s", err, raw)
		}
		if thing.Name() != c.called || len(thing.Actions) != len(c.want) || len(thing.Capabilities) != 1 ||
			thing.Capabilities[0].ID != "urn:x:greeting" {
			t.Errorf("got %s", raw)
		}
		for _, name := range c.want {
			a := thing.Actions[name]
			if a == nil || a.Synchronous == nil || !*a.Synchronous || a.Forms[0].Scheme() != "lmos" {
				t.Fatalf("%s: got %s", name, raw)
			}
			for _, data := range []string{"", `"x"`, `{"a":1}`, "null"} {
				m := &interact.Message{Type: interact.InvokeAction, Name: name, Data: []byte(data)}
				if err := interact.Check(thing, m); err != nil {
					t.Errorf("%s: %q is refused: %v", name, data, err)
				}
			}
		}
		for _, w := range thing.Warnings {
			t.Errorf("lint: %s", w)
		}
	}
	if b := Describe("x", "", nil, nil); bytes.Contains(b, []byte("capabilities")) {
		t.Errorf("got %s", b)
	}
}

// FuzzSplitter cuts any output anywhere, and compares with what cutting it whole gives.
func FuzzSplitter(f *testing.F) {
	f.Add([]byte("a\nb\n"), "\n", 1)
	f.Add([]byte("a--b-"), "--", 2)
	f.Add([]byte("aaaaa"), "aa", 3)
	f.Fuzz(func(t *testing.T, out []byte, delim string, step int) {
		if delim == "" || step < 1 {
			return
		}
		want := strings.SplitAfter(string(out), delim)
		if want[len(want)-1] == "" {
			want = want[:len(want)-1]
		}
		s := splitter{from: &slow{bytes.NewReader(out), step}, delim: []byte(delim), limit: 1 << 30}
		var got []string
		for part, end, err := s.next(); err == nil; part, end, err = s.next() {
			got = append(got, string(part)+string(end))
		}
		if !slices.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}

type slow struct {
	*bytes.Reader
	step int
}

func (s *slow) Read(b []byte) (int, error) { return s.Reader.Read(b[:min(len(b), s.step)]) }

// FuzzOutput gives any bytes as output: what comes of it is JSON, or octets as they were.
func FuzzOutput(f *testing.F) {
	for _, s := range []string{"", "x\n", `{"a":1}`, "\xff", `"`, "1e999", "\r\n"} {
		f.Add([]byte(s))
	}
	a := &Agent{}
	f.Fuzz(func(t *testing.T, out []byte) {
		media, data := a.output(invoke(""), out)
		switch {
		case media == octets && bytes.Equal(data, out):
		case media == "" && (len(data) == 0 && len(out) == 0 || json.Valid(data)):
		default:
			t.Fatalf("%q became %s %q", out, media, data)
		}
	})
}

func BenchmarkCall(b *testing.B) {
	a, err := New(Options{Args: []string{"cat"}})
	if err != nil {
		b.Fatal(err)
	}
	defer a.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := interact.Call(b.Context(), a, invoke(`{"a":1}`)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRawStream(b *testing.B) {
	a, err := New(Options{Command: "exec head -c 100000000 /dev/zero"})
	if err != nil {
		b.Fatal(err)
	}
	defer a.Close()
	m := invoke("")
	m.Accept = octets
	b.SetBytes(100_000_000)
	for b.Loop() {
		for _, err := range a.Do(b.Context(), m) {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
}

// A command that inherits a few variables gets no others.
func TestInherits(t *testing.T) {
	t.Setenv("LMOSD_MCP_A", "1") // never
	t.Setenv("INHERIT_A", "1")
	t.Setenv("INHERIT_B", "2")
	t.Setenv("INHERITED", "3")
	a := newAgent(t, Options{Command: "echo $LMOSD_MCP_A$INHERIT_A$INHERIT_B$INHERITED", Env: []string{"INHERIT_B=4"}, Inherit: []string{"PATH", "INHERIT_*", "LMOSD_*"}})
	r, err := interact.Call(t.Context(), a, invoke(""))
	if err != nil || string(r.Data) != "14" {
		t.Errorf("got %s, %v", r.Data, err)
	}
}
