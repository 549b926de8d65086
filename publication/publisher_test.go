package publication

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

func TestPublishAgainRaisesTheSeq(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	first, err := d.Publisher.publish(t.Context(), tool("Echo", "urn:x:echo"), nil, Registration{})
	if err != nil || !first.Created {
		t.Fatalf("first: %+v, %v; want it created", first, err)
	}
	again, err := d.Publisher.publish(t.Context(), tool("Echo 2", "urn:x:echo"), nil, Registration{})
	if err != nil || again.Created {
		t.Fatalf("again: %+v, %v; want it replaced", again, err)
	}
	if again.Seq <= first.Seq {
		t.Errorf("seq went from %d to %d", first.Seq, again.Seq)
	}
	if d.Count(t.Context()) != 1 || d.Get("urn:x:echo") != again.Publication {
		t.Errorf("%d offers, the thing's is %+v; want the last one", d.Count(t.Context()), d.Get("urn:x:echo"))
	}
	if n := d.dir.count(); n != 2 {
		t.Errorf("the directory was told %d times, want 2", n)
	}
}

// While one Thing waits for the disk, another one is published.
func TestPublicationsAreIndependent(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	began, goOn := d.disk.hold()
	var all sync.WaitGroup
	for _, id := range []string{"urn:x:a", "urn:x:b"} {
		all.Go(func() {
			if _, err := d.Publisher.publish(t.Context(), tool("Echo", id), nil, Registration{}); err != nil {
				t.Error(err)
			}
		})
	}
	<-began
	<-began // does not come while the changes of Things wait for each other
	close(goOn)
	all.Wait()
	if d.Count(t.Context()) != 2 {
		t.Errorf("%d Things", d.Count(t.Context()))
	}
}

func TestAThingWithoutAnIDGetsOne(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	of := d.publish("Weather Agent", "")
	if want := "urn:lmos:" + string(d.o.Signer.DID()) + ":weather-agent"; of.Thing != want || of.Description.ID != want {
		t.Errorf("got the id %s, want %s", of.Thing, want)
	}
	if again := d.publish("Weather Agent", ""); again.Thing != of.Thing || d.Count(t.Context()) != 1 {
		t.Errorf("the same TD again is %s, want the same thing", again.Thing)
	}
}

func TestInvalidPublications(t *testing.T) {
	t.Parallel()
	other := didtest.NewKey().DID()
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
			d := newFixture(t)
			_, err := d.Publisher.publish(t.Context(), []byte(c.raw), nil, Registration{})
			wantCode(t, interact.AsError(err), c.want)
			if d.Count(t.Context()) != 0 || d.dir.count() != 0 {
				t.Errorf("%d offers, %d announced; want none", d.Count(t.Context()), d.dir.count())
			}
		})
	}
}

func TestWithdrawalBuriesTheThing(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	of := d.publish("Echo", "urn:x:echo")
	grave := d.withdraw("urn:x:echo")
	if grave.Seq <= of.Seq || grave.Withdrawn.IsZero() || d.Count(t.Context()) != 0 {
		t.Errorf("got %+v with %d offers left, want a newer tombstone and none", grave, d.Count(t.Context()))
	}
	r, err := d.o.Verifier.Record(grave.Signed.Record, time.Now())
	if err != nil || r.Kind != td.KindTombstone || len(r.Capabilities) != len(of.Description.Record.Capabilities) {
		t.Errorf("the record is %+v, %v; want a tombstone for those who listened for the thing", r, err)
	}
	if _, err := d.Locate(t.Context(), "urn:x:echo"); codeOf(err) != interact.Withdrawn {
		t.Errorf("asking for it gives %v, want %v", err, interact.Withdrawn)
	}
	if again := d.withdraw("urn:x:echo"); again != grave {
		t.Errorf("withdrawn twice: %+v, want the same tombstone", again)
	}
	back, err := d.Publisher.publish(t.Context(), tool("Echo", "urn:x:echo"), nil, Registration{})
	if err != nil || !back.Created || back.Seq <= grave.Seq {
		t.Errorf("published again: created %v, seq %d after %d, %v", back.Created, back.Seq, grave.Seq, err)
	}
}

func TestRenewalShowsThatTheHostIsAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newFixture(t)
		of := d.publish("Echo", "urn:x:echo")
		time.Sleep(50 * time.Minute)
		next, err := d.renew(t.Context(), "urn:x:echo")
		if err != nil {
			t.Fatal(err)
		}
		if next.Seq <= of.Seq || !next.Description.Record.Expires.Equal(of.Description.Record.Expires.Add(50*time.Minute)) {
			t.Errorf("seq %d expires %v, after seq %d expires %v", next.Seq, next.Description.Record.Expires, of.Seq, of.Description.Record.Expires)
		}
		if string(next.Signed.TD) != string(of.Signed.TD) || next.Agent != of.Agent {
			t.Error("a renewal changed the TD or the agent")
		}
	})
}

func TestWrongClockIsCorrected(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	ahead := time.Now().Add(1000 * time.Hour)
	parsed, err := td.Complete(tool("Echo", "urn:x:echo"), d.o.Signer.DID())
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
		if next.Seq <= wrong.Seq || (next.handler == nil) != (wrong.handler == nil) || !next.Description.ProofCreated.Before(ahead) || next.Description.Title != "Echo" {
			t.Errorf("got %+v; want it signed anew with a seq after %d", next, wrong.Seq)
		}
		if a, b := keysOf(t, next.Signed.TD), keysOf(t, wrong.Signed.TD); a != b {
			t.Errorf("the members are %s, were %s", a, b)
		}
	}
	if _, err := withoutProof([]byte("garbage")); err == nil {
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

func TestTombstoneIsUnchangedUntilItExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newFixture(t)
		d.publish("Echo", "urn:x:echo")
		grave := d.withdraw("urn:x:echo")
		time.Sleep(24 * time.Hour)
		if got, err := d.renew(t.Context(), "urn:x:echo"); got != grave || err != nil {
			t.Errorf("got %+v, %v; want the same tombstone", got, err)
		}
		time.Sleep(tombstoneLifetime)
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

func TestHowLongWithdrawalsAreAnnounced(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for moved, want := range map[did.DID]time.Duration{"": 25 * time.Hour, didtest.NewKey().DID(): 30 * 24 * time.Hour} {
		p := Publication{Withdrawn: now, Moved: moved}
		if p.hasExpired(now.Add(want-time.Minute)) || !p.hasExpired(now.Add(want+time.Minute)) {
			t.Errorf("moved to %q: want it to expire after %v", moved, want)
		}
	}
}

func TestAnAgentInThisProcessIsNotStored(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	of, err := d.Publisher.publish(t.Context(), tool("Echo", "urn:x:echo"), echo, Registration{})
	if err != nil {
		t.Fatal(err)
	}
	if next, err := d.renew(t.Context(), of.Thing); err != nil || next.handler == nil {
		t.Errorf("renewed: %+v, %v; want the agent in this process", next, err)
	}
	next := d.restart(time.Now())
	if next.Count(t.Context()) != 0 || next.orphans.get(of.Thing) == nil {
		t.Errorf("after a restart %d things are offered and the orphans are %v, want the agent to be one: its process is gone", next.Count(t.Context()), next.orphans.things())
	}
	if back, err := next.withdrawOrphan(t.Context(), of.Thing); err != nil || back.Description != nil || !slices.Equal(next.dir.added[0].Record.Capabilities, of.Description.Record.Capabilities) {
		t.Errorf("withdrawn: %+v, %v; want a tombstone in the shards of the agent", back, err)
	}
	if last := next.restart(time.Now()); len(last.orphans.things()) != 0 || last.Get(of.Thing) == nil {
		t.Errorf("after another restart: %v, want the tombstone", last.orphans.things())
	}
	d.withdraw(of.Thing)
	if next := d.restart(time.Now()); next.Get(of.Thing) == nil {
		t.Error("after a restart the tombstone is gone; the mesh may know the thing still")
	}
}

func TestOnlyStoredRecordsAreAnnounced(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	of := d.publish("Echo", "urn:x:echo")
	told := d.dir.count()
	d.disk.fail(errors.New("the cable is out"))
	for name, do := range map[string]func() error{
		"a new thing": func() error {
			_, err := d.Publisher.publish(t.Context(), tool("New", "urn:x:new"), nil, Registration{})
			return err
		},
		"a new TD": func() error {
			_, err := d.Publisher.publish(t.Context(), tool("Echo 2", "urn:x:echo"), nil, Registration{})
			return err
		},
		"a withdrawal": func() error { _, err := d.end(t.Context(), "urn:x:echo", 0, ""); return err },
		"a renewal":    func() error { _, err := d.renew(t.Context(), "urn:x:echo"); return err },
	} {
		e := wantCode(t, do(), interact.StoreCorrupt)
		if !strings.Contains(e.Error(), "the cable is out") || !strings.Contains(e.Error(), "/data/store") {
			t.Errorf("%s: %v does not say what failed where", name, e)
		}
	}
	if d.dir.count() != told || d.Count(t.Context()) != 1 || d.Get("urn:x:echo") != of {
		t.Errorf("%d more were announced, %d are offered, the thing's is %+v; want what was stored", d.dir.count()-told, d.Count(t.Context()),
			d.Get("urn:x:echo"))
	}
}

func TestRefusalOfTheDirectoryIsAnError(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	d.dir.denyBy(func() error { return interact.Errorf(interact.RolledBack, "lmosd show it", "a newer one is known") })
	if _, err := d.Publisher.publish(t.Context(), tool("Echo", "urn:x:echo"), nil, Registration{}); codeOf(err) != interact.RolledBack {
		t.Errorf("publish gives %v, want %v", err, interact.RolledBack)
	}
	if _, err := d.end(t.Context(), "urn:x:echo", 0, ""); codeOf(err) != interact.RolledBack {
		t.Errorf("withdraw gives %v, want %v", err, interact.RolledBack)
	}
}

func TestNextSeqExceedsAllKnown(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_000_000)
	for name, c := range map[string]struct {
		old         *Publication
		known, want uint64
	}{
		"nothing before":                                        {want: 1_000_000},
		"an older one":                                          {old: &Publication{Seq: 7}, want: 1_000_000},
		"one of this millisecond":                               {old: &Publication{Seq: 1_000_000}, want: 1_000_001},
		"one of a clock that ran ahead":                         {old: &Publication{Seq: 5_000_000}, want: 5_000_001},
		"the mesh knows one of the past":                        {known: 7, want: 1_000_000},
		"the mesh knows one of a lost store with a wrong clock": {known: 9_000_000, old: &Publication{Seq: 8_000_000}, want: 9_000_001},
	} {
		d := newFixture(t)
		d.dir.seq = func(string) uint64 { return c.known }
		if got := d.nextSeq(c.old, "urn:x:echo", now); got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
}

func TestSeqsRiseWithConcurrentChanges(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	d.publish("Echo", "urn:x:echo")
	var g sync.WaitGroup
	for i := range 4 {
		g.Go(func() {
			for j := range 25 {
				var err error
				switch (i + j) % 3 {
				case 0:
					_, err = d.Publisher.publish(t.Context(), tool(fmt.Sprintf("Echo %d", i), "urn:x:echo"), nil, Registration{})
				case 1:
					_, err = d.end(t.Context(), "urn:x:echo", 0, "")
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
	for _, desc := range d.dir.added {
		if desc.Record.Seq <= last {
			t.Errorf("seq %d was announced after %d", desc.Record.Seq, last)
		}
		last = desc.Record.Seq
	}
	if of := d.restart(time.Now()).Get("urn:x:echo"); of == nil || of.Seq < last {
		t.Errorf("after a restart the thing has %+v, want seq %d at least", of, last)
	}
}

func TestRestartRestoresPublications(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	kept, gone := d.publish("Echo", "urn:x:echo"), d.publish("Gone", "urn:x:gone")
	grave := d.withdraw(gone.Thing)
	now := time.Now()
	for name, c := range map[string]struct {
		now    time.Time
		buried bool // the tombstone is there
		host   string
	}{
		"at once":                              {now, true, ""},
		"at another address":                   {now, true, "/ip4/192.0.2.2/tcp/4667"},
		"in the second half of its life":       {now.Add(31 * time.Minute), true, ""},
		"when the record has expired":          {now.Add(2 * time.Hour), true, ""},
		"within the tolerance after its end":   {now.Add(time.Hour + 2*time.Minute), true, ""},
		"when the tombstone is over":           {now.Add(tombstoneLifetime + time.Minute), false, ""},
		"with a clock that was set back a day": {now.Add(-24 * time.Hour), true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			next := fixtureOver(t, d.o.Signer.(*keystore.Key), copyOf(t, d.disk))
			if c.host != "" {
				next.o.Hosts = func() []td.Host { return []td.Host{{Node: next.o.Signer.DID(), Addrs: []string{c.host}}} }
			}
			next.dir.now = c.now
			if err := next.load(t.Context(), c.now); err != nil {
				t.Fatal(err)
			}
			of := next.Get(kept.Thing)
			if good := name == "at once"; of == nil || of.Agent == nil || of.Seq != of.Description.Record.Seq || (of.Seq == kept.Seq) != good || of.Seq < kept.Seq {
				t.Fatalf("the offer is %+v, want it with the record %d: %v, or a newer one", of, kept.Seq, good)
			}
			if c.host != "" && of.Description.Record.Hosts[0].Addrs[0] != c.host {
				t.Errorf("the record has the hosts %v", of.Description.Record.Hosts)
			}
			if stored, err := next.disk.Get(t.Context(), next.storeKey(kept.Thing)); err != nil || !bytes.Contains(stored, fmt.Appendf(nil, `"seq":%d`, of.Seq)) {
				t.Errorf("the store has %s, %v; want seq %d", stored, err, of.Seq)
			}
			if !of.Description.Record.Expires.After(c.now) || of.Description.Title != "Echo" {
				t.Errorf("the record expires at %v with the TD %s; want it valid with the same TD", of.Description.Record.Expires, of.Signed.TD)
			}
			if same := string(of.Signed.TD) == string(kept.Signed.TD); same != !c.now.Before(now) {
				t.Errorf("the TD is the same: %v; want it signed anew only if its proof is of the future", same)
			}
			if of := next.Get(gone.Thing); (of != nil) != c.buried || of != nil && of.Seq != grave.Seq {
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

func TestDamagedEntryIsAnError(t *testing.T) {
	t.Parallel()
	other := newFixture(t)
	others, err := json.Marshal(other.publish("Echo", "urn:x:echo"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ entry, why string }{
		"no JSON":                 {"garbage", "invalid character"},
		"cut off":                 {string(others[:len(others)/2]), "unexpected end"},
		"empty":                   {"{}", "incomplete"},
		"no record":               {`{"thing":"urn:x:echo","seq":1,"signed":{}}`, "incomplete"},
		"no TD":                   {`{"thing":"urn:x:echo","seq":1,"signed":{"Record":"aGVsbG8="}}`, "incomplete"},
		"a TD that is none":       {`{"thing":"urn:x:echo","seq":1,"signed":{"Record":"aGVsbG8=","TD":"aGVsbG8="}}`, "read the TD"},
		"another node's, by name": {string(others), ""},
		"another node's TD":       {string(others), "signed by another key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newFixture(t)
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
	d := newFixture(t)
	d.publish("Echo", "urn:x:echo")
	next := fixtureOver(t, didtest.NewKey(), d.disk.Batching)
	e := wantCode(t, next.load(t.Context(), time.Now()), interact.StoreCorrupt)
	if !strings.Contains(e.Error(), "identity.pem") {
		t.Errorf("%v does not say that the key was replaced", e)
	}
	d.disk.fail(errors.New("no answer"))
	wantCode(t, d.load(t.Context(), time.Now()), interact.StoreCorrupt)
}

// The store is read again while the node runs, when a full disk has room again; concurrent publications are not errors.
func TestPublicationsDuringRestore(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	for i := range 40 {
		d.publish(fmt.Sprint("Other ", i), fmt.Sprint("urn:other:", i))
	}
	var g sync.WaitGroup
	g.Go(func() {
		for range 50 {
			if err := d.Restore(t.Context()); err != nil {
				t.Errorf("restore: %v", err)
				return
			}
		}
	})
	for i := range 50 {
		d.publish(fmt.Sprint("Echo ", i), "urn:echo")
	}
	g.Wait()
	if of := d.Get("urn:echo"); of == nil || of.Description.Name() != "echo-49" {
		t.Errorf("the last publication is not the one in force: %+v", of)
	}
}

// On a full disk an agent whose process did not come back is withdrawn when there is room again.
func TestAnOrphanOnAFullDiskIsWithdrawnLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newFixture(t)
		of, err := d.Publisher.publish(t.Context(), tool("Echo", "urn:x:echo"), echo, Registration{})
		if err != nil {
			t.Fatal(err)
		}
		next := d.restart(time.Now())
		next.disk.fail(syscall.ENOSPC)
		ended := make(chan error, 1)
		go func() { ended <- next.endOrphans(t.Context()) }()
		time.Sleep(10 * Grace)
		if synctest.Wait(); next.Get(of.Thing) != nil {
			t.Fatal("it was withdrawn without room")
		}
		next.disk.fail(nil)
		time.Sleep(Grace)
		synctest.Wait()
		if grave := next.Get(of.Thing); grave == nil || grave.Withdrawn.IsZero() {
			t.Errorf("with room again it is %+v; want it withdrawn", grave)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// The registration of a Thing is stored with it, and kept by renewals and restarts until it is published again.
func TestRegistrations(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	begin := time.Now()
	of, err := d.Publisher.publish(t.Context(), tool("Echo", "urn:x:echo"), nil, Registration{TTL: 600})
	if err != nil {
		t.Fatal(err)
	}
	first, ok := d.Registered(of.Description.Record)
	if !ok || first.Expires.Sub(first.Modified) != 10*time.Minute || first.Created.Before(begin) {
		t.Errorf("got %+v, %v", first, ok)
	}
	if _, err := d.renew(t.Context(), "urn:x:echo"); err != nil {
		t.Fatal(err)
	}
	if got, _ := d.Registered(of.Description.Record); got != first {
		t.Errorf("renewed: %+v, want %+v", got, first)
	}
	later := begin.Add(time.Minute)
	if err := d.extend(t.Context(), "urn:x:echo", first, later); err != nil {
		t.Fatal(err)
	}
	d = d.restart(begin.Add(2 * time.Minute))
	got, _ := d.Registered(of.Description.Record)
	if !got.Expires.Equal(later.Add(10*time.Minute)) || !got.Created.Equal(first.Created) || !got.Modified.Equal(first.Modified) ||
		got.TTL != 600 {
		t.Errorf("after a restart: %+v, first %+v", got, first)
	}
	if again := d.publish("Echo", "urn:x:echo").Registration; !again.Expires.IsZero() || !again.Created.Equal(first.Created) {
		t.Errorf("published anew: %+v", again)
	}
	stranger := *of.Description.Record
	stranger.Owner = didtest.NewKey().DID()
	d.withdraw("urn:x:echo")
	for _, r := range []*td.Record{&stranger, of.Description.Record} {
		if _, ok := d.Registered(r); ok {
			t.Errorf("%s of %s is registered", r.Thing, r.Owner)
		}
	}
	if err := d.extend(t.Context(), "urn:x:echo", first, later); codeOf(err) != interact.Withdrawn {
		t.Errorf("extended after it was withdrawn: %v", err)
	}
}

// A description whose forms lead through the mesh can be changed without its agent: they lead to it as before.
func TestANewDescriptionKeepsTheAgent(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	draft, err := td.Draft([]byte(`{"id":"urn:x:echo","title":"Echo","actions":{"say":{}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		raw   []byte
		agent interact.Thing
		kept  bool
	}{{draft, echo, true}, {bytes.Replace(draft, []byte("Echo"), []byte("Echo 2"), 1), nil, true}, {tool("Echo", "urn:x:echo"), nil, false}} {
		of, err := d.Publisher.publish(t.Context(), c.raw, c.agent, Registration{})
		if err != nil || (of.handler != nil) != c.kept {
			t.Errorf("%s: %v, agent %v", c.raw, err, of.handler)
		}
	}
}

// A Thing that is restored with its old record, because the disk is full, stays restricted.
func TestRestrictedThingStaysRestrictedOnAFullDisk(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	raw := bytes.Replace(tool("Hidden", "urn:x:hidden"), []byte("{"), []byte(`{"lmosd:visibility":"private",`), 1)
	pub, err := d.Publisher.publish(t.Context(), raw, nil, Registration{})
	if err != nil {
		t.Fatal(err)
	}
	next := fixtureOver(t, d.o.Signer.(*keystore.Key), d.disk.Batching)
	next.disk.fail(syscall.ENOSPC)
	if err := next.newLoading(t.Context(), time.Now()).reviveOwn(t.Context(), &Publication{Thing: pub.Thing, Seq: pub.Seq, Signed: pub.Signed}); err != nil {
		t.Fatal(err)
	}
	if p := next.Get(pub.Thing); p == nil || p.Seq != pub.Seq || !p.isRestricted() {
		t.Errorf("got %+v, want it published with its old record, and restricted", p)
	}
}
