package tdd

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"
	"time"
)

// hostile are short, expensive queries: the logical expression instead of nodes on which version 1.3.5 of the library did not terminate
// (GO-2026-4526), and queries that retain nodes, sort them, or build texts.
var hostile = map[string][]string{
	"xpath": {`(1=1)/x`, `1=1`, `true()`, `(//id=//id)/x`, `//*[(1=1)/x]`, `(1=1)/x | (1=1)/y`, `(//* or //*)/x`, `(//* and //*)//x`,
		`//*//*//*`, `//*[.//*[.//*[.//*]]]`, `//*|//*|//*`, `//*/ancestor::*`, `//*/following::*`, `//*/preceding::*/following::*`,
		`reverse(//*)`, `reverse(reverse(//*)//*)`, `//*[last()=position()][last()]`, `//*[count(//*|//*)>1]`,
		`concat(` + strings.Repeat(`/*,`, 1200) + `/*)`, `//*[concat(` + strings.Repeat(`.,`, 1500) + `.)='x']`,
		`//*[` + strings.Repeat(`concat(.,`, 25) + `.` + strings.Repeat(`)`, 25) + `='x']`,
		strings.Repeat(`translate(`, 12) + `/*[1]` + strings.Repeat(`,'`+strings.Repeat("a", 100)+`','`+strings.Repeat("é", 50)+`')`, 12),
		`//*[normalize-space(lower-case(concat(.,.)))='']`},
	"jsonpath": {`$..*`, `$..*..*`, `$[*,*,*,*][*,*,*,*][*,*,*,*]`, `$[?@..*..*]`, `$..[?@..a == @..b]`, `$` + strings.Repeat(`[::1,::1]`, 8)},
}

// The work and memory of each query are limited without a clock.
func TestHostileQueriesAreBounded(t *testing.T) {
	t.Parallel()
	w := lamps(t, 150)
	w.addForeign("urn:x:wide", "Wide", `"x:wide":[`+strings.Repeat(`{"a":"`+strings.Repeat("a", 30)+`"},`, 1000)+`1]`)
	w.addForeign("urn:x:long", "Long", `"x:long":"`+strings.Repeat("a", 100_000)+`"`)
	w.o.QueryTime = time.Hour
	const most = 200_000
	for endpoint, queries := range hostile {
		for _, query := range queries {
			b := w.cost(t, endpoint, query, most)
			if b.steps > most+maxMatch/64+100_000 || b.bytes > maxBytes+1<<20 {
				t.Errorf("%s %.60s: %d steps, %d bytes", endpoint, query, b.steps, b.bytes)
			}
			if strings.Contains(query, "1=1") && !strings.Contains(query, "//") && b.steps > 100 {
				t.Errorf("%s takes %d steps without a result", query, b.steps)
			}
		}
	}
}

// A query is stopped when it exceeds its memory.
func TestQueryMemoryIsLimited(t *testing.T) {
	t.Parallel()
	w := lamps(t, 100)
	w.addForeign("urn:x:long", "Long", `"x:long":"`+strings.Repeat("a", 100_000)+`"`)
	w.o.QueryTime = time.Hour
	for _, query := range []string{`count(//*[count(//*[count(//*)=0])=0])`, `//*[concat(` + strings.Repeat(`/*[101],`, 300) + `.)='x']`} {
		b := w.cost(t, "xpath", query, 1<<40)
		if b.bytes <= maxBytes || b.bytes > maxBytes+1<<20 {
			t.Errorf("%.60s: %d bytes were counted, want just more than %d", query, b.bytes, maxBytes)
		}
	}
}

// cost runs a query over HTTP and returns its cost.
func (w *fixture) cost(t testing.TB, endpoint, query string, most int) *budget {
	t.Helper()
	var spentBudget *budget
	w.onQuery = func(b *budget) { b.stepLimit, spentBudget = min(b.stepLimit, most), b }
	client, end := w.client()
	defer end()
	resp, err := client.Get("http://node/search/" + endpoint + "?query=" + url.QueryEscape(query))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	allowed := []int{http.StatusOK, http.StatusBadRequest, http.StatusServiceUnavailable}
	if !slices.Contains(allowed, resp.StatusCode) || err != nil {
		t.Errorf("%.60s: status %d, %v: %.200s", query, resp.StatusCode, err, answer)
	}
	if spentBudget == nil { // rejected before it started
		spentBudget = &budget{}
	}
	return spentBudget
}

// BenchmarkHostileQueries measures hostile queries over 2,000 Things: time, allocations, steps, counted bytes, and growth of the heap.
//
//	go test ./gateway/tdd -run '^$' -bench Hostile -benchtime 1x
func BenchmarkHostileQueries(b *testing.B) {
	w := lamps(b, 2000)
	for endpoint, queries := range hostile {
		for _, query := range queries {
			b.Run(endpoint+" "+query[:min(len(query), 40)], func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					var spentBudget *budget
					w.onQuery = func(s *budget) { spentBudget = s }
					peak := watchHeap()
					rec := httptest.NewRecorder()
					w.ServeHTTP(rec, httptest.NewRequestWithContext(b.Context(), "GET", "/search/"+endpoint+"?query="+url.QueryEscape(query), nil))
					b.ReportMetric(float64(peak()>>20), "heap-MiB")
					b.ReportMetric(float64(rec.Code), "status")
					if spentBudget != nil {
						b.ReportMetric(float64(spentBudget.steps), "steps")
						b.ReportMetric(float64(spentBudget.bytes>>20), "held-MiB")
					}
				}
			})
		}
	}
}

// watchHeap starts to sample the heap; peak ends that and returns the maximal growth.
func watchHeap() (peak func() uint64) {
	heap := func() uint64 {
		s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	runtime.GC()
	begin, stop, most := heap(), make(chan struct{}), make(chan uint64)
	go func() {
		var m uint64
		for {
			select {
			case <-stop:
				most <- max(m, begin) - begin
				return
			case <-time.After(time.Millisecond):
				m = max(m, heap())
			}
		}
	}()
	return func() uint64 { close(stop); return <-most }
}
