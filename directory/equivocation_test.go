package directory

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory/persist"
	"github.com/lmosd/lmosd/internal/cbor"
	"github.com/lmosd/lmosd/td"
)

// Both records of an equivocation are kept, and can be verified by others.
func TestEquivocationsAreEvidence(t *testing.T) {
	t.Parallel()
	a := weather(t, 1)
	one := a.signed(t, 7)
	a.title = "Weather Impostor"
	two := a.signed(t, 7)
	var all [2]Equivocation
	for i, order := range [][]*td.Signed{{one, two}, {two, one, two, two}} {
		d := openDirectory(t, Options{})
		for _, s := range order {
			_, _ = d.Add(described(t, s))
		}
		if n := len(d.Equivocations()); n != 1 {
			t.Fatalf("got %d equivocations, want 1", n)
		}
		all[i] = d.Equivocations()[0]
		if f, ok := d.Equivocation(a.key.DID(), a.id); !ok || f.Seq != 7 {
			t.Errorf("the equivocation of the Thing is %+v", f)
		}
		if _, ok := d.Equivocation(a.key.DID(), "urn:example:other"); ok {
			t.Error("another Thing of the owner has an equivocation")
		}
		kept, err := d.Get(t.Context(), a.id)
		if err != nil || string(kept.Record.WithoutTD()) != string(all[i].Records[0]) {
			t.Errorf("the first record is not in force, %v", err)
		}
	}
	for i := range 2 {
		r, err := td.NewVerifier(did.Keys()).Record(all[0].Records[i], time.Now())
		if err != nil || r.Seq != 7 || r.Owner != all[0].Owner || r.Thing != all[0].Thing ||
			string(r.Raw) != string(all[1].Records[i]) {
			t.Errorf("record %d: got %+v, %v", i, r, err)
		}
	}
}

func TestEquivocationsAreBounded(t *testing.T) {
	t.Parallel()
	var fs equivocations
	add := func(owner, thing string) { fs.add(Equivocation{Owner: did.DID(owner), Thing: thing}) }
	add("victim", "a")
	for i := range 1000 {
		add("adversary", fmt.Sprint(i))
		add("adversary", "0") // replaced, not added
	}
	if len(fs) != 1+equivocationsPerOwner || fs[0].Owner != "victim" {
		t.Errorf("got %d, first of %s", len(fs), fs[0].Owner)
	}
	for i := range 1000 {
		add(fmt.Sprint(i), "a")
	}
	if len(fs) != maxEquivocations || fs[len(fs)-1].Owner != "999" {
		t.Errorf("got %d", len(fs))
	}
}

// Evidence survives a restart after its records have expired. Invalid evidence is dropped.
func TestEquivocationsAreStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory()
		d := openDirectory(t, Options{Store: store})
		a, b := weather(t, 1), numbered(t, 2, 2)
		for _, x := range []agent{a, b} {
			other := x
			other.title = "Impostor"
			for _, s := range []*td.Signed{x.signed(t, 7), other.signed(t, 7)} {
				_, _ = d.Add(described(t, s))
			}
			time.Sleep(time.Second)
		}
		want := d.Equivocations()
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(48 * time.Hour)
		again := openDirectory(t, Options{Store: store})
		got := again.Equivocations()
		if len(got) != 2 || again.Stats().Known != 0 {
			t.Fatalf("got %d equivocations, %+v", len(got), again.Stats())
		}
		for i, f := range got {
			if !f.same(&want[i]) || f.Owner != want[i].Owner || f.Thing != want[i].Thing || f.Seen.Unix() != want[i].Seen.Unix() {
				t.Errorf("equivocation %d: got %+v, want %+v", i, f, want[i])
			}
		}
		for name, s := range map[string]savedEquivocation{
			"one record twice": {want[0].Seen.Unix(), want[0].Records[0], want[0].Records[0]},
			"in reverse order": {want[0].Seen.Unix(), want[0].Records[1], want[0].Records[0]},
			"of two Things":    {want[0].Seen.Unix(), want[0].Records[0], want[1].Records[1]},
			"of another time":  {1, want[0].Records[0], want[0].Records[1]},
			"nonsense":         {want[0].Seen.Unix(), []byte("x"), nil},
		} {
			raw, err := cbor.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			if err := store.Put(t.Context(), persist.Equivocations.Key(td.Key(want[0].Owner, want[0].Thing)), raw); err != nil {
				t.Fatal(err)
			}
			last := openDirectory(t, Options{Store: store})
			if n, corrupt := len(last.Equivocations()), last.Stats().Corrupt; n != 1 || corrupt != 1 {
				t.Errorf("%s: %d equivocations, %d corrupt", name, n, corrupt)
			}
		}
	})
}

// A displaced equivocation is deleted from the store, and a known one is not written again.
func TestStoredEquivocationsAreBounded(t *testing.T) {
	t.Parallel()
	var fs equivocations
	for i := range maxEquivocations {
		fs.add(Equivocation{Owner: did.DID(fmt.Sprint(i)), Seq: 1})
	}
	if got := fs.add(Equivocation{Owner: "7", Seq: 1}); len(got) != 0 {
		t.Errorf("the same equivocation: %d would be written", len(got))
	}
	if got := fs.add(Equivocation{Owner: "7", Seq: 2}); len(got) != 1 {
		t.Errorf("a newer one: %d would be written", len(got))
	}
	got := fs.add(Equivocation{Owner: "new"})
	if len(got) != 2 || got[1] != td.Key("0", "") || fs.saved(got[0]) == nil || fs.saved(got[1]) != nil {
		t.Errorf("one more: %d would be written", len(got))
	}
}
