package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
)

// Commands that change one file at once lose no change of each other: one that would is refused.
func TestWritersAtOnce(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	file := filepath.Join(x.home, "lmosd.yaml")
	keys := []string{"node.name", "mesh.network", "mesh.topology", "trust.rate.per_peer", "trust.rate.burst", "http.hosts", "telemetry.log.level", "trust.connect"}
	values := []string{"here", "theirs", "none", "7/s", "9", "a.example", "warn", "members"}
	for name, command := range map[string]func(i int) []string{
		"config set": func(i int) []string { return []string{"config", "set", keys[i], values[i], "-c", file} },
		"context add": func(i int) []string {
			return []string{"context", "add", fmt.Sprintf("n%d", i), "--node", "http://127.0.0.1:1/"}
		},
	} {
		var all []*program
		for i := range keys {
			all = append(all, x.start(command(i)...))
		}
		done := 0
		for i, p := range all {
			switch code := p.wait(); {
			case code == 0:
				done++
				if name == "config set" {
					contains(t, x.ok("config", "get", keys[i], "-c", file), values[i])
				} else {
					contains(t, x.ok("context", "ls"), fmt.Sprintf("n%d", i))
				}
			case code != cli.ExitUsage || !strings.Contains(p.talk.String(), "was changed by another program meanwhile"):
				t.Errorf("%s: exit code %d\n%s", name, code, p.talk.String())
			}
		}
		if done == 0 {
			t.Errorf("%s: none changed the file", name)
		}
	}
}
