package directory

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/directory/directorytest"
	"github.com/lmosd/lmosd/directory/eviction"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A town has a directory, the connected and trusted nodes, and unsigned Things.
type evictionFixture struct {
	t                   testing.TB
	d                   *Directory
	connected, trustful map[did.DID]bool
	things              int
}

func newEvictionFixture(t testing.TB, most int) *evictionFixture {
	w := &evictionFixture{t: t, connected: map[did.DID]bool{}, trustful: map[did.DID]bool{}}
	w.d = openDirectory(t, Options{Max: most, Self: "did:key:z6Mkself", Probe: noProbe,
		Connected: func(id did.DID) bool { return w.connected[id] },
		Trust: func(id did.DID) (float64, string) {
			if w.trustful[id] {
				return 1, "trust.allow"
			}
			return 0.5, "no rule"
		}})
	return w
}

func nodeID(kind string, i int) did.DID { return did.DID(fmt.Sprintf("did:key:z6Mk%s%d", kind, i)) }

// thing returns a new Thing of an owner that hosts it.
func (w *evictionFixture) thing(owner did.DID, title string) *td.Description {
	w.things++
	desc := fresh(w.things, td.KindTD)
	desc.Record.Owner, desc.Record.Hosts = owner, []td.Host{{Node: owner}}
	desc.Thing.Title, desc.Record.Title = title, title
	return desc
}

// add adds a Thing that a peer forwarded.
func (w *evictionFixture) add(desc *td.Description, via did.DID) bool {
	w.t.Helper()
	_, err := w.d.putWith(desc, received, arrival{via: string(via)})
	if err != nil && interact.AsError(err).Code != interact.Overloaded {
		w.t.Fatal(err)
	}
	return err == nil
}

func (w *evictionFixture) has(desc *td.Description) bool {
	return w.d.viewOf(desc.Record.Owner, desc.Record.Thing) != nil
}

// connect connects or disconnects a node.
func (w *evictionFixture) connect(id did.DID, is bool) {
	w.connected[id] = is
	w.d.ConnectionChanged(id)
}

// An attack of 75 new keys with 10,000 Things does not evict used, connected or trusted Things from an index of 10,000, and a new honest agent
// of a connected node is added, in either order.
func TestFreshKeysDoNotFillTheIndex(t *testing.T) {
	t.Parallel()
	const most, keys, things = 10_000, 75, 134
	for _, order := range []string{"attack last", "attack first"} {
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			w := newEvictionFixture(t, most)
			carrier := nodeID("carrier", 0)
			var honest []*td.Description
			settle := func() {
				for i := range 200 {
					one := w.thing(nodeID("honest", i), fmt.Sprintf("Honest %d", i))
					switch i % 4 {
					case 0:
						w.connect(one.Record.Owner, true)
					case 1:
						w.trustful[one.Record.Owner] = true
					}
					w.add(one, carrier)
					if i%4 == 2 {
						if _, err := w.d.Get(t.Context(), one.Ref()); err != nil {
							t.Error(err)
						}
					}
					honest = append(honest, one)
				}
			}
			attack := func() {
				for i := range keys * things {
					owner := nodeID("fresh", i%keys)
					w.connect(owner, i%3 == 0)
					w.add(w.thing(owner, fmt.Sprintf("Honest %d", i%200)), owner)
				}
			}
			steps := []func(){settle, attack}
			if order == "attack first" {
				slices.Reverse(steps)
			}
			for _, step := range steps {
				step()
			}
			fresh := w.thing(nodeID("late", 0), "Newcomer")
			w.connect(fresh.Record.Owner, true)
			if !w.add(fresh, carrier) {
				t.Error("a new agent of a connected node is refused")
			}
			missing := 0
			for _, one := range append(honest, fresh) {
				if !w.has(one) {
					missing++
				}
			}
			if d, err := w.d.Get(t.Context(), "newcomer"); err != nil || d.Record.Owner != fresh.Record.Owner {
				t.Error("the new agent:", d, err)
			}
			for i, one := range honest {
				ref := one.Ref()
				if i%4 == 1 {
					ref = fmt.Sprintf("honest-%d", i) // of a trusted owner: 50 other owners have Things of that name
				}
				if d, err := w.d.Get(t.Context(), ref); err != nil || d.Record.Owner != one.Record.Owner {
					t.Errorf("%s: %v, %v", ref, d, err)
				}
			}
			s := w.d.Stats()
			t.Logf("of %d Things of %d new keys %d are in the index; of %d others %d are missing; %d refused, %d evicted", keys*things, keys,
				s.Known-len(honest)-1+missing, len(honest)+1, missing, s.Refused, s.Evicted)
			if missing > 0 {
				t.Errorf("%d honest Things of %d are missing", missing, len(honest)+1)
			}
			if !w.d.IsIncomplete() {
				t.Error("Lacks reports a complete index")
			}
		})
	}
}

// After a random sequence of changes all used, connected and trusted Things within a modest share are still in the index. The seed is
// logged: go test -run EvictionKeeps -seed N.
func TestEvictionKeepsValuableThings(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	if *evictionSeed != 0 {
		seed = *evictionSeed
	}
	t.Logf("-seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	const most = 400
	w := newEvictionFixture(t, most)
	var kept []*td.Description // must not be evicted
	safe := 0                  // of tier linked
	for step := range 6000 {
		owner := nodeID("any", rng.IntN(60))
		switch p := rng.IntN(100); {
		case p < 60: // the fresh key, by many forwarders
			w.add(w.thing(nodeID("fresh", 0), "x"), nodeID("via", rng.IntN(4)))
		case p < 90:
			w.add(w.thing(owner, "y"), nodeID("via", rng.IntN(4)))
		case p < 92 && safe < most/8:
			one := w.thing(nodeID("linked", safe/3), "z") // three each: fewer than a modest share
			w.connect(one.Record.Owner, true)
			if safe++; !w.add(one, "via") {
				t.Fatalf("step %d: of a connected owner, refused", step)
			}
			kept = append(kept, one)
		case p < 93 && len(kept) < most/3:
			one := w.thing(owner, "u")
			if w.add(one, "via") {
				if _, err := w.d.Get(t.Context(), one.Ref()); err != nil {
					t.Fatal(err)
				}
				kept = append(kept, one)
			}
		case p < 94 && len(kept) < most/3:
			id := nodeID("trusted", rng.IntN(5))
			w.trustful[id] = true
			one := w.thing(id, "t")
			if !w.add(one, "via") {
				t.Fatalf("step %d: of a trusted owner, refused", step)
			}
			kept = append(kept, one)
		case p < 97:
			w.d.SetReachable(owner, rng.IntN(2) == 0)
		default:
			w.connect(owner, rng.IntN(2) == 0)
		}
	}
	for i, one := range kept {
		if !w.has(one) {
			t.Errorf("%d of %d is gone: %s of %s", i, len(kept), one.Title, one.Record.Owner)
		}
	}
	t.Logf("%d kept; %+v", len(kept), w.d.Stats())
}

// The order of eviction: Things that were never shown and whose host is down, those of the owner with the most, those of the forwarder with
// the most. A Thing that was shown is not evicted earlier because its host is down.
func TestOrderOfEviction(t *testing.T) {
	t.Parallel()
	w := newEvictionFixture(t, 16)
	var all []*td.Description
	for i := range 16 {
		one := w.thing(nodeID("o", i/2), fmt.Sprintf("n%d", i))
		w.add(one, nodeID("via", i%3/2)) // via0 forwards twice as many
		all = append(all, one)
	}
	gone := all[7].Record.Owner // of 6 and 7
	shown := 0
	for desc, err := range w.d.Find(t.Context(), td.Query{ID: all[6].Record.Thing}) {
		if shown++; err != nil || desc.Record.Owner != gone {
			t.Fatal(desc, err)
		}
	}
	w.d.SetReachable(gone, false)
	if !w.add(w.thing(nodeID("p", 0), "p0"), "did:key:z6Mkother") || w.has(all[7]) || !w.has(all[6]) {
		t.Error("a Thing that was never shown and whose host is gone is not evicted first")
	}
	big := nodeID("big", 0)
	took := 0
	for i := range 8 {
		if w.add(w.thing(big, fmt.Sprintf("b%d", i)), nodeID("via", 9)) {
			took++
		}
	}
	if took != 4 {
		t.Errorf("an owner gets %d Things into a full index, want its modest share of 4", took)
	}
	missing := 0
	for i, one := range all {
		if !w.has(one) && i != 7 {
			missing++
			if i%3/2 != 0 {
				t.Errorf("%d was evicted, forwarded by the peer with fewer", i)
			}
		}
	}
	if missing != 4 {
		t.Errorf("%d evicted for 4", missing)
	}
}

// The hosts in a record are not proven: a connected node as host has no effect on the tier.
func TestNamedHostsAreUnproven(t *testing.T) {
	t.Parallel()
	w := newEvictionFixture(t, 64)
	victim := nodeID("victim", 0)
	w.connect(victim, true)
	for i := range 500 {
		lie := w.thing(nodeID("adversary", i), "false")
		lie.Record.Hosts = []td.Host{{Node: victim}}
		w.add(lie, "did:key:z6Mkcarrier")
	}
	for _, e := range w.d.live {
		if e.Tier() == eviction.Linked {
			t.Fatal("a Thing that only names a connected host has tier Linked")
		}
	}
	for i := range 4 {
		if one := w.thing(victim, fmt.Sprint("true", i)); !w.add(one, "did:key:z6Mkcarrier") || !w.has(one) {
			t.Error("the host's own Thing is refused")
		}
	}
}

// The tier and the forwarder of a Thing survive a restart.
func TestTiersAreStored(t *testing.T) {
	t.Parallel()
	store := memory()
	d := openDirectory(t, Options{Store: store})
	one := weather(t, 1)
	s := one.signed(t, 1)
	s.From = didtest.Key(7).DID()
	d.Ingest(t.Context(), s)
	if _, err := d.Get(t.Context(), one.id); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	again := openDirectory(t, Options{Store: store})
	for _, e := range again.live {
		if e.Tier() != eviction.Used || e.Via() != string(s.From) {
			t.Errorf("got tier %d, forwarded by %s", e.Tier(), e.Via())
		}
	}
	if len(again.live) != 1 {
		t.Error("the Thing is missing")
	}
}

// A name is ambiguous among untrusted owners only.
func TestNamesOfTrustedOwnersAreNotAmbiguous(t *testing.T) {
	t.Parallel()
	w := newEvictionFixture(t, 100)
	trusted, daily, untrusted := nodeID("trusted", 0), nodeID("daily", 0), nodeID("untrusted", 0)
	w.trustful[trusted] = true
	mine := w.thing(daily, "Ledger")
	w.add(mine, "")
	if _, err := w.d.Get(t.Context(), "ledger"); err != nil { // used, while it was the only one
		t.Fatal(err)
	}
	for _, name := range []string{"Ledger", "Bank", "Other"} {
		w.add(w.thing(untrusted, name), "")
	}
	w.add(w.thing(trusted, "Bank"), "")
	w.add(w.thing(nodeID("untrusted", 1), "Other"), "")
	if d, err := w.d.Get(t.Context(), "bank"); err != nil || d.Record.Owner != trusted {
		t.Errorf("got %v, %v", d, err)
	} else if also := w.d.Namesakes(t.Context(), "bank", d, 8); len(also) != 1 || !strings.Contains(also[0], untrusted.Multibase()) {
		t.Errorf("the other Thing is not among the namesakes: %v", also)
	}
	for _, ref := range []string{"other", "ledger"} { // use does not make a difference
		_, err := w.d.Get(t.Context(), ref)
		wantCode(t, err, interact.Ambiguous, "2 agents")
	}
	w.add(w.thing(trusted, "Ledger"), "")
	if d, err := w.d.Get(t.Context(), "ledger"); err != nil || d.Record.Owner != trusted {
		t.Errorf("a trusted one: got %v, %v", d, err)
	}
}

// BenchmarkFull measures an arrival at a full index of 1,000 and 100,000 Things.
func BenchmarkFull(b *testing.B) {
	for _, most := range []int{1_000, 100_000} {
		b.Run(fmt.Sprint(most), func(b *testing.B) {
			w := newEvictionFixture(b, most)
			for i := range most {
				w.d.putWith(w.thing(nodeID("o", i/3), "x"), received, arrival{via: string(nodeID("via", i%50))})
			}
			var next []*td.Description
			for i := range b.N {
				one := w.thing(nodeID("n", i), "y")
				next = append(next, one)
				w.connected[one.Record.Owner] = i%2 == 0
			}
			b.ResetTimer()
			for i, one := range next {
				w.d.putWith(one, received, arrival{via: string(nodeID("via", 100+i%50))})
			}
		})
	}
}

// A directory with a limit below the number of signed records fills up to the limit, with Things of most owners.
func TestSmallIndex(t *testing.T) {
	t.Parallel()
	signed, err := directorytest.Sign(0, 300)
	if err != nil {
		t.Fatal(err)
	}
	d := openDirectory(t, Options{Max: 100})
	for _, s := range signed {
		s.From = didtest.Key(3).DID()
		d.Ingest(t.Context(), s)
	}
	if _, known := d.Len(); known != 100 {
		t.Errorf("%d are known of at most 100", known)
	}
	per := map[did.DID]int{}
	for desc := range d.FindLocal(t.Context(), td.Query{Limit: 1000}) {
		if per[desc.Record.Owner]++; !strings.HasPrefix(desc.ID, "urn:example:agents:") || desc.Record.Expires.Before(time.Now()) {
			t.Error(desc.ID)
		}
	}
	least := 10
	for _, n := range per {
		least = min(least, n)
	}
	if len(per) < 25 {
		t.Errorf("%d owners of 30 have Things, the least has %d", len(per), least)
	}
}
