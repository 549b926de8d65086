package policy

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/td"
)

const (
	acme   did.DID = "did:webvh:QmAcme:acme.example"
	globex did.DID = "did:webvh:QmGlobex:globex.example"
)

// inFile returns a policy with the file of rules, of a node of acme with the partner globex.
func inFile(t *testing.T, rules string) (p *Policy, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "policy.yaml")
	if rules != "" {
		if err := os.WriteFile(path, []byte(rules), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	names := map[string]did.DID{"own": acme, "globex": globex, "former": "did:webvh:QmFormer:former.example"}
	return loaded(t, Rules{File: path, Untrusted: access.UntrustedFind, Names: func() []string { return []string{"globex"} },
		Organization: func(name string) (did.DID, bool) { id, ok := names[name]; return id, ok }}), path
}

func content(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestEdit(t *testing.T) {
	t.Parallel()
	p, path := inFile(t, "")
	calls := func() bool {
		return p.Decide(who(alice), access.Request{Op: access.Invoke, Target: TargetOf(lamp, "lamp"), Affordance: "blink"}).Allow
	}
	e, err := p.AddRule(access.Rule{Allow: []string{"anyone"}, To: []string{"invoke"}, On: []string{"lamp/blink"}})
	if err != nil || !calls() || e.ID != "policy.yaml:6" || e.Text != "{allow: anyone, to: invoke, on: lamp/blink}" {
		t.Fatalf("added %+v, %v", e, err)
	}
	first := content(t, path)
	for name, r := range map[string]access.Rule{
		"an unknown operation":    {Allow: []string{"anyone"}, To: []string{"fly"}},
		"an unknown organization": {Allow: []string{"globx"}, To: []string{"call"}},
		"a wrong condition":       {Allow: []string{"anyone"}, To: []string{"call"}, When: "context."},
	} {
		if _, err := p.AddRule(r); code(err) != interact.PolicyInvalid || content(t, path) != first || !calls() {
			t.Errorf("%s: %v, the file is\n%s", name, err, content(t, path))
		}
	}
	if changed, err := p.reload(); changed || err != nil {
		t.Errorf("the own change is read again: %v, %v", changed, err)
	}
	if _, err := p.AddRule(access.Rule{Deny: []string{"globex", "own/ops"}, To: []string{"*"}}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"globex": "other callers", "99": "no rule", "alice": "no rule", "policy.yaml:99": "no rule"} {
		if _, err := p.RemoveRules([]string{name}); code(err) != interact.Invalid || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("remove %s: %v", name, err)
		}
	}
	if removed, err := p.RemoveRules([]string{"anyone", "7"}); err != nil || len(removed) != 2 || calls() || len(p.Rules()) != 0 {
		t.Errorf("removed %+v, %v; left %+v", removed, err, p.Rules())
	}
	if err := os.WriteFile(path, []byte("rules: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := p.AddRule(access.Rule{Allow: []string{"anyone"}, To: []string{"call"}}); code(err) != interact.PolicyInvalid || content(t, path) != "rules: [" {
		t.Errorf("a broken file: %v", err)
	}
	if changed, err := p.reload(); !changed || err == nil {
		t.Errorf("the change of another program is not read: %v, %v", changed, err)
	}
	if _, err := loaded(t, Rules{}).AddRule(access.Rule{}); code(err) != interact.PolicyInvalid {
		t.Errorf("an empty rule: %v", err)
	}
	if _, err := loaded(t, Rules{}).AddRule(access.Rule{Allow: []string{"anyone"}, To: []string{"call"}}); code(err) != interact.ConfigInvalid {
		t.Errorf("without a file: %v", err)
	}
}

func TestEditKeepsOthers(t *testing.T) {
	t.Parallel()
	p, path := inFile(t, "# mine\napiVersion: lmosd/v1\nrules:\n  # globex\n  - {allow: globex, to: call, on: lamp} # why\n")
	link := path + ".link"
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	p.rules.File = link
	p.rules.More = []func(*access.Builder) error{func(b *access.Builder) error {
		return b.AddRule("expose lamp", access.Rule{Allow: []string{"anyone"}, To: []string{"call"}, On: []string{"urn:x:lamp"}})
	}}
	if err := os.WriteFile(strings.TrimSuffix(link, ".link")+".cedar", []byte(`permit (principal, action, resource in Name::"x");`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := p.AddRule(access.Rule{Deny: []string{"untrusted"}, To: []string{"find"}}); err != nil {
		t.Fatal(err)
	}
	want := "# mine\napiVersion: lmosd/v1\nrules:\n  # globex\n  - {allow: globex, to: call, on: lamp} # why\n  - {deny: untrusted, to: find}\n"
	if info, err := os.Lstat(link); content(t, path) != want || err != nil || info.Mode().IsRegular() {
		t.Errorf("the file is\n%s; %v", content(t, path), err)
	}
	for _, name := range []string{"expose lamp", "policy.yaml.cedar:1"} {
		if _, err := p.RemoveRules([]string{name}); code(err) != interact.Invalid || content(t, path) != want {
			t.Errorf("remove %s: %v", name, err)
		}
	}
}

func TestCaller(t *testing.T) {
	t.Parallel()
	p, _ := inFile(t, "")
	for name, want := range map[string]struct {
		relation did.Relation
		org      did.DID
		roles    []string
		via      did.Via
	}{
		"anyone": {did.Untrusted, "", nil, did.Peer}, "local": {did.Local, "", nil, did.Socket}, "partners": {did.Partner, "", nil, did.Peer},
		"token:crm": {did.Local, "", nil, did.Token}, string(alice): {did.Untrusted, "", nil, did.Peer}, "globex": {did.Partner, globex, nil, did.Peer},
		"globex/ops": {did.Partner, globex, []string{"ops"}, did.Peer}, "own": {did.Own, acme, nil, did.Peer}, "own/ops": {did.Own, acme, []string{"ops"}, did.Peer},
		string(globex) + "/ops": {did.Partner, globex, []string{"ops"}, did.Peer}, string(acme): {did.Own, acme, nil, did.Peer},
		"former": {did.Untrusted, "", nil, did.Peer}, "former/ops": {did.Untrusted, "", nil, did.Peer}, "did:web:other.example": {did.Untrusted, "", nil, did.Peer},
	} {
		c, err := p.Caller(name)
		if err != nil || c.Principal.Relation != want.relation || c.Principal.Org != want.org || !slices.Equal(c.Principal.Roles, want.roles) || c.Principal.Via != want.via {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
	if c, err := p.Caller(string(alice) + "#crm"); err != nil || c.Principal.ID() != string(alice)+"#crm" {
		t.Errorf("a consumer: %+v, %v", c, err)
	}
	for _, name := range []string{"globx", "own/", "token:", "did:key:z6Mk", "did:"} {
		if _, err := p.Caller(name); code(err) != interact.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := p.Audience([]string{"anyone", "globx"}); code(err) != interact.Invalid || !strings.Contains(err.Error(), "(globex)") {
		t.Errorf("an unknown caller: %v", err)
	}
	if c, err := loaded(t, Rules{}).Caller("own/ops"); err == nil {
		t.Errorf("without an organization: %+v", c)
	}
}

func TestExplainAndRights(t *testing.T) {
	t.Parallel()
	p, _ := inFile(t, "apiVersion: lmosd/v1\nrules:\n- {allow: globex/ops, to: [find, invoke], on: lamp/blink}\n- {allow: globex, to: read, on: lamp, when: 'context.hops < 2'}\n")
	if got := p.WithRoles("globex"); !slices.Equal(got, []string{"globex", "globex/ops"}) {
		t.Errorf("callers %q", got)
	}
	caller := func(name string) *Caller {
		c, err := p.Caller(name)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	target := TargetOf(lamp, "lamp")
	blink := access.Request{Op: access.Invoke, Target: target, Affordance: "blink"}
	e, err := p.Explain(caller("globex/ops").Principal, blink, nil)
	if err != nil || !e.Allow || e.Rule.ID != "policy.yaml:3" || e.Rule.Text != "{allow: globex/ops, to: [find, invoke], on: lamp/blink}" {
		t.Errorf("got %+v, %v", e, err)
	}
	with := &File{"new.yaml", []byte("apiVersion: lmosd/v1\nrules: [{deny: globex, to: invoke}]")}
	if e, err = p.Explain(caller("globex/ops").Principal, blink, with); err != nil || e.Allow || e.Rule.Text != "{deny: globex, to: invoke}" {
		t.Errorf("with a file: %+v, %v", e, err)
	}
	with = &File{"new.cedar", []byte("forbid (principal, action, resource);")}
	if e, err = p.Explain(caller("globex/ops").Principal, blink, with); err != nil || e.Allow || !strings.HasPrefix(e.Rule.Text, "forbid") {
		t.Errorf("with Cedar: %+v, %v", e, err)
	}
	if _, err = p.Explain(caller("own").Principal, blink, &File{"x.yaml", []byte("rules: 7")}); code(err) != interact.PolicyInvalid {
		t.Errorf("with an invalid file: %v", err)
	}
	var got []string
	for _, r := range append(p.NodeRights(caller("globex")), p.ThingRights(caller("globex/ops"), lamp, target)...) {
		got = append(got, fmt.Sprintf("%s %s/%s %s %v %s %v", r.Who, r.Thing, r.Affordance, r.Op, r.Allow, r.Rule, r.Conditional))
	}
	want := []string{"globex node/ connect true  false", "globex node/ store true  false",
		"globex/ops lamp/ find true  false", "globex/ops lamp/ read true policy.yaml:4 true", "globex/ops lamp/ write false  false",
		"globex/ops lamp/blink invoke true policy.yaml:3 false", "globex/ops lamp/session invoke false  false", "globex/ops lamp/ subscribe false  false"}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}

// Refusals are logged once for each caller and Thing within a minute, and the memory for them is limited.
func TestRefusalsAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		p := loaded(t, Rules{Untrusted: access.UntrustedFind, Log: slog.New(slog.NewTextHandler(&text, nil)),
			Hint: func(r Refusal) string { return fmt.Sprint(r.Who.ID(), " ", r.Hidden, " ", NameOf(r.Request.Target)) }})
		call := func(from *did.Principal, name string) {
			thing := interact.Chain(answering, p.Authorize(lamp, &access.Target{ID: "urn:x:" + name}, nil))
			_, _ = interact.Call(t.Context(), thing, &interact.Message{Type: invoke, Name: "blink", Thing: "lamp", From: from})
		}
		lines := func() int { return strings.Count(text.String(), "call refused") }
		for i := range 3 {
			call(&did.Principal{DID: alice, Node: alice, Name: fmt.Sprint(i), Via: did.Peer}, "a")
		}
		call(who(local), "a")
		if lines() != 1 || !strings.Contains(text.String(), "op=invoke thing=urn:x:a why=\"no rule lets untrusted callers invoke\" hint=\""+string(alice)+"#0 false urn:x:a\"") {
			t.Errorf("logged\n%s", text.String())
		}
		call(who(alice), "b")
		time.Sleep(refusalInterval)
		call(who(alice), "a")
		if lines() != 3 {
			t.Errorf("logged\n%s", text.String())
		}
		for i := range 2 * maxRefusals {
			call(&did.Principal{Node: did.DID(fmt.Sprint("did:key:", i)), Via: did.Peer}, "a")
		}
		if n := len(p.refused.last); n > maxRefusals {
			t.Errorf("%d callers are kept", n)
		}
		time.Sleep(refusalInterval)
		call(who(alice), "a")
		if !strings.Contains(text.String(), "omitted=") {
			t.Error("the number of omitted lines is missing")
		}
	})
}

func TestAllowedCallsDoNotLog(t *testing.T) {
	p := loaded(t, Rules{Untrusted: access.UntrustedOpen, Log: slog.New(slog.DiscardHandler)})
	m, target, known := &interact.Message{Type: invoke, Name: "blink", From: who(alice)}, TargetOf(lamp, "lamp"), affordancesOf(lamp)
	with := testing.AllocsPerRun(100, func() {
		if p.authorize(m, target, func() affordances { return known }) != nil {
			t.Error("refused")
		}
	})
	if with > 1 { // the closure for the input
		t.Errorf("%v allocations", with)
	}
}

// Callers of a publication are in one audience, and partners among them are confirmed.
func TestAudienceOfAPublication(t *testing.T) {
	t.Parallel()
	unconfirmed := ""
	p := loaded(t, Rules{Organization: func(name string) (did.DID, bool) {
		id, ok := map[string]did.DID{"globex": globex}[name]
		return id, ok
	}, Unconfirmed: func(id string) string {
		if id == access.AnyPartner || id == strings.Split(string(globex), ":")[2] {
			return unconfirmed
		}
		return ""
	}})
	for want, names := range map[td.Visibility][]string{td.Public: {"local", "globex", "anyone"}, td.Partners: {"local", "globex/ops"}, td.Private: {"local"}} {
		if v, err := p.Audience(names); err != nil || v != want {
			t.Errorf("%q: %s, %v", names, v, err)
		}
	}
	unconfirmed = "globex"
	for _, name := range []string{"globex", "globex/ops", "partners", string(globex)} {
		_, err := p.Audience([]string{"local", name})
		if e := interact.AsError(err); code(err) != interact.Forbidden || len(e.Next) != 1 || e.Next[0].Kind != interact.StepConfirm || e.Next[0].Args[0] != "globex" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := p.Audience([]string{"anyone", "local"}); err != nil {
		t.Errorf("without a partner: %v", err)
	}
}
