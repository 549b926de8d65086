package printer

import (
	"bytes"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

func TestWrite(t *testing.T) {
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
		Write(&terminal.Screen{Writer: &b, TTY: test.tty, Width: 80}, []byte(test.output), test.media)
		if b.String() != test.want {
			t.Errorf("%s: got %q, want %q", name, b.String(), test.want)
		}
	}
}
