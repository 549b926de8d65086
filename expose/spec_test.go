package expose

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

func TestParseLine(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]Spec{
		"exec:./weather.sh --name weather":                            {Target: "exec:./weather.sh", Name: "weather"},
		"--name=weather exec:./weather.sh -description 'Reports it.'": {Target: "exec:./weather.sh", Name: "weather", Description: "Reports it."},
		`'exec:./weather.sh --fast "x y"' --delimiter '\n'`:           {Target: `exec:./weather.sh --fast "x y"`, Delimiter: `\n`},
		"exec:cat --capability a --action x --capability b":           {Target: "exec:cat", Capabilities: []string{"a", "b"}, Actions: []string{"x"}},
		"exec:cat --for globex --for own/ops":                         {Target: "exec:cat", For: []string{"globex", "own/ops"}},
		"openapi:pets.yaml\n  --server http://127.0.0.1:9 --dir \"\"": {Target: "openapi:pets.yaml", Server: "http://127.0.0.1:9"},
		`lamp\ one.td.json`: {Target: "lamp one.td.json"},
	} {
		if got, err := ParseLine(line); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v; want %+v", line, got, err, want)
		}
	}
}

func TestInvalidLines(t *testing.T) {
	t.Parallel()
	for line, text := range map[string]string{
		"": "expected a target", "--name x": "expected a target", "exec:./a --fast": "-fast", "exec:a exec:b": "expected a target",
		"exec:'a": "a quote is not closed",
		`exec:a\`: "a quote is not closed", "exec:a --name": "needs an argument", "exec:a --help": "help",
	} {
		_, err := ParseLine(line)
		var e *interact.Error
		if !errors.As(err, &e) || e.Code != interact.ConfigInvalid || e.Hint == "" && e.Next == nil || !strings.Contains(e.Error(), text) {
			t.Errorf("%q: got %v, want %q", line, err, text)
		}
	}
}

func TestSplit(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][]string{
		"":                 nil,
		" \t\n":            nil,
		"a  b":             {"a", "b"},
		`a'b c'"d e"f`:     {"ab cd ef"},
		`'' ""`:            {"", ""},
		`'a\n' "a\n\"\\b"`: {`a\n`, `a\n"\b`},
		`a\ b \'`:          {"a b", "'"},
		"a\r\nb":           {"a", "b"},
	} {
		if got, ok := split(line); !ok || !slices.Equal(got, want) {
			t.Errorf("%q: got %q, %t", line, got, ok)
		}
	}
}

func TestUnescape(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{`\n`: "\n", `\\n`: `\n`, `\0\t`: "\x00\t", `\x`: `\x`, "\n": "\n"} {
		if got := unescape(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// FuzzParseLine parses arbitrary lines without a panic, and quoting preserves each word.
func FuzzParseLine(f *testing.F) {
	f.Add("exec:./weather.sh --name 'a b' --capability \"c\\\"d\"")
	f.Add(`'a\`)
	f.Fuzz(func(t *testing.T, line string) {
		s, err := ParseLine(line)
		if (err == nil) == (s.Target == "") {
			t.Fatalf("%q gives %+v and %v", line, s, err)
		}
		words, ok := split(line)
		if !ok {
			return
		}
		var quoted []string
		for _, w := range words {
			quoted = append(quoted, "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
		}
		again, ok := split(strings.Join(quoted, " "))
		if !ok || !slices.Equal(again, words) {
			t.Fatalf("%q are %q after quoting", words, again)
		}
	})
}
