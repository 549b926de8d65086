package node

import (
	"slices"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// hostsOf returns the hosts of a Thing as a node shows them; nil if it does not find the Thing.
func hostsOf(t *testing.T, n *running, ref string) []did.DID {
	t.Helper()
	d, err := n.Client().Agent(t.Context(), ref)
	if err != nil {
		return nil
	}
	if g := d.Agent.Grant; g == nil || g.Number == 0 || g.Number != d.Signature.Seq || len(g.Nodes) == 0 {
		t.Errorf("the grant is %+v, the revision %d", g, d.Signature.Seq)
	}
	return d.Agent.Hosts
}

// wantHosts waits until a node knows exactly these hosts of a Thing.
func wantHosts(t *testing.T, n *running, ref string, want ...*running) {
	t.Helper()
	ids := make([]did.DID, 0, len(want))
	for _, w := range want {
		ids = append(ids, w.DID())
	}
	slices.Sort(ids)
	until(t, "the hosts of the Thing are known", func() bool {
		got := slices.Clone(hostsOf(t, n, ref))
		slices.Sort(got)
		return slices.Equal(got, ids)
	})
}

// An owner whose key is on no node grants a Thing to two nodes. A third node finds one Thing and calls it at any of them.
func TestThingAtTwoHosts(t *testing.T) {
	t.Parallel()
	owner, agent := didtest.NewKey(), newAgent(t)
	o := quiet()
	o.Dir = t.TempDir()
	a, b, c := start(t, o), start(t, quiet()), start(t, quiet())
	connect(t, b, a)
	connect(t, c, a)
	connect(t, c, b)
	thing, err := td.Complete(toolAt("Kettle", "urn:x:kettle", agent.url), owner.DID())
	if err != nil {
		t.Fatal(err)
	}
	number := uint64(time.Now().UnixMilli())
	sign := func(nodes ...*running) *api.HostingGrant {
		t.Helper()
		l := td.GrantLease{Number: number, Now: time.Now(), Lifetime: td.GrantLife}
		for _, n := range nodes {
			l.Nodes = append(l.Nodes, n.DID())
		}
		g, _, err := api.SignHostingGrant(thing, owner, l)
		if err != nil {
			t.Fatal(err)
		}
		if thing, err = td.Parse(g.TD); err != nil { // a renewal has the same TD
			t.Fatal(err)
		}
		number++
		return g
	}
	host := func(n *running, g *api.HostingGrant) *api.Publication {
		t.Helper()
		p, err := n.Client().Host(t.Context(), g, nil)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first := sign(a, b)
	p := host(a, first)
	if p.Owner != owner.DID() || !p.Created || p.Hosted == nil || p.Hosted.State != api.HostedNow || len(p.Hosted.Nodes) != 2 {
		t.Errorf("got %+v with %+v", p, p.Hosted)
	}
	_, err = c.Client().Host(t.Context(), first, nil)
	wantCode(t, err, interact.Forbidden)
	host(b, first)
	wantHosts(t, c, p.Ref, a, b)
	if err := ask(t, c, p.Ref); err != nil {
		t.Fatal(err)
	}
	_, err = c.Client().Unpublish(t.Context(), p.Ref)
	wantCode(t, err, interact.Forbidden)

	// The first host stops: the next call is answered by the other one.
	keys := a.DID()
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	if err := ask(t, c, p.Ref); err != nil {
		t.Errorf("after a host stopped: %v", err)
	}
	wantHosts(t, c, p.Ref, b)
	a = start(t, o)
	if a.DID() != keys {
		t.Fatal("the node has another key")
	}
	connect(t, c, a)
	connect(t, b, a)
	wantHosts(t, c, p.Ref, a, b)

	// One host ends.
	ended, err := b.Client().EndHosting(t.Context(), "kettle")
	if err != nil || !ended.Withdrawn || ended.Ref != p.Ref || ended.Hosted == nil {
		t.Fatalf("got %+v, %v", ended, err)
	}
	wantHosts(t, c, p.Ref, a)
	if err := ask(t, c, p.Ref); err != nil {
		t.Error(err)
	}
	_, err = b.Client().EndHosting(t.Context(), "kettle")
	wantCode(t, err, interact.NotFound)
	host(b, first)
	wantHosts(t, c, p.Ref, a, b)

	// The owner removes one, at the other: it ends by itself.
	renewed := host(a, sign(a))
	if renewed.Created || renewed.Hosted.Number <= p.Hosted.Number {
		t.Errorf("got %+v with %+v", renewed, renewed.Hosted)
	}
	wantHosts(t, c, p.Ref, a)
	until(t, "the removed host ends", func() bool {
		list, err := b.Client().Hosted(t.Context())
		return err == nil && len(list.Items) == 0
	})
	_, err = a.Client().Host(t.Context(), first, nil)
	wantCode(t, err, interact.RolledBack)

	// The owner withdraws it.
	end, err := td.SignTombstone(owner, p.ID, td.Lease{Seq: number, Now: time.Now(), Lifetime: 30 * 24 * time.Hour}, false, "urn:example:tool:echo")
	if err != nil {
		t.Fatal(err)
	}
	if w, err := a.Client().WithdrawGranted(t.Context(), end.Record); err != nil || !w.Withdrawn || w.Ref != p.Ref || w.Seq != number {
		t.Fatalf("got %+v, %v", w, err)
	}
	until(t, "the Thing is withdrawn", func() bool { return codeOf(ask(t, c, p.Ref)) == interact.Withdrawn })
	until(t, "the host ends", func() bool {
		list, err := a.Client().Hosted(t.Context())
		return err == nil && len(list.Items) == 0
	})
}
