package directory

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/td"
)

// paged returns the ids of a page and the total.
func paged(p Page) string {
	var all []string
	for _, item := range p.Items {
		all = append(all, strings.TrimPrefix(item.Record().Thing, "urn:"))
	}
	return fmt.Sprintf("%s of %d", strings.Join(all, " "), p.Total)
}

func TestPage(t *testing.T) {
	t.Parallel()
	d := filled(t, Options{}, corpus(t)...)
	other := plain(t, 9, "urn:w:1", "Weather of another owner")
	if _, err := d.put(other, received); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	d.setOwnLocked(d.entries[other.Record.Key()], true)
	d.mu.Unlock()
	for _, c := range []struct {
		name          string
		q             td.Query
		offset, limit int
		want          string
	}{
		{"everything", td.Query{}, 0, 10, "b:1 d:1 w:1 w:1 w:2 of 5"},
		{"the middle", td.Query{}, 1, 2, "d:1 w:1 of 5"},
		{"the end", td.Query{}, 4, 2, "w:2 of 5"},
		{"after the end", td.Query{}, 7, 2, " of 5"},
		{"the total only", td.Query{}, 0, 0, " of 5"},
		{"negative", td.Query{}, -1, -1, " of 5"},
		{"of a query", td.Query{Capability: []string{"example:weather"}}, 1, 10, "w:2 of 2"},
		{"words do not rank", td.Query{Text: "radar weather"}, 0, 10, "w:1 w:1 w:2 of 3"},
		{"all but", td.Query{Not: []td.Query{{Type: "tool"}}}, 1, 2, "d:1 w:1 of 4"},
		{"checked one by one", td.Query{Capability: []string{"a:b:c:d:e:f:g:h:i:j:k:l:m"}}, 0, 5, "d:1 of 1"},
		{"checked, no match", td.Query{Version: "1.0.0"}, 0, 5, " of 0"},
		{"checked, after the end", td.Query{Capability: []string{"a:b:c:d:e:f:g:h:i:j:k:l:m"}}, 3, 5, " of 1"},
	} {
		if got := paged(d.Page(t.Context(), c.q, c.offset, c.limit)); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
	own := d.PageOwn(t.Context(), td.Query{}, 0, 10)
	if got := paged(own); got != "w:1 of 1" || !own.Items[0].Own() ||
		string(own.Items[0].TD()) != string(other.Raw) || own.Items[0].Description() != other {
		t.Errorf("own things: got %q, %+v", got, own.Items)
	}
	if d.Page(t.Context(), td.Query{}, 0, 1).Items[0].Own() {
		t.Error("a Thing of another owner is listed as own")
	}
}

// Large and small results have the same order.
func TestPagesOfMany(t *testing.T) {
	t.Parallel()
	d := openDirectory(t, Options{})
	for i, desc := range synthetic(2000) {
		if i%3 == 0 {
			desc.Types = append(desc.Types, "third")
		}
		if _, err := d.put(desc, received); err != nil {
			t.Fatal(err)
		}
	}
	for _, q := range []td.Query{{Type: "third"}, {Type: "third", Action: "do0"}, {Not: []td.Query{{Type: "third"}}}} {
		last, n := "", 0
		total := d.Page(t.Context(), q, 0, 0).Total
		for at := 0; at < total; at += 50 {
			for _, item := range d.Page(t.Context(), q, at, 50).Items {
				n++
				if id := item.Record().Thing; id <= last || !q.Match(item.Description()) {
					t.Fatalf("%s comes after %s", id, last)
				} else {
					last = id
				}
			}
		}
		if n != total || n < 30 {
			t.Errorf("%d things on all pages of %d", n, total)
		}
	}
}

// The version changes with the Things, and not otherwise.
func TestPageVersion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := plain(t, 1, "urn:a", "A")
		d := filled(t, Options{}, a)
		version := func() uint64 { return d.Page(t.Context(), td.Query{}, 0, 0).Version }
		first := version()
		put := func(desc *td.Description) {
			t.Helper()
			if _, err := d.put(desc, received); err != nil {
				t.Fatal(err)
			}
		}
		put(with(a, func(r *td.Record) { r.Seq, r.Expires = 2, r.Expires.Add(time.Minute) }))
		if version() != first {
			t.Error("a refresh changes the version")
		}
		put(plain(t, 1, "urn:b", "B"))
		second := version()
		put(tombstoneOf(plain(t, 1, "urn:b", "B")))
		third := version()
		time.Sleep(2 * time.Hour) // Run is not called: Page drops expired Things
		last := d.Page(t.Context(), td.Query{}, 0, 10)
		if seen := map[uint64]bool{first: true, second: true, third: true, last.Version: true}; len(seen) != 4 || last.Total != 0 {
			t.Errorf("got %v, %+v", seen, last)
		}
		time.Sleep(time.Second)
		if again := filled(t, Options{}, plain(t, 1, "urn:a", "A")); again.Page(t.Context(), td.Query{}, 0, 0).Version <= last.Version {
			t.Error("a later run has an earlier version")
		}
	})
}

// Pages after a place have each Thing once, whatever the size of the choice, and although Things before and behind the place change.
func TestPagesAfterAPlace(t *testing.T) {
	t.Parallel()
	d := openDirectory(t, Options{})
	all := synthetic(2000)
	for i, desc := range all[:1500] {
		if i%3 == 0 {
			desc.Types = append(desc.Types, "third")
		}
		if i%50 == 0 {
			desc.Types = append(desc.Types, "fiftieth")
		}
		if _, err := d.put(desc, received); err != nil {
			t.Fatal(err)
		}
	}
	for _, q := range []td.Query{{}, {Type: "third"}, {Type: "fiftieth"}, {Not: []td.Query{{Type: "third"}}}, {Text: "department"},
		{Type: "third", Capability: []string{"a:b:c:d:e:f:g:h:i:j:k:l:m"}}, {Type: "none"}} {
		want := d.Page(t.Context(), q, 0, 2000)
		var got []Item
		for at := (Place{}); ; {
			p, err := d.After(t.Context(), q, at, 77)
			if err != nil || p.Total != want.Total {
				t.Fatalf("%+v: %d in all, want %d; %v", q, p.Total, want.Total, err)
			}
			if got = append(got, p.Items...); len(p.Items) < 77 {
				break
			}
			last := p.Items[76].Record()
			at = Place{last.Thing, last.Owner}
		}
		if len(got) != len(want.Items) {
			t.Fatalf("%+v: %d items, want %d", q, len(got), len(want.Items))
		}
		for i := range got {
			if got[i].Record() != want.Items[i].Record() {
				t.Fatalf("%+v: item %d is %s, want %s", q, i, got[i].Record().Thing, want.Items[i].Record().Thing)
			}
		}
	}
	at := Place{all[99].ID, all[99].Record.Owner}
	d.mu.Lock()
	d.removeLocked(d.entries[all[99].Record.Key()], Withdrawn)
	d.mu.Unlock()
	if p, err := d.After(t.Context(), td.Query{}, at, 1); err != nil || len(p.Items) != 1 || p.Items[0].Record().Thing != all[100].ID {
		t.Errorf("after a Thing that was removed: %s, %v", paged(p), err)
	}
	if _, err := d.After(t.Context(), td.Query{Organization: "nowhere"}, Place{}, 1); err == nil {
		t.Error("an unknown organization is not an error")
	}
}
