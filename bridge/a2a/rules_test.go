package a2a

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/bridge/bridgetest"
)

type row = map[string]any

// otherCaller has the credentials of another principal.
var otherCaller = map[string]string{"Authorization": "Bearer mallory"}

// topologies serve the Things of a site: at their node, or at another node that has imported them and reaches them through the tunnel.
var topologies = map[string]func(t *testing.T, s *site) *testServer{
	"direct": func(t *testing.T, s *site) *testServer { return serveAt(t, s) },
	"tunnel": func(t *testing.T, s *site) *testServer {
		far := bridgetest.NewMesh(t)
		imports(t, far, s.url+"/echo", "echo", Options{})
		imports(t, far, s.url+"/desk", "desk", Options{})
		return serveAt(t, far)
	},
}

// A testServer serves A2A clients. It counts the streams that began with a task.
type testServer struct {
	root  string
	begun atomic.Int64
}

func serveAt(t *testing.T, m bridge.Mesh) *testServer {
	t.Helper()
	h, p := New(Options{}).Export(m), &testServer{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(&streamCounter{w, p}, r) }))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		h.Close()
	})
	p.root = server.URL + "/a2a"
	return p
}

type streamCounter struct {
	http.ResponseWriter
	server *testServer
}

func (w *streamCounter) Write(b []byte) (int, error) {
	n, err := w.ResponseWriter.Write(b)
	if bytes.HasPrefix(b, []byte("data: ")) && bytes.Contains(b, []byte(`"task"`)) {
		w.server.begun.Add(1)
	}
	return n, err
}

func (w *streamCounter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// The rules of A2A 1.0 §3 with an error, on both bindings and in both topologies.
func TestInvalidRequestsAreRejected(t *testing.T) {
	t.Parallel()
	for topology, at := range topologies {
		t.Run(topology, func(t *testing.T) {
			t.Parallel()
			refusals(t, at(t, newSite(t, Options{})).root)
		})
	}
}

// impossibleInV03 reports whether clients of 0.3 cannot cause an error.
func impossibleInV03(name string) bool {
	return strings.HasPrefix(name, "version") || name == "send: an unknown role" || name == "send: a message of a number" || name == "send: a part of two" || name == "send: a part of nothing"
}

func refusals(t *testing.T, root string) {
	all := maps.Clone(bindings)
	maps.Copy(all, oldBindings)
	done := overRPC(t, root+"/echo", protocol.SendMessage, messageParams(text("x")), nil).task(t)
	waits := overRPC(t, root+"/desk", protocol.SendMessage, messageParams(text("hello")), nil).task(t)
	pushed := configured(messageParams(text("x")), "taskPushNotificationConfig", row{"url": "ftp://x"})
	for name, test := range map[string]struct {
		at, method string
		params     row
		header     map[string]string
		code       int
		reason     string
	}{
		"get: unknown task":         {"echo", protocol.GetTask, row{"id": "nobody's"}, nil, protocol.TaskNotFound, "TASK_NOT_FOUND"},
		"get: another thing's task": {"desk", protocol.GetTask, row{"id": done.ID}, nil, protocol.TaskNotFound, "TASK_NOT_FOUND"},
		"get: another's task":       {"echo", protocol.GetTask, row{"id": done.ID}, otherCaller, protocol.TaskNotFound, "TASK_NOT_FOUND"},
		"get: negative history":     {"echo", protocol.GetTask, row{"id": done.ID, "historyLength": -1}, nil, protocol.InvalidParams, ""},
		"send: no message":          {"echo", protocol.SendMessage, row{}, nil, protocol.InvalidParams, ""},
		"send: no messageId":        {"echo", protocol.SendMessage, with(messageParams(text("x")), "messageId", ""), nil, protocol.InvalidParams, ""},
		"send: no parts":            {"echo", protocol.SendMessage, messageParams(), nil, protocol.InvalidParams, ""},
		"send: a part of nothing":   {"echo", protocol.SendMessage, messageParams(row{}), nil, protocol.InvalidParams, ""},
		"send: a part of two":       {"echo", protocol.SendMessage, messageParams(row{"text": "x", "url": "https://x"}), nil, protocol.InvalidParams, ""},
		"send: an unknown role":     {"echo", protocol.SendMessage, with(messageParams(text("x")), "role", "ROLE_KING"), nil, protocol.InvalidParams, ""},
		"send: a negative history":  {"echo", protocol.SendMessage, configured(messageParams(text("x")), "historyLength", -1), nil, protocol.InvalidParams, ""},
		"send: an unknown task":     {"echo", protocol.SendMessage, with(messageParams(text("x")), "taskId", "none"), nil, protocol.TaskNotFound, "TASK_NOT_FOUND"},
		"send: a task that ended":   {"echo", protocol.SendMessage, with(messageParams(text("x")), "taskId", done.ID), nil, protocol.UnsupportedOperation, "UNSUPPORTED_OPERATION"},
		"send: another context":     {"desk", protocol.SendMessage, with(with(messageParams(text("x")), "taskId", waits.ID), "contextId", "other"), nil, protocol.InvalidParams, ""},
		"send: an unknown skill":    {"desk", protocol.SendMessage, messageParams(skill("fly", 1)), nil, protocol.InvalidParams, ""},
		"send: a picture": {"echo", protocol.SendMessage, messageParams(row{"raw": "AAAA", "mediaType": "image/png"}), nil, protocol.ContentTypeUnsupported,
			"CONTENT_TYPE_NOT_SUPPORTED"},
		"send: accepts images only": {"echo", protocol.SendMessage, configured(messageParams(text("x")), "acceptedOutputModes", []string{"image/*"}), nil,
			protocol.ContentTypeUnsupported, "CONTENT_TYPE_NOT_SUPPORTED"},
		"send: no parts at all":        {"echo", protocol.SendMessage, with(messageParams(text("x")), "parts", nil), nil, protocol.InvalidParams, ""},
		"send: a part of bad base64":   {"echo", protocol.SendMessage, messageParams(row{"raw": "%%%"}), nil, protocol.InvalidParams, ""},
		"send: a message of a number":  {"echo", protocol.SendMessage, row{"message": 7}, nil, protocol.InvalidParams, ""},
		"send: a task of another":      {"desk", protocol.SendMessage, with(messageParams(text("x")), "taskId", waits.ID), otherCaller, protocol.TaskNotFound, "TASK_NOT_FOUND"},
		"send: a webhook of a file":    {"echo", protocol.SendMessage, pushed, nil, protocol.InvalidParams, ""},
		"stream: a task that ended":    {"echo", protocol.SendStreamingMessage, with(messageParams(text("x")), "taskId", done.ID), nil, protocol.UnsupportedOperation, "UNSUPPORTED_OPERATION"},
		"stream: a picture":            {"echo", protocol.SendStreamingMessage, messageParams(row{"raw": "AAAA", "mediaType": "image/png"}), nil, protocol.ContentTypeUnsupported, "CONTENT_TYPE_NOT_SUPPORTED"},
		"stream: no parts":             {"echo", protocol.SendStreamingMessage, messageParams(), nil, protocol.InvalidParams, ""},
		"subscribe: another's task":    {"desk", protocol.SubscribeToTask, row{"id": waits.ID}, otherCaller, protocol.TaskNotFound, "TASK_NOT_FOUND"},
		"cancel: another's task":       {"desk", protocol.CancelTask, row{"id": waits.ID}, otherCaller, protocol.TaskNotFound, "TASK_NOT_FOUND"},
		"push: of another's task":      {"desk", protocol.CreatePush, row{"taskId": waits.ID, "url": "https://x.example/"}, otherCaller, protocol.TaskNotFound, "TASK_NOT_FOUND"},
		"push: those of another":       {"desk", protocol.ListPush, row{"taskId": waits.ID}, otherCaller, protocol.TaskNotFound, "TASK_NOT_FOUND"},
		"push: an address with a name": {"desk", protocol.CreatePush, row{"taskId": waits.ID, "url": "https://u:p@x.example/"}, nil, protocol.InvalidParams, ""},
		"push: a token of two lines":   {"desk", protocol.CreatePush, row{"taskId": waits.ID, "url": "https://x.example/", "token": "a\r\nb"}, nil, protocol.InvalidParams, ""},
		"push: delete of none's task":  {"desk", protocol.DeletePush, row{"taskId": "none", "id": "p"}, nil, protocol.TaskNotFound, "TASK_NOT_FOUND"},
		"list: a negative page":        {"echo", protocol.ListTasks, row{"pageSize": -1}, nil, protocol.InvalidParams, ""},
		"version: none there is":       {"echo", protocol.ListTasks, row{}, map[string]string{"A2A-Version": "1"}, protocol.VersionUnsupported, "VERSION_NOT_SUPPORTED"},
		"stream: an unknown task":      {"echo", protocol.SendStreamingMessage, with(messageParams(text("x")), "taskId", "none"), nil, protocol.TaskNotFound, "TASK_NOT_FOUND"},
		"subscribe: unknown task":      {"echo", protocol.SubscribeToTask, row{"id": "none"}, nil, protocol.TaskNotFound, "TASK_NOT_FOUND"},
		"subscribe: a task that ended": {"echo", protocol.SubscribeToTask, row{"id": done.ID}, nil, protocol.UnsupportedOperation, "UNSUPPORTED_OPERATION"},
		"cancel: unknown task":         {"echo", protocol.CancelTask, row{"id": "none"}, nil, protocol.TaskNotFound, "TASK_NOT_FOUND"},
		"cancel: a task that ended":    {"echo", protocol.CancelTask, row{"id": done.ID}, nil, protocol.TaskNotCancelable, "TASK_NOT_CANCELABLE"},
		"list: a page of none":         {"echo", protocol.ListTasks, row{"pageSize": 0}, nil, protocol.InvalidParams, ""},
		"list: a page of 101":          {"echo", protocol.ListTasks, row{"pageSize": 101}, nil, protocol.InvalidParams, ""},
		"list: an unknown status":      {"echo", protocol.ListTasks, row{"status": "TASK_STATE_TIRED"}, nil, protocol.InvalidParams, ""},
		"list: a negative history":     {"echo", protocol.ListTasks, row{"historyLength": -1}, nil, protocol.InvalidParams, ""},
		"list: no time":                {"echo", protocol.ListTasks, row{"statusTimestampAfter": "yesterday"}, nil, protocol.InvalidParams, ""},
		"list: a forged page":          {"echo", protocol.ListTasks, row{"pageToken": "!"}, nil, protocol.InvalidParams, ""},
		"extended card: no token":      {"echo", protocol.ExtendedCard, row{}, nil, protocol.Unauthenticated, "UNAUTHENTICATED"},
		"extended card: somebody":      {"echo", protocol.ExtendedCard, row{}, otherCaller, protocol.Unauthenticated, "UNAUTHENTICATED"},
		"extended card: there is none": {"", protocol.ExtendedCard, row{}, nil, protocol.UnsupportedOperation, "UNSUPPORTED_OPERATION"},
		"push: of an unknown task":     {"echo", protocol.CreatePush, row{"taskId": "none", "url": "https://x.example/"}, nil, protocol.TaskNotFound, "TASK_NOT_FOUND"},
		"push: no address":             {"desk", protocol.CreatePush, row{"taskId": waits.ID, "url": "file:///etc/passwd"}, nil, protocol.InvalidParams, ""},
		"push: an unknown one":         {"desk", protocol.GetPush, row{"taskId": waits.ID, "id": "none"}, nil, protocol.TaskNotFound, "TASK_NOT_FOUND"},
		"version: 2.0":                 {"echo", protocol.GetTask, row{"id": done.ID}, map[string]string{"A2A-Version": "2.0"}, protocol.VersionUnsupported, "VERSION_NOT_SUPPORTED"},
		"version: no number":           {"echo", protocol.GetTask, row{"id": done.ID}, map[string]string{"A2A-Version": "latest"}, protocol.VersionUnsupported, "VERSION_NOT_SUPPORTED"},
		"content type":                 {"echo", protocol.SendMessage, messageParams(text("x")), map[string]string{"Content-Type": "text/plain"}, protocol.ContentTypeUnsupported, "CONTENT_TYPE_NOT_SUPPORTED"},
		"no such agent":                {"nobody", protocol.SendMessage, messageParams(text("x")), nil, protocol.UnknownMethod, ""},
	} {
		for over, ask := range all {
			if strings.HasSuffix(over, "0.3") && (impossibleInV03(name) || test.method == protocol.ListTasks && over == "JSON-RPC 0.3") {
				continue
			}
			t.Run(name+" over "+over, func(t *testing.T) {
				t.Parallel()
				a := ask(t, strings.TrimSuffix(root+"/"+test.at, "/"), test.method, test.params, test.header)
				rest := strings.HasPrefix(over, "REST")
				if a.err == nil || a.err.Code != test.code && !(rest && a.status == http.StatusNotFound && test.code == protocol.UnknownMethod) {
					t.Fatalf("got %s %v, want %d", a.result, a.err, test.code)
				}
				if want := (&protocol.Error{Code: test.code}).Status(); rest && a.status != want {
					t.Errorf("the status is %d, want %d", a.status, want)
				}
				if want := test.code == protocol.Unauthenticated; !rest && (a.status != http.StatusOK) != want {
					t.Errorf("the status is %d", a.status)
				}
				var details []row
				if err := json.Unmarshal(a.err.Data, &details); err != nil || len(details) == 0 || details[0]["@type"] == nil {
					t.Errorf("the data of the error are %s", a.err.Data)
				} else if test.reason != "" && (details[0]["reason"] != test.reason || details[0]["domain"] != "a2a-protocol.org") {
					t.Errorf("the details are %v, want %s", details, test.reason)
				}
			})
		}
	}
}

// overAllBindings runs a test on all bindings, also of 0.3, and in both topologies.
func overAllBindings(t *testing.T, test func(t *testing.T, s *site, p *testServer, over string, ask binding)) {
	all := maps.Clone(bindings)
	maps.Copy(all, oldBindings)
	for topology, at := range topologies {
		for over, ask := range all {
			t.Run(topology+" over "+over, func(t *testing.T) {
				t.Parallel()
				s := newSite(t, Options{})
				test(t, s, at(t, s), over, ask)
			})
		}
	}
}

// The rules with a result.
func TestConformingRequests(t *testing.T) {
	t.Parallel()
	overAllBindings(t, func(t *testing.T, s *site, p *testServer, over string, ask binding) {
		echoURL, deskURL := p.root+"/echo", p.root+"/desk"
		send := func(at string, p row) *protocol.Task {
			t.Helper()
			return ask(t, at, protocol.SendMessage, p, nil).task(t)
		}

		first := send(echoURL, with(messageParams(text("hello")), "contextId", "any thing, %2F even"))
		if first.Status.State != protocol.Completed || first.ContextID != "any thing, %2F even" || len(first.Artifacts) != 1 || *first.Artifacts[0].Parts[0].Text != "hello" {
			t.Errorf("a text gives %+v", first)
		}
		if len(first.History) != 1 || first.History[0].TaskID != first.ID || !strings.HasSuffix(first.Status.Timestamp, "Z") {
			t.Errorf("the history is %+v at %s", first.History, first.Status.Timestamp)
		}
		again := messageParams(text("once"))
		if one, two := send(echoURL, again), send(echoURL, again); one.ID != two.ID {
			t.Error("a message that is sent again makes another task")
		}
		if none := send(echoURL, configured(messageParams(text("x")), "historyLength", 0)); none.History != nil {
			t.Errorf("no history is %v", none.History)
		}
		if got := ask(t, echoURL, protocol.GetTask, row{"id": first.ID, "historyLength": 5}, nil).task(t); got.ID != first.ID || len(got.History) != 1 || got.Artifacts == nil {
			t.Errorf("get gives %+v", got)
		}
		if got := send(deskURL, messageParams(skill("sum", row{"a": 1, "b": 2}))); string(got.Artifacts[0].Parts[0].Data) != "3" || *got.Artifacts[0].Parts[1].Text != "3" {
			t.Errorf("a skill gives %+v", got.Artifacts)
		}
		if got := send(deskURL, messageParams(data(row{"a": 1, "b": 2}))); got.Status.State != protocol.Completed {
			t.Errorf("data that fit one skill give %+v", got.Status)
		}
		for state, p := range map[protocol.State]row{protocol.Failed: messageParams(skill("fail", true)), protocol.Rejected: messageParams(skill("deny", []any{}))} {
			if got := send(deskURL, p); got.Status.State != state || messageTextOf(got.Status.Message) == "" {
				t.Errorf("want %s, got %+v", state, got.Status)
			}
		}
		if got := send(deskURL, messageParams(skill("sum", row{"a": "x"}))); got.Status.State != protocol.Failed || !strings.Contains(messageTextOf(got.Status.Message), "/a") {
			t.Errorf("input that does not fit gives %+v", messageTextOf(got.Status.Message))
		}

		// Free text to an agent with several skills requires the name of one; the answer continues with the first message.
		which := send(deskURL, messageParams(text("7")))
		if which.Status.State != protocol.InputRequired || !strings.Contains(messageTextOf(which.Status.Message), "echo") {
			t.Errorf("free text gives %+v", which.Status)
		}
		chosen := send(deskURL, with(messageParams(text("echo")), "taskId", which.ID))
		if chosen.ID != which.ID || chosen.Status.State != protocol.Completed || *chosen.Artifacts[0].Parts[0].Text != "7" || len(chosen.History) != 3 {
			t.Errorf("the choice gives %+v with %d messages", chosen.Status, len(chosen.History))
		}

		// A run that requires input.
		waiting := send(deskURL, messageParams(skill("book", row{"city": "Bonn"})))
		if waiting.Status.State != protocol.InputRequired || messageTextOf(waiting.Status.Message) != "When?" {
			t.Errorf("the input request gives %+v", waiting.Status)
		}
		booked := send(deskURL, with(messageParams(data(row{"day": "Monday"})), "taskId", waiting.ID))
		if booked.Status.State != protocol.Completed || !strings.Contains(string(booked.Artifacts[0].Parts[0].Data), `"day":"Monday"`) {
			t.Errorf("the answer gives %+v", booked)
		}
		authenticating := send(deskURL, messageParams(skill("login", nil)))
		if authenticating.Status.State != protocol.AuthRequired || link(authenticating.Status.Message) != "https://id.example/login" {
			t.Errorf("the request for credentials gives %+v", authenticating.Status)
		}
		if got := send(deskURL, with(messageParams(text("done")), "taskId", authenticating.ID)); got.Status.State != protocol.Completed {
			t.Errorf("the proof gives %+v", got.Status)
		}

		// Runs that complete at once, and canceled runs.
		slow := send(deskURL, configured(messageParams(skill("slow", row{"until": "never"})), "returnImmediately", true))
		if slow.Status.State.Terminal() {
			t.Errorf("with returnImmediately the state is %s", slow.Status.State)
		}
		for ask(t, deskURL, protocol.GetTask, row{"id": slow.ID}, nil).task(t).Status.State == protocol.Submitted { // the Thing was not called yet
			time.Sleep(time.Millisecond)
		}
		for range 2 {
			if got := ask(t, deskURL, protocol.CancelTask, row{"id": slow.ID}, nil).task(t); got.Status.State != protocol.Canceled {
				t.Errorf("cancel gives %+v", got.Status)
			}
		}
		if word := <-s.thing.ended; word != "never" {
			t.Errorf("%q was cancelled", word)
		}

		// Lists, which JSON-RPC of 0.3 does not have.
		if over == "JSON-RPC 0.3" {
			return
		}
		list := func(p row) (l struct {
			Tasks         []protocol.Task
			NextPageToken *string
			PageSize      int
			TotalSize     int
		}) {
			t.Helper()
			a := ask(t, deskURL, protocol.ListTasks, p, nil)
			if err := json.Unmarshal(a.result, &l); err != nil || l.NextPageToken == nil || !strings.Contains(string(a.result), `"tasks":[`) {
				t.Fatalf("the list is %s, %v", a.result, a.err)
			}
			return l
		}
		all := list(row{})
		if all.TotalSize != 9 || len(all.Tasks) != 9 || all.PageSize != 50 || all.Tasks[0].Artifacts != nil {
			t.Errorf("the list has %d of %d tasks", len(all.Tasks), all.TotalSize)
		}
		page := list(row{"pageSize": 5, "includeArtifacts": true})
		rest := list(row{"pageSize": 5, "pageToken": *page.NextPageToken})
		if len(page.Tasks) != 5 || len(rest.Tasks) != 4 || *rest.NextPageToken != "" || page.Tasks[4].ID == rest.Tasks[0].ID {
			t.Errorf("the pages have %d and %d tasks", len(page.Tasks), len(rest.Tasks))
		}
		if l := list(row{"status": "TASK_STATE_CANCELED"}); len(l.Tasks) != 1 || l.Tasks[0].ID != slow.ID {
			t.Errorf("%d tasks are cancelled", len(l.Tasks))
		}
		if l := list(row{"contextId": waiting.ContextID}); len(l.Tasks) != 1 || l.Tasks[0].ID != waiting.ID {
			t.Errorf("%d tasks are of the context", len(l.Tasks))
		}
		if l := list(row{"statusTimestampAfter": all.Tasks[0].Status.Timestamp}); len(l.Tasks) == 0 || len(l.Tasks) == 9 {
			t.Errorf("%d tasks are newer than the newest", len(l.Tasks))
		}
		if l := list(row{"contextId": "none"}); len(l.Tasks) != 0 {
			t.Errorf("%d tasks are of no context", len(l.Tasks))
		}
	})
}

// kinds names the events of a stream: the task with its state in brackets, states, and data of artifacts.
func kinds(t *testing.T, a *answer) string {
	t.Helper()
	var all []string
	for _, raw := range a.events {
		var e protocol.StreamResponse
		if err := json.Unmarshal(raw, &e); err != nil {
			t.Fatal(err)
		}
		switch {
		case e.Task != nil:
			all = append(all, "["+strings.TrimPrefix(string(e.Task.Status.State), "TASK_STATE_")+"]")
		case e.StatusUpdate != nil:
			all = append(all, strings.TrimPrefix(string(e.StatusUpdate.Status.State), "TASK_STATE_"))
		case e.ArtifactUpdate != nil:
			all = append(all, "+"+string(e.ArtifactUpdate.Artifact.Parts[0].Data))
		}
	}
	if a.err != nil {
		all = append(all, fmt.Sprint(a.err.Code))
	}
	return strings.Join(all, " ")
}

// The rules of streams: their first and last events, and equal events for all subscribers of a task.
func TestStreams(t *testing.T) {
	t.Parallel()
	overAllBindings(t, func(t *testing.T, s *site, p *testServer, over string, ask binding) {
		deskURL := p.root + "/desk"
		counted := ask(t, deskURL, protocol.SendStreamingMessage, messageParams(skill("count", 3)), nil)
		if got := kinds(t, counted); got != "[SUBMITTED] WORKING +0 +1 +2 COMPLETED" && got != "[WORKING] +0 +1 +2 COMPLETED" && !strings.HasSuffix(got, "COMPLETED") {
			t.Errorf("the stream is %s", got)
		}
		id, _ := protocol.TaskOf(counted.events[0])
		if a := ask(t, deskURL, protocol.SubscribeToTask, row{"id": id}, nil); a.err == nil || a.err.Code != protocol.UnsupportedOperation {
			t.Errorf("a subscription to an ended task gives %s", kinds(t, a))
		}
		asks := ask(t, deskURL, protocol.SendStreamingMessage, messageParams(text("what?")), nil)
		if got := kinds(t, asks); got != "[INPUT_REQUIRED]" {
			t.Errorf("a stream with an input request is %s", got)
		}
		// A subscription continues when input is required; two subscribers receive the same.
		follow := func(id string) chan string {
			before, received := p.begun.Load(), make(chan string, 2)
			for range 2 {
				go func() { received <- kinds(t, ask(t, deskURL, protocol.SubscribeToTask, row{"id": id}, nil)) }()
			}
			until(t, "both follow", func() bool { return p.begun.Load() == before+2 })
			return received
		}
		id, _ = protocol.TaskOf(asks.events[0])
		received := follow(id)
		if got := ask(t, deskURL, protocol.SendMessage, with(messageParams(text("echo")), "taskId", id), nil).task(t); got.Status.State != protocol.Completed {
			t.Errorf("the choice gives %+v", got.Status)
		}
		if one, two := <-received, <-received; one != two || !strings.HasPrefix(one, "[INPUT_REQUIRED] ") || !strings.HasSuffix(one, " COMPLETED") {
			t.Errorf("the subscriptions are %s and %s", one, two)
		}
		slow := ask(t, deskURL, protocol.SendMessage, configured(messageParams(skill("slow", row{"until": "later"})), "returnImmediately", true), nil).task(t)
		until(t, "it works", func() bool {
			return ask(t, deskURL, protocol.GetTask, row{"id": slow.ID}, nil).task(t).Status.State == protocol.Working
		})
		received = follow(slow.ID)
		close(s.thing.releaseChannel("later"))
		if one, two := <-received, <-received; one != two || !strings.HasSuffix(one, " COMPLETED") {
			t.Errorf("the subscriptions are %s and %s", one, two)
		}
		// The stream of a message continues while the user authenticates.
		authenticating := make(chan string, 1)
		go func() {
			authenticating <- kinds(t, ask(t, deskURL, protocol.SendStreamingMessage, with(messageParams(skill("login", nil)), "contextId", "proof"), nil))
		}()
		var open string
		until(t, "the proof is asked for", func() bool {
			list := overREST(t, deskURL, protocol.ListTasks, row{"contextId": "proof", "status": "TASK_STATE_AUTH_REQUIRED"}, nil)
			var l struct{ Tasks []protocol.Task }
			if json.Unmarshal(list.result, &l) == nil && len(l.Tasks) > 0 {
				open = l.Tasks[0].ID
			}
			return open != ""
		})
		if got := ask(t, deskURL, protocol.SendMessage, with(messageParams(text("done")), "taskId", open), nil).task(t); got.Status.State != protocol.Completed {
			t.Errorf("the proof gives %+v", got.Status)
		}
		if got := <-authenticating; !strings.Contains(got, "AUTH_REQUIRED ") || !strings.HasSuffix(got, " COMPLETED") {
			t.Errorf("the stream that waits for a proof is %s", got)
		}
	})
}

// A task continues when its client disconnects: it can be read, and followed to its end.
func TestTaskContinuesAfterDisconnect(t *testing.T) {
	t.Parallel()
	overAllBindings(t, func(t *testing.T, s *site, p *testServer, over string, ask binding) {
		deskURL := p.root + "/desk"
		// The client that disconnects always uses 1.0; the bindings differ in the client that returns.
		body, _ := json.Marshal(row{"jsonrpc": "2.0", "id": 1, "method": protocol.SendStreamingMessage, "params": messageParams(skill("slow", row{"until": "later"}))})
		ctx, leave := context.WithCancel(t.Context())
		q, err := http.NewRequestWithContext(ctx, http.MethodPost, deskURL, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Content-Type", "application/json")
		r, err := httpClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		var id string
		for e, err := range protocol.Events(r.Body) {
			var first struct{ Result json.RawMessage }
			if err != nil || json.Unmarshal(e.Data, &first) != nil {
				t.Fatalf("%s, %v", e.Data, err)
			}
			id, _ = protocol.TaskOf(first.Result)
			break
		}
		leave()
		r.Body.Close()
		if got := ask(t, deskURL, protocol.GetTask, row{"id": id}, nil).task(t); got.Status.State.Terminal() {
			t.Errorf("the task is %s", got.Status.State)
		}
		before, received := p.begun.Load(), make(chan string, 1)
		go func() { received <- kinds(t, ask(t, deskURL, protocol.SubscribeToTask, row{"id": id}, nil)) }()
		until(t, "it is followed", func() bool { return p.begun.Load() > before })
		close(s.thing.releaseChannel("later"))
		if got := <-received; !strings.HasPrefix(got, "[") || !strings.HasSuffix(got, " COMPLETED") {
			t.Errorf("the returning subscriber receives %s", got)
		}
		if got := ask(t, deskURL, protocol.GetTask, row{"id": id}, nil).task(t); got.Status.State != protocol.Completed || len(s.thing.ended) > 0 {
			t.Errorf("the task ends as %s", got.Status.State)
		}
	})
}
