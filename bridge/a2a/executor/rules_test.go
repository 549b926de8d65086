package executor

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// waiting removes returnImmediately from the params of say.
func waiting(params string) string {
	return strings.Replace(params, `"returnImmediately":true`, `"returnImmediately":false`, 1)
}

// streamed returns the states of a stream and its end; the task at its start is in brackets.
func streamed(t *testing.T, events iter.Seq2[json.RawMessage, error]) string {
	t.Helper()
	var all []string
	for raw, err := range events {
		var e protocol.StreamResponse
		switch {
		case err != nil:
			all = append(all, protocol.AsError(err).Message)
		case json.Unmarshal(raw, &e) != nil:
			t.Fatalf("got %s", raw)
		case e.Task != nil:
			all = append(all, "["+strings.TrimPrefix(string(e.Task.Status.State), "TASK_STATE_")+"]")
		case e.StatusUpdate != nil:
			all = append(all, strings.TrimPrefix(string(e.StatusUpdate.Status.State), "TASK_STATE_"))
		default:
			all = append(all, "+"+string(protocol.Encode(e.ArtifactUpdate.Artifact.Parts[0])))
		}
	}
	return strings.Join(all, " ")
}

func do(ctx context.Context, a protocol.Agent, method, params string) iter.Seq2[json.RawMessage, error] {
	return a.Do(ctx, &protocol.Operation{Method: method, Params: json.RawMessage(params)})
}

// asker returns a Thing whose run requires in, and then completes with the answers.
func asker(in string) Agent {
	var parking interact.InputWaiter
	s := subject(nil)
	s.Thing = interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			if m.Type == interact.ContinueAction {
				yield(parking.Continue(m))
				return
			}
			var open interact.Inputs
			if err := json.Unmarshal([]byte(in), &open); err != nil {
				panic(err)
			}
			answers, left, err := parking.Ask(ctx, m, open, yield)
			if err != nil {
				yield(nil, err)
			} else if !left {
				r := m.Reply(interact.ActionStatus, interact.JSON, protocol.Encode(answers))
				r.Status = interact.StatusCompleted
				yield(r, nil)
			}
		}
	})
	return s
}

const (
	messageInput = `{"k":{"kind":"message","message":"what?"}}`
	urlInput     = `{"k":{"kind":"url","message":"prove it","url":"https://id.example/"}}`
)

// TestStreamsAndInterruptions holds a decision between contradicting sections: the stream of a sent message ends when input is
// required and continues when authentication is; a subscription continues in both cases (A2A 1.0 §3.1.2, §7.6.1, §11.7).
func TestStreamsAndInterruptions(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ asks, sent, followed string }{
		"input": {messageInput, "[SUBMITTED] INPUT_REQUIRED", "[INPUT_REQUIRED]"},
		"proof": {urlInput, "[SUBMITTED] AUTH_REQUIRED", "[AUTH_REQUIRED]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := New(Options{})
				defer d.Close()
				a := d.Agent(asker(test.asks), "me")
				received := make([]string, 3)
				var work sync.WaitGroup
				work.Go(func() { received[0] = streamed(t, do(t.Context(), a, protocol.SendStreamingMessage, say("1", "x"))) })
				synctest.Wait()
				list := ask(t, a, protocol.ListTasks, `{}`)
				var l struct{ Tasks []protocol.Task }
				if err := json.Unmarshal([]byte(list), &l); err != nil || len(l.Tasks) != 1 {
					t.Fatalf("the tasks are %s", list)
				}
				id := l.Tasks[0].ID
				for i := range 2 {
					work.Go(func() { received[1+i] = streamed(t, do(t.Context(), a, protocol.SubscribeToTask, `{"id":"`+id+`"}`)) })
				}
				synctest.Wait()
				answer := fmt.Sprintf(`{"message":{"messageId":"2","taskId":%q,"role":"ROLE_USER","parts":[{"text":"that"}]}}`, id)
				if got := taskIn(t, ask(t, a, protocol.SendMessage, answer)); got.Status.State != protocol.Completed {
					t.Errorf("the answer gives %+v", got.Status)
				}
				work.Wait()
				if sent := strings.HasPrefix(received[0], test.sent); !sent || strings.HasSuffix(received[0], "COMPLETED") != (test.asks == urlInput) {
					t.Errorf("the sender received %s", received[0])
				}
				if !strings.HasPrefix(received[1], test.followed) || !strings.HasSuffix(received[1], "COMPLETED") || received[1] != received[2] {
					t.Errorf("the subscriber received %s, and %s", received[1], received[2])
				}
				// Sending the answer again returns its result.
				if got := taskIn(t, ask(t, a, protocol.SendMessage, answer)); got.ID != id || got.Status.State != protocol.Completed {
					t.Errorf("the answer again gives %+v", got.Status)
				}
				if got := streamed(t, do(t.Context(), a, protocol.SubscribeToTask, `{"id":"`+id+`"}`)); !strings.Contains(got, "has ended") {
					t.Errorf("a late subscriber received %s", got)
				}
			})
		})
	}
}

// All subscribers of a task get the same events in the same order; one that leaves affects neither the others nor the task.
func TestSubscribersGetTheSameEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := New(Options{})
		defer d.Close()
		begin := make(chan struct{})
		a := d.Agent(subject(func(_ context.Context, _ *interact.Message, say func(interact.Status, string) bool) error {
			<-begin
			for i := range 200 {
				say(interact.StatusRunning, fmt.Sprint(i))
			}
			say(interact.StatusCompleted, "")
			return nil
		}), "me")
		id := taskIn(t, ask(t, a, protocol.SendMessage, say("1", "x"))).ID
		received := make([]string, maxReaders)
		ctx, leave := context.WithCancel(t.Context())
		var work sync.WaitGroup
		for i := range received {
			ctx := ctx
			if i > 0 {
				ctx = t.Context()
			}
			work.Go(func() { received[i] = streamed(t, do(ctx, a, protocol.SubscribeToTask, `{"id":"`+id+`"}`)) })
		}
		synctest.Wait()
		if got := streamed(t, do(t.Context(), a, protocol.SubscribeToTask, `{"id":"`+id+`"}`)); !strings.Contains(got, "32 subscribers already") {
			t.Errorf("a subscriber beyond the limit receives %s", got)
		}
		leave()
		synctest.Wait()
		close(begin)
		work.Wait()
		for i, got := range received[1:] {
			if got != received[1] || strings.Count(got, "+") != 200 || !strings.HasPrefix(got, `[SUBMITTED] WORKING +{"data":0,`) || !strings.HasSuffix(got, " COMPLETED") {
				t.Errorf("subscriber %d received %s", i, got)
			}
		}
		if !strings.HasPrefix(received[0], "[SUBMITTED] ") || strings.Contains(received[0], "COMPLETED") {
			t.Errorf("the subscriber that left received %s", received[0])
		}
	})
}

// Close ends subscriptions with an error, and cancels the runs.
func TestCloseNotifies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := New(Options{})
		a := d.Agent(waits(), "me")
		received := ""
		var work sync.WaitGroup
		work.Go(func() { received = streamed(t, do(t.Context(), a, protocol.SendStreamingMessage, say("1", "x"))) })
		synctest.Wait()
		d.Close()
		work.Wait()
		if !strings.HasPrefix(received, "[SUBMITTED] ") || !strings.Contains(received, "shutting down") && !strings.HasSuffix(received, "CANCELED") {
			t.Errorf("the subscriber received %s", received)
		}
		if got := ask(t, a, protocol.SendMessage, say("2", "x")); !strings.Contains(got, "shutting down") {
			t.Errorf("afterwards: %s", got)
		}
	})
}

// Sending a message again, also concurrently, creates one task and one run.
func TestDuplicateMessage(t *testing.T) {
	t.Parallel()
	var runs atomic.Int32
	d := open(t, Options{})
	thing := subject(func(_ context.Context, m *interact.Message, say func(interact.Status, string) bool) error {
		runs.Add(1)
		say(interact.StatusCompleted, string(m.Data))
		return nil
	})
	me, you := d.Agent(thing, "me"), d.Agent(thing, "you")
	ids := make([]string, 20)
	var work sync.WaitGroup
	for i := range ids {
		work.Go(func() {
			method := []string{protocol.SendMessage, protocol.SendStreamingMessage}[i%2]
			for raw, err := range do(t.Context(), me, method, waiting(say("1", "x"))) {
				if err != nil {
					t.Error(err)
				}
				ids[i], _ = protocol.TaskOf(raw)
			}
		})
	}
	work.Wait()
	if ids = slices.Compact(ids); ids[0] == "" || len(ids) != 1 || runs.Load() != 1 {
		t.Errorf("%d runs, of the tasks %v", runs.Load(), ids)
	}
	if other := taskIn(t, ask(t, you, protocol.SendMessage, waiting(say("1", "y")))); other.ID == ids[0] || runs.Load() != 2 {
		t.Error("another principal's message with the same id returned that task")
	}
	again := taskIn(t, ask(t, me, protocol.SendMessage, waiting(say("1", "something else"))))
	if again.ID != ids[0] || *again.Artifacts[0].Parts[0].Text != "x" {
		t.Errorf("sending it again gives %+v", again)
	}
}

// TestHistory limits the returned and the stored history.
func TestHistory(t *testing.T) {
	t.Parallel()
	d := open(t, Options{})
	a := d.Agent(asker(messageInput), "me")
	task := taskIn(t, ask(t, a, protocol.SendMessage, waiting(say("1", "x"))))
	answer := func(configuration string) string {
		return fmt.Sprintf(`{"message":{"messageId":"2","taskId":%q,"role":"ROLE_USER","parts":[{"text":"that"}]},"configuration":%s}`, task.ID, configuration)
	}
	taskIn(t, ask(t, a, protocol.SendMessage, answer("{}")))
	last := func(n int) string {
		return []string{"", "2", "what? 2", "1 what? 2"}[n]
	}
	said := func(history []*protocol.Message) string {
		var all []string
		for _, m := range history {
			if m.Role == protocol.AgentRole {
				all = append(all, *m.Parts[0].Text)
			} else {
				all = append(all, m.ID)
			}
		}
		return strings.Join(all, " ")
	}
	for length, want := range map[string]string{"": last(3), `,"historyLength":0`: last(0), `,"historyLength":1`: last(1), `,"history_length":2`: last(2), `,"historyLength":3`: last(3), `,"historyLength":99`: last(3), `,"historyLength":null`: last(3)} {
		var got protocol.Task
		if err := json.Unmarshal([]byte(ask(t, a, protocol.GetTask, `{"id":"`+task.ID+`"`+length+`}`)), &got); err != nil || said(got.History) != want {
			t.Errorf("get %s: %s, %v; want %s", length, said(got.History), err, want)
		}
		var list struct{ Tasks []protocol.Task }
		if err := json.Unmarshal([]byte(ask(t, a, protocol.ListTasks, `{"x":1`+length+`}`)), &list); err != nil || said(list.Tasks[0].History) != want {
			t.Errorf("list %s: %s, %v; want %s", length, said(list.Tasks[0].History), err, want)
		}
		for _, method := range []string{protocol.SendMessage, protocol.SendStreamingMessage} {
			got := taskIn(t, ask(t, a, method, answer(`{"x":1`+length+`}`)))
			if said(got.History) != want {
				t.Errorf("%s %s: %s, want %s", method, length, said(got.History), want)
			}
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	long := d.tasks[task.ID]
	for i := range maxHistory + 5 {
		d.appendHistoryLocked(long, &protocol.Message{ID: fmt.Sprint("m", i), Role: protocol.User})
	}
	if h := long.shown.History; len(h) != maxHistory || h[0].ID != "1" || h[maxHistory-1].ID != fmt.Sprint("m", maxHistory+4) {
		t.Errorf("%d messages are kept, from %s to %s", len(h), h[0].ID, h[len(h)-1].ID)
	}
}

// Pages of a growing list have no duplicates and no gaps. A page token is bound to its principal and Thing.
func TestPages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := New(Options{})
		defer d.Close()
		thing, other := waits(), waits()
		other.Ref = "other"
		a := d.Agent(thing, "me")
		begin := func(n int) { ask(t, a, protocol.SendMessage, say(fmt.Sprint(n), "x")) }
		for n := range 10 {
			begin(n)
			if n%3 > 0 { // some have equal times
				time.Sleep(time.Second)
			}
		}
		type page struct {
			Tasks         []protocol.Task
			NextPageToken *string
			TotalSize     int
		}
		read := func(token string) (p page) {
			t.Helper()
			got := ask(t, a, protocol.ListTasks, `{"pageSize":3,"page_token":"`+token+`"}`)
			if err := json.Unmarshal([]byte(got), &p); err != nil || p.NextPageToken == nil || !strings.HasPrefix(got, `{"nextPageToken":`) || p.Tasks == nil {
				t.Fatalf("the page is %s", got)
			}
			return p
		}
		var seen []string
		var token string
		for more := true; more; more = token != "" {
			p := read(token)
			token = *p.NextPageToken
			for _, task := range p.Tasks {
				seen = append(seen, task.History[0].ID)
				if task.Artifacts != nil {
					t.Error("artifacts are listed without includeArtifacts")
				}
			}
			if len(seen) == 3 {
				time.Sleep(time.Second)
				begin(100) // newer than the listed ones
				if bytes, _ := base64.RawURLEncoding.DecodeString(token); strings.Contains(string(bytes), p.Tasks[2].ID) {
					t.Error("the token is not encrypted")
				}
				for caller, agent := range map[string]protocol.Agent{"another's": d.Agent(thing, "you"), "another thing's": d.Agent(other, "me"), "another executor's": open(t, Options{}).Agent(thing, "me")} {
					if got := ask(t, agent, protocol.ListTasks, `{"pageToken":"`+token+`"}`); !strings.Contains(got, "invalid page token") {
						t.Errorf("%s list with the token is %s", caller, got)
					}
				}
				for _, forged := range []string{token[1:], "A" + token[1:], "AAAA", "!", strings.Repeat("A", 60)} {
					if got := ask(t, a, protocol.ListTasks, `{"pageToken":"`+forged+`"}`); !strings.Contains(got, "invalid page token") && forged != token {
						t.Errorf("%q gives %s", forged, got)
					}
				}
			}
		}
		slices.Sort(seen)
		if got := strings.Join(seen, ""); got != "0123456789" {
			t.Errorf("the tasks are %v", seen)
		}
		if p := read(""); p.TotalSize != 11 || p.Tasks[0].History[0].ID != "100" || p.Tasks[1].Status.Timestamp < p.Tasks[2].Status.Timestamp {
			t.Errorf("of %d tasks the first is %+v", p.TotalSize, p.Tasks[0])
		}
	})
}

// TestFinalStatesOfRuns maps the final replies of runs to task states and texts.
func TestFinalStatesOfRuns(t *testing.T) {
	t.Parallel()
	fails := func(code interact.Code) func(context.Context, *interact.Message, func(interact.Status, string) bool) error {
		return func(context.Context, *interact.Message, func(interact.Status, string) bool) error {
			return &interact.Error{Code: code, Title: "no", Hint: "ask later", Issues: []td.Issue{{Pointer: "/a", Reason: "is missing"}}}
		}
	}
	says := func(s interact.Status, data string) func(context.Context, *interact.Message, func(interact.Status, string) bool) error {
		return func(_ context.Context, _ *interact.Message, say func(interact.Status, string) bool) error {
			say(s, data)
			return nil
		}
	}
	for name, test := range map[string]struct {
		run   func(context.Context, *interact.Message, func(interact.Status, string) bool) error
		state protocol.State
		words string // in the status
	}{
		"nothing is said":              {says(interact.StatusRunning, "1"), protocol.Failed, "without a final status"},
		"it fails with words":          {says(interact.StatusFailed, `"broken"`), protocol.Failed, "broken"},
		"it cancels itself":            {says(interact.StatusCancelled, ""), protocol.Canceled, ""},
		"a forbidden one":              {fails(interact.Forbidden), protocol.Rejected, "no\n/a is missing\nask later"},
		"a caller without credentials": {fails(interact.Unauthenticated), protocol.Rejected, "no"},
		"a node that is gone":          {fails(interact.Unreachable), protocol.Failed, "no"},
		"one that is cancelled":        {fails(interact.Cancelled), protocol.Canceled, "no"},
		"what is asked is no JSON":     {says(interact.StatusInputRequired, "7"), protocol.Failed, "invalid input request"},
		"it is done":                   {says(interact.StatusCompleted, ""), protocol.Completed, ""},
		"an agent that talks is done":  {says(interact.StatusCompleted, `{"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"Hi."}]}`), protocol.Completed, "Hi."},
	} {
		d := open(t, Options{})
		got := taskIn(t, ask(t, d.Agent(subject(test.run), ""), protocol.SendMessage, waiting(say("1", "x"))))
		words, retryable := "", ""
		if m := got.Status.Message; m != nil {
			words, retryable = *m.Parts[0].Text, string(m.Parts[0].Metadata)
		}
		if got.Status.State != test.state || !strings.Contains(words, test.words) || words != "" && test.words == "" {
			t.Errorf("%s: %s %q, want %s %q", name, got.Status.State, words, test.state, test.words)
		}
		if gone := name == "a node that is gone"; strings.Contains(retryable, `"retryable":true`) != gone {
			t.Errorf("%s: %s", name, retryable)
		}
	}
}

// Canceling a task cancels its detached run once, and does not wait for a Thing that does not answer.
func TestCancelDetached(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var cancelled []string
		s := subject(nil)
		s.Thing = interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(yield func(*interact.Message, error) bool) {
				if m.Type == interact.CancelAction {
					cancelled = append(cancelled, m.Name+" "+m.ActionID)
					<-ctx.Done()
					yield(nil, ctx.Err())
					return
				}
				r := m.Reply(interact.ActionStatus, "", nil)
				r.Status, r.ActionID = interact.StatusRunning, "run-1"
				if yield(r, nil) {
					<-ctx.Done()
					yield(nil, ctx.Err())
				}
			}
		})
		d := New(Options{})
		defer d.Close()
		a := d.Agent(s, "")
		id := taskIn(t, ask(t, a, protocol.SendMessage, say("1", "x"))).ID
		synctest.Wait()
		began := time.Now()
		for range 3 {
			if got := ask(t, a, protocol.CancelTask, `{"id":"`+id+`"}`); !strings.Contains(got, string(protocol.Canceled)) {
				t.Errorf("cancel gives %s", got)
			}
		}
		if took := time.Since(began); took > 11*time.Second || strings.Join(cancelled, ",") != "run run-1" {
			t.Errorf("after %s the Thing received the cancellations %v", took, cancelled)
		}
	})
}

// TestActionSelection selects the action and input of messages.
func TestActionSelection(t *testing.T) {
	t.Parallel()
	schema := func(text string) *td.Schema {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		return td.ParseSchema(v)
	}
	number, object := schema(`{"type":"number"}`), schema(`{"type":"object","required":["q"],"properties":{"q":{"type":"string"}}}`)
	all := map[string]*td.Action{"sum": {Input: number}, "find": {Input: object}, "ask": {}, "tunnel": {Affordance: td.Affordance{Types: []string{"a2a:Operation"}}}}
	few := map[string]*td.Action{"find": {Input: object}}
	none := map[string]*td.Action{}
	for name, test := range map[string]struct {
		actions     map[string]*td.Action
		parts, meta string
		want        string // action, media type and input; or the error
	}{
		"text to an agent of text":   {all, `{"text":"hi"}`, ``, `ask application/json "hi"`},
		"words to the only one":      {few, `{"text":"hi"}`, ``, `find application/json {"q":"hi"}`},
		"JSON in words":              {few, `{"text":"{\"q\":\"hi\"}"}`, ``, `find application/json {"q":"hi"}`},
		"several words":              {all, `{"text":"a"},{"text":"b"}`, ``, `ask application/json "a\nb"`},
		"data that fit one":          {all, `{"data":7}`, ``, `sum application/json 7`},
		"data that fit another":      {all, `{"data":{"q":"x"}}`, ``, `find application/json {"q":"x"}`},
		"data that fit none":         {all, `{"data":true}`, ``, ``},
		"data in arguments":          {all, `{"data":{"arguments":{"q":"x"}}}`, ``, `find application/json {"q":"x"}`},
		"data twice":                 {all, `{"data":7},{"data":8}`, ``, `ask application/json `},
		"by its name":                {all, `{"data":true}`, `"skillId":"sum"`, `sum application/json true`},
		"by its name in a part":      {all, `{"data":7,"metadata":{"skillId":"find"}}`, ``, `find application/json 7`},
		"by two names":               {all, `{"data":7,"metadata":{"skillId":"find"}}`, `"skillId":"sum"`, `the message names two different skills`},
		"by a name that is none":     {all, `{"data":7}`, `"skillId":"fly"`, `x has no skill "fly"`},
		"by the name of a tunnel":    {all, `{"data":7}`, `"skillId":"tunnel"`, `x has no skill "tunnel"`},
		"metadata of another's":      {all, `{"data":7}`, `"skillId":7`, `sum application/json 7`},
		"bytes":                      {few, `{"raw":"_-8=","mediaType":"image/png"}`, ``, "find image/png \xff\xef"},
		"an address":                 {few, `{"url":"https://x.example/a.png"}`, ``, `find application/json "https://x.example/a.png"`},
		"an address beside words":    {few, `{"url":"https://x.example/a.png"},{"text":"look"}`, ``, `find application/json {"q":"look"}`},
		"anything to one of nothing": {none, `{"text":"x"}`, ``, `x has no skills`},
	} {
		var m protocol.Message
		if err := json.Unmarshal([]byte(`{"messageId":"1","role":"ROLE_USER","parts":[`+test.parts+`],"metadata":{`+test.meta+`}}`), &m); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		a := &agent{thing: Agent{Desc: &td.Thing{ID: "x", Title: "x", Actions: test.actions}}}
		in, err := a.invocation(&m)
		got := ""
		if err != nil {
			got = protocol.AsError(err).Message
		} else if in != nil {
			got = in.action + " " + in.media + " " + string(in.data)
		}
		if got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

// TestMediaTypeMatching matches media types with wildcards.
func TestMediaTypeMatching(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		modes []string
		media string
		want  bool
	}{
		{[]string{"text/plain"}, "text/plain; charset=utf-8", true}, {[]string{"Text/Plain"}, "text/plain", true}, {[]string{"image/*"}, "image/png", true},
		{[]string{"image/*"}, "imagex/png", false}, {[]string{"*/*"}, "a/b", true}, {[]string{"a/b", "c/d"}, "c/d", true}, {nil, "a/b", false}, {[]string{"a/b"}, "a/bc", false},
	} {
		if got := accepts(test.modes, test.media); got != test.want {
			t.Errorf("%v accepts %s: %t", test.modes, test.media, got)
		}
	}
}

// FuzzExecutor calls operations with arbitrary params: each result can be encoded, and storage stays bounded.
func FuzzExecutor(f *testing.F) {
	f.Add(0, []byte(waiting(say("1", "x"))))
	f.Add(1, []byte(`{"message":{"message_id":"1","role":1,"parts":[{"raw":"_-8","mediaType":"a/b"},{"data":[{}]},{"url":"x"}],"metadata":{"skillId":"run"}}}`))
	f.Add(3, []byte(`{"pageSize":2,"pageToken":"AAAA","statusTimestampAfter":"2026-01-01T00:00:00Z","status":3}`))
	f.Fuzz(func(t *testing.T, method int, params []byte) {
		d := New(Options{MaxTasks: 4})
		defer d.Close()
		a := d.Agent(subject(func(_ context.Context, m *interact.Message, say func(interact.Status, string) bool) error {
			say(interact.StatusCompleted, string(m.Data))
			return nil
		}), "me")
		op := &protocol.Operation{Method: protocol.Methods[uint(method)%uint(len(protocol.Methods))], Params: params}
		for range 2 {
			for result, err := range a.Do(t.Context(), op) {
				if err != nil {
					result = protocol.AsError(err).REST()
				}
				if !json.Valid(result) {
					t.Errorf("%s %q gives %s", op.Method, params, result)
				}
			}
		}
		if len(d.tasks) > 1 {
			t.Errorf("%s %q makes %d tasks", op.Method, params, len(d.tasks))
		}
	})
}

// A stream has all events of its task, however fast the agent is: it begins before the run.
func TestStreamBeginsBeforeTheRun(t *testing.T) {
	t.Parallel()
	d := open(t, Options{})
	a := d.Agent(subject(func(_ context.Context, _ *interact.Message, say func(interact.Status, string) bool) error {
		say(interact.StatusRunning, "0")
		say(interact.StatusCompleted, "")
		return nil
	}), "me")
	var work sync.WaitGroup
	for i := range 16 { // streams wait for each other between their message and their first event
		work.Go(func() {
			for n := range 100 {
				got := streamed(t, do(t.Context(), a, protocol.SendStreamingMessage, say(fmt.Sprint(i, n), "x")))
				if !strings.HasPrefix(got, "[SUBMITTED] WORKING +") || !strings.HasSuffix(got, " COMPLETED") {
					t.Errorf("a stream has %s", got)
				}
			}
		})
	}
	work.Wait()
}
