package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// idleTable starts a node with the default configuration and a new data directory, and prints its memory 30 s after it was ready.
func idleTable(ctx context.Context, _ plan) error {
	dir, err := os.MkdirTemp("", "bench-idle")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary, ready := filepath.Join(dir, "lmosd"), filepath.Join(dir, "ready.json")
	if err := buildLMOSD(ctx, binary, true); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, binary, "run", "--data-dir", filepath.Join(dir, "data"), "--ready-file", ready)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		stop()
		return err
	}
	defer func() { stop(); _ = cmd.Wait() }()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(ready); err == nil {
			break
		}
		if time.Now().After(end) {
			stop()
			_ = cmd.Wait()
			return fmt.Errorf("the node is not ready: %s", log.String())
		}
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(30 * time.Second):
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		return err
	}
	fmt.Println("| memory after 30 s | kB |\n|---|---|")
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		if name == "VmRSS" || name == "RssAnon" || name == "RssFile" {
			fmt.Printf("| %s | %s |\n", name, strings.TrimSuffix(strings.TrimSpace(value), " kB"))
		}
	}
	return nil
}
