package access

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/td"
)

const (
	registry = did.DID("did:web:registry.example")
	acme     = did.DID("did:webvh:QmPEQVM1JPTyrvEgBcDXwjK4TeyLGSX1PxjgyeAisdWM1p:acme.example")
	globex   = did.DID("did:webvh:QmT4z6dmPzCDBmvDWUtjmCqeeaiPFJnVgMBzQyNo8kRVqA:globex.example")
)

var (
	node    = didtest.Key(1).DID()
	other   = didtest.Key(2).DID()
	local   = did.Consumer(did.Loopback, "")
	member  = &did.Principal{DID: node, Node: node, Via: did.Peer, Org: globex, Roles: []string{"ops"}, Relation: did.Own}
	ciToken = &did.Principal{Name: "ci", Via: did.Token, Relation: did.Local, Roles: []string{"build"}}
	agent   = &did.Principal{DID: other, Node: other, Name: "crm", Via: did.Peer, Org: acme, Roles: []string{"node", "customer-service"}, Relation: did.Partner}
	guest   = &did.Principal{DID: other, Node: other, Via: did.Peer, Org: acme, Roles: []string{"node"}, Relation: did.Partner}
	holder  = &did.Principal{DID: other, Node: other, Via: did.Peer, Attested: []did.Attestation{{Issuer: registry, Role: "adjuster"}, {Issuer: registry, Role: "auditor"}}}
	alien   = &did.Principal{DID: other, Node: other, Via: did.Peer}

	logistics = &Target{ID: "urn:lmos:did:key:z6Mk:logistics", Names: []string{"logistics"}, Capabilities: []string{"urn:example", "urn:example:catalogue"}, Visibility: td.Partners}
	payout    = &Target{ID: "urn:lmos:did:key:z6Mk:payout", Names: []string{"payout"}}
	hidden    = &Target{ID: "urn:lmos:did:key:z6Mk:hidden", Names: []string{"hidden"}, Visibility: td.Private}
)

func options() Options {
	return Options{Self: globex, Untrusted: UntrustedFind, Organization: func(name string) (did.DID, bool) {
		id, ok := map[string]did.DID{"acme": acme, "globex": globex, "registry": registry}[name]
		return id, ok
	}}
}

func build(t testing.TB, o Options, rules string) *Set {
	t.Helper()
	b := NewBuilder(o)
	if err := b.AddYAML("policy.yaml", []byte("apiVersion: lmosd/v1\nrules:\n"+rules)); err != nil {
		t.Fatal(err)
	}
	return b.Build()
}

func TestWithoutRulesTheRelationDecides(t *testing.T) {
	t.Parallel()
	for _, untrusted := range []string{UntrustedOpen, UntrustedFind, UntrustedNone} {
		o := options()
		o.Untrusted = untrusted
		s := NewBuilder(o).Build()
		for _, c := range []struct {
			who     *did.Principal
			target  *Target
			allowed string // operations
		}{
			{nil, payout, ""},
			{local, hidden, "find read write invoke subscribe delegate manage"},
			{did.Consumer(did.Token, did.Operator), hidden, "find read write invoke subscribe delegate manage"},
			{ciToken, payout, ""},
			{ciToken, nil, ""},
			{member, payout, "find read write invoke subscribe"},
			{member, logistics, "find read write invoke subscribe"},
			{member, hidden, ""},
			{member, nil, "connect store relay"},
			{guest, payout, map[string]string{UntrustedOpen: "find read write invoke subscribe", UntrustedFind: "find", UntrustedNone: "find"}[untrusted]},
			{guest, logistics, ""},
			{guest, nil, "connect store relay"},
			{alien, payout, map[string]string{UntrustedOpen: "find read write invoke subscribe", UntrustedFind: "find"}[untrusted]},
			{alien, logistics, ""},
			{alien, hidden, ""},
			{alien, nil, map[string]string{UntrustedOpen: "connect store relay", UntrustedFind: "connect store"}[untrusted]},
			{did.Consumer(did.Unproven, ""), payout, map[string]string{UntrustedOpen: "find read write invoke subscribe", UntrustedFind: "find"}[untrusted]},
		} {
			var got []string
			for _, op := range ops {
				ofNode := op == Connect || op == Store || op == Relay
				if d := s.Decide(c.who, Request{Op: op, Target: c.target}); d.Allow && ofNode == (c.target == nil) {
					got = append(got, string(op))
				} else if !d.Allow && d.Why() == "" {
					t.Errorf("%s: %s: no reason", c.who.Short(), op)
				}
			}
			if strings.Join(got, " ") != c.allowed {
				t.Errorf("%s: %s (%+v): got %v, want %s", untrusted, c.who.Short(), c.target, got, c.allowed)
			}
		}
	}
}

// A member that is not confirmed has the rights of an untrusted caller. With StaleRead it also connects, finds and reads as a member, as far
// as rules permit.
func TestUnconfirmedMembers(t *testing.T) {
	t.Parallel()
	pending := did.NodePrincipal(member.Node, "")
	pending.Pending, pending.Unconfirmed = "the status list has expired", member
	barred := *pending
	barred.Barred = "revoked"
	for _, c := range []struct {
		stale, rules, untrusted string
		who                     *did.Principal
		allowed                 string
	}{
		{"", "", UntrustedFind, pending, ""},
		{StaleDeny, "", UntrustedFind, pending, ""},
		{StaleRead, "", UntrustedNone, pending, "connect find read"},
		{StaleRead, "  - {deny: own, to: read, on: logistics}", UntrustedNone, pending, "connect find"},
		{StaleRead, "  - {allow: own, to: \"*\", on: logistics}", UntrustedNone, pending, "connect find read"},
		{StaleRead, "", UntrustedNone, &barred, ""},
		{StaleRead, "", UntrustedNone, pending.Narrowed("crm", did.Untrusted, nil), ""},
	} {
		o := options()
		o.Untrusted, o.Stale = c.untrusted, c.stale
		s := NewBuilder(o).Build()
		if c.rules != "" {
			s = build(t, o, c.rules)
		}
		var got []string
		for _, r := range []Request{{Op: Connect}, {Op: Store}, {Op: Find, Target: logistics}, {Op: Read, Target: logistics}, {Op: Write, Target: logistics},
			{Op: Invoke, Target: logistics}, {Op: Subscribe, Target: logistics}} {
			if c.stale != StaleRead && r.Target == nil {
				continue
			}
			if s.Decide(c.who, r).Allow {
				got = append(got, string(r.Op))
			}
		}
		if strings.Join(got, " ") != c.allowed {
			t.Errorf("%q, rules %q: %q, want %q", c.stale, c.rules, got, c.allowed)
		}
	}
}

func TestRules(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	amount := func(n float64) InputFunc {
		return func() (any, error) { return map[string]any{"amount": n, "note": nil, "tags": []any{"a", 1.5}}, nil }
	}
	for name, c := range map[string]struct {
		rules   string
		who     *did.Principal
		request Request
		allow   bool
		rule    string
	}{
		"a role, an action":             {"  - {allow: acme/customer-service, to: invoke, on: logistics/track}", agent, Request{Op: Invoke, Target: logistics, Affordance: "track"}, true, "policy.yaml:3"},
		"another action":                {"  - {allow: acme/customer-service, to: invoke, on: logistics/track}", agent, Request{Op: Invoke, Target: logistics, Affordance: "steer"}, false, ""},
		"another role":                  {"  - {allow: acme/customer-service, to: invoke, on: logistics/track}", guest, Request{Op: Invoke, Target: logistics, Affordance: "track"}, false, ""},
		"a role of another partner":     {"  - {allow: acme/ops, to: invoke, on: logistics}", member, Request{Op: Find, Target: hidden}, false, ""},
		"another operation":             {"  - {allow: acme/customer-service, to: invoke, on: logistics/track}", agent, Request{Op: Write, Target: logistics, Affordance: "track"}, false, ""},
		"part of a name":                {"  - {allow: acme, to: invoke, on: 'logistics/tr*k'}", agent, Request{Op: Invoke, Target: logistics, Affordance: "track"}, true, "policy.yaml:3"},
		"all of a Thing":                {"  - {allow: acme, to: call, on: logistics/*}", guest, Request{Op: Read, Target: logistics, Affordance: "x"}, true, "policy.yaml:3"},
		"an id":                         {"  - {allow: acme, to: call, on: 'urn:lmos:did:key:z6Mk:logistics'}", guest, Request{Op: Subscribe, Target: logistics}, true, "policy.yaml:3"},
		"a capability above":            {"  - {allow: partners, to: [find, read], on: 'cap:urn:example'}", guest, Request{Op: Find, Target: logistics}, true, "policy.yaml:3"},
		"a capability beside":           {"  - {allow: partners, to: [find, read], on: 'cap:urn:exam'}", guest, Request{Op: Find, Target: logistics}, false, ""},
		"own role":                      {"  - {allow: own/ops, to: find, on: hidden}", member, Request{Op: Find, Target: hidden}, true, "policy.yaml:3"},
		"anyone":                        {"  - {allow: anyone, to: call, on: payout}", alien, Request{Op: Invoke, Target: payout}, true, "policy.yaml:3"},
		"a node":                        {"  - {allow: '" + string(other) + "', to: call, on: payout}", alien, Request{Op: Invoke, Target: payout}, true, "policy.yaml:3"},
		"a consumer of a node":          {"  - {allow: '" + string(other) + "#crm', to: call, on: payout}", agent, Request{Op: Invoke, Target: payout}, true, "policy.yaml:3"},
		"another consumer":              {"  - {allow: '" + string(other) + "#crm', to: call, on: payout}", guest, Request{Op: Invoke, Target: payout}, false, ""},
		"an organization by DID":        {"  - {allow: '" + string(acme) + "', to: call, on: payout}", guest, Request{Op: Invoke, Target: payout}, true, "policy.yaml:3"},
		"a token":                       {"  - {deny: 'token:dashboard', to: write}", did.Consumer(did.Token, "dashboard"), Request{Op: Write, Target: payout}, false, "policy.yaml:3"},
		"a token with a scope":          {"  - {allow: 'token:ci', to: invoke, on: payout/pay}", ciToken, Request{Op: Invoke, Target: payout, Affordance: "pay"}, true, "policy.yaml:3"},
		"a token without it":            {"  - {allow: 'token:ci', to: invoke, on: payout/pay}", ciToken, Request{Op: Invoke, Target: payout, Affordance: "steal"}, false, ""},
		"a subject":                     {"  - {allow: 'oidc:acme:auth0|a:b', to: call}", did.Consumer(did.OIDC, "oidc:acme:auth0|a:b"), Request{Op: Invoke, Target: payout}, true, "policy.yaml:3"},
		"another subject":               {"  - {allow: 'oidc:acme:alice', to: call}", did.Consumer(did.OIDC, "oidc:acme:alice2"), Request{Op: Invoke, Target: payout}, false, ""},
		"a subject without a rule":      {"", did.Consumer(did.OIDC, "oidc:acme:alice"), Request{Op: Find, Target: payout}, false, ""},
		"local, a subject":              {"  - {allow: local, to: call}", did.Consumer(did.OIDC, "oidc:acme:alice"), Request{Op: Invoke, Target: payout}, false, ""},
		"a role of a subject":           {"  - {allow: local/adjuster, to: call}", &did.Principal{Name: "oidc:acme:alice", Via: did.OIDC, Relation: did.Local, Roles: []string{"adjuster"}}, Request{Op: Invoke, Target: payout}, true, "policy.yaml:3"},
		"a scope":                       {"  - {allow: 'scope:invoke:payout', to: call, on: payout}", &did.Principal{Name: "oidc:acme:alice", Via: did.OIDC, Relation: did.Local, Scopes: []string{"invoke:payout"}}, Request{Op: Invoke, Target: payout}, true, "policy.yaml:3"},
		"a token named as a subject":    {"  - {allow: 'oidc:acme:ci', to: call}", ciToken, Request{Op: Invoke, Target: payout}, false, ""},
		"another token":                 {"  - {allow: 'token:cd', to: call}", ciToken, Request{Op: Invoke, Target: payout}, false, ""},
		"a scope for hidden Things":     {"  - {allow: 'token:ci', to: call}", ciToken, Request{Op: Invoke, Target: hidden}, true, "policy.yaml:3"},
		"local is no scope":             {"  - {allow: local, to: call}", ciToken, Request{Op: Invoke, Target: payout}, false, ""},
		"local is no scope, in Cedar":   {"  - {allow: local, to: call, when: 'context.hops < 3'}", ciToken, Request{Op: Invoke, Target: payout}, false, ""},
		"local denies a token":          {"  - {allow: 'token:ci', to: call}\n  - {deny: local, to: call}", ciToken, Request{Op: Invoke, Target: payout}, false, "policy.yaml:4"},
		"anyone is a token, too":        {"  - {allow: anyone, to: call}", ciToken, Request{Op: Invoke, Target: payout}, true, "policy.yaml:3"},
		"a role of a token":             {"  - {allow: local/build, to: call}", ciToken, Request{Op: Invoke, Target: payout}, true, "policy.yaml:3"},
		"another role of a token":       {"  - {allow: local/deploy, to: call}", ciToken, Request{Op: Invoke, Target: payout}, false, ""},
		"a role is not own":             {"  - {allow: own/build, to: call}", ciToken, Request{Op: Invoke, Target: payout}, false, ""},
		"a role of a member":            {"  - {allow: local/ops, to: find}", member, Request{Op: Find, Target: hidden}, false, ""},
		"a socket is no token":          {"  - {deny: 'token:dashboard', to: write}", did.Consumer(did.Socket, "dashboard"), Request{Op: Write, Target: payout}, true, ""},
		"a role of a foreign issuer":    {"  - {allow: registry/adjuster, to: invoke, on: payout}", holder, Request{Op: Invoke, Target: payout}, true, "policy.yaml:3"},
		"a foreign issuer":              {"  - {deny: registry, to: invoke}\n  - {allow: anyone, to: invoke}", holder, Request{Op: Invoke, Target: payout}, false, "policy.yaml:3"},
		"another role of an issuer":     {"  - {allow: registry/judge, to: invoke, on: payout}", holder, Request{Op: Invoke, Target: payout}, false, ""},
		"the role of an organization":   {"  - {allow: acme/adjuster, to: invoke, on: payout}", holder, Request{Op: Invoke, Target: payout}, false, ""},
		"the role of an issuer as own":  {"  - {allow: own/adjuster, to: invoke, on: payout}", holder, Request{Op: Invoke, Target: payout}, false, ""},
		"a role that is not attested":   {"  - {allow: registry/customer-service, to: invoke, on: payout}", agent, Request{Op: Invoke, Target: payout}, false, ""},
		"deny wins":                     {"  - {allow: acme, to: '*', on: payout}\n  - {deny: anyone, to: call, on: payout}", guest, Request{Op: Invoke, Target: payout}, false, "policy.yaml:4"},
		"deny wins in any order":        {"  - {deny: [acme, own], to: '*'}\n  - {allow: anyone, to: call}", guest, Request{Op: Invoke, Target: payout}, false, "policy.yaml:3"},
		"deny of local callers":         {"  - {deny: local, to: invoke, on: payout}", local, Request{Op: Invoke, Target: payout}, false, "policy.yaml:3"},
		"the node":                      {"  - {deny: partners, to: connect, on: node}", guest, Request{Op: Connect}, false, "policy.yaml:3"},
		"a Thing is not the node":       {"  - {allow: untrusted, to: '*', on: node}", alien, Request{Op: Invoke, Target: payout}, false, ""},
		"a condition that holds":        {"  - {allow: anyone, to: invoke, on: payout, when: 'context.input.amount <= 100 && context.hops < 3'}", alien, Request{Op: Invoke, Target: payout, Hops: 1, Input: amount(100)}, true, "policy.yaml:3"},
		"a condition that does not":     {"  - {allow: anyone, to: invoke, on: payout, when: 'context.input.amount <= 100 && context.hops < 3'}", alien, Request{Op: Invoke, Target: payout, Input: amount(101)}, false, ""},
		"a condition without input":     {"  - {allow: anyone, to: invoke, on: payout, when: 'context.input.amount <= 100'}", alien, Request{Op: Invoke, Target: payout}, false, ""},
		"an affordance and a condition": {"  - {allow: anyone, to: invoke, on: payout/pay, when: 'context.hops < 3'}", alien, Request{Op: Invoke, Target: payout, Affordance: "steal"}, false, ""},
		"deny that fails denies":        {"  - {deny: anyone, to: invoke, when: 'context.input.amount > 100'}", member, Request{Op: Invoke, Target: payout}, false, "policy.yaml:3"},
		"deny with a text for input":    {"  - {deny: anyone, to: invoke, when: 'context.input.amount > 100'}", member, Request{Op: Invoke, Target: payout, Input: InputFunc(func() (any, error) { return map[string]any{"amount": "7"}, nil })}, false, "policy.yaml:3"},
		"input that is not JSON":        {"  - {deny: anyone, to: invoke, when: 'context.input.amount > 100'}", member, Request{Op: Invoke, Target: payout, Input: InputFunc(func() (any, error) { return nil, errors.New("no JSON") })}, false, ""},
		"a time":                        {"  - {allow: acme, to: invoke, when: 'context.time < datetime(\"2026-12-01\")'}", guest, Request{Op: Invoke, Target: payout, Now: noon}, true, "policy.yaml:3"},
		"a time that is over":           {"  - {allow: acme, to: invoke, when: 'context.time < datetime(\"2026-11-01\")'}", guest, Request{Op: Invoke, Target: payout, Now: noon}, false, ""},
		"a proxy":                       {"  - {deny: local, to: write, when: 'context.via == \"loopback\"'}", local, Request{Op: Write, Target: payout}, false, "policy.yaml:3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := build(t, options(), c.rules).Decide(c.who, c.request)
			if d.Allow != c.allow || d.Rule != c.rule || d.Why() == "" {
				t.Errorf("got %+v", d)
			}
		})
	}
}

func TestCedar(t *testing.T) {
	t.Parallel()
	b := NewBuilder(options())
	err := b.AddCedar("policy.cedar", []byte(`// comment
permit (principal in Role::"`+acme.Method()+`/x", action, resource);
permit (principal in Org::"QmPEQVM1JPTyrvEgBcDXwjK4TeyLGSX1PxjgyeAisdWM1p", action == Action::"invoke", resource in Name::"payout")
  unless { context.hops > 2 };
forbid (principal is Agent in Relation::"partner", action, resource == Thing::"urn:lmos:did:key:z6Mk:hidden");
`))
	if err != nil {
		t.Fatal(err)
	}
	s := b.Build()
	if d := s.Decide(guest, Request{Op: Invoke, Target: payout, Hops: 2}); !d.Allow || d.Rule != "policy.cedar:3" {
		t.Errorf("permit: %+v", d)
	}
	if d := s.Decide(guest, Request{Op: Invoke, Target: payout, Hops: 3}); d.Allow {
		t.Errorf("unless: %+v", d)
	}
	if d := s.Decide(guest, Request{Op: Find, Target: hidden}); d.Allow || d.Rule != "policy.cedar:5" {
		t.Errorf("forbid: %+v", d)
	}
}

func TestWrongRulesAreRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ rules, want string }{
		"no caller":           {"  - {to: call}", "policy.yaml:3:6: a rule needs allow or deny"},
		"two effects":         {"  - {allow: own, deny: acme, to: call}", "not both"},
		"no operation":        {"  - {allow: own}", "a rule needs to"},
		"unknown operation":   {"  - {allow: own, to: [call, fly]}", `unknown operation "fly"`},
		"another":             {"  - {allow: own, to: [connect, lend]}", `unknown operation "lend"`},
		"unknown caller":      {"  - {allow: own, to: call}\n  - {deny: initech, to: call}", `policy.yaml:4:6: unknown caller "initech"`},
		"unknown partner":     {"  - {allow: initech/ops, to: call}", `unknown caller "initech/ops"`},
		"empty role":          {"  - {allow: acme/, to: call}", "empty role"},
		"weak key":            {"  - {allow: 'did:key:z6Mk', to: call}", "invalid DID"},
		"unknown member":      {"  - {allow: own, to: call, if: 1}", "policy.yaml:3"},
		"condition":           {"  - {allow: own, to: call, when: 'context.'}", "when:"},
		"condition that ends": {"  - {allow: own, to: call, when: 'true}; permit(principal, action, resource) when {true'}", "expected one condition"},
		"not YAML":            {"  - {allow: [", "policy.yaml:"},
		"rules as text":       {"  x", "policy.yaml:"},
	} {
		b := NewBuilder(options())
		err := b.AddYAML("policy.yaml", []byte("apiVersion: lmosd/v1\nrules:\n"+c.rules))
		if e, ok := errors.AsType[*Error](err); !ok || !strings.Contains(err.Error(), c.want) || e.Line == 0 {
			t.Errorf("%s: %v", name, err)
		}
		if len(b.policies) > 0 {
			t.Errorf("%s: rules before the error remain", name)
		}
	}
	for name, text := range map[string]string{"another version": "apiVersion: lmosd/v9\nrules: []", "no version": "rules: []", "too large": strings.Repeat("#", MaxFile+1)} {
		if err := NewBuilder(options()).AddYAML("policy.yaml", []byte(text)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := NewBuilder(options()).AddCedar("policy.cedar", []byte("permit (principal, action, resource)\nwhen {")); err == nil {
		t.Error("an incomplete policy was accepted")
	}
	none := Options{}
	if err := NewBuilder(none).AddYAML("policy.yaml", []byte("apiVersion: lmosd/v1\nrules: [{allow: own/ops, to: call}]")); err == nil || !strings.Contains(err.Error(), "no organization") {
		t.Errorf("own role without an organization: %v", err)
	}
	if err := NewBuilder(none).AddYAML("policy.yaml", []byte("")); err != nil {
		t.Errorf("an empty file: %v", err)
	}
}

// Rules for others do not change a decision, and the index finds the same rules as Cedar over all of them.
func FuzzRules(f *testing.F) {
	f.Add([]byte("apiVersion: lmosd/v1\nrules:\n  - {allow: [acme, own/ops], to: [find, call], on: ['cap:urn:example', logistics/t*], when: 'context.hops < 3'}"))
	f.Add([]byte("permit (principal in Org::\"x\", action, resource);"))
	f.Add([]byte("permit (principal == Agent::\"x\", action == Action::\"invoke\", resource is Thing in Name::\"logistics\") when { principal in Relation::\"own\" };"))
	f.Add([]byte("forbid (principal, action in [Action::\"invoke\", Other::\"find\"], resource == Name::\"payout\") when { context == {\"hops\": 0} };"))
	f.Add([]byte("permit (principal == Node::\"x\", action == Other::\"invoke\", resource) when { context has hops && context[\"via\"] == \"peer\" };"))
	f.Fuzz(func(t *testing.T, text []byte) {
		b := NewBuilder(options())
		_ = b.AddYAML("policy.yaml", text)
		_ = b.AddCedar("policy.cedar", text)
		s := b.Build()
		var all candidates
		for _, one := range b.policies {
			plain := *one
			plain.actions, plain.rest, plain.context = nil, one.compiled, attributes // evaluated by Cedar, with its scope and the whole context
			all = append(all, &plain)
		}
		for _, p := range []*did.Principal{local, member, agent, alien} {
			for _, target := range []*Target{nil, logistics, payout} {
				r := Request{Op: Invoke, Target: target, Affordance: "track"}
				one, decided := s.byRules(p, r)
				every := &Set{untrusted: s.untrusted, by: map[entity]*policies{{}: {by: map[entity][]*policy{{}: all}, resources: 1 << anyType}}, principals: 1<<anyType | 1<<agentType}
				two, decidedToo := every.byRules(p, r)
				if decided != decidedToo || one.Allow != two.Allow {
					t.Fatalf("%s on %+v: with the index %+v %t, without %+v %t", p.Short(), target, one, decided, two, decidedToo)
				}
			}
		}
	})
}

// What Scope decides about all Things of a visibility is what Decide decides about each of them.
func TestScopeAgreesWithDecide(t *testing.T) {
	t.Parallel()
	var targets []*Target
	for v := td.Public; v <= td.Private; v++ {
		for _, capabilities := range [][]string{nil, td.Prefixes("urn:example:catalogue"), td.Prefixes("urn:example/weather:now")} {
			for _, name := range []string{"logistics", "payout"} {
				targets = append(targets, &Target{ID: "urn:x:" + name, Names: []string{name}, Capabilities: capabilities, Visibility: v})
			}
		}
	}
	excepted := func(all []td.Query, target *Target) bool {
		return slices.ContainsFunc(all, func(q td.Query) bool {
			return q.ID == target.ID || slices.Contains(target.Names, td.NameKey(q.Name)) || len(q.Capability) == 1 && slices.Contains(target.Capabilities, q.Capability[0])
		})
	}
	for rules, want := range map[string]struct{ exceptions, each int }{ // for the agent
		"": {}, "  - {allow: acme, to: find}": {}, "  - {deny: acme, to: '*'}": {}, "  - {deny: globex, to: '*'}": {}, "  - {deny: '" + string(other) + "', to: find}": {},
		"  - {allow: acme, to: find, on: logistics}": {exceptions: 1}, "  - {deny: anyone, to: find, on: ['urn:x:payout', logistics/x]}": {exceptions: 2},
		"  - {allow: acme, to: invoke, on: logistics}": {}, "  - {deny: own, to: '*', on: logistics}": {},
		"  - {allow: partners, to: find, on: 'cap:urn:example/catalogue'}": {exceptions: 1}, "  - {deny: acme, to: find, on: 'cap:Example'}": {exceptions: 1, each: 5},
		"  - {allow: acme, to: find, when: 'context.hops < 3'}": {each: 2}, "  - {deny: acme, to: '*', when: 'context.hops < 3'}": {each: 5},
		"  - {allow: acme, to: find, on: payout, when: 'context.hops > 3'}":    {exceptions: 1},
		"  - {allow: acme, to: find}\n  - {deny: anyone, to: '*', on: payout}": {exceptions: 1},
	} {
		s := build(t, options(), rules)
		for _, p := range []*did.Principal{nil, local, member, agent, guest, alien, ciToken, {DID: other, Node: other, Via: did.Peer, Org: acme, Barred: "revoked"}} {
			scope := s.Scope(p, time.Time{})
			each := 0
			for _, target := range targets {
				switch d := s.Decide(p, Request{Op: Find, Target: target}); {
				case scope.Each[target.Visibility] || excepted(scope.Except(target.Visibility), target):
				case d.Allow != scope.All[target.Visibility]:
					t.Errorf("%q: %s finds %+v: %t, and the scope is %+v", rules, p.Short(), target, d.Allow, scope)
				}
			}
			for _, one := range scope.Each {
				if one {
					each++
				}
			}
			if p == agent && (len(scope.Allow)+len(scope.Deny) != want.exceptions || each != want.each) {
				t.Errorf("%q: got %d exceptions and %d visibilities to ask for, want %+v", rules, len(scope.Allow)+len(scope.Deny), each, want)
			}
		}
	}
}

func BenchmarkScope(b *testing.B) {
	s := build(b, options(), "  - {allow: acme/customer-service, to: [find, invoke], on: logistics/track}\n  - {deny: globex, to: '*'}\n")
	b.ReportAllocs()
	for b.Loop() {
		if scope := s.Scope(agent, time.Time{}); !scope.All[td.Public] {
			b.Fatal(scope)
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	var allows, denies strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&allows, "  - {allow: acme/customer-service, to: invoke, on: thing-%d/track}\n", i)
		fmt.Fprintf(&denies, "  - {deny: '%s', to: '*'}\n", didtest.Key(1000+i).DID())
	}
	when := "  - {allow: acme, to: invoke, on: thing-7, when: 'context.hops < 3'}\n"
	for name, rules := range map[string]string{"none": "", "rules=1000": allows.String(), "denies=1000": denies.String() + "  - {allow: acme, to: invoke, on: thing-7}\n",
		"conditions=1": when, "rules=1000,conditions=1": strings.Replace(allows.String(), "  - {allow: acme/customer-service, to: invoke, on: thing-7/track}\n", when, 1)} {
		b.Run(name, func(b *testing.B) {
			s := NewBuilder(options()).Build()
			if rules != "" {
				s = build(b, options(), rules)
			}
			target := &Target{ID: "urn:x:7", Names: []string{"thing-7"}, Capabilities: []string{"urn:example", "urn:example:catalogue"}}
			b.ReportAllocs()
			for b.Loop() {
				if d := s.Decide(agent, Request{Op: Invoke, Target: target, Affordance: "track"}); d.Allow != (rules != "") {
					b.Fatal(d)
				}
			}
		})
	}
}

// Cedar policies may not name unknown operations either. Those on all operations may exist.
func TestCedarWithoutUnknownOperations(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`permit (principal, action == Action::"lend", resource);`:                   false,
		`forbid (principal, action in [Action::"find", Action::"lend"], resource);`: false,
		`forbid (principal, action == Action::"store", resource);`:                  true,
		`permit (principal, action, resource);`:                                     true,
	} {
		err := NewBuilder(options()).AddCedar("policy.cedar", []byte(text))
		if (err == nil) != want || err != nil && !strings.Contains(err.Error(), `policy.cedar:1:1: unknown operation "lend"`) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := NewBuilder(options()).AddRule("r", Rule{Deny: list{"anyone"}, To: list{"*"}}); err != nil {
		t.Error(err)
	}
}

func TestAudienceOfACaller(t *testing.T) {
	t.Parallel()
	b := NewBuilder(options())
	scid := organizationID(acme)
	for name, want := range map[string]struct {
		v            td.Visibility
		organization string
	}{
		"anyone": {td.Public, ""}, "untrusted": {td.Public, ""}, string(other): {td.Public, ""}, string(other) + "#crm": {td.Public, ""},
		"partners": {td.Partners, AnyPartner}, "acme": {td.Partners, scid}, "acme/customer-service": {td.Partners, scid}, string(acme): {td.Partners, scid},
		"own": {td.Organization, ""}, "own/ops": {td.Organization, ""}, "globex": {td.Organization, ""}, string(globex): {td.Organization, ""},
		"local": {td.Private, ""}, "local/build": {td.Private, ""}, "token:ci": {td.Private, ""},
	} {
		if v, organization, err := b.Audience(name); err != nil || v != want.v || organization != want.organization {
			t.Errorf("%s: %s of %q, %v; want %+v", name, v, organization, err, want)
		}
	}
	if _, _, err := b.Audience("globx"); err == nil {
		t.Error("an unknown caller has an audience")
	}
}
