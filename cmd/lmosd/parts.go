package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// jsonParts returns the values of an output in JSON: one, or those of an output that came in parts, which the API puts one after
// the other. It is nil for what is no JSON.
func jsonParts(output []byte, media string) (values [][]byte) {
	if !isJSON(media) {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(output))
	for {
		var v json.RawMessage
		switch err := d.Decode(&v); {
		case errors.Is(err, io.EOF):
			return values
		case err != nil:
			return nil
		}
		values = append(values, v)
	}
}

// expectsJSON reports whether the output of an action is JSON, as far as that is known before it comes: by what the caller accepts,
// else by the forms. The API says it too late for those who take the output while it comes.
func expectsJSON(a *td.Action, accept string) bool {
	if accept != "" {
		return isJSON(accept)
	}
	return slices.ContainsFunc(a.Forms, func(f td.Form) bool { return isJSON(f.ResponseType) })
}

// maxValue bounds a value of JSON that comes in parts, as the node bounds it, in bytes.
const maxValue = 4 << 20

// A partWriter prints an output as it comes: each value of JSON on a line, other types as they are. What should be JSON and is not
// is printed as it is from there on.
type partWriter struct {
	to     *screen
	asJSON bool
	rest   []byte // the beginning of a value, or of a letter on a terminal
}

// Write implements [io.Writer].
func (p *partWriter) Write(b []byte) (int, error) {
	p.rest = append(p.rest, b...)
	for p.asJSON && p.next(false) {
	}
	if p.asJSON {
		return len(b), nil
	}
	return len(b), p.bytes(false)
}

// next prints a value if one is complete. A number is when something stands behind it, or at the end.
func (p *partWriter) next(end bool) bool {
	d := json.NewDecoder(bytes.NewReader(p.rest))
	var v json.RawMessage
	err := d.Decode(&v)
	n := int(d.InputOffset())
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF) && !end && len(p.rest) <= maxValue:
		return false
	case err != nil:
		p.asJSON = false
		return false
	case n == len(p.rest) && !end && strings.ContainsRune("0123456789", rune(v[len(v)-1])):
		return false
	}
	writeOutput(p.to, v, interact.JSON)
	p.rest = p.rest[n:]
	return true
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

// end prints what is left.
func (p *partWriter) end() error {
	for p.asJSON && p.next(true) {
	}
	if p.asJSON {
		return nil
	}
	return p.bytes(true)
}
