// Command bench measures a call from one lmosd node to another beside what people compare it with, in one run on one
// machine: NATS request–reply (client, server and responder, three processes) and a bare libp2p echo on persistent streams
// (two processes). The systems take turns, so that a change in the machine's speed meets all of them.
//
//	cd bench && go run .            # the table of docs/benchmarks.md
//	cd bench && go run . -rounds 9 -for 2s
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const payloadSize = 256

// A caller makes calls and checks their answers. Each concurrent caller has one of its own, and closes it.
type caller struct {
	call  func(context.Context) error
	close func()
}

// A system is one thing that is measured.
type system struct {
	name string
	// start runs the other processes and returns a maker of callers.
	start func(ctx context.Context) (dial func() (caller, error), stop func(), err error)
}

var systems = []system{
	{"lmosd, node to node (TCP)", func(ctx context.Context) (func() (caller, error), func(), error) { return startLMOSD(ctx, "tcp") }},
	{"lmosd, node to node (QUIC)", func(ctx context.Context) (func() (caller, error), func(), error) { return startLMOSD(ctx, "quic") }},
	{"NATS request–reply", startNATS},
	{"libp2p echo, bare (TCP)", func(ctx context.Context) (func() (caller, error), func(), error) { return startEcho(ctx, "tcp") }},
	{"libp2p echo, bare (QUIC)", func(ctx context.Context) (func() (caller, error), func(), error) { return startEcho(ctx, "quic") }},
}

func main() {
	role := flag.String("role", "", "run one of the other processes (used by the benchmark itself)")
	rounds := flag.Int("rounds", 5, "rounds; the median is printed")
	length := flag.Duration("for", time.Second, "length of one measurement")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if *role != "" {
		err = serve(ctx, *role)
	} else {
		err = compare(ctx, *rounds, *length)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// A figure is one measurement.
type figure struct {
	p50, p99 time.Duration
	rate     float64 // calls per second
}

// compare measures every system in turn, round by round, and prints the table.
func compare(ctx context.Context, rounds int, length time.Duration) error {
	all := map[string]map[int][]figure{}
	dials := map[string]func() (caller, error){}
	for _, s := range systems {
		dial, stop, err := s.start(ctx)
		if err != nil {
			return fmt.Errorf("start %s: %w", s.name, err)
		}
		defer stop()
		dials[s.name], all[s.name] = dial, map[int][]figure{}
	}
	for round := range rounds {
		for _, callers := range []int{1, 64} {
			for _, s := range systems {
				f, err := measure(ctx, dials[s.name], callers, length)
				if err != nil {
					return fmt.Errorf("%s with %d callers: %w", s.name, callers, err)
				}
				all[s.name][callers] = append(all[s.name][callers], f)
				fmt.Fprintf(os.Stderr, "round %d  %-30s %2d callers  p50 %8v  p99 %8v  %9.0f/s\n", round+1, s.name, callers, f.p50, f.p99, f.rate)
			}
		}
	}
	table(all, rounds)
	return nil
}

// measure runs callers for a while, after a warm-up that is not counted.
func measure(ctx context.Context, dial func() (caller, error), callers int, length time.Duration) (figure, error) {
	calls := make([]caller, callers)
	for i := range calls {
		c, err := dial()
		if err != nil {
			return figure{}, err
		}
		defer c.close()
		calls[i] = c
	}
	if _, _, err := loop(ctx, calls, length/5); err != nil {
		return figure{}, err
	}
	times, took, err := loop(ctx, calls, length)
	if err != nil {
		return figure{}, err
	}
	slices.Sort(times)
	return figure{p50: times[len(times)/2], p99: times[len(times)*99/100], rate: float64(len(times)) / took.Seconds()}, nil
}

// loop lets each caller call again and again until the time is over.
func loop(ctx context.Context, calls []caller, length time.Duration) (times []time.Duration, took time.Duration, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var over atomic.Bool
	var errs []error
	start := time.Now()
	for _, c := range calls {
		wg.Go(func() {
			own := make([]time.Duration, 0, 1<<16)
			var failed error
			for !over.Load() && failed == nil {
				t := time.Now()
				failed = c.call(ctx)
				own = append(own, time.Since(t))
			}
			mu.Lock()
			defer mu.Unlock()
			times, errs = append(times, own...), append(errs, failed)
		})
	}
	timer := time.AfterFunc(length, func() { over.Store(true) })
	defer timer.Stop()
	wg.Wait()
	return times, time.Since(start), errors.Join(errs...)
}

func table(all map[string]map[int][]figure, rounds int) {
	nats := systems[2].name
	fmt.Printf("%d processors, %s, %s; median of %d rounds, %d-byte payload, loopback\n\n", runtime.NumCPU(), runtime.Version(), version(), rounds, payloadSize)
	fmt.Println("| system | 1 caller p50 | p99 | p50 / NATS | 64 callers calls/s | calls/s / NATS |")
	fmt.Println("|---|---|---|---|---|---|")
	for _, s := range systems {
		one, many := median(all[s.name][1]), median(all[s.name][64])
		n1, n64 := median(all[nats][1]), median(all[nats][64])
		fmt.Printf("| %s | %.1f µs | %.1f µs | %.2f | %.0f | %.2f |\n", s.name, us(one.p50), us(one.p99),
			us(one.p50)/us(n1.p50), many.rate, many.rate/n64.rate)
	}
	fmt.Println()
	for _, kind := range []string{"TCP", "QUIC"} {
		l, e := "lmosd, node to node ("+kind+")", "libp2p echo, bare ("+kind+")"
		fmt.Printf("lmosd / bare echo over %s: p50 at 1 caller %.2f, calls/s at 64 callers %.2f\n", kind,
			us(median(all[l][1]).p50)/us(median(all[e][1]).p50), median(all[l][64]).rate/median(all[e][64]).rate)
	}
}

// median returns the median of each figure.
func median(fs []figure) figure {
	pick := func(f func(figure) float64) float64 {
		vs := make([]float64, len(fs))
		for i := range fs {
			vs[i] = f(fs[i])
		}
		slices.Sort(vs)
		return vs[len(vs)/2]
	}
	return figure{
		p50:  time.Duration(pick(func(f figure) float64 { return float64(f.p50) })),
		p99:  time.Duration(pick(func(f figure) float64 { return float64(f.p99) })),
		rate: pick(func(f figure) float64 { return f.rate }),
	}
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, d := range info.Deps {
		if strings.HasSuffix(d.Path, "nats-server/v2") {
			return "nats-server " + d.Version
		}
	}
	return "nats-server of unknown version"
}

// child starts this program again in a role and returns the first line that it prints: where it is reached.
func child(ctx context.Context, role string, args ...string) (line string, stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.CommandContext(ctx, self, append([]string{"-role", role}, args...)...)
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), "BENCH_ARG="+strings.Join(args, " "))
	in, err := cmd.StdinPipe() // The child ends when its standard input does.
	if err != nil {
		return "", nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() { in.Close(); _ = cmd.Wait() }
	line, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		stop()
		return "", nil, fmt.Errorf("%s said nothing: %w", role, err)
	}
	return strings.TrimSpace(line), stop, nil
}

// serve is the life of a child: it prints where it is reached and ends with its standard input.
func serve(ctx context.Context, role string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		cancel()
	}()
	kind, arg, _ := strings.Cut(role, "=")
	switch kind {
	case "lmosd":
		return serveLMOSD(ctx, arg)
	case "nats-server":
		return serveNATS(ctx)
	case "nats-responder":
		return serveResponder(ctx, arg)
	case "echo":
		return serveEcho(ctx, arg)
	}
	return fmt.Errorf("no role is named %q", role)
}
