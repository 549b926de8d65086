package api

import (
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/td"
)

// The grants of one holder have rising numbers; a new one is signed for another TD or node, or when it is due, and else the last one is repeated.
func TestKeyHolder(t *testing.T) {
	t.Parallel()
	draft := func(title string) []byte {
		raw, err := td.Draft([]byte(`{"title": "` + title + `", "id": "urn:x:a", "actions": {"ask": {}}}`))
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	a, b := didtest.NewKey().DID(), didtest.NewKey().DID()
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	first, second := draft("A"), draft("B")
	h := &KeyHolder{Key: didtest.NewKey(), Visibility: td.Partners, Number: uint64(now.Add(time.Hour).UnixMilli())} // the clock of the node before was ahead
	last := h.Number
	for _, c := range []struct {
		name  string
		draft []byte
		node  did.DID
		after time.Duration
		fresh bool
	}{
		{"the first", first, a, 0, true},
		{"again", first, a, time.Hour, false},
		{"another TD", second, a, time.Hour, true},
		{"another node", second, b, 2 * time.Hour, true},
		{"half of its life", second, b, 14*time.Hour - time.Second, false},
		{"when it is due", second, b, 14 * time.Hour, true},
	} {
		signed, due, err := h.Grant(c.draft, c.node, now.Add(c.after))
		if err != nil {
			t.Fatal(c.name, err)
		}
		g, err := td.ParseGrant(signed.Grant)
		if err != nil {
			t.Fatal(c.name, err)
		}
		if fresh := g.Number > last; fresh != c.fresh || g.Number < last || len(g.Nodes) != 1 || g.Nodes[0] != c.node || g.Audience != td.Partners || g.Owner != h.Key.DID() ||
			g.Expires.Sub(g.Issued) != OwnGrantLife || !due.Equal(g.Issued.Add(OwnGrantLife/2)) {
			t.Errorf("%s: %+v, due %v", c.name, g, due)
		}
		last = g.Number
	}
	if _, _, err := h.Grant([]byte(`{"title": "A"}`), a, now); err == nil {
		t.Error("a TD that is not complete was signed")
	}
	if !IsHostingGrant([]byte(`{"grant": "x", "td": {}}`)) || IsHostingGrant(first) || IsHostingGrant([]byte(`{"title": "A", "grant": 1}`)) || IsHostingGrant([]byte(`[]`)) {
		t.Error("a grant and a TD are not distinguished")
	}
}
