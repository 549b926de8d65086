package gateway

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy"
	accessrules "github.com/lmosd/lmosd/policy/access"
	policyrules "github.com/lmosd/lmosd/policy/rules"
)

// withRules returns the options of a gateway with a file of access rules and the partner globex.
func withRules(t *testing.T, rules string) (o Options, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	p := policy.New(policy.Rules{Options: policyrules.Options{File: file, Untrusted: accessrules.UntrustedFind, Connect: accessrules.ConnectAnyone, Organization: func(name string) (did.DID, bool) {
		id, ok := map[string]did.DID{"own": "did:webvh:QmAcme:acme.example", "globex": "did:webvh:QmGlobex:globex.example"}[name]
		return id, ok
	}}})
	if err := p.Load(); err != nil {
		t.Fatal(err)
	}
	o = serving(goldenNode(), Options{Policy: p})
	return o, file
}

const twoRules = "apiVersion: lmosd/v1\nrules:\n- {allow: globex/ops, to: [find, invoke], on: weather/ask}\n- {deny: own, to: write, when: 'context.hops > 1'}\n"

// The documents of access rules are in testdata; go test ./gateway -update rewrites them.
func TestGoldenPolicy(t *testing.T) {
	t.Parallel()
	o, file := withRules(t, twoRules)
	r := start(t, o)
	jsonBody := merge(asAdmin, "Content-Type", interact.JSON)
	for _, c := range []struct {
		name string
		exchange
	}{
		{"policy", exchange{path: "/v1/policy", header: asAdmin}},
		{"rights-who", exchange{path: "/v1/policy/rights?who=globex", header: asAdmin}},
		{"rights-on", exchange{path: "/v1/policy/rights?on=urn:x:old", header: asAdmin}},
		{"why", exchange{method: "POST", path: "/v1/trust/why", header: jsonBody, body: `{"who":"globex/ops","op":"invoke","on":"weather/ask","input":{"a":1}}`}},
		{"why-denied", exchange{method: "POST", path: "/v1/trust/why", header: jsonBody, body: `{"who":"anyone","op":"invoke","on":"weather","with":{"name":"new.yaml","text":"apiVersion: lmosd/v1\nrules: [{deny: anyone, to: '*'}]"}}`}},
		{"rule-added", exchange{method: "POST", path: "/v1/policy/rules", header: jsonBody, body: `{"allow":["anyone"],"to":["call"],"on":["weather","wether","*","cap:urn:x"]}`}},
		{"rules-removed", exchange{method: "DELETE", path: "/v1/policy/rules?rule=anyone&rule=3", header: asAdmin}},
		{"problem-policy", exchange{method: "POST", path: "/v1/policy/rules", header: jsonBody, body: `{"allow":["globx"],"to":["call"]}`}},
	} {
		_, body := r.do(t, c.exchange)
		golden(t, c.name, []byte(strings.ReplaceAll(body, file, "/var/lib/lmosd/policy.yaml")), r.url)
	}
}

func TestPolicyRoutes(t *testing.T) {
	t.Parallel()
	o, file := withRules(t, twoRules)
	r := start(t, o)
	jsonBody := merge(asAdmin, "Content-Type", interact.JSON)
	for name, x := range map[string]exchange{
		"no token":                  {path: "/v1/policy", status: 401},
		"no token for reasons":      {method: "POST", path: "/v1/trust/why", status: 401},
		"an unknown caller":         {path: "/v1/policy/rights?who=globx", header: asAdmin, status: 400, code: "LMOS-1400"},
		"an unknown thing":          {path: "/v1/policy/rights?on=wether", header: asAdmin, status: 404, code: "LMOS-1404"},
		"the node":                  {path: "/v1/policy/rights?on=node", header: asAdmin, status: 200, contain: `"op":"connect"`},
		"neither":                   {path: "/v1/policy/rights", header: asAdmin, status: 400},
		"both":                      {path: "/v1/policy/rights?on=weather&who=own", header: asAdmin, status: 400},
		"a thing of another node":   {path: "/v1/policy/rights?on=urn:x:bare", header: asAdmin, status: 404},
		"no rule to remove":         {method: "DELETE", path: "/v1/policy/rules", header: asAdmin, status: 400},
		"an unknown rule":           {method: "DELETE", path: "/v1/policy/rules?rule=77", header: asAdmin, status: 400},
		"an unknown operation":      {method: "POST", path: "/v1/trust/why", header: jsonBody, body: `{"who":"own","op":"fly"}`, status: 400},
		"an operation of a thing":   {method: "POST", path: "/v1/trust/why", header: jsonBody, body: `{"who":"own","op":"invoke"}`, status: 400},
		"an operation of the node":  {method: "POST", path: "/v1/trust/why", header: jsonBody, body: `{"who":"own","op":"store"}`, status: 200, contain: `"allow":true`},
		"of the node on a thing":    {method: "POST", path: "/v1/trust/why", header: jsonBody, body: `{"who":"own","op":"store","on":"weather"}`, status: 400},
		"an unknown affordance":     {method: "POST", path: "/v1/trust/why", header: jsonBody, body: `{"who":"own","op":"invoke","on":"weather/fly"}`, status: 404, code: "LMOS-1405"},
		"a file that is not valid":  {method: "POST", path: "/v1/trust/why", header: jsonBody, body: `{"who":"own","op":"invoke","on":"weather","with":{"name":"x.cedar","text":"permit"}}`, status: 400, code: "LMOS-2007"},
		"another form of the body":  {method: "POST", path: "/v1/trust/why", header: jsonBody, body: `{"whom":"own"}`, status: 400},
		"a rule without operations": {method: "POST", path: "/v1/policy/rules", header: jsonBody, body: `{"allow":["own"]}`, status: 400, code: "LMOS-2007"},
		"a rule that is not JSON":   {method: "POST", path: "/v1/policy/rules", header: jsonBody, body: `{`, status: 400},
	} {
		t.Run(name, func(t *testing.T) { r.check(t, x) })
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != twoRules {
		t.Errorf("the file is %s, %v", text, err)
	}
	bare := start(t, Options{})
	bare.check(t, exchange{path: "/v1/policy", header: asAdmin, status: 404, contain: "no access rules"})
}

func TestClientOfThePolicy(t *testing.T) {
	t.Parallel()
	o, _ := withRules(t, twoRules)
	r := start(t, o)
	c := dial(t, r.url, token)
	p, err := c.Policy(t.Context())
	if err != nil || len(p.Items) != 2 || p.Items[0].ID != "policy.yaml:3" {
		t.Errorf("%+v, %v", p, err)
	}
	change, err := c.AddRule(t.Context(), api.RuleRequest{Deny: []string{"own/x"}, To: []string{"*"}})
	if err != nil || len(change.Added) != 1 || change.Added[0].ID != "policy.yaml:5" {
		t.Errorf("%+v, %v", change, err)
	}
	if change, err = c.RemoveRules(t.Context(), "own/x", "policy.yaml:3"); err != nil || len(change.Removed) != 2 {
		t.Errorf("%+v, %v", change, err)
	}
	of, err := c.Rights(t.Context(), "globex")
	on, err2 := c.RightsOn(t.Context(), "weather")
	if err != nil || err2 != nil || len(of.Items) == 0 || len(on.Items) == 0 {
		t.Errorf("%+v, %v; %+v, %v", of, err, on, err2)
	}
	e, err := c.Why(t.Context(), api.WhyRequest{Who: "local", Op: "invoke", On: "weather"})
	if err != nil || !e.Allow || e.Relation != "local" || !slices.Contains(e.Principal, api.PrincipalPart{Name: "via", Value: "socket", From: "the listener"}) {
		t.Errorf("%+v, %v", e, err)
	}
}
