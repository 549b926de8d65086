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

// Of agents that match the same words of the task, the tie-break selects one, and the reason names the others and the rule.
func TestEqualMatches(t *testing.T) {
	t.Parallel()
	billing, accounts := named("Billing", "bill: show my bill"), named("Accounts", "money: pay a bill", "tax: file the taxes")
	weather, forecast := named("Weather", "weather"), named("Forecast", "forecast: the weather of tomorrow")
	twin := named("Accounts", "money: pay a bill", "tax: file the taxes")
	twin.Record.Owner = "did:key:z6Mktwin"
	local := map[string]AgentState{"accounts": {Local: true}, "forecast": {Trust: 1}}
	for name, c := range map[string]struct {
		agents  []*td.Description
		state   map[string]AgentState
		message string
		want    string
		by      TieBreak
		reason  string
	}{
		"local":               {[]*td.Description{billing, accounts}, local, "the bill", "accounts", ByLocal, "2 agents match the same words (accounts, also billing@z6MkBill…): this node hosts"},
		"trust":               {[]*td.Description{weather, forecast}, local, "the weather", "forecast", ByTrust, "also weather@z6MkWeat…): the owner of this one is trusted more"},
		"no state":            {[]*td.Description{billing, accounts}, nil, "the bill", "accounts", ByReference, "no known state"},
		"unreachable":         {[]*td.Description{billing, accounts}, map[string]AgentState{"accounts": {Unreachable: true, Local: true}}, "the bill", "billing", "", "matches best"},
		"different words":     {[]*td.Description{billing, weather}, nil, "the bill and the weather", "", "", "match equally well"},
		"a third, other ones": {[]*td.Description{billing, accounts, weather}, local, "the bill and the weather", "", "", "match equally well"},
		"two of each":         {[]*td.Description{billing, accounts, weather, forecast}, local, "the bill and the weather", "", "", "match equally well"},
		"a third, far below": {[]*td.Description{named("A", "a: pay the electricity bill"), named("B", "b: my electricity bill: how to pay it"), named("Post", "letter")},
			map[string]AgentState{"b": {Local: true}, "post": {Local: true, Trust: 1}}, "pay the electricity bill by letter", "b", ByLocal, "also a@"},
		"more words":           {[]*td.Description{billing, accounts, weather}, local, "pay the bill of the taxes", "accounts", "", "matches best"},
		"stop words":           {[]*td.Description{named("A", "a: I want to pay"), named("B", "b: I want a tariff")}, nil, "I want", "", "", "match equally well"},
		"stop words as sample": {[]*td.Description{named("A", "a: who are you"), named("B", "b: who are you")}, nil, "hello, who are you", "", "", "match equally well"},
		"words in two examples": {[]*td.Description{named("A", "a: bill; weather"), named("B", "b: weather; bill", "c: stocks")}, map[string]AgentState{"b": {Local: true}},
			"bill and weather", "b", ByLocal, "also a@"},
		"both in one agent":    {[]*td.Description{named("A", "a: bill; weather"), named("B", "b: the bill")}, nil, "bill and weather", "", "", "match equally well"},
		"equal and the same":   {[]*td.Description{billing, accounts, twin}, map[string]AgentState{"billing": {Local: true}}, "the bill", "billing", ByLocal, "3 agents match the same words"},
		"a history with words": {[]*td.Description{billing, accounts}, local, "and pay it", "accounts", "", "matches best"},
	} {
		r := router(t, Options{Find: finder(c.agents), State: func(d *td.Description) AgentState { return c.state[d.Name()] }})
		q := Request{Message: c.message}
		if name == "a history with words" {
			q.History = []Turn{{"USER", "a bill"}}
		}
		d, err := r.Route(t.Context(), q)
		if err != nil || chosen(d) != c.want || d.TieBreak != c.by || !strings.Contains(d.Reason, c.reason) {
			t.Errorf("%s: got %q by %q, %v: %s", name, chosen(d), d.TieBreak, err, d.Reason)
			continue
		}
		ids := map[string]bool{}
		for _, one := range d.Candidates {
			ids[one.ID] = true
		}
		if len(ids) != len(d.Candidates) || c.want != "" && d.Candidates[0].ID != d.Agent.ID || c.by != "" && len(ids) < 2 {
			t.Errorf("%s: candidates %+v", name, d.Candidates)
		}
	}
}

// A hybrid decision whose model fails is one by words, and not by the vectors that were compared before.
func TestWordsAfterVectors(t *testing.T) {
	t.Parallel()
	r := router(t, Options{Method: Hybrid, Model: &fixedModel{says: "not JSON"}, Embedder: new(topicEmbedder)})
	d, err := r.Route(t.Context(), Request{Message: "an umbrella"}) // near to weather, and no word of it
	if err != nil || d.Agent != nil || d.Method != Lexical || !strings.Contains(d.Reason, "no agent matches a word") {
		t.Errorf("got %+v, %v", d, err)
	}
}
