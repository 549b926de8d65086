package frame

import (
	"bytes"
	"encoding/json"
	"errors"
	"unicode/utf8"
)

// members are the known members of a frame, as they were written. What is null is not there (LMOS, tolerance: null means
// absent), but null remembers it, for a value may be null.
type members struct {
	raw     [slots][]byte
	null    [slots]bool
	capital bool // an ID was spelled with a capital D
	small   bool // an ID was spelled with a small d
}

var (
	errNotJSON   = errors.New("it is not JSON")
	errNotObject = errors.New("it is not a JSON object")
	errTwice     = errors.New("it has a member twice, and they differ")
)

// read fills m from the object b. The slices point into b. With errTwice it has all but what is there twice: enough to answer.
func (m *members) read(b []byte) (err error) {
	if !utf8.Valid(b) || !json.Valid(b) { // RFC 6455 §5.6: text is UTF-8
		return errNotJSON
	}
	i := space(b, 0)
	if b[i] != '{' {
		return errNotObject
	}
	for i = space(b, i+1); b[i] != '}'; {
		end := skip(b, i)
		name := b[i:end]
		i = space(b, space(b, end)+1) // after the colon
		end = skip(b, i)
		if twice := m.add(name, b[i:end:end]); twice != nil {
			err = twice
		}
		if i = space(b, end); b[i] == ',' {
			i = space(b, i+1)
		}
	}
	return err
}

// add takes one member. name is still quoted.
func (m *members) add(name, value []byte) error {
	name = name[1 : len(name)-1]
	s, ok := slotByName[string(name)]
	if !ok && bytes.IndexByte(name, '\\') >= 0 {
		text, _ := unescape(append(append([]byte{'"'}, name...), '"')) // it is valid
		s, ok = slotByName[text]
	}
	switch {
	case !ok:
		return nil
	case value[0] == 'n':
		m.null[s] = true
		return nil
	case m.raw[s] != nil && !bytes.Equal(m.raw[s], value): // thingID and thingId may both be there, to please everybody
		m.raw[s] = nil
		return errTwice
	}
	m.raw[s] = value
	if s == sThing || s == sID || s == sCorrelation {
		capital := bytes.HasSuffix(name, []byte("ID"))
		m.capital, m.small = m.capital || capital, m.small || !capital
	}
	return nil
}

// has reports whether any of the members is there.
func (m *members) has(some ...slot) bool {
	for _, s := range some {
		if m.raw[s] != nil {
			return true
		}
	}
	return false
}

// text returns a member that is a string of at most limit bytes.
func (m *members) text(s slot, limit int) (string, error) {
	raw := m.raw[s]
	if raw == nil {
		return "", nil
	}
	text, ok := unquote(raw)
	switch {
	case !ok:
		return "", badMember(s, "is no text")
	case len(text) > limit:
		return "", badMember(s, "is too long")
	}
	return text, nil
}

// unquote reads a JSON string that is known to be valid; ok is false for another kind of value.
func unquote(raw []byte) (text string, ok bool) {
	if len(raw) < 2 || raw[0] != '"' {
		return "", false
	}
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1]), true
	}
	return unescape(raw)
}

func unescape(raw []byte) (text string, ok bool) { return text, json.Unmarshal(raw, &text) == nil }

// space returns the index of the first byte of b from i that is no white space.
func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// skip returns the index after the value that begins at i. b is valid JSON.
func skip(b []byte, i int) int {
	depth := 0
	for ; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = skipString(b, i)
			if depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth < 0 {
				return i // the end of the object after a number or word
			}
			if depth == 0 {
				return i + 1
			}
		case ',', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return i
			}
		}
	}
	return i
}

// skipString returns the index of the quote that ends the string at i.
func skipString(b []byte, i int) int {
	for i++; b[i] != '"'; i++ {
		if b[i] == '\\' {
			i++
		}
	}
	return i
}
