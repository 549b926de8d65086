package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

// mistyped are command lines that newcomers type, as words of a shell. Each works, or ends with a hint that has a command which works.
var mistyped = []string{
	// Names of commands of other programs.
	"ls", "list", "search weather", "agents", "ps", "lookup weather", "discover", "describe weather", "inspect weather", "get weather",
	"get weather units", "info", "info weather", "invoke weather getWeather question=Bonn", "execute weather echo hello",
	"exec weather echo hello", "send weather echo hello", "ask how is the weather", "nodes", "peer", "peers list", "peers ls",
	"connect /ip4/192.0.2.1/tcp/1/p2p/12D3", "join /ip4/192.0.2.1/tcp/1/p2p/12D3", "peers add /ip4/192.0.2.1/tcp/1/p2p/12D3", "join",
	"add testdata/weather.td.json", "register testdata/weather.td.json", "remove weather", "rm weather", "delete weather", "unregister weather",
	"subscribe weather units --limit 1 --timeout 1s", "tasks", "task list", "cancel 3f2a", "stop", "stop weather", "restart", "init", "up",
	"down", "serve", "health", "whoami", "dashboard", "log", "set weather units kelvin", "set", "kill", "config list", "token add laptop",
	"token delete laptop", "org", "errors show LMOS-1404", "tools", "test weather", "exit",
	// Flags and their values.
	"--version", "-V", "find --json", "-j find", "find --yaml", "find -n 2", "find --capabilty urn:example:weather", "find --limit five",
	"find --timeout=5", "find -o jsn", "find -o=xml", "status -q", "find --type", "call weather getWeather question=Bonn --time 5s",
	"call weather getWeather --timeout 5 question=Bonn", "find -h", "-h find", "find --help", "--node 127.0.0.1:1 status --help",
	// Agents and actions.
	"weather", "weather getWeather question=Bonn", "weather/echo hello", "weather.echo hello", "call", "call weather", "call weather.ping",
	"call weather/ping", "call 'weather ping'", "call ping weather", "call getWeather weather question=Bonn", "read units weather",
	"run weather ping", "run weather", "call weathr ping", "call weather pong", "call weather GetWeather question=Bonn", "show", "show weahter",
	"show '\"weather\"'", "show weather now", "call “weather” ping", "read weather unit", "watch weather units=1 --limit 1",
	"call weather getWeather question:Bonn", "call weather getWeather Bonn", "call weather getWeather qestion=Bonn",
	"call weather getWeather question=Bonn interactionMode=txt", "call weather getForecast days=three", "call weather getForecast days:three",
	`call weather getWeather '{"question":"Bonn"}'`, `call weather getForecast '{"days":3}' now`, "call weather getWeather question Bonn",
	"call weather getWeather --question Bonn", "call weather getWeather",
	// Words with a typo.
	"fnd weather", "staus", "verison", "exose testdata/weather.td.json", "help ls", "help fnd", "help stop", "help exitcodes", "lmosd find", "task lst", "errors expain LMOS-1404",
	"errors explain LMOS1404", "errors explain 1404", "config get htp.listen", "completion bsh",
}

// hinted finds the command in the hint of an error.
var hinted = regexp.MustCompile(`(?m)^  hint   .*?(lmosd [^\n]*)$`)

func TestMistyped(t *testing.T) {
	t.Parallel()
	if len(mistyped) < 60 {
		t.Errorf("%d command lines, want 60 at least", len(mistyped))
	}
	url := newFakeNode(t)
	env := home(t, "LMOSD_NODE="+url, "LMOSD_TOKEN="+fakeToken)
	for _, line := range mistyped {
		r := lmosd(patient(t), env, "", wordsOf(line)...)
		if r.code == 0 {
			continue
		}
		found := hinted.FindStringSubmatch(r.errors)
		if found == nil {
			t.Errorf("lmosd %s: exit code %d, and no hint with a command:\n%s", line, r.code, r.errors)
			continue
		}
		if os.Getenv("SHOW") != "" {
			t.Logf("lmosd %-50s → %s", line, strings.TrimSpace(found[0]))
		}
		command, _, _ := strings.Cut(found[1], ", or lmosd")
		command, _, _ = strings.Cut(command, " #")
		if then := lmosd(patient(t), env, "", wordsOf(command)[1:]...); then.code != 0 {
			t.Errorf("lmosd %s: the hint %s has exit code %d:\n%s%s", line, command, then.code, r.errors, then.errors)
		}
	}
}

// wordsOf splits a line as a shell does, without expansions.
func wordsOf(line string) (words []string) {
	word, quote, some := "", rune(0), false
	for _, c := range line + " " {
		switch {
		case quote == c:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote, some = c, true
		case quote == 0 && c == ' ':
			if some {
				words = append(words, word)
			}
			word, some = "", false
		default:
			word, some = word+string(c), true
		}
	}
	return words
}

// TestAliasesAreNoCommands: an alias leads to a command and hides none; the words with several meanings have commands, too.
func TestAliasesAreNoCommands(t *testing.T) {
	t.Parallel()
	var names []string
	for _, c := range allCommands() {
		names = append(names, c.name)
	}
	for word, right := range aliases {
		if slices.Contains(names, word) || !slices.Contains(names, strings.Fields(right)[0]) || mistakes[word] != (mistake{}) {
			t.Errorf("%s → %s", word, right)
		}
	}
	for word, m := range mistakes {
		if slices.Contains(names, word) {
			t.Errorf("%s is a command", word)
		}
		for _, command := range []string{m.alone, m.agent, m.other, m.address, m.invitation, m.target, m.file} {
			if command != "" && !slices.Contains(names, strings.Fields(command)[0]) {
				t.Errorf("%s → %s", word, command)
			}
		}
		if m.alone == "" {
			t.Errorf("%s alone has no command", word)
		}
	}
}

func TestMeant(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"ls":                         "find",
		"-o json ls x":               "-o json find x",
		"--node ls ls":               "--node ls find",
		"--node=a tasks":             "--node=a task ls",
		"find ls":                    "find ls",
		"help ls":                    "help find",
		"call a b --json":            "call a b --output json",
		"testnet exec 1 -- ls":       "testnet exec 1 -- ls",
		"testnet exec 1 -- a --json": "testnet exec 1 -- a --json",
		"--version":                  "version",
		"-v -V":                      "-v version",
		"show --version":             "show --version",
		"start --data-dir d":         "run --data-dir d",
		"__complete ls --json":       "__complete ls --json",
		"":                           "",
	} {
		if got := strings.Join(meant(strings.Fields(line)), " "); got != want {
			t.Errorf("%s: got %s, want %s", line, got, want)
		}
	}
}

func TestMistakesWithArguments(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"join lmos-invite:abc":     "org join lmos-invite:abc",
		"add exec:./a.sh":          "expose exec:./a.sh",
		"add 'exec:./a b'":         "expose 'exec:./a b'",
		"serve http://127.0.0.1:1": "expose http://127.0.0.1:1",
		"deploy x.td.json":         "publish x.td.json",
		"down x":                   "testnet down --help",
		"set a b c":                "write a b c",
	} {
		words := wordsOf(line)
		if got := mistakes[words[0]].command(words[1:]); got != want {
			t.Errorf("%s: got %s, want %s", line, got, want)
		}
	}
	if e := interact.AsError(splitCall("http://127.0.0.1:1")); ownAdvice(e) != "a web server becomes an agent by: lmosd expose http://127.0.0.1:1" {
		t.Errorf("a URL: %s", ownAdvice(e))
	}
}
