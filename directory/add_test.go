package directory

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// with returns desc with another record, changed by f.
func with(desc *td.Description, f func(r *td.Record)) *td.Description {
	r := *desc.Record
	f(&r)
	return &td.Description{Thing: desc.Thing, Record: &r, Signed: desc.Signed}
}

func TestAddKeepsTheNewest(t *testing.T) {
	t.Parallel()
	a := weather(t, 1)
	one, two := described(t, a.signed(t, 1)), described(t, a.signed(t, 2))
	d := openDirectory(t, Options{})

	if changed, err := d.Add(two); err != nil || !changed {
		t.Fatalf("first: got %v, %v", changed, err)
	}
	if changed, err := d.Add(two); err != nil || changed {
		t.Errorf("again: got %v, %v, want no change", changed, err)
	}
	_, err := d.Add(one)
	wantCode(t, err, interact.RolledBack, "urn:example:weather", "{show [urn:example:weather@")
	if changed, err := d.Add(described(t, a.signed(t, 3))); err != nil || !changed {
		t.Errorf("newer: got %v, %v", changed, err)
	}
	if _, known := d.Len(); known != 1 {
		t.Errorf("got %d things, want 1", known)
	}
	if s := d.Stats(); s.Added != 2 || s.RolledBack != 1 {
		t.Errorf("got %+v", s)
	}
}

func TestAddTwiceWithAndWithoutInlineTDIsNoEquivocation(t *testing.T) {
	t.Parallel()
	s := weather(t, 1).signed(t, 1)
	d := openDirectory(t, Options{})
	for _, s := range []*td.Signed{s, {Record: bare(t, s).Record, TD: described(t, s).Signed.TD}, s} {
		if _, err := d.Add(described(t, s)); err != nil {
			t.Fatal(err)
		}
	}
	if s := d.Stats(); s.Equivocations != 0 || s.Added != 1 {
		t.Errorf("got %+v", s)
	}
}

// Two directories that receive two records with one seq in different order keep the same one.
func TestEquivocationsEndTheSameOnAllNodes(t *testing.T) {
	t.Parallel()
	a := weather(t, 1)
	first := described(t, a.signed(t, 7))
	a.title = "Weather Impostor"
	second := described(t, a.signed(t, 7))

	var stays [2]string
	for i, order := range [][]*td.Description{{first, second}, {second, first}} {
		d := openDirectory(t, Options{})
		for _, desc := range order {
			_, _ = d.Add(desc)
		}
		got, err := d.Get(t.Context(), a.id)
		if err != nil {
			t.Fatal(err)
		}
		stays[i] = got.Title
		if n := d.Stats().Equivocations; n != 1 {
			t.Errorf("got %d equivocations, want 1", n)
		}
		if _, known := d.Len(); known != 1 {
			t.Errorf("got %d things, want 1", known)
		}
	}
	if stays[0] != stays[1] {
		t.Errorf("the order decides: %q and %q", stays[0], stays[1])
	}
}

func TestTombstoneRemovesAndRemains(t *testing.T) {
	t.Parallel()
	a := weather(t, 1)
	d := openDirectory(t, Options{})
	for _, s := range []*td.Signed{a.signed(t, 1), a.tombstone(t, 2)} {
		if changed, err := d.Add(described(t, s)); err != nil || !changed {
			t.Fatal(changed, err)
		}
	}
	if got := ids(d.FindLocal(t.Context(), td.Query{})); got != "" {
		t.Errorf("still found: %s", got)
	}
	for _, ref := range []string{a.id, "weather-agent", "weather", a.id + "@" + a.key.DID().Multibase()} {
		_, err := d.Get(t.Context(), ref)
		wantCode(t, err, interact.Withdrawn, a.id, a.key.DID().Short(), time.Now().UTC().Format("2006-01-02"))
	}
	_, err := d.Add(described(t, a.signed(t, 1)))
	wantCode(t, err, interact.RolledBack)
	if s := d.Stats(); s.Withdrawn != 1 || s.Removed != 1 || s.Known != 0 {
		t.Errorf("got %+v", s)
	}
	// It can be published again with a higher seq.
	if _, err := d.Add(described(t, a.signed(t, 3))); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Get(t.Context(), "weather"); err != nil {
		t.Error(err)
	}
}

func TestTombstoneOfAnUnknownThingIsKept(t *testing.T) {
	t.Parallel()
	a := weather(t, 1)
	d := openDirectory(t, Options{})
	if _, err := d.Add(described(t, a.tombstone(t, 9))); err != nil {
		t.Fatal(err)
	}
	_, err := d.Add(described(t, a.signed(t, 8)))
	wantCode(t, err, interact.RolledBack)
	_, err = d.Get(t.Context(), a.id)
	wantCode(t, err, interact.Withdrawn)
}

func TestFinalTombstone(t *testing.T) {
	t.Parallel()
	a := weather(t, 1)
	last, err := td.SignTombstone(a.key, a.id, td.Lease{Seq: 1, Now: time.Now(), Lifetime: time.Hour}, true)
	if err != nil {
		t.Fatal(err)
	}
	d := openDirectory(t, Options{})
	if _, err := d.Add(described(t, last)); err != nil {
		t.Fatal(err)
	}
	_, err = d.Add(described(t, a.signed(t, math.MaxUint64-1)))
	wantCode(t, err, interact.RolledBack)
}

func TestMoved(t *testing.T) {
	t.Parallel()
	desc := plain(t, 1, "urn:example:mover", "Mover")
	d := filled(t, Options{}, desc)
	moved := with(desc, func(r *td.Record) { r.Seq, r.Kind, r.Successor = 2, td.KindMoved, didtest.Key(2).DID() })
	moved.Thing = nil
	if _, err := d.put(moved, received); err != nil {
		t.Fatal(err)
	}
	_, err := d.Get(t.Context(), "mover")
	wantCode(t, err, interact.Withdrawn, string(didtest.Key(2).DID()))
}

// moveRecord returns the record in which owner n moves a Thing to owner to.
func moveRecord(t testing.TB, n byte, id, title string, to byte) (desc, moved *td.Description) {
	t.Helper()
	desc = plain(t, n, id, title)
	moved = with(desc, func(r *td.Record) { r.Seq, r.Kind, r.Successor = 2, td.KindMoved, didtest.Key(int(to)).DID() })
	moved.Thing = nil
	return desc, moved
}

// A node that is refused, for example because its key was replaced and revoked, withdraws what is known of it, and does nothing else: a move leads
// to trusted owners only, because somebody else may have its key.
func TestRefusedOwnersMayWithdraw(t *testing.T) {
	t.Parallel()
	refused, trusted := didtest.Key(1).DID(), didtest.Key(2).DID()
	admits := func(id did.DID) error {
		if id == refused {
			return errors.New("its organization revoked the node")
		}
		return nil
	}
	trust := func(id did.DID) (float64, string) { return map[did.DID]float64{trusted: 1}[id], "" }
	legit, moved := moveRecord(t, 1, "urn:legit", "Legit", 2)
	stolen, away := moveRecord(t, 1, "urn:stolen", "Stolen", 3)
	d := openDirectory(t, Options{Admits: admits, Trust: trust})
	for _, desc := range []*td.Description{legit, moved} {
		if _, err := d.put(desc, received); err == nil {
			t.Errorf("%s %v of a refused owner was accepted", desc.Record.Thing, desc.Record.Kind)
		}
	}
	withdrawn := weather(t, 1)
	for _, desc := range []*td.Description{legit, stolen, described(t, withdrawn.signed(t, 1))} { // they were stored before
		if _, err := d.put(desc, restored); err != nil {
			t.Fatal(err)
		}
	}
	for _, desc := range []*td.Description{plain(t, 2, "urn:legit", "Legit"), plain(t, 3, "urn:stolen", "Stolen"), moved, away, described(t, withdrawn.tombstone(t, 2))} {
		if _, err := d.put(desc, received); err != nil {
			t.Errorf("%s %v: %v", desc.Record.Thing, desc.Record.Kind, err)
		}
	}
	if got, err := d.Get(t.Context(), "urn:legit@"+string(refused)); err != nil || got.Record.Owner != trusted {
		t.Errorf("the move to a trusted owner leads to %+v, %v", got, err)
	}
	_, err := d.Get(t.Context(), "urn:stolen@"+string(refused))
	wantCode(t, err, interact.Withdrawn)
	if e := interact.AsError(err); strings.Contains(err.Error(), "moved") || len(e.Next) != 1 || e.Next[0].Kind != interact.StepFind {
		t.Errorf("the move to a stranger is suggested: %v, %v", err, e.Next)
	}
	_, err = d.Get(t.Context(), withdrawn.id)
	wantCode(t, err, interact.Withdrawn)
	for _, desc := range []*td.Description{with(moved, func(r *td.Record) { r.Seq, r.Successor = 3, didtest.Key(3).DID() }), described(t, withdrawn.signed(t, 3))} {
		if _, err := d.put(desc, received); err == nil {
			t.Errorf("%s %v of a refused owner was accepted after its withdrawal", desc.Record.Thing, desc.Record.Kind)
		}
	}
}

func TestMovesAreFollowed(t *testing.T) {
	t.Parallel()
	owner := func(n byte) string { return string(didtest.Key(int(n)).DID()) }
	minted := func(n byte) string { return "urn:lmos:" + owner(n) + ":minted" }
	var descs []*td.Description
	move := func(n byte, id, title string, to byte) {
		desc, moved := moveRecord(t, n, id, title, to)
		descs = append(descs, desc, moved)
	}
	move(1, "urn:once", "Once", 2)
	descs = append(descs, plain(t, 2, "urn:once", "Once again"))
	move(1, minted(1), "Minted", 2)
	descs = append(descs, plain(t, 2, minted(2), "Minted again"))
	move(1, owner(1), "Itself", 2)
	descs = append(descs, plain(t, 2, owner(2), "Itself again"))
	for n := byte(1); n <= 6; n++ { // from 3, 4 hops to owner 7
		move(n, "urn:far", "Far", n+1)
	}
	descs = append(descs, plain(t, 7, "urn:far", "Far away"))
	move(1, "urn:circle", "Circle", 2)
	move(2, "urn:circle", "Circle", 1)
	move(1, "urn:lost", "Lost", 9)
	// Another owner withdraws a Thing with the same id last, and names itself as the successor.
	move(1, "urn:x:9", "Stolen", 2)
	descs = append(descs, plain(t, 2, "urn:x:9", "Rightful"), plain(t, 8, "urn:x:9", "Wrongful"))
	move(3, "urn:x:9", "Stolen", 8)
	d := filled(t, Options{}, descs...)
	for _, tt := range []struct{ name, ref, id, owner, fails string }{
		{"by id and owner", "urn:once@" + owner(1), "urn:once", owner(2), ""},
		{"by id and a prefix of the owner", "urn:once@" + didtest.Key(1).DID().Multibase()[:16], "urn:once", owner(2), ""},
		{"by its earlier name", "once", "urn:once", owner(2), ""},
		{"an id that contains its owner", minted(1), minted(2), owner(2), ""},
		{"an id that is its owner", owner(1), owner(2), owner(2), ""},
		{"4 moves", "urn:far@" + owner(3), "urn:far", owner(7), ""},
		{"5 moves", "urn:far@" + owner(2), "", "", "more than 4 times"},
		{"in a cycle", "urn:circle@" + owner(1), "", "", "circle"},
		{"the successor does not publish it", "urn:lost", "", "", owner(9)},
		{"several tombstones, by owner", "urn:x:9@" + owner(1), "urn:x:9", owner(2), ""},
		{"several tombstones, by name", "stolen", "", "", "has moved to"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			desc, err := d.Get(t.Context(), tt.ref)
			if tt.fails != "" {
				wantCode(t, err, interact.Withdrawn, tt.fails)
			} else if err != nil || desc.Record.Thing != tt.id || string(desc.Record.Owner) != tt.owner {
				t.Errorf("got %+v, %v; want %s of %s", desc, err, tt.id, tt.owner)
			}
		})
	}
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		short := plain(t, 1, "urn:short", "Short")
		long := with(plain(t, 1, "urn:long", "Long"), func(r *td.Record) { r.Expires = r.Issued.Add(24 * time.Hour) })
		d := filled(t, Options{}, short, long)
		run(t, d)

		time.Sleep(time.Hour - time.Second)
		synctest.Wait()
		if got := ids(d.FindLocal(t.Context(), td.Query{})); got != "urn:long urn:short" {
			t.Errorf("a second before: got %q", got)
		}
		time.Sleep(time.Second)
		// Also before Run removes it.
		if got := ids(d.FindLocal(t.Context(), td.Query{})); got != "urn:long" {
			t.Errorf("at expiry: got %q", got)
		}
		_, err := d.Get(t.Context(), "urn:short")
		wantCode(t, err, interact.NotFound)
		synctest.Wait()
		if s := d.Stats(); s.Known != 1 || s.Expired != 1 || s.Removed != 1 {
			t.Errorf("after expiry: got %+v", s)
		}
		// The seq is kept for as long as an older record could be valid.
		_, err = d.put(with(short, func(r *td.Record) { r.Seq, r.Expires = 0, time.Now().Add(time.Minute) }), received)
		wantCode(t, err, interact.RolledBack)
		time.Sleep(25 * time.Hour)
		synctest.Wait()
		if s := d.Stats(); s.Known != 0 || s.Removed != 0 || len(d.entries) != 0 {
			t.Errorf("a day later: got %+v, %d entries", s, len(d.entries))
		}
	})
}

func TestRefreshExtendsTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		desc := plain(t, 1, "urn:1", "Fresh", "urn:a:b")
		d := filled(t, Options{}, desc)
		run(t, d)
		for seq := range uint64(5) {
			time.Sleep(30 * time.Minute)
			_, err := d.put(with(desc, func(r *td.Record) {
				r.Seq, r.Issued, r.Expires = seq+2, time.Now(), time.Now().Add(time.Hour)
			}), received)
			if err != nil {
				t.Fatal(err)
			}
		}
		if got := ids(d.FindLocal(t.Context(), td.Query{Capability: []string{"a"}})); got != "urn:1" {
			t.Errorf("got %q", got)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if _, known := d.Len(); known != 0 {
			t.Errorf("got %d things after the last lease", known)
		}
	})
}

// Run sleeps until the next expiry. A later record with a shorter lease wakes it.
func TestShortLeaseWakesRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := filled(t, Options{}, plain(t, 1, "urn:long", "Long"))
		run(t, d)
		synctest.Wait()
		short := with(plain(t, 1, "urn:short", "Short"), func(r *td.Record) { r.Expires = r.Issued.Add(time.Minute) })
		if _, err := d.put(short, received); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := d.Stats(); s.Known != 1 || s.Expired != 1 {
			t.Errorf("got %+v", s)
		}
	})
}

func TestExpiredIsNotAdded(t *testing.T) {
	t.Parallel()
	d := openDirectory(t, Options{})
	_, err := d.Add(with(plain(t, 1, "urn:1", "Late"), func(r *td.Record) { r.Expires = time.Now() }))
	wantCode(t, err, interact.Expired, "urn:1")
}

func TestChangedTDIsFoundByNewTerms(t *testing.T) {
	t.Parallel()
	d := filled(t, Options{}, plain(t, 1, "urn:1", "Old", "urn:old:thing"))
	changed := with(plain(t, 1, "urn:1", "New", "urn:new:thing"), func(r *td.Record) { r.Seq = 2 })
	if _, err := d.put(changed, received); err != nil {
		t.Fatal(err)
	}
	if got := ids(d.FindLocal(t.Context(), td.Query{Capability: []string{"old"}})); got != "" {
		t.Errorf("found by an old term: %s", got)
	}
	if got := ids(d.FindLocal(t.Context(), td.Query{Capability: []string{"new"}})); got != "urn:1" {
		t.Errorf("not found by a new term: %q", got)
	}
}

func TestQuotas(t *testing.T) {
	t.Parallel()
	self := didtest.Key(9).DID()
	here := []td.Host{{Node: self}}
	d := openDirectory(t, Options{Max: 3, PerOwner: 2, Self: self})
	put := func(desc *td.Description, from origin) error {
		_, err := d.put(desc, from)
		return err
	}
	for _, id := range []string{"urn:1", "urn:2"} {
		if err := put(plain(t, 1, id, ""), received); err != nil {
			t.Fatal(err)
		}
	}
	wantCode(t, put(plain(t, 1, "urn:3", ""), received), interact.Overloaded, "of its owner")
	if err := put(plain(t, 2, "urn:3", ""), received); err != nil {
		t.Fatal(err)
	}
	wantCode(t, put(plain(t, 3, "urn:4", ""), received), interact.Overloaded, "3 descriptions")
	own := with(plain(t, 1, "urn:own", ""), func(r *td.Record) { r.Hosts = here })
	wantCode(t, put(own, received), interact.Overloaded)
	if err := put(own, published); err != nil {
		t.Error("a publication of this node is refused:", err)
	}
	refresh := with(plain(t, 2, "urn:3", ""), func(r *td.Record) { r.Seq = 2 })
	if err := put(refresh, received); err != nil {
		t.Error("a refresh is refused:", err)
	}
	if s := d.Stats(); s.Refused != 3 || s.Known != 4 || s.Own != 1 {
		t.Errorf("got %+v", s)
	}
}

// Tombstones of unknown Things evict nothing and use bounded memory.
func TestFloodOfTombstones(t *testing.T) {
	t.Parallel()
	d := openDirectory(t, Options{Max: 4})
	bury := func(id string, seq uint64) error {
		tomb := with(plain(t, 1, id, ""), func(r *td.Record) { r.Seq, r.Kind = seq, td.KindTombstone })
		tomb.Thing = nil
		_, err := d.put(tomb, received)
		return err
	}
	met := plain(t, 1, "urn:met", "Met")
	if _, err := d.put(met, received); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"urn:1", "urn:2", "urn:3", "urn:4"} {
		if err := bury(id, 1); err != nil {
			t.Fatal(err)
		}
	}
	wantCode(t, bury("urn:5", 1), interact.Overloaded, "withdrawn")
	if err := bury("urn:met", 2); err != nil {
		t.Error("a known Thing cannot be withdrawn:", err)
	}
	_, err := d.Get(t.Context(), "met")
	wantCode(t, err, interact.Withdrawn)
}

func TestFailedHostsAreBounded(t *testing.T) {
	t.Parallel()
	d := openDirectory(t, Options{Max: 2})
	for i := range 9 {
		desc := with(plain(t, 1, string(rune('a'+i)), ""), func(r *td.Record) {
			r.Expires = r.Expires.Add(time.Duration(i) * time.Second)
		})
		if _, err := d.put(desc, received); err != nil {
			t.Fatal(err)
		}
		tomb := with(desc, func(r *td.Record) { r.Seq, r.Kind = 2, td.KindTombstone })
		tomb.Thing = nil
		if _, err := d.put(tomb, received); err != nil {
			t.Fatal(err)
		}
	}
	if d.store.Len() != 0 {
		t.Errorf("%d Things are marked to be written without a store", d.store.Len())
	}
	if s := d.Stats(); s.Removed != 4 || len(d.entries) != 4 || len(d.tombstones.byID) != 4 {
		t.Errorf("got %+v, %d entries, %d tombstones; want 4 of each", s, len(d.entries), len(d.tombstones.byID))
	}
}

func TestOwnThings(t *testing.T) {
	t.Parallel()
	self := didtest.Key(9).DID()
	mine := with(plain(t, 1, "urn:mine", "", "urn:x:y"), func(r *td.Record) { r.Hosts = []td.Host{{Node: self}} })
	// Any record can name this node as a host.
	claimed := with(plain(t, 2, "urn:claimed", "", "urn:x:y"), func(r *td.Record) { r.Hosts = []td.Host{{Node: self}} })
	d := filled(t, Options{Self: self}, claimed, plain(t, 3, "urn:other", "", "urn:x:y"))
	if _, err := d.Add(mine); err != nil {
		t.Fatal(err)
	}
	hosted := func() int { return len(d.Hosted(t.Context(), td.Query{Capability: []string{"x"}})) }
	if n := hosted(); n != 1 {
		t.Errorf("got %d hosted things, want 1", n)
	}
	if local, known := d.Len(); local != 1 || known != 3 {
		t.Errorf("got %d local of %d, want 1 of 3", local, known)
	}
	if n := len(d.Hosted(t.Context(), td.Query{Capability: []string{"z"}})); n != 0 {
		t.Errorf("got %d hosted things by another capability", n)
	}
	// The gossip of the own refresh has no effect; a move to another host does.
	for _, c := range []struct {
		seq   uint64
		hosts []td.Host
		want  int
	}{{2, mine.Record.Hosts, 1}, {3, []td.Host{{Node: didtest.Key(8).DID()}}, 0}, {4, mine.Record.Hosts, 0}} {
		if _, err := d.put(with(mine, func(r *td.Record) { r.Seq, r.Hosts = c.seq, c.hosts }), received); err != nil {
			t.Fatal(err)
		}
		if n := hosted(); n != c.want {
			t.Errorf("seq %d: got %d hosted, want %d", c.seq, n, c.want)
		}
	}
	// After the loss of its store the node publishes a Thing that it has received from others.
	if changed, err := d.Add(with(mine, func(r *td.Record) { r.Seq = 4 })); err != nil || changed {
		t.Fatal(changed, err)
	}
	if n := hosted(); n != 1 {
		t.Errorf("after publishing the received Thing: got %d hosted, want 1", n)
	}
}

func TestHosts(t *testing.T) {
	t.Parallel()
	a, b := didtest.Key(7).DID(), didtest.Key(8).DID()
	on := func(id string, seq uint64, hosts ...did.DID) *td.Description {
		return with(plain(t, 1, id, ""), func(r *td.Record) {
			r.Seq = seq
			for _, h := range hosts {
				r.Hosts = append(r.Hosts, td.Host{Node: h})
			}
		})
	}
	d := filled(t, Options{}, on("urn:1", 1, a, b), on("urn:2", 1, a))
	check := func(what string, wantA, wantB bool) {
		t.Helper()
		if gotA, gotB := d.Hosts(a), d.Hosts(b); gotA != wantA || gotB != wantB {
			t.Errorf("%s: got %v and %v, want %v and %v", what, gotA, gotB, wantA, wantB)
		}
	}
	check("both host something", true, true)
	put := func(desc *td.Description) {
		t.Helper()
		if _, err := d.put(desc, received); err != nil {
			t.Fatal(err)
		}
	}
	put(on("urn:1", 2, a))
	check("after a move", true, false)
	put(on("urn:1", 3, b))
	check("after a move back", true, true)
	d.dropDue(time.Now().Add(2 * time.Hour))
	check("after all has expired", false, false)
}

func TestReach(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		self, a, b := didtest.Key(9).DID(), didtest.Key(1).DID(), didtest.Key(2).DID()
		d := openDirectory(t, Options{Self: self})
		on := func(hosts ...did.DID) *td.Description {
			desc := &td.Description{Record: &td.Record{}}
			for _, h := range hosts {
				desc.Record.Hosts = append(desc.Record.Hosts, td.Host{Node: h})
			}
			return desc
		}
		check := func(what string, desc *td.Description, want bool) {
			t.Helper()
			if got := d.IsReachable(desc.Record, time.Now()); got != want {
				t.Errorf("%s: got %v, want %v", what, got, want)
			}
		}
		check("at first", on(a), true)
		d.SetReachable(a, false)
		check("the only host down", on(a), false)
		check("one of two down", on(a, b), true)
		check("one of two down, and self", on(a, self), true)
		check("no host", on(), true)
		d.SetReachable(self, false)
		check("self", on(self), true)
		d.SetReachable(a, true)
		check("reached again", on(a), true)
		d.SetReachable(a, false)
		time.Sleep(10 * time.Minute)
		check("another chance", on(a), true)

		for i := range 2 * 4096 {
			d.SetReachable(did.DID(string(rune(i+1))), false)
		}
		if n := d.Stats().Down; n != 4096 {
			t.Errorf("got %d recorded nodes, want 4096", n)
		}
	})
}

func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	d := openDirectory(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Run(ctx); err != nil {
		t.Error(err)
	}
}
