package main

import (
	"encoding/json"
	"io"
	"net/http"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
)

// policyRoutes adds the routes of the access rules: the fake has two rules, and allows all but partners.
func (n *fakeNode) policyRoutes(mux *http.ServeMux) {
	rules := []api.Rule{
		{ID: "policy.yaml:3", Text: "{allow: globex, to: call, on: weather}", RuleRequest: api.RuleRequest{Allow: []string{"globex"}, To: []string{"call"}, On: []string{"weather"}}},
		{ID: "expose weather", Text: `{allow: anyone, to: [find, call], on: "urn:example:weather"}`},
	}
	const file = "/var/lib/lmosd/policy.yaml"
	mux.HandleFunc("GET /v1/policy", n.guard(func(w http.ResponseWriter, _ *http.Request) {
		p := api.Policy{APIVersion: api.APIVersion, Kind: "Policy", File: file, Untrusted: "find", Connect: "anyone", Items: rules}
		if n.bare {
			p.Items, p.Error = []api.Rule{}, "access rules: policy.yaml:3:5: unknown operation"
		}
		answer(w, p)
	}))
	mux.HandleFunc("POST /v1/policy/rules", n.guard(func(w http.ResponseWriter, r *http.Request) {
		var q api.RuleRequest
		raw, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(raw, &q); err != nil {
			panic(err)
		}
		change := api.PolicyChange{APIVersion: api.APIVersion, Kind: "PolicyChange", File: file,
			Added: []api.Rule{{ID: "policy.yaml:4", Text: string(raw), RuleRequest: q}}}
		if len(q.On) > 0 && q.On[0] != "weather" {
			change.Warnings = []string{"this node offers no agent " + q.On[0] + " now"}
		}
		answer(w, change)
	}))
	mux.HandleFunc("DELETE /v1/policy/rules", n.guard(func(w http.ResponseWriter, r *http.Request) {
		answer(w, api.PolicyChange{APIVersion: api.APIVersion, Kind: "PolicyChange", File: file, Removed: rules[:len(r.URL.Query()["rule"])]})
	}))
	mux.HandleFunc("GET /v1/policy/rights", n.guard(func(w http.ResponseWriter, r *http.Request) {
		who := r.URL.Query().Get("who")
		if who == "" {
			who = did.Operator
		}
		answer(w, api.RightList{APIVersion: api.APIVersion, Kind: "RightList", Items: []api.Right{
			{Who: who, Thing: "weather", Op: "find", Allow: true, Why: "partner callers may find"},
			{Who: who, Thing: "weather", Affordance: "getWeather", Op: "invoke", Rule: "policy.yaml:3", Why: "a rule denies invoke to the caller", Conditional: true}}})
	}))
	mux.HandleFunc("POST /v1/trust/why", n.guard(func(w http.ResponseWriter, r *http.Request) {
		var q api.WhyRequest
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			panic(err)
		}
		e := api.Explanation{APIVersion: api.APIVersion, Kind: "Explanation", Relation: "partner", Right: api.Right{Who: q.Who, Op: q.Op, Thing: q.On,
			Allow: q.Who != "partners", Why: "no rule lets partner callers " + q.Op},
			Principal: []api.PrincipalPart{{Name: "relation", Value: "partner", From: "assumed: a member of the organization"}}}
		if e.Allow {
			e.Rule, e.Text, e.Why = "policy.yaml:3", "{allow: globex, to: call, on: weather}", "a rule lets the caller "+q.Op
		} else {
			e.Code = "LMOS-1403"
		}
		if q.With != nil {
			e.With = q.With.Name
		}
		e.Conditional = len(q.Input) > 0
		answer(w, e)
	}))
}
