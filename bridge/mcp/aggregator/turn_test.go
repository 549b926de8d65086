package aggregator

import (
	"context"
	"encoding/json"
	"iter"
	"log/slog"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/bridgetest"
	"github.com/lmosd/lmosd/bridge/mcp/features"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// The last state of a run determines the result of its call; an unknown state is an error.
func TestFinalStatesOfRuns(t *testing.T) {
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
		{interact.StatusInputRequired, `{}`, nil, `malformed input request`},
		{99, `"x"`, nil, `unknown action status`},
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

// conversationalTD describes an A2A agent.
const conversationalTD = `{"title":"Talker","@type":"lmos:Agent","@context":["https://www.w3.org/2022/wot/td/v1.1",{"a2a":"https://lmosd.dev/ns/a2a#"}],"actions":{
 "a2a":{"@type":"a2a:Operation"},"sendMessage":{"@type":"a2a:Turn","synchronous":true,"input":{},"output":{}},
 "sum":{"@type":"a2a:Turn","a2a:skill":"sum","synchronous":true,"input":{},"output":{}}},"properties":{"tasks":{"readOnly":true}}}`

// A conversationalAgent responds to turns with their content, in the state that the message selects.
type conversationalAgent struct {
	park interact.InputWaiter
	slow chan struct{}
}

func (k *conversationalAgent) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		if m.Type == interact.ContinueAction {
			yield(k.park.Continue(m))
			return
		}
		var in bridge.Turn
		if m.ContentType != bridge.TurnType || json.Unmarshal(m.Data, &in) != nil {
			yield(nil, interact.Errorf(interact.Invalid, "", "%s is not a turn", m.ContentType))
			return
		}
		if in.Message == "refuse" {
			yield(nil, interact.Errorf(interact.Invalid, "", "unknown task"))
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
			}
		}
		out.Artifacts = []bridge.Artifact{{ID: "a", Name: "A", Parts: []bridge.Part{{Text: &text}}}}
		r := m.Reply(interact.ActionStatus, bridge.TurnType, protocol.Encode(out))
		r.Status = interact.StatusCompleted
		yield(r, nil)
	}
}

// Turns of a conversation as tools: their names, the messages for the agent, and the results for the client.
func TestTurns(t *testing.T) {
	t.Parallel()
	m, k := bridgetest.NewMesh(t), &conversationalAgent{slow: make(chan struct{})}
	add(t, m, "urn:talker", conversationalTD, k)
	url := serveMesh(t, m, "talker")
	at := url + "/mcp/things/talker"
	call := func(auth, where, tool, args, caps string) string {
		return string(post(t, where, auth, "tools/call", `{"name":"`+tool+`","arguments":`+args+`}`, caps).Bytes())
	}
	for where, want := range map[string][]string{at: {"ask_talker", "sum"}, url + "/mcp": {"ask_talker", "talker__sum"}} {
		s := connect(t, where, protocol.Modern, nil)
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
		{"supported input", at, "sum", `{}`, `{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{}}`, `[\"form\",\"message\",\"url\",\"model\",\"roots\"]`},
		{"by forms", at, "sum", `{}`, `{"elicitation":{}}`, `[\"form\",\"message\"]`},
		{"no text", at, "sum", `{"message":7}`, `{}`, `"code":-32602`},
		{"no data", at, "sum", `{"data":null}`, `{}`, `{\"kinds\":[]}`},
		{"what it wants to know", at, "ask_talker", `{"message":"ask"}`, `{"elicitation":{}}`, `"message":"which?","mode":"form","requestedSchema":{"properties":{"message"`},
	} {
		if got := call("", test.where, test.tool, test.args, test.caps); !strings.Contains(got, test.want) {
			t.Errorf("%s: %s is not in %s", test.name, test.want, got)
		}
	}
	// A task belongs to the caller that started it, and so does a conversation.
	if got := call("Bearer other", at, "ask_talker", `{"message":"x","contextId":"c"}`, `{}`); !strings.Contains(got, "-32602") || !strings.Contains(got, "unknown contextId") {
		t.Errorf("a conversation of another caller: %s", got)
	}
	if got := call("", at, "ask_talker", `{"message":"x","contextId":"c"}`, `{}`); !strings.Contains(got, `\"contextId\":\"c\"`) {
		t.Errorf("a conversation of the caller: %s", got)
	}
	if got := call("Bearer other", at, "ask_talker", `{"message":"x","taskId":"t-hi"}`, `{}`); !strings.Contains(got, "unknown or expired task") {
		t.Errorf("a task of another caller: %s", got)
	}
	if got := call("", at, "ask_talker", `{"message":"x","taskId":"t-hi"}`, `{}`); !strings.Contains(got, `\"taskId\":\"t-hi\"`) {
		t.Errorf("a task of the caller: %s", got)
	}
	// A rejected claim has no owner, so that callers cannot reserve names of others.
	if got := call("Bearer other", at, "ask_talker", `{"message":"refuse","taskId":"t-later","contextId":"later"}`, `{}`); !strings.Contains(got, "unknown task") {
		t.Errorf("an unknown task: %s", got)
	}
	for _, args := range []string{`{"message":"later"}`, `{"message":"x","taskId":"t-later","contextId":"later"}`} {
		if got := call("", at, "ask_talker", args, `{}`); !strings.Contains(got, `"resultType":"complete"`) || strings.Contains(got, "isError") {
			t.Errorf("%s, which another caller guessed: %s", args, got)
		}
	}
	for _, args := range []string{`{"message":"x","taskId":"t-later"}`, `{"message":"x","contextId":"later"}`} {
		if got := call("Bearer other", at, "ask_talker", args, `{}`); !strings.Contains(got, "-32602") {
			t.Errorf("%s of another: %s", args, got)
		}
	}
	// A long turn is a task, for clients with tasks; a short one is not.
	const taskCapabilities = `{"extensions":{"io.modelcontextprotocol/tasks":{}}}`
	if got := call("", at, "ask_talker", `{"message":"hi"}`, taskCapabilities); !strings.Contains(got, `"resultType":"complete"`) {
		t.Errorf("a short turn: %s", got)
	}
	var begun features.Task
	r := post(t, at, "", "tools/call", `{"name":"ask_talker","arguments":{"message":"slow"}}`, taskCapabilities)
	if err := json.Unmarshal(r.Result(), &begun); err != nil || begun.Type != "task" || begun.Status != "working" {
		t.Fatalf("what takes long: %s", r.Bytes())
	}
	asks := features.Task{}
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
	// Input that is required at once is requested before a task is created.
	r = post(t, at, "", "tools/call", `{"name":"ask_talker","arguments":{"message":"ask"}}`, answers)
	state, _ := r.InResult("requestState")
	if state == nil {
		t.Fatalf("an immediate input request: %s", r.Bytes())
	}
	r = post(t, at, "", "tools/call", `{"name":"ask_talker","arguments":{"message":"ask"},"requestState":`+string(state)+
		`,"inputResponses":{"message":{"action":"accept","content":{"message":"Bonn"}}}}`, answers)
	if got := string(r.Bytes()); !strings.Contains(got, `\"Bonn\"`) || !strings.Contains(got, `"resultType":"complete"`) {
		t.Errorf("the answer: %s", got)
	}
}

// The owners of tasks and conversations are kept when the tunnel is replaced, and each agent has its own names.
func TestTurnsBecomeTasks(t *testing.T) {
	t.Parallel()
	m := bridgetest.NewMesh(t)
	h := New(Options{Mesh: m})
	url := bridgetest.Serve(t, h)
	for _, name := range []string{"talker", "teller"} {
		add(t, m, "urn:"+name, strings.Replace(conversationalTD, "Talker", name, 1), &conversationalAgent{})
	}
	call := func(auth, name, args string) string {
		return string(post(t, url+"/mcp/things/"+name, auth, "tools/call", `{"name":"sum","arguments":`+args+`}`, `{}`).Bytes())
	}
	call("Bearer ada", "talker", `{"message":"hi"}`)
	h.mu.Lock()
	for ref := range h.endpoints {
		h.dropLocked(ref)
	}
	h.mu.Unlock()
	for _, args := range []string{`{"taskId":"t-hi"}`, `{"contextId":"c"}`} {
		if got := call("Bearer eve", "talker", args); !strings.Contains(got, "-32602") {
			t.Errorf("eve continues %s: %s", args, got)
		}
		if got := call("Bearer ada", "talker", args); strings.Contains(got, "-32602") {
			t.Errorf("ada cannot continue %s: %s", args, got)
		}
		if got := call("Bearer eve", "teller", args); strings.Contains(got, "-32602") {
			t.Errorf("eve cannot continue %s of another agent: %s", args, got)
		}
	}
}

// Progress is monotonic, whatever an agent sends.
func TestProgressOfAgents(t *testing.T) {
	t.Parallel()
	m := bridgetest.NewMesh(t)
	add(t, m, "urn:talker", conversationalTD, &conversationalAgent{})
	url := serveMesh(t, m)
	eachRevision(t, func(t *testing.T, version string) {
		notifications := make(chan *mcp.ProgressNotificationParams, 8)
		s := connect(t, url+"/mcp/things/talker", version, &mcp.ClientOptions{
			ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { notifications <- r.Params }})
		p := &mcp.CallToolParams{Name: "ask_talker", Arguments: map[string]any{"message": "told"}}
		p.SetProgressToken("t")
		r, err := s.CallTool(t.Context(), p)
		received := []*mcp.ProgressNotificationParams{<-notifications, <-notifications}
		if err != nil || len(r.Content) != 2 || received[0].Progress != 5 || received[0].Total != 10 || received[0].Message != "half" ||
			received[1].Progress != 6 || received[1].Message != "back" {
			t.Errorf("got %+v with %+v, %v", textOf(r), received, err)
		}
	})
}

// A panickingMesh replies once, and then panics.
type panickingMesh struct{ bridge.Mesh }

func (panickingMesh) Do(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		yield(m.Reply(interact.ActionStatus, "", nil), nil)
		panic("broken")
	}
}

// A panic is an error for the caller, if it is still connected.
func TestThingsThatPanic(t *testing.T) {
	t.Parallel()
	s := recovering{panickingMesh{}, slog.New(slog.DiscardHandler)}
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

// A callerServer responds with the name of its caller.
type callerServer struct{}

func (callerServer) Call(ctx context.Context, m *protocol.Message, _ func(*protocol.Message) error) (*protocol.Message, error) {
	if m.Method() == protocol.Discover {
		return discovered(m, protocol.Implementation{Name: "x", Version: "1"}, ""), nil
	}
	return protocol.Respond(m.ID(), map[string]any{"resultType": "complete", "caller": protocol.CallerOf(ctx)}), nil
}

func (callerServer) close() {}

// Each legacy session has its own caller; clients cannot choose theirs.
func TestCallersOfSessions(t *testing.T) {
	t.Parallel()
	h := New(Options{Mesh: bridgetest.NewMesh(t)})
	t.Cleanup(h.Close)
	f := h.withSessions("x", callerServer{})
	t.Cleanup(f.close)
	for _, caller := range []string{"ada", "eve", ""} {
		c, err := f.server.Session(protocol.WithCaller(t.Context(), caller))
		if err != nil {
			t.Fatal(err)
		}
		var r *protocol.Message
		for _, text := range []string{`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{}}}`,
			`{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{"_meta":{"dev.lmosd/user":"mallory"}}}`} {
			m, err := protocol.Parse([]byte(text))
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
