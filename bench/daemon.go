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
	url string // of its API
	pid string
	cmd *exec.Cmd
	// From the start of the process, by the clock of the machine: /healthz is 200, /readyz is 200, all Things are offered.
	answers, isReady, offers time.Duration
}

// startDaemon runs a node of the test profile with a data directory and waits until it is ready and offers a number of Things.
func startDaemon(ctx context.Context, dir string, things int) (*daemon, error) {
	return startDaemonAs(ctx, dir, things, "test", "--directory.max_things", "20000")
}

// startDaemonAs is startDaemon with another profile and more flags.
func startDaemonAs(ctx context.Context, dir string, things int, profile string, flags ...string) (*daemon, error) {
	path, err := program()
	if err != nil {
		return nil, err
	}
	at, err := freePort()
	if err != nil {
		return nil, err
	}
	d := &daemon{url: "http://" + at}
	d.cmd = exec.CommandContext(ctx, path, append([]string{"run", "--profile", profile, "--data-dir", dir, "--http.listen", at, "--http.auth", "none",
		"--telemetry.log.level", "error"}, flags...)...)
	d.cmd.Stderr = os.Stderr
	began := time.Now()
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	d.pid = strconv.Itoa(d.cmd.Process.Pid)
	for _, wait := range []struct {
		took *time.Duration
		ok   func(context.Context) error
	}{
		{&d.answers, func(ctx context.Context) error { return get(ctx, d.url+"/healthz") }},
		{&d.isReady, func(ctx context.Context) error { return get(ctx, d.url+"/readyz") }},
		{&d.offers, func(ctx context.Context) error {
			err := d.offersAll(ctx, things)
			if err != nil {
				time.Sleep(50 * time.Millisecond) // the node counts its Things for each answer
			}
			return err
		}},
	} {
		if err := until(ctx, 3*time.Minute, wait.ok); err != nil {
			d.stop(syscall.SIGKILL)
			return nil, fmt.Errorf("the node is not ready after three minutes: %w", err)
		}
		*wait.took = time.Since(began)
	}
	return d, nil
}

// offersAll is an error if the node offers another number of own Things.
func (d *daemon) offersAll(ctx context.Context, things int) error {
	c, err := api.Dial(d.url, "")
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := c.Status(ctx)
	if err == nil && s.Agents.Local != things {
		err = fmt.Errorf("it offers %d of %d Things", s.Agents.Local, things)
	}
	return err
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
