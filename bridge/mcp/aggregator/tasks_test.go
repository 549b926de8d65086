package aggregator

import (
	"context"
	"encoding/json"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/bridgetest"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/task"
)

// workerTD has an action for each possible end of a task.
const workerTD = `{"title":"Worker","actions":{
 "done":{"synchronous":false,"output":{"type":"object","properties":{"n":{"type":"integer"}}}},
 "says":{"synchronous":false,"output":{"type":"string"}},
 "fails":{"synchronous":false},"breaks":{"synchronous":false},"asks":{"synchronous":false},"waits":{"synchronous":false}}}`

// A worker implements workerTD.
type worker struct{ park interact.InputWaiter }

func (w *worker) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		done := func(data string) {
			r := m.Reply(interact.ActionStatus, "", []byte(data))
			r.Status = interact.StatusCompleted
			yield(r, nil)
		}
		switch {
		case m.Type == interact.ContinueAction:
			yield(w.park.Continue(m))
		case m.Name == "done":
			done(`{"n":7}`)
		case m.Name == "says":
			done(`"seven"`)
		case m.Name == "fails":
			yield(nil, &interact.Error{Code: interact.AgentFailed, Title: "the drill broke", Hint: "buy another", Remote: true})
		case m.Name == "breaks":
			yield(nil, interact.Errorf(interact.Overloaded, "try again later", "too many drills"))
		case m.Name == "asks":
			answers, left, err := w.park.Ask(ctx, m, interact.Inputs{"a": {Kind: interact.InputForm, Message: "How deep?",
				Schema: json.RawMessage(`{"type":"object","properties":{"m":{"type":"integer"}}}`)}}, yield)
			if left || err != nil {
				return
			}
			done(string(answers["a"].Content))
		default:
			<-ctx.Done()
			yield(nil, ctx.Err())
		}
	}
}

const taskCapabilities = `{"extensions":{"io.modelcontextprotocol/tasks":{}},"elicitation":{}}`

// The states of actions are those of tasks (spec: the state table), at a thing and at the mesh.
func TestStatesOfTasks(t *testing.T) {
	t.Parallel()
	m := bridgetest.NewMesh(t)
	add(t, m, "urn:w", workerTD, &worker{})
	url := serveMesh(t, m, "worker")
	for _, endpoint := range []struct{ path, prefix string }{{"/mcp/things/worker", ""}, {"/mcp", "worker__"}} {
		ask := func(method, params string) *protocol.Message {
			return post(t, url+endpoint.path, "", method, params, taskCapabilities)
		}
		begin := func(tool string) string {
			return `{"taskId":"` + member(t, ask(protocol.CallTool, `{"name":"`+endpoint.prefix+tool+`"}`), "taskId") + `"`
		}
		// until polls until the task has a state.
		until := func(id, status string) string {
			for end := time.Now().Add(time.Minute); ; {
				got := string(ask("tasks/get", id+"}").Bytes())
				if strings.Contains(got, `"status":"`+status+`"`) || time.Now().After(end) {
					return got
				}
			}
		}
		for _, c := range []struct {
			tool, status string
			want         []string
			not          string
		}{
			{"done", "completed", []string{`"structuredContent":{"n":7}`, `"resultType":"complete"`}, `"isError"`},
			{"says", "completed", []string{`"text":"seven"`, `"structuredContent":{"value":"seven"}`}, `"isError"`},
			{"fails", "completed", []string{`"isError":true`, "the drill broke", "buy another"}, `"error":`},
			{"breaks", "failed", []string{`"error":{"code":-32603`, "too many drills"}, `"result":{"content"`},
			{"waits", "working", []string{`"pollIntervalMs":1000`, `"ttlMs":null`}, `"inputRequests"`},
			{"asks", "input_required", []string{`"inputRequests":{"a":{"method":"elicitation/create"`, "How deep?"}, `"requestState"`},
		} {
			id := begin(c.tool)
			got := until(id, c.status)
			for _, want := range append(c.want, `"status":"`+c.status+`"`) {
				if !strings.Contains(got, want) {
					t.Errorf("%s %s: %s has no %s", endpoint.path, c.tool, got, want)
				}
			}
			if strings.Contains(got, c.not) {
				t.Errorf("%s %s: %s has %s", endpoint.path, c.tool, got, c.not)
			}
			if r := ask("tasks/update", id+`,"inputResponses":{"b":{"action":"accept"}}}`); r.Error() != nil {
				t.Errorf("%s %s: an answer without a request: %s", endpoint.path, c.tool, r.Bytes())
			}
			switch c.tool {
			case "asks":
				if r := ask("tasks/update", id+`,"inputResponses":{"a":7}}`); r.Error() == nil || r.Error().Code != protocol.InvalidParams {
					t.Errorf("an invalid answer: %s", r.Bytes())
				}
				if r := ask("tasks/update", id+`,"inputResponses":{"a":{"action":"accept","content":{"m":3}}}}`); string(r.Result()) != `{"resultType":"complete"}` {
					t.Errorf("the answer: %s", r.Bytes())
				}
				if got := until(id, "completed"); !strings.Contains(got, `{\"m\":3}`) {
					t.Errorf("after the answer: %s", got)
				}
			case "waits":
				for range 2 { // it is idempotent
					if r := ask("tasks/cancel", id+"}"); r.Error() != nil {
						t.Errorf("cancelled: %s", r.Bytes())
					}
					until(id, "cancelled")
				}
			default:
				if r := ask("tasks/cancel", id+"}"); r.Error() != nil || until(id, c.status) == "" {
					t.Errorf("%s cancelled after its end: %s", c.tool, r.Bytes())
				}
			}
		}
	}
}

// A subscriber of a task receives all its states, except required input that it cannot provide.
func TestTaskSubscriptions(t *testing.T) {
	t.Parallel()
	m := bridgetest.NewMesh(t)
	d := add(t, m, "urn:w", workerTD, nil)
	synctest.Test(t, func(t *testing.T) {
		tasks := task.New(task.Options{})
		defer tasks.Close()
		testListensToTasks(t, bare{m, tasks.Middleware(d.Thing)(&worker{})})
	})
}

func testListensToTasks(t *testing.T, m bridge.Mesh) {
	h := New(Options{Mesh: m, Pins: []string{"worker"}})
	defer h.Close()
	f := enterEndpoint(t, h, "worker")
	for name, s := range map[string]protocol.Server{"": f.server, "worker__": h.mesh.server} {
		request := func(method string, params map[string]any) *protocol.Message {
			params["_meta"] = map[string]any{protocol.MetaVersion: protocol.Modern, protocol.MetaCapabilities: json.RawMessage(taskCapabilities)}
			return protocol.Request("1", method, params)
		}
		r, err := s.Call(t.Context(), request(protocol.CallTool, map[string]any{"name": name + "asks"}), nil)
		if err != nil {
			t.Fatal(err)
		}
		id := member(t, r, "taskId")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		var states []string
		_, _ = s.Call(ctx, request(protocol.Listen, map[string]any{"notifications": map[string]any{"taskIds": []string{id, "made up"}}}), func(n *protocol.Message) error {
			if n.Method() == protocol.Acknowledged {
				if raw, _ := n.Param("notifications", "taskIds"); string(raw) != `["`+id+`"]` {
					t.Errorf("%q: acknowledged %s", name, raw)
				}
				return nil
			}
			states = append(states, n.Text("status"))
			switch {
			case n.Text("taskId") != id:
				t.Errorf("%q was notified of %s", name, n.Bytes())
			case n.Text("status") == "input_required":
				update := request("tasks/update", map[string]any{"taskId": id, "inputResponses": json.RawMessage(`{"a":{"action":"accept","content":{"m":1}}}`)})
				if r, err := s.Call(ctx, update, nil); err != nil || r.Error() != nil {
					t.Errorf("%q: %v, %v", name, r, err)
				}
			case n.Text("status") == "completed":
				cancel()
			}
			return nil
		})
		cancel()
		if got := strings.Join(states, " "); !strings.HasSuffix(got, "completed") || !strings.Contains(got, "input_required") {
			t.Errorf("%q received %q", name, got)
		}
	}
	bare := protocol.Request("1", protocol.Listen, map[string]any{"notifications": map[string]any{"taskIds": []string{"x"}},
		"_meta": map[string]any{protocol.MetaVersion: protocol.Modern, protocol.MetaCapabilities: struct{}{}}})
	if r, err := f.server.Call(t.Context(), bare, nil); err != nil || r.Error() == nil || r.Error().Code != protocol.MissingCapability {
		t.Errorf("a client without tasks: %v, %v", r, err)
	}
}
