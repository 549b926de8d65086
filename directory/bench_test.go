package directory

import (
	"context"
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// synthetic returns n descriptions that nobody signed: ten things per owner, a thousand capabilities in fifty
// families, and text of a few hundred common words and some rare ones.
func synthetic(n int) []*td.Description {
	now := time.Now().UTC().Truncate(time.Second)
	all := make([]*td.Description, n)
	for i := range all {
		id := fmt.Sprintf("urn:example:thing:%06d", i)
		title := fmt.Sprintf("Agent %d for %s", i, word(i))
		all[i] = &td.Description{
			Thing: &td.Thing{
				ID: id, Title: title, Types: []string{"lmos:Agent"},
				Description: fmt.Sprintf("Helps with %s and %s in department %d of %s", word(i*7), word(i*13+1),
					i%97, word(i*3)),
				Capabilities: []td.Capability{{ID: fmt.Sprintf("urn:example:family-%02d:skill-%03d", i%50, i%1000)}},
				Actions:      map[string]*td.Action{"ask": {}, fmt.Sprintf("do%d", i%20): {}},
			},
			Record: &td.Record{Owner: did.DID(fmt.Sprintf("did:key:z6Mk%06d", i/10)), Thing: id, Seq: 1, Issued: now,
				Expires: now.Add(time.Hour), Title: title, Hash: sha256.Sum256([]byte(id))},
			Signed: &td.Signed{},
		}
	}
	return all
}

func word(i int) string { return fmt.Sprintf("topic%03d", i%311) }

func benchmarked(b *testing.B, n int) *Directory {
	b.Helper()
	d, err := New(Options{})
	if err != nil {
		b.Fatal(err)
	}
	for _, desc := range synthetic(n) {
		if _, err := d.put(desc, heard); err != nil {
			b.Fatal(err)
		}
	}
	return d
}

// BenchmarkFind shows how the cost of a question depends on how many things there are. An exact search has the same
// number of answers at every size.
func BenchmarkFind(b *testing.B) {
	for _, n := range []int{1000, 10_000, 100_000} {
		d := benchmarked(b, n)
		for _, q := range []struct {
			name string
			q    td.Query
		}{
			{"exact", td.Query{Capability: []string{"urn:example:family-07:skill-007"}, Limit: 1}},
			{"prefix", td.Query{Capability: []string{"example:family-07"}}},
			{"two", td.Query{Capability: []string{"example:family-07:skill-007"}, Action: "do7"}},
			{"text", td.Query{Text: "topic100 department"}},
			{"none", td.Query{Capability: []string{"urn:example:nothing"}}},
		} {
			b.Run(fmt.Sprintf("%s/%d", q.name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					for range d.FindLocal(q.q) {
						continue
					}
				}
			})
		}
	}
}

func BenchmarkAdd(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			all := synthetic(n)
			for b.Loop() {
				d, err := New(Options{})
				if err != nil {
					b.Fatal(err)
				}
				for _, desc := range all {
					if _, err := d.put(desc, heard); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "things/s")
		})
	}
}

// BenchmarkChange replaces things of a full index by things that are found by something else.
func BenchmarkChange(b *testing.B) {
	const n = 100_000
	d := benchmarked(b, n)
	all := synthetic(n + 7)
	seq := uint64(1)
	for i := 0; b.Loop(); i = (i + 1) % n {
		if i == 0 {
			seq++
		}
		changed := *all[i+7]
		changed.Record = &td.Record{}
		*changed.Record = *all[i].Record
		changed.Record.Seq, changed.Record.Hash = seq, [32]byte{byte(seq), byte(i), byte(i >> 8), byte(i >> 16)}
		if _, err := d.put(&changed, heard); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOffer takes in signed records with their TDs, verification included.
func BenchmarkOffer(b *testing.B) {
	signed := many(b, 1, 0, 512)
	for b.Loop() {
		d, err := New(Options{})
		if err != nil {
			b.Fatal(err)
		}
		for _, s := range signed {
			desc, _, err := d.open(b.Context(), s)
			if err != nil {
				b.Fatal(err)
			}
			d.accept(desc, nil)
		}
	}
	b.ReportMetric(float64(len(signed)*b.N)/b.Elapsed().Seconds(), "records/s")
}

func BenchmarkLocate(b *testing.B) {
	d := benchmarked(b, 10_000)
	d.opts.Bind = func(*td.Description) interact.Thing {
		return interact.Unary(func(context.Context, *interact.Message) (*interact.Message, error) { return nil, nil })
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.Locate(b.Context(), "urn:example:thing:000042"); err != nil {
			b.Fatal(err)
		}
	}
}

// Every call passes through Locate.
func TestLocateAllocates(t *testing.T) {
	d := filled(t, Options{Bind: func(*td.Description) interact.Thing {
		return interact.Unary(func(context.Context, *interact.Message) (*interact.Message, error) { return nil, nil })
	}}, plain(t, 1, "urn:example:weather", "Weather"))
	for _, ref := range []string{"urn:example:weather", "weather"} {
		got := testing.AllocsPerRun(100, func() {
			if _, err := d.Locate(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
		})
		if got > 6 {
			t.Errorf("%s: %v allocations, want at most 6", ref, got)
		}
	}
}

// The cost of an exact search must not grow with the number of things: it looks only at what it yields.
func TestExactSearchLooksAtItsAnswerOnly(t *testing.T) {
	t.Parallel()
	d := openDirectory(t, Options{})
	for _, desc := range synthetic(5000) {
		if _, err := d.put(desc, heard); err != nil {
			t.Fatal(err)
		}
	}
	q := td.Query{Capability: []string{"example:family-07:skill-007"}, Type: "agent", Action: "ask"}
	lists, ok := d.index.listsFor(&q, nil)
	if !ok || len(lists) != 3 {
		t.Fatalf("got %d lists, %v", len(lists), ok)
	}
	shortest := len(lists[0])
	for _, l := range lists {
		shortest = min(shortest, len(l))
	}
	if shortest != 5 {
		t.Errorf("looks at %d things, want the 5 that match", shortest)
	}
}
