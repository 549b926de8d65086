package trust

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/internal/testhost"
	"github.com/lmosd/lmosd/trust/exchange"
	"github.com/lmosd/lmosd/trust/organization"
	"github.com/lmosd/lmosd/trust/partners"
)

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// twoHistories returns a continuation of the log of an organization that contradicts the one that the organization then has.
func twoHistories(m *member) (other *webvh.Log) {
	m.t.Helper()
	dir := filepath.Join(m.t.TempDir(), "org")
	noError(m.t, os.Mkdir(dir, 0o700))
	for _, f := range must(os.ReadDir(m.orgDir()))(m.t) {
		noError(m.t, os.WriteFile(filepath.Join(dir, f.Name()), must(os.ReadFile(filepath.Join(m.orgDir(), f.Name())))(m.t), 0o600))
	}
	twin := must(organization.Open(dir, m.did(), organization.Options{Now: m.o.Now}))(m.t)
	must(twin.AddIssuer(didtest.NewKey().DID().Multibase()))(m.t)
	if err := m.AddIssuer(m.t.Context(), m.did()); err != nil {
		m.t.Fatal(err)
	}
	must(m.org.AddIssuer(didtest.NewKey().DID().Multibase()))(m.t)
	m.changed()
	return twin.Log()
}

// Two histories of the log of a partner suspend it until the operator chooses one: both stay as evidence, and the other members follow.
func TestTwoHistoriesOfAPartner(t *testing.T) {
	t.Parallel()
	acme, agent, globex := newMember(t), newMember(t), newMember(t)
	acme.founds("acme.example")
	globex.founds("globex.example")
	acme.admits(agent, false)
	acme.federates(globex)
	agent.waits(func() bool { return len(agent.Partners()) == 1 })
	scid := globex.org.SCID()
	other := twoHistories(globex)
	stored := globex.org.Log()
	state := func(m *member) api.Partner { return m.Partners()[0] }
	for _, m := range []*member{acme, agent} {
		m.waits(func() bool { return state(m).Head == stored.Head() })
		if _, err := m.takeLog(scid, other.Bytes()); err == nil {
			t.Error("a second history was taken")
		}
		if p := state(m); p.State != api.PartnerSuspended || p.Head != stored.Head() || p.Other != other.Head() {
			t.Errorf("after a second history: %+v", p)
		}
	}
	acme.waits(func() bool { return acme.Principal(globex.did()).Relation == did.Untrusted })
	acme.halt()
	acme = acme.restart()
	for _, head := range []string{"", "1-Qm", other.Head()[:4], stored.DID().Short()} {
		if _, err := acme.Confirm(t.Context(), "globex", head); err == nil || head == "" && !strings.Contains(err.Error(), other.Head()) {
			t.Errorf("confirmed with the version %q: %v", head, err)
		}
	}
	if p := must(acme.Confirm(t.Context(), "globex", other.Head()))(t); p.State != api.PartnerActive || p.Head != other.Head() || p.Other != "" {
		t.Errorf("after the choice: %+v", p)
	}
	if kept := must(acme.folder(scid).Other())(t); kept == nil || kept.Head() != stored.Head() {
		t.Error("the other history is not kept as evidence")
	}
	if _, err := acme.takeLog(scid, stored.Bytes()); err == nil || state(acme).State != api.PartnerActive {
		t.Errorf("the history that was not chosen: %v, %s", err, state(acme).State)
	}
	agent.connect(acme)
	agent.waits(func() bool {
		agent.maintain()
		return state(agent).Head == other.Head() && state(agent).State == api.PartnerActive
	})
}

// The log of a former partner in a list may not contradict the stored one.
func TestListedLogOfAFormerPartner(t *testing.T) {
	t.Parallel()
	acme, agent, globex := newMember(t), newMember(t), newMember(t)
	acme.founds("acme.example")
	globex.founds("globex.example")
	acme.admits(agent, false)
	acme.federates(globex)
	agent.waits(func() bool { return len(agent.Partners()) == 1 })
	scid := globex.org.SCID()
	other := twoHistories(globex)
	agent.waits(func() bool { return agent.Partners()[0].Head == globex.org.Log().Head() })
	if err := agent.RemovePartner(t.Context(), "globex"); err != nil {
		t.Fatal(err)
	}
	for name, l := range map[string]*webvh.Log{"another history": other, "an older log": webvhPrefix(t, globex.org.Log())} {
		acme.speaks(func(ctx context.Context, from did.DID, q *exchange.Request) (*exchange.Response, error) {
			if q.Op == exchange.OpGet && q.Known[0].SCID == scid {
				return &exchange.Response{Body: l.Bytes()}, nil
			}
			return acme.serve(ctx, from, q)
		})
		got, err := agent.logOf(t.Context(), acme.did(), agent.book.Find(scid))
		if err == nil && got.Head() != globex.org.Log().Head() {
			t.Errorf("%s was taken: %s", name, got.Head())
		}
	}
}

// webvhPrefix returns a log without its newest version.
func webvhPrefix(t *testing.T, l *webvh.Log) *webvh.Log {
	t.Helper()
	lines := strings.SplitAfter(strings.TrimSpace(string(l.Bytes())), "\n")
	return must(webvh.Verify([]byte(strings.Join(lines[:len(lines)-1], "")), webvh.Check{}))(t)
}

// Two issuers that change the partners at once lose none.
func TestTwoIssuersChangePartners(t *testing.T) {
	t.Parallel()
	first, second, third := twoIssuers(t)
	globex, initech := newMember(t), newMember(t)
	globex.founds("globex.example")
	initech.founds("initech.example")
	apart := func(a, b *member) {
		_ = a.host.Network().ClosePeer(b.host.ID())
		untilTrue(t, func() bool { return !a.isOnline(b.did()) && !b.isOnline(a.did()) })
	}
	first.dials()
	second.dials()
	third.dials()
	apart(first, second)
	apart(third, second)
	apart(third, first)
	first.federates(globex)
	second.federates(initech)
	third.connect(first)
	third.connect(second)
	for _, m := range []*member{first, second, third} {
		m.waits(func() bool {
			for _, m := range []*member{first, second, third} {
				m.maintain()
			}
			return slices.Contains(m.Names(), "globex") && slices.Contains(m.Names(), "initech")
		})
	}
}

func (m *member) isOnline(id did.DID) bool {
	m.Trust.mu.RLock()
	defer m.Trust.mu.RUnlock()
	return m.online[id] != nil
}

// Readers, peers and new connections do not wait for a write to the disk.
func TestNothingWaitsForTheDisk(t *testing.T) {
	t.Parallel()
	acme, agent, stranger := newMember(t), newMember(t), newMember(t)
	acme.founds("acme.example")
	acme.admits(agent, false)
	acme.becomes(agent, did.Own, "node")
	err := acme.edit(func(*partners.Book) error { // as long as it takes
		stranger.connect(acme)
		if _, err := agent.net.Ask(t.Context(), acme.did(), &exchange.Request{Op: exchange.OpGet, Known: []exchange.Known{{SCID: acme.org.SCID(), Kind: exchange.KindLog}}}); err != nil {
			t.Error(err)
		}
		if p := acme.Principal(agent.did()); p.Relation != did.Own || len(acme.Names()) != 0 || len(acme.Partners()) != 0 {
			t.Errorf("the member is %+v", p)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A record collects the messages of a log.
type record struct {
	mu  sync.Mutex
	all []string // owned by mu
}

func (r *record) Enabled(context.Context, slog.Level) bool { return true }
func (r *record) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r *record) WithGroup(string) slog.Handler            { return r }

func (r *record) Handle(_ context.Context, l slog.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := l.Level.String() + " " + l.Message
	l.Attrs(func(a slog.Attr) bool {
		text += " " + a.String()
		return true
	})
	r.all = append(r.all, text)
	return nil
}

// A document that a node does not give yet, because it does not know this member, is no warning. One that is not valid is.
func TestExpectedRefusalsAreNoWarnings(t *testing.T) {
	t.Parallel()
	acme, agent := newMember(t), newMember(t)
	r := &record{}
	agent.Trust.o.Log = slog.New(r)
	acme.founds("acme.example")
	acme.admits(agent, false)
	agent.becomes(acme, did.Own, "node")
	scid := acme.org.SCID()
	agent.fetchOne(t.Context(), acme.did(), exchange.Known{SCID: scid, Kind: exchange.KindList, Method: string(acme.org.DID()) + "#i1", Version: 1 << 50})
	agent.Trust.mu.RLock()
	method := agent.ownLocked().Methods()[0]
	agent.Trust.mu.RUnlock()
	of := func(level string) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.ContainsFunc(r.all, func(s string) bool { return strings.HasPrefix(s, level+" trust document") })
	}
	answer := func(body []byte) {
		acme.speaks(func(context.Context, did.DID, *exchange.Request) (*exchange.Response, error) {
			if body == nil {
				return nil, refused
			}
			return &exchange.Response{Body: body}, nil
		})
		agent.fetchOne(t.Context(), acme.did(), exchange.Known{SCID: scid, Kind: exchange.KindList, Method: method, Version: 1 << 50})
	}
	if answer(nil); of("WARN") || !of("DEBUG") {
		t.Errorf("a refusal: %q", r.all)
	}
	if answer([]byte("{}")); !of("WARN") {
		t.Errorf("a wrong document: %q", r.all)
	}
}

// After Close, a connection changes nothing.
func TestCloseEndsTheNotifications(t *testing.T) {
	t.Parallel()
	acme, stranger := newMember(t), newMember(t)
	acme.stop()
	testhost.Connect(t, stranger.host, acme.host)
	acme.Trust.mu.RLock()
	defer acme.Trust.mu.RUnlock()
	if len(acme.nodes) != 0 {
		t.Errorf("after its end, it knows %d nodes", len(acme.nodes))
	}
}

// The standing of a member of a former partner names that partner, and grants nothing.
func TestStandingOfAFormerPartner(t *testing.T) {
	t.Parallel()
	acme, globex := newMember(t), newMember(t)
	acme.founds("acme.example")
	globex.founds("globex.example")
	acme.federates(globex)
	acme.becomes(globex, did.Partner, "node")
	if err := acme.RemovePartner(t.Context(), "globex"); err != nil {
		t.Fatal(err)
	}
	s := must(acme.Standing(t.Context(), globex.did()))(t)
	if s.Relation != "untrusted" || s.Organization == nil || s.Organization.State != "former" || s.Organization.Name != "globex" || len(acme.Names()) > 0 {
		t.Errorf("got %+v, organization %+v", s, s.Organization)
	}
}

// A pending member has the rights of an untrusted node, with what it would be beside them: trust.stale decides.
func TestPendingMember(t *testing.T) {
	t.Parallel()
	first, second, third := twoIssuers(t)
	first.halt()
	second.halt()
	third.dials()
	advances(organization.ListLife+2*time.Hour, third)
	third.update()
	p := third.Principal(first.did())
	if p.Pending == "" || p.Relation != did.Untrusted || p.Org != "" || len(p.Roles) > 0 {
		t.Errorf("the pending member is %+v", p)
	}
	if u := p.Unconfirmed; u == nil || u.Relation != did.Own || u.Org != third.org.DID() || !slices.Contains(u.Roles, "node") || u.Pending != "" {
		t.Errorf("it would be %+v", u)
	}
}

// An update evaluates only what may have changed, and comes to what the evaluation of all nodes comes to.
func TestUpdateIsComplete(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	first, second, third := twoIssuers(t)
	globex := newMember(t)
	globex.founds("globex.example")
	first.federates(globex)
	m := first // an issuer with a sibling: the rule with the most parts
	for _, other := range []*member{second, third, globex} {
		other.halt()
	}
	untilTrue(t, func() bool {
		m.Trust.mu.RLock()
		defer m.Trust.mu.RUnlock()
		return len(m.online) == 0 && !m.confirming
	})
	m.dials()
	var ids []did.DID
	orgs := []*organization.Organization{m.org, globex.org}
	for range 12 {
		id := didtest.NewKey().DID()
		for _, org := range orgs {
			noError(t, org.Admit(id, "", "clerk"))
		}
		ids = append(ids, id)
	}
	any := func() did.DID { return ids[random.IntN(len(ids))] }
	shows := func() {
		org := orgs[random.IntN(2)]
		if c, err := org.Issue(any(), nil, time.Duration(1+random.IntN(48))*time.Hour); err == nil {
			m.show(t.Context(), c.Subject, c.Raw)
		}
	}
	connects := func() {
		m.Trust.mu.Lock()
		defer m.Trust.mu.Unlock()
		n := m.nodeLocked(any())
		if n.hello == nil {
			n.hello, n.done, m.online[n.id] = make(chan struct{}), false, n
		} else {
			m.endHelloLocked(n)
			n.hello = nil
			delete(m.online, n.id)
		}
		m.touchSiblingsLocked(n)
	}
	var text string
	steps := map[string]func(){
		"a credential": shows, "another credential": shows, "a connection": connects, "another connection": connects,
		"a distrust":        func() { _ = m.Distrust(t.Context(), any(), random.IntN(2) == 0) },
		"a revocation here": func() { _ = m.Revoke(t.Context(), any()) },
		"a restored member": func() { _ = m.Restore(t.Context(), any()) },
		"a revocation of the partner": func() {
			if l, err := globex.org.Revoke(any()); err == nil {
				_, _ = m.takeList(t.Context(), globex.org.SCID(), l.Raw)
			}
		},
		"a list of the partner": func() {
			if l, err := globex.org.List(true); err == nil {
				_, _ = m.takeList(t.Context(), globex.org.SCID(), l.Raw)
			}
		},
		"the other issuer": func() { _ = m.Revoke(t.Context(), second.did()) },
		"evidence": func() {
			m.Trust.mu.Lock()
			defer m.Trust.mu.Unlock()
			a := m.authorities[orgs[random.IntN(2)].SCID()]
			if a != nil {
				a.Witness(any(), a.Methods()[0], m.now())
			}
		},
		"contacts":      func() { m.Trust.mu.Lock(); defer m.Trust.mu.Unlock(); m.contactLocked(m.now()) },
		"seconds":       func() { advances(time.Duration(random.IntN(100))*time.Second, m, globex) },
		"hours":         func() { advances(time.Duration(random.IntN(30))*time.Hour, m, globex) },
		"days":          func() { advances(time.Duration(random.IntN(20)*24)*time.Hour, m, globex) },
		"a wrong clock": func() { advances(-time.Duration(random.IntN(1000))*time.Minute, m, globex) },
		"an end":        func() { _ = m.RemovePartner(t.Context(), "globex") },
		"a partner": func() {
			_, _ = m.addPartner(partners.Partner{Name: "globex", DID: globex.org.DID(), Until: m.now().Add(100 * time.Hour)}, globex.org.Log())
		},
		"an own list": func() { m.writing.Lock(); m.signOwnList(); m.writing.Unlock() },
	}
	names := sortedKeys(steps)
	for range 250 {
		name := names[random.IntN(len(names))]
		if (name == "the other issuer" || name == "an end") && random.IntN(8) > 0 {
			continue
		}
		text += name + ", "
		steps[name]()
		m.update()
		if wrong := m.incomplete(); wrong != "" {
			t.Fatalf("after %s\n%s", text, wrong)
		}
	}
}

// incomplete returns a node that is not what its evaluation at the last update comes to, or "".
func (m *member) incomplete() string {
	m.Trust.mu.Lock()
	defer m.Trust.mu.Unlock()
	for id, n := range m.nodes {
		if want := m.evaluateLocked(id, n, m.updated); !equalStanding(n.principal, want) {
			return fmt.Sprintf("%s is %+v, and %+v if it is evaluated", id.Short(), n.principal, want)
		}
	}
	return ""
}

// The end of a credential is noticed again after the clock was set back.
func TestCredentialEndsAfterAClockThatWasSetBack(t *testing.T) {
	t.Parallel()
	acme := newMember(t)
	acme.founds("acme.example")
	subject := didtest.NewKey().DID()
	noError(t, acme.org.Admit(subject, ""))
	acme.show(t.Context(), subject, must(acme.org.Issue(subject, nil, time.Hour))(t).Raw)
	for _, step := range []struct {
		by   time.Duration
		want did.Relation
	}{{0, did.Own}, {70 * time.Minute, did.Untrusted}, {-30 * time.Minute, did.Own}, {10 * time.Minute, did.Own}, {20 * time.Minute, did.Untrusted}} {
		advances(step.by, acme)
		acme.update()
		if got := acme.Principal(subject).Relation; got != step.want {
			t.Errorf("after %s: %s", step.by, got)
		}
	}
}

// An issuer whose sibling is away decides about a member again as soon as another one is connected, or gone.
func TestMembersConfirmEachOtherByTheirConnections(t *testing.T) {
	t.Parallel()
	first, second, third := twoIssuers(t)
	first.halt()
	second.halt()
	third.halt()
	first = first.restart()
	first.dials()
	var ids []did.DID
	for range 2 {
		id := didtest.NewKey().DID()
		noError(t, first.org.Admit(id, ""))
		first.show(t.Context(), id, must(first.org.Issue(id, nil, 0))(t).Raw)
		ids = append(ids, id)
	}
	advances(6*time.Minute, first)
	first.update()
	connected := func(id did.DID, on bool) {
		first.Trust.mu.Lock()
		defer first.Trust.mu.Unlock()
		n := first.nodeLocked(id)
		if delete(first.online, id); on {
			n.hello, n.done = make(chan struct{}), true
			first.online[id] = n
		} else {
			n.hello = nil
		}
		first.touchSiblingsLocked(n)
	}
	for _, step := range []struct {
		node int
		on   bool
		want bool // the first of both is confirmed
	}{{0, true, false}, {1, true, true}, {1, false, false}} {
		connected(ids[step.node], step.on)
		first.update()
		if p := first.Principal(ids[0]); (p.Relation == did.Own) != step.want {
			t.Errorf("after %+v: %+v", step, p)
		}
	}
}

// A peer that never says hello is untrusted, and OnHello ends the waiting for it.
func TestPeerThatNeverSaysHello(t *testing.T) {
	t.Parallel()
	acme := newMember(t)
	acme.founds("acme.example")
	key := didtest.NewKey()
	silent := testhost.Listen(t, key, "/ip4/127.0.0.1/tcp/0")
	testhost.Connect(t, silent, acme.host)
	acme.waits(func() bool { return acme.helloDone(key.DID()) })
	if p := acme.Principal(key.DID()); p.Relation != did.Untrusted || p.Pending != "" {
		t.Errorf("the silent peer is %+v", p)
	}
}

// Credentials that prove nothing here: a node that shows one is untrusted.
func TestCredentialsThatProveNothing(t *testing.T) {
	t.Parallel()
	acme, agent, globex := newMember(t), newMember(t), newMember(t)
	acme.founds("acme.example")
	globex.founds("globex.example") // no partner
	acme.admits(agent, false, "clerk")
	subject := didtest.NewKey().DID()
	signer, method, err := acme.org.Signer()
	noError(t, err)
	issue := func(change func(*vc.Credential)) []byte {
		now := acme.now()
		c := vc.Credential{Type: vc.Node, Issuer: acme.org.DID(), Subject: subject, Roles: []string{"node"}, From: now.Add(-time.Hour), Until: now.Add(time.Hour),
			Status: vc.Status{List: organization.ListID(method), Index: 7}}
		change(&c)
		return must(vc.Issue(c, signer, method))(t).Raw
	}
	noError(t, globex.org.Admit(subject, ""))
	for name, raw := range map[string][]byte{
		"expired":             issue(func(c *vc.Credential) { c.From, c.Until = c.From.Add(-48*time.Hour), c.Until.Add(-48*time.Hour) }),
		"early":               issue(func(c *vc.Credential) { c.From, c.Until = c.From.Add(48*time.Hour), c.Until.Add(48*time.Hour) }),
		"other subject":       issue(func(c *vc.Credential) { c.Subject = agent.did() }),
		"of an agent":         issue(func(c *vc.Credential) { c.Type, c.Host = vc.Agent, agent.did() }),
		"untrusted issuer":    must(globex.org.Issue(subject, nil, 0))(t).Raw,
		"another status list": issue(func(c *vc.Credential) { c.Status.List = organization.ListID(string(globex.org.DID()) + "#i1") }),
		"index too large":     issue(func(c *vc.Credential) { c.Status.Index = vc.MinEntries }),
		"none":                nil,
	} {
		acme.show(t.Context(), subject, raw)
		if p := acme.Principal(subject); p.Relation != did.Untrusted || p.Org != "" || len(p.Roles) > 0 {
			t.Errorf("%s: %+v", name, p)
		}
	}
	acme.show(t.Context(), subject, issue(func(*vc.Credential) {}))
	if p := acme.Principal(subject); p.Relation != did.Own {
		t.Errorf("a valid credential: %+v", p)
	}
	// It is revoked by its entry alone: the newest list of the issuer has it set.
	list := must(acme.org.List(false))(t)
	revoked := must(vc.IssueList(list.With(7), list.Version+1, acme.now(), acme.now().Add(time.Hour), signer, method))(t)
	must(acme.takeList(t.Context(), acme.org.SCID(), revoked.Raw))(t)
	acme.update()
	if p := acme.Principal(subject); p.Relation != did.Untrusted {
		t.Errorf("a revoked credential: %+v", p)
	}
	// An older list does not restore it.
	if changed, _ := acme.takeList(t.Context(), acme.org.SCID(), list.Raw); changed {
		t.Error("a status list was rolled back")
	}
}

// Roles of a partner's member that its partnership does not have count for nothing.
func TestRolesBeyondThePartnership(t *testing.T) {
	t.Parallel()
	acme, globex := newMember(t), newMember(t)
	acme.founds("acme.example")
	globex.founds("globex.example")
	noError(t, globex.SetRoles(t.Context(), globex.did(), []string{"logistics", "admin"}))
	must(globex.Renew(t.Context()))(t)
	i := must(acme.Invite(t.Context(), api.InvitationRequest{Kind: api.InvitePartner, Roles: []string{"logistics"}}))(t)
	must(globex.Accept(t.Context(), api.Acceptance{Invitation: i.Text}))(t)
	acme.becomes(globex, did.Partner, "logistics")
	if p := acme.Principal(globex.did()); slices.Contains(p.Roles, "admin") {
		t.Errorf("the roles are %q", p.Roles)
	}
}

// Logs of a partner with a gap, or older than the stored one, are rejected, and the partner stays.
func TestLogsThatAreRejected(t *testing.T) {
	t.Parallel()
	acme, globex := newMember(t), newMember(t)
	acme.founds("acme.example")
	globex.founds("globex.example")
	acme.federates(globex)
	for range 2 {
		must(globex.org.AddIssuer(didtest.NewKey().DID().Multibase()))(t)
		globex.changed()
	}
	l := globex.org.Log()
	acme.waits(func() bool { return acme.Partners()[0].Head == l.Head() })
	lines := strings.SplitAfter(strings.TrimSpace(string(l.Bytes())), "\n")
	for name, text := range map[string]string{"a gap": lines[0] + lines[2], "a rollback": lines[0] + lines[1], "a beginning that is missing": lines[1] + lines[2], "nothing": ""} {
		changed, err := acme.takeLog(globex.org.SCID(), []byte(text))
		if p := acme.Partners()[0]; err == nil || changed || p.Head != l.Head() || p.State == api.PartnerSuspended {
			t.Errorf("%s: %v, %+v", name, err, p)
		}
	}
}

// An impostor with a copy of the log of an organization does not receive the secret of its invitation.
func TestImpostorWithACopiedLog(t *testing.T) {
	t.Parallel()
	acme, agent, impostor := newMember(t), newMember(t), newMember(t)
	acme.founds("acme.example")
	i := must(acme.Invite(t.Context(), api.InvitationRequest{Kind: api.InviteNode}))(t)
	secrets := make(chan []byte, 16)
	raw := acme.org.Log().Bytes()
	impostor.speaks(func(ctx context.Context, from did.DID, q *exchange.Request) (*exchange.Response, error) {
		switch q.Op {
		case exchange.OpGet:
			return &exchange.Response{Body: raw}, nil
		case exchange.OpRedeem:
			secrets <- q.Secret
		case exchange.OpStatus: // what an issuer says to the impostor, and what it signs itself
			if r, err := impostor.net.Ask(ctx, acme.did(), q, acme.addrs()...); err == nil {
				return r, nil
			}
		}
		return nil, refused
	})
	if _, err := agent.proveIssuer(t.Context(), impostor.did(), acme.org.SCID(), impostor.addrs()...); err == nil {
		t.Error("the impostor proved an issuing key")
	}
	if len(secrets) > 0 {
		t.Error("the impostor has the secret")
	}
	must(agent.Join(t.Context(), api.Acceptance{Invitation: i.Text}))(t)
}
