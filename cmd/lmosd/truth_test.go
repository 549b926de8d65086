package main

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/interact"
)

// A situation is what may be between a command and its goal, with the exit code of each verb in it. A verb that is not
// listed does not meet the situation.
type situation struct {
	name  string
	env   func(url string) []string
	agent string
	exits map[string]int
}

// verbs are the command lines that reach for a node; AGENT stands for the agent of the situation, TIMEOUT for
// a time that is over soon if the agent never answers.
var verbs = map[string][]string{
	"find":      {"find", "--exit-status", "AGENT"},
	"show":      {"show", "AGENT"},
	"call":      {"call", "AGENT", "ping", "--timeout", "TIMEOUT"},
	"read":      {"read", "AGENT", "units", "--timeout", "TIMEOUT"},
	"read all":  {"read", "AGENT", "--timeout", "TIMEOUT"},
	"write":     {"write", "AGENT", "units", "kelvin", "--timeout", "TIMEOUT"},
	"watch":     {"watch", "AGENT", "--limit", "1", "--timeout", "TIMEOUT"},
	"ping":      {"ping", "AGENT"},
	"trace":     {"trace", "AGENT"},
	"trace one": {"trace", "AGENT", "ping", "--timeout", "TIMEOUT"},
	"async":     {"call", "AGENT", "getReport", "--async", "--timeout", "TIMEOUT"},
	"long":      {"call", "AGENT", "getReport", "--timeout", "TIMEOUT"},
	"task":      {"task", "ls"},
	"task show": {"task", "show", "5d02"},
	"task wait": {"task", "wait", "3f2a"},
	"cancel":    {"task", "cancel", "3f2a"},
	"publish":   {"publish", "-"},
	"expose":    {"expose", "testdata/weather.td.json"},
	"unpublish": {"unpublish", "AGENT"},
	"move":      {"move", "AGENT", "--to", "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"},
	"status":    {"status"},
	"peers":     {"peers", "--exit-status"},
	"connect":   {"peers", "connect", "/ip4/192.0.2.1/tcp/1/p2p/12D3"},
	"id":        {"id"},
	"net":       {"net"},
	"metrics":   {"metrics"},
}

func all(code int) map[string]int {
	m := map[string]int{}
	for verb := range verbs {
		m[verb] = code
	}
	return m
}

func withToken(url string) []string    { return []string{"LMOSD_NODE=" + url, "LMOSD_TOKEN=" + fakeToken} }
func withoutToken(url string) []string { return []string{"LMOSD_NODE=" + url} }

func interaction(code int) map[string]int {
	return map[string]int{"call": code, "read": code, "read all": code, "write": code, "watch": code, "trace one": code, "async": code, "long": code}
}

var situations = []situation{
	{"everything is well", withToken, "weather", all(0)},
	{"no node is there", func(string) []string { return []string{"LMOSD_NODE=http://127.0.0.1:1"} }, "weather", all(3)},
	{"nobody has started a node", func(string) []string { return []string{"LMOSD_HTTP__LISTEN=127.0.0.1:1"} }, "weather", all(3)},
	{"what answers is no node", withToken, "weather", nil}, // see TestNoNodeBehindTheAddress
	{"the agent is unknown", withToken, "nobody", map[string]int{"find": 4, "show": 4, "call": 4, "read": 4, "write": 4, "unpublish": 4, "move": 4,
		"watch": 4, "ping": 4, "trace": 4, "trace one": 4, "async": 4}},
	{"the name is ambiguous", withToken, "twins", map[string]int{"show": 2, "call": 2, "read": 2, "write": 2, "unpublish": 2, "move": 2, "watch": 2,
		"ping": 2, "trace": 2}},
	{"no host of the agent answers a ping", withToken, "away", map[string]int{"ping": 7, "trace": 0}},
	{"the agent does not answer", withToken, "slow", interaction(7)},
	{"no host of the agent answers", withToken, "away", interaction(7)},
	{"the agent fails", withToken, "failing", interaction(5)},
	{"the policy refuses", withToken, "refusing", interaction(6)},
	{"the token is missing", withoutToken, "weather", map[string]int{"publish": 6, "unpublish": 6, "move": 6, "connect": 6, "find": 0, "call": 0,
		"expose": 6, "cancel": 6, "task": 0, "watch": 0}},
}

func TestExitCodesMatchTheOutcome(t *testing.T) {
	t.Parallel()
	url := newFakeNode(t)
	for _, s := range situations {
		for verb, want := range s.exits {
			t.Run(s.name+"/"+verb, func(t *testing.T) {
				t.Parallel()
				timeout := "60s"
				if s.agent == "slow" {
					timeout = "100ms"
				}
				line := strings.NewReplacer("AGENT", s.agent, "TIMEOUT", timeout).Replace(strings.Join(verbs[verb], "\x00"))
				args := strings.Split(line, "\x00")
				env := home(t, s.env(url)...)
				checkTruth(t, want, lmosd(t.Context(), env, string(weatherTD), args...))
				checkTruthJSON(t, want, lmosd(t.Context(), env, string(weatherTD), append([]string{"-o", "json"}, args...)...))
			})
		}
	}
}

// checkTruth holds an execution for people against its exit code.
func checkTruth(t *testing.T, want int, r result) {
	t.Helper()
	if r.code != want {
		t.Errorf("exit code %d, want %d; %s", r.code, want, r.errors)
	}
	if r.code == 0 || r.errors == "" || !strings.Contains(r.errors, "error:") {
		return // a search without results is not an error
	}
	lines := strings.Split(strings.TrimSpace(r.errors), "\n")
	if !strings.HasPrefix(lines[0], "error: ") || !strings.Contains(lines[0], "LMOS-") || !strings.HasPrefix(lines[len(lines)-1], "  hint   ") {
		t.Errorf("the error is not in its form:\n%s", r.errors)
	}
	if r.out != "" || strings.Contains(r.errors, "\x1b") {
		t.Errorf("standard output %q, standard error %q", r.out, r.errors)
	}
}

// checkTruthJSON does the same for programs: an answer on standard output or one line on standard error, never both.
func checkTruthJSON(t *testing.T, want int, r result) {
	t.Helper()
	var doc struct {
		APIVersion string
		Kind       string
		Error      struct {
			Code, Type, Hint, Detail string
			Exit                     int
		}
	}
	text := r.out
	if r.out == "" {
		text = r.errors
	}
	if r.code != want || r.out != "" && r.errors != "" || strings.Count(text, "\n") != 1 {
		t.Errorf("exit code %d, want %d; output %q, errors %q", r.code, want, r.out, r.errors)
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil || doc.APIVersion != "lmosd/v1" {
		t.Errorf("%v in %s", err, text)
	}
	if r.out == "" && (doc.Error.Exit != want || doc.Error.Hint == "" || doc.Error.Detail == "" || doc.Error.Code == "" || doc.Error.Type == "") {
		t.Errorf("the error is incomplete: %s", text)
	}
	if r.out != "" && doc.Kind == "" {
		t.Errorf("no kind in %s", text)
	}
}

func TestNoNodeBehindTheAddress(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // the test is over
			}
			_, _ = c.Write([]byte("220 mail.example ESMTP\r\n"))
			_ = c.Close()
		}
	}()
	if r := lmosd(t.Context(), home(t, "LMOSD_NODE=http://"+l.Addr().String()), "", "status"); r.code != cli.ExitNoNode {
		t.Errorf("exit code %d: %s", r.code, r.errors)
	}
}

func TestInterruptedIs130(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	env := home(t, withToken(newFakeNode(t))...)
	for verb, args := range verbs {
		if verb == "id" {
			continue // it may still read the key file
		}
		args = strings.Split(strings.ReplaceAll(strings.Join(args, "\x00"), "TIMEOUT", "60s"), "\x00")
		if r := lmosd(ctx, env, string(weatherTD), args...); r.code != cli.ExitInterrupted || !strings.Contains(r.errors, "interrupted") {
			t.Errorf("%s: exit code %d: %s", verb, r.code, r.errors)
		}
	}
}

func TestEveryExitCodeIsOnThePage(t *testing.T) {
	t.Parallel()
	page := lmosd(t.Context(), home(t), "", "help", "exit-codes").out
	for _, c := range interact.Codes() {
		if exit := cli.ExitOf(c); !strings.Contains(page, "\n"+strings.Repeat(" ", 5-len(strconv.Itoa(exit)))+strconv.Itoa(exit)+"   ") {
			t.Errorf("the help does not list exit code %d", exit)
		}
	}
}

func TestErrorNamesTheProcessThatHoldsTheFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for content, want := range map[string]string{
		"":                               "it is unknown whether",
		"none":                           "it is unknown whether",
		strconv.Itoa(os.Getpid()):        "process " + strconv.Itoa(os.Getpid()) + " holds",
		"999999999":                      "no process holds",
		strconv.Itoa(os.Getpid()) + "\n": "does not answer",
	} {
		if err := os.WriteFile(filepath.Join(dir, "lock"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		r := lmosd(t.Context(), home(t), "", "status", "--data-dir", dir)
		if r.code != cli.ExitNoNode || !strings.Contains(r.errors, want) || !strings.Contains(r.errors, "hint   lmosd --data-dir "+dir+" run") {
			t.Errorf("lock %q: exit code %d, %s", content, r.code, r.errors)
		}
	}
	if r := lmosd(t.Context(), home(t), "", "status", "--data-dir", filepath.Join(dir, "new")); !strings.Contains(r.errors, "no process holds") {
		t.Errorf("a new folder gives %s", r.errors)
	}
}
