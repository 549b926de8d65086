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

// maxValue limits a line of JSON, as the node does, in bytes.
const maxValue = 4 << 20

// Parts prints an output as it arrives: JSON values, one per line, like [Write], other types unchanged. After invalid JSON the rest is
// unchanged.
type Parts struct {
	To     *terminal.Screen
	asJSON bool
	rest   []byte // the beginning of a line of JSON, or of a character on a terminal
}

// Began sets the media type of the output: JSON is one value, or one per line.
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

// End prints the rest.
func (p *Parts) End() error {
	if p.asJSON && json.Valid(p.rest) {
		Write(p.To, p.rest, interact.JSON)
		return nil
	}
	return p.bytes(true)
}

// bytes prints data; on a terminal, without control characters, and in whole characters.
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
