package rules

import (
	"bytes"
	"context"
	"errors"
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
	"github.com/lmosd/lmosd/internal/atomicfile"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/td"
)

// TestMain fails if a goroutine is left.
func TestMain(m *testing.M) { testmain.Run(m) }

const alice = did.DID("did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH")

// lamp is a Thing with affordances of each kind.
var lamp = &td.Thing{ID: "urn:x:lamp", Properties: map[string]*td.Property{"on": {}, "secret": {}},
	Actions: map[string]*td.Action{"blink": {}, "session": {}}, Events: map[string]*td.Event{"broken": {}, "burnt": {}}}

// loaded returns a store with its rules in force.
func loaded(t *testing.T, o Options) *Store {
	t.Helper()
	s := New(o)
	if err := s.Load(); err != nil {
		t.Fatal(err)
	}
	return s
}

// code returns the code of err, or 0.
func code(err error) interact.Code {
	if e := interact.AsError(err); e != nil {
		return e.Code
	}
	return 0
}

const (
	acme   did.DID = "did:webvh:QmAcme:acme.example"
	globex did.DID = "did:webvh:QmGlobex:globex.example"
)

// inFile returns a policy with the file of rules, of a node of acme with the partner globex.
func inFile(t *testing.T, rules string) (p *Store, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "policy.yaml")
	if rules != "" {
		if err := os.WriteFile(path, []byte(rules), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	names := map[string]did.DID{"own": acme, "globex": globex, "former": "did:webvh:QmFormer:former.example", "registry": "did:web:registry.example"}
	return loaded(t, Options{File: path, Untrusted: access.UntrustedFind, Names: func() []string { return []string{"globex"} },
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
		return p.Decide(did.NodePrincipal(alice, ""), access.Request{Op: access.Invoke, Target: access.TargetOf(lamp, "lamp"), Affordance: "blink"}).Allow
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
	if _, err := loaded(t, Options{}).AddRule(access.Rule{}); code(err) != interact.PolicyInvalid {
		t.Errorf("an empty rule: %v", err)
	}
	if _, err := loaded(t, Options{}).AddRule(access.Rule{Allow: []string{"anyone"}, To: []string{"call"}}); code(err) != interact.ConfigInvalid {
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
	p.o.Load().File = link
	p.o.Load().More = []func(*access.Builder) error{func(b *access.Builder) error {
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
		"oidc:acme:alice": {did.Local, "", nil, did.OIDC}, "token:crm": {did.Local, "", nil, did.Token}, string(alice): {did.Untrusted, "", nil, did.Peer}, "globex": {did.Partner, globex, nil, did.Peer},
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
	if c, err := p.Caller("registry/adjuster"); err != nil || c.Principal.Org != "" || len(c.Principal.Attested) != 1 || c.Principal.Attested[0].Role != "adjuster" {
		t.Errorf("a holder of a credential: %+v, %v", c, err)
	}
	for _, name := range []string{"globx", "own/", "token:", "did:key:z6Mk", "did:"} {
		if _, err := p.Caller(name); code(err) != interact.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := p.Audience([]string{"anyone", "globx"}); code(err) != interact.Invalid || !strings.Contains(err.Error(), "(globex)") {
		t.Errorf("an unknown caller: %v", err)
	}
	if c, err := loaded(t, Options{}).Caller("own/ops"); err == nil {
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
	target := access.TargetOf(lamp, "lamp")
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
	want := []string{"globex node/ connect true  false", "globex node/ store true  false", "globex node/ relay true  false",
		"globex/ops lamp/ find true  false", "globex/ops lamp/ read true policy.yaml:4 true", "globex/ops lamp/ write false  false",
		"globex/ops lamp/blink invoke true policy.yaml:3 false", "globex/ops lamp/session invoke false  false", "globex/ops lamp/ subscribe false  false"}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}

// A changed file of rules is in force within seconds; one with an error leaves the old rules in force, and is logged once.
func TestFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	p := loaded(t, Options{File: path, Untrusted: access.UntrustedFind})
	calls := func() bool {
		return p.Decide(did.NodePrincipal(alice, ""), access.Request{Op: access.Invoke, Target: &access.Target{ID: "urn:x", Names: []string{"lamp"}}}).Allow
	}
	mtime := time.Now().Add(-time.Hour)
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		mtime = mtime.Add(time.Second)
		if err := os.Chtimes(path, mtime, mtime); err != nil {
			t.Fatal(err)
		}
	}
	reload := func(want bool, wantErr string) {
		t.Helper()
		changed, err := p.reload()
		if changed != want || (err == nil) != (wantErr == "") || err != nil && !strings.Contains(fmt.Sprint(err), wantErr) {
			t.Errorf("changed %v, %v; want %v, %q", changed, err, want, wantErr)
		}
		if (p.FileError() == nil) != (wantErr == "") && want {
			t.Errorf("the error of the file is %v", p.FileError())
		}
	}
	reload(false, "")
	if calls() {
		t.Error("an untrusted caller may call without a rule")
	}
	write(path, "apiVersion: lmosd/v1\nrules:\n- {allow: anyone, to: call, on: lamp}\n")
	reload(true, "")
	if !calls() {
		t.Error("the rule is not in force")
	}
	write(path, "apiVersion: lmosd/v1\nrules:\n- {allow: anyone, to: fly, on: lamp}\n")
	reload(true, "policy.yaml:3:4")
	reload(false, "")
	if !calls() {
		t.Error("a file with an error changes the rules")
	}
	cedar := strings.TrimSuffix(path, ".yaml") + ".cedar"
	write(path, "apiVersion: lmosd/v1\nrules: []\n")
	write(cedar, `permit (principal, action == Action::"invoke", resource in Name::"lamp");`)
	reload(true, "")
	if !calls() {
		t.Error("the policy in Cedar is not in force")
	}
	if err := errors.Join(os.Remove(cedar), os.Remove(path)); err != nil {
		t.Fatal(err)
	}
	reload(true, "")
	if calls() {
		t.Error("the rules of removed files are in force")
	}
	write(path, "rules: []")
	if err := New(Options{File: path}).Load(); code(err) != interact.PolicyInvalid {
		t.Errorf("a file with an error at the start: %v", err)
	}
}

func TestFilesAreWatched(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	synctest.Test(t, func(t *testing.T) {
		p := loaded(t, Options{File: path})
		ctx, cancel := context.WithCancel(t.Context())
		var text bytes.Buffer
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx, slog.New(slog.NewTextHandler(&text, nil))) }()
		for _, rules := range []string{"apiVersion: lmosd/v1\nrules: [{deny: anyone, to: '*'}]\n", "apiVersion: lmosd/v1\nrules: [7]\n"} {
			// The watcher reads at the same time: with a write that is not atomic it may see two changes.
			if err := atomicfile.Write(path, []byte(rules), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * watchEvery)
		}
		if p.Decide(did.NodePrincipal(alice, ""), access.Request{Op: access.Connect}).Allow {
			t.Error("the first file is not in force")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := text.String(); strings.Count(got, "access rules read") != 1 || strings.Count(got, "access rules rejected") != 1 {
			t.Errorf("logged:\n%s", got)
		}
	})
}

// Callers of a publication are in one audience, and partners among them are confirmed.
func TestAudienceOfAPublication(t *testing.T) {
	t.Parallel()
	unconfirmed := ""
	p := loaded(t, Options{Organization: func(name string) (did.DID, bool) {
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

// OnLoad is called once for each change of the rules, with what was changed; not if they are the same as before or do not compile.
func TestOnLoad(t *testing.T) {
	t.Parallel()
	var loads []string
	globex := did.DID("did:webvh:QmOne:globex.example")
	file := filepath.Join(t.TempDir(), "policy.yaml")
	p := New(Options{File: file, OnLoad: func(changes string) { loads = append(loads, changes) },
		Organization: func(name string) (did.DID, bool) { return globex, name == "globex" }})
	write := func(rule string) func() error {
		return func() error {
			return errors.Join(os.WriteFile(file, []byte("apiVersion: lmosd/v1\nrules:\n"+rule), 0o600), p.Load())
		}
	}
	const one, two = "  - {allow: globex, to: call, on: weather}\n", "  - {deny: globex, to: \"*\"}\n"
	for i, step := range []struct {
		do   func() error
		want string // empty: OnLoad is not called
	}{
		{do: p.Load}, // no rules
		{write(one), "added policy.yaml:3 {allow: globex, to: call, on: weather}"},
		{do: p.Load},
		{do: p.Refresh},
		{write(two), "added policy.yaml:3 {deny: globex, to: \"*\"}; removed policy.yaml:3 {allow: globex, to: call, on: weather}"},
		{func() error { globex = "did:webvh:QmTwo:globex.example"; return p.Load() }, "the same texts, with other lines, organizations or settings"},
		{do: p.Load},
		{write("\n" + two), "the same texts, with other lines, organizations or settings"},
		{write(""), "removed policy.yaml:4 {deny: globex, to: \"*\"}"},
	} {
		loads = nil
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(loads, " | "); got != step.want {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
	loads = nil
	p.AddSource(func(*access.Builder) error { return errors.New("broken") })
	if err := p.Refresh(); err == nil || len(loads) > 0 {
		t.Errorf("got %v after %q, want an error", err, loads)
	}
}

// A caller that is a group is explained as a member of it, with the role if the name has one.
func TestCallerOfAGroup(t *testing.T) {
	t.Parallel()
	p := loaded(t, Options{Group: func(name string) (string, bool) { return "QmClaims", name == "claims" }})
	for name, role := range map[string]string{"group:claims": "", "group:claims/adjuster": "adjuster"} {
		c, err := p.Caller(name)
		if err != nil || len(c.Principal.Groups) != 1 || c.Principal.Groups[0] != (did.Membership{Group: "QmClaims", Role: role}) || c.Principal.Relation != did.Untrusted {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
	if _, err := p.Caller("group:other"); code(err) != interact.Invalid || !strings.Contains(err.Error(), `unknown group "other"`) {
		t.Errorf("an unknown group: %v", err)
	}
}
