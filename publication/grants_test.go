package publication

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/td"
)

// fakeRules are access rules of a node without organizations.
type fakeRules struct {
	sources []func(*access.Builder) error
	set     *access.Set
	err     error
}

func (f *fakeRules) Audience(names []string) (td.Visibility, error) {
	widest := td.Private
	for _, name := range names {
		v, _, err := access.NewBuilder(access.Options{}).Audience(name)
		if err != nil {
			return 0, interact.Errorf(interact.Invalid, "another name", "%v", err)
		}
		widest = min(widest, v)
	}
	return widest, nil
}

func (f *fakeRules) AddSource(add func(*access.Builder) error) { f.sources = append(f.sources, add) }

func (f *fakeRules) Refresh() error {
	b := access.NewBuilder(access.Options{})
	for _, add := range f.sources {
		f.err = errors.Join(f.err, add(b))
	}
	f.set = b.Build()
	return f.err
}

// rules returns the rules in force.
func (f *fakeRules) rules() (all []string) {
	if f.set != nil {
		for _, e := range f.set.Entries() {
			all = append(all, e.ID+" "+e.Text)
		}
	}
	return all
}

func (f *fixture) withRules() *fakeRules {
	r := &fakeRules{}
	f.o.Access = r
	r.AddSource(f.Index.addRules)
	return r
}

func TestCallersEndWithThePublication(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := f.withRules()
	publish := func(title string, callers []string) error {
		ctx := t.Context()
		if callers != nil {
			ctx = WithCallers(ctx, callers)
		}
		_, err := f.Publisher.publish(ctx, tool(title, "urn:x:"+title), nil, Registration{})
		return err
	}
	check := func(want ...string) {
		t.Helper()
		if got := r.rules(); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	one, two := "expose a {allow: anyone, to: [find, call], on: \"urn:x:a\"}", "expose b {allow: [partners, local], to: [find, call], on: \"urn:x:b\"}"
	if err := errors.Join(publish("a", []string{"anyone"}), publish("b", []string{"partners", "local"}), publish("c", nil)); err != nil {
		t.Fatal(err)
	}
	check(one, two)
	if err := publish("c", []string{"globx"}); codeOf(err) != interact.Invalid || f.Get("urn:x:c").For != nil {
		t.Errorf("an unknown caller: %v", err)
	}
	if err := publish("c", make([]string, maxCallers+1)); codeOf(err) != interact.Invalid {
		t.Errorf("too many callers: %v", err)
	}
	if err := publish("a", nil); err != nil {
		t.Error(err)
	}
	check(one, two)
	if next, err := f.renew(t.Context(), "urn:x:a"); err != nil || !slices.Equal(next.For, []string{"anyone"}) {
		t.Errorf("the next record has %+v, %v", next, err)
	}
	f.withdraw("urn:x:b")
	check(one)
	if err := publish("b", nil); err != nil {
		t.Error(err)
	}
	check(one)
	if got := f.Offered(); len(got) != 3 || got[0].Thing != "urn:x:a" {
		t.Errorf("offered: %v", got)
	}

	again := f.restart(time.Now().Add(time.Minute))
	r = again.withRules()
	if err := again.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.Refresh(); err != nil {
		t.Error(err)
	}
	check(one)
	if _, err := again.Publisher.publish(WithCallers(t.Context(), []string{}), tool("a", "urn:x:a"), nil, Registration{}); err != nil {
		t.Error(err)
	}
	check()
}

func TestRestoreGrants(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.withRules()
	if _, err := f.Publisher.publish(WithCallers(t.Context(), []string{"anyone"}), tool("a", "urn:x:a"), nil, Registration{}); err != nil {
		t.Fatal(err)
	}
	again := fixtureOver(t, f.o.Signer.(*keystore.Key), f.disk.Batching)
	r := again.withRules()
	if err := again.Restore(t.Context()); err != nil || len(r.rules()) != 1 {
		t.Errorf("restored: %q, %v", r.rules(), err)
	}
}

// A name that has no meaning any longer does not disable other callers.
func TestFormerNamesAreLeftOut(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := f.withRules()
	f.publish("a", "urn:x:a")
	f.Get("urn:x:a").For = []string{"former", "anyone"}
	if err := r.Refresh(); err != nil || len(r.rules()) != 1 || !strings.Contains(r.rules()[0], "{allow: anyone,") {
		t.Errorf("%q, %v", r.rules(), err)
	}
}

func TestCallersNeedRules(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if _, err := f.Publish(WithCallers(t.Context(), []string{"anyone"}), tool("a", "urn:x:a"), nil, Registration{}); codeOf(err) != interact.Invalid {
		t.Errorf("got %v", err)
	}
}

// Callers select the visibility of a TD without one, in its signature. It ends with them, and a Thing that was public is withdrawn publicly.
func TestCallersSelectTheVisibility(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.withRules()
	publish := func(raw []byte, callers ...string) *Result {
		t.Helper()
		ctx := t.Context()
		if callers != nil {
			ctx = WithCallers(ctx, callers)
		}
		p, err := f.Publisher.publish(ctx, raw, nil, Registration{})
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Description; got.Visibility != p.Audience || got.Record.Audience != p.Audience {
			t.Errorf("the TD has %s, the record %s, the publication %s", got.Visibility, got.Record.Audience, p.Audience)
		}
		return p
	}
	plain := tool("Echo", "urn:x:echo")
	public := publish(plain, "anyone")
	if public.Audience != td.Public || bytes.Contains(public.Signed.TD, []byte("lmosd:visibility")) {
		t.Errorf("for anyone: %s", public.Audience)
	}
	for _, c := range []struct {
		name    string
		callers []string
		want    td.Visibility
	}{
		{"partners", []string{"partners"}, td.Partners},
		{"published again without callers", nil, td.Partners},
		{"consumers", []string{"local", "token:crm"}, td.Private},
		{"the widest counts", []string{"local", "own"}, td.Organization},
		{"none any longer", []string{}, td.Public},
	} {
		p := publish(plain, c.callers...)
		if p.Audience != c.want || len(p.Warnings) > len(public.Warnings) {
			t.Errorf("%s: got %s, want %s; warnings %v", c.name, p.Audience, c.want, p.Warnings)
		}
		if c.want != td.Public && p.Public == nil {
			t.Errorf("%s: the public record is not withdrawn", c.name)
		}
	}
	stated := publish(restrictedTool(td.Private), "partners")
	if n := len(stated.Warnings); stated.Audience != td.Private || n == 0 || stated.Warnings[n-1].Pointer != "/lmosd:visibility" {
		t.Errorf("a TD that states its visibility: %s, %v", stated.Audience, stated.Warnings)
	}
	_, err := f.Publisher.publish(WithCallers(t.Context(), []string{"partners"}), publish(tool("Signed", "urn:x:signed")).Signed.TD, nil, Registration{})
	if err == nil || !strings.Contains(err.Error(), "lmosd:visibility") || f.Get("urn:x:signed").Audience != td.Public {
		t.Errorf("a signed TD without a visibility: %v", err)
	}
}
