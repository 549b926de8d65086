// Package printer prints values that agents return: formatted on a terminal, unchanged in a pipe.
package printer

import (
	"bytes"
	"encoding/json"
	"mime"
	"strings"
	"unicode/utf8"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

// IsJSON reports whether media is JSON or based on it (RFC 6839 §3.1).
func IsJSON(media string) bool {
	t, _, err := mime.ParseMediaType(media)
	return err == nil && (t == "application/json" || strings.HasSuffix(t, "+json"))
}

// Write prints an output: a JSON string as its text, other JSON indented on a terminal, other types unchanged. On a terminal, control
// characters are replaced, because the agent may be untrusted.
func Write(s *terminal.Screen, output []byte, media string) {
	var text *string // nil for null, which is printed
	switch {
	case len(output) == 0:
		return
	case IsJSON(media) && json.Unmarshal(output, &text) == nil && text != nil:
		output = []byte(*text)
	case IsJSON(media) && s.TTY:
		var b bytes.Buffer
		if json.Indent(&b, output, "", "  ") == nil {
			output = b.Bytes()
		}
	}
	if s.TTY {
		output = []byte(terminal.Printable(strings.ToValidUTF8(string(output), string(utf8.RuneError))))
	}
	if isText(media) && !bytes.HasSuffix(output, []byte("\n")) {
		output = append(bytes.Clone(output), '\n')
	}
	// A closed pipe is not an error.
	_, _ = s.Write(output)
}

// isText reports whether a line end may follow the output.
func isText(media string) bool {
	t, _, err := mime.ParseMediaType(media)
	return IsJSON(media) || err == nil && strings.HasPrefix(t, "text/")
}
