package protocol

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"testing"
)

// FuzzREST decodes REST requests and encodes them again.
func FuzzREST(f *testing.F) {
	f.Add("GET", "/x/tasks", "pageSize=5&status=TASK_STATE_WORKING&context_id=c&includeArtifacts=true&historyLength=-1", "")
	f.Add("POST", "/x/acme/tasks/a%2F:b:cancel", "", `{"metadata":{"a_b":1}}`)
	f.Add("GET", "/v1/tasks/%25/pushNotificationConfigs/p%2Fq", "status=3&tenant=t", "")
	f.Add("POST", "/message:send", "", `{"message":{"message_id":"m","role":1,"parts":[{"raw":"_-"}]},"tenant":"x"}`)
	f.Fuzz(func(t *testing.T, verb, path, query, body string) {
		p, ok := FindREST(verb, path)
		q, err := url.ParseQuery(query)
		if !ok || err != nil {
			return
		}
		params, e := p.Params(q, []byte(body))
		if e != nil {
			if !json.Valid(e.REST()) {
				t.Errorf("%s %s is refused with %s", verb, path, e.REST())
			}
			return
		}
		if !json.Valid(params) {
			t.Fatalf("%s %s?%s %q has the params %s", verb, path, query, body, params)
		}
		route, e := ToREST(&Operation{Method: p.Method, Params: params})
		if e != nil || p.Task == "" || p.Method == "" {
			return
		}
		again, ok := FindREST(route.Verb, route.Path)
		if !ok || again.Method != p.Method || again.Task != p.Task || again.Push != p.Push {
			t.Errorf("%s %s becomes %s %s: %+v, not %+v", verb, path, route.Verb, route.Path, again, p)
		}
	})
}

// FuzzAnswers decodes responses of agents and nodes.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":"1","result":{"task":{"id":"t"}}}`), 200)
	f.Add([]byte(`{"error":{"code":404,"status":"NOT_FOUND","message":"m","details":[{"@type":"x","reason":"TASK_NOT_FOUND"}]}}`), 404)
	f.Add([]byte(`{"type":"https://a2a-protocol.org/errors/task-not-found","title":"t","status":404}`), 415)
	f.Add([]byte("{"), 449)
	f.Add([]byte(`{"method":"GetTask","params":{"id":"t"},"serviceParameters":{"A2A-Version":"1.0"}}`), 0)
	f.Fuzz(func(t *testing.T, body []byte, status int) {
		for what, raw := range map[string]func() (json.RawMessage, error){
			"a response": func() (json.RawMessage, error) { return ParseResponse(body, json.RawMessage(`"1"`)) },
			"an outcome": func() (json.RawMessage, error) { return ParseOutcome(body) },
			"an operation": func() (json.RawMessage, error) {
				op, err := ParseOperation(body)
				if err != nil {
					return nil, err
				}
				return op.Bytes(), nil
			},
			"an error": func() (json.RawMessage, error) { return nil, FromREST(status, body) },
		} {
			result, err := raw()
			said := &Error{}
			switch {
			case err == nil && !json.Valid(result):
				t.Errorf("%s of %q is %s", what, body, result)
			case err != nil && !errors.As(err, &said):
				t.Errorf("%s of %q gives %v", what, body, err)
			case err != nil && (!json.Valid(Response(nil, nil, said)) || !json.Valid(Outcome(nil, said)) || !json.Valid(said.REST()) || said.Status() < http.StatusBadRequest):
				t.Errorf("%s of %q is the error %s", what, body, said.REST())
			}
		}
		if !json.Valid(body) {
			return // TaskOf and ContextOf require valid JSON
		}
		TaskOf(body)
		ContextOf(body)
		if !json.Valid(Normal(body)) {
			t.Errorf("%q becomes %s", body, Normal(body))
		}
	})
}
