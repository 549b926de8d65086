package testnet

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// simulate runs f in a simulated network of n nodes that are meshed.
func simulate(t *testing.T, n int, o Options, f func(t *testing.T, ctx context.Context, net *Net)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		net, err := Simulated(ctx, n, o)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := net.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}()
		if err := net.Settle(ctx); err != nil {
			t.Fatal(err)
		}
		f(t, ctx, net)
	})
}

// finds reports whether m finds want agents of a capability.
func finds(ctx context.Context, m *Member, want int) bool {
	list, err := m.Find(ctx, td.Query{Capability: []string{capability}}, 2*time.Second)
	return err == nil && len(list.Items) == want
}

func TestTwentyNodesFindAPublication(t *testing.T) {
	simulate(t, 20, Options{Topology: "random:3"}, func(t *testing.T, ctx context.Context, net *Net) {
		p, err := net.Members[0].Publish(ctx, weatherTD(1))
		if err != nil {
			t.Fatal(err)
		}
		if p.Replicas == 0 || p.GossipPeers == 0 {
			t.Errorf("published to %d of %d replicas and %d gossip peers, want some of each", p.Replicas, p.Wanted, p.GossipPeers)
		}
		start := time.Now()
		everywhere(t, ctx, net.Members, 1)
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("visible everywhere after %v of simulated time, want 2 s at most", took)
		}
		if _, err := net.Members[0].Unpublish(ctx, p.Ref); err != nil {
			t.Fatal(err)
		}
		start = time.Now()
		everywhere(t, ctx, net.Members, 0)
		if took := time.Since(start); took > time.Second {
			t.Errorf("withdrawn everywhere after %v of simulated time, want 1 s at most", took)
		}
		if _, err := net.Members[19].Agent(ctx, p.Ref); code(err) != interact.Withdrawn {
			t.Errorf("a withdrawn agent gives %v, want %v", err, interact.Withdrawn)
		}
	})
}

// everywhere waits until each member finds want agents; it queries all concurrently.
func everywhere(t *testing.T, ctx context.Context, members []*Member, want int) {
	t.Helper()
	var g errgroup.Group
	for _, m := range members {
		g.Go(func() error {
			return Until(ctx, fmt.Sprintf("node %d finds %d", m.N, want), func() bool { return finds(ctx, m, want) })
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

func TestLateNodeFindsEarlierPublications(t *testing.T) {
	simulate(t, 6, Options{Topology: "line"}, func(t *testing.T, ctx context.Context, net *Net) {
		if _, err := net.Members[0].Publish(ctx, weatherTD(1)); err != nil {
			t.Fatal(err)
		}
		everywhere(t, ctx, net.Members, 1)
		list, err := net.Members[5].Find(ctx, td.Query{Capability: []string{"urn:example:weather"}}, 2*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != 1 || list.Coverage.Answered == 0 {
			t.Errorf("by the first levels: got %d agents with coverage %+v, want one", len(list.Items), list.Coverage)
		}
	})
}

func TestFailedHostIsUnreachable(t *testing.T) {
	simulate(t, 4, Options{}, func(t *testing.T, ctx context.Context, net *Net) {
		p, err := net.Members[0].Publish(ctx, weatherTD(1))
		if err != nil {
			t.Fatal(err)
		}
		everywhere(t, ctx, net.Members, 1)
		if err := net.Members[0].Kill(); err != nil {
			t.Fatal(err)
		}
		_, _, err = net.Members[3].Read(ctx, p.Ref, "modelConfiguration")
		if code(err) != interact.Unreachable {
			t.Errorf("asking gives %v, want %v", err, interact.Unreachable)
		}
		list, err := net.Members[3].Find(ctx, td.Query{Capability: []string{capability}}, 2*time.Second)
		if err != nil || len(list.Items) != 1 || list.Items[0].State == api.StateReachable {
			t.Errorf("find gives %+v, %v; want one agent that is unreachable", list, err)
		}
	})
}

func TestRecordOfAFailedHostExpires(t *testing.T) {
	simulate(t, 3, Options{Lifetime: time.Hour}, func(t *testing.T, ctx context.Context, net *Net) {
		if _, err := net.Members[0].Publish(ctx, weatherTD(1)); err != nil {
			t.Fatal(err)
		}
		everywhere(t, ctx, net.Members, 1)
		if err := net.Members[0].Kill(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(61 * time.Minute) // simulated
		if !finds(context.WithoutCancel(ctx), net.Members[2], 0) {
			t.Error("a record is found after its hour")
		}
	})
}

func TestKeysAreReproducible(t *testing.T) {
	t.Parallel()
	a, err := Key(7, 3)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := Key(7, 3)
	c, _ := Key(7, 4)
	d, _ := Key(8, 3)
	if a.DID() != b.DID() || a.DID() == c.DID() || a.DID() == d.DID() {
		t.Errorf("got %s, %s, %s, %s; want the first two equal and the rest different", a.DID(), b.DID(), c.DID(), d.DID())
	}
}

func TestTopologies(t *testing.T) {
	t.Parallel()
	for topology, want := range map[string]int{"full": 15, "ring": 6, "line": 5, "star": 5, "two-orgs": 7} {
		ls, err := links(topology, 6, 1)
		if err != nil || len(ls) != want {
			t.Errorf("%s of 6 has %d links (%v), want %d", topology, len(ls), err, want)
		}
		if !connected(6, ls) {
			t.Errorf("%s of 6 is not one mesh", topology)
		}
	}
	for seed := range int64(20) {
		if ls, err := links("random:3", 12, seed); err != nil || !connected(12, ls) {
			t.Errorf("random:3 with seed %d is not one mesh (%v)", seed, err)
		}
	}
	for _, bad := range []string{"", "mesh", "random", "random:0", "random:x"} {
		if _, err := links(bad, 3, 1); err == nil {
			t.Errorf("topology %q was taken", bad)
		}
	}
}

func connected(n int, ls []link) bool {
	seen := map[int]bool{0: true}
	for range n {
		for _, l := range ls {
			if seen[l.from] || seen[l.to] {
				seen[l.from], seen[l.to] = true, true
			}
		}
	}
	return len(seen) == n
}

// code returns the code of an error, 0 of none.
func code(err error) interact.Code {
	if err == nil {
		return 0
	}
	var e *interact.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return interact.Internal
}
