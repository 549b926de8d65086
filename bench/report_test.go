package main

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPageHasTheSections holds the regions of the page against the sections: a section without a region could not be written, and a region
// without a section would never change.
func TestPageHasTheSections(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range regions.FindAllSubmatch(page, -1) {
		names = append(names, string(m[1]))
	}
	if n := bytes.Count(page, []byte("<!-- bench:")); n != len(names) {
		t.Errorf("%d regions begin, %d are complete", n, len(names))
	}
	for i, name := range names {
		if !slices.ContainsFunc(sections, func(s section) bool { return s.name == name }) {
			t.Errorf("the region %s has no section", name)
		}
		if slices.Contains(names[:i], name) {
			t.Errorf("the region %s is there twice", name)
		}
	}
	for _, s := range sections {
		if !s.onDemand && !slices.Contains(names, s.name) {
			t.Errorf("the section %s has no region", s.name)
		}
		if !bytes.Contains(page, []byte("\n## "+s.title+"\n")) {
			t.Errorf("the section %s has no heading %q", s.name, s.title)
		}
	}
}

// TestPageProse finds figures outside of the regions, which the next run of a benchmark would contradict.
func TestPageProse(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	figure := regexp.MustCompile(`[0-9]( ?%| µs|/s\b| MB/s| of NATS)| × `)
	for line := range strings.Lines(string(regions.ReplaceAll(page, nil))) {
		if found := figure.FindString(line); found != "" {
			t.Errorf("%q states %q: figures belong into a region", line, found)
		}
	}
}

func sample() *report {
	r := &report{}
	r.say("The server is of version %s.", "v1")
	r.table("system | p50")
	r.row("%s | %.1f µs", "lmosd", 39.44)
	r.row("%s | %.1f µs", "other", 58.8)
	r.atMost("p50 / other", 0.67, 0.7, "")
	r.atLeast("calls", 153730, 200_000, "/s")
	return r
}

const sampleText = `The server is of version v1.

| system | p50 |
|---|---|
| lmosd | 39.4 µs |
| other | 58.8 µs |

| figure | goal | measured | result |
|---|---|---|---|
| p50 / other | ≤ 0.700 | 0.670 | met |
| calls | ≥ 200000/s | 153730/s | missed |
`

func TestReport(t *testing.T) {
	t.Parallel()
	if got := sample().markdown(); got != sampleText {
		t.Errorf("got\n%s\nwant\n%s", got, sampleText)
	}
	for v, want := range map[float64]string{0: "0", 5: "5", 0.0312: "0.031", 0.9996: "1.000", 1.234: "1.23", 56.78: "56.8", 123.4: "123", 98765.4: "98765", -2.5: "-2.50"} {
		if got := number(v); got != want {
			t.Errorf("%v is %s, want %s", v, got, want)
		}
	}
	for _, g := range []struct {
		goal
		want string
	}{{goal{measured: 2, bound: 2}, "met"}, {goal{measured: 2.01, bound: 2}, "missed"}, {goal{measured: 2, bound: 2, least: true}, "met"},
		{goal{measured: 1.99, bound: 2, least: true}, "missed"}} {
		if got := g.result(); got != g.want {
			t.Errorf("%+v is %s", g.goal, got)
		}
	}
}

// TestReplaced replaces one region twice: the second time changes nothing, and the rest of the page never changes.
func TestReplaced(t *testing.T) {
	t.Parallel()
	const before = "# Page\n\n<!-- bench:one -->\nold\n<!-- /bench -->\nprose\n<!-- bench:two -->\n<!-- /bench -->\nend\n"
	want := "# Page\n\n<!-- bench:one -->\nold\n<!-- /bench -->\nprose\n<!-- bench:two -->\n" + sampleText + "<!-- /bench -->\nend\n"
	page := []byte(before)
	for range 2 {
		var err error
		if page, err = replaced(page, "two", sample().markdown()); err != nil {
			t.Fatal(err)
		}
		if string(page) != want {
			t.Fatalf("got\n%s\nwant\n%s", page, want)
		}
	}
	if _, err := replaced(page, "three", ""); err == nil {
		t.Error("a page without the region is no error")
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	all, err := choose("")
	if err != nil || slices.ContainsFunc(all, func(s section) bool { return s.onDemand }) {
		t.Errorf("%v, %v", all, err)
	}
	two, err := choose("mesh,calls")
	if err != nil || len(two) != 2 || two[0].name != "calls" {
		t.Errorf("%v, %v", two, err)
	}
	for _, wrong := range []string{"nothing", "calls,calls", "calls,"} {
		if _, err := choose(wrong); err == nil {
			t.Errorf("%q is accepted", wrong)
		}
	}
}

const goOutput = `goos: linux
pkg: github.com/lmosd/lmosd/td
cpu: some
BenchmarkVerify/inline-2         	      20	    316727 ns/op	   67806 B/op	     564 allocs/op
BenchmarkVerify/inline-2         	      20	    300000 ns/op	   67806 B/op	     564 allocs/op
BenchmarkVerify/inline-2         	      20	    900000 ns/op	   67806 B/op	     564 allocs/op
PASS
pkg: github.com/lmosd/lmosd/directory
BenchmarkTake/1000               	       1	2000 ns/op	        2490 records/s
BenchmarkTake/10000              	       1	2000 ns/op	        2660 records/s
ok  	github.com/lmosd/lmosd/directory	0.1s
`

func TestBenchmarkLines(t *testing.T) {
	t.Parallel()
	lines, err := benchmarkLines(strings.NewReader(goOutput))
	if err != nil {
		t.Fatal(err)
	}
	r := &report{}
	b := benchmarks{columns: []string{"1000", "10000"}, sizes: []string{"1000", "10000"}, rows: []benchmark{
		{"inserts", "directory.Take/%s", "records/s", 4500, true}, {"verified", "td.Verify/inline", "ns/op", 400, false}}}
	if err := b.print(r, lines); err != nil {
		t.Fatal(err)
	}
	want := `|  | 1000 | 10000 |
|---|---|---|
| inserts | 2490 records/s | 2660 records/s |
| verified | 317 µs | 317 µs |

| figure | goal | measured | result |
|---|---|---|---|
| inserts | ≥ 4500 records/s | 2660 records/s | missed |
| verified | ≤ 400 µs | 317 µs | met |
`
	if got := r.markdown(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if err := (benchmarks{rows: []benchmark{{name: "td.Renamed", unit: "ns/op"}}, sizes: []string{""}}).print(r, lines); err == nil {
		t.Error("a benchmark that did not run is no error")
	}
	if _, err := benchmarkLines(strings.NewReader("BenchmarkX-2 1 fast ns/op\n")); err == nil {
		t.Error("a figure that is no number is accepted")
	}
}

func TestLogged(t *testing.T) {
	t.Parallel()
	got := logged("=== RUN   TestMesh\n    mesh_test.go:65: seed 7\n    mesh_test.go:117: took 3 s\n        and more\nother\n    --- PASS: TestMesh/50 (1.00s)\nPASS\n")
	want := []string{"seed 7\n", "took 3 s\n", "and more\n", "--- PASS: TestMesh/50 (1.00s)\n"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
