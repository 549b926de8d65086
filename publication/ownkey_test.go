package publication

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A leaving is an agent that notes the end of its connection.
type leaving struct {
	interact.Thing
	evicted int
}

// Evict ends the connection.
func (l *leaving) Evict() { l.evicted++ }

// echoGrant signs a grant of the echo agent.
func echoGrant(t testing.TB, owner *keystore.Key, number uint64, life time.Duration, nodes ...*host) (*td.Grant, []byte) {
	t.Helper()
	draft, err := td.Draft([]byte(echoDraft))
	if err != nil {
		t.Fatal(err)
	}
	return grantOf(t, owner, draft, number, life, nodes...)
}

func grantOf(t testing.TB, owner *keystore.Key, raw []byte, number uint64, life time.Duration, nodes ...*host) (*td.Grant, []byte) {
	t.Helper()
	thing, err := td.Complete(raw, owner.DID())
	if err != nil {
		t.Fatal(err)
	}
	l := td.GrantLease{Number: number, Now: time.Now(), Lifetime: life}
	for _, n := range nodes {
		l.Nodes = append(l.Nodes, n.key.DID())
	}
	g, raw, err := td.SignGrant(thing, owner, l)
	if err != nil {
		t.Fatal(err)
	}
	return g, raw
}

// attachGranted attaches the echo agent with a grant.
func (h *host) attachGranted(g *td.Grant, raw []byte, agent interact.Thing) (detach func(final bool)) {
	h.t.Helper()
	id, detach, err := h.AttachGranted(h.t.Context(), g.Raw, raw, agent)
	if err != nil || id != g.Thing {
		h.t.Fatalf("attach: %s, %v", id, err)
	}
	return detach
}

// An attached agent with a key of its own is offered by its grant, which it renews; without a newer one it ends with the grant.
func TestAttachGranted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		owner, a := didtest.NewKey(), newHost(t, didtest.NewKey(), newStore())
		g, raw := echoGrant(t, owner, 10, 2*time.Hour, a)
		detach := a.attachGranted(g, raw, says("first"))
		a.wantAnswer("attached", "first")
		if d, err := a.directory.Get(t.Context(), "urn:x:echo"); err != nil || d.Record.Owner != owner.DID() || d.Record.Hosts[0].Node != a.key.DID() {
			t.Errorf("got %+v, %v", d, err)
		}
		time.Sleep(time.Hour)
		g, raw = echoGrant(t, owner, 11, 2*time.Hour, a)
		again := a.attachGranted(g, raw, says("second"))
		detach(false)
		time.Sleep(time.Hour + time.Minute)
		if _, err := a.renew(t.Context(), "urn:x:echo"); err != nil {
			t.Fatal(err)
		}
		a.wantAnswer("after the first grant", "second")

		time.Sleep(time.Hour)
		if _, err := a.renew(t.Context(), "urn:x:echo"); err != nil || a.Offers("urn:x:echo") {
			t.Errorf("it outlives its grant: %v", err)
		}
		g, raw = echoGrant(t, owner, 12, 2*time.Hour, a)
		third := a.attachGranted(g, raw, says("third"))
		again(false)
		a.wantAnswer("with the next grant", "third")
		third(true)
		time.Sleep(time.Second)
		if a.Offers("urn:x:echo") || a.hosts() != 0 || a.countAttached() != 0 {
			t.Error("it is offered after its end")
		}
	})
}

// A node that starts again waits for an attached agent with a key of its own, and ends its hosting if it does not come.
func TestGrantedOrphans(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		away     time.Duration
		attaches bool
	}{"it comes back": {time.Second, true}, "it does not": {time.Second, false}, "its grant has ended, too": {3 * time.Hour, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				owner, store := didtest.NewKey(), newStore()
				a := newHost(t, didtest.NewKey(), store)
				g, raw := echoGrant(t, owner, 10, 2*time.Hour, a)
				a.attachGranted(g, raw, says("first"))
				time.Sleep(c.away)
				again := newHost(t, a.key, store)
				if err := again.Restore(t.Context()); err != nil {
					t.Fatal(err)
				}
				if c.attaches {
					again.attachGranted(g, raw, says("second"))
				}
				if again.withdrawOrphans(t.Context()) {
					t.Error("the disk is full")
				}
				if again.Offers("urn:x:echo") != c.attaches {
					t.Errorf("offered: %v", !c.attaches)
				}
				if c.attaches {
					again.wantAnswer("back", "second")
				}
				if log := again.log.String(); strings.Contains(log, "WARN") {
					t.Error(log)
				}
				last := newHost(t, a.key, store)
				if err := last.Restore(t.Context()); err != nil {
					t.Errorf("the next start: %v", err)
				}
			})
		})
	}
}

// A newer grant for another node ends the hosting here, and the connection of the agent; what it signed before is refused from then on.
func TestAttachedAgentMoves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		owner, a, b := didtest.NewKey(), newHost(t, didtest.NewKey(), newStore()), newHost(t, didtest.NewKey(), newStore())
		old, raw := echoGrant(t, owner, 10, 2*time.Hour, a)
		agent := &leaving{Thing: says("here")}
		a.attachGranted(old, raw, agent)
		g, raw2 := echoGrant(t, owner, 11, 2*time.Hour, b)
		b.attachGranted(g, raw2, says("there"))
		a.directory.Ingest(t.Context(), b.Get("urn:x:echo").Signed)
		a.followGrants(t.Context(), time.Now())
		if a.Offers("urn:x:echo") || agent.evicted != 1 {
			t.Errorf("the former node goes on; %d ends of the connection", agent.evicted)
		}
		_, _, err := a.AttachGranted(t.Context(), old.Raw, raw, agent)
		wantErr(t, err, interact.RolledBack)
		b.wantAnswer("at the other node", "there")
	})
}

// Two programs with one key that sign grants with one number: all nodes choose the same one, the other host ends, and is told why.
func TestTwoGrantsWithOneNumber(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		owner := didtest.NewKey()
		hosts := []*host{newHost(t, didtest.NewKey(), newStore()), newHost(t, didtest.NewKey(), newStore())}
		agents := []*leaving{{Thing: says("0")}, {Thing: says("1")}}
		grants, raws := make([]*td.Grant, 2), make([][]byte, 2)
		for i, h := range hosts {
			grants[i], raws[i] = echoGrant(t, owner, 10, 2*time.Hour, h)
			h.attachGranted(grants[i], raws[i], agents[i])
		}
		records := []*td.Signed{hosts[0].Get("urn:x:echo").Signed, hosts[1].Get("urn:x:echo").Signed}
		third := newHost(t, didtest.NewKey(), newStore())
		for _, h := range append(slices.Clone(hosts), third) {
			for _, r := range records {
				h.directory.Ingest(t.Context(), r)
			}
			h.followGrants(t.Context(), time.Now())
		}
		d, err := third.directory.Get(t.Context(), "urn:x:echo")
		if err != nil || len(d.Record.Hosts) != 1 {
			t.Fatalf("got %+v, %v", d, err)
		}
		chosen := slices.IndexFunc(hosts, func(h *host) bool { return h.key.DID() == d.Record.Hosts[0].Node })
		other := 1 - chosen
		if !hosts[chosen].Offers("urn:x:echo") || hosts[other].Offers("urn:x:echo") || agents[chosen].evicted != 0 || agents[other].evicted != 1 {
			t.Errorf("chosen: %v, %d; other: %v, %d", hosts[chosen].Offers("urn:x:echo"), agents[chosen].evicted, hosts[other].Offers("urn:x:echo"), agents[other].evicted)
		}
		_, _, err = hosts[other].AttachGranted(t.Context(), grants[other].Raw, raws[other], agents[other])
		wantErr(t, err, interact.RolledBack)
	})
}

func TestWrongAttachGranted(t *testing.T) {
	t.Parallel()
	owner, a := didtest.NewKey(), newHost(t, didtest.NewKey(), newStore())
	g, raw := echoGrant(t, owner, 10, time.Hour, a)
	_, err := a.Host(t.Context(), g.Raw, raw, nil)
	wantErr(t, err, interact.Invalid) // no process answers for it
	a.attachGranted(g, raw, says("first"))
	next, err := td.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	renewed, _, err := td.SignGrant(next, owner, td.GrantLease{Number: 11, Now: time.Now(), Lifetime: time.Hour, Nodes: []did.DID{a.key.DID()}})
	if err != nil {
		t.Fatal(err)
	}
	a.hostIt(renewed, raw) // a newer grant without a connection keeps it
	a.wantAnswer("with a newer grant", "first")

	second, secondRaw := grantOf(t, owner, tool("Second", "urn:x:second"), 12, time.Hour, a)
	foreign, foreignRaw := echoGrant(t, didtest.NewKey(), 12, time.Hour, a)
	own, ownRaw := echoGrant(t, a.key, 12, time.Hour, a)
	for name, c := range map[string]struct {
		grant []byte
		td    []byte
		code  interact.Code
	}{
		"the key of another agent":  {second.Raw, secondRaw, interact.Invalid},
		"another key for its id":    {foreign.Raw, foreignRaw, interact.Forbidden},
		"the key of the node":       {own.Raw, ownRaw, interact.Invalid},
		"an older grant":            {g.Raw, raw, interact.RolledBack},
		"a grant that is no grant":  {[]byte{0xa0}, raw, interact.Invalid},
		"the TD of another Thing":   {renewed.Raw, secondRaw, interact.Invalid},
		"a grant without its proof": {renewed.Raw[:len(renewed.Raw)-1], raw, interact.Invalid},
	} {
		_, _, err := a.AttachGranted(t.Context(), c.grant, c.td, says("wrong"))
		if wantErr(t, err, c.code); t.Failed() {
			t.Fatal(name)
		}
	}
	a.wantAnswer("after all of that", "first")
}

// The next key of a node is not in the grant of an attached agent, which attaches again.
func TestSuccessionEndsGrantedOrphans(t *testing.T) {
	t.Parallel()
	owner, store, next := didtest.NewKey(), newStore(), didtest.NewKey()
	a := newHost(t, didtest.NewKey(), store)
	g, raw := echoGrant(t, owner, 10, time.Hour, a)
	a.attachGranted(g, raw, says("first"))
	again := newHost(t, a.key, store)
	if err := again.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended, err := again.succeed(t.Context(), next, next.DID())
	if err != nil || len(ended) != 1 || ended[0].Owner != owner.DID() || ended[0].Moved != "" || again.Offers("urn:x:echo") {
		t.Errorf("got %+v, %v", ended, err)
	}
}
