package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/interact"
)

func TestWriteOutput(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		media, output string
		tty           bool
		want          string
	}{
		"nothing":                              {"application/json", "", false, ""},
		"a string is its text":                 {"application/json", `"a\nb"`, false, "a\nb\n"},
		"a number":                             {"application/json", "12", false, "12\n"},
		"null":                                 {"application/json", "null", false, "null\n"},
		"an empty string":                      {"application/json", `""`, false, "\n"},
		"an object in a pipe":                  {"application/json; charset=utf-8", `{"a":1}`, false, "{\"a\":1}\n"},
		"an object on a terminal":              {"application/td+json", `{"a":1}`, true, "{\n  \"a\": 1\n}\n"},
		"what says it is JSON and is not":      {"application/json", `{"a`, true, "{\"a\n"},
		"text with an end":                     {"text/plain", "a\n", false, "a\n"},
		"text without an end":                  {"text/plain", "a", false, "a\n"},
		"bytes in a pipe are not touched":      {"image/png", "\x89PNG\xff", false, "\x89PNG\xff"},
		"bytes on a terminal are no commands":  {"image/png", "\x1b[2J\xff", true, "\ufffd[2J\ufffd"},
		"text on a terminal gives no commands": {"application/json", `"a\u001b[31mb"`, true, "a\ufffd[31mb\n"},
		"text in a pipe is as it was":          {"application/json", `"a\u001b[31mb"`, false, "a\x1b[31mb\n"},
		"a type that nobody knows":             {";", "a", false, "a"},
	} {
		var b bytes.Buffer
		writeOutput(&terminal.Screen{Writer: &b, TTY: test.tty, Width: 80}, []byte(test.output), test.media)
		if b.String() != test.want {
			t.Errorf("%s: got %q, want %q", name, b.String(), test.want)
		}
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		raw  string
		err  error
		code interact.Code
	}{
		"valid":     {string(weatherTD), nil, 0},
		"no JSON":   {"{", nil, interact.NotJSON},
		"no TD":     {"{}", nil, interact.BadTD},
		"too large": {"", interact.Errorf(interact.TooLarge, "", "x has more than 5 bytes"), interact.TooLarge},
	} {
		v := judge(t.Context(), name, []byte(test.raw), test.err)
		if v.Valid != (test.code == 0) || !v.Valid && (v.code != test.code || len(v.Issues) == 0) || v.Warnings == nil || v.Issues == nil {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

func TestReached(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]gateway.Publication{
		"gossip 1 peer, dht 3/3":                                     {GossipPeers: 1, Replicas: 3, Wanted: 3},
		"pending: no peers yet; it is announced when there are some": {Pending: true},
	} {
		if got := reached(&p); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestVersionIsNeverEmpty(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{"": "dev", "(devel)": "dev", "v0.1.0": "0.1.0", "v0.0.0-20261121111051-0f089d02ace0+dirty": "dev",
		"v0.1.1-0.20261121111051-0f089d02ace0": "0.1.1-0.20261121111051-0f089d02ace0"} {
		if got := nameOf(version); got != want {
			t.Errorf("%s is shown as %s, want %s", version, got, want)
		}
	}
	if v := buildInfo(); v.Version == "" || v.Go == "" || !strings.Contains(v.Platform, "/") || v.Version != version() {
		t.Errorf("got %+v", v)
	}
}
