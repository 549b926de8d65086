// Package jsonedit finds and replaces values in JSON text and leaves all other bytes unchanged. All functions but [Valid] and [ValidString]
// take valid JSON: a caller checks untrusted text first.
//
// Sources: RFC 8259.
package jsonedit

import (
	"bytes"
	"encoding/json"
	"errors"
	"unicode/utf8"
)

// errTwice means that an object has a member twice: some parsers use the first, others the last, so that a check could see
// another value than its user.
var errTwice = errors.New("duplicate member")

// A Span is the position of a value in a text. The zero value means that there is none.
type Span struct{ From, To int }

// A Member is a member of an object.
type Member struct {
	Name []byte // unescaped; part of the text if it has no escapes
	At   Span
}

// An Object is the members of an object, in their order.
type Object []Member

// Members appends the members of the object that begins at text[0] to room, which may be nil. Names are compared
// unescaped. The error is [errTwice].
func Members(room Object, text []byte) (Object, error) {
	all := room
	for i := SkipSpace(text, 1); text[i] != '}'; {
		end := SkipString(text, i)
		name, err := nameOf(text[i:end])
		if err != nil {
			return nil, err
		}
		i = SkipSpace(text, SkipSpace(text, end)+1) // the colon
		end = SkipValue(text, i)
		all = append(all, Member{name, Span{i, end}})
		if i = SkipSpace(text, end); text[i] == ',' {
			i = SkipSpace(text, i+1)
		}
	}
	if all[len(room):].twice() {
		return nil, errTwice
	}
	return all, nil
}

// few is the number of members up to which names are compared without a map.
const few = 16

func (o Object) twice() bool {
	if len(o) <= few {
		for i, m := range o {
			for _, before := range o[:i] {
				if bytes.Equal(m.Name, before.Name) {
					return true
				}
			}
		}
		return false
	}
	names := make(map[string]struct{}, len(o))
	for _, m := range o {
		names[string(m.Name)] = struct{}{}
	}
	return len(names) < len(o)
}

// Of returns the position of the value of a member, or the zero value if there is no such member.
func (o Object) Of(name string) Span {
	for _, m := range o {
		if string(m.Name) == name {
			return m.At
		}
	}
	return Span{}
}

func nameOf(quoted []byte) ([]byte, error) {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1], nil
	}
	var name string
	err := json.Unmarshal(quoted, &name)
	return []byte(name), err
}

// String returns the text of a string; ok reports whether raw is one.
func String(raw []byte) (s string, ok bool) {
	if len(raw) == 0 || raw[0] != '"' {
		return "", false
	}
	if inside := raw[1 : len(raw)-1]; bytes.IndexByte(inside, '\\') < 0 && utf8.Valid(inside) {
		return string(inside), true
	}
	return unescape(raw)
}

// unescape is separate, so that its variable costs the fast path of [String] no allocation.
func unescape(raw []byte) (s string, ok bool) { err := json.Unmarshal(raw, &s); return s, err == nil }

// SkipSpace returns the end of the white space at i.
func SkipSpace(text []byte, i int) int {
	for i < len(text) && (text[i] == ' ' || text[i] == '\t' || text[i] == '\n' || text[i] == '\r') {
		i++
	}
	return i
}

// SkipString returns the end of the string that begins at text[i].
func SkipString(text []byte, i int) int {
	for i++; ; {
		i += bytes.IndexByte(text[i:], '"')
		escapes := 0
		for text[i-1-escapes] == '\\' {
			escapes++
		}
		if i++; escapes%2 == 0 {
			return i
		}
	}
}

// SkipValue returns the end of the value that begins at text[i].
func SkipValue(text []byte, i int) int {
	switch text[i] {
	case '"':
		return SkipString(text, i)
	case '{', '[':
		for depth := 0; ; {
			switch text[i] {
			case '"':
				i = SkipString(text, i)
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			if i++; depth == 0 {
				return i
			}
		}
	}
	for i < len(text) && bytes.IndexByte([]byte(",]} \t\r\n"), text[i]) < 0 {
		i++
	}
	return i
}

// Find returns the position of the value at path, through objects, or the zero Span if it does not exist. The error is [errTwice]
// of an object on the path.
func Find(text []byte, path ...string) (Span, error) {
	at := Span{0, len(text)}
	var room [few]Member
	for _, name := range path {
		at.From = SkipSpace(text, at.From)
		if at.From >= at.To || text[at.From] != '{' {
			return Span{}, nil
		}
		all, err := Members(room[:0], text[at.From:at.To])
		if err != nil {
			return Span{}, err
		}
		next := all.Of(name)
		if next == (Span{}) {
			return Span{}, nil
		}
		at = Span{at.From + next.From, at.From + next.To}
	}
	return at, nil
}

// Splice returns text with the span at replaced by value.
func Splice(text []byte, at Span, value []byte) []byte {
	out := make([]byte, 0, len(text)-(at.To-at.From)+len(value))
	out = append(out, text[:at.From]...)
	out = append(out, value...)
	return append(out, text[at.To:]...)
}

// Set returns a copy of the object text with value at path; missing objects on the path are created. A nil value removes the
// member. The error is [errTwice].
func Set(text, value []byte, path ...string) ([]byte, error) {
	at, err := Find(text, path...)
	there := at != (Span{})
	switch {
	case err != nil:
		return nil, err
	case there && value != nil:
		return Splice(text, at, value), nil
	case there:
		return remove(text, path)
	case value == nil:
		return text, nil
	}
	if len(path) > 1 {
		inner := []byte("{}")
		parent, err := Find(text, path[0])
		if err != nil {
			return nil, err
		}
		if parent != (Span{}) && text[parent.From] == '{' {
			inner = text[parent.From:parent.To]
		}
		if value, err = Set(inner, value, path[1:]...); err != nil {
			return nil, err
		}
		return Set(text, value, path[0])
	}
	name, err := json.Marshal(path[0])
	if err != nil {
		return nil, err
	}
	open := SkipSpace(text, 0) + 1
	added := append(append(name, ':'), value...)
	if text[SkipSpace(text, open)] != '}' {
		added = append(added, ',')
	}
	return Splice(text, Span{open, open}, added), nil
}

// remove removes the existing member at path.
func remove(text []byte, path []string) ([]byte, error) {
	if len(path) > 1 {
		at, err := Find(text, path[0])
		if err != nil {
			return nil, err
		}
		inner, err := remove(text[at.From:at.To], path[1:])
		if err != nil {
			return nil, err
		}
		return Splice(text, at, inner), nil
	}
	var rest bytes.Buffer
	rest.WriteByte('{')
	for i := SkipSpace(text, SkipSpace(text, 0)+1); text[i] != '}'; {
		nameEnd := SkipString(text, i)
		value := SkipSpace(text, SkipSpace(text, nameEnd)+1)
		end := SkipValue(text, value)
		name, err := nameOf(text[i:nameEnd])
		if err != nil {
			return nil, err
		}
		if string(name) != path[0] {
			if rest.Len() > 1 {
				rest.WriteByte(',')
			}
			rest.Write(text[i:end])
		}
		if i = SkipSpace(text, end); text[i] == ',' {
			i = SkipSpace(text, i+1)
		}
	}
	rest.WriteByte('}')
	return rest.Bytes(), nil
}
