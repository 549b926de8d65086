package gateway

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/policy"
	accessrules "github.com/lmosd/lmosd/policy/access"
	policyrules "github.com/lmosd/lmosd/policy/rules"
)

// A provider is an identity provider with the token "NAME.a.b", whose rules are made by a function.
type provider struct {
	issued
	name   string
	rules  func() error
	closed *int
}

func (p provider) Is(text string) bool { return text == p.name+".a.b" }

func (p provider) Rules(b *accessrules.Builder) error {
	if err := p.rules(); err != nil {
		return err
	}
	return b.AddRule(p.name, accessrules.Rule{Allow: []string{"oidc:" + p.name + ":anna"}, To: []string{"read"}})
}

func (p provider) Close() error { *p.closed++; return nil }

// Settings that a node applies are all in force or none is, whichever of them fails, and also if the file of the access rules changes meanwhile.
func TestApplyIsAllOrNothing(t *testing.T) {
	t.Parallel()
	none := func() error { return nil }
	for name, test := range map[string]struct {
		verify error // of the new providers
		rules  error // of their rules
		file   string
		breaks bool // the file breaks while the rules are compiled
		fails  bool
	}{
		"nothing fails":              {},
		"the providers fail":         {verify: errors.New("no certificates"), fails: true},
		"the rules fail":             {file: "rules: 5\n", fails: true},
		"the rules of providers":     {rules: errors.New("no such right"), fails: true},
		"a file breaks between":      {breaks: true},
		"broken, and then read once": {file: "rules: 5\n", breaks: true, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "policy.yaml")
			write := func(text string) {
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Error(err)
				}
			}
			write("apiVersion: lmosd/v1\nrules:\n  - {allow: local, to: [read]}\n")
			store := tokens.New("secret")
			p := policy.New(policy.Rules{PerPeer: 1, Options: policyrules.Options{File: file, Untrusted: accessrules.UntrustedNone, More: []func(*accessrules.Builder) error{store.Rules}}})
			store.OnChange(p.Load)
			breaks := none
			var oldClosed, newClosed int
			store.Accept(provider{name: "old", closed: &oldClosed, rules: func() error { return breaks() }})
			if err := p.Load(); err != nil {
				t.Fatal(err)
			}
			g := &Gateway{o: Options{Policy: p, Tokens: store}, guard: guard{names: &atomic.Pointer[webNames]{}}}
			g.guard.names.Store(newWebNames([]string{"old.example"}, nil))
			if test.file != "" {
				write(test.file)
			}
			if test.breaks {
				breaks = func() error { write("rules: 5\n"); return nil }
			}
			err := g.apply(Live{Hosts: []string{"new.example"}, Rules: policy.Rules{PerPeer: 2, Options: policyrules.Options{File: file, Untrusted: accessrules.UntrustedOpen}},
				Verify: func() (tokens.Verifier, error) {
					if test.verify != nil {
						return nil, test.verify
					}
					return provider{name: "new", closed: &newClosed, rules: func() error { return errors.Join(test.rules, breaks()) }}, nil
				}})
			if (err != nil) != test.fails {
				t.Fatalf("got %v", err)
			}
			untrusted, _, _ := p.Settings()
			inForce := func(name string) bool {
				return slices.ContainsFunc(p.Rules(), func(e accessrules.Entry) bool { return slices.Contains(e.Names, "oidc:"+name+":anna") })
			}
			for part, isNew := range map[string]bool{"hosts": g.guard.names.Load().hosts["new.example"], "rights": untrusted == accessrules.UntrustedOpen,
				"providers": store.Is("new.a.b"), "rules of providers": inForce("new")} {
				if isNew == test.fails {
					t.Errorf("%s: new %t after %v", part, isNew, err)
				}
			}
			for part, isOld := range map[string]bool{"hosts": g.guard.names.Load().hosts["old.example"], "rights": untrusted == accessrules.UntrustedNone,
				"providers": store.Is("old.a.b"), "rules of providers": inForce("old"), "old verifier": oldClosed == 0, "file": p.Callers() == policy.Permitted} {
				if isOld != test.fails {
					t.Errorf("%s: old %t after %v", part, isOld, err)
				}
			}
			if wantClosed := test.fails && test.verify == nil; (newClosed > 0) != wantClosed {
				t.Errorf("the new verifier was closed %d times", newClosed)
			}
			if breaks = none; test.fails {
				write("apiVersion: lmosd/v1\nrules:\n  - {allow: local, to: [read]}\n")
				if err := p.Load(); err != nil || inForce("new") || !inForce("old") {
					t.Errorf("rules read again: %v, of the new provider %t", err, inForce("new"))
				}
			}
		})
	}
}
