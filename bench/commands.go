package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// commands measures short commands, from the start of the process to its end, in turn with a Go program that does nothing: what it takes is the
// floor of all.
func commands(ctx context.Context, p plan) error {
	dir, err := os.MkdirTemp("", "bench-commands")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	bare := filepath.Join(dir, "bare")
	if err := os.WriteFile(bare+".go", []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", bare, bare+".go")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return err
	}
	data := filepath.Join(dir, "data")
	d, err := startDaemon(ctx, data, 0)
	if err != nil {
		return err
	}
	defer d.stop(syscall.SIGTERM)
	if err := (&tdd{url: d.url, client: webClient()}).fill(ctx, 10); err != nil {
		return err
	}
	path, err := program()
	if err != nil {
		return err
	}
	const more = 20 // of each in a round
	runs := []struct {
		name string
		args []string
		goal float64 // milliseconds
		took []time.Duration
		cpu  []time.Duration
	}{
		{name: "a Go program that does nothing", args: []string{bare}},
		{name: "lmosd version", args: []string{path, "version"}, goal: 10},
		{name: "lmosd --help", args: []string{path, "--help"}},
		{name: "lmosd find, 10 Things, at a running node", args: []string{path, "find", "--data-dir", data, "--capability", "urn:example:family-01"}, goal: 15},
	}
	for round := range p.rounds {
		for i := range runs {
			r := &runs[i]
			for range more {
				cmd := exec.CommandContext(ctx, r.args[0], r.args[1:]...)
				cmd.Stdout, cmd.Stderr = io.Discard, os.Stderr
				began := time.Now()
				if err := cmd.Run(); err != nil {
					return fmt.Errorf("%s: %w", r.name, err)
				}
				r.took = append(r.took, time.Since(began))
				r.cpu = append(r.cpu, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
			}
			progress("round %d  %-45s %.1f ms", round+1, r.name, median(r.took, ms))
		}
	}
	p.table("command | p50 | processor time")
	for _, r := range runs {
		p.row("%s | %.1f ms | %.1f ms", r.name, median(r.took, ms), median(r.cpu, ms))
		if r.goal > 0 {
			p.atMost(r.name+", p50", median(r.took, ms), r.goal, " ms")
		}
	}
	return nil
}

// idle measures the program and the memory of a node that does nothing, with everything on but mDNS.
func idle(ctx context.Context, p plan) error {
	dir, err := os.MkdirTemp("", "bench-idle")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	d, err := startDaemonAs(ctx, dir, 0, "default", "--mesh.mdns=false", "--listen.p2p", "/ip4/127.0.0.1/udp/0/quic-v1", "--listen.p2p", "/ip4/127.0.0.1/tcp/0")
	if err != nil {
		return err
	}
	defer d.stop(syscall.SIGTERM)
	select {
	case <-time.After(30 * time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	path, err := program()
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	const mb = 1e6
	memory, err := residentMemory(d.pid)
	if err != nil {
		return err
	}
	p.table("figure | MB")
	p.row("stripped program | %.1f", float64(info.Size())/mb)
	p.row("resident after 30 s, anonymous | %.1f", memory["RssAnon"]/mb)
	p.row("resident after 30 s, pages of the program and other files | %.1f", (memory["RssFile"]+memory["RssShmem"])/mb)
	p.row("resident after 30 s, all | %.1f", memory["VmRSS"]/mb)
	p.atMost("stripped program", float64(info.Size())/mb, 48, " MB")
	p.atMost("resident after 30 s, anonymous", memory["RssAnon"]/mb, 11, " MB")
	p.atMost("resident after 30 s, all", memory["VmRSS"]/mb, 50, " MB")
	return nil
}

// residentMemory returns the fields of /proc/PID/status in bytes: VmRSS, and its parts RssAnon, RssFile and RssShmem. pid may be self.
func residentMemory(pid string) (map[string]float64, error) {
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return nil, err
	}
	fields := map[string]float64{}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		if kb, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB"))); err == nil {
			fields[name] = float64(kb << 10)
		}
	}
	return fields, nil
}
