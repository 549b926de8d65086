package printer

import (
	"bytes"
	"encoding/json"
	"mime"
	"strings"
	"unicode/utf8"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
)

// maxValue bounds a value of JSON that comes on a line, as the node bounds it, in bytes.
const maxValue = 4 << 20

// Parts print an output as it comes: values of JSON that are on a line each as [Write] prints them, other types as they are. What
// should be JSON and is not is printed as it is, from there on.
type Parts struct {
	To     *terminal.Screen
	asJSON bool
	rest   []byte // the beginning of a line of JSON, or of a letter on a terminal
}

// Began is told the media type of what comes: JSON is one value, or one on each line.
func (p *Parts) Began(media string) {
	t, _, err := mime.ParseMediaType(media)
	p.asJSON = IsJSON(media) || err == nil && t == "application/x-ndjson"
}

// Write implements [io.Writer].
func (p *Parts) Write(b []byte) (int, error) {
	p.rest = append(p.rest, b...)
	for p.asJSON && len(p.rest) > 0 {
		line, rest, complete := bytes.Cut(p.rest, []byte("\n"))
		switch {
		case !complete && len(line) <= maxValue && bytes.ContainsAny(line[:1], `"{[-0123456789tfn`):
			return len(b), nil
		case complete && json.Valid(line):
			Write(p.To, line, interact.JSON)
			p.rest = rest
		default:
			p.asJSON = false
		}
	}
	return len(b), p.bytes(false)
}

// End prints what is left.
func (p *Parts) End() error {
	if p.asJSON && json.Valid(p.rest) {
		Write(p.To, p.rest, interact.JSON)
		return nil
	}
	return p.bytes(true)
}

// bytes prints what has come; on a terminal, without what commands it, and letter by letter.
func (p *Parts) bytes(end bool) error {
	out := p.rest
	p.rest = nil
	if p.To.TTY {
		cut := len(out)
		for i := max(0, cut-utf8.UTFMax); i < cut && !end; i++ {
			if utf8.RuneStart(out[i]) && !utf8.FullRune(out[i:]) {
				cut = i
			}
		}
		out, p.rest = out[:cut], out[cut:]
		out = []byte(terminal.Printable(strings.ToValidUTF8(string(out), string(utf8.RuneError))))
	}
	_, err := p.To.Write(out)
	return err
}
