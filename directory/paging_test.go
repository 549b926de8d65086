package directory

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/lmosd/lmosd/directory/paging"
	"github.com/lmosd/lmosd/td"
)

// The pages of a search contain each Thing once, also if Things are added between them, and the total.
func TestPages(t *testing.T) {
	t.Parallel()
	for name, q := range map[string]td.Query{
		"everything": {}, "words": {Text: "weather"}, "capability": {Capability: []string{"urn:x:weather"}},
		"checked one by one": {Capability: []string{"urn:x:weather"}, Version: "^1"}, "not": {Text: "weather", Not: []td.Query{{ID: "urn:000"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // the clock stands still: no limit of checks is exceeded
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
				p := paging.New()
				s := p.Begin(q, nil)
				seen, pages, cursor := map[string]int{}, 0, ""
				for range 2 * n {
					var found []*td.Description
					for desc, err := range d.Find(t.Context(), s.Query) {
						if err != nil {
							t.Fatal(err)
						}
						found = append(found, desc)
					}
					page, next := paging.Cut(s, found, func(d *td.Description) *td.Description { return d })
					if total, ok := s.Query.Counter.Total(); ok && (total < n || total > n+pages) {
						t.Errorf("page %d: total %d, want %d and at most one more per page", pages, total, n)
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
					put(n + pages)
					var err error
					if s, err = p.Resume(next); err != nil {
						t.Fatal(err)
					}
					cursor = next
				}
				for i := 1; i <= n; i++ {
					if id := fmt.Sprintf("urn:%03d", i); seen[id] != 1 {
						t.Errorf("%s was returned %d times", id, seen[id])
					}
				}
				if again, err := p.Resume(cursor); err != nil || len(again.Query.Except) != (pages-1)*limit {
					t.Error("a cursor is not reusable:", err)
				}
			})
		})
	}
}
