package directory

import (
	"testing"

	"github.com/lmosd/lmosd/did/didtest"
)

func TestSeqIsTheHighestThatWasSeen(t *testing.T) {
	t.Parallel()
	a := weather(t, 1)
	d := filled(t, Options{}, described(t, a.signed(t, 7)))
	owner := a.key.DID()
	if got := d.Seq(owner, a.id); got != 7 {
		t.Errorf("got %d, want 7", got)
	}
	if got := d.Seq(owner, "urn:example:other"); got != 0 {
		t.Errorf("of an unknown Thing: got %d, want 0", got)
	}
	if got := d.Seq(didtest.Key(2).DID(), a.id); got != 0 {
		t.Errorf("of another owner's thing of that id: got %d, want 0", got)
	}
	if _, err := d.Add(described(t, a.tombstone(t, 9))); err != nil {
		t.Fatal(err)
	}
	if got := d.Seq(owner, a.id); got != 9 {
		t.Errorf("of a withdrawn thing: got %d, want 9", got)
	}
}
