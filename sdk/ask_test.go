package sdk

import (
	"encoding/json"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
)

// TestActionsThatRequireInput: an action in each language requests input and continues with it.
func TestActionsThatRequireInput(t *testing.T) {
	t.Parallel()
	h := newHost(t, "")
	for language, start := range languages {
		t.Run(language, func(t *testing.T) {
			l := start(t, h, h.api, "asks-"+language)
			for answer, want := range map[string]string{
				`{"action":"accept","content":{"name":"attic","dim":true}}`: `"attic, dimly"`,
				`{"action":"accept","content":{"name":"attic"}}`:            `"attic"`,
				`{"action":"decline"}`:                                      `"nowhere"`,
				`{"action":"cancel"}`:                                       `"nowhere"`,
			} {
				task := asking(t, h, l)
				if in := task.Inputs["answer"]; in.Kind != interact.InputForm || in.Message != "Which room?" || !same(in.Schema,
					`{"type":"object","required":["name"],"properties":{"name":{"type":"string"},"dim":{"type":"boolean"}}}`) {
					t.Errorf("the input request is %+v %s", in, in.Schema)
				}
				answered(t, h, task, answer)
				if now, err := h.client.WaitTask(t.Context(), task); err != nil || string(now.Output) != want {
					t.Errorf("%s: got %+v, %v", answer, now, err)
				}
				if err := h.client.AnswerTask(t.Context(), task, interact.Answers{}); interact.AsError(err).Code != interact.NoTask {
					t.Errorf("answered twice: %v", err)
				}
			}
			task := asking(t, h, l)
			if now, err := h.client.CancelTask(t.Context(), task.ID); err != nil || now.Status != "cancelled" {
				t.Errorf("cancelled: got %+v, %v", now, err)
			}
		})
	}
}

func asking(t *testing.T, h *host, l *lamp) *api.Task {
	t.Helper()
	r, err := h.client.Invoke(t.Context(), l.id, "place", api.CallOptions{Interactive: true})
	if err != nil || r.Task == nil {
		t.Fatalf("got %+v, %v", r, err)
	}
	return r.Task
}

func answered(t *testing.T, h *host, task *api.Task, answer string) {
	t.Helper()
	if err := h.client.AnswerTask(t.Context(), task, interact.Answers{"answer": answerOf(t, answer)}); err != nil {
		t.Fatal(err)
	}
}

func answerOf(t *testing.T, text string) (a interact.Answer) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		t.Fatal(err)
	}
	return a
}
