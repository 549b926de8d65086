package a2a

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/bridge/a2a/wire"
)

type row = map[string]any

// TestRefusals are the rules of A2A 1.0 §3 that refuse something, on both bindings: what is asked, and which error it is.
func TestRefusals(t *testing.T) {
	t.Parallel()
	s := newSite(t, Options{})
	done := overRPC(t, s.url+"/echo", wire.SendMessage, say(text("x")), nil).task(t)
	waits := overRPC(t, s.url+"/desk", wire.SendMessage, say(text("hello")), nil).task(t)
	for name, test := range map[string]struct {
		at, method string
		params     row
		header     map[string]string
		code       int
		reason     string
	}{
		"get: unknown task":         {"echo", wire.GetTask, row{"id": "nobody's"}, nil, wire.TaskNotFound, "TASK_NOT_FOUND"},
		"get: another thing's task": {"desk", wire.GetTask, row{"id": done.ID}, nil, wire.TaskNotFound, "TASK_NOT_FOUND"},
		"get: another's task":       {"echo", wire.GetTask, row{"id": done.ID}, map[string]string{"Authorization": "Bearer mallory"}, wire.TaskNotFound, "TASK_NOT_FOUND"},
		"get: negative history":     {"echo", wire.GetTask, row{"id": done.ID, "historyLength": -1}, nil, wire.InvalidParams, ""},
		"send: no message":          {"echo", wire.SendMessage, row{}, nil, wire.InvalidParams, ""},
		"send: no messageId":        {"echo", wire.SendMessage, with(say(text("x")), "messageId", ""), nil, wire.InvalidParams, ""},
		"send: no parts":            {"echo", wire.SendMessage, say(), nil, wire.InvalidParams, ""},
		"send: a part of nothing":   {"echo", wire.SendMessage, say(row{}), nil, wire.InvalidParams, ""},
		"send: a part of two":       {"echo", wire.SendMessage, say(row{"text": "x", "url": "https://x"}), nil, wire.InvalidParams, ""},
		"send: an unknown role":     {"echo", wire.SendMessage, with(say(text("x")), "role", "ROLE_KING"), nil, wire.InvalidParams, ""},
		"send: a negative history":  {"echo", wire.SendMessage, configured(say(text("x")), "historyLength", -1), nil, wire.InvalidParams, ""},
		"send: an unknown task":     {"echo", wire.SendMessage, with(say(text("x")), "taskId", "none"), nil, wire.TaskNotFound, "TASK_NOT_FOUND"},
		"send: a task that ended":   {"echo", wire.SendMessage, with(say(text("x")), "taskId", done.ID), nil, wire.UnsupportedOperation, "UNSUPPORTED_OPERATION"},
		"send: another context":     {"desk", wire.SendMessage, with(with(say(text("x")), "taskId", waits.ID), "contextId", "other"), nil, wire.InvalidParams, ""},
		"send: an unknown skill":    {"desk", wire.SendMessage, say(skill("fly", 1)), nil, wire.InvalidParams, ""},
		"send: a picture": {"echo", wire.SendMessage, say(row{"raw": "AAAA", "mediaType": "image/png"}), nil, wire.ContentTypeUnsupported,
			"CONTENT_TYPE_NOT_SUPPORTED"},
		"send: who takes pictures only": {"echo", wire.SendMessage, configured(say(text("x")), "acceptedOutputModes", []string{"image/*"}), nil,
			wire.ContentTypeUnsupported, "CONTENT_TYPE_NOT_SUPPORTED"},
		"stream: an unknown task":      {"echo", wire.SendStreamingMessage, with(say(text("x")), "taskId", "none"), nil, wire.TaskNotFound, "TASK_NOT_FOUND"},
		"subscribe: unknown task":      {"echo", wire.SubscribeToTask, row{"id": "none"}, nil, wire.TaskNotFound, "TASK_NOT_FOUND"},
		"subscribe: a task that ended": {"echo", wire.SubscribeToTask, row{"id": done.ID}, nil, wire.UnsupportedOperation, "UNSUPPORTED_OPERATION"},
		"cancel: unknown task":         {"echo", wire.CancelTask, row{"id": "none"}, nil, wire.TaskNotFound, "TASK_NOT_FOUND"},
		"cancel: a task that ended":    {"echo", wire.CancelTask, row{"id": done.ID}, nil, wire.TaskNotCancelable, "TASK_NOT_CANCELABLE"},
		"list: a page of none":         {"echo", wire.ListTasks, row{"pageSize": 0}, nil, wire.InvalidParams, ""},
		"list: a page of 101":          {"echo", wire.ListTasks, row{"pageSize": 101}, nil, wire.InvalidParams, ""},
		"list: an unknown status":      {"echo", wire.ListTasks, row{"status": "TASK_STATE_TIRED"}, nil, wire.InvalidParams, ""},
		"list: a negative history":     {"echo", wire.ListTasks, row{"historyLength": -1}, nil, wire.InvalidParams, ""},
		"list: no time":                {"echo", wire.ListTasks, row{"statusTimestampAfter": "yesterday"}, nil, wire.InvalidParams, ""},
		"list: a forged page":          {"echo", wire.ListTasks, row{"pageToken": "!"}, nil, wire.InvalidParams, ""},
		"extended card: there is none": {"echo", wire.ExtendedCard, row{}, nil, wire.UnsupportedOperation, "UNSUPPORTED_OPERATION"},
		"push: of an unknown task":     {"echo", wire.CreatePush, row{"taskId": "none", "url": "https://x.example/"}, nil, wire.TaskNotFound, "TASK_NOT_FOUND"},
		"push: no address":             {"desk", wire.CreatePush, row{"taskId": waits.ID, "url": "file:///etc/passwd"}, nil, wire.InvalidParams, ""},
		"push: an unknown one":         {"desk", wire.GetPush, row{"taskId": waits.ID, "id": "none"}, nil, wire.TaskNotFound, "TASK_NOT_FOUND"},
		"version: 2.0":                 {"echo", wire.GetTask, row{"id": done.ID}, map[string]string{"A2A-Version": "2.0"}, wire.VersionUnsupported, "VERSION_NOT_SUPPORTED"},
		"version: no number":           {"echo", wire.GetTask, row{"id": done.ID}, map[string]string{"A2A-Version": "latest"}, wire.VersionUnsupported, "VERSION_NOT_SUPPORTED"},
		"content type":                 {"echo", wire.SendMessage, say(text("x")), map[string]string{"Content-Type": "text/plain"}, wire.ContentTypeUnsupported, "CONTENT_TYPE_NOT_SUPPORTED"},
		"no such agent":                {"nobody", wire.SendMessage, say(text("x")), nil, wire.UnknownMethod, ""},
	} {
		for over, ask := range bindings {
			t.Run(name+" over "+over, func(t *testing.T) {
				t.Parallel()
				a := ask(t, s.url+"/"+test.at, test.method, test.params, test.header)
				code := test.code
				if over == "REST" && code == wire.UnknownMethod {
					code = wire.UnknownMethod
				}
				if a.err == nil || a.err.Code != code && !(over == "REST" && a.status == http.StatusNotFound && code == wire.UnknownMethod) {
					t.Fatalf("got %s %v, want %d", a.result, a.err, code)
				}
				if want := (&wire.Error{Code: test.code}).Status(); over == "REST" && a.status != want {
					t.Errorf("the status is %d, want %d", a.status, want)
				}
				if over == "JSON-RPC" && a.status != http.StatusOK {
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

// TestAnswers are the rules that give something, on both bindings.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for over, ask := range bindings {
		t.Run(over, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, Options{})
			echo, desk := s.url+"/echo", s.url+"/desk"
			send := func(at string, p row) *wire.Task { t.Helper(); return ask(t, at, wire.SendMessage, p, nil).task(t) }

			first := send(echo, with(say(text("hello")), "contextId", "any thing, %2F even"))
			if first.Status.State != wire.Completed || first.ContextID != "any thing, %2F even" || len(first.Artifacts) != 1 || *first.Artifacts[0].Parts[0].Text != "hello" {
				t.Errorf("a text gives %+v", first)
			}
			if len(first.History) != 1 || first.History[0].TaskID != first.ID || !strings.HasSuffix(first.Status.Timestamp, "Z") {
				t.Errorf("the history is %+v at %s", first.History, first.Status.Timestamp)
			}
			again := say(text("once"))
			if one, two := send(echo, again), send(echo, again); one.ID != two.ID {
				t.Error("a message that is sent again makes another task")
			}
			if none := send(echo, configured(say(text("x")), "historyLength", 0)); none.History != nil {
				t.Errorf("no history is %v", none.History)
			}
			if got := ask(t, echo, wire.GetTask, row{"id": first.ID, "historyLength": 5}, nil).task(t); got.ID != first.ID || len(got.History) != 1 || got.Artifacts == nil {
				t.Errorf("get gives %+v", got)
			}
			if got := send(desk, say(skill("sum", row{"a": 1, "b": 2}))); string(got.Artifacts[0].Parts[0].Data) != "3" || *got.Artifacts[0].Parts[1].Text != "3" {
				t.Errorf("a skill gives %+v", got.Artifacts)
			}
			if got := send(desk, say(data(row{"a": 1, "b": 2}))); got.Status.State != wire.Completed {
				t.Errorf("data that fit one skill give %+v", got.Status)
			}
			for state, p := range map[wire.State]row{wire.Failed: say(skill("fail", true)), wire.Rejected: say(skill("deny", []any{}))} {
				if got := send(desk, p); got.Status.State != state || wordsOf(got.Status.Message) == "" {
					t.Errorf("want %s, got %+v", state, got.Status)
				}
			}
			if got := send(desk, say(skill("sum", row{"a": "x"}))); got.Status.State != wire.Failed || !strings.Contains(wordsOf(got.Status.Message), "/a") {
				t.Errorf("input that does not fit gives %+v", wordsOf(got.Status.Message))
			}

			// Free text to several skills asks which; an answer with a name goes on with what was said first.
			which := send(desk, say(text("7")))
			if which.Status.State != wire.InputRequired || !strings.Contains(wordsOf(which.Status.Message), "echo") {
				t.Errorf("free text gives %+v", which.Status)
			}
			chosen := send(desk, with(say(text("echo")), "taskId", which.ID))
			if chosen.ID != which.ID || chosen.Status.State != wire.Completed || *chosen.Artifacts[0].Parts[0].Text != "7" || len(chosen.History) != 3 {
				t.Errorf("the choice gives %+v with %d messages", chosen.Status, len(chosen.History))
			}

			// A run that asks.
			asks := send(desk, say(skill("book", row{"city": "Bonn"})))
			if asks.Status.State != wire.InputRequired || wordsOf(asks.Status.Message) != "When?" {
				t.Errorf("what asks gives %+v", asks.Status)
			}
			booked := send(desk, with(say(data(row{"day": "Monday"})), "taskId", asks.ID))
			if booked.Status.State != wire.Completed || !strings.Contains(string(booked.Artifacts[0].Parts[0].Data), `"day":"Monday"`) {
				t.Errorf("the answer gives %+v", booked)
			}
			proves := send(desk, say(skill("login", nil)))
			if proves.Status.State != wire.AuthRequired || link(proves.Status.Message) != "https://id.example/login" {
				t.Errorf("what asks for proof gives %+v", proves.Status)
			}
			if got := send(desk, with(say(text("done")), "taskId", proves.ID)); got.Status.State != wire.Completed {
				t.Errorf("the proof gives %+v", got.Status)
			}

			// At once, and cancelled.
			slow := send(desk, configured(say(skill("slow", row{"until": "never"})), "returnImmediately", true))
			if slow.Status.State.Terminal() {
				t.Errorf("at once is %s", slow.Status.State)
			}
			for range 2 {
				if got := ask(t, desk, wire.CancelTask, row{"id": slow.ID}, nil).task(t); got.Status.State != wire.Canceled {
					t.Errorf("cancel gives %+v", got.Status)
				}
			}
			if word := <-s.desk.ended; word != "never" {
				t.Errorf("%q was cancelled", word)
			}

			// Lists.
			list := func(p row) (l struct {
				Tasks         []wire.Task
				NextPageToken *string
				PageSize      int
				TotalSize     int
			}) {
				t.Helper()
				a := ask(t, desk, wire.ListTasks, p, nil)
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
			if l := list(row{"contextId": asks.ContextID}); len(l.Tasks) != 1 || l.Tasks[0].ID != asks.ID {
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
}

// TestStreams are the rules of streams, on both bindings.
func TestStreams(t *testing.T) {
	t.Parallel()
	for over, ask := range bindings {
		t.Run(over, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, Options{})
			desk := s.url + "/desk"
			kinds := func(a *answer) (all []string) {
				for _, raw := range a.events {
					var e wire.StreamResponse
					if err := json.Unmarshal(raw, &e); err != nil {
						t.Fatal(err)
					}
					switch {
					case e.Task != nil:
						all = append(all, "task")
					case e.StatusUpdate != nil:
						all = append(all, strings.TrimPrefix(string(e.StatusUpdate.Status.State), "TASK_STATE_"))
					case e.ArtifactUpdate != nil:
						all = append(all, "+"+string(e.ArtifactUpdate.Artifact.Parts[0].Data))
					}
				}
				return all
			}
			a := ask(t, desk, wire.SendStreamingMessage, say(skill("count", 3)), nil)
			if got := strings.Join(kinds(a), " "); !strings.HasPrefix(got, "task ") || !strings.HasSuffix(got, "+1 +2 COMPLETED") {
				t.Errorf("the stream is %s (%v)", got, a.err)
			}
			a = ask(t, desk, wire.SendStreamingMessage, say(text("what?")), nil)
			if got := strings.Join(kinds(a), " "); got != "task" {
				t.Errorf("a stream that asks is %s", got)
			}
			slow := ask(t, desk, wire.SendMessage, configured(say(skill("slow", row{"until": "later"})), "returnImmediately", true), nil).task(t)
			answers := make(chan *answer, 2)
			for range 2 {
				go func() { answers <- ask(t, desk, wire.SubscribeToTask, row{"id": slow.ID}, nil) }()
			}
			until(t, "the run works", func() bool {
				return ask(t, desk, wire.GetTask, row{"id": slow.ID}, nil).task(t).Status.State == wire.Working
			})
			close(s.desk.gate("later"))
			for range 2 {
				if got := strings.Join(kinds(<-answers), " "); !strings.HasSuffix(got, "COMPLETED") && got != "" {
					t.Errorf("a subscription is %s", got)
				}
			}
		})
	}
}

// A task goes on when its client leaves, and can be got and followed again.
func TestClientsThatLeave(t *testing.T) {
	t.Parallel()
	s := newSite(t, Options{})
	body, _ := json.Marshal(row{"jsonrpc": "2.0", "id": 1, "method": wire.SendStreamingMessage, "params": say(skill("slow", row{"until": "later"}))})
	ctx, leave := context.WithCancel(t.Context())
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/desk", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	r, err := client.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	var id string
	for e, err := range wire.Events(r.Body) {
		var first struct{ Result json.RawMessage }
		if err != nil || json.Unmarshal(e.Data, &first) != nil {
			t.Fatalf("%s, %v", e.Data, err)
		}
		id, _ = wire.TaskOf(first.Result)
		break
	}
	leave()
	r.Body.Close()
	if got := overREST(t, s.url+"/desk", wire.GetTask, row{"id": id}, nil).task(t); got.Status.State.Terminal() {
		t.Errorf("the task is %s", got.Status.State)
	}
	close(s.desk.gate("later"))
	until(t, "the task ends", func() bool {
		return overREST(t, s.url+"/desk", wire.GetTask, row{"id": id}, nil).task(t).Status.State == wire.Completed
	})
}
