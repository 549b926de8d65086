package directory

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Pages of a search have everything once, whatever comes and goes meanwhile, and say how many there are.
func TestPages(t *testing.T) {
	t.Parallel()
	for name, q := range map[string]td.Query{
		"everything": {}, "words": {Text: "weather"}, "capability": {Capability: []string{"urn:x:weather"}},
		"looked at one by one": {Capability: []string{"urn:x:weather"}, Version: "^1"}, "not": {Text: "weather", Not: []td.Query{{ID: "urn:000"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const n, limit = 50, 7
			d := openDirectory(t, Options{})
			put := func(i int) {
				desc := plain(t, byte(i), fmt.Sprintf("urn:%03d", i), "Weather", "urn:x:weather")
				desc.Capabilities[0].Version = "1.2.3"
				if _, err := d.put(desc, received); err != nil {
					t.Fatal(err)
				}
			}
			for i := 1; i <= n; i++ {
				put(i)
			}
			q.Limit = limit
			p := NewPages()
			s := p.Begin(q, nil)
			seen, pages, word := map[string]int{}, 0, ""
			for range 2 * n {
				var found []*td.Description
				for desc, err := range d.Find(t.Context(), s.Query) {
					if err != nil {
						t.Fatal(err)
					}
					found = append(found, desc)
				}
				page, next := Cut(s, found, func(d *td.Description) *td.Description { return d })
				if total, ok := s.Query.Counter.Total(); ok && (total < n || total > n+pages) {
					t.Errorf("page %d: %d in all, want %d and at most one more a page", pages, total, n)
				}
				if c := s.Query.Counter.Coverage(); !c.Complete() || c.More != (next != "") {
					t.Errorf("page %d: %+v, next %q", pages, c, next)
				}
				for _, desc := range page {
					seen[desc.ID]++
				}
				if next != "" && len(page) != limit {
					t.Errorf("page %d has %d", pages, len(page))
				}
				if pages++; next == "" {
					break
				}
				put(n + pages) // comes between two pages
				var err error
				if s, err = p.Resume(next); err != nil {
					t.Fatal(err)
				}
				word = next
			}
			for i := 1; i <= n; i++ {
				if id := fmt.Sprintf("urn:%03d", i); seen[id] != 1 {
					t.Errorf("%s came %d times", id, seen[id])
				}
			}
			if again, err := p.Resume(word); err != nil || len(again.Query.Except) != (pages-1)*limit {
				t.Error("a cursor is good once only:", err)
			}
		})
	}
}

// What others make up is no cursor, and what clients leave behind is bounded.
func TestPagesAreBounded(t *testing.T) {
	t.Parallel()
	p := NewPages()
	desc := plain(t, 1, "urn:a", "A")
	first := ""
	for range 3 * maxPages {
		s := p.Begin(td.Query{Limit: 1}, nil)
		_, next := Cut(s, []*td.Description{desc, desc}, func(d *td.Description) *td.Description { return d })
		if first == "" {
			first = next
		}
	}
	if p.Len() != maxPages || p.shown != maxPages || len(p.order) != maxPages {
		t.Errorf("%d pages are kept, of %d things", p.Len(), p.shown)
	}
	for _, word := range []string{"", "x", first, strings.Repeat("A", 1<<20)} {
		_, err := p.Resume(word)
		wantCode(t, err, interact.Usage, "no such page")
	}
	s := p.Begin(td.Query{Limit: 1}, nil)
	s.shown = make([][32]byte, maxShown)
	if _, next := Cut(s, []*td.Description{desc, desc}, func(d *td.Description) *td.Description { return d }); next != "" {
		t.Error("a search goes on without end")
	}
}
