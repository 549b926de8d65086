package executor

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/td"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// subject returns a Thing whose action "run" is do.
func subject(do func(ctx context.Context, m *interact.Message, say func(interact.Status, string) bool) error) Agent {
	sync := true
	return Agent{Ref: "x", Desc: &td.Thing{Title: "X", Actions: map[string]*td.Action{"run": {Synchronous: &sync}}},
		Thing: interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(yield func(*interact.Message, error) bool) {
				err := do(ctx, m, func(s interact.Status, data string) bool {
					r := m.Reply(interact.ActionStatus, interact.JSON, []byte(data))
					r.Status, r.ActionID = s, "run-1"
					return yield(r, nil)
				})
				if err != nil {
					yield(nil, err)
				}
			}
		})}
}

// waits returns a Thing whose runs end only when they are canceled.
func waits() Agent {
	return subject(func(ctx context.Context, _ *interact.Message, _ func(interact.Status, string) bool) error {
		<-ctx.Done()
		return ctx.Err()
	})
}

func open(t *testing.T, o Options) *Executor {
	d := New(o)
	t.Cleanup(d.Close)
	return d
}

// ask calls an operation with JSON params, and returns the result or the text of the error.
func ask(t *testing.T, a protocol.Agent, method, params string) string {
	t.Helper()
	r, err := protocol.Call(t.Context(), a, &protocol.Operation{Method: method, Params: json.RawMessage(params)})
	if err != nil {
		return protocol.AsError(err).Message
	}
	return string(r)
}

// say returns the params of a message with returnImmediately.
func say(id, text string) string {
	return fmt.Sprintf(`{"message":{"messageId":%q,"role":"ROLE_USER","parts":[{"text":%q}]},"configuration":{"returnImmediately":true}}`, id, text)
}

func taskIn(t *testing.T, result string) *protocol.Task {
	t.Helper()
	var r struct{ Task *protocol.Task }
	if err := json.Unmarshal([]byte(result), &r); err != nil || r.Task == nil {
		t.Fatalf("got %s", result)
	}
	return r.Task
}

func TestLimits(t *testing.T) {
	t.Parallel()
	d := open(t, Options{MaxRunning: 2, MaxTasks: 3, MaxBytes: 4 << 10})
	me, you := d.Agent(waits(), "me"), d.Agent(waits(), "you")
	first := taskIn(t, ask(t, me, protocol.SendMessage, say("1", "x")))
	taskIn(t, ask(t, me, protocol.SendMessage, say("2", "x")))
	if got := ask(t, me, protocol.SendMessage, say("3", "x")); !strings.Contains(got, "2 tasks are running already") {
		t.Errorf("a third: %s", got)
	}
	taskIn(t, ask(t, you, protocol.SendMessage, say("1", "x")))
	if got := ask(t, you, protocol.SendMessage, say("2", "x")); !strings.Contains(got, "3 tasks are running already") {
		t.Errorf("a fourth: %s", got)
	}
	if got := ask(t, me, protocol.CancelTask, `{"id":"`+first.ID+`"}`); !strings.Contains(got, string(protocol.Canceled)) {
		t.Errorf("cancel: %s", got)
	}
	taskIn(t, ask(t, you, protocol.SendMessage, say("2", "x"))) // replaces the task that ended
	if got := ask(t, me, protocol.GetTask, `{"id":"`+first.ID+`"}`); !strings.Contains(got, "not found") {
		t.Errorf("the replaced task: %s", got)
	}
	for _, method := range []string{protocol.CreatePush, protocol.ExtendedCard, "tasks/get"} {
		if got := ask(t, me, method, `{}`); strings.HasPrefix(got, "{") {
			t.Errorf("%s: %s", method, got)
		}
	}
	big := d.Agent(subject(func(_ context.Context, _ *interact.Message, say func(interact.Status, string) bool) error {
		say(interact.StatusCompleted, `"`+strings.Repeat("x", 5<<10)+`"`)
		return nil
	}), "big")
	d.o.MaxTasks = 10
	blocking := strings.Replace(say("1", "x"), "true", "false", 1)
	if got := taskIn(t, ask(t, big, protocol.SendMessage, blocking)); got.Status.State != protocol.Failed || got.Artifacts != nil {
		t.Errorf("too much output: %+v", got.Status)
	}
	if got := ask(t, big, protocol.SendMessage, say("2", strings.Repeat("x", 5<<10))); !strings.Contains(got, "storage limit") {
		t.Errorf("too much input: %.80s", got)
	}
}

// Ended tasks expire, and tasks that wait for their client for too long fail.
func TestExpiry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := New(Options{Keep: time.Minute, MaxRun: 10 * time.Second})
		defer d.Close()
		a := d.Agent(waits(), "")
		task := taskIn(t, ask(t, a, protocol.SendMessage, strings.Replace(say("1", "x"), "true", "false", 1)))
		if task.Status.State != protocol.Failed || time.Since(d.tasks[task.ID].at) > time.Second {
			t.Errorf("a run of more than 10 s is %+v", task.Status)
		}
		asks := d.Agent(subject(func(ctx context.Context, _ *interact.Message, say func(interact.Status, string) bool) error {
			say(interact.StatusInputRequired, `{"k":{"kind":"message","message":"what?"}}`)
			<-ctx.Done()
			return ctx.Err()
		}), "")
		d.o.MaxRun = time.Hour
		open := taskIn(t, ask(t, asks, protocol.SendMessage, strings.Replace(say("2", "x"), "true", "false", 1)))
		if open.Status.State != protocol.InputRequired {
			t.Errorf("the task that requests input is %+v", open.Status)
		}
		time.Sleep(61 * time.Second)
		if got := ask(t, a, protocol.GetTask, `{"id":"`+task.ID+`"}`); !strings.Contains(got, "not found") {
			t.Errorf("after a minute: %s", got)
		}
		if got := ask(t, asks, protocol.GetTask, `{"id":"`+open.ID+`"}`); !strings.Contains(got, "timed out waiting for the client") {
			t.Errorf("an input request without an answer: %s", got)
		}
	})
}

// A panic of a Thing fails only its own task.
func TestPanic(t *testing.T) {
	t.Parallel()
	d := open(t, Options{})
	a := d.Agent(subject(func(context.Context, *interact.Message, func(interact.Status, string) bool) error { panic("broken") }), "")
	if got := taskIn(t, ask(t, a, protocol.SendMessage, strings.Replace(say("1", "x"), "true", "false", 1))); got.Status.State != protocol.Failed {
		t.Errorf("after a panic the status is %+v", got.Status)
	}
}

// A reader that reads nothing is disconnected; the task and other readers continue.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	begin := make(chan struct{})
	d := open(t, Options{})
	a := d.Agent(subject(func(_ context.Context, _ *interact.Message, say func(interact.Status, string) bool) error {
		<-begin
		part := `"` + strings.Repeat("x", 400<<10) + `"`
		for range 30 {
			if !say(interact.StatusRunning, part) {
				return nil
			}
		}
		say(interact.StatusCompleted, "")
		return nil
	}), "")
	var last error
	n := 0
	for _, err := range a.Do(t.Context(), &protocol.Operation{Method: protocol.SendStreamingMessage, Params: json.RawMessage(say("1", "x"))}) {
		if last = err; n == 0 { // the reader pauses while all events are sent
			close(begin)
			d.work.Wait()
		}
		n++
	}
	if interact.AsError(last).Code != interact.Overloaded {
		t.Errorf("the slow reader got %d events, then %v", n, last)
	}
	if got := ask(t, a, protocol.ListTasks, `{}`); !strings.Contains(got, string(protocol.Completed)) {
		t.Errorf("the task is %s", got)
	}
}

// TestInputFromText converts text to the inputs of schemas.
func TestInputFromText(t *testing.T) {
	t.Parallel()
	for schema, want := range map[string]string{
		`{"type":"string"}`: `"7"`, `{}`: `7`, `{"type":"integer"}`: `7`, `{"type":"boolean"}`: `"7"`,
		`{"type":"object","properties":{"q":{"type":"string"},"n":{"type":"integer"}}}`:                        `{"q":"7"}`,
		`{"type":"object","properties":{"q":{"type":"string"},"r":{"type":"string"}},"required":["r"]}`:        `{"r":"7"}`,
		`{"type":"object","properties":{"q":{"type":"string"},"r":{"type":"string"}}}`:                         `"7"`,
		`{"type":"object","properties":{"messages":{"type":"array"},"conversationContext":{"type":"object"}}}`: `{"conversationContext":{"conversationId":"c"},"messages":[{"content":"7","format":"text","role":"user"}]}`,
	} {
		var v any
		if err := json.Unmarshal([]byte(schema), &v); err != nil {
			t.Fatal(err)
		}
		if got := string(inputFromText(td.ParseSchema(v), "7", "c")); got != want {
			t.Errorf("%s makes %s, want %s", schema, got, want)
		}
	}
	if got := inputFromText(nil, "", ""); got != nil {
		t.Errorf("a message without parts makes %s", got)
	}
}

// TestParts converts outputs to parts that do not exceed maxPart.
func TestParts(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ä", maxPart)
	for name, test := range map[string]struct {
		data, media string
		want        int
		kind        string
	}{
		"text as JSON": {`"x"`, "application/json", 1, "text"}, "JSON": {`{"a":1}`, "application/json", 2, "data"}, "null": {`null`, "", 2, "data"},
		"plain text": {"x", "text/plain", 1, "text"}, "a page": {"<p>", "text/html; charset=utf-8", 1, "text"}, "a picture": {"\x89PNG", "image/png", 1, "raw"},
		"CBOR": {"\xa1\x61a\x01", "application/cbor", 2, "data"}, "a long text": {long, "text/plain", 2, "text"},
		"long bytes": {long, "a/b", 2, "raw"}, "no JSON": {"x", "application/json", 1, "raw"},
	} {
		parts, _ := partsOf([]byte(test.data), test.media)
		kind, whole := "", ""
		for _, p := range parts {
			switch {
			case p.Text != nil:
				kind = "text"
				whole += *p.Text
			case p.Raw != nil:
				b, _ := p.Bytes()
				kind = "raw"
				whole += string(b)
			}
			if len(protocol.Encode(p)) > 2*maxPart {
				t.Errorf("%s: a part has %d bytes", name, len(protocol.Encode(p)))
			}
		}
		if parts[0].Data != nil {
			kind, whole = "data", string(parts[0].Data)
		}
		if len(parts) != test.want || kind != test.kind || strings.HasPrefix(name, "long") && whole != test.data {
			t.Errorf("%s: %d parts of %s: %.40s", name, len(parts), kind, whole)
		}
	}
}

// Callers whose requests prove nothing share a principal and are not one person: none gets a task of another by the id of its message or from a
// list, and each finds its own by the id of the task.
func TestTasksOfAnonymousCallers(t *testing.T) {
	t.Parallel()
	d := open(t, Options{})
	for _, from := range []*did.Principal{did.Consumer(did.Unproven, ""), did.NodePrincipal("did:key:z6MkA", "unproven")} {
		s := waits()
		s.From = from
		a := d.Agent(s, from.ID())
		one, two := taskIn(t, ask(t, a, protocol.SendMessage, say("1", "my secret"))), taskIn(t, ask(t, a, protocol.SendMessage, say("1", "x")))
		if one.ID == two.ID {
			t.Errorf("%s: the same message id gives the task of another caller", from.ID())
		}
		if got := ask(t, a, protocol.ListTasks, `{}`); !strings.Contains(got, `"tasks":[]`) || !strings.Contains(got, `"totalSize":0`) {
			t.Errorf("%s: the list has %s", from.ID(), got)
		}
		if got := taskIn(t, `{"task":`+ask(t, a, protocol.GetTask, `{"id":"`+one.ID+`"}`)+`}`); got.ID != one.ID {
			t.Errorf("%s: its own task is %+v", from.ID(), got)
		}
	}
	s := waits()
	s.From = did.Consumer(did.Unproven, "")
	named := d.Agent(s, s.From.ID()+" credentials")
	if one, two := taskIn(t, ask(t, named, protocol.SendMessage, say("1", "x"))), taskIn(t, ask(t, named, protocol.SendMessage, say("1", "x"))); one.ID != two.ID {
		t.Error("a caller with credentials gets a second task for one message")
	}
}
