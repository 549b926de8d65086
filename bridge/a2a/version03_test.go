package a2a

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/bridge/a2a/v03"
	"github.com/lmosd/lmosd/bridge/bridgetest"
	"github.com/lmosd/lmosd/interact"
)

// Agents of 0.3 with one transport are imported, and called through the mesh and over A2A 1.0.
func TestImportVersion03(t *testing.T) {
	t.Parallel()
	for name, old := range map[string]struct{ transport, path string }{"JSON-RPC": {"JSONRPC", "/desk"}, "REST": {"HTTP+JSON", "/desk"}, "REST below v1": {"HTTP+JSON", "/desk/v1/"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, Options{})
			cards := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/.well-known/agent.json" { // the path of the oldest agents
					http.NotFound(w, r)
					return
				}
				io.WriteString(w, fmt.Sprintf(`{"protocolVersion":"0.3.0","name":"Old","description":"d","version":"1","url":"%s","preferredTransport":%q,"capabilities":{"streaming":true},
					"defaultInputModes":["text/plain"],"defaultOutputModes":["text/plain"],"skills":[{"id":"echo","name":"Echo","description":"x","tags":["t"]},{"id":"book","name":"Book","description":"x","tags":["t"]},
					{"id":"sum","name":"Sum","description":"x","tags":["t"]},{"id":"count","name":"Count","description":"x","tags":["t"]},{"id":"fail","name":"Fail","description":"x","tags":["t"]}]}`, s.url+old.path, old.transport))
			}))
			defer cards.Close()
			mesh := bridgetest.NewMesh(t)
			imports(t, mesh, cards.URL, "old", Options{})
			for action, test := range map[string][2]string{"echo": {`"hello"`, `"hello"`}, "sum": {`{"a":1,"b":2}`, `3,"3"`}, "count": {`2`, `0,"0",1,"1"`}, "book": {`{"city":"Bonn"}`, `{"when":`},
				"fail": {`true`, interact.AgentFailed.String()}} {
				parts, err := call(t, mesh, "old", action, test[0], func(interact.Inputs) interact.Answers {
					return interact.Answers{"when": {Action: interact.Accept, Content: []byte(`{"day":"Monday"}`)}}
				})
				got := strings.Join(parts, ",")
				if err != nil {
					got = interact.AsError(err).Code.String()
				}
				if !strings.HasPrefix(got, test[1]) {
					t.Errorf("%s gives %s, %v; want %s", action, got, err, test[1])
				}
			}
			at := guarded(t, mesh, Options{}) + "/old"
			for over, ask := range bindings {
				task := ask(t, at, protocol.SendMessage, configured(messageParams(skill("slow", row{"until": over})), "returnImmediately", true), nil).task(t)
				if got := ask(t, at, protocol.GetTask, row{"id": task.ID, "historyLength": 0}, nil).task(t); got.ID != task.ID || got.History != nil || got.Status.State.Terminal() {
					t.Errorf("%s: get gives %+v", over, got)
				}
				events := make(chan *answer)
				go func() { events <- ask(t, at, protocol.SubscribeToTask, row{"id": task.ID}, nil) }()
				if got := ask(t, at, protocol.CancelTask, row{"id": task.ID}, nil).task(t); got.Status.State != protocol.Canceled {
					t.Errorf("%s: cancel gives %+v", over, got)
				}
				if a := <-events; len(a.events) > 0 && !strings.Contains(string(a.events[len(a.events)-1]), "TASK_STATE_CANCELED") {
					t.Errorf("%s: the events are %s, %v", over, a.events, a.err)
				}
				if a := ask(t, at, protocol.SendMessage, with(messageParams(text("x")), "taskId", task.ID), nil); a.err == nil || a.err.Code != protocol.UnsupportedOperation {
					t.Errorf("%s: a task that ended gives %s, %v", over, a.result, a.err)
				}
				list := ask(t, at, protocol.ListTasks, row{}, nil)
				if has := strings.Contains(string(list.result), task.ID); has != (old.transport == "HTTP+JSON") || !has && list.err.Code != protocol.UnsupportedOperation {
					t.Errorf("%s: the list is %s, %v", over, list.result, list.err)
				}
			}
		})
	}
}

// oldBindings send requests of 0.3, and convert responses to 1.0.
var oldBindings = map[string]binding{"JSON-RPC 0.3": overOldRPC, "REST 0.3": overOldREST}

// withoutVersion removes the version header, as clients of 0.3 do.
func withoutVersion(header map[string]string) map[string]string {
	all := map[string]string{"A2A-Version": ""}
	maps.Copy(all, header)
	return all
}

func overOldRPC(t *testing.T, at, method string, params map[string]any, header map[string]string) *answer {
	t.Helper()
	a := &answer{}
	old, raw, e := v03.Request(&protocol.Operation{Method: method, Params: protocol.Encode(params)})
	if e != nil {
		a.err = e
		return a
	}
	body := protocol.Encode(map[string]any{"jsonrpc": "2.0", "id": 7, "method": old, "params": raw})
	return a.fetch(t, http.MethodPost, at, body, withoutVersion(header), func(data []byte) json.RawMessage {
		var r struct {
			ID     int             `json:"id"`
			Result json.RawMessage `json:"result"`
			Error  *protocol.Error `json:"error"`
		}
		if err := json.Unmarshal(data, &r); err != nil || r.Error == nil && r.ID != 7 {
			t.Errorf("%s answers %s", old, data)
		}
		if a.err = r.Error; a.err != nil {
			return nil
		}
		result, err := v03.NewResult(method, r.Result)
		if err != nil {
			t.Errorf("%s answers %s: %v", old, data, err)
		}
		return result
	})
}

func overOldREST(t *testing.T, at, method string, params map[string]any, header map[string]string) *answer {
	t.Helper()
	a := &answer{}
	route, e := v03.RESTRequest(&protocol.Operation{Method: method, Params: protocol.Encode(params)})
	if e != nil {
		a.err = e
		return a
	}
	return a.fetch(t, route.Verb, at+route.Path+"?"+route.Query.Encode(), route.Body, withoutVersion(header), func(data []byte) json.RawMessage {
		var failed struct{ Error json.RawMessage }
		if json.Unmarshal(data, &failed) == nil && failed.Error != nil {
			a.err = protocol.FromREST(a.status, data)
			return nil
		}
		result, err := v03.NewRESTResult(method, data)
		if err != nil {
			t.Errorf("%s answers %s: %v", method, data, err)
		}
		return result
	})
}
