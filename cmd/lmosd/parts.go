package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// acceptParts is the header that asks the node for parts of JSON on a line each, beside what the agent is asked for.
func acceptParts(accept string) string {
	if accept == "" {
		accept = "*/*"
	}
	return accept + ", application/x-ndjson;q=0.9"
}

// expectsJSON reports whether the output of an action is JSON, as far as that is known before it comes: by what the caller accepts,
// else by the forms. The API says it too late for those who take the output while it comes.
func expectsJSON(a *td.Action, accept string) bool {
	if accept != "" {
		return isJSON(accept)
	}
	return slices.ContainsFunc(a.Forms, func(f td.Form) bool { return isJSON(f.ResponseType) })
}

// maxValue bounds a value of JSON that comes on a line, as the node bounds it, in bytes.
const maxValue = 4 << 20

// A partWriter prints an output as it comes: values of JSON that are on a line each as lmosd call prints them, other types as they
// are. What should be JSON and is not is printed as it is, from there on.
type partWriter struct {
	to     *screen
	asJSON bool
	rest   []byte // the beginning of a line of JSON, or of a letter on a terminal
}

// Write implements [io.Writer].
func (p *partWriter) Write(b []byte) (int, error) {
	p.rest = append(p.rest, b...)
	for p.asJSON && len(p.rest) > 0 {
		line, rest, complete := bytes.Cut(p.rest, []byte("\n"))
		switch {
		case !complete && len(line) <= maxValue && bytes.ContainsAny(line[:1], `"{[-0123456789tfn`):
			return len(b), nil
		case complete && json.Valid(line):
			writeOutput(p.to, line, interact.JSON)
			p.rest = rest
		default:
			p.asJSON = false
		}
	}
	return len(b), p.bytes(false)
}

// end prints what is left.
func (p *partWriter) end() error {
	if p.asJSON && json.Valid(p.rest) {
		writeOutput(p.to, p.rest, interact.JSON)
		return nil
	}
	return p.bytes(true)
}

// bytes prints what has come; on a terminal, without what commands it, and letter by letter.
func (p *partWriter) bytes(end bool) error {
	out := p.rest
	p.rest = nil
	if p.to.tty {
		cut := len(out)
		for i := max(0, cut-utf8.UTFMax); i < cut && !end; i++ {
			if utf8.RuneStart(out[i]) && !utf8.FullRune(out[i:]) {
				cut = i
			}
		}
		out, p.rest = out[:cut], out[cut:]
		out = []byte(printable(strings.ToValidUTF8(string(out), string(utf8.RuneError))))
	}
	_, err := p.to.Write(out)
	return err
}
