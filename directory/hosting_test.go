package directory

import (
	"fmt"
	"maps"
	"math/rand/v2"
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

// A granted is a Thing with its grants.
type granted struct {
	agent
	tds map[string][]byte // the signed TDs by title: a TD that is signed again a second later is another one
}

// grant signs a grant of a for nodes, valid from now for 7 days. The title makes the TD another one.
func (a *granted) grant(t testing.TB, number uint64, title string, nodes ...*keystore.Key) *td.Grant {
	t.Helper()
	a.title = title
	thing, err := td.Parse(a.tds[title])
	if a.tds[title] == nil {
		thing, err = td.Complete(a.json(), a.key.DID())
	}
	if err != nil {
		t.Fatal(err)
	}
	l := td.GrantLease{Number: number, Now: time.Now(), Lifetime: td.GrantLife}
	for _, n := range nodes {
		l.Nodes = append(l.Nodes, n.DID())
	}
	g, raw, err := td.SignGrant(thing, a.key, l)
	if err != nil {
		t.Fatal(err)
	}
	if a.tds == nil {
		a.tds = map[string][]byte{}
	}
	a.tds[title] = raw
	return g
}

// at returns the description of a at a node.
func (a *granted) at(t testing.TB, g *td.Grant, node *keystore.Key, seq uint64, state td.HostState) *td.Description {
	t.Helper()
	s, err := g.Sign(a.tds[g.Title], node, td.Lease{Seq: seq, Now: time.Now(), Lifetime: time.Hour, Hosts: []td.Host{{Node: node.DID()}}, State: state})
	if err != nil {
		t.Fatal(err)
	}
	return described(t, s)
}

// hostsOf returns which of the nodes host the Thing, as letters from a; "-" if the Thing is not known.
func hostsOf(d *Directory, a *granted, nodes []*keystore.Key) string {
	v := d.viewOf(a.key.DID(), a.id)
	if v == nil {
		return "-"
	}
	var text []byte
	for i, n := range nodes {
		if slices.ContainsFunc(v.record.Hosts, func(h td.Host) bool { return h.Node == n.DID() }) {
			text = append(text, 'a'+byte(i))
		}
	}
	return string(text)
}

// carried returns what reconciliation compares: the sequence numbers by carrier key.
type carried map[[32]byte]uint64

func (c carried) onChange(key [32]byte, seq uint64, here bool) {
	if here {
		c[key] = seq
	} else {
		delete(c, key)
	}
}

func (a *granted) keys(nodes ...*keystore.Key) (keys [][32]byte) {
	for _, n := range nodes {
		keys = append(keys, td.HostKey(a.key.DID(), a.id, n.DID()))
	}
	return keys
}

func TestSeveralHosts(t *testing.T) {
	t.Parallel()
	a, nodes := &granted{agent: weather(t, 1)}, []*keystore.Key{didtest.Key(2), didtest.Key(3), didtest.Key(4)}
	set := carried{}
	d := openDirectory(t, Options{OnChange: set.onChange})
	put := func(desc *td.Description) error { _, err := d.put(desc, received); return err }
	want := func(hosts string) {
		t.Helper()
		if got := hostsOf(d, a, nodes); got != hosts {
			t.Fatalf("got hosts %q, want %q", got, hosts)
		}
		if n := strings.Trim(hosts, "-"); len(set) < len(n) {
			t.Fatalf("%d records for %d hosts are carried", len(set), len(n))
		}
		for key, seq := range set {
			if s := d.Signed(key); s == nil {
				t.Fatal("a carried record is not there")
			} else if r := described(t, s).Record; r.CarrierKey() != key || r.Seq != seq {
				t.Fatalf("got %+v", r)
			}
		}
	}
	one := a.grant(t, 10, "Weather", nodes[0], nodes[1])
	first := a.at(t, one, nodes[0], 5, td.Hosting)
	for i, desc := range []*td.Description{first, a.at(t, one, nodes[1], 5, td.Hosting)} {
		if err := put(desc); err != nil {
			t.Fatal(err)
		}
		want("ab"[:i+1])
	}
	if _, known := d.Len(); known != 1 {
		t.Fatalf("%d Things are known, want 1", known)
	}
	got, err := d.Get(t.Context(), "weather")
	if err != nil || len(got.Record.Hosts) != 2 || got.Record.Seq != 10 || got.Record.Key() != td.Key(a.key.DID(), a.id) {
		t.Fatalf("got %+v, %v", got, err)
	}
	// What changes nothing, and what is too old.
	if changed, err := d.put(first, received); changed || err != nil {
		t.Errorf("the same record again: %v, %v", changed, err)
	}
	if code := interact.AsError(put(a.at(t, one, nodes[0], 4, td.Hosting))).Code; code != interact.RolledBack {
		t.Errorf("an older record of a host: %s", code)
	}
	// A renewal of the grant interrupts nothing: hosts that it still names count.
	two := a.grant(t, 11, "Weather", nodes[1], nodes[2])
	old := a.at(t, one, nodes[0], 6, td.Hosting)
	if err := put(a.at(t, two, nodes[2], 1, td.Hosting)); err != nil {
		t.Fatal(err)
	}
	want("bc")
	// An old grant played again does not bring the removed host back.
	if code := interact.AsError(put(old)).Code; code != interact.RolledBack {
		t.Errorf("a removed host: %s", code)
	}
	want("bc")
	// A draining host is used only if there is no other, and the last record of a host ends it.
	if err := put(a.at(t, two, nodes[2], 2, td.Draining)); err != nil {
		t.Fatal(err)
	}
	want("b")
	if err := put(a.at(t, two, nodes[1], 7, td.Ended)); err != nil {
		t.Fatal(err)
	}
	want("c")
	if err := put(a.at(t, two, nodes[2], 3, td.Ended)); err != nil {
		t.Fatal(err)
	}
	want("-")
	_, err = d.Get(t.Context(), "weather")
	wantCode(t, err, interact.NotFound)
	if code := interact.AsError(put(a.at(t, two, nodes[1], 6, td.Hosting))).Code; code != interact.RolledBack {
		t.Errorf("a host that has ended: %s", code)
	}
	if err := put(a.at(t, two, nodes[1], 8, td.Hosting)); err != nil {
		t.Fatal(err)
	}
	want("b")
	// Another TD: hosts of the old one drop out.
	three := a.grant(t, 12, "Weather 2", nodes...)
	if err := put(a.at(t, three, nodes[0], 9, td.Hosting)); err != nil {
		t.Fatal(err)
	}
	want("a")
	if s := d.Signed(a.keys(nodes[1])[0]); s == nil {
		t.Error("a peer that asks for what was announced before gets nothing")
	}
	// The owner withdraws the Thing; only a later grant brings it back.
	if err := put(described(t, a.tombstone(t, 12))); interact.AsError(err).Code != interact.RolledBack {
		t.Errorf("a withdrawal with the number of a grant: %v", err)
	}
	if err := put(described(t, a.tombstone(t, 13))); err != nil {
		t.Fatal(err)
	}
	if len(set) != 1 || set[td.Key(a.key.DID(), a.id)] != 13 {
		t.Errorf("carried: %v", set)
	}
	if code := interact.AsError(put(a.at(t, three, nodes[0], 10, td.Hosting))).Code; code != interact.RolledBack {
		t.Errorf("a host of a withdrawn Thing: %s", code)
	}
	if err := put(a.at(t, a.grant(t, 14, "Weather 2", nodes...), nodes[0], 11, td.Hosting)); err != nil {
		t.Fatal(err)
	}
	if keys := slices.Collect(maps.Keys(set)); len(keys) != 1 || keys[0] != a.keys(nodes[0])[0] {
		t.Errorf("%d records are carried", len(keys))
	}
}

// The records of a host expire one by one, and the Thing with the last.
func TestHostsExpire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, nodes := &granted{agent: weather(t, 1)}, []*keystore.Key{didtest.Key(2), didtest.Key(3)}
		set := carried{}
		d := openDirectory(t, Options{OnChange: set.onChange})
		run(t, d)
		g := a.grant(t, 10, "Weather", nodes...)
		for i, n := range nodes {
			if _, err := d.put(a.at(t, g, n, 5, td.Hosting), received); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				time.Sleep(30 * time.Minute)
			}
		}
		for _, want := range []string{"ab", "b", "-"} {
			got := hostsOf(d, a, nodes)
			d.mu.RLock()
			if n := len(set); got != want || n != len(strings.Trim(want, "-")) {
				t.Errorf("got %q with %d records, want %q", got, n, want)
			}
			d.mu.RUnlock()
			time.Sleep(31 * time.Minute)
			synctest.Wait()
		}
		// The number of the grant is kept as long as an older grant may be valid.
		older := a.grant(t, 9, "Weather", nodes...)
		time.Sleep(6 * 24 * time.Hour)
		if _, err := d.put(a.at(t, older, nodes[0], 9, td.Hosting), received); interact.AsError(err).Code != interact.RolledBack {
			t.Errorf("an older grant: %v", err)
		}
		time.Sleep(25 * time.Hour)
		synctest.Wait()
		if n := len(d.entries) + len(d.hostKeys); n != 0 {
			t.Errorf("%d entries are left", n)
		}
	})
}

// All hosts are there after a restart, and what was newer than a grant still is.
func TestHostsSurviveARestart(t *testing.T) {
	t.Parallel()
	store := memory()
	a, nodes := &granted{agent: weather(t, 1)}, []*keystore.Key{didtest.Key(2), didtest.Key(3), didtest.Key(4)}
	d := openDirectory(t, Options{Store: store})
	old := a.at(t, a.grant(t, 9, "Weather", nodes[2]), nodes[2], 1, td.Hosting)
	g := a.grant(t, 10, "Weather", nodes[:2]...)
	for _, n := range nodes[:2] {
		if _, err := d.put(a.at(t, g, n, 5, td.Hosting), received); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	again := openDirectory(t, Options{Store: store})
	if got := hostsOf(again, a, nodes); got != "ab" || again.Stats().Corrupt != 0 {
		t.Errorf("got %q, %+v", got, again.Stats())
	}
	if _, err := again.put(old, received); interact.AsError(err).Code != interact.RolledBack {
		t.Errorf("a removed host after a restart: %v", err)
	}
	if n := again.store.Len(); n != 0 {
		t.Errorf("%d entries would be written again", n)
	}
}

// Nodes that have received the same records in any order know the same hosts, and carry the same records.
func TestHostsConverge(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	a := &granted{agent: weather(t, 1)}
	var nodes []*keystore.Key
	for i := range 5 {
		nodes = append(nodes, didtest.Key(2+i))
	}
	var all []*td.Description
	for number := range uint64(6) {
		some := slices.Clone(nodes)
		random.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
		title := "Weather"
		if number > 3 {
			title = "Weather 2"
		}
		g := a.grant(t, 10+number, title, some[:2+random.IntN(3)]...)
		for i, n := range nodes {
			if g.Names(n.DID()) && (random.IntN(3) > 0 || number == 5) {
				all = append(all, a.at(t, g, n, 1+number*8+uint64(i), []td.HostState{td.Hosting, td.Hosting, td.Draining, td.Ended}[random.IntN(4)]))
			}
		}
	}
	want := ""
	for range 20 {
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		set := carried{}
		d := openDirectory(t, Options{OnChange: set.onChange})
		for range 2 { // what is refused until a newer grant is known comes again
			for _, desc := range all {
				_, _ = d.put(desc, received)
			}
		}
		var keys []string
		for key, seq := range set {
			keys = append(keys, fmt.Sprintf("%x:%d", key[:4], seq))
		}
		slices.Sort(keys)
		got := hostsOf(d, a, nodes) + " " + strings.Join(keys, " ")
		if want == "" {
			want = got
		}
		if got != want {
			t.Fatalf("got %s, another order %s", got, want)
		}
	}
}

// A node that was named, and hosts nothing, is not known as a host: nobody dials it.
func TestNamedNodesAreNoHosts(t *testing.T) {
	t.Parallel()
	a, host, victim := &granted{agent: weather(t, 1)}, didtest.Key(2), didtest.Key(3)
	d := openDirectory(t, Options{})
	if _, err := d.put(a.at(t, a.grant(t, 1, "Weather", host, victim), host, 1, td.Hosting), received); err != nil {
		t.Fatal(err)
	}
	if !d.Hosts(host.DID()) || d.Hosts(victim.DID()) {
		t.Error("a node that has signed nothing counts as a host")
	}
}

// Nodes that reject unknown owners accept a Thing by its host, and the withdrawal by its owner; a rejected host is not accepted.
func TestHostsAreAdmitted(t *testing.T) {
	t.Parallel()
	a, host, other := &granted{agent: weather(t, 1)}, didtest.Key(2), didtest.Key(3)
	d := openDirectory(t, Options{Admits: func(id did.DID) error {
		if id != host.DID() {
			return fmt.Errorf("%s is rejected", id.Short())
		}
		return nil
	}})
	g := a.grant(t, 1, "Weather", host, other)
	if _, err := d.put(described(t, a.tombstone(t, 9)), received); err == nil {
		t.Error("a record of an unknown owner is accepted")
	}
	if _, err := d.put(a.at(t, g, other, 1, td.Hosting), received); err == nil {
		t.Error("a rejected host is accepted")
	}
	if _, err := d.put(a.at(t, g, host, 1, td.Hosting), received); err != nil {
		t.Error(err)
	}
	if _, err := d.put(described(t, a.tombstone(t, 9)), received); err != nil || hostsOf(d, a, []*keystore.Key{host}) != "-" {
		t.Errorf("the withdrawal: %v", err)
	}
}

// A node that is refused, for example because its key was replaced and revoked, may end its hosting.
func TestRefusedHostsMayEnd(t *testing.T) {
	t.Parallel()
	a, host, other := &granted{agent: weather(t, 1)}, didtest.Key(2), didtest.Key(3)
	keys, revoked := []*keystore.Key{host, other}, false
	d := openDirectory(t, Options{Admits: func(id did.DID) error {
		if revoked && id == host.DID() {
			return fmt.Errorf("%s is revoked", id.Short())
		}
		return nil
	}})
	g := a.grant(t, 1, "Weather", host, other)
	for _, h := range keys {
		if _, err := d.put(a.at(t, g, h, 1, td.Hosting), received); err != nil {
			t.Fatal(err)
		}
	}
	both := hostsOf(d, a, keys)
	revoked = true
	if _, err := d.put(a.at(t, g, host, 2, td.Hosting), received); err == nil || hostsOf(d, a, keys) != both {
		t.Errorf("a new record of a revoked host: %v, %s", err, hostsOf(d, a, keys))
	}
	if _, err := d.put(a.at(t, g, host, 3, td.Ended), received); err != nil || hostsOf(d, a, keys) == both {
		t.Errorf("the end of a revoked host: %v, %s", err, hostsOf(d, a, keys))
	}
	for _, state := range []td.HostState{td.Hosting, td.Ended} {
		if _, err := d.put(a.at(t, g, host, 4, state), received); err == nil {
			t.Errorf("a record in state %v of a revoked host that has ended was accepted", state)
		}
	}
}

// Restricted records of hosts come from their hosts only.
func TestRestrictedHosts(t *testing.T) {
	t.Parallel()
	a, host, other := &granted{agent: weather(t, 1)}, didtest.Key(2), didtest.Key(3)
	thing, err := td.Complete([]byte(strings.Replace(string(a.json()), `{`, `{"lmosd:visibility":"organization",`, 1)), a.key.DID())
	if err != nil {
		t.Fatal(err)
	}
	g, raw, err := td.SignGrant(thing, a.key, td.GrantLease{Number: 1, Now: time.Now(), Lifetime: time.Hour, Nodes: []did.DID{host.DID()}})
	if err != nil {
		t.Fatal(err)
	}
	a.tds = map[string][]byte{g.Title: raw}
	set := carried{}
	d := openDirectory(t, Options{OnChange: set.onChange})
	s := a.at(t, g, host, 1, td.Hosting).Signed
	if err := d.IngestRestricted(t.Context(), s, other.DID()); err == nil {
		t.Error("accepted from another node")
	}
	if err := d.IngestRestricted(t.Context(), s, host.DID()); err != nil || hostsOf(d, a, []*keystore.Key{host}) != "a" {
		t.Errorf("%v", err)
	}
	if len(set) != 0 || d.Signed(a.keys(host)[0]) != nil {
		t.Error("a restricted record is given out")
	}
}
