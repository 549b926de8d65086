package node

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/directory/directorytest"
)

// BenchmarkFindHTTP sends sequential requests to a node over loopback HTTP, with n Things of others in its index and without peers: searches, and
// pages of 50 of the W3C directory, plain and with gzip. Each request is for other Things.
func BenchmarkFindHTTP(b *testing.B) {
	for _, n := range []int{1000, 10_000, 100_000} {
		o := quiet()
		o.HTTP, o.probePause = &HTTP{Listen: "127.0.0.1:0"}, 0
		node := start(b, o)
		for first := 0; first < n; first += 1000 {
			tell(b, node, first, 1000)
		}
		if _, known := node.mesh.directory.Len(); known < n {
			b.Fatalf("the node knows %d things", known)
		}
		if err := node.mesh.directory.Flush(b.Context()); err != nil {
			b.Fatal(err)
		}
		runtime.GC()
		words := directorytest.Words()
		for _, c := range []struct {
			name string
			path func(i int) string
		}{
			{"exact", func(i int) string { return "/v1/find?capability=" + url.QueryEscape(directorytest.Capability(i%n)) }},
			{"owner", func(i int) string { return "/v1/find?owner=" + url.QueryEscape(string(directorytest.Owner(i%n))) }},
			{"text", func(i int) string { return "/v1/find?q=" + words[i%1000] + "+" + words[i*7%5000] }},
			{"question", func(int) string { return "/v1/find?q=who+can+check+stock+levels" }},
			{"typos", func(i int) string { return "/v1/find?q=wharehouse+" + words[i%1000] + "x" }},
			{"page", func(i int) string { return fmt.Sprintf("/things?limit=50&offset=%d", i%(n-50)) }},
			{"gzip", func(i int) string { return fmt.Sprintf("/things?limit=50&offset=%d", i%(n-50)) }},
		} {
			b.Run(fmt.Sprintf("%s/%d", c.name, n), func(b *testing.B) {
				transport := &http.Transport{DisableCompression: c.name != "gzip"}
				defer transport.CloseIdleConnections()
				askHosts(b, node)
				i, size := 0, 0
				var times []time.Duration
				for b.Loop() {
					i += 7919
					start := time.Now()
					size += fetch(b, transport, node.API()+c.path(i))
					times = append(times, time.Since(start))
				}
				slices.Sort(times)
				b.ReportMetric(float64(times[len(times)/2].Nanoseconds())/1000, "p50-µs")
				b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds())/1000, "p99-µs")
				b.ReportMetric(float64(size)/float64(b.N), "B/answer")
			})
		}
		if err := node.stop(); err != nil {
			b.Fatal(err)
		}
	}
}

// askHosts finds a Thing of each host. A search waits up to 400 ms for the states of agents from their hosts, of which it asks each once in
// 10 s. The hosts here do not exist, and what is measured is the search without them.
func askHosts(b *testing.B, node *running) {
	b.Helper()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	var g sync.WaitGroup
	for i := range 100 {
		g.Go(func() {
			fetch(b, transport, node.API()+"/v1/find?capability="+url.QueryEscape(directorytest.Capability(i)))
		})
	}
	g.Wait()
}

// tell has a node learn agents, on all processors.
func tell(b *testing.B, to *running, first, n int) {
	b.Helper()
	signed, err := directorytest.Sign(first, n)
	if err != nil {
		b.Fatal(err)
	}
	var g sync.WaitGroup
	for part := range slices.Chunk(signed, n/runtime.GOMAXPROCS(0)+1) {
		g.Go(func() {
			for _, s := range part {
				to.mesh.directory.Ingest(b.Context(), s)
			}
		})
	}
	g.Wait()
}

// fetch returns how long the answer at an address is.
func fetch(b *testing.B, over *http.Transport, address string) int {
	b.Helper()
	r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, address, nil)
	if err != nil {
		b.Fatal(err)
	}
	answer, err := over.RoundTrip(r)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	n, err := io.Copy(io.Discard, answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		b.Fatalf("%s: %s, %v", address, answer.Status, err)
	}
	return int(n)
}
