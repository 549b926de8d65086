package a2a

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a/executor"
	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/bridge/bridgetest"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// TestStates checks each row of the table of states (docs/interop.md): of A2A, of runs, and back.
func TestStates(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		state  protocol.State
		status interact.Status
		back   protocol.State
	}{
		{"TASK_STATE_SUBMITTED", interact.StatusPending, protocol.Submitted},
		{"TASK_STATE_WORKING", interact.StatusRunning, protocol.Working},
		{"TASK_STATE_INPUT_REQUIRED", interact.StatusInputRequired, protocol.InputRequired},
		{"TASK_STATE_AUTH_REQUIRED", interact.StatusInputRequired, protocol.InputRequired},
		{"TASK_STATE_COMPLETED", interact.StatusCompleted, protocol.Completed},
		{"TASK_STATE_FAILED", interact.StatusFailed, protocol.Failed},
		{"TASK_STATE_REJECTED", interact.StatusFailed, protocol.Failed},
		{"TASK_STATE_CANCELED", interact.StatusCancelled, protocol.Canceled},
		{"TASK_STATE_UNSPECIFIED", interact.StatusNone, protocol.Unspecified},
		{"TASK_STATE_PAUSED", interact.StatusNone, protocol.Unspecified}, // of a future version
		{"", interact.Status(99), protocol.Unspecified},
	} {
		if got := executor.StatusOf(row.state); row.state != "" && got != row.status {
			t.Errorf("%s is %v, want %v", row.state, got, row.status)
		}
		if got := executor.StateOf(row.status); got != row.back {
			t.Errorf("%v is %s, want %s", row.status, got, row.back)
		}
		if row.state.Terminal() != row.status.Final() && row.status.String() != "" || row.state.Waits() != (row.status == interact.StatusInputRequired) {
			t.Errorf("%s and %v end differently", row.state, row.status)
		}
	}
}

// An agent without streams that changes its state with each request.
func through(states ...string) func(w http.ResponseWriter, id, method string) {
	return func(w http.ResponseWriter, id, method string) {
		if method == protocol.SubscribeToTask {
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32004,"message":"no streams"}}`, id)
			return
		}
		state := states[0]
		if len(states) > 1 {
			states = states[1:]
		}
		task := fmt.Sprintf(`{"id":"t","contextId":"c","status":{"state":"TASK_STATE_%s","message":{"messageId":"%s","role":"ROLE_AGENT","parts":[{"text":"so it is"}]}},`+
			`"artifacts":[{"artifactId":"a","parts":[{"text":"one"}]}]}`, state, state)
		if method == protocol.SendMessage {
			task = `{"task":` + task + `}`
		}
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, task)
	}
}

// TestFinalTaskStates maps the final states of agents' tasks to the results of their consumers.
func TestFinalTaskStates(t *testing.T) {
	t.Parallel()
	yes := func(in interact.Inputs) interact.Answers {
		return interact.Answers{textInput: {Action: interact.Accept, Content: []byte(`"Bonn"`)}}
	}
	for states, want := range map[string]string{
		"COMPLETED":                             `"one"`,
		"SUBMITTED WORKING COMPLETED":           `"one"`,
		"FAILED":                                "LMOS-1502 so it is",
		"REJECTED":                              "LMOS-1502 so it is",
		"CANCELED":                              "LMOS-1499 so it is",
		"PAUSED":                                "LMOS-1502 the agent returned an unknown task state: TASK_STATE_PAUSED",
		"WORKING UNSPECIFIED":                   "LMOS-1502 the agent returned an unknown task state: TASK_STATE_UNSPECIFIED",
		"INPUT_REQUIRED COMPLETED":              `"one"`,
		"AUTH_REQUIRED AUTH_REQUIRED COMPLETED": `"one"`,
		"WORKING AUTH_REQUIRED COMPLETED":       `"one"`,
	} {
		t.Run(states, func(t *testing.T) {
			t.Parallel()
			f := newForeign(t, "")
			f.card = strings.Replace(f.card, `"streaming":true`, `"streaming":false`, 1)
			f.answer = through(strings.Fields(states)...)
			m := bridgetest.NewMesh(t)
			imports(t, m, f.URL, "F", Options{})
			parts, err := call(t, m, "f", "s_1", `"x"`, yes)
			parts = slices.DeleteFunc(parts, func(p string) bool { return p == `{"message":"so it is"}` }) // progress
			got := strings.Join(parts, ",")
			if err != nil {
				e := interact.AsError(err)
				got = e.Code.String() + " " + e.Title
			}
			if got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

// takeTurn sends a turn to an action of the Thing f.
func takeTurn(t *testing.T, m *bridgetest.Mesh, action, turn string) (bridge.Outcome, error) {
	t.Helper()
	d, err := m.Get(t.Context(), "f")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := interact.Call(ctx, m, &interact.Message{Type: interact.InvokeAction, Thing: d.Ref(), Name: action, ID: interact.NewID(), Data: []byte(turn),
		ContentType: bridge.TurnType})
	if err != nil {
		return bridge.Outcome{}, err
	}
	var o bridge.Outcome
	if err := json.Unmarshal(r.Data, &o); err != nil || r.ContentType != bridge.TurnType {
		t.Fatalf("%s %s: %v", r.ContentType, r.Data, err)
	}
	return o, nil
}

// TestTurns sends turns of a conversation to an agent.
func TestTurns(t *testing.T) {
	t.Parallel()
	f := newForeign(t, "")
	var sent []string // params
	f.answer = nil
	f.Server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			io.WriteString(w, strings.Replace(f.card, `"streaming":true`, `"streaming":false`, 1))
			return
		}
		var q struct {
			ID, Params json.RawMessage
			Method     string
		}
		_ = json.NewDecoder(r.Body).Decode(&q)
		f.mu.Lock()
		sent = append(sent, q.Method+" "+string(q.Params))
		f.mu.Unlock()
		result := `{"task":{"id":"t2","contextId":"c","status":{"state":"TASK_STATE_INPUT_REQUIRED","message":{"messageId":"m","role":"ROLE_AGENT",` +
			`"parts":[{"text":"which?"}]}},"artifacts":[{"artifactId":"a","name":"N","parts":[{"text":"x","metadata":{"k":1}},{"raw":"AQI","mediaType":"a/b","filename":"f"}]}],` +
			`"metadata":{"cost":3}}}`
		if q.Method == protocol.GetTask {
			state := map[bool]string{true: "COMPLETED", false: "INPUT_REQUIRED"}[strings.Contains(string(q.Params), "ended")]
			result = `{"id":"t1","contextId":"c1","status":{"state":"TASK_STATE_` + state + `"}}`
		}
		if strings.Contains(string(q.Params), "gone") {
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32001,"message":"no such task"}}`, q.ID)
			return
		}
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, q.ID, result)
	})
	m := bridgetest.NewMesh(t)
	imports(t, m, f.URL, "F", Options{})
	for _, test := range []struct{ name, action, turn, want string }{
		{"words", sendAction, `{"message":"hi","kinds":[]}`, `"parts":[{"text":"hi"}]`},
		{"a skill with data", "s_1", `{"data":{"a":1},"kinds":[]}`, `"parts":[{"data":{"a":1},"mediaType":"application/json"}],"metadata":{"skillId":"s/1"}`},
		{"a context", sendAction, `{"message":"hi","contextId":"c9","kinds":[]}`, `"contextId":"c9"`},
		{"a task that waits", sendAction, `{"message":"hi","taskId":"open","kinds":[]}`, `"contextId":"c1","taskId":"open"`},
		{"a task that has ended", sendAction, `{"message":"hi","taskId":"ended","kinds":[]}`, `"referenceTaskIds":["ended"]`},
	} {
		o, err := takeTurn(t, m, test.action, test.turn)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		last := sent[len(sent)-1]
		if !strings.Contains(last, test.want) || strings.HasPrefix(test.name, "a task that has") && strings.Contains(last, `"taskId"`) {
			t.Errorf("%s sends %s, want %s", test.name, last, test.want)
		}
		a := o.Artifacts[0]
		if o.State != bridge.TurnInputRequired || o.Task != "t2" || o.Context != "c" || *o.Message[0].Text != "which?" || a.Name != "N" || string(o.Metadata) != `{"cost":3}` ||
			string(a.Parts[0].Metadata) != `{"k":1}` || string(a.Parts[1].Raw) != "\x01\x02" || a.Parts[1].Filename != "f" {
			t.Errorf("%s gives %+v", test.name, o)
		}
	}
	for turn, want := range map[string]interact.Code{`{"message":1}`: interact.Invalid, `{"taskId":"gone","kinds":[]}`: interact.NoTask,
		`{"message":"hi","kinds":["message"]}`: interact.InputNeeded} {
		if _, err := takeTurn(t, m, sendAction, turn); interact.AsError(err).Code != want {
			t.Errorf("%s gives %v, want %v", turn, err, want)
		}
	}
}

// TestOutcomes builds outputs from growing artifacts.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	var o outcome
	part := func(text string) []protocol.Part { return []protocol.Part{protocol.TextPart(text)} }
	o.artifact(&protocol.Artifact{ID: "a", Name: "A", Parts: part("1")}, false)
	o.artifact(&protocol.Artifact{ID: "a", Parts: part("2")}, true)
	o.artifact(&protocol.Artifact{ID: "b", Parts: part("x")}, false)
	o.artifact(&protocol.Artifact{ID: "b", Description: "new", Parts: part("y")}, false)
	o.artifact(&protocol.Artifact{ID: "a", Parts: []protocol.Part{protocol.DataPart([]byte("3"))}}, true)
	o.task(&protocol.Task{Artifacts: []*protocol.Artifact{{ID: "b", Parts: part("y")}, {ID: "c", Parts: part("z")}}}, map[string]int{"b": 1})
	o.artifact(&protocol.Artifact{ID: "d", Parts: part(strings.Repeat("x", maxOutcome))}, false)
	got := string(protocol.Encode(o.end("t", "", protocol.Status{State: protocol.Completed})))
	want := `{"taskId":"t","state":"completed","artifacts":[{"artifactId":"a","name":"A","parts":[{"text":"12"},{"data":3,"mediaType":"application/json"}]},` +
		`{"artifactId":"b","description":"new","parts":[{"text":"y"}]},{"artifactId":"c","parts":[{"text":"z"}]}]}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestSchemas checks the schemas in a card: those of an MCP tool verbatim, others as described.
func TestSchemas(t *testing.T) {
	t.Parallel()
	raw, err := td.Draft([]byte(`{"title":"X","actions":{"a":{"input":{"type":"object"},"mcp:inputSchema":{"type":"object","properties":{},"x":1.0}},
		"b":{"input":{"type":"string"},"output":{"type":"number"}},"c":{"input":{"type":"object","properties":{"n":{"type":"number"}}}},"mcp":{"@type":"mcp:Session"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	thing, err := td.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	c := describeThing(thing)
	if len(c.Capabilities.Extensions) != 1 || len(c.Skills) != 3 {
		t.Fatalf("%+v", c)
	}
	e := c.Capabilities.Extensions[0]
	const want = `{"skills":{"a":{"inputSchema":"{\"type\":\"object\",\"properties\":{},\"x\":1.0}"},` +
		`"b":{"inputSchema":"{\"type\":\"string\"}","outputSchema":"{\"type\":\"number\"}"},` +
		`"c":{"inputSchema":"{\"properties\":{\"n\":{\"type\":\"number\"}},\"type\":\"object\"}"}}}`
	if e.URI != schemasExtension || e.Required || string(e.Params) != want {
		t.Errorf("got %+v %s, want %s", e, e.Params, want)
	}
	for i, want := range []string{"application/json text/plain", "application/json text/plain", "application/json"} {
		if got := strings.Join(c.Skills[i].InputModes, " "); got != want {
			t.Errorf("%s takes %s, want %s", c.Skills[i].ID, got, want)
		}
	}
}
