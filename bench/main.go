// Command bench measures lmosd and comparable systems in alternating rounds on one machine and prints the tables of docs/benchmarks.md. The
// systems alternate, so that changes of the machine's speed affect all of them; it prints the median of the rounds. The other ends are
// separate processes.
//
//	cd bench && go run .            # the tables of docs/benchmarks.md
//	cd bench && go run . -rounds 9 -for 2s
//	cd bench && go run . -only streams,http
//
// The tables:
//
//	calls    a small call between two nodes; NATS request–reply; a bare libp2p echo
//	events   events of one publisher to 1, 10, 100 and 1,000 subscriptions on another node, and what a subscription costs
//	streams  a stream of 64 KiB chunks between two nodes, up and down; a bare libp2p stream
//	http     a call over HTTP at both ends with two nodes between; no node; two nginx with TLS between
//	mcp      a tool of an MCP server on stdio, with two nodes between; one that speaks HTTP, direct; mcp-proxy
//	mcp-many a node that knows 100 MCP servers with 2,000 tools: lists, searches, and what each server costs
//	forgers  how long news takes through a node without, and with, 12 peers that flood it with forged records; on request only
//	fairness an agent of 2 ms in peace, and while one key and four have 64 calls of 10 s each at it
//	trust    what a decision, a credential, and the audiences of descriptions cost
//	size     the bytes of the binary, and the modules that have most of them; on request only
//	idle     the memory of a node 30 s after its start, with the default configuration; on request only
//	a2a      a message to an A2A agent, with two nodes between; direct; and a tool of MCP that is such an agent
package main

import (
	"context"
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

// A plan has the parameters of the measurements.
type plan struct {
	rounds int
	length time.Duration // of one measurement
}

// tables are the possible measurements, in the order of the output.
var tables = []struct {
	name  string
	print func(context.Context, plan) error
}{
	{"calls", calls},
	{"events", events},
	{"streams", streams},
	{"http", web},
	{"mcp", mcpTable},
	{"mcp-many", manyTable},
	{"a2a", a2aTable},
	{"forgers", forgersTable},
	{"fairness", fairness},
	{"trust", trustTable},
	{"size", sizeTable},
	{"idle", idleTable},
}

func main() {
	role := flag.String("role", "", "run one of the other processes (used by the benchmark itself)")
	rounds := flag.Int("rounds", 5, "rounds; the median is printed")
	length := flag.Duration("for", time.Second, "length of one measurement")
	only := flag.String("only", "calls,events,streams,http,mcp,mcp-many,a2a,fairness,trust", "tables to print, with commas between")
	profile := flag.String("cpuprofile", "", "write a profile of this process, which is the calling end, to this file")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	switch {
	case *role == "mcp-stdio": // its standard input carries MCP
		err = serveMCPStdio(ctx)
	case *role != "":
		err = serve(ctx, *role)
	default:
		err = profiled(*profile, func() error { return run(ctx, plan{*rounds, *length}, strings.Split(*only, ",")) })
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, p plan, names []string) error {
	fmt.Printf("%d processors, %s, %s; median of %d rounds of %v, loopback\n", runtime.NumCPU(), runtime.Version(), version(), p.rounds, p.length)
	for _, t := range tables {
		if !slices.Contains(names, t.name) {
			continue
		}
		fmt.Printf("\n## %s\n\n", t.name)
		if err := t.print(ctx, p); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
	}
	return nil
}

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

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, d := range info.Deps {
		if strings.HasSuffix(d.Path, "nats-server/v2") {
			return "nats-server " + d.Version
		}
	}
	return "nats-server (unknown version)"
}
