package a2a

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/bridge/bridgetest"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// scriptedTD describes a Thing with many actions that is not an A2A agent.
const scriptedTD = `{"title":"Desk","description":"Does this and that.","actions":{
	"echo":{"synchronous":true,"input":{"type":"string"},"output":{"type":"string"},"description":"Says it again."},
	"sum":{"synchronous":true,"input":{"type":"object","required":["a","b"],"properties":{"a":{"type":"number"},"b":{"type":"number"}},"additionalProperties":false},"output":{"type":"number"}},
	"slow":{"synchronous":true,"input":{"type":"object","required":["until"],"properties":{"until":{"type":"string"}},"additionalProperties":false}},
	"count":{"synchronous":true,"input":{"type":"integer"}},
	"book":{"synchronous":true,"input":{"type":"object","required":["city"],"properties":{"city":{"type":"string"}},"additionalProperties":false}},
	"login":{"synchronous":true,"input":{"type":"null"}},
	"fail":{"synchronous":true,"input":{"type":"boolean"}},
	"deny":{"synchronous":true,"input":{"type":"array"}}}}`

// A scriptedThing implements scriptedTD. A run of slow waits until its name is released, or it is canceled.
type scriptedThing struct {
	inputs interact.InputWaiter

	mu       sync.Mutex
	released map[string]chan struct{}
	ended    chan string // names of canceled slow runs
}

func newScriptedThing() *scriptedThing {
	return &scriptedThing{released: map[string]chan struct{}{}, ended: make(chan string, 100)}
}

func (d *scriptedThing) releaseChannel(key string) chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.released[key] == nil {
		d.released[key] = make(chan struct{})
	}
	return d.released[key]
}

func (d *scriptedThing) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		if m.Type == interact.ContinueAction {
			yield(d.inputs.Continue(m))
			return
		}
		say := func(s interact.Status, v any) bool {
			r := m.Reply(interact.ActionStatus, interact.JSON, nil)
			if r.Status = s; v != nil {
				r.Data = protocol.Encode(v)
			}
			return yield(r, nil)
		}
		switch m.Name {
		case "echo":
			var text string
			_ = json.Unmarshal(m.Data, &text)
			say(interact.StatusCompleted, text)
		case "sum":
			var in struct{ A, B float64 }
			_ = json.Unmarshal(m.Data, &in)
			say(interact.StatusCompleted, in.A+in.B)
		case "slow":
			var in struct{ Until string }
			_ = json.Unmarshal(m.Data, &in)
			if !say(interact.StatusRunning, nil) {
				d.ended <- in.Until
				return
			}
			select {
			case <-d.releaseChannel(in.Until):
				say(interact.StatusCompleted, in.Until)
			case <-ctx.Done():
				d.ended <- in.Until
				yield(nil, ctx.Err())
			}
		case "count":
			var n int
			_ = json.Unmarshal(m.Data, &n)
			for i := range n {
				if !say(interact.StatusRunning, i) {
					return
				}
			}
			say(interact.StatusCompleted, nil)
		case "book", "login":
			in := interact.Inputs{"when": {Kind: interact.InputForm, Message: "When?", Schema: []byte(`{"type":"object","required":["day"],"properties":{"day":{"type":"string"}}}`)}}
			if m.Name == "login" {
				in = interact.Inputs{"key": {Kind: interact.InputURL, Message: "Prove it.", URL: "https://id.example/login"}}
			}
			answers, left, err := d.inputs.Ask(ctx, m, in, yield)
			if err != nil {
				yield(nil, err)
			} else if !left {
				say(interact.StatusCompleted, answers)
			}
		case "fail":
			yield(nil, interact.Errorf(interact.AgentFailed, "try later", "it is broken"))
		case "deny":
			yield(nil, interact.Errorf(interact.Forbidden, "ask the operator", "rule 7 forbids it"))
		}
	}
}

// A site serves a mesh to A2A clients.
type site struct {
	*bridgetest.Mesh
	thing *scriptedThing
	url   string // of the root, "http://…/a2a"
}

func newSite(t testing.TB, o Options) *site {
	t.Helper()
	s := &site{Mesh: bridgetest.NewMesh(t), thing: newScriptedThing()}
	s.Publish(t, []byte(scriptedTD), s.thing)
	s.Publish(t, []byte(`{"title":"Echo","description":"Says it again.","actions":{"echo":{"synchronous":true,"input":{"type":"string"},"output":{"type":"string"}}}}`), s.thing)
	s.url = exports(t, s.Mesh, o)
	return s
}

// exports serves a mesh, and returns the address of the root.
func exports(t testing.TB, m *bridgetest.Mesh, o Options) string {
	t.Helper()
	return bridgetest.Serve(t, New(o).Export(m)) + "/a2a"
}

// An answer is a response that a client of either binding receives.
type answer struct {
	status int
	media  string
	result json.RawMessage
	err    *protocol.Error
	events []json.RawMessage // of a stream
	raw    string
}

// A binding sends handwritten operations to an agent.
type binding func(t *testing.T, at, method string, params map[string]any, header map[string]string) *answer

var bindings = map[string]binding{"JSON-RPC": overRPC, "REST": overREST}

func overRPC(t *testing.T, at, method string, params map[string]any, header map[string]string) *answer {
	t.Helper()
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": "q1", "method": method, "params": params})
	if err != nil {
		t.Fatal(err)
	}
	a := &answer{}
	read := func(data []byte) json.RawMessage {
		var r struct {
			ID     string          `json:"id"`
			Result json.RawMessage `json:"result"`
			Error  *protocol.Error `json:"error"`
		}
		if err := json.Unmarshal(data, &r); err != nil || r.Error == nil && r.ID != "q1" {
			t.Errorf("%s answers %s", method, data)
		}
		if r.Error != nil {
			a.err = r.Error
		}
		return r.Result
	}
	return a.fetch(t, http.MethodPost, at, body, header, read)
}

func overREST(t *testing.T, at, method string, params map[string]any, header map[string]string) *answer {
	t.Helper()
	text := func(name string) string { s, _ := params[name].(string); return url.PathEscape(s) }
	query := func() string {
		q := url.Values{}
		for name, v := range params {
			if name != "id" && name != "taskId" {
				q.Set(name, fmt.Sprint(v))
			}
		}
		return "?" + q.Encode()
	}
	verb, path, body := http.MethodGet, "", []byte(nil)
	post := func(p string) {
		verb, path = http.MethodPost, p
		body, _ = json.Marshal(params)
	}
	switch method {
	case protocol.SendMessage:
		post("/message:send")
	case protocol.SendStreamingMessage:
		post("/message:stream")
	case protocol.GetTask:
		path = "/tasks/" + text("id") + query()
	case protocol.ListTasks:
		path = "/tasks" + query()
	case protocol.CancelTask:
		post("/tasks/" + text("id") + ":cancel")
	case protocol.SubscribeToTask:
		path = "/tasks/" + text("id") + ":subscribe"
	case protocol.CreatePush:
		post("/tasks/" + text("taskId") + "/pushNotificationConfigs")
	case protocol.ListPush:
		path = "/tasks/" + text("taskId") + "/pushNotificationConfigs"
	case protocol.GetPush, protocol.DeletePush:
		path = "/tasks/" + text("taskId") + "/pushNotificationConfigs/" + text("id")
		if method == protocol.DeletePush {
			verb = http.MethodDelete
		}
	case protocol.ExtendedCard:
		path = "/extendedAgentCard"
	default:
		post("/" + method)
	}
	a := &answer{}
	return a.fetch(t, verb, at+path, body, header, func(data []byte) json.RawMessage {
		var failed struct{ Error json.RawMessage }
		if json.Unmarshal(data, &failed) == nil && failed.Error != nil {
			a.err = protocol.FromREST(a.status, data)
			return nil
		}
		return data
	})
}

var httpClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func (a *answer) fetch(t *testing.T, verb, at string, body []byte, header map[string]string, read func([]byte) json.RawMessage) *answer {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), verb, at, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("A2A-Version", "1.0")
	for name, value := range header {
		q.Header.Set(name, value)
	}
	r, err := httpClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	a.status, a.media = r.StatusCode, r.Header.Get("Content-Type")
	if strings.HasPrefix(a.media, protocol.EventStream) {
		for e, err := range protocol.Events(r.Body) {
			if err != nil {
				t.Fatal(err)
			}
			if result := read(e.Data); result != nil {
				a.events = append(a.events, result)
			}
		}
		return a
	}
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	a.raw = string(raw)
	a.result = read(raw)
	return a
}

// task reads the task of a result.
func (a *answer) task(t *testing.T) *protocol.Task {
	t.Helper()
	var r struct {
		protocol.StreamResponse
		*protocol.Task
	}
	var bare protocol.Task
	if a.err != nil || json.Unmarshal(a.result, &r.StreamResponse) != nil || json.Unmarshal(a.result, &bare) != nil {
		t.Fatalf("got %s, %v", a.result, a.err)
	}
	if r.StreamResponse.Task != nil {
		return r.StreamResponse.Task
	}
	return &bare
}

// messageParams returns the params of a message.
func messageParams(parts ...map[string]any) map[string]any {
	all := []any{}
	for _, p := range parts {
		all = append(all, p)
	}
	return map[string]any{"message": map[string]any{"messageId": interact.NewID(), "role": "ROLE_USER", "parts": all}}
}

func text(s string) map[string]any { return map[string]any{"text": s} }
func data(v any) map[string]any    { return map[string]any{"data": v} }
func skill(name string, v any) map[string]any {
	return map[string]any{"data": map[string]any{"arguments": v}, "metadata": map[string]any{"skillId": name}}
}

// with sets a member of the message of params.
func with(p map[string]any, name string, v any) map[string]any {
	p["message"].(map[string]any)[name] = v
	return p
}

// configured sets a member of the configuration.
func configured(p map[string]any, name string, v any) map[string]any {
	c, _ := p["configuration"].(map[string]any)
	if c == nil {
		c = map[string]any{}
	}
	c[name] = v
	p["configuration"] = c
	return p
}

var until = poll.Until

func messageTextOf(m *protocol.Message) string { return cmp.Or(messageText(m), "") }
