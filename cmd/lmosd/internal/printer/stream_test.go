package printer

import (
	"bytes"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

func TestPartWriter(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		asJSON, tty bool
		parts       []string
		want        string
	}{
		"a text at a time":               {true, false, []string{"\"one\"\n", "\"two\"\n"}, "one\ntwo\n"},
		"texts that are cut":             {true, false, []string{`"o`, "ne\"\n\"tw", `o"`}, "one\ntwo\n"},
		"lines that come together":       {true, false, []string{"\"one\"\n{\"a\":1}\n[2]\nnull\n"}, "one\n{\"a\":1}\n[2]\nnull\n"},
		"one value without a line":       {true, false, []string{`{"a":`, `"b"}`}, "{\"a\":\"b\"}\n"},
		"numbers":                        {true, false, []string{"1", "2\n3"}, "12\n3\n"},
		"nothing":                        {true, false, nil, ""},
		"what is no JSON from the start": {true, false, []string{"OggS\x00", "\xff"}, "OggS\x00\xff"},
		"what looks like JSON first":     {true, false, []string{"7", "z\xbc\xaf"}, "7z\xbc\xaf"},
		"a date":                         {true, false, []string{"2026-01-02 x\n", "2\n"}, "2026-01-02 x\n2\n"},
		"JSON on several lines":          {true, false, []string{"{\n \"a\": 1\n}"}, "{\n \"a\": 1\n}"},
		"what is no JSON in the end":     {true, false, []string{"\"one\"\n", `{"a":`}, "one\n{\"a\":"},
		"JSON as bytes":                  {false, false, []string{`"one"`, `"two"`}, `"one""two"`},
		"bytes":                          {false, false, []string{"\x1b[2J\xe2", "\x82\xac"}, "\x1b[2J€"},
		"letters on a terminal":          {false, true, []string{"a\xe2", "\x82\xac\x1b", "\xf0\x9f"}, "a€\ufffd\ufffd"},
		"a terminal that is commanded":   {true, true, []string{`"\u001b[2J"`}, "\ufffd[2J\n"},
	} {
		var b bytes.Buffer
		p := &Parts{To: &terminal.Screen{Writer: &b, TTY: test.tty, Width: 80}, asJSON: test.asJSON}
		for _, part := range test.parts {
			if n, err := p.Write([]byte(part)); n != len(part) || err != nil {
				t.Errorf("%s: %d, %v", name, n, err)
			}
		}
		if err := p.End(); err != nil || b.String() != test.want {
			t.Errorf("%s: got %q, %v; want %q", name, b.String(), err, test.want)
		}
	}
}

func TestEndlessValue(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	p := &Parts{To: &terminal.Screen{Writer: &b}, asJSON: true}
	long := `"` + strings.Repeat("x", maxValue)
	if _, err := p.Write([]byte(long)); err != nil || b.String() != long {
		t.Errorf("%d bytes were printed of %d, %v", b.Len(), len(long), err)
	}
}

// FuzzPartWriter shows that how an output is cut makes no difference.
func FuzzPartWriter(f *testing.F) {
	f.Add([]byte("\"one\"\n{\"a\":[1,2]}\n3"), uint8(3))
	f.Add([]byte("12\xff"), uint8(1))
	f.Fuzz(func(t *testing.T, output []byte, size uint8) {
		printed := func(size int) string {
			var b bytes.Buffer
			p := &Parts{To: &terminal.Screen{Writer: &b}, asJSON: true}
			for rest := output; len(rest) > 0; {
				n := min(size, len(rest))
				if _, err := p.Write(rest[:n]); err != nil {
					t.Fatal(err)
				}
				rest = rest[n:]
			}
			if err := p.End(); err != nil {
				t.Fatal(err)
			}
			return b.String()
		}
		if whole, cut := printed(max(len(output), 1)), printed(int(size)+1); whole != cut {
			t.Fatalf("%q in parts of %d: %q, at once %q", output, int(size)+1, cut, whole)
		}
	})
}

func TestLinesOfJSON(t *testing.T) {
	t.Parallel()
	for media, want := range map[string]bool{"application/x-ndjson": true, "application/json; charset=utf-8": true, "application/ld+json": true,
		"audio/ogg": false, "text/plain": false, "": false, ";": false} {
		p := &Parts{}
		if p.Began(media); p.asJSON != want {
			t.Errorf("%q: got %t", media, p.asJSON)
		}
	}
}
