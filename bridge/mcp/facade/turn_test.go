package facade

import (
	"context"
	"encoding/json"
	"iter"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/bridgetest"
	"github.com/lmosd/lmosd/bridge/mcp/wire"
	"github.com/lmosd/lmosd/interact"
)

// TestStates is the table of states (docs/interop.md), a row each: of tasks, of runs, and back.
func TestStates(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		task   string
		failed bool
		status interact.Status
		back   string // what the status is
	}{
		{"working", false, interact.StatusRunning, "working"},
		{"working", false, interact.StatusRunning, "working"},
		{"input_required", false, interact.StatusInputRequired, "input_required"},
		{"completed", false, interact.StatusCompleted, "completed"},
		{"completed", true, interact.StatusFailed, "completed"},
		{"failed", false, interact.StatusFailed, "failed"},
		{"cancelled", false, interact.StatusCancelled, "cancelled"},
		{"canceled", false, interact.StatusNone, ""},
		{"paused", false, interact.StatusNone, ""}, // of a revision to come
		{"", false, interact.StatusNone, ""},
	} {
		if got := StatusOf(row.task, row.failed); got != row.status {
			t.Errorf("%s (%v) is %v, want %v", row.task, row.failed, got, row.status)
		}
		if got := taskOf(row.status, row.failed); got != row.back {
			t.Errorf("%v (%v) is %s, want %s", row.status, row.failed, got, row.back)
		}
	}
	if taskOf(interact.StatusPending, false) != "working" || taskOf(99, false) != "" {
		t.Error("pending works, and what is not known is nothing")
	}
}

// A run ends its call as its last state says, and one that nobody knows ends it with an error.
func TestEndsOfRuns(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		status interact.Status
		data   string
		err    error
		want   string
	}{
		{interact.StatusCompleted, `"x"`, nil, `"text":"x"`},
		{interact.StatusFailed, `"no ink"`, nil, `"isError":true`},
		{interact.StatusFailed, ``, nil, `do failed`},
		{interact.StatusCancelled, ``, nil, `do was cancelled`},
		{interact.StatusInputRequired, `{}`, nil, `cannot be read`},
		{99, `"x"`, nil, `in a state that lmosd does not know`},
		{0, ``, &interact.Error{Code: interact.AgentFailed, Title: "no ink"}, `"text":"no ink"`},
		{0, ``, &interact.Error{Code: interact.Forbidden, Title: "rule 7"}, `"isError":true`},
		{0, ``, &interact.Error{Code: interact.NoAffordance, Title: "gone"}, `"code":-32602`},
	} {
		m := bridgetest.NewMesh(t)
		add(t, m, "urn:doer", `{"title":"Doer","actions":{"do":{"synchronous":true}}}`, interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
			r := m.Reply(interact.ActionStatus, "", []byte(row.data))
			r.Status = row.status
			return r, row.err
		}))
		url := serveMesh(t, m)
		got := string(post(t, url+"/mcp/things/doer", "", "tools/call", `{"name":"do"}`, `{"elicitation":{}}`).Bytes())
		if !strings.Contains(got, row.want) {
			t.Errorf("%v %s %v gives %s, want %s", row.status, row.data, row.err, got, row.want)
		}
	}
}

// talkTD is an A2A agent's thing.
const talkTD = `{"title":"Talker","@type":"lmos:Agent","@context":["https://www.w3.org/2022/wot/td/v1.1",{"a2a":"https://lmosd.dev/ns/a2a#"}],"actions":{
 "a2a":{"@type":"a2a:Operation"},"sendMessage":{"@type":"a2a:Turn","synchronous":true,"input":{},"output":{}},
 "sum":{"@type":"a2a:Turn","a2a:skill":"sum","synchronous":true,"input":{},"output":{}}},"properties":{"tasks":{"readOnly":true}}}`

// A talker answers turns with what they are, under the state that the message says.
type talker struct {
	park interact.Parking
	slow chan struct{}
}

func (k *talker) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		if m.Type == interact.ContinueAction {
			yield(k.park.Continue(m))
			return
		}
		var in bridge.Turn
		if m.ContentType != bridge.TurnType || json.Unmarshal(m.Data, &in) != nil {
			yield(nil, interact.Errorf(interact.Invalid, "", "%s is no turn", m.ContentType))
			return
		}
		out := bridge.Outcome{Context: "c", Task: "t-" + in.Message, State: bridge.TurnCompleted}
		text := string(m.Data)
		if in.Message == "slow" || in.Message == "slow ask" {
			select {
			case <-k.slow:
			case <-ctx.Done():
				yield(nil, ctx.Err())
				return
			}
		}
		switch in.Message {
		case "ask", "slow ask":
			answers, left, err := k.park.Ask(ctx, m, interact.Inputs{"message": {Kind: interact.InputMessage, Message: "which?",
				Params: json.RawMessage(`{"state":"TASK_STATE_INPUT_REQUIRED","message":{}}`)}}, yield)
			if left || err != nil {
				return
			}
			text = string(answers["message"].Content)
		case "told":
			for _, p := range []string{`{"message":"half","progress":5,"total":10}`, `{"message":"back","progress":2}`} {
				r := m.Reply(interact.ActionStatus, interact.Progress, []byte(p))
				if r.Status = interact.StatusRunning; !yield(r, nil) {
					return
				}
				time.Sleep(2 * progressEach)
			}
		}
		out.Artifacts = []bridge.Artifact{{ID: "a", Name: "A", Parts: []bridge.Part{{Text: &text}}}}
		r := m.Reply(interact.ActionStatus, bridge.TurnType, written(out))
		r.Status = interact.StatusCompleted
		yield(r, nil)
	}
}

// TestTurns are tools that are turns of a conversation: their names, what the agent hears, and what the client gets.
func TestTurns(t *testing.T) {
	t.Parallel()
	m, k := bridgetest.NewMesh(t), &talker{slow: make(chan struct{})}
	add(t, m, "urn:talker", talkTD, k)
	url := serveMesh(t, m, "talker")
	at := url + "/mcp/things/talker"
	call := func(auth, where, tool, args, caps string) string {
		return string(post(t, where, auth, "tools/call", `{"name":"`+tool+`","arguments":`+args+`}`, caps).Bytes())
	}
	for where, want := range map[string][]string{at: {"ask_talker", "sum"}, url + "/mcp": {"ask_talker", "talker__sum"}} {
		s := connect(t, where, wire.Modern, nil)
		var tools []string
		for tool, err := range s.Tools(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(tool.Name, "mesh_") {
				tools = append(tools, tool.Name)
			}
		}
		if strings.Join(tools, " ") != strings.Join(want, " ") {
			t.Errorf("the tools are %q, want %q", tools, want)
		}
	}
	const ids = `{\"contextId\":\"c\",\"state\":\"completed\",\"taskId\":\"t-hi\"}`
	for _, test := range []struct{ name, where, tool, args, caps, want string }{
		{"words", at, "ask_talker", `{"message":"hi"}`, `{}`, `"text":"{\"message\":\"hi\",\"kinds\":[]}"`},
		{"ids", at, "ask_talker", `{"message":"hi"}`, `{}`, `"text":"` + ids + `","annotations":{"audience":["assistant"]}`},
		{"structured", at, "ask_talker", `{"message":"hi"}`, `{}`, `"structuredContent":{"contextId":"c","state":"completed","taskId":"t-hi"}`},
		{"the name of an artifact", at, "ask_talker", `{"message":"hi"}`, `{}`, `"dev.lmosd/artifact":{"artifactId":"a","name":"A"}`},
		{"by the name of the action", url + "/mcp", "mesh_call", `{"thing":"talker","tool":"sendMessage","arguments":{"message":"hi"}}`, `{}`, `t-hi`},
		{"a skill with data", url + "/mcp", "talker__sum", `{"data":{"a":1.0},"contextId":"x"}`, `{}`, `{\"data\":{\"a\":1.0},\"contextId\":\"x\",\"kinds\":[]}`},
		{"who can be asked", at, "sum", `{}`, `{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{}}`, `[\"form\",\"message\",\"url\",\"model\",\"roots\"]`},
		{"by forms", at, "sum", `{}`, `{"elicitation":{}}`, `[\"form\",\"message\"]`},
		{"no text", at, "sum", `{"message":7}`, `{}`, `"code":-32602`},
		{"no data", at, "sum", `{"data":null}`, `{}`, `{\"kinds\":[]}`},
		{"what it wants to know", at, "ask_talker", `{"message":"ask"}`, `{"elicitation":{}}`, `"message":"which?","mode":"form","requestedSchema":{"properties":{"message"`},
	} {
		if got := call("", test.where, test.tool, test.args, test.caps); !strings.Contains(got, test.want) {
			t.Errorf("%s: %s is not in %s", test.name, test.want, got)
		}
	}
	// A task is of whoever began it.
	if got := call("Bearer other", at, "ask_talker", `{"message":"x","taskId":"t-hi"}`, `{}`); !strings.Contains(got, "no such task") {
		t.Errorf("another's task: %s", got)
	}
	if got := call("", at, "ask_talker", `{"message":"x","taskId":"t-hi"}`, `{}`); !strings.Contains(got, `\"taskId\":\"t-hi\"`) {
		t.Errorf("the own task: %s", got)
	}
	// What takes long is a task, for who knows those; what does not is none.
	const knows = `{"extensions":{"io.modelcontextprotocol/tasks":{}}}`
	if got := call("", at, "ask_talker", `{"message":"hi"}`, knows); !strings.Contains(got, `"resultType":"complete"`) {
		t.Errorf("what is soon done: %s", got)
	}
	var begun taskState
	r := post(t, at, "", "tools/call", `{"name":"ask_talker","arguments":{"message":"slow"}}`, knows)
	if err := json.Unmarshal(r.Result(), &begun); err != nil || begun.Type != "task" || begun.Status != "working" {
		t.Fatalf("what takes long: %s", r.Bytes())
	}
	asks := taskState{}
	const answers = `{"extensions":{"io.modelcontextprotocol/tasks":{}},"elicitation":{}}`
	r = post(t, at, "", "tools/call", `{"name":"ask_talker","arguments":{"message":"slow ask"}}`, answers)
	if err := json.Unmarshal(r.Result(), &asks); err != nil || asks.Type != "task" {
		t.Fatalf("what takes long: %s", r.Bytes())
	}
	close(k.slow)
	reaches := func(id, status, want string) {
		t.Helper()
		for {
			got := string(post(t, at, "", "tasks/get", `{"taskId":"`+id+`"}`, answers).Bytes())
			if strings.Contains(got, `"status":"`+status+`"`) && strings.Contains(got, want) {
				return
			}
			if !strings.Contains(got, `"status":"working"`) && !strings.Contains(got, `"status":"input_required"`) {
				t.Fatalf("the task: %s", got)
			}
		}
	}
	reaches(begun.ID, "completed", `"taskId":"t-slow"`)
	reaches(asks.ID, "input_required", `"message":"which?","mode":"form"`)
	post(t, at, "", "tasks/update", `{"taskId":"`+asks.ID+`","inputResponses":{"message":{"action":"accept","content":{"message":"Bonn"}}}}`, answers)
	reaches(asks.ID, "completed", `\"Bonn\"`)
	// What asks at once asks first, and is a task after that at most.
	r = post(t, at, "", "tools/call", `{"name":"ask_talker","arguments":{"message":"ask"}}`, answers)
	state, _ := r.InResult("requestState")
	if state == nil {
		t.Fatalf("what asks at once: %s", r.Bytes())
	}
	r = post(t, at, "", "tools/call", `{"name":"ask_talker","arguments":{"message":"ask"},"requestState":`+string(state)+
		`,"inputResponses":{"message":{"action":"accept","content":{"message":"Bonn"}}}}`, answers)
	if got := string(r.Bytes()); !strings.Contains(got, `\"Bonn\"`) || !strings.Contains(got, `"resultType":"complete"`) {
		t.Errorf("the answer: %s", got)
	}
}

// Progress grows, whatever an agent says.
func TestProgressOfAgents(t *testing.T) {
	t.Parallel()
	m := bridgetest.NewMesh(t)
	add(t, m, "urn:talker", talkTD, &talker{})
	url := serveMesh(t, m)
	eras(t, func(t *testing.T, version string) {
		heard := make(chan *mcp.ProgressNotificationParams, 8)
		s := connect(t, url+"/mcp/things/talker", version, &mcp.ClientOptions{
			ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { heard <- r.Params }})
		p := &mcp.CallToolParams{Name: "ask_talker", Arguments: map[string]any{"message": "told"}}
		p.SetProgressToken("t")
		r, err := s.CallTool(t.Context(), p)
		told := []*mcp.ProgressNotificationParams{<-heard, <-heard}
		if err != nil || len(r.Content) != 2 || told[0].Progress != 5 || told[0].Total != 10 || told[0].Message != "half" ||
			told[1].Progress != 6 || told[1].Message != "back" {
			t.Errorf("got %+v with %+v, %v", said(r), told, err)
		}
	})
}

// TestParts are parts as blocks of content: what a block has no member for is in its _meta.
func TestParts(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ part, want string }{
		"text":       {`{"text":"a"}`, `{"type":"text","text":"a"}`},
		"a table":    {`{"text":"a","mediaType":"text/csv","filename":"a.csv"}`, `{"type":"text","text":"a","_meta":{"dev.lmosd/part":{"filename":"a.csv","mediaType":"text/csv"}}}`},
		"image":      {`{"raw":"AQI=","mediaType":"image/png"}`, `{"type":"image","data":"AQI=","mimeType":"image/png"}`},
		"audio":      {`{"raw":"AQI=","mediaType":"audio/wav","metadata":{"s":1}}`, `{"type":"audio","data":"AQI=","mimeType":"audio/wav","_meta":{"dev.lmosd/part":{"metadata":{"s":1}}}}`},
		"a file":     {`{"raw":"AQI=","mediaType":"a/b","filename":"/f"}`, `{"type":"resource","resource":{"uri":"u/f","mimeType":"a/b","blob":"AQI="},"_meta":{"dev.lmosd/part":{"filename":"/f"}}}`},
		"some bytes": {`{"raw":"AQI="}`, `{"type":"resource","resource":{"uri":"u","mimeType":"application/octet-stream","blob":"AQI="}}`},
		"a link":     {`{"url":"https://x/y.pdf","mediaType":"a/b"}`, `{"type":"resource_link","mimeType":"a/b","uri":"https://x/y.pdf","name":"y.pdf"}`},
		"data":       {`{"data":{"a":1},"mediaType":"application/json"}`, `{"type":"text","text":"{\"a\":1}"}`},
		"what came from MCP": {`{"text":"a","metadata":{"mcp:annotations":{"priority":1},"mcp:meta":{"k":1}}}`,
			`{"type":"text","text":"a","annotations":{"priority":1},"_meta":{"k":1}}`},
		"metadata that are none": {`{"text":"a","metadata":7}`, `{"type":"text","text":"a","_meta":{"dev.lmosd/part":{"metadata":7}}}`},
	} {
		var p bridge.Part
		if err := json.Unmarshal([]byte(test.part), &p); err != nil {
			t.Fatal(err)
		}
		if got := string(written(partBlock(p, "u"))); got != test.want {
			t.Errorf("%s: got  %s\nwant %s", name, got, test.want)
		}
	}
}

// FuzzOutcome reads what came of turns elsewhere.
func FuzzOutcome(f *testing.F) {
	f.Add([]byte(`{"contextId":"c","state":"completed","artifacts":[{"metadata":{},"parts":[{"raw":"AQI="},{"data":[1]},{}]}],"message":[{"text":"a"}],"metadata":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, _ := outcomeOf(data, "u")
		if raw, err := json.Marshal(r); err != nil || !json.Valid(raw) {
			t.Errorf("%q gives %s, %v", data, raw, err)
		}
	})
}

// A shaky mesh answers once, and then panics.
type shaky struct{ Mesh }

func (shaky) Do(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		yield(m.Reply(interact.ActionStatus, "", nil), nil)
		panic("broken")
	}
}

// What panics is an error to who still listens, and nothing to who has left.
func TestThingsThatPanic(t *testing.T) {
	t.Parallel()
	s := steady{shaky{}, slog.New(slog.DiscardHandler)}
	for range s.Do(t.Context(), &interact.Message{Name: "do"}) {
		break
	}
	var last error
	for _, err := range s.Do(t.Context(), &interact.Message{Name: "do"}) {
		last = err
	}
	if interact.AsError(last).Code != interact.Internal {
		t.Errorf("got %v", last)
	}
}

// A census says who calls it.
type census struct{}

func (census) Call(ctx context.Context, m *wire.Message, _ func(*wire.Message) error) (*wire.Message, error) {
	if m.Method() == wire.Discover {
		return discovered(m, self{Name: "x", Version: "1"}, ""), nil
	}
	return wire.Respond(m.ID(), map[string]any{"resultType": "complete", "caller": wire.CallerOf(ctx)}), nil
}

func (census) close() {}

// Whoever has a session of the old era is the caller there, too, and not all of them are one; nor does a client say who it is.
func TestCallersOfSessions(t *testing.T) {
	t.Parallel()
	h := New(Options{Mesh: newHamlet(t)})
	t.Cleanup(h.Close)
	f := h.both("x", census{})
	t.Cleanup(f.close)
	for _, caller := range []string{"ada", "eve", ""} {
		c, err := f.server.Session(wire.WithCaller(t.Context(), caller))
		if err != nil {
			t.Fatal(err)
		}
		var r *wire.Message
		for _, text := range []string{`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{}}}`,
			`{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{"_meta":{"dev.lmosd/user":"mallory"}}}`} {
			m, err := wire.Parse([]byte(text))
			if err == nil {
				err = c.Write(t.Context(), m)
			}
			if err == nil {
				r, err = c.Read(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if raw, _ := r.InResult("caller"); string(raw) != `"`+caller+`"` {
			t.Errorf("%q is %s", caller, r.Bytes())
		}
		c.Close()
	}
}
