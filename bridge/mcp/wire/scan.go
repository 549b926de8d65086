package wire

import (
	"bytes"
	"encoding/json"
	"errors"
)

// errDoubled is said of an object that names a member twice: one reader takes the first, another the last, and what one of them
// has checked is not what the other does.
var errDoubled = errors.New("a member is there twice")

// A span is where a value stands in a text.
type span struct{ from, to int }

// members returns where the values of an object stand, by name. The object is valid JSON and begins at text[0]. Names are
// compared as they are spelled, with escapes undone.
func members(text []byte) (map[string]span, error) {
	out := make(map[string]span, 8)
	i := skipSpace(text, 1)
	for text[i] != '}' {
		end := skipString(text, i)
		name, err := nameOf(text[i:end])
		if err != nil {
			return nil, err
		}
		i = skipSpace(text, skipSpace(text, end)+1) // the colon
		end = skipValue(text, i)
		if _, twice := out[name]; twice {
			return nil, errDoubled
		}
		out[name] = span{i, end}
		if i = skipSpace(text, end); text[i] == ',' {
			i = skipSpace(text, i+1)
		}
	}
	return out, nil
}

func nameOf(quoted []byte) (string, error) {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return string(quoted[1 : len(quoted)-1]), nil
	}
	var name string
	err := json.Unmarshal(quoted, &name)
	return name, err
}

func skipSpace(text []byte, i int) int {
	for i < len(text) && (text[i] == ' ' || text[i] == '\t' || text[i] == '\n' || text[i] == '\r') {
		i++
	}
	return i
}

// skipString returns the end of the string that begins at i.
func skipString(text []byte, i int) int {
	for i++; text[i] != '"'; i++ {
		if text[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// skipValue returns the end of the value that begins at i.
func skipValue(text []byte, i int) int {
	switch text[i] {
	case '"':
		return skipString(text, i)
	case '{', '[':
		for depth := 0; ; {
			switch text[i] {
			case '"':
				i = skipString(text, i)
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

// find returns where the value stands that path leads to, through objects. It is not there if an element of the path is no
// object or has no such member.
func find(text []byte, path ...string) (at span, ok bool, err error) {
	at = span{0, len(text)}
	for _, name := range path {
		at.from = skipSpace(text, at.from)
		if at.from >= at.to || text[at.from] != '{' {
			return span{}, false, nil
		}
		all, err := members(text[at.from:at.to])
		if err != nil {
			return span{}, false, err
		}
		next, there := all[name]
		if !there {
			return span{}, false, nil
		}
		at = span{at.from + next.from, at.from + next.to}
	}
	return at, true, nil
}

// splice puts value in the place at.
func splice(text []byte, at span, value []byte) []byte {
	out := make([]byte, 0, len(text)-(at.to-at.from)+len(value))
	out = append(out, text[:at.from]...)
	out = append(out, value...)
	return append(out, text[at.to:]...)
}

// set returns the object text with value at path; objects on the way are made where there are none. A nil value takes the
// member away.
func set(text, value []byte, path ...string) ([]byte, error) {
	at, ok, err := find(text, path...)
	switch {
	case err != nil:
		return nil, err
	case ok && value != nil:
		return splice(text, at, value), nil
	case ok:
		return remove(text, path)
	case value == nil:
		return text, nil
	}
	if len(path) > 1 {
		inner := []byte("{}")
		parent, there, err := find(text, path[0])
		if err != nil {
			return nil, err
		}
		if there && text[parent.from] == '{' {
			inner = text[parent.from:parent.to]
		}
		if value, err = set(inner, value, path[1:]...); err != nil {
			return nil, err
		}
		return set(text, value, path[0])
	}
	name, err := json.Marshal(path[0])
	if err != nil {
		return nil, err
	}
	open := skipSpace(text, 0) + 1
	added := append(append(name, ':'), value...)
	if text[skipSpace(text, open)] != '}' {
		added = append(added, ',')
	}
	return splice(text, span{open, open}, added), nil
}

// remove takes away the member that path leads to, which is there.
func remove(text []byte, path []string) ([]byte, error) {
	if len(path) > 1 {
		at, _, err := find(text, path[0])
		if err != nil {
			return nil, err
		}
		inner, err := remove(text[at.from:at.to], path[1:])
		if err != nil {
			return nil, err
		}
		return splice(text, at, inner), nil
	}
	var rest bytes.Buffer
	rest.WriteByte('{')
	for i := skipSpace(text, skipSpace(text, 0)+1); text[i] != '}'; {
		nameEnd := skipString(text, i)
		value := skipSpace(text, skipSpace(text, nameEnd)+1)
		end := skipValue(text, value)
		name, err := nameOf(text[i:nameEnd])
		if err != nil {
			return nil, err
		}
		if name != path[0] {
			if rest.Len() > 1 {
				rest.WriteByte(',')
			}
			rest.Write(text[i:end])
		}
		if i = skipSpace(text, end); text[i] == ',' {
			i = skipSpace(text, i+1)
		}
	}
	rest.WriteByte('}')
	return rest.Bytes(), nil
}
