package agent

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

// callWithAnswers runs the action name of a Thing and answers each input request; without an answer it ends the loop. It returns all input
// requests and the result.
func callWithAnswers(t *testing.T, thing interact.Thing, name string, answers ...string) (messages []string, output string, err error) {
	t.Helper()
	m := &interact.Message{Type: interact.InvokeAction, ID: "1", Name: name, Data: []byte(`{}`)}
	for r, e := range thing.Do(t.Context(), m) {
		switch {
		case e != nil:
			return messages, output, e
		case r.Status != interact.StatusInputRequired:
			output += string(r.Data)
			continue
		case len(answers) == 0:
			return messages, output, nil
		}
		messages = append(messages, string(r.Data))
		c := m.Reply(interact.ContinueAction, interact.JSON, []byte(answers[0]))
		c.ActionID = r.ActionID
		if _, err := interact.Call(t.Context(), thing, c); err != nil {
			t.Error(err)
		}
		answers = answers[1:]
	}
	return messages, output, nil
}

func TestAsk(t *testing.T) {
	t.Parallel()
	type town struct {
		Name string `json:"name"`
		Days int    `json:"days,omitempty"`
	}
	ask := func(ctx context.Context, _ None) (town, error) { return Ask[town](ctx, "Where?") }
	twice := func(ctx context.Context, _ None) (string, error) {
		first, err := ask(ctx, None{})
		if err != nil {
			return "", err
		}
		second, err := ask(ctx, None{})
		return first.Name + second.Name, err
	}
	site := func(ctx context.Context, _ None) (string, error) {
		answers, err := AskFor(ctx, interact.Inputs{"u": {Kind: interact.InputURL, URL: "https://a.example"}})
		return answers["u"].Action, err
	}
	raw, thing, err := New(Agent{Name: "a"}, Action("ask", ask, RequiresInput()), Action("twice", twice), Action("site", site))
	if err != nil || !strings.Contains(string(raw), `"lmosd:requiresInput":true`) {
		t.Fatalf("got %s, %v", raw, err)
	}
	accept := func(content string) string { return `{"answer":{"action":"accept","content":` + content + `}}` }
	for name, c := range map[string]struct {
		action   string
		answers  []string
		want     string
		requests int
		failed   interact.Code
	}{
		"answered": {"ask", []string{accept(`{"name":"Bonn"}`)}, `{"name":"Bonn"}`, 1, 0},
		"twice":    {"twice", []string{accept(`{"name":"a"}`), accept(`{"name":"b"}`)}, `"ab"`, 2, 0},
		"answers that do not match": {"ask", []string{accept(`{"name":7}`), accept(`7`), accept(`{"name":"Bonn","days":2}`)},
			`{"name":"Bonn","days":2}`, 3, 0},
		"only invalid answers": {"ask", strings.Split(strings.Repeat(accept(`{}`)+"\n", maxTries), "\n"), "", maxTries, interact.Invalid},
		"declined":             {"ask", []string{`{"answer":{"action":"decline"}}`}, "", 1, interact.AgentFailed},
		"an address":           {"site", []string{`{"u":{"action":"accept"}}`}, `"accept"`, 1, 0},
		"left":                 {"ask", nil, "", 0, 0},
	} {
		messages, output, err := callWithAnswers(t, thing, c.action, c.answers...)
		if output != c.want || len(messages) != c.requests || (err != nil) != (c.failed != 0) || err != nil && interact.AsError(err).Code != c.failed {
			t.Errorf("%s: got %s, requests %v, %v", name, output, messages, err)
		}
		if len(messages) > 1 && c.action == "ask" && !strings.Contains(messages[1], `Where?\n/name expected string`) &&
			!strings.Contains(messages[1], "is missing") {
			t.Errorf("%s: requested again without a reason: %s", name, messages[1])
		}
	}
	if _, err := Ask[town](t.Context(), "Where?"); interact.AsError(err).Code != interact.NotAllowed {
		t.Errorf("outside of an action: %v", err)
	}
}

// Disconnecting ends a stream that requires input.
func TestDisconnectWhileAStreamRequiresInput(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	_, thing, err := New(Agent{Name: "a"}, Stream("s", func(ctx context.Context, _ None) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			yield("first", nil)
			_, err := Ask[string](ctx, "Go on?")
			ended <- err
			yield("", err)
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	if _, output, err := callWithAnswers(t, thing, "s"); output != `"first"` || err != nil {
		t.Errorf("got %s, %v", output, err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}
