package ws

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/ws/frame"
)

// TestQueriesAndCancellations names runs in each way that there is.
func TestQueriesAndCancellations(t *testing.T) {
	t.Parallel()
	const begin = `
		> {"messageType":"invokeAction","thingID":"urn:x","messageID":"m1","correlationID":"c1","action":"long"}
		< {"messageType":"actionStatus","correlationID":"c1","status":"pending","actionID":"a-long"}`
	for _, c := range []struct{ name, script string }{
		{"by action", `
			> {"messageType":"queryAction","thingID":"urn:x","messageID":"q1","action":"long"}
			< {"messageType":"actionStatus","correlationID":"q1","action":"long","status":"pending","actionID":"a-long"}`},
		{"by actionID", `
			> {"messageType":"queryAction","thingId":"urn:x","messageId":"q1","action":"long","actionID":"a-long"}
			< {"messageType":"actionStatus","correlationId":"q1","status":"pending","actionID":"a-long"}`},
		{"by the correlation of the invocation", `
			> {"messageType":"queryAction","thingID":"urn:x","messageID":"q1","correlationID":"c1","action":"long"}
			< {"messageType":"actionStatus","correlationID":"c1","status":"pending","actionID":"a-long"}`},
		{"by the message of the invocation", `
			> {"messageType":"queryAction","thingID":"urn:x","messageID":"m1","action":"long"}
			< {"messageType":"actionStatus","correlationID":"m1","status":"pending","actionID":"a-long"}`},
		{"in wtp", `
			> {"messageType":"request","operation":"queryaction","thingID":"urn:x","messageID":"q1","actionID":"a-long"}
			< {"messageType":"response","operation":"queryaction","name":"long","status":{"actionID":"a-long","state":"pending"}}`},
		{"of another action", `
			> {"messageType":"queryAction","thingID":"urn:x","messageID":"q1","action":"work"}
			< {"messageType":"error","correlationID":"q1","status":"404","code":"LMOS-1410"}`},
		{"of an unknown actionID", `
			> {"messageType":"queryAction","thingID":"urn:x","messageID":"q1","action":"long","actionID":"a-none"}
			< {"messageType":"error","correlationID":"q1","status":"404","code":"LMOS-1410"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newLab()
			_, url := serve(t, l, ServerOptions{})
			w := dial(t, url, "lmosprotocol")
			w.talk(begin + c.script)
		})
	}
}

func TestCancelledTaskHasItsFinalState(t *testing.T) {
	t.Parallel()
	l := newLab()
	_, url := serve(t, l, ServerOptions{})
	w := dial(t, url, "lmosprotocol")
	w.talk(`
		> {"messageType":"invokeAction","thingID":"urn:x","messageID":"m1","action":"long"}
		< {"messageType":"actionStatus","correlationID":"m1","status":"pending","actionID":"a-long"}
		> {"messageType":"cancelAction","thingID":"urn:x","messageID":"k1","action":"long","reason":"user left"}`)
	final := 0
	for range 2 { // they come in any order
		switch m := w.hear(); m["correlationID"] {
		case "k1":
			if m["status"] != "failed" || m["state"] != "cancelled" || m["actionID"] != "a-long" {
				t.Errorf("the cancellation was answered %v", m)
			}
		case "m1":
			final++
		}
	}
	if final != 1 {
		t.Errorf("the invocation has %d final states, want one", final)
	}
}

// TestAttachedActionIsCancelledByItsInvocation: it has no actionID, and lives as long as its invocation.
func TestAttachedActionIsCancelledByItsInvocation(t *testing.T) {
	t.Parallel()
	l := newLab()
	_, url := serve(t, l, ServerOptions{})
	w := dial(t, url, "lmosprotocol")
	w.say(`{"messageType":"invokeAction","thingID":"urn:x","messageID":"m1","action":"hang"}`)
	l.saw(t, interact.InvokeAction)
	w.talk(`
		> {"messageType":"queryAction","thingID":"urn:x","messageID":"q1","action":"hang"}
		< {"messageType":"actionStatus","correlationID":"q1","status":"pending","state":"running"}
		> {"messageType":"cancelAction","thingID":"urn:x","messageID":"k1","correlationID":"m1","action":"hang"}`)
	l.until(t, "the action was left", func() bool { return l.state["left hang"] != 0 })
	got := []any{w.hear()["messageType"], w.hear()["messageType"]}
	if !strings.Contains(fmt.Sprint(got), "actionStatus") || !strings.Contains(fmt.Sprint(got), "error") {
		t.Errorf("got %v, want the answer to the cancellation and the error of the invocation", got)
	}
	w.talk(`
		> {"messageType":"queryAction","thingID":"urn:x","messageID":"q2","action":"hang"}
		< {"messageType":"actionStatus","correlationID":"q2","action":"hang","status":"failed","state":"cancelled","output":null,"error":null}
		> {"messageType":"cancelAction","thingID":"urn:x","messageID":"k2","action":"hang"}
		< {"messageType":"error","correlationID":"k2","code":"LMOS-1410"}`)
}

// TestLastStateIsKept: an ended run that was not a task of its host can be queried like a running one.
func TestLastStateIsKept(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"completed": `
			> {"messageType":"invokeAction","thingID":"urn:x","messageID":"m1","action":"chat","input":{"q":1}}
			< {"messageType":"actionStatus","correlationID":"m1","status":"completed","output":{"q":1}}
			> {"messageType":"queryAction","thingID":"urn:x","messageID":"q1","action":"chat"}
			< {"messageType":"actionStatus","correlationID":"q1","action":"chat","status":"completed","output":{"q":1}}`,
		"the latest of an action": `
			> {"messageType":"invokeAction","thingID":"urn:x","messageID":"m1","action":"chat","input":1}
			< {"messageType":"actionStatus","correlationID":"m1","status":"completed","output":1}
			> {"messageType":"invokeAction","thingID":"urn:x","messageID":"m2","action":"chat","input":2}
			< {"messageType":"actionStatus","correlationID":"m2","status":"completed","output":2}
			> {"messageType":"queryAction","thingID":"urn:x","messageID":"q1","action":"chat"}
			< {"messageType":"actionStatus","correlationID":"q1","status":"completed","output":2}
			> {"messageType":"queryAction","thingID":"urn:x","messageID":"q2","correlationID":"m1","action":"chat"}
			< {"messageType":"actionStatus","correlationID":"m1","status":"completed","output":1}`,
		"parts": `
			> {"messageType":"invokeAction","thingId":"urn:x","messageId":"m1","action":"speak"}
			< {"messageType":"actionStatus","correlationId":"m1"}
			< {"messageType":"actionStatus","correlationId":"m1"}
			< {"messageType":"actionStatus","correlationId":"m1","status":"completed"}
			> {"messageType":"queryAction","thingId":"urn:x","messageId":"q1","action":"speak"}
			< {"messageType":"actionStatus","correlationId":"q1","status":"completed","output":"sunny"}`,
		"failed": `
			> {"messageType":"invokeAction","thingID":"urn:x","messageID":"m1","action":"fail"}
			< {"messageType":"error","correlationID":"m1","code":"LMOS-1502"}
			> {"messageType":"queryAction","thingID":"urn:x","messageID":"q1","action":"fail"}
			< {"messageType":"actionStatus","correlationID":"q1","status":"failed","error":{"code":"LMOS-1502","detail":"the model is out of memory"}}`,
		"in wtp": `
			> {"messageType":"request","operation":"invokeaction","thingID":"urn:x","messageID":"m1","name":"chat","input":3}
			< {"messageType":"response","operation":"invokeaction","output":3}
			> {"messageType":"request","operation":"queryaction","thingID":"urn:x","messageID":"q1","name":"chat"}
			< {"messageType":"response","operation":"queryaction","name":"chat","status":{"state":"completed","output":3}}`,
		"never begun": `
			> {"messageType":"queryAction","thingID":"urn:x","messageID":"q1","action":"chat"}
			< {"messageType":"error","correlationID":"q1","code":"LMOS-1410"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := serve(t, newLab(), ServerOptions{})
			dial(t, url, "lmosprotocol").talk(script)
		})
	}
}

// TestTasksOfWTP: one response, then queries.
func TestTasksOfWTP(t *testing.T) {
	t.Parallel()
	l := newLab()
	_, url := serve(t, l, ServerOptions{})
	w := dial(t, url, "webthingprotocol")
	for _, name := range []string{"work", "break"} {
		w.talk(`
			> {"messageType":"request","operation":"invokeaction","thingID":"urn:x","messageID":"m1","name":"` + name + `"}
			< {"messageType":"response","operation":"invokeaction","name":"` + name + `","status":{"actionID":"a-` + name + `","state":"pending"},"output":null}`)
		l.until(t, "the task has ended", func() bool { return l.state["a-"+name].Final() })
	}
	w.talk(`
		> {"messageType":"request","operation":"queryaction","thingID":"urn:x","messageID":"q1","actionID":"a-work"}
		< {"messageType":"response","operation":"queryaction","name":"work","status":{"actionID":"a-work","state":"completed","output":"done"}}
		> {"messageType":"request","operation":"queryaction","thingID":"urn:x","messageID":"q2","actionID":"a-break"}
		< {"messageType":"response","operation":"queryaction","status":{"actionID":"a-break","state":"failed","error":{"title":"it broke"}},"error":null}
		> {"messageType":"request","operation":"cancelaction","thingID":"urn:x","messageID":"q3","actionID":"a-work"}
		< {"messageType":"response","operation":"cancelaction","actionID":"a-work","status":null}`)
}

// TestTasksDoNotCountAsRequests: runs that outlive the connection are followed separately, up to a limit.
func TestTasksDoNotCountAsRequests(t *testing.T) {
	t.Parallel()
	l := newLab()
	_, url := serve(t, l, ServerOptions{MaxPending: 1, MaxSubscriptions: 2})
	w := dial(t, url, "lmosprotocol")
	for range 4 { // the third and fourth are not followed
		w.talk(`
			> {"messageType":"invokeAction","thingID":"urn:x","messageID":"m1","action":"long"}
			< {"messageType":"actionStatus","correlationID":"m1","status":"pending","actionID":"a-long"}`)
		for w.readNow()["code"] == "LMOS-1529" { // until the place is free again
		}
	}
	l.unblock.Do(func() { close(l.release) })
	for range 2 {
		w.expect(`{"messageType":"actionStatus","status":"completed"}`)
	}
	w.quiet()
}

// readNow reads the level and returns the answer.
func (w *wire) readNow() map[string]any {
	w.say(`{"messageType":"readProperty","thingID":"urn:x","messageID":"now","name":"level"}`)
	return w.hear()
}

func TestRunsAreBounded(t *testing.T) {
	t.Parallel()
	r := runs{keep: time.Minute}
	now := time.Now()
	for i := range 3 * maxRuns {
		one := &run{thing: "urn:x", name: "work", id: fmt.Sprint("m", i)}
		r.add(one)
		if r.setActionID(one, fmt.Sprint("a", i)); i%3 == 0 {
			r.end(one, nil, false, now)
		}
	}
	if len(r.list) != maxRuns {
		t.Errorf("%d runs are remembered, want %d", len(r.list), maxRuns)
	}
	f := &frame.Frame{}
	f.Thing, f.Name = "urn:x", "work"
	if one, ok := r.find(f); !ok || one.id != fmt.Sprint("m", 3*maxRuns-1) {
		t.Errorf("the latest run is %q, %v", one.id, ok)
	}
	f.Correlation = "m5"
	if one, ok := r.find(f); !ok || one.id == "m5" {
		t.Errorf("a forgotten run was found: %q", one.id)
	}
	unnamed := &run{id: "unnamed"}
	r.add(unnamed)
	r.end(unnamed, nil, false, now)
	if len(r.list) != maxRuns-1 {
		t.Errorf("a run without a reader is kept: %d", len(r.list))
	}
}

// TestLastStatesAreBounded keeps outputs until they are too many or too old.
func TestLastStatesAreBounded(t *testing.T) {
	t.Parallel()
	r, now := runs{keep: time.Minute}, time.Now()
	end := func(id string, size int, age time.Duration) *run {
		one := &run{thing: "urn:x", name: id, id: id}
		r.add(one)
		r.end(one, &interact.Message{Status: interact.StatusCompleted, Data: make([]byte, size)}, false, now.Add(-age))
		return one
	}
	known := func(want ...string) {
		t.Helper()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.sweepLocked(now)
		var got []string
		held := 0
		for _, one := range r.list {
			got, held = append(got, one.id), held+len(one.last.Data)
		}
		if !slices.Equal(got, want) || held != r.held {
			t.Errorf("kept are %v with %d bytes (%d), want %v", got, r.held, held, want)
		}
	}
	end("a", maxKept/2, 0)
	end("b", maxKept/2, 0)
	known("a", "b")
	end("c", 1, 0)
	known("b", "c")
	if big := end("d", maxKept+1, 0); !big.lost || big.last.Data != nil {
		t.Errorf("an output that is too large is %+v", big)
	}
	end("old", 1, time.Minute)
	known("b", "c", "d")
	r.sweepLocked(now.Add(time.Minute))
	known()
}

// TestPartsAreJoined for peers that accept only one output: the output of the agent is its input.
func TestPartsAreJoined(t *testing.T) {
	t.Parallel()
	mesh := interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			var in struct {
				Media, Last string
				Parts       []string
				Times       int // that the parts come; 0 means once
			}
			if err := json.Unmarshal(m.Data, &in); err != nil {
				yield(nil, err)
				return
			}
			last := m.Reply(interact.ActionStatus, in.Media, []byte(in.Last))
			last.Status = interact.StatusCompleted
			for _, p := range slices.Repeat(in.Parts, max(1, in.Times)) {
				r := m.Reply(interact.ActionStatus, in.Media, []byte(p))
				if r.Status = interact.StatusRunning; !yield(r, nil) {
					return
				}
			}
			yield(last, nil)
		}
	})
	s := NewServer(ServerOptions{Find: find(describe(t, `"href": "ws://unused.example"`)), Mesh: mesh, MaxMessage: 1 << 10})
	url := listen(t, s)
	for name, c := range map[string]struct{ input, want string }{
		"text":          {`{"media":"text/plain","parts":["sun","","ny"]}`, `"output":"sunny","contentType":"text/plain"`},
		"texts of JSON": {`{"parts":["\"sun\"","\"ny\""]}`, `"output":"sunny","contentType":null`},
		"values":        {`{"parts":["1","{\"a\":2}"]}`, `"output":[1,{"a":2}]`},
		"one value":     {`{"parts":["1"]}`, `"output":1`},
		"and a last":    {`{"parts":["1","2"],"last":"3"}`, `"output":[1,2,3]`},
		"only a last":   {`{"last":"3"}`, `"output":3`},
		"nothing":       {`{}`, `"output":null`},
		"bytes":         {`{"media":"audio/ogg","parts":["x","y"]}`, `"output":"eHk=","base64":true,"contentType":"audio/ogg"`},
		"a lot":         {`{"media":"text/plain","parts":["` + strings.Repeat("x", 80) + `"],"times":5}`, `"output":"` + strings.Repeat("x", 400) + `"`},
	} {
		w := dial(t, url, "webthingprotocol")
		w.talk(`
			> {"messageType":"request","operation":"invokeaction","thingID":"urn:x","messageID":"m1","name":"chat","input":` + c.input + `}
			< {"messageType":"response","operation":"invokeaction",` + c.want + `}
			> {"messageType":"invokeAction","thingId":"urn:x","messageId":"m2","action":"chat","input":` + c.input + `}
			< {"messageType":"actionStatus","status":"completed",` + c.want + `}`)
		if t.Failed() {
			t.Fatal(name)
		}
	}
	dial(t, url).talk(`
		> {"messageType":"invokeAction","thingId":"urn:x","messageId":"m2","action":"chat","input":{"parts":["111"],"times":342}}
		< {"messageType":"error","correlationId":"m2","code":"LMOS-1413"}`)
}
