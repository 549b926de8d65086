package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"time"
)

// child starts this program in a role and returns its first line of output: its address.
func child(ctx context.Context, role string) (line string, stop func(), err error) {
	line, _, stop, err = childProcess(ctx, role)
	return line, stop, err
}

// childProcess is child with the number of the process.
func childProcess(ctx context.Context, role string) (line, pid string, stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return "", "", nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-role", role)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe() // the child ends when its standard input does
	if err != nil {
		return "", "", nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", "", nil, err
	}
	stop = func() { in.Close(); _ = cmd.Wait() }
	line, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		stop()
		return "", "", nil, fmt.Errorf("%s printed nothing: %w", role, err)
	}
	return strings.TrimSpace(line), strconv.Itoa(cmd.Process.Pid), stop, nil
}

// roles are the other processes, by name. The argument is the text after = in the flag. A role prints its address.
var roles = map[string]func(ctx context.Context, arg string) error{
	"host":           serveHost,
	"consumer":       serveConsumer,
	"agent":          serveAgent,
	"nats-server":    serveNATS,
	"nats-responder": serveResponder,
	"echo":           serveEcho,
	"mcp-http":       serveMCPHTTP,
	"a2a-agent":      serveA2AAgent,
	"many-servers":   serveManyServers,
	"many-host":      serveManyHost,
	"many-consumer":  serveManyConsumer,
	"forgers":        serveForgers,
	"import":         serveImport,
	"proxy":          serveProxy,
	"growth":         serveGrowth,
	"growth-peers":   serveGrowthPeers,
	"plain-tdd":      servePlainTDD,
}

// serve runs a role until its standard input ends.
func serve(ctx context.Context, role string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		cancel()
	}()
	kind, arg, _ := strings.Cut(role, "=")
	// BENCH_PROFILE=dir writes a profile of each child.
	if dir := os.Getenv("BENCH_PROFILE"); dir != "" {
		f, err := os.Create(fmt.Sprintf("%s/%s-%d.prof", dir, kind, os.Getpid()))
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	f := roles[kind]
	if f == nil {
		return fmt.Errorf("unknown role %q", role)
	}
	return f(ctx, arg)
}

// serveHTTP serves on a free port until ctx ends, and prints the URL. handler returns the handler for the URL.
func serveHTTP(ctx context.Context, handler func(url string) http.Handler) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	url := "http://" + l.Addr().String()
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: handler(url)}
	go func() { <-ctx.Done(); _ = s.Close() }()
	fmt.Println(url)
	_ = s.Serve(l)
	return nil
}

// webClient returns a client that keeps the connections of 64 callers.
func webClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}}
}

// until calls f every few milliseconds until it succeeds, for limit at most. It returns the last error.
func until(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// stops has the ends of what was started.
type stops []func()

func (s *stops) add(f func()) { *s = append(*s, f) }

// stop ends what was started, the last first.
func (s *stops) stop() {
	for _, f := range slices.Backward(*s) {
		f()
	}
}

// freePort returns an unused address.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// rss returns the resident memory of a process in bytes; 0 if it is unknown. pid may be self.
func rss(pid string) int {
	fields, _ := residentMemory(pid)
	return int(fields["VmRSS"])
}

// rest waits until the processes use less than a twentieth of a processor, so that the work that one of them has left does not count for another one.
func rest(ctx context.Context, pids []string) error {
	const step, most = 500 * time.Millisecond, 2 * time.Minute
	all := func() (sum time.Duration) {
		for _, pid := range pids {
			sum += processorTime(pid)
		}
		return sum
	}
	for deadline := time.Now().Add(most); ; {
		before := all()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(step):
		}
		if all()-before <= step/20 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the processes do not rest within %v: stop what runs beside the measurement", most)
		}
	}
}

// processorTime returns the processor time of a process, which the system counts in steps of 10 ms.
func processorTime(pid string) time.Duration {
	stat, _ := os.ReadFile("/proc/" + pid + "/stat")
	_, after, _ := strings.Cut(string(stat), ") ") // the name in front may have spaces
	fields := strings.Fields(after)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}
