package directory

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory/directorytest"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/liveheap"
	"github.com/lmosd/lmosd/td"
)

// synthetic returns n unsigned descriptions: ten Things per owner, a thousand capabilities in fifty
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

func signAll(b testing.TB, first, n int) []*td.Signed {
	b.Helper()
	all, err := directorytest.Sign(first, n)
	if err != nil {
		b.Fatal(err)
	}
	return all
}

// takeAll verifies and adds signed descriptions as Run does, on all processors. It returns the bytes of their TDs.
func takeAll(b testing.TB, d *Directory, signed []*td.Signed) (bytes int) {
	b.Helper()
	var g errgroup.Group
	for w := range workers() {
		g.Go(func() error {
			for i := w; i < len(signed); i += workers() {
				desc, _, err := d.open(context.Background(), signed[i])
				if err == nil {
					_, err = d.put(desc, received)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	for _, s := range signed {
		bytes += len(s.TD)
	}
	return bytes
}

// sizes are the numbers of Things.
var sizes = []int{1000, 10_000, 100_000}

// benches has a directory of each size, created once.
var benches sync.Map

func benchmarked(b *testing.B, n int) *Directory {
	b.Helper()
	if d, ok := benches.Load(n); ok {
		return d.(*Directory)
	}
	d, err := New(Options{Max: 200_000})
	if err != nil {
		b.Fatal(err)
	}
	for first := 0; first < n; first += 1000 {
		takeAll(b, d, signAll(b, first, 1000))
	}
	runtime.GC()
	benches.Store(n, d)
	return d
}

// BenchmarkFind measures queries at different numbers of Things. Queries of one kind differ, so that no result is cached.
func BenchmarkFind(b *testing.B) {
	for _, n := range sizes {
		for _, q := range []struct {
			name string
			q    func(i int) td.Query
		}{
			{"exact", func(i int) td.Query {
				return td.Query{Capability: []string{directorytest.Capability(i % n)}}
			}},
			{"prefix", func(i int) td.Query { return td.Query{Capability: []string{directorytest.Family(i)}} }},
			{"two", func(i int) td.Query {
				return td.Query{Capability: []string{directorytest.Family(i)}, Owner: directorytest.Owner(i % n)}
			}},
			{"version", func(i int) td.Query {
				return td.Query{Capability: []string{directorytest.Capability(i % n)}, Version: "^1.2"}
			}},
			{"text", func(i int) td.Query {
				return td.Query{Text: directorytest.Words()[i%1000] + " " + directorytest.Words()[i*7%5000]}
			}},
			{"question", func(int) td.Query { return td.Query{Text: "who can check stock levels"} }},
			{"typos", func(i int) td.Query { return td.Query{Text: "wharehouse " + directorytest.Words()[i%1000] + "x"} }},
			{"none", func(int) td.Query { return td.Query{Capability: []string{"urn:example:nothing"}} }},
		} {
			b.Run(fmt.Sprintf("%s/%d", q.name, n), func(b *testing.B) {
				d := benchmarked(b, n)
				hits, i := 0, 0
				var times []time.Duration
				b.ReportAllocs()
				for b.Loop() {
					i += 7919
					query := q.q(i)
					start := time.Now()
					for range d.FindLocal(b.Context(), query) {
						hits++
					}
					times = append(times, time.Since(start))
				}
				report(b, times)
				b.ReportMetric(float64(hits)/float64(b.N), "hits")
			})
		}
	}
}

// BenchmarkFindForCallers measures queries over 10,000 Things for different callers: without Options.Sees, and with it without restricted Things
// and with one in ten. The callers take turns, so that all have the same load of the machine.
func BenchmarkFindForCallers(b *testing.B) {
	const n = 10_000
	sees := Options{Max: 200_000, Sees: ByRelation, Scope: ScopeByRelation}
	directories := map[string]*Directory{}
	for name, o := range map[string]Options{"unlimited": {Max: 200_000}, "public": sees, "restricted": sees} {
		d, err := New(o)
		if err != nil {
			b.Fatal(err)
		}
		for i, s := range signAll(b, 0, n) {
			desc, _, err := d.open(b.Context(), s)
			if err != nil {
				b.Fatal(err)
			}
			if name == "restricted" && i%10 == 0 {
				desc.Visibility, desc.Record.Audience = td.Partners, td.Partners
			}
			if _, err := d.put(desc, received); err != nil {
				b.Fatal(err)
			}
		}
		directories[name] = d
	}
	local, untrusted := as(b, did.Local), as(b, did.Untrusted)
	for _, q := range []struct {
		name string
		q    func(i int) td.Query
	}{
		{"exact", func(i int) td.Query { return td.Query{Capability: []string{directorytest.Capability(i % n)}} }},
		{"prefix", func(i int) td.Query { return td.Query{Capability: []string{directorytest.Family(i)}} }},
		{"type", func(int) td.Query { return td.Query{Type: "agent"} }},
		{"text", func(i int) td.Query {
			return td.Query{Text: directorytest.Words()[i%1000] + " " + directorytest.Words()[i*7%5000]}
		}},
		{"question", func(int) td.Query { return td.Query{Text: "who can check stock levels"} }},
	} {
		b.Run(q.name, func(b *testing.B) {
			callers := []struct {
				name string
				d    *Directory
				ctx  context.Context
			}{{"unlimited", directories["unlimited"], local}, {"public", directories["public"], untrusted},
				{"local", directories["restricted"], local}, {"untrusted", directories["restricted"], untrusted}}
			times := make([][]time.Duration, len(callers))
			for i := 0; b.Loop(); i += 7919 {
				query := q.q(i)
				for c, caller := range callers {
					start := time.Now()
					for range caller.d.FindLocal(caller.ctx, query) {
					}
					times[c] = append(times[c], time.Since(start))
				}
			}
			for c, caller := range callers {
				slices.Sort(times[c])
				b.ReportMetric(float64(times[c][len(times[c])/2].Nanoseconds())/1000, caller.name+"-µs")
			}
		})
	}
}

// report adds the median and the 99th percentile.
func report(b *testing.B, times []time.Duration) {
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Nanoseconds())/1000, "p50-µs")
	b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds())/1000, "p99-µs")
}

// BenchmarkPage reads 50 Things at different offsets of a list.
func BenchmarkPage(b *testing.B) {
	for _, n := range sizes {
		for _, q := range []struct {
			name string
			q    td.Query
		}{{"all", td.Query{}}, {"type", td.Query{Type: "agent"}},
			{"protocol-but-one", td.Query{Protocol: "https", Not: []td.Query{{Owner: directorytest.Owner(0)}}}}} {
			b.Run(fmt.Sprintf("%s/%d", q.name, n), func(b *testing.B) {
				d := benchmarked(b, n)
				var times []time.Duration
				i := 0
				for b.Loop() {
					i += 7919
					start := time.Now()
					if p := d.Page(b.Context(), q.q, i%(n-60), 50); len(p.Items) != 50 || p.Total < n-10 {
						b.Fatal(len(p.Items), p.Total)
					}
					times = append(times, time.Since(start))
				}
				report(b, times)
			})
		}
	}
}

// BenchmarkTake verifies and adds 4,000 new records to an index of n Things, on all processors. It removes them again, which is measured
// separately.
func BenchmarkTake(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			d := benchmarked(b, n)
			signed := signAll(b, 200_000, 4000)
			var keys [][32]byte
			for _, s := range signed {
				r, err := d.opts.Verifier.Record(s.Record, time.Now())
				if err != nil {
					b.Fatal(err)
				}
				keys = append(keys, r.Key())
			}
			var took, out, cpu time.Duration
			var allocated uint64
			for b.Loop() {
				d.opts.Verifier = td.NewVerifier(did.Keys())
				start, before, bytes := time.Now(), cpuTime(), totalAlloc()
				takeAll(b, d, signed)
				took, cpu, allocated = took+time.Since(start), cpu+cpuTime()-before, allocated+totalAlloc()-bytes
				start = time.Now()
				d.mu.Lock()
				for _, key := range keys {
					e := d.entries[key]
					d.removeLocked(e, Expired)
					d.forgetLocked(e)
				}
				d.mu.Unlock()
				out += time.Since(start)
			}
			b.ReportMetric(float64(len(signed)*b.N)/took.Seconds(), "records/s")
			b.ReportMetric(float64(cpu.Microseconds())/float64(len(signed)*b.N), "cpu-µs/record")
			b.ReportMetric(float64(allocated)/float64(len(signed)*b.N), "B/record")
			b.ReportMetric(float64(out.Microseconds())/float64(len(signed)*b.N), "µs/removal")
		})
	}
}

func totalAlloc() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// cpuTime returns the CPU time of this process, if the system reports it. On a shared machine it varies less than the elapsed time.
func cpuTime() time.Duration {
	raw, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(raw))
	var ticks int
	for _, field := range fields[13:15] { // of user and system, in 10 ms
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// maxForeignBytes is the limit of the memory of a Thing of another node in addition to its TD as it was signed.
const maxForeignBytes = 5000

// BenchmarkMemory measures the memory of a Thing of another node and fails above the limit. whole-B has everything of the Thing, its TD included, which
// is in memory compressed; B is the part beyond the size of the TD; cache-B is its share of the cache of unpacked views, which no number of Things
// takes above its own limit ([maxOpen]).
func BenchmarkMemory(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				warm, err := New(Options{}) // what is made once is not counted
				if err != nil {
					b.Fatal(err)
				}
				takeAll(b, warm, signAll(b, 0, 10))
				before := int(liveheap.Bytes())
				d, err := New(Options{})
				if err != nil {
					b.Fatal(err)
				}
				bytes := 0
				for first := 0; first < n; first += 1000 {
					bytes += takeAll(b, d, signAll(b, first, 1000))
				}
				if path := os.Getenv("HEAP_PROFILE"); path != "" {
					f, err := os.Create(path)
					if err != nil {
						b.Fatal(err)
					}
					runtime.GC()
					_ = pprof.WriteHeapProfile(f)
					_ = f.Close()
				}
				all := int(liveheap.Bytes()) - before
				d.views.drop()
				each := (int(liveheap.Bytes()) - before) / n
				b.ReportMetric(float64(each), "whole-B/thing")
				b.ReportMetric(float64(each-bytes/n), "B/thing")
				b.ReportMetric(float64(all/n-each), "cache-B/thing")
				b.ReportMetric(float64(d.Stats().Bytes)/float64(n), "weighed-B/thing")
				if each-bytes/n > maxForeignBytes {
					b.Errorf("a Thing takes %d bytes beyond its TD, want at most %d", each-bytes/n, maxForeignBytes)
				}
				b.ReportMetric(float64(bytes)/float64(n), "TD-B/thing")
				b.ReportMetric(float64(d.Stats().Words), "words")
				runtime.KeepAlive(d)
			}
		})
	}
}

func BenchmarkLocate(b *testing.B) {
	d := benchmarked(b, 10_000)
	d.opts.Bind = func(*td.Description) interact.Thing {
		return interact.Unary(func(context.Context, *interact.Message) (*interact.Message, error) { return nil, nil })
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.Locate(b.Context(), directorytest.ID(42)); err != nil {
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

// drop empties the cache.
func (vs *views) drop() {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	for _, v := range vs.order {
		v.open.Store(nil)
	}
	vs.order, vs.bytes = nil, 0
}
