package route

import (
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// ofOwner returns an agent of an owner; all of them are equal.
func ofOwner(owner string) *td.Description {
	d := named("Billing", "bill: show my bill; why is my invoice so high")
	d.Record.Owner = did.DID("did:key:z6Mk" + owner)
	return d
}

// Among equal agents the router selects the nearest trusted one, with the reason, and none that is unreachable.
func TestTieBreak(t *testing.T) {
	t.Parallel()
	ms := time.Millisecond
	for name, c := range map[string]struct {
		standing map[string]AgentState
		want     string
		by       TieBreak
		reason   string
	}{
		"here":             {map[string]AgentState{"a": {Reached: true, RoundTrip: ms}, "b": {Local: true}}, "b", ByLocal, "this node hosts"},
		"trusted":          {map[string]AgentState{"a": {Reached: true, RoundTrip: ms, Trust: 0.5}, "b": {Trust: 1}}, "b", ByTrust, "trusted"},
		"reached":          {map[string]AgentState{"a": {RoundTrip: ms}, "b": {Reached: true, RoundTrip: 2 * ms}}, "b", ByReached, "reachable"},
		"the nearest":      {map[string]AgentState{"a": {RoundTrip: 3 * ms}, "b": {RoundTrip: 2 * ms}}, "b", ByRoundTrip, "2ms away"},
		"not measured":     {map[string]AgentState{"a": {}, "b": {RoundTrip: 2 * ms}}, "b", ByRoundTrip, "2ms away"},
		"unknown state":    {nil, "a", ByReference, "no known state"},
		"one unreachable":  {map[string]AgentState{"a": {Unreachable: true, Local: true, Trust: 1}, "b": {}}, "b", "", ""},
		"one rejects":      {map[string]AgentState{"a": {Refused: true, Reached: true, Trust: 1}, "b": {}}, "b", "", ""},
		"both reject":      {map[string]AgentState{"a": {Refused: true}, "b": {Refused: true}}, "", "", "rejects this node"},
		"both unreachable": {map[string]AgentState{"a": {Unreachable: true}, "b": {Unreachable: true}}, "", "", "unreachable"},
	} {
		for _, method := range []Method{Lexical, Vector} {
			agents := []*td.Description{ofOwner("a"), ofOwner("b")}
			r := router(t, Options{Find: finder(agents), Embedder: new(topicEmbedder), Thresholds: Thresholds{Total: 1, Mean: 0.1, Distance: 0.5, RelDistance: 0.1},
				State: func(d *td.Description) AgentState {
					return c.standing[strings.TrimPrefix(string(d.Record.Owner), "did:key:z6Mk")]
				}})
			d, err := r.Route(t.Context(), Request{Message: "show my bill", Method: method})
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if d.Agent != nil {
				got = d.Agent.ID[len(d.Agent.ID)-1:]
			}
			if got != c.want || d.TieBreak != c.by || !strings.Contains(d.Reason, c.reason) {
				t.Errorf("%s, %s: got %q by %q: %s", name, method, got, d.TieBreak, d.Reason)
			}
			if two := c.by != ""; two != (len(d.Candidates) == 2) || c.want != "" && d.Candidates[0].ID != d.Agent.ID {
				t.Errorf("%s, %s: candidates %+v", name, method, d.Candidates)
			}
		}
	}
}

// The best match is not selected if it is unreachable, and remains a candidate.
func TestUnreachableIsNotSelected(t *testing.T) {
	t.Parallel()
	gone := map[string]bool{"Billing": true}
	model := &fixedModel{says: `{"agentId":"` + platform[0].Ref() + `"}`}
	r := router(t, Options{Model: model, State: func(d *td.Description) AgentState { return AgentState{Unreachable: gone[d.Title]} }})
	d, err := r.Route(t.Context(), Request{Message: "show my bill"})
	if err != nil || d.Agent != nil || !strings.Contains(d.Reason, "billing matches better, but is unreachable") {
		t.Errorf("got %+v, %v", d, err)
	}
	for _, c := range d.Candidates {
		if c.Name == "billing" {
			t.Errorf("candidates %+v", d.Candidates)
		}
	}
	d, err = r.Route(t.Context(), Request{Message: "show my bill", Method: LLM})
	if err != nil || d.Agent != nil || strings.Contains(model.prompt, platform[0].Ref()) {
		t.Errorf("it was a candidate for the model: %+v, %v, %s", d, err, model.prompt)
	}
	d, err = r.Route(t.Context(), Request{Message: "what is the weather"})
	if err != nil || chosen(d) != "weather" || strings.Contains(d.Reason, "unreachable") {
		t.Errorf("got %+v, %v", d, err)
	}
}

// Examples with common words match. Tools are candidates only of requests for all types.
func TestCommonWordsAndTools(t *testing.T) {
	t.Parallel()
	plug := named("Plug", "switch: turn the lamp off")
	plug.Thing.Types = []string{"lmos:Tool"}
	r := router(t, Options{Find: finder(append([]*td.Description{plug,
		named("Greeter", "about: who are you; what can you do; was kann ich")}, platform...))})
	for question, want := range map[string]string{
		"who are you?":            "greeter",
		"Hello, who are you":      "greeter", // "hello" matches no agent
		"what can you do":         "greeter",
		"what can you do for me?": "greeter",
		"what will the weather be, who are you to say it and can you do it for them all or not": "", // too few matching words
		"when does my contract end": "contract",
		"show my bill":              "billing",
		"turn the lamp off":         "", // no such agent
	} {
		d, err := r.Route(t.Context(), Request{Message: question})
		if err != nil || chosen(d) != want {
			t.Errorf("%q: got %q, %v: %+v", question, chosen(d), err, d)
		}
	}
	d, err := r.Route(t.Context(), Request{Message: "turn the lamp off", All: true})
	if err != nil || chosen(d) != "plug" {
		t.Errorf("of all: %+v, %v", d, err)
	}
	d, err = r.Route(t.Context(), Request{Message: "turn the lamp off", All: true, Filter: td.Query{Type: "agent"}})
	if err != nil || d.Agent != nil {
		t.Errorf("of all agents: %+v, %v", d, err)
	}
}
