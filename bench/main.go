// Command bench measures lmosd and comparable systems in alternating rounds on one machine and prints the tables of docs/benchmarks.md. The
// systems alternate, so that changes of the machine's speed affect all of them; it prints the median of the rounds. The other ends are
// separate processes.
//
//	cd bench && go run .            # all sections but those on demand
//	cd bench && go run . -list
//	cd bench && go run . -only streams,http -rounds 9 -for 2s
//	cd bench && go run . -write ../docs/benchmarks.md    # replaces the regions of the sections that ran
//	cd bench && go run . -only calls -goals    # exits with 1 if a goal is missed
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"
	"time"
)

// A plan has the parameters of a section, and receives its output.
type plan struct {
	*report
	rounds int
	length time.Duration // of one measurement
}

// A section is a part of the page: one measurement of comparable systems, or of one subject.
type section struct {
	name, title string
	rounds      int  // without -rounds; 0: 3
	onDemand    bool // only with -only: it takes minutes, or gigabytes
	run         func(context.Context, plan) error
}

// sections are in the order of the output.
var sections = []section{
	{name: "calls", title: "A call from node to node", rounds: 5, run: calls},
	{name: "events", title: "Events", run: events},
	{name: "streams", title: "Streams", run: streams},
	{name: "http", title: "HTTP at both ends", run: web},
	{name: "mcp", title: "MCP through two nodes", run: mcpTable},
	{name: "mcp-many", title: "Many MCP servers", run: manyTable},
	{name: "a2a", title: "A2A through two nodes", run: a2aTable},
	{name: "fairness", title: "Slow calls of others", run: fairness},
	{name: "writes", title: "Writes to the directory", run: writes},
	{name: "start", title: "The start of a node", run: starts},
	{name: "commands", title: "The first millisecond of a command", run: commands},
	{name: "idle", title: "Size and idle memory", run: idle},
	{name: "find", title: "Queries over HTTP", rounds: 1, run: findHTTP("1000(0)?").run},
	{name: "index", title: "The index of a node", rounds: 1, run: index("1000(0)?").run},
	{name: "records", title: "Signing and verifying", run: records.run},
	{name: "rights", title: "Groups, delegations, tokens, foreign credentials", run: rights.run},
	{name: "trust", title: "Trust: decisions, credentials, audiences", run: trustTable},
	{name: "size", title: "Modules of the program", onDemand: true, run: sizeTable},
	{name: "growth", title: "Growth", onDemand: true, run: growthTable},
	{name: "forgers", title: "Gossip under forgery", rounds: 1, onDemand: true, run: forgersTable},
	{name: "find-large", title: "Queries over HTTP, 100,000 Things", onDemand: true, run: findHTTP("100000").run},
	{name: "index-large", title: "The index of a node, 100,000 Things", onDemand: true, run: index("100000").run},
	{name: "console", title: "The console", rounds: 1, onDemand: true, run: console},
	{name: "mesh", title: "Discovery in a simulated mesh", onDemand: true, run: simulated("MeshFindsEverything/(50|100|200)x200", "200")},
	{name: "mesh-large", title: "Discovery in a simulated mesh of 500 nodes", onDemand: true, run: simulated("MeshFindsEverything", "500")},
	{name: "revocation", title: "Revocation", onDemand: true, run: simulated("RevocationReachesAllNodes", "1")},
}

func main() {
	role := flag.String("role", "", "run one of the other processes (used by the benchmark itself)")
	rounds := flag.Int("rounds", 0, "rounds, of which the median is printed; 0: those of the section")
	length := flag.Duration("for", time.Second, "length of one measurement")
	only := flag.String("only", "", "sections to run, with commas between; empty: all but those on demand")
	list := flag.Bool("list", false, "list the sections")
	write := flag.String("write", "", "replace the regions of the sections in this page")
	goals := flag.Bool("goals", false, "exit with 1 if a goal is missed")
	profile := flag.String("cpuprofile", "", "write a profile of this process, which is the calling end, to this file")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	switch {
	case *list:
		for _, s := range sections {
			fmt.Printf("%-12s %s%s\n", s.name, s.title, map[bool]string{true: " (on demand)"}[s.onDemand])
		}
	case *role == "mcp-stdio": // its standard input carries MCP
		err = serveMCPStdio(ctx)
	case *role != "":
		err = serve(ctx, *role)
	default:
		err = profiled(*profile, func() error { return run(ctx, *only, plan{rounds: *rounds, length: *length}, *write, *goals) })
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run runs sections, prints their reports and all goals, and writes their regions of a page. A section that fails does not stop the others.
func run(ctx context.Context, only string, p plan, page string, strict bool) error {
	chosen, err := choose(only)
	if err != nil {
		return err
	}
	defer removeBinary()
	var errs []error
	all := &report{}
	for _, s := range chosen {
		began := time.Now()
		r, header := &report{}, header(s, p)
		if err := s.run(ctx, plan{r, cmp.Or(p.rounds, s.rounds, 3), p.length}); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.name, err))
			continue
		}
		progress("%s took %v", s.name, time.Since(began).Round(time.Second))
		text := header + "\n" + r.markdown()
		fmt.Printf("\n## %s\n\n%s", s.title, text)
		for _, g := range r.goals {
			g.what = s.name + ": " + g.what
			all.goals = append(all.goals, g)
		}
		if page != "" {
			errs = append(errs, writeRegion(page, s.name, text))
		}
	}
	missed := 0
	fmt.Print("\n## goals\n\n")
	for _, g := range all.goals {
		fmt.Printf("%-6s  %s: %s\n", g.result(), g.what, strings.ReplaceAll(g.cells(), " | ", ", measured "))
		if g.result() == "missed" {
			missed++
		}
	}
	fmt.Printf("%d of %d goals are met\n", len(all.goals)-missed, len(all.goals))
	if strict && missed > 0 {
		errs = append(errs, fmt.Errorf("%d goals are missed", missed))
	}
	return errors.Join(errs...)
}

// choose returns the sections with the names, in the order of sections.
func choose(only string) (chosen []section, err error) {
	names := strings.Split(only, ",")
	for _, s := range sections {
		if only == "" && !s.onDemand || slices.Contains(names, s.name) {
			chosen = append(chosen, s)
		}
	}
	if only != "" && len(chosen) != len(names) {
		return nil, fmt.Errorf("%s: a name is unknown or repeated; go run . -list prints the sections", only)
	}
	return chosen, nil
}

// header says how a section was run.
func header(s section, p plan) string {
	load, _ := os.ReadFile("/proc/loadavg")
	command := "go run . -only " + s.name
	if p.rounds > 0 {
		command += fmt.Sprintf(" -rounds %d", p.rounds)
	}
	if p.length != time.Second {
		command += fmt.Sprintf(" -for %v", p.length)
	}
	return fmt.Sprintf("`cd bench && %s` on %s: %s/%s, %d processors, %s, load %s at the start.\n", command, time.Now().UTC().Format(time.DateOnly),
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), strings.SplitN(string(load), " ", 2)[0])
}

// writeRegion replaces the region of a section in a page.
func writeRegion(file, name, text string) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if page, err = replaced(page, name, text); err != nil {
		return err
	}
	return os.WriteFile(file, page, 0o644)
}

// progress says on standard error what was measured.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// profiled runs f and writes a CPU profile to file, if it is not empty.
func profiled(file string, f func() error) error {
	if file == "" {
		return f()
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := pprof.StartCPUProfile(out); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	return f()
}

// natsVersion returns the version of the NATS server in this program.
func natsVersion() string {
	info, _ := debug.ReadBuildInfo()
	for _, d := range info.Deps {
		if strings.HasSuffix(d.Path, "nats-server/v2") {
			return d.Version
		}
	}
	return "unknown"
}
