package main

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// Each call has a line with its caller and its result; those beyond ten in a second are counted.
func TestCallLines(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.Local)
	l := &callLines{to: terminal.NewScreen(&out, func(string) string { return "" }), now: func() time.Time { return now }}
	thing := l.withLines(interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			now = now.Add(2 * time.Millisecond)
			if m.Name == "fail" {
				yield(nil, &interact.Error{Code: interact.AgentFailed, Title: "exit code 3", Err: errors.New("no \x1b[31mfile")})
				return
			}
			yield(&interact.Message{}, nil)
		}
	}))
	call := func(name string, from *did.Principal) {
		for range thing.Do(t.Context(), &interact.Message{Name: name, From: from}) {
		}
	}
	key := did.DID("did:key:" + twin1)
	call("getWeather", &did.Principal{DID: key, Node: key, Name: "ada"})
	call("fail", nil)
	for range 12 {
		call("ping", nil)
	}
	now = now.Add(time.Second)
	call("ping", nil)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 12 || lines[0] != "12:00:00  "+key.Short()+"#ada  getWeather  2.0 ms  ok" ||
		!strings.HasPrefix(lines[1], "12:00:00  local  fail  2.0 ms  LMOS-1502 exit code 3: no ") || strings.Contains(lines[1], "\x1b") ||
		lines[10] != "  … and 4 more calls" {
		t.Errorf("%d lines:\n%s", len(lines), out.String())
	}
}
