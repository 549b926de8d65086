package proven

import (
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/internal/weblocation"
	"github.com/lmosd/lmosd/trust/organization"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func node(n int) did.DID { return didtest.Key(n).DID() }

// found makes an organization at a domain with its members.
func found(t testing.TB, domain string, members ...did.DID) *organization.Organization {
	t.Helper()
	o, err := organization.Create(filepath.Join(t.TempDir(), "org"), domain, node(1), organization.Options{Auto: true, Now: func() time.Time { return noon }})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		if err := o.Admit(m, ""); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

func credential(t testing.TB, o *organization.Organization, member did.DID) *vc.Credential {
	t.Helper()
	c, err := o.Issue(member, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// site serves the status list of an organization at all domains. Without one, it serves nothing.
func site(t testing.TB, o **organization.Organization) (weblocation.Options, string) {
	t.Helper()
	return didtest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if *o == nil {
			http.NotFound(w, r)
			return
		}
		l, err := (*o).List(false)
		if err != nil || !strings.HasSuffix(l.ID, r.URL.Path) {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(l.Raw)
	}))
}

func TestProof(t *testing.T) {
	t.Parallel()
	var serving *organization.Organization
	web, port := site(t, &serving)
	domain := "example.com:" + port
	acme := found(t, domain, node(2), node(3))
	serving = acme
	var all Organizations
	c := credential(t, acme, node(2))
	if err := all.AddMember(t.Context(), acme.SCID(), node(2), c.Raw, noon); err != nil || len(all.Members(acme.SCID(), noon)) != 0 {
		t.Errorf("an organization without a proof has members, %v", err)
	}
	until, problems := all.Prove(t.Context(), web, acme.Log(), noon)
	if !until.Equal(noon.Add(time.Hour)) || len(problems) != 0 {
		t.Errorf("proven until %s, problems %v", until, problems)
	}
	for _, name := range []string{domain, acme.SCID(), string(acme.DID())} {
		if got := all.Named(name, noon); got != acme.DID() {
			t.Errorf("%s is %q", name, got)
		}
	}
	for name, bad := range map[string]struct {
		subject did.DID
		raw     []byte
	}{
		"of another node":         {node(3), c.Raw},
		"of another organization": {node(2), credential(t, found(t, domain, node(2)), node(2)).Raw},
		"garbage":                 {node(2), []byte("{}")},
	} {
		if err := all.AddMember(t.Context(), acme.SCID(), bad.subject, bad.raw, noon); err == nil || len(all.Members(acme.SCID(), noon)) != 0 {
			t.Errorf("a credential %s proves a member, %v", name, err)
		}
	}
	if err := all.AddMember(t.Context(), acme.SCID(), node(2), c.Raw, noon); err != nil {
		t.Fatal(err)
	}
	none := func(string) bool { return false }
	if got := all.Members(acme.SCID(), noon); !slices.Equal(got, []did.DID{node(2)}) || !all.HasMember(acme.SCID(), node(2), noon) ||
		all.Of(node(2), noon, none) != acme.DID() || all.Of(node(3), noon, none) != "" {
		t.Errorf("the members are %v", got)
	}
	if got := all.Of(node(2), noon, func(scid string) bool { return scid == acme.SCID() }); got != "" {
		t.Errorf("excepted, the organization is %s", got)
	}
	if later := noon.Add(time.Hour); all.Get(acme.SCID(), later) != nil || all.Named(domain, later) != "" || all.HasMember(acme.SCID(), node(2), later) ||
		all.Of(node(2), later, none) != "" {
		t.Error("the proof outlives the log")
	}

	other := found(t, domain) // the domain serves one log
	serving = other
	all.Prove(t.Context(), web, other.Log(), noon)
	if all.Get(acme.SCID(), noon) != nil || all.Named(domain, noon) != other.DID() {
		t.Error("two organizations are proven by one domain")
	}
	all.Remove(webvh.Location(other.DID()))
	if all.Get(other.SCID(), noon) != nil {
		t.Error("a removed proof counts")
	}
}

// Credentials count only with a status list: it says who is revoked.
func TestNoStatusList(t *testing.T) {
	t.Parallel()
	var serving *organization.Organization
	web, port := site(t, &serving)
	acme := found(t, "example.com:"+port, node(2))
	c := credential(t, acme, node(2))
	var all Organizations
	if _, problems := all.Prove(t.Context(), web, acme.Log(), noon); len(problems) != 1 || !strings.Contains(problems[0], "#i1") {
		t.Errorf("problems %v", problems)
	}
	if err := all.AddMember(t.Context(), acme.SCID(), node(2), c.Raw, noon); err == nil {
		t.Error("a credential counts without a list")
	}
	if _, err := acme.Revoke(node(2)); err != nil {
		t.Fatal(err)
	}
	serving = acme
	all.Prove(t.Context(), web, acme.Log(), noon)
	if err := all.AddMember(t.Context(), acme.SCID(), node(2), c.Raw, noon); err == nil {
		t.Error("a revoked credential counts")
	}
}

func TestTry(t *testing.T) {
	t.Parallel()
	var all Organizations
	for _, c := range []struct {
		node int
		at   time.Duration
		want bool
	}{{1, 0, true}, {1, 0, false}, {1, tryAgain - 1, false}, {2, tryAgain - 1, true}, {1, tryAgain, true}} {
		if got := all.Try(node(c.node), noon.Add(c.at)); got != c.want {
			t.Errorf("node %d after %s: %t", c.node, c.at, got)
		}
	}
	for i := range maxTried + 10 {
		all.Try(did.DID("did:key:"+strings.Repeat("z", i%7)+string(rune(i))), noon)
	}
	if len(all.tried) > maxTried {
		t.Errorf("%d owners are kept", len(all.tried))
	}
}
