package publication

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	ds "github.com/ipfs/go-datastore"
	dssync "github.com/ipfs/go-datastore/sync"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

const hostedID = "urn:example:hosted"

// A host is a fixture of a node with a real directory.
type host struct {
	*fixture
	key       *keystore.Key
	directory *directory.Directory
}

// newHost returns a node with a key and a store. It receives what the other hosts of its test send it by deliver.
func newHost(t testing.TB, key *keystore.Key, store ds.Batching) *host {
	t.Helper()
	h := &host{fixture: fixtureOver(t, key, store), key: key}
	var err error
	if h.directory, err = directory.New(directory.Options{Self: key.DID()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.directory.Close() })
	h.o.Directory = h.directory
	return h
}

func newStore() ds.Batching { return dssync.MutexWrap(ds.NewMapDatastore()) }

// grant signs a grant of the hosted tool, and returns it with its TD.
func grant(t testing.TB, owner *keystore.Key, number uint64, title string, nodes ...*host) (*td.Grant, []byte) {
	t.Helper()
	thing, err := td.Complete(tool(title, hostedID), owner.DID())
	if err != nil {
		t.Fatal(err)
	}
	l := td.GrantLease{Number: number, Now: time.Now(), Lifetime: 7 * 24 * time.Hour}
	for _, n := range nodes {
		l.Nodes = append(l.Nodes, n.key.DID())
	}
	g, raw, err := td.SignGrant(thing, owner, l)
	if err != nil {
		t.Fatal(err)
	}
	return g, raw
}

// hostIt hosts g.
func (h *host) hostIt(g *td.Grant, raw []byte) {
	h.t.Helper()
	if _, err := h.Host(h.t.Context(), g.Raw, raw, nil); err != nil {
		h.t.Fatal(err)
	}
}

// deliver gives the newest record of h to other hosts.
func (h *host) deliver(to ...*host) {
	h.t.Helper()
	for _, other := range to {
		other.directory.Ingest(h.t.Context(), h.Get(hostedID).Signed)
	}
}

// hosts returns how many hosts the directory of h knows.
func (h *host) hosts() int {
	d, err := h.directory.Get(h.t.Context(), hostedID)
	if err != nil {
		return 0
	}
	return len(d.Record.Hosts)
}

func wantErr(t *testing.T, err error, code interact.Code) {
	t.Helper()
	if e := interact.AsError(err); e == nil || e.Code != code || e.Hint == "" && e.Next == nil {
		t.Errorf("got %v, want an error of code %v with a hint", err, code)
	}
}

func TestHost(t *testing.T) {
	t.Parallel()
	owner, a, b := didtest.NewKey(), newHost(t, didtest.NewKey(), newStore()), newHost(t, didtest.NewKey(), newStore())
	g, raw := grant(t, owner, 10, "Hosted", a, b)
	a.hostIt(g, raw)
	b.hostIt(g, raw)
	a.deliver(b)
	b.deliver(a)
	d, err := a.directory.Get(t.Context(), hostedID)
	if err != nil || len(d.Record.Hosts) != 2 || d.Record.Owner != owner.DID() {
		t.Fatalf("got %+v, %v", d, err)
	}
	if a.AgentOf(d) == nil || a.Of(d) != a.Get(hostedID) {
		t.Error("the Thing at both hosts is not the one that this node offers")
	}
	if agent, err := a.Locate(t.Context(), hostedID); err != nil || agent == nil {
		t.Errorf("a call of a peer: %v", err)
	}
	// The same grant again is a renewal.
	seq := a.Get(hostedID).Seq
	if r, err := a.Host(t.Context(), g.Raw, raw, nil); err != nil || r.Created || r.Seq <= seq {
		t.Errorf("got %+v, %v", r, err)
	}
	for name, c := range map[string]struct {
		code  interact.Code
		grant func() (*td.Grant, []byte)
	}{
		"an older grant":             {interact.RolledBack, func() (*td.Grant, []byte) { return grant(t, owner, 9, "Hosted", a) }},
		"a grant of others":          {interact.Forbidden, func() (*td.Grant, []byte) { return grant(t, owner, 11, "Hosted", b) }},
		"a grant of this node":       {interact.Invalid, func() (*td.Grant, []byte) { return grant(t, a.key, 11, "Hosted", a) }},
		"the id of another's Thing":  {interact.Forbidden, func() (*td.Grant, []byte) { return grant(t, didtest.NewKey(), 11, "Hosted", a) }},
		"another TD":                 {interact.Invalid, func() (*td.Grant, []byte) { g, _ := grant(t, owner, 11, "Hosted", a); return g, raw[1:] }},
		"no grant":                   {interact.Invalid, func() (*td.Grant, []byte) { return &td.Grant{Raw: []byte{0xa0}}, raw }},
		"a grant with another title": {interact.Invalid, func() (*td.Grant, []byte) { g, _ := grant(t, owner, 11, "Else", a); return g, raw }},
	} {
		g, raw := c.grant()
		_, err := a.Host(t.Context(), g.Raw, raw, nil)
		if wantErr(t, err, c.code); t.Failed() {
			t.Fatal(name)
		}
	}
	if _, err := a.Publish(t.Context(), tool("Mine", hostedID), nil, Registration{}); interact.AsError(err).Code != interact.Forbidden {
		t.Errorf("a Thing of this node with the id of a hosted one: %v", err)
	}
	a.publish("Mine", "urn:example:mine")
	mine, err := td.Complete(tool("Hosted", "urn:example:mine"), owner.DID())
	if err != nil {
		t.Fatal(err)
	}
	g, raw, err = td.SignGrant(mine, owner, td.GrantLease{Number: 1, Now: time.Now(), Lifetime: time.Hour, Nodes: []did.DID{a.key.DID()}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = a.Host(t.Context(), g.Raw, raw, nil)
	wantErr(t, err, interact.Forbidden)

	// The end of one host leaves the other.
	if _, err := a.Withdraw(t.Context(), hostedID); err != nil {
		t.Fatal(err)
	}
	a.deliver(b)
	if b.hosts() != 1 || a.hosts() != 1 || a.AgentOf(d) != nil {
		t.Errorf("%d hosts are known there, %d here", b.hosts(), a.hosts())
	}
	if _, err := a.Locate(t.Context(), hostedID); interact.AsError(err).Code != interact.NotFound {
		t.Errorf("a call of a peer after the end: %v", err)
	}
	_, err = a.EndHosting(t.Context(), hostedID)
	wantErr(t, err, interact.NotFound)
}

// Hosts adopt a newer grant of the same TD from each other, and end what is granted no longer.
func TestHostsFollowGrants(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		owner := didtest.NewKey()
		a, b, c := newHost(t, didtest.NewKey(), newStore()), newHost(t, didtest.NewKey(), newStore()), newHost(t, didtest.NewKey(), newStore())
		all := []*host{a, b, c}
		exchange := func() {
			for range 2 {
				for _, h := range all {
					if h.Get(hostedID) != nil {
						h.deliver(all...)
					}
					h.followGrants(t.Context(), time.Now())
				}
			}
		}
		number := func(h *host) uint64 { return h.Get(hostedID).grant.Number }
		g, raw := grant(t, owner, 10, "Hosted", a, b)
		a.hostIt(g, raw)
		b.hostIt(g, raw)
		exchange()

		// One node that has it brings it to all.
		time.Sleep(30 * time.Minute)
		renewed, err := td.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		l := td.GrantLease{Number: 11, Now: time.Now(), Lifetime: time.Hour * 100, Nodes: []did.DID{a.key.DID(), b.key.DID(), c.key.DID()}}
		next, _, err := td.SignGrant(renewed, owner, l)
		if err != nil {
			t.Fatal(err)
		}
		c.hostIt(next, raw)
		exchange()
		if number(a) != 11 || number(b) != 11 || a.hosts() != 3 {
			t.Errorf("grants %d and %d, %d hosts", number(a), number(b), a.hosts())
		}
		// A stream of new grants costs each host one a minute.
		l.Number = 12
		if next, _, err = td.SignGrant(renewed, owner, l); err != nil {
			t.Fatal(err)
		}
		c.hostIt(next, raw)
		exchange()
		if number(a) != 11 {
			t.Error("two grants were adopted in a minute")
		}
		time.Sleep(adoptPause)
		exchange()
		if number(a) != 12 || a.hosts() != 3 {
			t.Errorf("grant %d, %d hosts", number(a), a.hosts())
		}
		// Who is not named any longer ends, at once.
		l.Number, l.Nodes = 13, l.Nodes[1:]
		if next, _, err = td.SignGrant(renewed, owner, l); err != nil {
			t.Fatal(err)
		}
		c.hostIt(next, raw)
		exchange()
		if a.Get(hostedID).Description != nil || b.hosts() != 2 {
			t.Errorf("a removed host goes on; %d hosts", b.hosts())
		}
		// Another TD waits for the operator; the other host goes on with it.
		time.Sleep(adoptPause)
		exchange()
		other, otherRaw := grant(t, owner, 14, "Other", b, c)
		c.hostIt(other, otherRaw)
		exchange()
		if all := b.Granted(); len(all) != 1 || all[0].Waiting != 14 || !all[0].Offered || len(all[0].Hosts) != 1 {
			t.Errorf("got %+v", all)
		}
		if n := strings.Count(b.log.String(), "waits for the operator"); n != 1 {
			t.Errorf("%d warnings", n)
		}
		b.hostIt(other, otherRaw)
		exchange()
		if all := c.Granted(); len(all) != 1 || all[0].Waiting != 0 || len(all[0].Hosts) != 2 {
			t.Errorf("got %+v", all)
		}
		// The owner withdraws it.
		end, err := td.SignTombstone(owner, hostedID, td.Lease{Seq: 15, Now: time.Now(), Lifetime: 30 * 24 * time.Hour}, false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.WithdrawGranted(t.Context(), end.Record); err != nil {
			t.Fatal(err)
		}
		c.directory.Ingest(t.Context(), end)
		exchange()
		if len(b.Granted())+len(c.Granted()) != 0 || b.hosts() != 0 {
			t.Error("a withdrawn Thing is hosted")
		}
		_, err = b.Host(t.Context(), other.Raw, otherRaw, nil)
		wantErr(t, err, interact.RolledBack)
	})
}

// A node that starts offers what it hosted; a Thing whose grant has ended waits for another, and the node starts.
func TestHostsRestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		owner, store := didtest.NewKey(), newStore()
		a := newHost(t, didtest.NewKey(), store)
		g, raw := grant(t, owner, 10, "Hosted", a)
		a.hostIt(g, raw)
		first := a.Get(hostedID).Seq
		again := newHost(t, a.key, store)
		if err := again.Restore(t.Context()); err != nil {
			t.Fatal(err)
		}
		if p := again.Get(hostedID); p == nil || p.Agent == nil || p.Seq <= first || again.hosts() != 1 {
			t.Errorf("got %+v", p)
		}
		time.Sleep(8 * 24 * time.Hour)
		late := newHost(t, a.key, store)
		if err := late.Restore(t.Context()); err != nil {
			t.Fatal(err)
		}
		if all := late.Granted(); len(all) != 1 || all[0].Offered || late.Offers(hostedID) {
			t.Errorf("got %+v", all)
		}
		late.hostIt(grant(t, owner, 11, "Hosted", late))
		if !late.Offers(hostedID) || late.hosts() != 1 {
			t.Error("a new grant changes nothing")
		}
		// It ends while the node runs, too.
		time.Sleep(7*24*time.Hour + time.Second)
		if _, err := late.renew(t.Context(), hostedID); err != nil || late.Offers(hostedID) {
			t.Errorf("the end of a grant: %v", err)
		}
		if p, err := late.renew(t.Context(), hostedID); err != nil || p != nil {
			t.Errorf("after the end: %+v, %v", p, err)
		}
		if _, err := late.EndHosting(t.Context(), hostedID); err != nil || late.Get(hostedID) != nil {
			t.Errorf("what has ended cannot be removed: %v", err)
		}
	})
}

// The last record of a host is announced as long as an earlier one may be valid.
func TestEndOfHosting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		owner, store := didtest.NewKey(), newStore()
		a := newHost(t, didtest.NewKey(), store)
		a.hostIt(grant(t, owner, 10, "Hosted", a))
		if _, err := a.EndHosting(t.Context(), hostedID); err != nil {
			t.Fatal(err)
		}
		if p, err := a.renew(t.Context(), hostedID); err != nil || p == nil || a.hosts() != 0 {
			t.Errorf("got %+v, %v", p, err)
		}
		again := newHost(t, a.key, store)
		if err := again.Restore(t.Context()); err != nil || again.Offers(hostedID) || again.Get(hostedID) == nil {
			t.Fatalf("after a restart: %+v, %v", again.Get(hostedID), err)
		}
		time.Sleep(25 * time.Hour)
		if p, err := again.renew(t.Context(), hostedID); err != nil || p != nil || again.Get(hostedID) != nil {
			t.Errorf("got %+v, %v", p, err)
		}
	})
}

func TestDrain(t *testing.T) {
	t.Parallel()
	owner, a, b := didtest.NewKey(), newHost(t, didtest.NewKey(), newStore()), newHost(t, didtest.NewKey(), newStore())
	g, raw := grant(t, owner, 10, "Hosted", a, b)
	a.hostIt(g, raw)
	b.hostIt(g, raw)
	a.Drain(t.Context())
	if s := a.Get(hostedID).Description.Record.State; s != td.Draining {
		t.Errorf("the state is %d", s)
	}
	a.deliver(b)
	d, err := b.directory.Get(t.Context(), hostedID)
	if err != nil || len(d.Record.Hosts) != 1 || d.Record.Hosts[0].Node != b.key.DID() {
		t.Errorf("got %+v, %v", d, err)
	}
	// A renewal does not undo it.
	if p, err := a.renew(t.Context(), hostedID); err != nil || p.Description.Record.State != td.Draining {
		t.Errorf("got %+v, %v", p, err)
	}
}

// The next key of a node is not in the grant: the hosting ends, and the owner is named in the log.
func TestSuccessionEndsHosting(t *testing.T) {
	t.Parallel()
	owner, a, next := didtest.NewKey(), newHost(t, didtest.NewKey(), newStore()), didtest.NewKey()
	a.hostIt(grant(t, owner, 10, "Hosted", a))
	ended, err := a.succeed(t.Context(), next, next.DID())
	if err != nil || len(ended) != 1 || ended[0].Description != nil || !strings.Contains(a.log.String(), string(next.DID())) {
		t.Errorf("got %+v, %v", ended, err)
	}
	if again, err := a.succeed(t.Context(), next, next.DID()); err != nil || len(again) != 0 && !slices.Contains(again, ended[0]) {
		t.Errorf("once more: %+v, %v", again, err)
	}
	if _, err := a.disk.Get(t.Context(), storeKey(next.DID(), hostedID)); !errors.Is(err, ds.ErrNotFound) {
		t.Errorf("the next key has it: %v", err)
	}
}
