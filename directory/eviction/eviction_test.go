package eviction

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// check compares the shares of a room with its items.
func check(t *testing.T, r *Room, all map[*Item]bool) {
	t.Helper()
	owners, forwarders, linked := map[string]int{}, map[string]int{}, 0
	for e := range all {
		switch e.tier {
		case Unrequested:
			forwarders[e.via] += e.units
			owners[e.owner] += e.units
		case Linked:
			linked += e.units
			owners[e.owner] += e.units
		}
	}
	if linked != r.linked || linked > r.mostLinked {
		t.Fatalf("%d units are linked, %d are counted, at most %d are allowed", linked, r.linked, r.mostLinked)
	}
	for kind, want := range map[*shares]map[string]int{&r.owners: owners, &r.forwarders: forwarders} {
		if len(kind.by) != len(want) || len(kind.heap) != len(want) {
			t.Fatalf("%d shares, %d in the heap, want %d", len(kind.by), len(kind.heap), len(want))
		}
		for name, units := range want {
			if kind.units(name) != units || kind.most().units < units {
				t.Fatalf("%s has %d, counted %d; the most is %d", name, units, kind.units(name), kind.most().units)
			}
		}
	}
}

// The shares add up, and the victim of an applicant is never more valuable than it, after any sequence of changes.
func TestSharesAddUp(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	const most = 200
	shown := map[*Item]bool{}
	r, all := New(most, func(e *Item) bool { return shown[e] }), map[*Item]bool{}
	some := func() *Item {
		for e := range all {
			return e
		}
		return nil
	}
	for range 20_000 {
		a := Applicant{Tier(rng.IntN(5)), 1 + rng.IntN(3), fmt.Sprint(rng.IntN(20)), fmt.Sprint(rng.IntN(4))}
		if a.Tier == Linked && !r.FitsLinked(a.Units) {
			a.Tier = Unrequested
		}
		switch e := some(); {
		case len(all) < most:
			e = &Item{}
			r.Credit(e, a.Via)
			r.Set(e, a.Tier, a.Units, a.Owner, a.Tier == Linked)
			all[e] = true
		case rng.IntN(4) == 0:
			shown[e] = true
		case rng.IntN(4) == 0:
			r.Credit(e, a.Via)
			r.Leave(e)
			r.Set(e, min(e.tier, Unrequested), e.units, e.owner, false)
		default:
			e, why := r.Victim(a)
			if e == nil {
				if why == "" {
					t.Fatalf("no victim for %+v, without a reason", a)
				}
				continue
			}
			if !all[e] || e.tier > max(a.Tier, Linked) || e.tier == Trusted {
				t.Fatalf("an item of tier %d is evicted for %+v", e.tier, a)
			}
			r.Leave(e)
			r.Leave(e) // again: no effect
			delete(all, e)
			delete(shown, e)
		}
		check(t, r, all)
	}
}

// Used items are evicted for used ones only, those that were not used again first.
func TestUsedItems(t *testing.T) {
	t.Parallel()
	r := New(16, func(*Item) bool { return false })
	var all []*Item
	for i := range 4 {
		e := &Item{}
		r.Set(e, Used, 1, fmt.Sprint(i), false)
		e.UsedAgain.Store(i != 2)
		all = append(all, e)
	}
	if e, why := r.Victim(Applicant{Tier: Linked, Units: 1, Owner: "new"}); e != nil || why == "" {
		t.Errorf("got %v for tier Linked", e)
	}
	if e, _ := r.Victim(Applicant{Tier: Used, Units: 1, Owner: "new"}); e != all[2] {
		t.Error("the evicted item was used again")
	}
	for _, e := range all {
		r.Leave(e)
	}
	if e, why := r.Victim(Applicant{Tier: Trusted, Units: 1, Owner: "new"}); e != nil || why == "" {
		t.Errorf("got %v of an empty room", e)
	}
}

// A changed connection to an owner is reported until the next Set.
func TestLinkChanged(t *testing.T) {
	t.Parallel()
	r, e := New(16, nil), &Item{}
	if r.LinkChanged("a", true) {
		t.Error("an owner without Things")
	}
	r.Set(e, Unrequested, 1, "a", false)
	if !r.LinkChanged("a", true) || r.LinkChanged("a", false) {
		t.Error("want a change from not connected")
	}
	r.Set(e, Linked, 1, "a", true)
	if r.LinkChanged("a", true) || !r.LinkChanged("a", false) {
		t.Error("want a change from connected")
	}
}
