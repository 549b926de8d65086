package directory

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// found collects what Find yields, sorted, and its error.
func found(seq iter.Seq2[*td.Description, error]) (string, error) {
	var all []string
	for desc, err := range seq {
		if err != nil {
			return strings.Join(all, " "), err
		}
		all = append(all, desc.Record.Thing)
	}
	slices.Sort(all)
	return strings.Join(all, " "), nil
}

func many(t testing.TB, owner byte, from, to int) []*td.Signed {
	var all []*td.Signed
	for i := from; i < to; i++ {
		all = append(all, numbered(t, owner, i).signed(t, 1))
	}
	return all
}

var things = []string{"example:many"}

func TestFindMergesIndexAndSources(t *testing.T) {
	t.Parallel()
	both := many(t, 1, 0, 4)
	tampered := numbered(t, 1, 9).signed(t, 1)
	tampered.Record[10] ^= 1
	d := openDirectory(t, Options{Sources: []Source{
		sourceOf(both[1], both[2], tampered),
		sourceOf(both[2], both[3], weather(t, 2).signed(t, 1), numbered(t, 1, 8).tombstone(t, 1)),
	}})
	for _, s := range both[:2] {
		if _, err := d.Add(described(t, s)); err != nil {
			t.Fatal(err)
		}
	}
	tally := &td.CoverageCounter{}
	got, err := found(d.Find(t.Context(), td.Query{Capability: things, Counter: tally}))
	if err != nil {
		t.Fatal(err)
	}
	if want := "urn:example:agent-000 urn:example:agent-001 urn:example:agent-002 urn:example:agent-003"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if c := tally.Coverage(); c.Asked != 3 || c.Answered != 3 || c.Truncated || c.Oldest.IsZero() {
		t.Errorf("got coverage %+v", c)
	}
	// All valid results are added, also the Thing that does not match, and the tombstone.
	if s := d.Stats(); s.Known != 5 || s.Removed != 1 || s.Invalid != 1 {
		t.Errorf("got %+v", s)
	}
}

func TestFindYieldsTheIndexFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := filled(t, Options{Sources: []Source{blockingSource()}}, plain(t, 1, "urn:1", "", "example:many"))
		start := time.Now()
		tally := &td.CoverageCounter{}
		for desc, err := range d.Find(t.Context(), td.Query{Capability: things, Counter: tally}) {
			if err != nil || desc.ID != "urn:1" || time.Since(start) != 0 {
				t.Errorf("got %v, %v after %v", desc, err, time.Since(start))
			}
		}
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("took %v, want the timeout", took)
		}
		if c := tally.Coverage(); c.Asked != 2 || c.Answered != 1 || !c.Truncated || c.Complete() {
			t.Errorf("got coverage %+v", c)
		}
	})
}

func TestFindStopsWithTheLoop(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		index int // things in the index
		leave int // after this number of results
	}{{"in the index", 3, 2}, {"in the sources", 1, 3}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			all := many(t, 1, 0, 6)
			d := openDirectory(t, Options{Sources: []Source{sourceOf(all...), blockingSource()}})
			for _, s := range all[:c.index] {
				if _, err := d.Add(described(t, s)); err != nil {
					t.Fatal(err)
				}
			}
			n := 0
			for _, err := range d.Find(t.Context(), td.Query{Capability: things}) {
				if err != nil {
					t.Fatal(err)
				}
				if n++; n == c.leave {
					break
				}
			}
			if n != c.leave {
				t.Errorf("got %d, want %d", n, c.leave)
			}
		})
	}
}

func TestFindLimit(t *testing.T) {
	t.Parallel()
	all := many(t, 1, 0, 6)
	for _, c := range []struct {
		name    string
		index   int
		limit   int
		sources []Source
		want    int
		more    bool
	}{
		{"more in the index", 6, 4, nil, 4, true},
		{"all in the index", 4, 4, nil, 4, false},
		{"limit reached in the index, sources not queried", 4, 4, []Source{sourceOf(all...)}, 4, true},
		{"more in a source", 2, 4, []Source{sourceOf(all...)}, 4, true},
		{"fewer than the limit", 2, 7, []Source{sourceOf(all...)}, 6, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := openDirectory(t, Options{Sources: c.sources})
			for _, s := range all[:c.index] {
				if _, err := d.Add(described(t, s)); err != nil {
					t.Fatal(err)
				}
			}
			tally := &td.CoverageCounter{}
			got, err := found(d.Find(t.Context(), td.Query{Capability: things, Limit: c.limit, Counter: tally}))
			if n := len(strings.Fields(got)); err != nil || n != c.want {
				t.Errorf("got %d, %v, want %d", n, err, c.want)
			}
			if got := tally.Coverage(); got.More != c.more || !got.Complete() {
				t.Errorf("got %+v, want more: %v, and complete", got, c.more)
			}
		})
	}
}

func TestFindContinuesWhenASourceFails(t *testing.T) {
	t.Parallel()
	failing := func(err error) Source {
		return source{find: func(context.Context, td.Query) iter.Seq2[*td.Signed, error] {
			return func(yield func(*td.Signed, error) bool) { yield(nil, err) }
		}}
	}
	d := openDirectory(t, Options{Sources: []Source{
		failing(errors.New("the table is empty")), failing(did.ErrNotFound), sourceOf(many(t, 1, 0, 1)...),
	}})
	tally := &td.CoverageCounter{}
	got, err := found(d.Find(t.Context(), td.Query{Capability: things, Counter: tally}))
	if err != nil || got != "urn:example:agent-000" {
		t.Errorf("got %q, %v", got, err)
	}
	if c := tally.Coverage(); c.Asked != 3 || c.Answered != 2 || c.Unreachable != 1 || c.Complete() {
		t.Errorf("got coverage %+v", c)
	}
}

func TestFindEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := openDirectory(t, Options{Sources: []Source{blockingSource()}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := found(d.Find(ctx, td.Query{Capability: things}))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the deadline", err)
		}
	})
}

// A record that arrives by gossip during the query of the sources replaces an older result.
func TestFindYieldsTheNewestRecord(t *testing.T) {
	t.Parallel()
	s := numbered(t, 1, 0).signed(t, 2)
	older := numbered(t, 1, 0).signed(t, 1)
	var d *Directory
	late := func(context.Context, td.Query) iter.Seq2[*td.Signed, error] {
		return func(yield func(*td.Signed, error) bool) {
			if _, err := d.put(described(t, s), received); err != nil {
				t.Error(err)
			}
			yield(older, nil)
		}
	}
	d = openDirectory(t, Options{Sources: []Source{source{find: late}}})
	var seqs []uint64
	for desc, err := range d.Find(t.Context(), td.Query{Capability: things}) {
		if err != nil {
			t.Fatal(err)
		}
		seqs = append(seqs, desc.Record.Seq)
	}
	if !slices.Equal(seqs, []uint64{2}) {
		t.Errorf("got seqs %v, want the newer one only", seqs)
	}
}

func TestFindFetchesMissingTDs(t *testing.T) {
	t.Parallel()
	s := numbered(t, 1, 0).signed(t, 1)
	body := described(t, s).Signed.TD
	d := openDirectory(t, Options{
		Sources: []Source{sourceOf(bare(t, s))},
		Fetch:   func(context.Context, *td.Record) ([]byte, error) { return body, nil },
	})
	got, err := found(d.Find(t.Context(), td.Query{Capability: things}))
	if err != nil || got != "urn:example:agent-000" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestFindYieldsThingsThatDoNotFit(t *testing.T) {
	t.Parallel()
	d := filled(t, Options{Max: 1, Sources: []Source{sourceOf(many(t, 1, 0, 2)...)}}, plain(t, 2, "urn:first", ""))
	got, err := found(d.Find(t.Context(), td.Query{Capability: things}))
	if err != nil || len(strings.Fields(got)) != 2 {
		t.Errorf("got %q, %v", got, err)
	}
}
