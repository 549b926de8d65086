package group

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/group/chain"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/trust/invitation"
)

// A mesh carries requests between nodes in one process.
type mesh struct {
	t *testing.T

	mu    sync.Mutex
	nodes map[did.DID]*member
	cut   map[did.DID]int // the side of a split on which a node is
}

// A member is a node of the mesh.
type member struct {
	*Groups
	mesh        *mesh
	key         *keystore.Key
	dir         string
	principal   did.Principal
	credentials []Credential
	off         bool
	changes     []string
	mu          sync.Mutex
}

var errOffline = errors.New("not connected")

func newMesh(t *testing.T) *mesh {
	return &mesh{t: t, nodes: map[did.DID]*member{}, cut: map[did.DID]int{}}
}

// node returns a new node.
func (m *mesh) node(n int, dir string) *member {
	m.t.Helper()
	one := &member{mesh: m, key: didtest.Key(n), dir: dir}
	one.principal = did.Principal{DID: one.key.DID(), Node: one.key.DID(), Relation: did.Own}
	one.start()
	m.mu.Lock()
	m.nodes[one.key.DID()] = one
	m.mu.Unlock()
	return one
}

func (n *member) start() {
	n.mesh.t.Helper()

	var err error
	n.Groups, err = Open(Options{Dir: n.dir, Signer: n.key, Network: "test", Now: time.Now, Addrs: func() []string { return []string{n.addr()} },
		Ask: func(ctx context.Context, to did.DID, body []byte, _ ...string) ([]byte, error) {
			return n.mesh.ask(ctx, n, to, body)
		},
		Connect:     func(_ context.Context, to did.DID) error { return n.mesh.reachable(n, to) },
		Credentials: func(id did.DID) []Credential { return n.mesh.nodes[id].credentials },
		Principal: func(id did.DID) *did.Principal {
			var p did.Principal
			n.mesh.set(func() { p = n.mesh.nodes[id].principal })
			return &p
		},
		Organization: func(name string) (did.DID, bool) {
			return did.DID("did:web:" + name + ".example"), !strings.Contains(name, ":")
		},
		OnChange: func([]did.DID) {}, OnNames: func() {}, Sender: func(*did.Principal) string { return "" },
		Record: func(change string) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.changes = append(n.changes, change)
		}})
	if err != nil {
		n.mesh.t.Fatal(err)
	}
	run, end := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { _ = n.Run(run) })
	g := n.Groups
	n.mesh.t.Cleanup(func() { end(); work.Wait(); _ = g.Close() })

}

func (n *member) addr() string {
	raw, _ := n.key.DID().Peer()
	return "/ip4/127.0.0.1/tcp/1/p2p/" + peer.ID(raw).String()
}

// set changes the mesh, or a node of it.
func (m *mesh) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

func (m *mesh) reachable(from *member, to did.DID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if other := m.nodes[to]; other == nil || other.off || from.off || m.cut[to] != m.cut[from.key.DID()] {
		return errOffline
	}
	return nil
}

func (m *mesh) ask(ctx context.Context, from *member, to did.DID, body []byte) ([]byte, error) {
	if err := m.reachable(from, to); err != nil {
		return nil, err
	}
	m.mu.Lock()
	p, other := from.principal, m.nodes[to]
	m.mu.Unlock()
	raw, err := other.Serve(ctx, &p, body)
	if e := interact.AsError(err); e != nil {
		remote := *e
		remote.Remote = true
		return nil, &remote
	}
	return raw, err
}

func (n *member) id() did.DID { return n.key.DID() }

// create creates a group with members, who have joined by an invitation.
func (n *member) create(q api.GroupCreate, members ...*member) string {
	n.mesh.t.Helper()
	d, err := n.Create(q)
	if err != nil {
		n.mesh.t.Fatal(err)
	}
	for _, m := range members {
		n.admit(d.ID, m, "")
	}
	return d.ID
}

func (n *member) admit(id string, m *member, role string) {
	n.mesh.t.Helper()
	i, err := n.Invite(context.Background(), id, api.GroupInvite{Role: role})
	if err != nil {
		n.mesh.t.Fatal(err)
	}
	if _, err := m.Join(context.Background(), api.GroupJoin{Invitation: i.Invitation}); err != nil {
		n.mesh.t.Fatal(err)
	}
}

// change changes a group, and waits until nothing happens.
func (n *member) change(id string, q api.GroupChange) {
	n.mesh.t.Helper()
	if _, err := n.Change(context.Background(), id, q); err != nil {
		n.mesh.t.Fatal(err)
	}
	synctest.Wait()
}

func (n *member) head(id string) string {
	d, err := n.Get(id)
	if err != nil {
		return err.Error()
	}
	return d.Head
}

// agree waits until all nodes have one head.
func agree(t *testing.T, id string, within time.Duration, all ...*member) {
	t.Helper()
	end := time.Now().Add(within)
	for {
		synctest.Wait()
		heads := map[string]bool{}
		for _, n := range all {
			heads[n.head(id)] = true
		}
		if len(heads) == 1 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("after %s there are %d heads: %v", within, len(heads), slices.Collect(maps.Keys(heads)))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// barred returns the principal of a node without rights.
func barred(n *member, why string) *did.Principal {
	p := n.principal
	p.Barred = why
	return &p
}

func code(err error) interact.Code {
	if e := interact.AsError(err); e != nil {
		return e.Code
	}
	return 0
}

// events collects the events of a group at a node, until the stream ends.
type events struct {
	mu    sync.Mutex
	all   []string
	ended error
	done  chan struct{}
}

func (n *member) collect(ctx context.Context, id string) *events {
	e := &events{done: make(chan struct{})}
	next, stop := iter.Pull2(n.Watch(ctx, id))
	first := make(chan struct{})
	go func() {
		defer close(e.done)
		defer stop()
		close(first)
		for {
			event, err, ok := next()
			e.mu.Lock()
			if err != nil {
				e.ended = err
			} else if ok {
				e.all = append(e.all, string(event.Data))
			}
			e.mu.Unlock()
			if !ok || err != nil {
				return
			}
		}
	}()
	<-first
	synctest.Wait()
	return e
}

func (e *events) got() string {
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.all, " ")
}

func (n *member) send(id, text string) *api.GroupDelivery {
	n.mesh.t.Helper()
	d, err := n.Send(context.Background(), id, "note", json.RawMessage(`"`+text+`"`))
	if err != nil {
		n.mesh.t.Fatal(err)
	}
	return d
}

// simulate runs f with time that advances when all wait.
func simulate(t *testing.T, n int, f func(t *testing.T, m *mesh, all []*member)) {
	t.Helper()
	t.Parallel()
	var dirs []string
	for range n {
		dirs = append(dirs, t.TempDir())
	}
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t)
		var all []*member
		for i, dir := range dirs {
			all = append(all, m.node(i+1, dir))
		}
		f(t, m, all)
	})
}

// TestGroup: two organizations form a group; events reach its members; who was removed gets nothing that follows, and its stream ends; the group is
// dissolved, and a node that was away learns it.
func TestGroup(t *testing.T) {
	simulate(t, 4, func(t *testing.T, m *mesh, n []*member) {
		ada, ben, cyd, away := n[0], n[1], n[2], n[3]
		id := ada.create(api.GroupCreate{Name: "claims-2026", Labels: map[string]string{"tenant": "acme", "channel": "web"}}, ben, cyd, away)
		agree(t, id, time.Second, n...)
		for _, one := range n {
			if got := one.Of(cyd.id()); len(got) != 1 || got[0].Group != id || got[0].Role != chain.Plain {
				t.Fatalf("cyd at another node: %+v", got)
			}
		}
		m.set(func() { away.off = true })
		atBen, atCyd := ben.collect(t.Context(), id), cyd.collect(t.Context(), id)
		d := ada.send(id, "one")
		if d.Delivered != 2 || len(d.Failed) != 1 || d.Failed[away.id()] == "" {
			t.Errorf("delivery: %+v", d)
		}
		if atBen.got() != `"one"` || atCyd.got() != `"one"` {
			t.Errorf("ben %s, cyd %s", atBen.got(), atCyd.got())
		}
		ada.change(id, api.GroupChange{Kind: api.GroupRemove, Member: cyd.id()})
		ada.send(id, "two")
		ben.send(id, "three")
		if atBen.got() != `"one" "two" "three"` || atCyd.got() != `"one"` || code(atCyd.ended) != interact.NotMember {
			t.Errorf("ben %s, cyd %s, %v", atBen.got(), atCyd.got(), atCyd.ended)
		}
		if _, err := cyd.Send(t.Context(), id, "", json.RawMessage(`1`)); code(err) != interact.NotMember {
			t.Errorf("a removed member sends: %v", err)
		}
		if len(ben.Of(cyd.id())) != 0 || len(cyd.Of(ben.id())) != 0 && cyd.State(id) == api.GroupActive {
			t.Error("cyd has the group")
		}
		ada.change(id, api.GroupChange{Kind: api.GroupDissolve})
		agree(t, id, time.Second, ada, ben)
		if <-atBen.done; code(atBen.ended) != interact.GroupDissolved {
			t.Errorf("ben: %v", atBen.ended)
		}
		m.set(func() { away.off = false })
		away.Met(ben.id())
		agree(t, id, time.Second, ada, ben, away)
		if got := away.State(id); got != api.GroupDissolved || len(away.Of(ben.id())) != 0 {
			t.Errorf("away: %s", got)
		}
		log, err := away.Log(id)
		if err != nil {
			t.Fatal(err)
		}
		if c, err := chain.Read(log, time.Now()); err != nil || !c.State().Dissolved || c.Group() != id {
			t.Errorf("the log proves nothing: %v", err)
		}
		if got := cyd.State(id); got != api.GroupRemoved {
			t.Errorf("cyd: %s", got)
		}
	})
}

// State returns the state of a group.
func (n *member) State(id string) string {
	d, err := n.Get(id)
	if err != nil {
		return err.Error()
	}
	return d.State
}

// TestInvitationUsedByAnother: an invitation is for the node that it names, and is used once.
func TestInvitationUsedByAnother(t *testing.T) {
	simulate(t, 3, func(t *testing.T, m *mesh, n []*member) {
		ada, ben, eve := n[0], n[1], n[2]
		id := ada.create(api.GroupCreate{Name: "g"})
		named, err := ada.Invite(t.Context(), id, api.GroupInvite{For: ben.id()})
		if err != nil {
			t.Fatal(err)
		}
		once, err := ada.Invite(t.Context(), id, api.GroupInvite{Role: "adjuster"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := eve.Join(t.Context(), api.GroupJoin{Invitation: named.Invitation}); code(err) != interact.InvalidInvite {
			t.Errorf("an invitation for another: %v", err)
		}
		if _, err := ben.Join(t.Context(), api.GroupJoin{Invitation: once.Invitation}); err != nil {
			t.Fatal(err)
		}
		if _, err := eve.Join(t.Context(), api.GroupJoin{Invitation: once.Invitation}); code(err) != interact.InvalidInvite {
			t.Errorf("an invitation that was used: %v", err)
		}
		if d, _ := ada.Get(id); d.Count != 2 || d.Members[1].Role != "adjuster" {
			t.Errorf("%+v", d.Members)
		}
		// The answers to strangers are those for a group that does not exist.
		for name, q := range map[string]*request{"sync": {Op: opSync, Group: id}, "event": {Op: opEvent, Group: id, Event: &event{ID: "x", Member: string(eve.id()), Data: []byte("1")}},
			"join": {Op: opJoin, Group: id}, "leave": {Op: opLeave, Group: id}} {
			_, err := eve.ask(t.Context(), ada.id(), q)
			q.Group = strings.Replace(id, id[10:12], "zz", 1)
			_, other := eve.ask(t.Context(), ada.id(), q)
			if code(err) != interact.NotFound || err.Error() != other.Error() {
				t.Errorf("%s: %v, %v", name, err, other)
			}
		}
	})
}

// TestInvitationToAnotherGroup: an invitation to one group does not let its reader into another one of the same admin.
func TestInvitationToAnotherGroup(t *testing.T) {
	simulate(t, 2, func(t *testing.T, m *mesh, n []*member) {
		ada, eve := n[0], n[1]
		open, secret := ada.create(api.GroupCreate{Name: "open"}), ada.create(api.GroupCreate{Name: "secret"})
		text, err := ada.Invite(t.Context(), open, api.GroupInvite{})
		if err != nil {
			t.Fatal(err)
		}
		i, err := invitation.Parse(text.Invitation)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := eve.join(t.Context(), ticket{group: secret, head: ada.head(secret), role: chain.Plain, secret: i.Secret[:], node: ada.id()}); code(err) != interact.NotFound {
			t.Errorf("eve joins another group: %v", err)
		}
		if d, _ := ada.Get(secret); d.Count != 1 {
			t.Errorf("%+v", d.Members)
		}
	})
}

// TestOffer: an admin invites the node of a partner, whose operator accepts; nodes of others are not asked.
func TestOffer(t *testing.T) {
	simulate(t, 3, func(t *testing.T, m *mesh, n []*member) {
		ada, ben, eve := n[0], n[1], n[2]
		id := ada.create(api.GroupCreate{Name: "g"})
		offer := api.GroupInvite{For: ben.id(), Offer: true}
		if _, err := ada.Invite(t.Context(), id, offer); err != nil {
			t.Fatal(err)
		}
		if all := ben.List(); len(all) != 1 || all[0].State != api.GroupInvited || all[0].Inviter != ada.id() || all[0].Name != "g" {
			t.Fatalf("%+v", all)
		}
		if len(ada.Of(ben.id())) != 0 {
			t.Error("ben is a member without having agreed")
		}
		if _, err := ben.Join(t.Context(), api.GroupJoin{Offer: "g", Name: "theirs"}); err != nil {
			t.Fatal(err)
		}
		if all := ben.List(); len(all) != 1 || all[0].State != api.GroupActive || all[0].Name != "theirs" || all[0].Title != "g" {
			t.Errorf("%+v", all)
		}
		m.set(func() { ada.principal.Relation = did.Untrusted })
		offer.For = eve.id()
		if _, err := ada.Invite(t.Context(), id, offer); code(err) != interact.Unreachable || len(eve.List()) != 0 {
			t.Errorf("an offer of an untrusted node: %v, %+v", err, eve.List())
		}
	})
}

// TestJoinByCredential: a rule of the group lets those join whose credential states a role, until the credential ends.
func TestJoinByCredential(t *testing.T) {
	simulate(t, 3, func(t *testing.T, m *mesh, n []*member) {
		ada, ben, eve := n[0], n[1], n[2]
		id := ada.create(api.GroupCreate{Name: "g", Join: []api.GroupRule{{Issuer: "assoc", Role: "adjuster", As: "adjuster"}}})
		join := api.GroupJoin{Group: id, At: string(ada.id())}
		if _, err := ben.Join(t.Context(), join); code(err) != interact.NotFound {
			t.Errorf("without a credential: %v", err)
		}
		m.set(func() {
			eve.credentials = []Credential{{Issuer: "did:web:assoc.example", Roles: []string{"clerk"}}, {Issuer: "did:web:other.example", Roles: []string{"adjuster"}}}
		})
		if _, err := eve.Join(t.Context(), join); code(err) != interact.NotFound {
			t.Errorf("with another role, or of another issuer: %v", err)
		}
		m.set(func() {
			ben.credentials = []Credential{{Issuer: "did:web:assoc.example", Roles: []string{"adjuster"}, Hash: did.Hash([]byte("vc")), Until: time.Now().Add(time.Hour)}}
		})
		d, err := ben.Join(t.Context(), join)
		if err != nil || d.Role != "adjuster" {
			t.Fatalf("%+v, %v", d, err)
		}
		if got := ada.Of(ben.id()); len(got) != 1 || got[0].Role != "adjuster" {
			t.Fatalf("%+v", got)
		}
		time.Sleep(time.Hour + time.Minute)
		if got := ada.Of(ben.id()); len(got) != 0 {
			t.Errorf("after the end of the credential: %+v", got)
		}
	})
}

// TestLeave: a member that leaves has left at once, whether or not an admin can be reached, and an old statement does not bring it back.
func TestLeave(t *testing.T) {
	simulate(t, 3, func(t *testing.T, m *mesh, n []*member) {
		ada, ben, cyd := n[0], n[1], n[2]
		id := ada.create(api.GroupCreate{Name: "g"}, ben, cyd)
		m.set(func() { ada.off = true })
		at := ben.collect(t.Context(), id)
		ben.change(id, api.GroupChange{Kind: api.GroupLeave})
		if <-at.done; ben.State(id) != api.GroupLeft || code(at.ended) != interact.NotMember {
			t.Errorf("%s, %v", ben.State(id), at.ended)
		}
		cyd.send(id, "x")
		if got := at.got(); got != "" {
			t.Errorf("after it left: %s", got)
		}
		m.set(func() { ada.off = false })
		time.Sleep(2 * leaveEvery)
		synctest.Wait()
		if d, _ := ada.Get(id); d.Count != 2 || len(d.Former) != 1 || d.Former[0].Removed {
			t.Errorf("%+v", d)
		}
		if _, err := ada.Change(t.Context(), id, api.GroupChange{Kind: api.GroupLeave}); code(err) != interact.Forbidden {
			t.Errorf("the last admin leaves: %v", err)
		}
		ada.change(id, api.GroupChange{Kind: api.GroupSetRole, Member: cyd.id(), Role: chain.Admin})
		ada.change(id, api.GroupChange{Kind: api.GroupLeave})
		agree(t, id, time.Minute, ada, cyd)
		if d, _ := cyd.Get(id); d.Count != 1 || d.Role != chain.Admin || ada.State(id) != api.GroupLeft {
			t.Errorf("%+v, %s", d, ada.State(id))
		}
		ada.admitBy(cyd, id)
		ben.admitBy(cyd, id)
	})
}

// admitBy joins again, by an invitation of another.
func (n *member) admitBy(admin *member, id string) {
	n.mesh.t.Helper()
	admin.admit(id, n, "")
	if n.State(id) != api.GroupActive {
		n.mesh.t.Errorf("after it joined again: %s", n.State(id))
	}
}

// TestSplitHeals: admins of two sides sign while they cannot reach each other. Within 5 s of the contact all have one head, and what was signed on the
// other side is signed again.
func TestSplitHeals(t *testing.T) {
	simulate(t, 6, func(t *testing.T, m *mesh, n []*member) {
		ada, ben := n[0], n[1]
		id := ada.create(api.GroupCreate{Name: "g"}, n[1:5]...)
		ada.change(id, api.GroupChange{Kind: api.GroupSetRole, Member: ben.id(), Role: chain.Admin})
		agree(t, id, time.Second, n[:5]...)
		for _, one := range []*member{n[1], n[3], n[4], n[5]} {
			m.set(func() { m.cut[one.id()] = 1 })
		}
		ada.change(id, api.GroupChange{Kind: api.GroupSetRole, Member: n[2].id(), Role: "x"})
		ben.change(id, api.GroupChange{Kind: api.GroupRemove, Member: n[4].id()})
		ben.admit(id, n[5], "")
		time.Sleep(time.Hour) // both sides have pinned their entries
		m.set(func() { clear(m.cut) })
		met := time.Now()
		ada.Met(n[3].id())
		all := []*member{n[0], n[1], n[2], n[3], n[5]}
		agree(t, id, 5*time.Second, all...)
		for {
			d, _ := ada.Get(id)
			if d.Count == 5 && len(ada.Of(n[4].id())) == 0 && ada.Of(n[2].id())[0].Role == "x" && len(ada.Of(n[5].id())) == 1 {
				break
			}
			if time.Since(met) > 5*time.Second {
				t.Fatalf("%+v", d.Members)
			}
			time.Sleep(50 * time.Millisecond)
		}
		agree(t, id, 5*time.Second, all...)
		if d, _ := n[5].Get(id); len(d.Splits) != 1 {
			t.Errorf("splits: %+v", d.Splits)
		}
	})
}

// TestRemovedMemberWrites: a member that was removed signs entries and sends events. They change nothing at the others.
func TestRemovedMemberWrites(t *testing.T) {
	simulate(t, 3, func(t *testing.T, m *mesh, n []*member) {
		ada, ben, mal := n[0], n[1], n[2]
		id := ada.create(api.GroupCreate{Name: "g"}, ben, mal)
		ada.change(id, api.GroupChange{Kind: api.GroupSetRole, Member: mal.id(), Role: chain.Admin})
		m.set(func() { m.cut[mal.id()] = 1 })
		ada.change(id, api.GroupChange{Kind: api.GroupRemove, Member: mal.id()})
		time.Sleep(chain.PinAfter + time.Minute)
		mal.change(id, api.GroupChange{Kind: api.GroupRemove, Member: ada.id()}) // it does not know
		head := ada.head(id)
		at := ben.collect(t.Context(), id)
		m.set(func() { clear(m.cut) })
		mal.send(id, "spam")
		time.Sleep(time.Minute)
		synctest.Wait()
		if ada.head(id) != head || ben.head(id) != head {
			t.Errorf("the heads have changed")
		}
		if at.got() != "" || len(ada.Of(mal.id())) != 0 {
			t.Errorf("ben received %s", at.got())
		}
		if got := mal.State(id); got != api.GroupRemoved {
			t.Errorf("mal: %s", got)
		}
	})
}

// TestRevokedMember: the organization of a member revokes its node. Its membership ends at once, and an admin's node removes it. A node that only this
// operator distrusts stays a member for the others.
func TestRevokedMember(t *testing.T) {
	simulate(t, 4, func(t *testing.T, m *mesh, n []*member) {
		ada, ben, cyd, dan := n[0], n[1], n[2], n[3]
		id := ada.create(api.GroupCreate{Name: "g"}, ben, cyd, dan)
		ben.StandingChanged(barred(cyd, "revoked"))
		synctest.Wait()
		if len(ben.Of(cyd.id())) != 0 || len(ada.Of(cyd.id())) != 1 {
			t.Errorf("ben: %+v, ada: %+v", ben.Of(cyd.id()), ada.Of(cyd.id()))
		}
		ada.StandingChanged(barred(cyd, "revoked"))
		ada.StandingChanged(barred(dan, did.Distrusted))
		time.Sleep(time.Second)
		synctest.Wait()
		d, _ := ben.Get(id)
		if d.Count != 3 || len(d.Former) != 1 || d.Former[0].DID != cyd.id() {
			t.Errorf("%+v", d)
		}
		if len(ada.Of(dan.id())) != 0 || len(ben.Of(dan.id())) != 1 {
			t.Errorf("dan at ada %+v, at ben %+v", ada.Of(dan.id()), ben.Of(dan.id()))
		}
	})
}

// TestRevokedAdmin: two of three admins must agree, and the nodes of both remove the admin whom its organization revoked.
func TestRevokedAdmin(t *testing.T) {
	simulate(t, 3, func(t *testing.T, m *mesh, n []*member) {
		ada, ben, mal := n[0], n[1], n[2]
		id := ada.create(api.GroupCreate{Name: "g", Threshold: 2}, ben, mal)
		ada.change(id, api.GroupChange{Kind: api.GroupSetRole, Member: ben.id(), Role: chain.Admin})
		agree(t, id, time.Second, n...)
		promote := api.GroupChange{Kind: api.GroupSetRole, Member: mal.id(), Role: chain.Admin}
		ada.change(id, promote)
		ben.change(id, promote)
		agree(t, id, time.Second, n...)
		ada.StandingChanged(barred(mal, "revoked"))
		ben.StandingChanged(barred(mal, "revoked"))
		time.Sleep(2 * tick)
		agree(t, id, time.Second, ada, ben)
		if d, _ := ada.Get(id); d.Count != 2 || len(d.Pending) != 0 || d.Former[0].DID != mal.id() {
			t.Errorf("%+v", d)
		}
	})
}

// TestEntryOfARevokedOrganization: whom an admin has added that is revoked now has no rights, until another admin adds it.
func TestEntryOfARevokedOrganization(t *testing.T) {
	simulate(t, 4, func(t *testing.T, m *mesh, n []*member) {
		ada, mal, sybil, ben := n[0], n[1], n[2], n[3]
		id := ada.create(api.GroupCreate{Name: "g"}, mal, ben)
		ada.change(id, api.GroupChange{Kind: api.GroupSetRole, Member: mal.id(), Role: chain.Admin})
		agree(t, id, time.Second, ada, mal, ben)
		mal.admit(id, sybil, "")
		agree(t, id, time.Second, ada, mal, ben, sybil)
		if len(ben.Of(sybil.id())) != 1 {
			t.Fatal("the member does not count")
		}
		ben.StandingChanged(barred(mal, "revoked"))
		synctest.Wait()
		if len(ben.Of(sybil.id())) != 0 {
			t.Error("the member whom a revoked admin added counts")
		}
		if d, _ := ben.Get(id); !slices.ContainsFunc(d.Members, func(m api.GroupMember) bool {
			return m.DID == sybil.id() && strings.Contains(m.Problem, "admin who added it")
		}) {
			t.Errorf("%+v", d.Members)
		}
	})
}

// TestThreshold: two admins remove a third.
func TestThreshold(t *testing.T) {
	simulate(t, 3, func(t *testing.T, m *mesh, n []*member) {
		ada, ben, mal := n[0], n[1], n[2]
		id := ada.create(api.GroupCreate{Name: "g", Threshold: 2}, ben, mal)
		ada.change(id, api.GroupChange{Kind: api.GroupSetRole, Member: ben.id(), Role: chain.Admin})
		agree(t, id, time.Second, n...)
		promote := api.GroupChange{Kind: api.GroupSetRole, Member: mal.id(), Role: chain.Admin}
		ada.change(id, promote)
		agree(t, id, time.Second, n...)
		if d, _ := ben.Get(id); len(d.Pending) != 1 || d.Pending[0].Approved != 1 || d.Pending[0].Needed != 2 || d.Members[2].Role != chain.Plain {
			t.Fatalf("%+v", d)
		}
		ben.change(id, promote)
		agree(t, id, time.Second, n...)
		mal.change(id, api.GroupChange{Kind: api.GroupRemove, Member: ada.id()})
		agree(t, id, time.Second, n...)
		if d, _ := ben.Get(id); d.Count != 3 || len(d.Pending) != 1 {
			t.Fatalf("one admin removed another: %+v", d)
		}
		ada.change(id, api.GroupChange{Kind: api.GroupRemove, Member: mal.id()})
		ben.change(id, api.GroupChange{Kind: api.GroupRemove, Member: mal.id()})
		agree(t, id, time.Second, n[:2]...)
		if d, _ := ben.Get(id); d.Count != 2 || d.Members[0].DID != ada.id() {
			t.Errorf("%+v", d.Members)
		}
	})
}

// TestRestart: a node has its groups, their names, its offers and its pins after a restart, and a group that it left keeps its name.
func TestRestart(t *testing.T) {
	simulate(t, 2, func(t *testing.T, m *mesh, n []*member) {
		ada, ben := n[0], n[1]
		id := ada.create(api.GroupCreate{Name: "g"}, ben)
		time.Sleep(chain.PinAfter + time.Minute)
		head := ben.head(id)
		_ = ben.Close()
		ben.start()
		if ben.head(id) != head || len(ben.Of(ada.id())) != 1 || ben.groups[id].Pinned() != head {
			t.Errorf("after the restart: %s", ben.head(id))
		}
		ben.change(id, api.GroupChange{Kind: api.GroupLeave})
		if _, err := ben.Create(api.GroupCreate{Name: "g"}); code(err) != interact.Usage {
			t.Errorf("the name of a former group: %v", err)
		}
		_ = ben.Close()
		ben.start()
		if ben.State(id) != api.GroupLeft || len(ben.Of(ada.id())) != 0 {
			t.Errorf("after the second restart: %s", ben.State(id))
		}
	})
}

// TestOtherHistory: the log that a node receives has the entry that the invitation names.
func TestOtherHistory(t *testing.T) {
	simulate(t, 3, func(t *testing.T, m *mesh, n []*member) {
		ada, mal, ben := n[0], n[1], n[2]
		id := ada.create(api.GroupCreate{Name: "g"}, mal)
		ada.change(id, api.GroupChange{Kind: api.GroupSetRole, Member: mal.id(), Role: chain.Admin})
		agree(t, id, time.Second, ada, mal)
		m.set(func() { m.cut[mal.id()] = 1 })
		ada.change(id, api.GroupChange{Kind: api.GroupRemove, Member: mal.id()})
		i, err := ada.Invite(t.Context(), id, api.GroupInvite{})
		if err != nil {
			t.Fatal(err)
		}
		// The invitation reaches mal instead: it answers with its own history.
		m.set(func() { clear(m.cut) })
		m.set(func() { m.cut[ada.id()] = 1 })
		m.set(func() { m.nodes[ada.id()] = mal })
		if _, err := ben.Join(t.Context(), api.GroupJoin{Invitation: i.Invitation}); err == nil {
			t.Error("ben joined by another history")
		}
	})
}

// TestHundredMembers: a join and a removal are known to 100 members within 2 s.
func TestHundredMembers(t *testing.T) {
	if testing.Short() {
		t.Skip("100 nodes")
	}
	simulate(t, 101, func(t *testing.T, m *mesh, n []*member) {
		id := n[0].create(api.GroupCreate{Name: "g"}, n[1:100]...)
		agree(t, id, 2*time.Second, n[:100]...)
		n[0].admit(id, n[100], "")
		agree(t, id, 2*time.Second, n...)
		n[0].change(id, api.GroupChange{Kind: api.GroupRemove, Member: n[50].id()})
		agree(t, id, 2*time.Second, n...)
		if d, _ := n[7].Get(id); d.Count != 100 || d.Entries != 102 {
			t.Errorf("%d members, %d entries", d.Count, d.Entries)
		}
	})
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte{0xa1, 0x01, 0x01})
	f.Fuzz(func(t *testing.T, b []byte) {
		if q, err := readRequest(b); err == nil && (len(q.Locator) > maxLocator || len(q.Entries) > maxPushed) {
			t.Errorf("decoded beyond the limits: %+v", q)
		}
		_, _ = readResponse(b)
	})
}
