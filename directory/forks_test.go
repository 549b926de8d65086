package directory

import (
	"fmt"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// Both records of a fork are kept, and anybody can verify them.
func TestForksAreEvidence(t *testing.T) {
	t.Parallel()
	a := weather(t, 1)
	one := a.signed(t, 7)
	a.title = "Weather Impostor"
	two := a.signed(t, 7)
	var all [2]Fork
	for i, order := range [][]*td.Signed{{one, two}, {two, one, two, two}} {
		d := openDirectory(t, Options{})
		for _, s := range order {
			_, _ = d.Add(described(t, s))
		}
		if n := len(d.Forks()); n != 1 {
			t.Fatalf("got %d forks, want 1", n)
		}
		all[i] = d.Forks()[0]
		kept, err := d.Get(t.Context(), a.id)
		if err != nil || string(kept.Signed.Record) != string(all[i].Records[0]) {
			t.Errorf("the first record is not the one that counts, %v", err)
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

func TestForksAreBounded(t *testing.T) {
	t.Parallel()
	var fs forks
	add := func(owner, thing string) { fs.add(Fork{Owner: did.DID(owner), Thing: thing}) }
	add("victim", "a")
	for i := range 1000 {
		add("liar", fmt.Sprint(i))
		add("liar", "0") // replaced, not added
	}
	if len(fs) != 1+forksPerOwner || fs[0].Owner != "victim" {
		t.Errorf("got %d, first of %s", len(fs), fs[0].Owner)
	}
	for i := range 1000 {
		add(fmt.Sprint(i), "a")
	}
	if len(fs) != maxForks || fs[len(fs)-1].Owner != "999" {
		t.Errorf("got %d", len(fs))
	}
}
