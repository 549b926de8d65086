package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// root is the module of lmosd, in relation to the directory in which the benchmarks run.
const root = ".."

// benchmarks is a table of figures of `go test -bench` in the module of lmosd.
type benchmarks struct {
	args    []string // packages, and flags
	columns []string // headings, after the first
	sizes   []string // what replaces %s in the names of the rows, for each column
	rows    []benchmark
}

// A benchmark is a row: its name is the package, the benchmark and its parts, as in td.Verify/inline. A column in which it did not run is
// empty. The unit of a goal is that of the cells: µs for times.
type benchmark struct {
	label, name, unit string
	goal              float64 // of the last column; 0: none
	least             bool    // the goal is the least value
}

// run runs the benchmarks and prints the table.
func (b benchmarks) run(ctx context.Context, p plan) error {
	args := append([]string{"test", "-run", "^$", "-timeout", "60m", "-count", strconv.Itoa(p.rounds)}, b.args...)
	p.say("`go %s`", strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines, err := benchmarkLines(io.TeeReader(out, os.Stderr))
	if err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("go test: %w", err)
	}
	return b.print(p.report, lines)
}

// print prints the table, and the goals of its last column. A row without any figure is an error: its benchmark has another name.
func (b benchmarks) print(r *report, lines map[string][]float64) error {
	r.table(strings.Join(append([]string{""}, b.columns...), " | "))
	for _, row := range b.rows {
		cells, found := row.label, false
		for i, size := range b.sizes {
			name := strings.ReplaceAll(row.name, "%s", size)
			figures := lines[name+" "+row.unit]
			if len(figures) == 0 {
				cells += " | "
				continue
			}
			found = true
			v, unit := medianOf(figures), row.unit
			switch unit {
			case "ns/op":
				v, unit = v/1000, "µs"
			case "p50-µs":
				unit = "µs"
			}
			cells += " | " + number(v) + " " + unit
			if row.goal > 0 && i == len(b.sizes)-1 {
				r.goals = append(r.goals, goal{row.label, v, row.goal, row.least, " " + unit})
			}
		}
		if !found {
			return fmt.Errorf("go test printed no %s of %s", row.unit, row.name)
		}
		r.row("%s", cells)
	}
	return nil
}

// processors ends the name of a benchmark if there are several.
var processors = regexp.MustCompile(`-[0-9]+$`)

// benchmarkLines reads the output of `go test -bench`. The keys of the figures are the name as in [benchmark] and the unit, with a space between.
func benchmarkLines(r io.Reader) (map[string][]float64, error) {
	figures, pkg := map[string][]float64{}, ""
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if p, ok := strings.CutPrefix(lines.Text(), "pkg: github.com/lmosd/lmosd/"); ok {
			pkg = p
		}
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		name := pkg + "." + processors.ReplaceAllString(strings.TrimPrefix(fields[0], "Benchmark"), "")
		for i := 2; i+1 < len(fields); i += 2 {
			v, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", lines.Text(), err)
			}
			figures[name+" "+fields[i+1]] = append(figures[name+" "+fields[i+1]], v)
		}
	}
	return figures, lines.Err()
}

// index measures the index of a node with numbers of Things: a regular expression that 1000, 10000 and 100000 may match.
func index(sizes string) benchmarks {
	b := sized(sizes, []benchmark{
		{"exact capability, p50", "directory.Find/exact/%s", "p50-µs", 200, false},
		{"capability prefix, 32 hits, p50", "directory.Find/prefix/%s", "p50-µs", 0, false},
		{"capability and owner, 1 hit, p50", "directory.Find/two/%s", "p50-µs", 0, false},
		{"capability and version, p50", "directory.Find/version/%s", "p50-µs", 0, false},
		{"two words, p50", "directory.Find/text/%s", "p50-µs", 5000, false},
		{"words with typos, p50", "directory.Find/typos/%s", "p50-µs", 5000, false},
		{"a query that matches nearly all Things, p50", "directory.Find/question/%s", "p50-µs", 5000, false},
		{"page of 50 of all, p50", "directory.Page/all/%s", "p50-µs", 2000, false},
		{"page of 50 by type, p50", "directory.Page/type/%s", "p50-µs", 2000, false},
		{"page of 50 of all but one owner's, p50", "directory.Page/protocol-but-one/%s", "p50-µs", 2000, false},
		{"verified inserts", "directory.Take/%s", "records/s", 4500, true},
		{"processor time of a verified insert", "directory.Take/%s", "cpu-µs/record", 0, false},
		{"removal", "directory.Take/%s", "µs/removal", 0, false},
		{"memory in addition to the TD", "directory.Memory/%s", "B/thing", 5000, false},
	})
	b.args = []string{"./directory", "-bench", "^Benchmark(Find|Page)$/./^(" + sizes + ")$|^Benchmark(Take|Memory)$/^(" + sizes + ")$", "-benchtime", "200ms"}
	return b
}

// findHTTP measures queries to a node over HTTP, as index.
func findHTTP(sizes string) benchmarks {
	b := sized(sizes, []benchmark{
		{"exact capability, p50", "node.FindHTTP/exact/%s", "p50-µs", 1000, false},
		{"all Things of one owner, with a limit, p50", "node.FindHTTP/owner/%s", "p50-µs", 0, false},
		{"two words, 32 hits, p50", "node.FindHTTP/text/%s", "p50-µs", 5000, false},
		{"a question that nearly all Things fit, 32 hits, p50", "node.FindHTTP/question/%s", "p50-µs", 5000, false},
		{"words with typos, 32 hits, p50", "node.FindHTTP/typos/%s", "p50-µs", 5000, false},
		{"page of 50, p50", "node.FindHTTP/page/%s", "p50-µs", 2000, false},
		{"the same in gzip, unpacked by the client, p50", "node.FindHTTP/gzip/%s", "p50-µs", 0, false},
	})
	b.args = []string{"./node", "-bench", "^BenchmarkFindHTTP$/./^(" + sizes + ")$", "-benchtime", "300ms"}
	return b
}

// sized returns a table with a column for each number of Things that the regular expression matches.
func sized(sizes string, rows []benchmark) benchmarks {
	b := benchmarks{rows: rows}
	for _, size := range []string{"1000", "10000", "100000"} {
		if regexp.MustCompile("^(" + sizes + ")$").MatchString(size) {
			b.columns, b.sizes = append(b.columns, size+" Things"), append(b.sizes, size)
		}
	}
	return b
}

// records measures what a record costs its owner and its readers.
var records = benchmarks{
	args:    []string{"./did/proof", "./td", "./gateway/tdd", "-bench", "^Benchmark(Sign4K|Verify4K|Sign|Verify|JSONPath)$", "-benchtime", "500ms"},
	columns: []string{"time"},
	sizes:   []string{""},
	rows: []benchmark{
		{"proof of a TD of 4 kB, signed", "did/proof.Sign4K", "ns/op", 150, false},
		{"the same, verified: strict decoding, canonical form, signature", "did/proof.Verify4K", "ns/op", 300, false},
		{"record and TD, signed for the mesh", "td.Sign", "ns/op", 0, false},
		{"record with its TD inside, verified", "td.Verify/inline", "ns/op", 0, false},
		{"record and a fetched TD, verified", "td.Verify/fetched", "ns/op", 0, false},
		{"JSONPath over 2,000 Things: one title", "gateway/tdd.JSONPath/$[?@.title=='Lamp_1777']", "ns/op", 0, false},
		{"JSONPath: a regular expression", "gateway/tdd.JSONPath/$[?match(@.title,_'.*99')].id", "ns/op", 0, false},
		{"JSONPath: every value of every Thing", "gateway/tdd.JSONPath/$..[?@.type=='boolean'].forms[0].href", "ns/op", 0, false},
	},
}

// rights measures the decisions and credentials that trust does not.
var rights = benchmarks{
	args: []string{"./did/ucan", "./gateway/oidc", "./did/aries", "./policy/delegation", "./group/chain", "-bench",
		"^Benchmark(ChainOfThree|Remembered|First|VerifyCredential|Authorize|Add)$", "-benchtime", "500ms"},
	columns: []string{"time"},
	sizes:   []string{""},
	rows: []benchmark{
		{"UCAN, a delegation of a delegation and an invocation: first", "did/ucan.ChainOfThree/first", "ns/op", 400, false},
		{"UCAN, the same seen before", "did/ucan.ChainOfThree/seen", "ns/op", 2, false},
		{"decision on a call by a rule", "policy/delegation.Authorize/rule", "ns/op", 0, false},
		{"by a delegation that was seen before", "policy/delegation.Authorize/delegation", "ns/op", 0, false},
		{"by one with a condition on the input", "policy/delegation.Authorize/where", "ns/op", 0, false},
		{"token of an identity provider, RS256: first", "gateway/oidc.First/RS256", "ns/op", 150, false},
		{"token, ES256: first", "gateway/oidc.First/ES256", "ns/op", 150, false},
		{"token, seen before", "gateway/oidc.Remembered", "ns/op", 2, false},
		{"foreign credential, Ed25519Signature2020", "did/aries.VerifyCredential/ed25519-2020", "ns/op", 0, false},
		{"foreign credential, JsonWebSignature2020 with P-256", "did/aries.VerifyCredential/jws-2020-p256", "ns/op", 0, false},
		{"chain of a group of 100, read and verified", "group/chain.Add", "ns/op", 0, false},
	},
}

// simulated runs a long test of the simulated mesh and prints what it logs. long is the value of LMOSD_LONG.
func simulated(run, long string) func(context.Context, plan) error {
	return func(ctx context.Context, p plan) error {
		return logs(ctx, p, root, []string{"LMOSD_LONG=" + long, "GOGC=300", "GOMEMLIMIT=9GiB"}, "./testnet", "-run", run)
	}
}

// logs runs tests in a folder and prints what they log.
func logs(ctx context.Context, p plan, dir string, env []string, args ...string) error {
	args = append([]string{"test", "-v", "-count", "1", "-timeout", "180m"}, args...)
	p.say("`%s` logs:", strings.Join(slices.Concat(env, []string{"go"}, args), " "))
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("go test: %w\n%s", err, out)
	}
	p.say("```text\n%s```", strings.Join(logged(string(out)), ""))
	return nil
}

// console measures the page of the console in Chromium, its size, and the memory of what it shows.
func console(ctx context.Context, p plan) error {
	p.say("Aims: usable after 500 ms; a change shown after 100 ms; 25 ms for a frame of a long list (p95); 4 ms of work for a frame of 500 nodes (p50), 8 ms (p95); " +
		"with gzip 60 kB for the first page and 150 kB for all; 1 %% of a core for a page that is shown; 8 MB for events, samples and calls.")
	for _, t := range []struct{ dir, pkg, run string }{{root + "/web/e2e", ".", "^(TestFigures|TestManyAgents|TestLargeMesh)$"}, {root, "./web", "^TestSizes$"},
		{root, "./journal", "^TestMemory$"}} {
		if err := logs(ctx, p, t.dir, []string{"LMOSD_LONG=1"}, t.pkg, "-run", t.run); err != nil {
			return err
		}
	}
	return nil
}

// logPlace begins what a test logs, after the indentation.
var logPlace = regexp.MustCompile(`^\s+\w+_test\.go:[0-9]+: `)

// logged returns the lines that tests logged, and those that name the tests, of the output of `go test -v`.
func logged(out string) (lines []string) {
	in := false
	for line := range strings.Lines(out) {
		switch at := logPlace.FindString(line); {
		case at != "":
			in = true
			lines = append(lines, line[len(at):])
		case strings.HasPrefix(strings.TrimSpace(line), "--- PASS"):
			in = false
			lines = append(lines, strings.TrimSpace(line)+"\n")
		case in && strings.HasPrefix(line, "        "): // another line of the same text
			lines = append(lines, strings.TrimLeft(line, " "))
		default:
			in = false
		}
	}
	return lines
}
