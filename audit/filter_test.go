package audit

import (
	"fmt"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
)

func TestFilter(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	line := Line{N: 2, Time: at, Who: "did:key:z6Mk#alice", Org: "did:webvh:x:acme.example", Thing: "urn:x:weather", Verdict: deny, Code: "LMOS-1403"}
	for _, c := range []struct {
		name string
		f    Filter
		line Line
		want bool
	}{
		{"everything", Filter{}, line, true},
		{"the caller", Filter{Who: "alice"}, line, true},
		{"the organization", Filter{Who: "acme"}, line, true},
		{"another caller", Filter{Who: "bob"}, line, false},
		{"another thing", Filter{Thing: "calendar"}, line, false},
		{"the code", Filter{Code: "LMOS-1403", Verdict: deny}, line, true},
		{"another verdict", Filter{Verdict: allow}, line, false},
		{"since its time", Filter{Since: at}, line, true},
		{"since a later time", Filter{Since: at.Add(time.Second)}, line, false},
		{"a checkpoint", Filter{}, Line{Event: EventCheckpoint}, false},
		{"a damaged file", Filter{}, Line{Event: EventFile, Broken: "000001.jsonl:7"}, true},
		{"a file, of all lines", Filter{All: true}, Line{Event: EventFile}, true},
	} {
		if got := c.f.Matches(&c.line); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// The newest lines are selected, each once.
func TestSelect(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := Open(Options{Dir: dir, Signer: testKey(t, 1)})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 9 {
		l.Change(ChangeTrust, fmt.Sprint(i))
	}
	l.Decision(Decision{Who: did.Consumer(did.Loopback, ""), Op: "invoke", Thing: "urn:x:weather"})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	r := NewReader(dir)
	got, err := r.Select(Filter{}, 3)
	if err != nil || len(got) != 3 || got[0].Detail+got[1].Detail != "78" || got[2].Verdict != deny || got[1].Prev != got[0].Hash() {
		t.Errorf("got %+v, %v", got, err)
	}
	if again, err := r.Select(Filter{}, 0); err != nil || again == nil || len(again) != 0 {
		t.Errorf("again %+v, %v", again, err)
	}
	if all, err := NewReader(dir).Select(Filter{Verdict: deny}, 0); err != nil || len(all) != 1 {
		t.Errorf("denied: %+v, %v", all, err)
	}
}
