package trust

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/aries"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/trust/exchange"
	"github.com/lmosd/lmosd/trust/foreign"
)

// newWallet returns a foreign issuer.
func newWallet(t *testing.T) *aries.Wallet {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	w, err := aries.NewWallet(key)
	if errors.Is(err, did.ErrLegacyUnsupported) {
		t.Skip("this build has no aries")
	} else if err != nil {
		t.Fatal(err)
	}
	return w
}

// issues returns a credential of an hour.
func issues(t *testing.T, w *aries.Wallet, subject did.DID, roles ...string) json.RawMessage {
	t.Helper()
	return must(w.Issue(subject, time.Now().Add(-time.Minute), time.Now().Add(time.Hour), roles...))(t)
}

// trusts adds an issuer to the trust store.
func (m *member) trusts(name string, w *aries.Wallet, roles ...string) {
	m.t.Helper()
	must(m.TrustIssuer(m.t.Context(), api.ForeignIssuer{Name: name, DID: w.DID(), Roles: roles}))(m.t)
}

// presents stores a credential of a node.
func (m *member) presents(raw []byte, to ...did.DID) *api.ForeignCredential {
	m.t.Helper()
	return must(m.Present(m.t.Context(), api.CredentialPresentation{Credential: raw, To: to}))(m.t)
}

func (m *member) attests(other *member, w *aries.Wallet, role string) bool {
	m.maintain()
	return slices.Contains(m.Principal(other.did()).Attested, did.Attestation{Issuer: w.DID(), Role: role})
}

func TestForeignCredentialGivesItsHolderARole(t *testing.T) {
	t.Parallel()
	w := newWallet(t)
	holder, host := newMember(t), newMember(t)
	host.trusts("registry", w, "adjuster", "adjuster=urn:other", "trainee")
	raw := issues(t, w, holder.did(), "adjuster", "admin")
	if c := holder.presents(raw, host.did()); !c.Held || c.Issuer != w.DID() || c.IssuerName != "" {
		t.Errorf("stored %+v", c)
	}
	holder.connect(host)
	untilTrue(t, func() bool { return host.attests(holder, w, "adjuster") })
	p := host.Principal(holder.did())
	if len(p.Attested) != 1 || p.Relation != did.Untrusted || p.Roles != nil || p.Org != "" {
		t.Errorf("the principal is %+v", p)
	}
	all := host.CredentialsOf(holder.did())
	if len(all) != 1 || all[0].Name != "registry" || all[0].Hash != foreign.Hash(raw) || !slices.Equal(all[0].Roles, []string{"adjuster"}) ||
		!slices.Equal(all[0].Types, []string{"RoleCredential"}) || len(all[0].Claims) != 1 {
		t.Errorf("credentials %+v", all)
	}
	if list := host.ForeignCredentials(); len(list) != 1 || list[0].Subject != holder.did() || list[0].Held {
		t.Errorf("listed %+v", list)
	}
	if id, ok := host.Named("registry"); !ok || id != w.DID() {
		t.Errorf("rules call registry %s, %v", id, ok)
	}

	// The end of the trust in the issuer ends the role at once, and its name stays.
	if err := host.RemoveForeignIssuer(t.Context(), "registry"); err != nil {
		t.Fatal(err)
	}
	if p := host.Principal(holder.did()); len(p.Attested) != 0 || host.CredentialsOf(holder.did()) != nil {
		t.Errorf("the role stays: %+v", p)
	}
	host.mu.Lock()
	change := host.last[holder.did()]
	host.mu.Unlock()
	if !change[1].Lost(change[0]) {
		t.Errorf("the change is not reported as a loss: %+v", change)
	}
	if _, err := host.TrustIssuer(t.Context(), api.ForeignIssuer{Name: "registry", DID: newWallet(t).DID(), Roles: []string{"adjuster"}}); err == nil {
		t.Error("another issuer gets the name")
	}
	host.trusts("registry", w, "trainee")
	if host.attests(holder, w, "adjuster") {
		t.Error("a role that is not permitted counts")
	}
	host.trusts("registry", w, "adjuster")
	if !host.attests(holder, w, "adjuster") {
		t.Error("a role that is permitted again does not count")
	}
}

// Without named nodes, a credential is shown to members and partners, and to nobody else.
func TestForeignCredentialIsShownToPartners(t *testing.T) {
	t.Parallel()
	w := newWallet(t)
	holder, partner, other := newMember(t), newMember(t), newMember(t)
	for _, m := range []*member{partner, other} {
		m.trusts("registry", w, "adjuster")
	}
	holder.presents(issues(t, w, holder.did(), "adjuster"))
	holder.connect(other)
	holder.connect(partner)
	holder.founds("acme.example")
	partner.founds("globex.example")
	holder.federates(partner)
	untilTrue(t, func() bool { return partner.attests(holder, w, "adjuster") })
	if p := partner.Principal(holder.did()); p.Relation != did.Partner {
		t.Errorf("the relation is %s", p.Relation)
	}
	if other.attests(holder, w, "adjuster") {
		t.Error("an untrusted node has seen the credential")
	}
}

func TestForeignCredentialAfterRestart(t *testing.T) {
	t.Parallel()
	w := newWallet(t)
	holder, host := newMember(t), newMember(t)
	host.trusts("registry", w, "adjuster")
	c := holder.presents(issues(t, w, holder.did(), "adjuster"), host.did())
	holder.connect(host)
	untilTrue(t, func() bool { return host.attests(holder, w, "adjuster") })
	holder.halt()
	untilTrue(t, func() bool { return !host.attests(holder, w, "adjuster") })
	host.halt()
	host, holder = host.restart(), holder.restart()
	holder.connect(host)
	untilTrue(t, func() bool { return host.attests(holder, w, "adjuster") })

	if err := holder.RemoveCredential(t.Context(), c.Hash[:11]); err == nil {
		t.Error("a short hash removes a credential")
	}
	if err := holder.RemoveCredential(t.Context(), c.Hash[:12]); err != nil || len(holder.ForeignCredentials()) != 0 {
		t.Errorf("not removed: %v", err)
	}
	if err := holder.RemoveCredential(t.Context(), c.Hash); interact.AsError(err).Code != interact.NotFound {
		t.Error(err)
	}
}

func TestForeignCredentialEnds(t *testing.T) {
	t.Parallel()
	w := newWallet(t)
	holder, host := newMember(t), newMember(t)
	host.trusts("registry", w, "adjuster")
	holder.presents(issues(t, w, holder.did(), "adjuster"), host.did())
	holder.connect(host)
	untilTrue(t, func() bool { return host.attests(holder, w, "adjuster") })
	advances(50*time.Minute, host)
	if !host.attests(holder, w, "adjuster") {
		t.Error("it ends early")
	}
	advances(16*time.Minute, host)
	if host.attests(holder, w, "adjuster") || host.CredentialsOf(holder.did()) != nil {
		t.Error("an expired credential counts")
	}
}

func TestPresentedCredentialsAreRefused(t *testing.T) {
	t.Parallel()
	w, unknown := newWallet(t), newWallet(t)
	holder, host := newMember(t), newMember(t)
	holder.founds("acme.example")
	host.founds("globex.example")
	host.federates(holder)
	host.trusts("registry", w, "adjuster")
	holder.connect(host)
	host.becomes(holder, did.Partner, "")
	good := issues(t, w, holder.did(), "adjuster")
	for name, c := range map[string]struct {
		raw  []byte
		want interact.Code
	}{
		"a subject that is not the presenter":   {issues(t, w, host.did(), "adjuster"), interact.CredentialInvalid},
		"a subject that is another node":        {issues(t, w, didtest.NewKey().DID(), "adjuster"), interact.CredentialInvalid},
		"an issuer that is not in the store":    {issues(t, unknown, holder.did(), "adjuster"), interact.IssuerUntrusted},
		"expired":                               {must(w.Issue(holder.did(), time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour), "adjuster"))(t), interact.CredentialExpired},
		"not valid yet":                         {must(w.Issue(holder.did(), time.Now().Add(time.Hour), time.Now().Add(2*time.Hour), "adjuster"))(t), interact.CredentialExpired},
		"changed":                               {bytes.Replace(good, []byte("adjuster"), []byte("adjustor"), 1), interact.CredentialInvalid},
		"the credential of another form":        {holder.credential(t), interact.CredentialInvalid},
		"nothing":                               {nil, interact.CredentialInvalid},
		"no JSON":                               {[]byte("lmos"), interact.CredentialInvalid},
		"an empty proof":                        {withoutProof(t, good), interact.CredentialInvalid},
		"a credential in the name of an issuer": {bytes.ReplaceAll(issues(t, unknown, holder.did(), "adjuster"), []byte(unknown.DID()), []byte(w.DID())), interact.CredentialInvalid},
	} {
		_, err := holder.net.Ask(t.Context(), host.did(), &exchange.Request{Op: exchange.OpPresent, Credential: c.raw})
		if code := interact.AsError(err).Code; err == nil || code != c.want {
			t.Errorf("%s: %v; want %s", name, err, c.want)
		}
	}
	if _, err := holder.net.Ask(t.Context(), host.did(), &exchange.Request{Op: exchange.OpPresent, Credential: make([]byte, 1<<20)}); err == nil {
		t.Error("1 MB is accepted")
	}
	if host.CredentialsOf(holder.did()) != nil {
		t.Error("a refused credential counts")
	}
	// An operator presents for its own node only.
	for name, raw := range map[string][]byte{"of another": issues(t, w, host.did(), "adjuster"), "1 MB": bytes.Repeat([]byte(" "), 1<<20)} {
		if _, err := holder.Present(t.Context(), api.CredentialPresentation{Credential: raw}); interact.AsError(err).Code != interact.CredentialInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := holder.Present(t.Context(), api.CredentialPresentation{Credential: good, To: []did.DID{"did:web:a.example"}}); err == nil {
		t.Error("shown to a node that is none")
	}
}

func withoutProof(t *testing.T, raw []byte) []byte {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	doc["proof"] = []any{}
	return must(json.Marshal(doc))(t)
}

// credential returns the credential of a member.
func (m *member) credential(t *testing.T) []byte {
	t.Helper()
	return must(m.Credential())(t)
}

// An untrusted node does not learn which issuers count.
func TestUntrustedNodesDoNotLearnTheIssuers(t *testing.T) {
	t.Parallel()
	w, unknown := newWallet(t), newWallet(t)
	holder, host := newMember(t), newMember(t)
	host.trusts("registry", w, "adjuster")
	holder.connect(host)
	var texts []string
	for _, raw := range [][]byte{issues(t, unknown, holder.did(), "adjuster"), bytes.Replace(issues(t, w, holder.did(), "adjuster"), []byte("adjuster"), []byte("adjustor"), 1),
		issues(t, w, host.did(), "adjuster")} {
		_, err := holder.net.Ask(t.Context(), host.did(), &exchange.Request{Op: exchange.OpPresent, Credential: raw})
		if err == nil {
			t.Fatal("accepted")
		}
		texts = append(texts, err.Error())
	}
	if len(slices.Compact(texts)) != 1 {
		t.Errorf("the answers differ: %q", texts)
	}
}

func TestBarredNodeHasNoForeignRole(t *testing.T) {
	t.Parallel()
	w := newWallet(t)
	holder, host := newMember(t), newMember(t)
	host.trusts("registry", w, "adjuster")
	holder.presents(issues(t, w, holder.did(), "adjuster"), host.did())
	holder.connect(host)
	untilTrue(t, func() bool { return host.attests(holder, w, "adjuster") })
	if err := host.Distrust(t.Context(), holder.did(), true); err != nil {
		t.Fatal(err)
	}
	if host.attests(holder, w, "adjuster") {
		t.Error("a distrusted node keeps its role")
	}
	if _, err := holder.net.Ask(t.Context(), host.did(), &exchange.Request{Op: exchange.OpPresent, Credential: issues(t, w, holder.did(), "adjuster")}); err == nil {
		t.Error("a distrusted node presents a credential")
	}
}

// The document of a did:web issuer is fetched once for many credentials, and not at all for issuers that do not count.
func TestDocumentsOfIssuersAreFetchedOnce(t *testing.T) {
	t.Parallel()
	var fetched atomic.Int32
	web, port := didtest.Serve(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		fetched.Add(1)
		http.NotFound(rw, r)
	}))
	m := newMember(t)
	m.o.Web = web
	m.issuers.open(&m.o)
	id := did.DID("did:web:issuer.example.com%3A" + port)
	if _, err := issuersOf(m.Trust).Resolve(t.Context(), id); !errors.Is(err, foreign.ErrIssuer) || fetched.Load() != 0 {
		t.Errorf("an issuer that does not count is fetched: %v, %d", err, fetched.Load())
	}
	must(m.TrustIssuer(t.Context(), api.ForeignIssuer{Name: "registry", DID: id, Roles: []string{"adjuster"}}))(t)
	for range 3 {
		if _, err := issuersOf(m.Trust).Resolve(t.Context(), id); !errors.Is(err, did.ErrNotFound) {
			t.Error(err)
		}
	}
	if n := fetched.Load(); n != 1 {
		t.Errorf("fetched %d times", n)
	}
	advances(issuerAgain, m)
	_, _ = issuersOf(m.Trust).Resolve(t.Context(), id)
	if n := fetched.Load(); n != 2 {
		t.Errorf("fetched %d times after the pause", n)
	}
}

// Issuers with documents of 2018, and from before DID Core 1.0, are read over the web.
func TestIssuersOfTheWeb(t *testing.T) {
	t.Parallel()
	w := newWallet(t)
	pub := must(w.DID().Key())(t)
	text := ""
	web, port := didtest.Serve(t, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte(text)) }))
	id := "did:web:example.com%3A" + port
	key := `{"id":"` + id + `#key-1","type":"Ed25519VerificationKey2018","controller":"` + id + `","publicKeyBase58":"` + did.EncodeBase58(pub)[1:] + `"}`
	uses := `,"assertionMethod":["` + id + `#key-1"],"service":[{"id":"#td","type":"WotThing","serviceEndpoint":"https://example.com/.well-known/wot"}]}`
	registry := w.As(did.DID(id), id+"#key-1")
	for _, c := range []struct {
		name, text string
		want       bool
	}{
		{"2018", `{"@context":["https://www.w3.org/ns/did/v1"],"id":"` + id + `","controller":"did:web:example.com","verificationMethod":[` + key + `]` + uses, true},
		{"before DID Core", `{"@context":["https://w3id.org/did/v1"],"id":"` + id + `","publicKey":[` + key + `]` + uses, true},
		{"another purpose", `{"@context":["https://www.w3.org/ns/did/v1"],"id":"` + id + `","verificationMethod":[` + key + `],"authentication":["` + id + `#key-1"]}`, false},
		{"another id", `{"@context":["https://w3id.org/did/v1"],"id":"did:web:other.example","publicKey":[` + key + `]` + uses, false},
	} {
		text = c.text
		m := newMember(t)
		m.o.Web = web
		m.issuers.open(&m.o)
		_, err := m.Present(t.Context(), api.CredentialPresentation{Credential: issues(t, registry, m.did(), "adjuster")})
		if (err == nil) != c.want || err != nil && interact.AsError(err).Code != interact.CredentialInvalid {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// The credentials of this node are fetched from the service of a did:web. Those of others are left out.
func TestCredentialsOfAService(t *testing.T) {
	t.Parallel()
	w, m := newWallet(t), newMember(t)
	pub := must(w.DID().Key())(t)
	var served atomic.Value
	web, port := didtest.Serve(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		id := "did:web:example.com%3A" + r.Host[strings.LastIndex(r.Host, ":")+1:]
		switch r.URL.Path {
		case "/.well-known/did.json":
			_, _ = rw.Write([]byte(`{"id":"` + id + `","verificationMethod":[{"id":"#k","type":"Ed25519VerificationKey2018","publicKeyBase58":"` + did.EncodeBase58(pub)[1:] +
				`"}],"service":[{"id":"#vc","type":"VerifiableCredentialService","serviceEndpoint":["http://example.com/vc","https://` + r.Host + `/agent/vc"]}]}`))
		case "/agent/vc":
			_, _ = rw.Write(served.Load().([]byte))
		default:
			http.NotFound(rw, r)
		}
	}))
	m.o.Web = web
	m.issuers.open(&m.o)
	from := did.DID("did:web:example.com%3A" + port)
	mine, others := issues(t, w, m.did(), "adjuster"), issues(t, w, didtest.NewKey().DID(), "adjuster")
	for _, c := range []struct {
		name   string
		served any
		want   int
	}{
		{"one", mine, 1},
		{"several", []any{others, mine, json.RawMessage(withoutProof(t, mine))}, 1},
		{"a presentation", map[string]any{"type": "VerifiablePresentation", "verifiableCredential": []any{mine}}, 1},
		{"of others", []any{others}, 0},
		{"nothing", []any{}, 0},
		{"text", "x", 0},
		{"too much", strings.Repeat("x", maxServed), 0},
	} {
		served.Store(must(json.Marshal(c.served))(t))
		all, err := m.FetchCredentials(t.Context(), api.CredentialFetch{From: from})
		if len(all) != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%s: %+v, %v", c.name, all, err)
		}
	}
	if len(m.ForeignCredentials()) != 1 {
		t.Errorf("held %+v", m.ForeignCredentials())
	}
	if _, err := m.FetchCredentials(t.Context(), api.CredentialFetch{From: m.did()}); interact.AsError(err).Code != interact.Usage {
		t.Error(err)
	}
}

func TestForeignIssuersAreChecked(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	m.founds("acme.example")
	good := api.ForeignIssuer{Name: "registry", DID: "did:web:registry.example", Roles: []string{"adjuster", "admin=https://claims.example/Admin"}}
	must(m.TrustIssuer(t.Context(), good))(t)
	for name, change := range map[string]func(*api.ForeignIssuer){
		"a second name":                 func(i *api.ForeignIssuer) { i.Name = "other" },
		"the name of another":           func(i *api.ForeignIssuer) { i.DID = "did:web:other.example" },
		"the name of the organization":  func(i *api.ForeignIssuer) { i.Name, i.DID = "acme", "did:web:other.example" },
		"a word of rules":               func(i *api.ForeignIssuer) { i.Name, i.DID = "partners", "did:web:other.example" },
		"no name":                       func(i *api.ForeignIssuer) { i.Name = "" },
		"an organization":               func(i *api.ForeignIssuer) { i.DID = m.org.DID() },
		"no DID":                        func(i *api.ForeignIssuer) { i.DID = "registry.example" },
		"no roles":                      func(i *api.ForeignIssuer) { i.Roles = nil },
		"a role that no rule can name":  func(i *api.ForeignIssuer) { i.Roles = []string{"Adjuster"} },
		"a role of no type":             func(i *api.ForeignIssuer) { i.Roles = []string{"adjuster="} },
		"a type that is very long":      func(i *api.ForeignIssuer) { i.Roles = []string{"adjuster=" + strings.Repeat("x", 600)} },
		"a role with the type as name":  func(i *api.ForeignIssuer) { i.Roles = []string{"=https://claims.example/Adjuster"} },
		"more roles than may be listed": func(i *api.ForeignIssuer) { i.Roles = slices.Repeat([]string{"adjuster"}, 33) },
	} {
		i := good
		change(&i)
		if _, err := m.TrustIssuer(t.Context(), i); interact.AsError(err).Code != interact.Usage {
			t.Errorf("%s: %v", name, err)
		}
	}
	if all := m.ForeignIssuers(); len(all) != 1 || all[0].Name != "registry" {
		t.Errorf("issuers %+v", all)
	}
	if err := m.RemoveForeignIssuer(t.Context(), "other"); interact.AsError(err).Code != interact.NotFound {
		t.Error(err)
	}
	m.halt()
	if all := m.restart().ForeignIssuers(); len(all) != 1 {
		t.Errorf("after a restart %+v", all)
	}
}
