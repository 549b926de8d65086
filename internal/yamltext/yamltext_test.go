package yamltext

import (
	"strings"
	"testing"
)

func TestNestingIsBounded(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"brackets":            strings.Repeat("[", 100),
		"braces over lines":   strings.Repeat("{a:\n", 100),
		"dashes":              strings.Repeat("- ", 100) + "x",
		"indentation":         strings.Repeat(" ", 100) + "x: 1",
		"explicit keys":       strings.Repeat("? ", 100) + "x",
		"open and not closed": strings.Repeat("[]\n[\n", 100),
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), "nested deeper") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Parse([]byte(strings.Repeat("a: [x, [y]]\n", 500))); err != nil && strings.Contains(err.Error(), "nested deeper") {
		t.Errorf("many short lists: %v", err)
	}
	if err := Unmarshal(make([]byte, MaxFile+1), nil); err == nil {
		t.Error("a file beyond the limit was accepted")
	}
}

// The library panics on this text, which the fuzzer of package access found.
func TestPanicsAreErrors(t *testing.T) {
	t.Parallel()
	file, err := Parse([]byte("rules:\n !0 #0"))
	if err == nil {
		var v struct{ Rules []any }
		err = Decode(file.Docs[0].Body, &v)
	}
	if err == nil || !strings.Contains(err.Error(), "invalid YAML") {
		t.Errorf("got %v", err)
	}
}

func TestPosition(t *testing.T) {
	t.Parallel()
	var v struct{ A int }
	message, line, column := Position(Unmarshal([]byte("a: 1\nb: 2\n"), &v))
	if line != 2 || column != 1 || message == "" || strings.Contains(message, "\n") {
		t.Errorf("%q at %d:%d", message, line, column)
	}
}

func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte("a: [1, {b: c}]"))
	f.Fuzz(func(t *testing.T, source []byte) {
		var v map[string]any
		_ = Unmarshal(source, &v)
		if file, err := Parse(source); err == nil {
			for _, d := range file.Docs {
				_ = Decode(d.Body, &v)
			}
		}
	})
}
