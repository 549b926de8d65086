package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

func TestRequests(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		`{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"x"}}`: 0,
		`{"jsonrpc":"2.0","id":"a","method":"GetTask"}`:                   0,
		`{"jsonrpc":"2.0","id":-1.5,"method":"GetTask","params":null}`:    0,
		`{`:                                     ParseError,
		`[]`:                                    InvalidRequest,
		`[{}]`:                                  InvalidRequest,
		`"x"`:                                   InvalidRequest,
		`{"id":1}`:                              InvalidRequest,
		`{"jsonrpc":"1.0","id":1,"method":"x"}`: InvalidRequest,
		`{"jsonrpc":"2.0","method":"x"}`:        InvalidRequest,
		`{"jsonrpc":"2.0","id":null,"method":"x"}`:            InvalidRequest,
		`{"jsonrpc":"2.0","id":{},"method":"x"}`:              InvalidRequest,
		`{"jsonrpc":"2.0","id":1,"method":7}`:                 InvalidRequest,
		`{"jsonrpc":"2.0","id":1,"id":2,"method":"x"}`:        InvalidRequest,
		`{"jsonrpc":"2.0","id":1,"method":"\u0078"} `:         0,
		`{"jsonrpc":"2.0","id":1,"method":"x","params":[1]}`:  InvalidParams,
		`{"jsonrpc":"2.0","id":1,"method":"x","params":"id"}`: InvalidParams,
	} {
		r, e := ParseRequest([]byte(text))
		if got := codeIn(e); got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		} else if e == nil {
			if again, e := ParseRequest(r.Bytes()); e != nil || string(again.ID) != string(r.ID) || string(again.Params) != string(r.Params) {
				t.Errorf("%s becomes %s", text, r.Bytes())
			}
		}
	}
}

func codeIn(e *Error) int {
	if e == nil {
		return 0
	}
	return e.Code
}

func TestResponses(t *testing.T) {
	t.Parallel()
	id := json.RawMessage(`"q"`)
	for text, want := range map[string]string{
		`{"jsonrpc":"2.0","id":"q","result": { "b" : 1.0 } }`:                 `{ "b" : 1.0 }`,
		`{"jsonrpc":"2.0","id":"q","result":null}`:                            `null`,
		`{"jsonrpc":"2.0","id":"other","result":{}}`:                          "-32006",
		`{"jsonrpc":"2.0","id":"q"}`:                                          "-32006",
		`{"jsonrpc":"2.0","id":"q","result":1,"error":null}`:                  "1",
		`{"jsonrpc":"2.0","id":"q","error":7}`:                                "-32006",
		`{"jsonrpc":"2.0","id":"q","result":1,"result":2}`:                    "-32006",
		`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}`:  "-32700",
		`{"jsonrpc":"2.0","id":"q","error":{"code":-32001,"message":"none"}}`: "-32001",
		`<html>`: "-32006",
	} {
		result, err := ParseResponse([]byte(text), id)
		got := string(result)
		if e := (*Error)(nil); errors.As(err, &e) {
			got = fmt.Sprint(e.Code)
		}
		if got != want {
			t.Errorf("%s gives %s, want %s", text, got, want)
		}
	}
	e := Errorf(TaskNotFound, "none").With(map[string]string{"taskId": "x"})
	if _, err := ParseResponse(Response(id, nil, e), id); !errors.Is(err, e) || err.(*Error).Message != "none" {
		t.Errorf("an error becomes %v", err)
	}
	if got, err := ParseOutcome(Outcome(nil, e)); err == nil || !errors.Is(err, e) {
		t.Errorf("an error becomes the outcome %s, %v", got, err)
	}
	if got, err := ParseOutcome(Outcome(json.RawMessage(`{"a":  1.10}`), nil)); err != nil || string(got) != `{"a":  1.10}` {
		t.Errorf("a result becomes the outcome %s, %v", got, err)
	}
}

// TestRESTPaths has the operation of each REST path.
func TestRESTPaths(t *testing.T) {
	t.Parallel()
	for at, want := range map[string]string{
		"POST /message:send":                           "SendMessage [] task= push=",
		"POST /x/message:stream":                       "SendStreamingMessage [x] task= push=",
		"POST /x/acme/message:send":                    "SendMessage [x acme] task= push=",
		"GET /x/tasks":                                 "ListTasks [x] task= push=",
		"GET /x/tasks/1":                               "GetTask [x] task=1 push=",
		"GET /urn%3Ax%2Fy/tasks/a%2Fb%3Ac":             "GetTask [urn:x/y] task=a/b:c push=",
		"GET /x/tasks/a:b":                             "GetTask [x] task=a:b push=",
		"POST /x/tasks/a:b:cancel":                     "CancelTask [x] task=a:b push=",
		"POST /x/tasks/a%25:cancel":                    "CancelTask [x] task=a% push=",
		"POST /x/tasks/1:subscribe":                    "SubscribeToTask [x] task=1 push=",
		"GET /x/tasks/1:subscribe":                     "SubscribeToTask [x] task=1 push=",
		"GET /x/tasks/1:cancel":                        " [x] task=1 push=",
		"POST /x/tasks/1/pushNotificationConfigs":      "CreateTaskPushNotificationConfig [x] task=1 push=",
		"GET /x/tasks/1/pushNotificationConfigs":       "ListTaskPushNotificationConfigs [x] task=1 push=",
		"GET /x/tasks/1/pushNotificationConfigs/p%2Fq": "GetTaskPushNotificationConfig [x] task=1 push=p/q",
		"DELETE /x/tasks/1/pushNotificationConfigs/p":  "DeleteTaskPushNotificationConfig [x] task=1 push=p",
		"PUT /x/tasks/1/pushNotificationConfigs/p":     " [x] task=1 push=p",
		"GET /x/extendedAgentCard":                     "GetExtendedAgentCard [x] task= push=",
		"GET /x/v1/card":                               "GetExtendedAgentCard [x] task= push= 0.3",
		"POST /x/v1/message:send":                      "SendMessage [x] task= push= 0.3",
		"POST /x/v1/tasks/1:cancel":                    "CancelTask [x] task=1 push= 0.3",
		"POST /x":                                      "none",
		"POST /":                                       "none",
		"GET /x/y/z":                                   "none",
		"GET /x/pushNotificationConfigs":               "none",
	} {
		verb, path, _ := strings.Cut(at, " ")
		p, ok := FindREST(verb, path)
		got := fmt.Sprintf("%s %v task=%s push=%s", p.Method, p.Prefix, p.Task, p.Push)
		if p.V03 {
			got += " 0.3"
		}
		if !ok {
			got = "none"
		}
		if got != want {
			t.Errorf("%s is %q, want %q", at, got, want)
		}
	}
}

// An operation that is encoded for REST is decoded to the same operation.
func TestRESTRoundTrip(t *testing.T) {
	t.Parallel()
	for method, params := range map[string]string{
		SendMessage:          `{"message":{"messageId":"m"},"metadata":{"a_b":1.10}}`,
		SendStreamingMessage: `{"message":{"messageId":"m"}}`,
		GetTask:              `{"historyLength":2,"id":"a/b:c%20"}`,
		ListTasks:            `{"contextId":"c d&e","includeArtifacts":true,"pageSize":5,"status":"TASK_STATE_WORKING"}`,
		CancelTask:           `{"id":"x:y","metadata":{"why":"x"}}`,
		SubscribeToTask:      `{"id":"x:subscribe"}`,
		CreatePush:           `{"id":"p","taskId":"t","url":"https://x"}`,
		GetPush:              `{"id":"p/q","taskId":"t"}`,
		ListPush:             `{"taskId":"t"}`,
		DeletePush:           `{"id":"p","taskId":"t"}`,
		ExtendedCard:         `{}`,
	} {
		for _, tenant := range []string{"", "ac me/x"} {
			given := json.RawMessage(params)
			if tenant != "" {
				given = SetTenant(given, tenant)
			}
			r, e := ToREST(&Operation{Method: method, Params: given})
			if e != nil {
				t.Fatalf("%s: %v", method, e)
			}
			p, ok := FindREST(r.Verb, r.Path)
			back, e := p.Params(r.Query, r.Body)
			if !ok || e != nil || p.Method != method || string(back) != params {
				t.Errorf("%s %s becomes %s %s, %v: %s %s", method, given, r.Verb, r.Path, e, p.Method, back)
			}
			if tenant != "" && !slices.Equal(p.Prefix, []string{tenant}) {
				t.Errorf("the tenant of %s is %v", r.Path, p.Prefix)
			}
		}
	}
	if _, e := ToREST(&Operation{Method: "tasks/get"}); codeIn(e) != UnknownMethod {
		t.Errorf("a method of 0.3 gives %v", e)
	}
	for query, want := range map[string]string{"history_length=3": `{"historyLength":3,"id":"t"}`, "historyLength=x": "-32602", "includeArtifacts=1": "-32602", "other=1": `{"id":"t"}`,
		"status=TASK_STATE_WORKING": `{"id":"t","status":"TASK_STATE_WORKING"}`, "status=2": `{"id":"t","status":2}`, "page_size=2&pageToken=%26": `{"id":"t","pageSize":2,"pageToken":"&"}`} {
		q, _ := url.ParseQuery(query)
		got, e := RESTMatch{Method: GetTask, Task: "t"}.Params(q, nil)
		if e != nil {
			got = json.RawMessage(fmt.Sprint(e.Code))
		}
		if string(got) != want {
			t.Errorf("%s is %s, want %s", query, got, want)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"message":{"message_id":"m","task_id":"t","parts":[{"media_type":"a/b","data":{"a_b":1},"metadata":{"c_d":2}}]},"metadata":{"x_y":1}}`: `{"message":{"messageId":"m","parts":[{"data":{"a_b":1},"mediaType":"a/b","metadata":{"c_d":2}}],"taskId":"t"},"metadata":{"x_y":1}}`,
		`{"page_size":5,"pageSize":6}`:          `{"pageSize":6}`,
		`{"id": "plain" }`:                      `{"id": "plain" }`,
		`{"role": "ROLE_USER", "text":"a_b:c"}`: `{"role": "ROLE_USER", "text":"a_b:c"}`,
		`{"ab_c_d" : 1}`:                        `{"abCD":1}`,
		`_`:                                     `_`,
	} {
		if got := string(Normal(json.RawMessage(in))); got != want {
			t.Errorf("%s is %s, want %s", in, got, want)
		}
	}
	for _, name := range []string{"taskId", "id", "statusTimestampAfter"} {
		if camel(snake(name)) != name {
			t.Errorf("%s is %s", name, snake(name))
		}
	}
}

func TestFields(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, path, want string }{
		{` {"message":{"taskId":"a"}}`, "message taskId", "a"},
		{`{"Message":{"task_id":"a"}}`, "message taskId", "a"},
		{`{"message":{"tas\u212aId":"\u0061"}}`, "message taskId", "a"}, // Kelvin sign: equals k when case is ignored
		{`{"message":null}`, "message taskId", ""},
		{`{"message":[]}`, "message taskId", ""},
		{`[]`, "id", ""},
		{``, "id", ""},
		{`{"id":null}`, "id", ""},
		{`{"id":5}`, "id", "refused"},
		{`{"id":"a","id":"b"}`, "id", "refused"},
		{`{"id":"a","ID":"b"}`, "id", "refused"},
		{`{"taskId":"a","task_id":"b"}`, "taskId", "refused"},
		{`{"message":{},"Message":{"taskId":"a"}}`, "message taskId", "refused"},
	} {
		got, e := FieldText(json.RawMessage(c.text), strings.Fields(c.path)...)
		if e != nil {
			got = "refused"
		}
		if got != c.want {
			t.Errorf("%s of %s is %q, %v, want %q", c.path, c.text, got, e, c.want)
		}
	}
	odd := &Operation{Method: "\"\n", Service: map[string]string{"a": "ü", "b": `\`}}
	if got, err := ParseOperation(odd.Bytes()); err != nil || got.Method != odd.Method || !maps.Equal(got.Service, odd.Service) {
		t.Errorf("%s is read as %+v, %v", odd.Bytes(), got, err)
	}
	for event, want := range map[string]string{
		`{"task":{"id":"t","status":{"state":3}}}`:                                              "t TASK_STATE_COMPLETED",
		`{"statusUpdate":{"taskId":"t","status":{"state":"TASK_STATE_WORKING"}},"metadata":{}}`: "t TASK_STATE_WORKING",
		`{"artifactUpdate":{"taskId":"t","artifact":{}}}`:                                       "t ",
		`{"message":{"taskId":"t"}}`:                                                            " ",
		`7`:                                                                                     " ",
	} {
		if id, s := TaskOf(json.RawMessage(event)); id+" "+string(s) != want {
			t.Errorf("%s is of %q, %q, want %s", event, id, s, want)
		}
	}
	for event, want := range map[string]string{
		`{"task":{"id":"t","contextId":"c"}}`: "c", `{"message":{"context_id":"c"}}`: "c", `{"statusUpdate":{"contextId":"c"}}`: "c",
		`{"artifactUpdate":{"contextId":"c","artifact":{}}}`: "c", `{"task":{"contextId":7}}`: "", `{"task":{}}`: "", `{"contextId":"c"}`: "", `7`: "",
	} {
		if id := ContextOf(json.RawMessage(event)); id != want {
			t.Errorf("%s is of the context %q, want %q", event, id, want)
		}
	}
}

func TestEnums(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]State{`3`: Completed, `"TASK_STATE_AUTH_REQUIRED"`: AuthRequired, `"x"`: "x", `99`: "", `-1`: "", `[]`: ""} {
		var s State
		if err := json.Unmarshal([]byte(text), &s); s != want || err != nil && want != "" {
			t.Errorf("%s is %q, %v", text, s, err)
		}
	}
	var r Role
	if err := json.Unmarshal([]byte(`1`), &r); err != nil || r != User {
		t.Errorf("role 1 is %s, %v", r, err)
	}
	urlSafe := "-_-_"
	if b, err := (Part{Raw: &urlSafe}).Bytes(); err != nil || string(b) != "\xfb\xff\xbf" {
		t.Errorf("base64url is %x, %v", b, err)
	}
}

// TestErrors checks each row of the table of errors: it survives REST, and the statuses of 1.0.0 are accepted.
func TestErrors(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		e := Errorf(k.code, "why")
		if k.code == InvalidParams {
			e = e.At("id")
		}
		if got := FromREST(e.Status(), e.REST()); got.Code != k.code && k.code != InvalidParams || got.Message != "why" || string(got.Data) != string(e.Data) {
			t.Errorf("%d becomes %+v", k.code, got)
		}
		said := e.ToInteract()
		if said.Code != k.interactCode || said.Title != "why" || !said.Remote {
			t.Errorf("%d is %+v", k.code, said)
		}
	}
	for body, want := range map[string]int{
		`409 {}`: TaskNotCancelable, `415 {}`: ContentTypeUnsupported, `502 x`: InvalidAgentResponse, `401 `: Unauthenticated, `403 `: Forbidden,
		`404 `: TaskNotFound, `501 `: UnknownMethod, `400 `: InvalidParams, `500 `: InternalError, `503 `: InternalError,
		`404 {"type":"https://a2a-protocol.org/errors/task-not-found","title":"Task not found","detail":"x"}`:          TaskNotFound,
		`400 {"type":"https://a2a-protocol.org/errors/version-not-supported","title":"V","supportedVersions":["1.0"]}`: VersionUnsupported,
		`409 {"error":{"code":409,"status":"X","message":"m","details":[{"reason":"UNSUPPORTED_OPERATION"}]}}`:         UnsupportedOperation,
	} {
		status, text, _ := strings.Cut(body, " ")
		n := map[string]int{"409": 409, "415": 415, "502": 502, "401": 401, "403": 403, "404": 404, "501": 501, "400": 400, "500": 500, "503": 503}[status]
		if got := FromREST(n, []byte(text)); got.Code != want || got.Message == "" {
			t.Errorf("%s is %+v, want %d", body, got, want)
		}
	}
	for code, want := range map[interact.Code]int{interact.Invalid: InvalidParams, interact.NoTask: TaskNotFound, interact.Unreachable: InternalError,
		interact.Forbidden: Forbidden, interact.UnsupportedType: ContentTypeUnsupported} {
		e := AsError(interact.Errorf(code, "do this", "what"))
		if e.Code != want || !strings.Contains(string(e.Data), code.String()) || !strings.Contains(string(e.Data), "do this") {
			t.Errorf("%v is %+v", code, e)
		}
	}
	if e := AsError(fmt.Errorf("x: %w", Errorf(TaskNotFound, "none"))); e.Code != TaskNotFound || e.Status() != http.StatusNotFound {
		t.Errorf("a wrapped error is %v", e)
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	const stream = ": hello\nid: 7\nretry: 10\ndata: {\"a\":\ndata: 1}\n\nevent: error\r\ndata:{}\r\n\r\n\n\ndata: last"
	var got []string
	for e, err := range Events(strings.NewReader(stream)) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Name+" "+string(e.Data))
	}
	if want := []string{" {\"a\":\n1}", "error {}", " last"}; !slices.Equal(got, want) {
		t.Errorf("the events are %q", got)
	}
	for _, err := range Events(strings.NewReader("data: " + strings.Repeat("x", MaxMessage+10))) {
		if e := (*Error)(nil); !errors.As(err, &e) || e.Code != InvalidAgentResponse {
			t.Errorf("an event over the limit gives %v", err)
		}
	}
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":"x","method":"SendMessage","params":{"message":{"message_id":"m","role":1,"parts":[{"raw":"_-"}]}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, e := ParseRequest(body)
		if e != nil {
			if !json.Valid(Response(r.ID, nil, e)) || !json.Valid(e.REST()) {
				t.Errorf("%q is answered with %s", body, Response(r.ID, nil, e))
			}
			return
		}
		_, _ = FieldText(r.Params, "message", "taskId")
		if !json.Valid(r.Bytes()) || !json.Valid((&Operation{Method: r.Method, Params: r.Params}).Bytes()) {
			t.Errorf("%q becomes %s", body, r.Bytes())
		}
		var s Send
		if Read(r.Params, &s) == nil && CheckMessage(s.Message) == nil {
			Encode(s)
		}
		if route, e := ToREST(&Operation{Method: r.Method, Params: r.Params}); e == nil && route.Body != nil && !json.Valid(route.Body) {
			t.Errorf("%q becomes the body %s", body, route.Body)
		}
	})
}

func FuzzEvents(f *testing.F) {
	f.Add("data: x\n\nevent: error\ndata: {}\n\n", "/x/tasks/a:b:cancel")
	f.Fuzz(func(t *testing.T, stream, path string) {
		for e, err := range Events(strings.NewReader(stream)) {
			if err == nil && json.Valid(e.Data) {
				TaskOf(e.Data)
			}
		}
		if p, ok := FindREST(http.MethodPost, path); ok {
			_, _ = p.Params(nil, []byte(stream))
		}
	})
}
