package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"
	dssync "github.com/ipfs/go-datastore/sync"

	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

// A faulty store fails with err, if that is set.
type faulty struct {
	ds.Batching
	err error
}

func (f *faulty) Put(ctx context.Context, k ds.Key, b []byte) error {
	if f.err != nil {
		return f.err
	}
	return f.Batching.Put(ctx, k, b)
}

func (f *faulty) Delete(ctx context.Context, k ds.Key) error {
	if f.err != nil {
		return f.err
	}
	return f.Batching.Delete(ctx, k)
}

func (f *faulty) Query(ctx context.Context, q query.Query) (query.Results, error) {
	if f.err != nil {
		return nil, f.err
	}
	return f.Batching.Query(ctx, q)
}

// A desk is offers with a directory that takes everything.
type desk struct {
	*offers
	t     testing.TB
	disk  *faulty
	deny  error // what the directory says, if not nil
	mu    sync.Mutex
	added []*td.Description // owned by mu
}

func newDesk(t testing.TB) *desk {
	t.Helper()
	return deskOver(t, newKey(t), dssync.MutexWrap(ds.NewMapDatastore()))
}

// deskOver is a desk of a node that starts with what the store has; load is up to the test.
func deskOver(t testing.TB, key *keystore.Key, store ds.Batching) *desk {
	t.Helper()
	d := &desk{t: t, disk: &faulty{Batching: store}}
	d.offers = newOffers(key, d.disk, td.NewVerifier(nil), time.Hour)
	d.hosts = func() []td.Host { return []td.Host{{Node: key.DID(), Addrs: []string{"/ip4/192.0.2.1/tcp/4667"}}} }
	d.bind = func(*td.Description, interact.Thing) interact.Thing { return agentThing{} }
	d.failed = func(err error) error { return storeError("/data/store", err) }
	d.offers.add = d.take
	return d
}

// take stands in for the directory. It sees that what is announced was stored before.
func (d *desk) take(desc *td.Description) (bool, error) {
	b, err := d.disk.Get(context.Background(), d.storeKey(desc.Record.Thing))
	if of := d.get(desc.Record.Thing); of == nil || of.agent == nil {
		var stored struct{ Seq uint64 }
		if err = errors.Join(err, json.Unmarshal(b, &stored)); err != nil || stored.Seq != desc.Record.Seq {
			d.t.Errorf("seq %d of %s was announced when the store had seq %d (%v)", desc.Record.Seq, desc.Record.Thing, stored.Seq, err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.added = append(d.added, desc)
	return true, d.deny
}

func (d *desk) announced() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.added)
}

// publish publishes a tool.
func (d *desk) publish(title, id string) *offer {
	d.t.Helper()
	of, _, err := d.offers.publish(d.t.Context(), tool(title, id), nil, tdd.Registration{})
	if err != nil {
		d.t.Fatal(err)
	}
	return of
}

func (d *desk) withdraw(thing string) *offer {
	d.t.Helper()
	of, err := d.offers.withdraw(d.t.Context(), thing)
	if err != nil {
		d.t.Fatal(err)
	}
	return of
}

// restart returns the desk of the next process at the time now.
func (d *desk) restart(now time.Time) *desk {
	d.t.Helper()
	next := deskOver(d.t, d.signer.(*keystore.Key), d.disk.Batching)
	if err := next.load(d.t.Context(), now); err != nil {
		d.t.Fatal(err)
	}
	return next
}

// agentThing is what an agent is bound to.
type agentThing struct{ interact.Thing }

func newKey(t testing.TB) *keystore.Key {
	t.Helper()
	key, err := keystore.New()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestPublishAgainRaisesTheSeq(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	first, created, err := d.offers.publish(t.Context(), tool("Echo", "urn:x:echo"), nil, tdd.Registration{})
	if err != nil || !created {
		t.Fatalf("first: created %v, %v; want it created", created, err)
	}
	again, created, err := d.offers.publish(t.Context(), tool("Echo 2", "urn:x:echo"), nil, tdd.Registration{})
	if err != nil || created {
		t.Fatalf("again: created %v, %v; want it replaced", created, err)
	}
	if again.Seq <= first.Seq {
		t.Errorf("seq went from %d to %d", first.Seq, again.Seq)
	}
	if d.count() != 1 || d.get("urn:x:echo") != again {
		t.Errorf("%d offers, the thing's is %+v; want the last one", d.count(), d.get("urn:x:echo"))
	}
	if n := d.announced(); n != 2 {
		t.Errorf("the directory was told %d times, want 2", n)
	}
}

func TestAThingWithoutAnIDGetsOne(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	of := d.publish("Weather Agent", "")
	if want := "urn:lmos:" + string(d.signer.DID()) + ":weather-agent"; of.Thing != want || of.desc.ID != want {
		t.Errorf("got the id %s, want %s", of.Thing, want)
	}
	if again := d.publish("Weather Agent", ""); again.Thing != of.Thing || d.count() != 1 {
		t.Errorf("the same TD again is %s, want the same thing", again.Thing)
	}
}

func TestWhatCannotBePublished(t *testing.T) {
	t.Parallel()
	other := newKey(t).DID()
	for name, c := range map[string]struct {
		raw  string
		want interact.Code
	}{
		"no JSON":          {`{"title":`, interact.NotJSON},
		"a duplicate name": {`{"title":"a","title":"b"}`, interact.NotJSON},
		"no TD":            {`{"title":"a"}`, interact.BadTD},
		"no forms":         {strings.ReplaceAll(string(tool("a", "")), "forms", "shapes"), interact.BadTD},
		"too large":        {string(tool("a", "")[:20]) + strings.Repeat(" ", td.MaxTD) + string(tool("a", "")[20:]), interact.TooLarge},
		"another's id":     {string(tool("a", "urn:lmos:"+string(other)+":a")), interact.BadSignature},
		"a long capability": {strings.ReplaceAll(string(tool("a", "")), "urn:example:tool:echo", strings.Repeat("x", 10_000)),
			interact.BadTD},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t)
			_, _, err := d.offers.publish(t.Context(), []byte(c.raw), nil, tdd.Registration{})
			wantCode(t, interact.AsError(err), c.want)
			if d.count() != 0 || d.announced() != 0 {
				t.Errorf("%d offers, %d announced; want none", d.count(), d.announced())
			}
		})
	}
}

func TestWithdrawalBuriesTheThing(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	of := d.publish("Echo", "urn:x:echo")
	grave := d.withdraw("urn:x:echo")
	if grave.Seq <= of.Seq || grave.Withdrawn.IsZero() || d.count() != 0 {
		t.Errorf("got %+v with %d offers left, want a newer tombstone and none", grave, d.count())
	}
	r, err := d.verify.Record(grave.Signed.Record, time.Now())
	if err != nil || r.Kind != td.KindTombstone || len(r.Capabilities) != len(of.desc.Record.Capabilities) {
		t.Errorf("the record is %+v, %v; want a tombstone for those who listened for the thing", r, err)
	}
	if _, err := d.Locate(t.Context(), "urn:x:echo"); codeOf(err) != interact.Withdrawn {
		t.Errorf("asking for it gives %v, want %v", err, interact.Withdrawn)
	}
	if again := d.withdraw("urn:x:echo"); again != grave {
		t.Errorf("withdrawn twice: %+v, want the same tombstone", again)
	}
	back, created, err := d.offers.publish(t.Context(), tool("Echo", "urn:x:echo"), nil, tdd.Registration{})
	if err != nil || !created || back.Seq <= grave.Seq {
		t.Errorf("published again: created %v, seq %d after %d, %v", created, back.Seq, grave.Seq, err)
	}
}

func TestRenewalSaysThatTheHostLives(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		of := d.publish("Echo", "urn:x:echo")
		time.Sleep(50 * time.Minute)
		next, err := d.renew(t.Context(), "urn:x:echo")
		if err != nil {
			t.Fatal(err)
		}
		if next.Seq <= of.Seq || !next.desc.Record.Expires.Equal(of.desc.Record.Expires.Add(50*time.Minute)) {
			t.Errorf("seq %d expires %v, after seq %d expires %v", next.Seq, next.desc.Record.Expires, of.Seq, of.desc.Record.Expires)
		}
		if string(next.Signed.TD) != string(of.Signed.TD) || next.bound != of.bound {
			t.Error("a renewal changed the TD or the agent")
		}
	})
}

func TestAClockThatWasWrongHarmsNothing(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ahead := time.Now().Add(1000 * time.Hour)
	parsed, err := td.Complete(tool("Echo", "urn:x:echo"), d.signer.DID())
	if err != nil {
		t.Fatal(err)
	}
	for _, agent := range []interact.Thing{nil, echo} {
		wrong, err := d.sign(t.Context(), parsed, agent, uint64(ahead.UnixMilli()), ahead)
		if err == nil {
			err = d.keep(t.Context(), wrong)
		}
		if err != nil {
			t.Fatal(err)
		}
		next, err := d.renew(t.Context(), "urn:x:echo")
		if err != nil {
			t.Fatal(err)
		}
		if next.Seq <= wrong.Seq || (next.agent == nil) != (wrong.agent == nil) || !next.desc.ProofCreated.Before(ahead) || next.desc.Title != "Echo" {
			t.Errorf("got %+v; want it signed anew with a seq after %d", next, wrong.Seq)
		}
		if a, b := keysOf(t, next.Signed.TD), keysOf(t, wrong.Signed.TD); a != b {
			t.Errorf("the members are %s, were %s", a, b)
		}
	}
	if _, err := unproved([]byte("garbage")); err == nil {
		t.Error("garbage was taken")
	}
}

// keysOf returns the names of the members of a JSON object, in order.
func keysOf(t testing.TB, raw []byte) string {
	t.Helper()
	members, err := jcs.Members(raw)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range members {
		names = append(names, m.Name)
	}
	return strings.Join(names, " ")
}

func TestATombstoneTravelsAsItIsUntilItIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		d.publish("Echo", "urn:x:echo")
		grave := d.withdraw("urn:x:echo")
		time.Sleep(24 * time.Hour)
		if got, err := d.renew(t.Context(), "urn:x:echo"); got != grave || err != nil {
			t.Errorf("got %+v, %v; want the same tombstone", got, err)
		}
		time.Sleep(buriedFor)
		if got, err := d.renew(t.Context(), "urn:x:echo"); got != nil || err != nil {
			t.Errorf("got %+v, %v; want nothing to tell", got, err)
		}
		if has, err := d.disk.Has(t.Context(), d.storeKey("urn:x:echo")); has || err != nil {
			t.Errorf("the store has it still: %v, %v", has, err)
		}
		if got, err := d.renew(t.Context(), "urn:x:never"); got != nil || err != nil {
			t.Errorf("of what never was: got %+v, %v; want nothing", got, err)
		}
	})
}

func TestAnAgentInThisProcessIsNotStored(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	of, _, err := d.offers.publish(t.Context(), tool("Echo", "urn:x:echo"), echo, tdd.Registration{})
	if err != nil {
		t.Fatal(err)
	}
	if next, err := d.renew(t.Context(), of.Thing); err != nil || next.agent == nil {
		t.Errorf("renewed: %+v, %v; want the agent in this process", next, err)
	}
	next := d.restart(time.Now())
	if next.count() != 0 || next.orphans[of.Thing] == nil {
		t.Errorf("after a restart %d things are offered and the orphans are %v, want the agent to be one: its process is gone", next.count(), next.orphans)
	}
	if back, err := next.withdrawOrphan(t.Context(), of.Thing); err != nil || back.desc != nil || !slices.Equal(next.added[0].Record.Capabilities, of.desc.Record.Capabilities) {
		t.Errorf("withdrawn: %+v, %v; want a tombstone in the shards of the agent", back, err)
	}
	if last := next.restart(time.Now()); len(last.orphans) != 0 || last.get(of.Thing) == nil {
		t.Errorf("after another restart: %v, want the tombstone", last.orphans)
	}
	d.withdraw(of.Thing)
	if next := d.restart(time.Now()); next.get(of.Thing) == nil {
		t.Error("after a restart the tombstone is gone; the mesh may know the thing still")
	}
}

func TestNothingIsAnnouncedThatWasNotStored(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	of := d.publish("Echo", "urn:x:echo")
	told := d.announced()
	d.disk.err = errors.New("the cable is out")
	for name, do := range map[string]func() error{
		"a new thing": func() error {
			_, _, err := d.offers.publish(t.Context(), tool("New", "urn:x:new"), nil, tdd.Registration{})
			return err
		},
		"a new TD": func() error {
			_, _, err := d.offers.publish(t.Context(), tool("Echo 2", "urn:x:echo"), nil, tdd.Registration{})
			return err
		},
		"a withdrawal": func() error { _, err := d.offers.withdraw(t.Context(), "urn:x:echo"); return err },
		"a renewal":    func() error { _, err := d.renew(t.Context(), "urn:x:echo"); return err },
	} {
		e := wantCode(t, do(), interact.StoreCorrupt)
		if !strings.Contains(e.Error(), "the cable is out") || !strings.Contains(e.Error(), "/data/store") {
			t.Errorf("%s: %v does not say what failed where", name, e)
		}
	}
	if d.announced() != told || d.count() != 1 || d.get("urn:x:echo") != of {
		t.Errorf("%d more were announced, %d are offered, the thing's is %+v; want what was stored", d.announced()-told, d.count(),
			d.get("urn:x:echo"))
	}
}

func TestWhatTheDirectoryRefusesIsAnError(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.deny = interact.Errorf(interact.RolledBack, "lmosd show it", "a newer one is known")
	if _, _, err := d.offers.publish(t.Context(), tool("Echo", "urn:x:echo"), nil, tdd.Registration{}); codeOf(err) != interact.RolledBack {
		t.Errorf("publish gives %v, want %v", err, interact.RolledBack)
	}
	if _, err := d.offers.withdraw(t.Context(), "urn:x:echo"); codeOf(err) != interact.RolledBack {
		t.Errorf("withdraw gives %v, want %v", err, interact.RolledBack)
	}
}

func TestTheNextSeqIsPastAllThatIsKnown(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_000_000)
	for name, c := range map[string]struct {
		old         *offer
		known, want uint64
	}{
		"nothing before":                                        {want: 1_000_000},
		"an older one":                                          {old: &offer{Seq: 7}, want: 1_000_000},
		"one of this millisecond":                               {old: &offer{Seq: 1_000_000}, want: 1_000_001},
		"one of a clock that ran ahead":                         {old: &offer{Seq: 5_000_000}, want: 5_000_001},
		"the mesh knows one of the past":                        {known: 7, want: 1_000_000},
		"the mesh knows one of a lost store with a wrong clock": {known: 9_000_000, old: &offer{Seq: 8_000_000}, want: 9_000_001},
	} {
		d := newDesk(t)
		d.known = func(string) uint64 { return c.known }
		if got := d.nextSeq(c.old, "urn:x:echo", now); got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
}

func TestSeqsRiseWhoeverChangesAThingAtOnce(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.publish("Echo", "urn:x:echo")
	var g sync.WaitGroup
	for i := range 4 {
		g.Go(func() {
			for j := range 25 {
				var err error
				switch (i + j) % 3 {
				case 0:
					_, _, err = d.offers.publish(t.Context(), tool(fmt.Sprintf("Echo %d", i), "urn:x:echo"), nil, tdd.Registration{})
				case 1:
					_, err = d.offers.withdraw(t.Context(), "urn:x:echo")
				case 2:
					_, err = d.renew(t.Context(), "urn:x:echo")
				}
				if err != nil {
					t.Error(err)
				}
				_, _ = d.Locate(t.Context(), "echo-1") // Whether it is there now does not matter.
			}
		})
	}
	g.Wait()
	var last uint64
	for _, desc := range d.added {
		if desc.Record.Seq <= last {
			t.Errorf("seq %d was announced after %d", desc.Record.Seq, last)
		}
		last = desc.Record.Seq
	}
	if of := d.restart(time.Now()).get("urn:x:echo"); of == nil || of.Seq < last {
		t.Errorf("after a restart the thing has %+v, want seq %d at least", of, last)
	}
}

func TestARestartFindsWhatWasOffered(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	kept, gone := d.publish("Echo", "urn:x:echo"), d.publish("Gone", "urn:x:gone")
	grave := d.withdraw(gone.Thing)
	now := time.Now()
	for name, c := range map[string]struct {
		now    time.Time
		buried bool // the tombstone is there
	}{
		"at once":                              {now, true},
		"when the record has expired":          {now.Add(2 * time.Hour), true},
		"when the tombstone is over":           {now.Add(buriedFor + time.Minute), false},
		"with a clock that was set back a day": {now.Add(-24 * time.Hour), true},
	} {
		t.Run(name, func(t *testing.T) {
			next := deskOver(t, d.signer.(*keystore.Key), copyOf(t, d.disk))
			if err := next.load(t.Context(), c.now); err != nil {
				t.Fatal(err)
			}
			of := next.get(kept.Thing)
			if of == nil || of.Seq <= kept.Seq || of.bound == nil {
				t.Fatalf("the offer is %+v, want it with a newer record than %d", of, kept.Seq)
			}
			if !of.desc.Record.Expires.After(c.now) || of.desc.Title != "Echo" {
				t.Errorf("the record expires at %v with the TD %s; want it valid with the same TD", of.desc.Record.Expires, of.Signed.TD)
			}
			if same := string(of.Signed.TD) == string(kept.Signed.TD); same != !c.now.Before(now) {
				t.Errorf("the TD is the same: %v; want it signed anew only if its proof is of the future", same)
			}
			if of := next.get(gone.Thing); (of != nil) != c.buried || of != nil && of.Seq != grave.Seq {
				t.Errorf("the tombstone is %+v, want it kept: %v", of, c.buried)
			}
			if has, err := next.disk.Has(t.Context(), next.storeKey(gone.Thing)); has != c.buried || err != nil {
				t.Errorf("the store has the tombstone: %v, %v; want %v", has, err, c.buried)
			}
		})
	}
}

func copyOf(t testing.TB, from ds.Batching) ds.Batching {
	t.Helper()
	to := dssync.MutexWrap(ds.NewMapDatastore())
	all, err := from.Query(t.Context(), query.Query{})
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	for r := range all.Next() {
		if err := errors.Join(r.Error, to.Put(t.Context(), ds.RawKey(r.Key), r.Value)); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

func TestADamagedEntryIsNotPassedOver(t *testing.T) {
	t.Parallel()
	other := newDesk(t)
	others, err := json.Marshal(other.publish("Echo", "urn:x:echo"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ entry, why string }{
		"no JSON":                 {"garbage", "invalid character"},
		"cut off":                 {string(others[:len(others)/2]), "unexpected end"},
		"empty":                   {"{}", "not complete"},
		"no record":               {`{"thing":"urn:x:echo","seq":1,"signed":{}}`, "not complete"},
		"no TD":                   {`{"thing":"urn:x:echo","seq":1,"signed":{"Record":"aGVsbG8="}}`, "not complete"},
		"a TD that is none":       {`{"thing":"urn:x:echo","seq":1,"signed":{"Record":"aGVsbG8=","TD":"aGVsbG8="}}`, "read the TD"},
		"another node's, by name": {string(others), ""},
		"another node's TD":       {string(others), "signed by another key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t)
			if err := d.disk.Put(t.Context(), d.storeKey("urn:x:echo"), []byte(c.entry)); err != nil {
				t.Fatal(err)
			}
			e := wantCode(t, d.load(t.Context(), time.Now()), interact.StoreCorrupt)
			if !strings.Contains(e.Error(), c.why) || !strings.Contains(e.Hint, "/data/store") {
				t.Errorf("got %q, hint %q; want what is wrong (%s) and where", e, e.Hint, c.why)
			}
		})
	}
}

func TestAStoreOfAnotherKeyIsRefused(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.publish("Echo", "urn:x:echo")
	next := deskOver(t, newKey(t), d.disk.Batching)
	e := wantCode(t, next.load(t.Context(), time.Now()), interact.StoreCorrupt)
	if !strings.Contains(e.Error(), "identity.pem") {
		t.Errorf("%v does not say that the key was replaced", e)
	}
	d.disk.err = errors.New("no answer")
	wantCode(t, d.load(t.Context(), time.Now()), interact.StoreCorrupt)
}

// Offers are opened again while the node runs, when there is room on its disk: what is published meanwhile is not held against it.
func TestOffersAreOpenedWhileOthersArePublished(t *testing.T) {
	t.Parallel()
	n := start(t, quiet())
	for i := range 40 {
		publish(t, n, tool(fmt.Sprint("Other ", i), fmt.Sprint("urn:other:", i)))
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 50 {
			if err := n.openOffers(); err != nil {
				t.Errorf("open the offers again: %v", err)
				return
			}
		}
	}()
	for i := range 50 {
		if _, err := n.Publish(t.Context(), tool(fmt.Sprint("Echo ", i), "urn:echo")); err != nil {
			t.Error(err)
		}
	}
	<-done
	if of := n.offers.get("urn:echo"); of == nil || of.desc.Name() != "echo-49" {
		t.Errorf("the last publication is not the one in force: %+v", of)
	}
}

// On a full disk an agent whose process did not come back is withdrawn when there is room again.
func TestAnOrphanOnAFullDiskIsWithdrawnLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		of, _, err := d.offers.publish(t.Context(), tool("Echo", "urn:x:echo"), echo, tdd.Registration{})
		if err != nil {
			t.Fatal(err)
		}
		next := d.restart(time.Now())
		next.disk.err = syscall.ENOSPC
		n := &Node{offers: next.offers, log: slog.New(slog.DiscardHandler)}
		ended := make(chan error, 1)
		go func() { ended <- n.endOrphans(t.Context()) }()
		time.Sleep(10 * grace)
		if synctest.Wait(); next.get(of.Thing) != nil {
			t.Fatal("it was withdrawn without room")
		}
		next.disk.err = nil
		time.Sleep(grace)
		synctest.Wait()
		if grave := next.get(of.Thing); grave == nil || grave.Withdrawn.IsZero() {
			t.Errorf("with room again it is %+v; want it withdrawn", grave)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
