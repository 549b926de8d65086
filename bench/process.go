package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime/pprof"
	"strings"
)

// child starts this program in a role and returns its first line of output: its address.
func child(ctx context.Context, role string) (line string, stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-role", role)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe() // the child ends when its standard input does
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
		return "", nil, fmt.Errorf("%s printed nothing: %w", role, err)
	}
	return strings.TrimSpace(line), stop, nil
}

// serve runs a child: it prints its address and ends with its standard input.
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
	switch kind {
	case "host":
		return serveHost(ctx, arg)
	case "consumer":
		return serveConsumer(ctx, arg)
	case "agent":
		return serveAgent(ctx)
	case "proxy":
		return serveProxy(ctx, arg)
	case "nats-server":
		return serveNATS(ctx)
	case "nats-responder":
		return serveResponder(ctx, arg)
	case "echo":
		return serveEcho(ctx, arg)
	case "mcp-http":
		return serveMCPHTTP(ctx)
	case "a2a-agent":
		return serveA2AAgent(ctx)
	case "many-servers":
		return serveManyServers(ctx)
	case "many-host":
		return serveManyHost(ctx, arg)
	case "many-consumer":
		return serveManyConsumer(ctx, arg)
	case "forgers":
		return serveForgers(ctx, arg)
	case "growth":
		return serveGrowth(ctx, arg)
	case "growth-peers":
		return serveGrowthPeers(ctx, arg)
	case "import":
		return serveImport(ctx, arg)
	}
	return fmt.Errorf("unknown role %q", role)
}
