package task

import (
	"context"
	"encoding/json"
	"iter"
	"testing"
	"testing/synctest"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A run with several open inputs waits until all are answered, and lists the remaining ones; only the caller that started it can answer.
func TestRunsThatAsk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := New(Options{})
		defer r.Close()
		var parking interact.InputWaiter
		thing := r.Middleware(&td.Thing{ID: "urn:x:y"})(interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(yield func(*interact.Message, error) bool) {
				if m.Type == interact.ContinueAction {
					yield(parking.Continue(m))
					return
				}
				answers, left, err := parking.Ask(ctx, m, interact.Inputs{"a": {Kind: interact.InputForm}, "b": {Kind: interact.InputURL}}, yield)
				if left || err != nil {
					yield(nil, err)
					return
				}
				data, _ := json.Marshal(answers)
				last := m.Reply(interact.ActionStatus, interact.JSON, data)
				last.Status = interact.StatusCompleted
				yield(last, nil)
			}
		}))
		var run string
		for s, err := range thing.Do(t.Context(), &interact.Message{Type: interact.InvokeAction, ID: "1", Name: "x", Detach: true, From: who("did:key:a")}) {
			if err != nil {
				t.Fatal(err)
			}
			if run = s.ActionID; s.Status == interact.StatusInputRequired {
				break
			}
		}
		say := func(typ interact.Type, from, data string) (string, error) {
			m, err := interact.Call(t.Context(), thing, &interact.Message{Type: typ, ID: "2", ActionID: run, From: who(did.DID("did:key:" + from)), Data: []byte(data)})
			synctest.Wait()
			if err != nil {
				return "", err
			}
			return m.Status.String() + " " + string(m.Data), nil
		}
		for _, step := range []struct {
			typ        interact.Type
			from, data string
			want       string // a code is an error
		}{
			{interact.QueryAction, "a", "", `input-required {"a":{"kind":"form"},"b":{"kind":"url"}}`},
			{interact.ContinueAction, "b", `{"a":{"action":"accept"}}`, "LMOS-1410"},
			{interact.ContinueAction, "a", `7`, "LMOS-1400"},
			{interact.ContinueAction, "a", `{"a":{"action":"accept","content":1},"c":{"action":"cancel"}}`, " "},
			{interact.QueryAction, "a", "", `input-required {"b":{"kind":"url"}}`},
			{interact.ContinueAction, "a", `{"b":{"action":"decline"}}`, " "},
			{interact.QueryAction, "a", "", `completed {"a":{"action":"accept","content":1},"b":{"action":"decline"}}`},
			{interact.ContinueAction, "a", `{"b":{"action":"decline"}}`, "LMOS-1410"},
		} {
			got, err := say(step.typ, step.from, step.data)
			if err != nil {
				got = interact.AsError(err).Code.String()
			}
			if got != step.want {
				t.Errorf("%v by %s of %s: got %s, want %s (%v)", step.typ, step.from, step.data, got, step.want, err)
			}
		}
	})
}
