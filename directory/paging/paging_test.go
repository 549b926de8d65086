package paging

import (
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Forged and dropped cursors are rejected, and the recorded pages are bounded.
func TestPagesAreBounded(t *testing.T) {
	t.Parallel()
	p := New()
	desc := &td.Description{Record: &td.Record{Owner: "did:x:owner", Thing: "urn:a"}}
	first := ""
	for range 3 * maxPages {
		s := p.Begin(td.Query{Limit: 1}, nil)
		_, next := Cut(s, []*td.Description{desc, desc}, func(d *td.Description) *td.Description { return d })
		if first == "" {
			first = next
		}
	}
	if p.Len() != maxPages || p.shown != maxPages || len(p.order) != maxPages {
		t.Errorf("%d pages are recorded, of %d Things", p.Len(), p.shown)
	}
	for _, cursor := range []string{"", "x", first, strings.Repeat("A", 1<<20)} {
		_, err := p.Resume(cursor)
		if e := interact.AsError(err); e.Code != interact.Usage || !strings.Contains(e.Error(), "does not exist") {
			t.Errorf("cursor of %d bytes: got %v", len(cursor), err)
		}
	}
	s := p.Begin(td.Query{Limit: 1}, nil)
	s.shown = make([][32]byte, maxShown)
	if _, next := Cut(s, []*td.Description{desc, desc}, func(d *td.Description) *td.Description { return d }); next != "" {
		t.Error("a search of more Things than the limit has a next page")
	}
}
