package policy

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/policy/rules"
	"github.com/lmosd/lmosd/td"
)

// lamp is a Thing with affordances of each kind.
var lamp = &td.Thing{ID: "urn:x:lamp", Properties: map[string]*td.Property{"on": {}, "secret": {}},
	Actions: map[string]*td.Action{"blink": {}, "session": {}}, Events: map[string]*td.Event{"broken": {}, "burnt": {}}}

// gated returns the lamp behind its access rules.
func gated(p *Policy, thing interact.Thing) interact.Thing {
	return interact.Chain(thing, p.Authorize(lamp, access.TargetOf(lamp, "lamp"), func(action string) bool { return action == "session" }))
}

func TestAuthorize(t *testing.T) {
	t.Parallel()
	chunks := func(func([]byte, error) bool) {}
	const find, call = "allow: anyone, to: find, on: lamp", "allow: anyone, to: call, on: lamp"
	for name, c := range map[string]struct {
		rules []string
		m     interact.Message
		want  interact.Code // 0: allowed
	}{
		"an action by its rule":           {[]string{"allow: anyone, to: invoke, on: lamp/blink"}, interact.Message{Type: invoke, Name: "blink"}, 0},
		"another action":                  {[]string{"allow: anyone, to: [find, invoke], on: lamp/blink"}, interact.Message{Type: invoke, Name: "other"}, interact.NotFound},
		"that may be found":               {[]string{find}, interact.Message{Type: invoke, Name: "blink"}, interact.Forbidden},
		"that may not be found":           {nil, interact.Message{Type: invoke, Name: "blink"}, interact.NotFound},
		"a state of an action":            {[]string{find, "allow: anyone, to: read, on: lamp"}, interact.Message{Type: interact.QueryAction, Name: "blink"}, interact.Forbidden},
		"a property":                      {[]string{"allow: anyone, to: read, on: lamp"}, interact.Message{Type: interact.ReadProperty, Name: "on"}, 0},
		"an observation":                  {[]string{"allow: anyone, to: read, on: lamp"}, interact.Message{Type: interact.ObserveProperty, Name: "on"}, 0},
		"a write":                         {[]string{find, "allow: anyone, to: read, on: lamp"}, interact.Message{Type: interact.WriteProperty, Name: "on"}, interact.Forbidden},
		"an event":                        {[]string{"allow: anyone, to: subscribe, on: lamp"}, interact.Message{Type: interact.SubscribeEvent, Name: "broken"}, 0},
		"all properties":                  {[]string{call}, interact.Message{Type: interact.ReadAllProperties}, 0},
		"all, one of which is denied":     {[]string{find, call, "deny: anyone, to: read, on: lamp/secret"}, interact.Message{Type: interact.ReadAllProperties}, interact.Forbidden},
		"all, of which one is allowed":    {[]string{find, "allow: anyone, to: read, on: lamp/on"}, interact.Message{Type: interact.ObserveAllProperties}, interact.Forbidden},
		"several":                         {[]string{find, "allow: anyone, to: read, on: lamp/on"}, interact.Message{Type: interact.ReadMultipleProperties, Data: []byte(`["on"]`)}, 0},
		"several, one of which is denied": {[]string{find, "allow: anyone, to: read, on: lamp/on"}, interact.Message{Type: interact.ReadMultipleProperties, Data: []byte(`["on","secret"]`)}, interact.Forbidden},
		"several in another form":         {[]string{find, "allow: anyone, to: read, on: lamp/on"}, interact.Message{Type: interact.ReadMultipleProperties, Data: []byte(`"on"`)}, interact.Forbidden},
		"writes by name":                  {[]string{find, "allow: anyone, to: write, on: lamp/on"}, interact.Message{Type: interact.WriteMultipleProperties, Data: []byte(`{"on":true}`)}, 0},
		"writes, one of which is denied":  {[]string{find, "allow: anyone, to: write, on: lamp/on"}, interact.Message{Type: interact.WriteAllProperties, Data: []byte(`{"on":true,"secret":1}`)}, interact.Forbidden},
		"a write with a stream":           {[]string{find, "allow: anyone, to: write, on: lamp/on"}, interact.Message{Type: interact.WriteAllProperties, Chunks: chunks}, interact.Forbidden},
		"all events, one of them denied":  {[]string{find, call, "deny: anyone, to: subscribe, on: lamp/burnt"}, interact.Message{Type: interact.SubscribeAllEvents}, interact.Forbidden},
		"a tunnel with the right to one":  {[]string{"allow: anyone, to: invoke, on: lamp/blink"}, interact.Message{Type: invoke, Name: "session", Chunks: chunks}, 0},
		"a tunnel without a right":        {[]string{find}, interact.Message{Type: invoke, Name: "session", Chunks: chunks}, interact.Forbidden},
		"an input within the rule":        {[]string{find, "allow: anyone, to: invoke, on: lamp, when: 'context.input.n < 5'"}, interact.Message{Type: invoke, Name: "blink", Data: []byte(`{"n":4}`)}, 0},
		"an input beyond it":              {[]string{find, "allow: anyone, to: invoke, on: lamp, when: 'context.input.n < 5'"}, interact.Message{Type: invoke, Name: "blink", Data: []byte(`{"n":6}`)}, interact.Forbidden},
		"an input that cannot be read":    {[]string{find, "allow: anyone, to: invoke, on: lamp, when: 'context.input.n < 5'"}, interact.Message{Type: invoke, Name: "blink", ContentType: "text/plain", Data: []byte(`x`)}, interact.Forbidden},
		"too many hops":                   {[]string{find, "allow: anyone, to: invoke, on: lamp, when: 'context.hops < 2'"}, interact.Message{Type: invoke, Name: "blink", Hops: 3}, interact.Forbidden},
		"a consumer of this node":         {nil, interact.Message{Type: invoke, Name: "blink", From: who(local)}, 0},
		"a consumer that a rule denies":   {[]string{"deny: local, to: call, on: lamp"}, interact.Message{Type: invoke, Name: "blink", From: who(local)}, interact.Forbidden},
		"a barred caller":                 {[]string{call}, interact.Message{Type: invoke, Name: "blink", From: &did.Principal{Node: alice, Barred: "revoked"}}, interact.NotFound},
		"what is not a request":           {nil, interact.Message{Type: interact.Event}, 0},
	} {
		p := loaded(t, with(t, Rules{Options: rules.Options{Untrusted: access.UntrustedNone}}, append(c.rules, denied(bob))...))
		m := c.m
		if m.Thing = "lamp"; m.From == nil {
			m.From = who(alice)
		}
		_, err := interact.Call(t.Context(), gated(p, answering), &m)
		if got := code(err); got != c.want {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
		if c.want == interact.NotFound && err.Error() != interact.NotOffered("lamp").Error() {
			t.Errorf("%s: %v differs from a Thing that does not exist", name, err)
		}
	}
}

// An observation ends when its right ends: by a rule, or by the standing of the caller.
func TestRunningInteractionsEnd(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(p *Policy, text *string, standing *did.Principal){
		"a rule": func(p *Policy, text *string, _ *did.Principal) {
			*text = "deny: anyone, to: subscribe, on: lamp"
			_ = p.Load()
		},
		"a standing": func(p *Policy, _ *string, standing *did.Principal) {
			standing.Barred = "revoked"
			p.Recheck(alice)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				text, standing := "allow: anyone, to: call, on: lamp", *who(alice)
				p := loaded(t, Rules{Options: rules.Options{Principal: func(node did.DID) *did.Principal {
					if node == alice {
						now := standing
						return &now
					}
					return who(node)
				}, More: []func(*access.Builder) error{func(b *access.Builder) error {
					return b.AddYAML("policy.yaml", []byte("apiVersion: lmosd/v1\nrules: [{"+text+"}]"))
				}}}})
				ended := make(chan error, 1)
				go func() {
					_, err := interact.Call(t.Context(), gated(p, lasting), &interact.Message{Type: subscribe, Name: "broken", Thing: "lamp",
						From: &did.Principal{DID: alice, Node: alice, Name: "crm", Via: did.Peer}})
					ended <- err
				}()
				synctest.Wait()
				p.Recheck(bob)
				p.Recheck(alice)
				synctest.Wait()
				select {
				case err := <-ended:
					t.Fatalf("it ended before the change: %v", err)
				default:
				}
				change(p, &text, &standing)
				if got := code(<-ended); got != interact.Forbidden && got != interact.NotFound {
					t.Errorf("it ended with %v", got)
				}
				if len(p.running.all) != 0 {
					t.Errorf("%d are kept", len(p.running.all))
				}
			})
		})
	}
}

// Rejects leaves a node connected whose membership cannot be decided yet, unless a rule denies it. Stores asks for another right than Connects.
func TestRejectsAndStores(t *testing.T) {
	t.Parallel()
	const node = did.DID("did:key:z6MkjchhfUsD6mmvni8mCdXHw216Xrm9bQe2mBH1P5RDjVJG")
	named := func(effect string, to ...string) access.Rule {
		r := access.Rule{To: to}
		if effect == "allow" {
			r.Allow = []string{string(node)}
		} else {
			r.Deny = []string{string(node)}
		}
		return r
	}
	for name, c := range map[string]struct {
		who            did.Principal
		rules          []access.Rule
		rejects, store bool
	}{
		"a member":                    {who: did.Principal{Relation: did.Own}, store: true},
		"a member without store":      {who: did.Principal{Relation: did.Own}, rules: []access.Rule{named("deny", "store")}},
		"a partner":                   {who: did.Principal{Relation: did.Partner}, rejects: true},
		"a partner that may connect":  {who: did.Principal{Relation: did.Partner}, rules: []access.Rule{named("allow", "connect")}},
		"a partner that may all":      {who: did.Principal{Relation: did.Partner}, rules: []access.Rule{named("allow", "connect", "store")}, store: true},
		"an undecided node":           {who: did.Principal{Pending: "wait"}},
		"an undecided and denied one": {who: did.Principal{Pending: "wait"}, rules: []access.Rule{named("deny", "*")}, rejects: true},
	} {
		who := c.who
		who.DID, who.Node, who.Via = node, node, did.Peer
		p := New(Rules{Options: rules.Options{Connect: access.ConnectMembers, Principal: func(did.DID) *did.Principal { return &who }, More: []func(*access.Builder) error{func(b *access.Builder) error {
			for _, r := range c.rules {
				if err := b.AddRule("rule", r); err != nil {
					return err
				}
			}
			return nil
		}}}, Self: someNode})
		if err := p.Load(); err != nil {
			t.Fatal(name, err)
		}
		if p.Rejects(node) != c.rejects || p.Stores(node) != c.store {
			t.Errorf("%s: rejected %t, may store %t", name, p.Rejects(node), p.Stores(node))
		}
		if p.Rejects(someNode) || !p.Stores(someNode) {
			t.Errorf("%s: the node itself is rejected", name)
		}
	}
}

// Rules name capabilities as descriptions do: with or without "urn:", in any case, with ":" or "/", and at any depth.
func TestRulesOnCapabilities(t *testing.T) {
	t.Parallel()
	thing := &td.Thing{ID: "urn:x:lamp", Capabilities: []td.Capability{{ID: "urn:Example:light/colour:warm:dim"}}}
	for on, denied := range map[string]bool{"urn:example": true, "example": true, "urn:example:light": true, "Example/Light:Colour": true,
		"urn:example:light:colour:warm:dim": true, "urn:exam": false, "light": false, "urn:example:light:colour:warm:dim:more": false} {
		p := loaded(t, with(t, Rules{}, fmt.Sprintf("deny: anyone, to: find, on: 'cap:%s'", on)))
		d := &td.Description{Thing: thing, Record: &td.Record{}}
		if p.Finds(who(alice), d) == denied {
			t.Errorf("cap:%s: denied %t, want %t", on, !denied, denied)
		}
	}
}

// A decision follows the rules and the principal of now: nothing of an earlier one is kept.
func TestDecisionsAreNotKept(t *testing.T) {
	t.Parallel()
	now := &did.Principal{DID: alice, Node: alice, Via: did.Peer, Relation: did.Own}
	p := loaded(t, Rules{Options: rules.Options{Principal: func(did.DID) *did.Principal { return now }}})
	invoke := access.Request{Op: access.Invoke, Target: access.TargetOf(lamp, "lamp"), Affordance: "blink"}
	if d := p.Decide(p.Principal(alice), invoke); !d.Allow {
		t.Fatal(d.Why())
	}
	revoked := *now
	revoked.Barred = "revoked"
	if now = &revoked; p.Decide(p.Principal(alice), invoke).Allow || p.Scope(p.Principal(alice)).All[td.Public] || p.Connects(alice) == nil {
		t.Error("a revoked caller keeps its rights")
	}
	member := *now
	member.Barred = ""
	now = &member
	p.AddSource(func(b *access.Builder) error {
		return b.AddRule("r", access.Rule{Deny: []string{string(alice)}, To: []string{"*"}})
	})
	if err := p.Refresh(); err != nil || p.Decide(p.Principal(alice), invoke).Allow || p.Scope(p.Principal(alice)).All[td.Public] {
		t.Errorf("a rule that denies has no effect: %v", err)
	}
}
