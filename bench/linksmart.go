package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// linksmart is the compared directory: of Go, with LevelDB, without signatures; it does not sync what it writes.
const linksmart = "linksmart thing-directory"

// startLinksmart runs the program thing-directory, with the schema beside it.
func startLinksmart(ctx context.Context, dir string) (*tdd, error) {
	path, err := exec.LookPath("thing-directory")
	if err != nil {
		return nil, skip("thing-directory is not installed (git clone https://github.com/linksmart/thing-directory; go build -C thing-directory; PATH)")
	}
	schemas, err := filepath.Glob(filepath.Join(filepath.Dir(path), "wot", "wot_td_schema.json"))
	if err != nil {
		return nil, err
	}
	at, err := freePort()
	if err != nil {
		return nil, err
	}
	host, number, _ := strings.Cut(at, ":")
	port, err := strconv.Atoi(number)
	if err != nil {
		return nil, err
	}
	off := map[string]any{"enabled": false}
	conf, err := json.Marshal(map[string]any{
		"validation": map[string]any{"jsonSchemas": schemas},
		"storage":    map[string]any{"type": "leveldb", "dsn": filepath.Join(dir, "data")},
		"http":       map[string]any{"publicEndpoint": "http://" + at, "bindAddr": host, "bindPort": port, "tls": off, "auth": off},
	})
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "conf.json")
	if err := os.WriteFile(file, conf, 0o600); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, "-conf", file)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	t := &tdd{url: "http://" + at, pid: strconv.Itoa(cmd.Process.Pid), stop: func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }}
	if err := until(ctx, 10*time.Second, func(ctx context.Context) error { return get(ctx, t.url+"/things") }); err != nil {
		t.stop()
		return nil, err
	}
	return t, nil
}
