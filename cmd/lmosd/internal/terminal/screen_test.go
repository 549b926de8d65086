package terminal

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/mattn/go-runewidth"
	"pgregory.net/rapid"
)

func TestSpan(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 3 * time.Second: "3s", 119 * time.Second: "1m", 3 * time.Hour: "3h", 47 * time.Hour: "47h", 50 * time.Hour: "2d",
	} {
		if got := Span(d); got != want {
			t.Errorf("%s is %s, want %s", d, got, want)
		}
	}
	if got := Ago(time.Time{}, time.Now()); got != "never" {
		t.Errorf("no time is %s", got)
	}
}

func TestNumbersForPeople(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ got, want string }{
		{Millis(0.42), "0.4 ms"}, {Millis(14.2), "14 ms"}, {Millis(1240), "1.2 s"},
		{Size(999), "999 B"}, {Size(2100), "2.1 kB"}, {Size(2_100_000), "2.1 MB"}, {Size(4_500_000_000), "4.5 GB"},
		{Count(1, "peer", "peers"), "1 peer"}, {Count(0, "peer", "peers"), "0 peers"},
	} {
		if test.got != test.want {
			t.Errorf("got %s, want %s", test.got, test.want)
		}
	}
}

func TestUntrustedTextIsPrintable(t *testing.T) {
	t.Parallel()
	const evil = "a\x1b[2Jb\x07c\u202ed\u2066e\r\nf\tg"
	if got := Printable(evil); strings.ContainsAny(got, "\x1b\x07\r\u202e\u2066") || !strings.Contains(got, "\n") {
		t.Errorf("printable gives %q", got)
	}
	if got := OneLine(evil + "  h"); strings.ContainsAny(got, "\n\t") || !strings.HasSuffix(got, "f g h") {
		t.Errorf("oneLine gives %q", got)
	}
}

func TestScreen(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		env        map[string]string
		tty, color bool
		width      int
	}{
		"a pipe":                     {nil, false, false, 80},
		"forced":                     {map[string]string{"LMOSD_FORCE_TTY": "120"}, true, true, 120},
		"forced, no number":          {map[string]string{"LMOSD_FORCE_TTY": "yes"}, true, true, 80},
		"NO_COLOR":                   {map[string]string{"LMOSD_FORCE_TTY": "80", "NO_COLOR": "1"}, true, false, 80},
		"CLICOLOR=0":                 {map[string]string{"LMOSD_FORCE_TTY": "80", "CLICOLOR": "0"}, true, false, 80},
		"a dumb terminal":            {map[string]string{"LMOSD_FORCE_TTY": "80", "TERM": "dumb"}, true, false, 80},
		"colour in a pipe":           {map[string]string{"CLICOLOR_FORCE": "1"}, false, true, 80},
		"CLICOLOR_FORCE=0":           {map[string]string{"CLICOLOR_FORCE": "0"}, false, false, 80},
		"NO_COLOR is the last word":  {map[string]string{"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, false, false, 80},
		"an empty NO_COLOR is unset": {map[string]string{"NO_COLOR": "", "LMOSD_FORCE_TTY": "80"}, true, true, 80},
	} {
		s := NewScreen(&bytes.Buffer{}, func(variable string) string { return test.env[variable] })
		if s.TTY != test.tty || s.color != test.color || s.Width != test.width {
			t.Errorf("%s: tty %t, colour %t, width %d", name, s.TTY, s.color, s.Width)
		}
	}
}

func TestTableFitsTheTerminal(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		width := rapid.IntRange(20, 200).Draw(t, "width")
		id, items := rapid.StringMatching(`[a-z]{1,8}`).Draw(t, "id"), [][3]string(nil)
		for range rapid.IntRange(1, 4).Draw(t, "rows") {
			items = append(items, [3]string{id, rapid.String().Draw(t, "b"), rapid.StringMatching(`[ -~äöü漢]{0,80}`).Draw(t, "c")})
		}
		tab := TableOf(items, false, []Column[[3]string]{{Name: "A", Keep: true, Cell: nth(0)}, {Name: "B", Cell: nth(1)}, {Name: "C", Cell: nth(2)}})
		var b bytes.Buffer
		tab.Write(&Screen{Writer: &b, TTY: true, Width: width})
		lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		if len(lines) != len(items)+1 {
			t.Fatalf("%d lines for %d rows: %q", len(lines), len(items), b.String())
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

// nth returns the function of the column i.
func nth(i int) func([3]string) Cell { return TextOf(func(item [3]string) string { return item[i] }) }

func TestTableInAPipeHasFullValues(t *testing.T) {
	t.Parallel()
	tab := TableOf([]string{"two\twords\n"}, false, []Column[string]{
		{Name: "A", Cell: func(string) Cell { return Short("short", "the whole value") }}, {Name: "B", Cell: Text}})
	var b bytes.Buffer
	tab.Write(&Screen{Writer: &b, Width: 5})
	if got, want := b.String(), "A\tB\nthe whole value\ttwo words\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestWideTableIsNotCut(t *testing.T) {
	t.Parallel()
	tab := TableOf([]string{strings.Repeat("a", 30)}, true, []Column[string]{{Name: "A", Cell: Text}, {Name: "B", Cell: Text}})
	var b bytes.Buffer
	tab.Write(&Screen{Writer: &b, TTY: true, Width: 20})
	if strings.Contains(b.String(), "…") {
		t.Errorf("got %q", b.String())
	}
}

func TestSheet(t *testing.T) {
	t.Parallel()
	s := &Sheet{}
	s.Add("id", "x")
	s.Add("nothing", "")
	s.Add("owner", "y z")
	s.Add("action", "one "+strings.Repeat("word ", 7))
	s.Add("action", "two")
	for tty, want := range map[bool]string{
		true:  "  id      x\n  owner   y z\n  action  one word word word word word\n          word word\n          two\n",
		false: "id\tx\nowner\ty z\naction\tone word word word word word word word\naction\ttwo\n",
	} {
		var b bytes.Buffer
		s.Write(&Screen{Writer: &b, TTY: tty, Width: 40})
		if b.String() != want {
			t.Errorf("terminal %t: got %q, want %q", tty, b.String(), want)
		}
	}
}

func TestShell(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{
		"": "''", "weather@z6MkA…": "weather@z6MkA…", "urn:example:a/b": "urn:example:a/b", "k=v": "k=v", "Zürich": "Zürich", "天気": "天気",
		"a b": "'a b'", "$(rm -rf ~)": "'$(rm -rf ~)'", "it's": `'it'\''s'`, "a;b": "'a;b'", "*": "'*'", "~": "'~'", "`x`": "'`x`'", "a\nb": "'a\nb'",
	} {
		if got := Shell(word); got != want {
			t.Errorf("%q: got %s, want %s", word, got, want)
		}
	}
}

func TestReflow(t *testing.T) {
	t.Parallel()
	for want, text := range map[string]string{
		"one two three four\nfive\n\nsix\n":         "one two\nthree four five\n\nsix\n",
		"  --a   b b b b b b b b\n        b b b\n":  "  --a   b b b b b b b b b b b\n",
		"  a-long-name-of b\n    b b b b b b b b\n": "  a-long-name-of  b b b b b b b b b\n",
		"  kept   as it is\nand a\n  kept\n":        "  kept   as it is\nand a\n  kept\n",
		"  漢漢漢 漢漢漢\n    漢漢漢 漢漢漢\n":                  "  漢漢漢 漢漢漢 漢漢漢 漢漢漢\n",
	} {
		if got := Reflow(text, 20); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestWrap(t *testing.T) {
	t.Parallel()
	for want, text := range map[string]string{"": "", "a": "a", "one two|three": "one two three", "a|loooooooooong|b": "a loooooooooong  b", "天気 天|気": "天気 天 気"} {
		if got := strings.Join(wrap(text, 7), "|"); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
