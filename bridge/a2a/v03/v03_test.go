package v03

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// checkEqualJSON compares JSON values.
func checkEqualJSON(t *testing.T, what string, got []byte, want string) {
	t.Helper()
	var g, w any
	if json.Unmarshal(got, &g) != nil || json.Unmarshal([]byte(want), &w) != nil || !reflect.DeepEqual(g, w) {
		t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

const (
	newMessage = `{"messageId":"m","contextId":"c","taskId":"t","role":"ROLE_USER","metadata":{"a_b":1},"extensions":["u"],"referenceTaskIds":["r"],"parts":[
		{"text":"hi","metadata":{"k":1}},{"raw":"AAAA","filename":"f","mediaType":"image/png"},{"url":"https://x","mediaType":"a/b"},{"data":{"n":12345678901234567890}},{"data":[1]}]}`
	rpcMessage = `{"kind":"message","messageId":"m","contextId":"c","taskId":"t","role":"user","metadata":{"a_b":1},"extensions":["u"],"referenceTaskIds":["r"],"parts":[
		{"kind":"text","text":"hi","metadata":{"k":1}},{"kind":"file","file":{"bytes":"AAAA","name":"f","mimeType":"image/png"}},{"kind":"file","file":{"uri":"https://x","mimeType":"a/b"}},
		{"kind":"data","data":{"n":12345678901234567890}},{"kind":"data","data":{"value":[1]}}]}`
	restMessage = `{"messageId":"m","contextId":"c","taskId":"t","role":"ROLE_USER","metadata":{"a_b":1},"extensions":["u"],"referenceTaskIds":["r"],"content":[
		{"text":"hi","metadata":{"k":1}},{"file":{"fileWithBytes":"AAAA","name":"f","mimeType":"image/png"}},{"file":{"fileWithUri":"https://x","mimeType":"a/b"}},
		{"data":{"data":{"n":12345678901234567890}}},{"data":{"data":{"value":[1]}}}]}`
)

// routes are the REST requests of 0.3 for those of TestRequests. blocking is the default that proto JSON omits.
var routes = map[string]string{"send": "POST /v1/message:send", "send and wait": "POST /v1/message:send", "get": "GET /v1/tasks/t", "cancel": "POST /v1/tasks/t:cancel",
	"subscribe": "POST /v1/tasks/t:subscribe", "create push": "POST /v1/tasks/t/pushNotificationConfigs", "get push": "GET /v1/tasks/t/pushNotificationConfigs/p",
	"list push": "GET /v1/tasks/t/pushNotificationConfigs", "delete push": "DELETE /v1/tasks/t/pushNotificationConfigs/p"}

var blocking = map[string]string{"send": `"blocking":false,`}

// TestRequests converts operations between 1.0 and both formats of 0.3, in both directions.
func TestRequests(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ method, modern, rpc, rest string }{
		"send": {protocol.SendMessage,
			`{"message":` + newMessage + `,"configuration":{"acceptedOutputModes":["a/b"],"historyLength":2,"returnImmediately":true,"taskPushNotificationConfig":{"id":"p","url":"https://h","token":"k","authentication":{"scheme":"Bearer","credentials":"x"}}}}`,
			`{"message":` + rpcMessage + `,"configuration":{"acceptedOutputModes":["a/b"],"historyLength":2,"blocking":false,"pushNotificationConfig":{"id":"p","url":"https://h","token":"k","authentication":{"schemes":["Bearer"],"credentials":"x"}}}}`,
			`{"message":` + restMessage + `,"configuration":{"acceptedOutputModes":["a/b"],"historyLength":2,"pushNotification":{"id":"p","url":"https://h","token":"k","authentication":{"schemes":["Bearer"],"credentials":"x"}}}}`},
		"send and wait": {protocol.SendMessage, `{"message":` + newMessage + `,"configuration":{}}`, `{"message":` + rpcMessage + `,"configuration":{"blocking":true}}`,
			`{"message":` + restMessage + `,"configuration":{"blocking":true}}`},
		"get":         {protocol.GetTask, `{"id":"t","historyLength":3}`, `{"id":"t","historyLength":3}`, `{"id":"t","historyLength":3}`},
		"cancel":      {protocol.CancelTask, `{"id":"t","metadata":{"x":1}}`, `{"id":"t","metadata":{"x":1}}`, `{"id":"t","metadata":{"x":1}}`},
		"subscribe":   {protocol.SubscribeToTask, `{"id":"t"}`, `{"id":"t"}`, `{"id":"t"}`},
		"create push": {protocol.CreatePush, `{"taskId":"t","id":"p","url":"https://h"}`, `{"taskId":"t","pushNotificationConfig":{"id":"p","url":"https://h"}}`, `{"taskId":"t","pushNotificationConfig":{"id":"p","url":"https://h"}}`},
		"get push":    {protocol.GetPush, `{"taskId":"t","id":"p"}`, `{"id":"t","pushNotificationConfigId":"p"}`, `{"taskId":"t","id":"p"}`},
		"list push":   {protocol.ListPush, `{"taskId":"t"}`, `{"id":"t"}`, `{"taskId":"t"}`},
		"delete push": {protocol.DeletePush, `{"taskId":"t","id":"p"}`, `{"id":"t","pushNotificationConfigId":"p"}`, `{"taskId":"t","id":"p"}`},
	} {
		method, params, e := Request(&protocol.Operation{Method: test.method, Params: json.RawMessage(test.modern)})
		if e != nil {
			t.Fatal(e)
		}
		checkEqualJSON(t, name+" to JSON-RPC", params, test.rpc)
		op, e := Operation(method, json.RawMessage(test.rpc))
		if e != nil || op.Method != test.method {
			t.Fatalf("%s is %+v, %v", method, op, e)
		}
		checkEqualJSON(t, name+" of JSON-RPC", op.Params, test.modern)
		if op, e = OfREST(test.method, json.RawMessage(test.rest)); e != nil {
			t.Fatal(e)
		}
		checkEqualJSON(t, name+" of REST", op.Params, test.modern)
		route, e := RESTRequest(&protocol.Operation{Method: test.method, Params: json.RawMessage(test.modern)})
		if e != nil {
			t.Fatal(e)
		}
		if got := route.Verb + " " + route.Path; got != routes[name] {
			t.Errorf("%s is %s, want %s", name, got, routes[name])
		}
		if strings.HasPrefix(name, "send") {
			checkEqualJSON(t, name+" to REST", route.Body, strings.Replace(test.rest, `"historyLength":2,`, `"historyLength":2,`+blocking[name], 1))
		}
	}
	if op, e := OfREST(protocol.ListTasks, json.RawMessage(`{"status":"TASK_STATE_CANCELLED","pageSize":3,"x":1}`)); e != nil {
		t.Error(e)
	} else {
		checkEqualJSON(t, "list of REST", op.Params, `{"status":"TASK_STATE_CANCELED","pageSize":3}`)
	}
	for _, bad := range []string{"message/fly", "SendMessage"} {
		if _, e := Operation(bad, nil); e == nil || e.Code != protocol.UnknownMethod {
			t.Errorf("%s gives %v", bad, e)
		}
	}
	if _, e := Operation("message/send", json.RawMessage(`[]`)); e == nil || e.Code != protocol.InvalidParams {
		t.Errorf("params that are not an object give %v", e)
	}
	if _, _, e := Request(&protocol.Operation{Method: protocol.ListTasks}); e == nil || e.Code != protocol.UnsupportedOperation {
		t.Errorf("ListTasks of an agent of 0.3 gives %v", e)
	}
}

// TestResults converts results of 1.0 to both formats of 0.3, and back from JSON-RPC.
func TestResults(t *testing.T) {
	t.Parallel()
	const task, rpcTask = `{"id":"t","contextId":"c","status":{"state":"TASK_STATE_CANCELED","timestamp":"2026-01-01T00:00:00.000Z","message":` + newMessage + `},"artifacts":[{"artifactId":"a","parts":[{"text":"x"}],"metadata":{"m":1}}],"history":[` + newMessage + `]}`,
		`{"kind":"task","id":"t","contextId":"c","status":{"state":"canceled","timestamp":"2026-01-01T00:00:00.000Z","message":` + rpcMessage + `},"artifacts":[{"artifactId":"a","parts":[{"kind":"text","text":"x"}],"metadata":{"m":1}}],"history":[` + rpcMessage + `]}`
	const restTask = `{"id":"t","contextId":"c","status":{"state":"TASK_STATE_CANCELLED","timestamp":"2026-01-01T00:00:00.000Z","message":` + restMessage + `},"artifacts":[{"artifactId":"a","parts":[{"text":"x"}],"metadata":{"m":1}}],"history":[` + restMessage + `]}`
	for name, test := range map[string]struct{ method, modern, rpc, rest string }{
		"task":    {protocol.GetTask, task, rpcTask, restTask},
		"sent":    {protocol.SendMessage, `{"task":` + task + `}`, rpcTask, `{"task":` + restTask + `}`},
		"message": {protocol.SendMessage, `{"message":` + newMessage + `}`, rpcMessage, `{"message":` + restMessage + `}`},
		"status": {protocol.SendStreamingMessage, `{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_INPUT_REQUIRED"}}}`,
			`{"kind":"status-update","taskId":"t","contextId":"c","final":true,"status":{"state":"input-required"}}`,
			`{"statusUpdate":{"taskId":"t","contextId":"c","final":true,"status":{"state":"TASK_STATE_INPUT_REQUIRED"}}}`},
		"working": {protocol.SubscribeToTask, `{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"},"metadata":{"x":1}}}`,
			`{"kind":"status-update","taskId":"t","contextId":"c","final":false,"status":{"state":"working"},"metadata":{"x":1}}`,
			`{"statusUpdate":{"taskId":"t","contextId":"c","final":false,"status":{"state":"TASK_STATE_WORKING"},"metadata":{"x":1}}}`},
		"artifact": {protocol.SendStreamingMessage, `{"artifactUpdate":{"taskId":"t","contextId":"c","append":true,"lastChunk":true,"artifact":{"artifactId":"a","parts":[{"text":"x"}]}}}`,
			`{"kind":"artifact-update","taskId":"t","contextId":"c","append":true,"lastChunk":true,"artifact":{"artifactId":"a","parts":[{"kind":"text","text":"x"}]}}`,
			`{"artifactUpdate":{"taskId":"t","contextId":"c","append":true,"lastChunk":true,"artifact":{"artifactId":"a","parts":[{"text":"x"}]}}}`},
		"webhook": {protocol.CreatePush, `{"taskId":"t","id":"p","url":"https://h"}`, `{"taskId":"t","pushNotificationConfig":{"id":"p","url":"https://h"}}`,
			`{"name":"tasks/t/pushNotificationConfigs/p","pushNotificationConfig":{"id":"p","url":"https://h"}}`},
		"webhooks": {protocol.ListPush, `{"configs":[{"taskId":"t","id":"p","url":"https://h"}]}`, `[{"taskId":"t","pushNotificationConfig":{"id":"p","url":"https://h"}}]`,
			`{"configs":[{"name":"tasks/t/pushNotificationConfigs/p","pushNotificationConfig":{"id":"p","url":"https://h"}}]}`},
		"deleted": {protocol.DeletePush, `{}`, `null`, `{}`},
	} {
		checkEqualJSON(t, name+" for JSON-RPC", RPC.Result(test.method, json.RawMessage(test.modern)), test.rpc)
		checkEqualJSON(t, name+" for REST", REST.Result(test.method, json.RawMessage(test.modern)), test.rest)
		back, err := NewResult(test.method, json.RawMessage(test.rpc))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		checkEqualJSON(t, name+" of JSON-RPC", back, test.modern)
		if back, err = NewRESTResult(test.method, json.RawMessage(test.rest)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		checkEqualJSON(t, name+" of REST", back, test.modern)
	}
	for spelt, modern := range map[string]string{
		`{"msg":` + restMessage + `}`: `{"message":` + newMessage + `}`,
		`{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING","update":` + restMessage + `}}}`: `{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING","message":` + newMessage + `}}}`,
	} {
		back, err := NewRESTResult(protocol.SendStreamingMessage, json.RawMessage(spelt))
		if err != nil {
			t.Error(err)
		}
		checkEqualJSON(t, "by the names of the proto", back, modern)
	}
	back, err := NewRESTResult(protocol.ListTasks, json.RawMessage(`{"tasks":[`+restTask+`],"nextPageToken":"x"}`))
	if err != nil {
		t.Error(err)
	}
	checkEqualJSON(t, "list of REST", back, `{"tasks":[`+task+`],"nextPageToken":"x"}`)
	route, e := RESTRequest(&protocol.Operation{Method: protocol.ListTasks, Params: json.RawMessage(`{"tenant":"a","status":"TASK_STATE_CANCELED"}`)})
	if e != nil || route.Path != "/v1/tasks" || route.Query.Encode() != "status=TASK_STATE_CANCELLED" {
		t.Errorf("list to REST is %+v, %v", route, e)
	}
	if route, e = RESTRequest(&protocol.Operation{Method: protocol.ExtendedCard}); e != nil || route.Path != "/v1/card" {
		t.Errorf("the extended card of REST is %+v, %v", route, e)
	}
	for _, bad := range []string{`[]`, `{"task":7}`, `{`, `{"x":{}}`} {
		if _, err := NewRESTResult(protocol.SendMessage, json.RawMessage(bad)); err == nil {
			t.Errorf("%s of REST was accepted", bad)
		}
	}
	checkEqualJSON(t, "list for REST", REST.Result(protocol.ListTasks, json.RawMessage(`{"tasks":[`+task+`],"nextPageToken":"","pageSize":5,"totalSize":1}`)),
		`{"tasks":[`+restTask+`],"nextPageToken":"","pageSize":5,"totalSize":1}`)
	if _, err := NewResult(protocol.SendMessage, json.RawMessage(`{"kind":"king"}`)); err == nil {
		t.Error("an empty result was accepted")
	}
}

// TestStates converts the states of 1.0 to both formats of 0.3.
func TestStates(t *testing.T) {
	t.Parallel()
	for state, words := range map[protocol.State][2]string{
		protocol.Submitted: {"submitted", "TASK_STATE_SUBMITTED"}, protocol.Working: {"working", "TASK_STATE_WORKING"},
		protocol.InputRequired: {"input-required", "TASK_STATE_INPUT_REQUIRED"}, protocol.AuthRequired: {"auth-required", "TASK_STATE_AUTH_REQUIRED"},
		protocol.Completed: {"completed", "TASK_STATE_COMPLETED"}, protocol.Canceled: {"canceled", "TASK_STATE_CANCELLED"}, protocol.Failed: {"failed", "TASK_STATE_FAILED"},
		protocol.Rejected: {"rejected", "TASK_STATE_REJECTED"}, protocol.Unspecified: {"unknown", "TASK_STATE_UNSPECIFIED"},
	} {
		for i, d := range []Dialect{RPC, REST} {
			if got := d.oldState(string(state)); got != words[i] || d.newState(got) != string(state) {
				t.Errorf("%s is %s, and that is %s", state, got, d.newState(got))
			}
		}
	}
	for code, want := range map[int]int{protocol.TaskNotFound: protocol.TaskNotFound, protocol.VersionUnsupported: protocol.InvalidRequest, protocol.ExtensionRequired: protocol.InvalidRequest} {
		if got := Error(protocol.Errorf(code, "x")); got.Code != want {
			t.Errorf("%d is %d", code, got.Code)
		}
	}
}

func FuzzTranslate(f *testing.F) {
	f.Add("message/send", []byte(`{"message":`+rpcMessage+`}`))
	f.Add("tasks/pushNotificationConfig/set", []byte(`{"taskId":"t","pushNotificationConfig":{"authentication":{"schemes":[1]}}}`))
	f.Add("message/send", []byte(`{}0`))
	f.Fuzz(func(t *testing.T, method string, raw []byte) {
		if op, e := Operation(method, raw); e == nil {
			if _, _, e := Request(op); e != nil && op.Method != protocol.ListTasks {
				t.Errorf("%s %s cannot be encoded again: %v", op.Method, op.Params, e)
			}
		}
		for _, m := range protocol.Methods {
			for _, d := range []Dialect{RPC, REST} {
				if json.Valid(raw) && !json.Valid(d.Result(m, raw)) {
					t.Errorf("%s of %s is %s", m, raw, d.Result(m, raw))
				}
			}
			_, _ = NewResult(m, raw)
			if back, err := NewRESTResult(m, raw); err == nil && !json.Valid(back) {
				t.Errorf("%s of REST, %s, is %s", m, raw, back)
			}
			if route, e := RESTRequest(&protocol.Operation{Method: m, Params: raw}); e == nil && !strings.HasPrefix(route.Path, "/v1/") {
				t.Errorf("%s %s is at %s", m, raw, route.Path)
			}
			_, _ = OfREST(m, raw)
		}
	})
}

// A webhook of 0.3 needs no id: it then has the id of its task, and is read without one.
func TestWebhooksWithoutID(t *testing.T) {
	t.Parallel()
	for method, c := range map[string]struct{ params, want string }{
		"tasks/pushNotificationConfig/set": {`{"taskId":"t","pushNotificationConfig":{"url":"https://h"}}`, `{"id":"t","taskId":"t","url":"https://h"}`},
		"tasks/pushNotificationConfig/get": {`{"id":"t"}`, `{"id":null,"taskId":"t"}`},
	} {
		op, e := Operation(method, json.RawMessage(c.params))
		if e != nil || string(op.Params) != c.want {
			t.Errorf("%s: got %s, %v", method, op.Params, e)
		}
	}
}
