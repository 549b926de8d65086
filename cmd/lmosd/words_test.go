package main

import (
	"bytes"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mattn/go-runewidth"
	"pgregory.net/rapid"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/td"
)

func itoa(n int) string { return strconv.Itoa(n) }

func TestSpan(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 3 * time.Second: "3s", 119 * time.Second: "1m", 3 * time.Hour: "3h", 47 * time.Hour: "47h", 50 * time.Hour: "2d",
	} {
		if got := span(d); got != want {
			t.Errorf("%s is %s, want %s", d, got, want)
		}
	}
	if got := ago(time.Time{}, time.Now()); got != "never" {
		t.Errorf("no time is %s", got)
	}
}

func TestNumbersForPeople(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ got, want string }{
		{millis(0.42), "0.4 ms"}, {millis(14.2), "14 ms"}, {millis(1240), "1.2 s"},
		{size(999), "999 B"}, {size(2100), "2.1 kB"},
		{count(1, "peer", "peers"), "1 peer"}, {count(0, "peer", "peers"), "0 peers"},
	} {
		if test.got != test.want {
			t.Errorf("got %s, want %s", test.got, test.want)
		}
	}
}

func TestNamesCanBeCopied(t *testing.T) {
	t.Parallel()
	owner := makeFake().owner
	g := gateway.Agent{Name: "weather", Owner: owner, Ref: "urn:x@" + owner.Multibase()}
	if r := td.ParseRef(copyable(g)); r.Name != "weather" || len(r.Owner) != shortKey || !r.Owns(owner) {
		t.Errorf("%s is read as %+v", copyable(g), r)
	}
	if got := fullName(g); got != "weather@"+owner.Multibase() {
		t.Errorf("the full name is %s", got)
	}
	g.Name = ""
	if got := copyable(g); got != g.Ref {
		t.Errorf("without a name it is %s", got)
	}
	if got := copyable(gateway.Agent{Name: "x", Owner: did.DID("did:web:example.org"), Ref: "r"}); got != "r" {
		t.Errorf("without a key it is %s", got)
	}
}

func TestCoverageLine(t *testing.T) {
	t.Parallel()
	now := time.Now()
	hosts := []did.DID{"did:key:a"}
	for name, test := range map[string]struct {
		list gateway.AgentList
		want string
	}{
		"nothing known": {gateway.AgentList{}, "0 agents from 0 peers · asked 0, answered 0 · 0.0 ms"},
		"complete": {gateway.AgentList{Items: []gateway.Agent{{Hosts: hosts, Reachable: true}, {Hosts: hosts, Local: true}}, Took: 14,
			Coverage: td.Coverage{Asked: 3, Answered: 3, Oldest: now.Add(-2 * time.Minute)}},
			"2 agents from 1 peer · asked 3, answered 3, oldest 2m · 14 ms"},
		"one is away": {gateway.AgentList{Items: []gateway.Agent{{Hosts: hosts}}, Coverage: td.Coverage{Asked: 1, Answered: 1}},
			"1 agent from 1 peer · asked 1, answered 1 · 1 agent is unreachable · 0.0 ms"},
		"some did not answer": {gateway.AgentList{Coverage: td.Coverage{Asked: 3, Answered: 1, Unreachable: 2}},
			"0 agents from 0 peers · asked 3, answered 1, unreachable 2 · incomplete · 0.0 ms"},
		"cut": {gateway.AgentList{Coverage: td.Coverage{Asked: 1, Answered: 1, Truncated: true}},
			"0 agents from 0 peers · asked 1, answered 1 · incomplete: cut at the limit or the deadline · 0.0 ms"},
	} {
		if got := coverageLine(&test.list, now); got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, test.want)
		}
	}
}

func TestStrangersCannotCommandTheTerminal(t *testing.T) {
	t.Parallel()
	const evil = "a\x1b[2Jb\x07c\u202ed\u2066e\r\nf\tg"
	if got := printable(evil); strings.ContainsAny(got, "\x1b\x07\r\u202e\u2066") || !strings.Contains(got, "\n") {
		t.Errorf("printable gives %q", got)
	}
	if got := oneLine(evil + "  h"); strings.ContainsAny(got, "\n\t") || !strings.HasSuffix(got, "f g h") {
		t.Errorf("oneLine gives %q", got)
	}
}

func TestScreen(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		env        []string
		tty, color bool
		width      int
	}{
		"a pipe":                     {nil, false, false, 80},
		"forced":                     {[]string{"LMOSD_FORCE_TTY=120"}, true, true, 120},
		"forced, no number":          {[]string{"LMOSD_FORCE_TTY=yes"}, true, true, 80},
		"NO_COLOR":                   {[]string{"LMOSD_FORCE_TTY=80", "NO_COLOR=1"}, true, false, 80},
		"CLICOLOR=0":                 {[]string{"LMOSD_FORCE_TTY=80", "CLICOLOR=0"}, true, false, 80},
		"a dumb terminal":            {[]string{"LMOSD_FORCE_TTY=80", "TERM=dumb"}, true, false, 80},
		"colour in a pipe":           {[]string{"CLICOLOR_FORCE=1"}, false, true, 80},
		"CLICOLOR_FORCE=0":           {[]string{"CLICOLOR_FORCE=0"}, false, false, 80},
		"NO_COLOR is the last word":  {[]string{"CLICOLOR_FORCE=1", "NO_COLOR=1"}, false, false, 80},
		"the last of equal ones":     {[]string{"NO_COLOR=1", "NO_COLOR=", "LMOSD_FORCE_TTY=80"}, true, true, 80},
		"an empty NO_COLOR is unset": {[]string{"NO_COLOR=", "LMOSD_FORCE_TTY=80"}, true, true, 80},
	} {
		s := newScreen(&bytes.Buffer{}, test.env)
		if s.tty != test.tty || s.color != test.color || s.width != test.width {
			t.Errorf("%s: tty %t, colour %t, width %d", name, s.tty, s.color, s.width)
		}
	}
}

func TestTableFitsTheTerminal(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		width := rapid.IntRange(20, 200).Draw(t, "width")
		tab := &table{header: []string{"A", "B", "C"}, keep: []int{0}}
		id := rapid.StringMatching(`[a-z]{1,8}`).Draw(t, "id")
		for range rapid.IntRange(1, 4).Draw(t, "rows") {
			tab.add(text(id), text(rapid.String().Draw(t, "b")), text(rapid.StringMatching(`[ -~äöü漢]{0,80}`).Draw(t, "c")))
		}
		var b bytes.Buffer
		tab.write(&screen{Writer: &b, tty: true, width: width})
		lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		if len(lines) != len(tab.rows)+1 {
			t.Fatalf("%d lines for %d rows: %q", len(lines), len(tab.rows), b.String())
		}
		for _, line := range lines {
			if w := runewidth.StringWidth(line); w > width && w > 8+2*(gap+minWidth) {
				t.Fatalf("%d columns on a terminal of %d: %q", w, width, line)
			}
		}
		if !strings.HasPrefix(lines[1], id) {
			t.Fatalf("the id was cut: %q", lines[1])
		}
	})
}

func TestTableInAPipeHasFullValues(t *testing.T) {
	t.Parallel()
	tab := &table{header: []string{"A", "B"}}
	tab.add(cell{"short", "the whole value"}, text("two\twords\n"))
	var b bytes.Buffer
	tab.write(&screen{Writer: &b, width: 5})
	if got, want := b.String(), "A\tB\nthe whole value\ttwo words\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestWideTableIsNotCut(t *testing.T) {
	t.Parallel()
	tab := &table{header: []string{"A", "B"}, wide: true}
	tab.add(text(strings.Repeat("a", 30)), text(strings.Repeat("b", 30)))
	var b bytes.Buffer
	tab.write(&screen{Writer: &b, tty: true, width: 20})
	if strings.Contains(b.String(), "…") {
		t.Errorf("got %q", b.String())
	}
}

func TestSheet(t *testing.T) {
	t.Parallel()
	s := &sheet{}
	s.add("id", "x")
	s.add("nothing", "")
	s.add("owner", "y z")
	s.add("action", "one "+strings.Repeat("word ", 7))
	s.add("action", "two")
	for tty, want := range map[bool]string{
		true:  "  id      x\n  owner   y z\n  action  one word word word word word\n          word word\n          two\n",
		false: "id\tx\nowner\ty z\naction\tone word word word word word word word\naction\ttwo\n",
	} {
		var b bytes.Buffer
		s.write(&screen{Writer: &b, tty: tty, width: 40})
		if b.String() != want {
			t.Errorf("terminal %t: got %q, want %q", tty, b.String(), want)
		}
	}
}
