package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// bareProgram is the lower limit of a Go program: the start of the runtime, and one write.
const bareProgram = `package main

import "os"

func main() { os.Stdout.WriteString("lmosd\n") }
`

// runsOfCommand is the number of runs of each program in a round.
const runsOfCommand = 20

// firstTable prints how long commands take from the start of their process to its end, beside a bare Go program. The programs alternate.
func firstTable(ctx context.Context, p plan) error {
	dir, err := os.MkdirTemp("", "bench-first")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	bare, lmosd := filepath.Join(dir, "bare"), filepath.Join(dir, "lmosd")
	if err := os.WriteFile(bare+".go", []byte(bareProgram), 0o600); err != nil {
		return err
	}
	for _, b := range [][]string{{bare, bare + ".go"}, {lmosd, "./cmd/lmosd"}} {
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", b[0], b[1])
		build.Dir = ".." // the module of lmosd
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", b[1], err, out)
		}
	}
	addr, stop, err := runDaemon(ctx, lmosd, dir)
	if err != nil {
		return err
	}
	defer stop()
	commands := []struct {
		name string
		args []string
	}{
		{"bare Go program", []string{bare}},
		{"`lmosd version`", []string{lmosd, "version"}},
		{"`lmosd find`, the node has no agents", []string{lmosd, "--node", addr, "find"}},
	}
	type usage struct{ wall, cpu time.Duration }
	used := make([][]usage, len(commands))
	for range p.rounds * runsOfCommand {
		for i, c := range commands {
			cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
			begin := time.Now()
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", c.name, err, out)
			}
			used[i] = append(used[i], usage{time.Since(begin), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()})
		}
	}
	fmt.Println("| command | p50 | CPU p50 |\n|---|---|---|")
	for i, c := range commands {
		fmt.Printf("| %s | %.1f ms | %.1f ms |\n", c.name, median(used[i], func(u usage) float64 { return us(u.wall) })/1000,
			median(used[i], func(u usage) float64 { return us(u.cpu) })/1000)
	}
	return nil
}

// runDaemon runs lmosd in a process of its own, with its data in dir, and returns the address of its API.
func runDaemon(ctx context.Context, program, dir string) (addr string, stop func(), err error) {
	ready := filepath.Join(dir, "ready")
	cmd := exec.CommandContext(ctx, program, "run", "--profile", "test", "--ready-file", ready, "--data-dir", filepath.Join(dir, "data"))
	var talk strings.Builder
	cmd.Stderr = &talk
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() { _ = cmd.Process.Signal(os.Interrupt); _ = cmd.Wait() }
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if b, err := os.ReadFile(ready); err == nil {
			var at struct{ API string }
			if err := json.Unmarshal(b, &at); err == nil {
				return at.API, stop, nil
			}
		}
	}
	stop()
	return "", nil, errors.New("the node is not ready: " + talk.String())
}
