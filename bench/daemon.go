package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/lmosd/lmosd/api"
)

// built is the directory of the program that [program] built, if it did.
var built string

// program returns the path of the program lmosd, built once as it is shipped.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "bench-lmosd")
	if err != nil {
		return "", err
	}
	built = dir
	path := filepath.Join(dir, "lmosd")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "./cmd/lmosd")
	build.Dir, build.Stderr, build.Env = root, os.Stderr, append(os.Environ(), "CGO_ENABLED=0")
	return path, build.Run()
})

func removeBinary() {
	if built != "" {
		_ = os.RemoveAll(built)
	}
}

// A daemon is a process of `lmosd run`, without peers.
type daemon struct {
	url              string // of its API
	pid              string
	cmd              *exec.Cmd
	answers, isReady time.Duration // after the start of the process, by the clock of the machine: /healthz and /readyz are 200
	offers           time.Duration // after it: all Things are offered
	began            time.Time
}

// startDaemon runs a node with a data directory and waits until it is ready and offers a number of Things.
func startDaemon(ctx context.Context, dir string, things int, flags ...string) (*daemon, error) {
	path, err := program()
	if err != nil {
		return nil, err
	}
	at, err := freePort()
	if err != nil {
		return nil, err
	}
	d := &daemon{url: "http://" + at}
	d.cmd = exec.CommandContext(ctx, path, append([]string{"run", "--profile", "test", "--data-dir", dir, "--http.listen", at, "--http.auth", "none",
		"--directory.max_things", "20000", "--telemetry.log.level", "error"}, flags...)...)
	d.cmd.Stderr = os.Stderr
	d.began = time.Now()
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	d.pid = strconv.Itoa(d.cmd.Process.Pid)
	for _, wait := range []struct {
		took *time.Duration
		ok   func() bool
	}{
		{&d.answers, func() bool { return get(ctx, d.url+"/healthz") == nil }},
		{&d.isReady, func() bool { return get(ctx, d.url+"/readyz") == nil }},
		{&d.offers, func() bool { s, err := d.status(ctx); return err == nil && s.Agents.Local >= things }},
	} {
		for !wait.ok() {
			if time.Since(d.began) > time.Minute || ctx.Err() != nil {
				d.stop(syscall.SIGKILL)
				return nil, fmt.Errorf("the node is not ready, or has fewer than %d Things", things)
			}
			time.Sleep(2 * time.Millisecond)
		}
		*wait.took = time.Since(d.began)
	}
	return d, nil
}

func (d *daemon) status(ctx context.Context) (*api.Status, error) {
	c, err := api.Dial(d.url, "")
	if err != nil {
		return nil, err
	}
	return c.Status(ctx)
}

// stop ends the process with a signal and waits for its end.
func (d *daemon) stop(s os.Signal) {
	_ = d.cmd.Process.Signal(s)
	_ = d.cmd.Wait()
}

// get requires that a URL answers 200.
func get(ctx context.Context, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	_, err = exchange(http.DefaultClient, r, http.StatusOK)
	return err
}
