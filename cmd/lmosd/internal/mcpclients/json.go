package mcpclients

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/internal/jsonedit"
)

// A reader reads JSON with comments and trailing commas, which some clients allow.
type reader struct {
	text  []byte
	plain []byte // text with spaces in place of comments
}

// A member of an object with its position.
type member struct {
	name             string
	at               int // of its name
	value, end, next int // the value, and the position after it and its comma
}

// An object with its position.
type object struct {
	open, close int // its braces
	members     []member
	comma       bool // there is a trailing comma
}

func broken(what string) error {
	return interact.Errorf(interact.ConfigInvalid, "mend it, or write the entry by hand, as lmosd install … --dry-run --file /dev/null shows it",
		"the configuration cannot be read: %s", what)
}

// withoutComments returns text with spaces in place of its comments.
func withoutComments(text []byte) ([]byte, error) {
	plain := bytes.Clone(text)
	for i := 0; i < len(text); {
		end := i + 1
		switch rest := text[i:]; {
		case rest[0] == '"':
			var ok bool
			if end, ok = jsonedit.ValidString(text, i); !ok {
				return nil, broken("a text does not end, or is no JSON")
			}
			i = end
			continue
		case bytes.HasPrefix(rest, []byte("//")):
			if end = i + bytes.IndexByte(rest, '\n'); end < i {
				end = len(text)
			}
		case bytes.HasPrefix(rest, []byte("/*")):
			n := bytes.Index(rest[2:], []byte("*/"))
			if n < 0 {
				return nil, broken("a comment does not end")
			}
			end = i + n + 4
		default:
			i = end
			continue
		}
		for ; i < end; i++ {
			if plain[i] != '\n' {
				plain[i] = ' '
			}
		}
	}
	return plain, nil
}

// withoutLastCommas returns plain with spaces in place of trailing commas.
func withoutLastCommas(plain []byte) []byte {
	strict := bytes.Clone(plain)
	for i, before := 0, byte(0); i < len(plain); {
		c := plain[i]
		if c == '"' {
			i, before = jsonedit.SkipString(plain, i), c
			continue
		}
		next := jsonedit.SkipSpace(plain, i+1)
		if c == ',' && next < len(plain) && (plain[next] == '}' || plain[next] == ']') && bytes.IndexByte([]byte("\x00{[,:"), before) < 0 {
			strict[i] = ' '
		}
		i, before = next, c
	}
	return strict
}

// object reads the object that begins at i.
func (r *reader) object(i int) (o object) {
	o.open = i
	for i = jsonedit.SkipSpace(r.plain, i+1); r.plain[i] != '}'; i = jsonedit.SkipSpace(r.plain, i) {
		m := member{at: i}
		i = jsonedit.SkipString(r.plain, i)
		m.name, _ = jsonedit.String(r.plain[m.at:i])
		m.value = jsonedit.SkipSpace(r.plain, jsonedit.SkipSpace(r.plain, i)+1)
		m.end = jsonedit.SkipValue(r.plain, m.value)
		m.next = m.end
		if i = jsonedit.SkipSpace(r.plain, m.end); r.plain[i] == ',' {
			i++
			m.next = i
		}
		o.comma = m.next > m.end
		o.members = append(o.members, m)
	}
	o.close = i
	return o
}

func (o *object) find(name string) *member {
	for i := range o.members {
		if o.members[i].name == name {
			return &o.members[i]
		}
	}
	return nil
}

// root parses the whole text.
func root(text []byte) (*reader, object, error) {
	plain, err := withoutComments(text)
	if err != nil {
		return nil, object{}, err
	}
	i := jsonedit.SkipSpace(plain, 0)
	if i >= len(plain) || plain[i] != '{' {
		return nil, object{}, broken("expected a JSON object")
	}
	if strict := withoutLastCommas(plain); !jsonedit.Valid(strict) {
		_, err := jcs.Decode(strict, len(strict)) // the error has line and column
		return nil, object{}, broken(fmt.Sprint(err))
	}
	r := &reader{text, plain}
	return r, r.object(i), nil
}

// setMember sets the member name of the object at section, and creates missing objects.
func setMember(text []byte, section []string, name string, value []byte) ([]byte, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		text = []byte("{}\n")
	}
	r, servers, err := root(text)
	if err != nil {
		return nil, err
	}
	unit := unitOf(text)
	var s *member
	for i, one := range section {
		within, indent := servers, unit
		if s != nil {
			indent = r.indentAt(s.at) + unit
		}
		if s = within.find(one); s == nil {
			entry := value
			for _, missing := range slices.Backward(append(slices.Clone(section[i+1:]), name)) {
				entry = []byte("{" + quoted(missing) + ":" + string(entry) + "}")
			}
			return r.insert(within, one, indented(entry, indent, unit), unit), nil
		}
		if text[s.value] != '{' {
			return nil, broken(one + " is not an object")
		}
		servers = r.object(s.value)
	}
	if m := servers.find(name); m != nil {
		if same(text[m.value:m.end], value) {
			return text, nil
		}
		return splice(text, m.value, m.end, indented(value, r.indentAt(m.at), unit)), nil
	}
	inner := r.indentAt(s.at) + unit
	return r.insert(servers, name, indented(value, inner, unit), unit), nil
}

// insert adds a member after the last of an object.
func (r *reader) insert(o object, name, value, unit string) []byte {
	outer := r.indentAt(o.open)
	inner := outer + unit
	if n := len(o.members); n > 0 {
		last := o.members[n-1]
		if strings.Contains(string(r.text[o.open:last.at]), "\n") {
			inner = r.indentAt(last.at)
		}
		if o.comma {
			return splice(r.text, last.next, last.next, "\n"+inner+quoted(name)+": "+value)
		}
		return splice(r.text, last.end, last.end, ",\n"+inner+quoted(name)+": "+value)
	}
	if within := string(r.text[o.open+1 : o.close]); strings.TrimSpace(within) != "" { // it is a comment, which may extend to the end of its line
		return splice(r.text, o.open+1, o.open+1, "\n"+inner+quoted(name)+": "+value)
	}
	return splice(r.text, o.open+1, o.close, "\n"+inner+quoted(name)+": "+value+"\n"+outer)
}

// sectionOf returns the object at a path; ok reports whether it exists.
func sectionOf(text []byte, path []string) (o object, ok bool, err error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return o, false, nil
	}
	r, o, err := root(text)
	if err != nil {
		return o, false, err
	}
	for _, one := range path {
		s := o.find(one)
		if s == nil || text[s.value] != '{' {
			return o, false, nil
		}
		o = r.object(s.value)
	}
	return o, true, nil
}

// dropMember removes a member of the object at section.
func dropMember(text []byte, section []string, name string) ([]byte, error) {
	servers, ok, err := sectionOf(text, section)
	if err != nil || !ok {
		return text, err
	}
	m := servers.find(name)
	if m == nil {
		return text, nil
	}
	from, to := m.at, m.next
	if i := len(servers.members) - 1; m == &servers.members[i] && i > 0 && !servers.comma {
		before := servers.members[i-1] // its comma is removed, the text in between is kept
		text = splice(text, before.next-1, before.next, "")
		from, to = from-1, to-1
	}
	for from > 0 && (text[from-1] == ' ' || text[from-1] == '\t') {
		from--
	}
	if from > 0 && text[from-1] == '\n' {
		from--
	}
	return splice(text, from, to, ""), nil
}

// same reports whether a member already has the value, in any form.
func same(there, value []byte) bool {
	var a, b any
	return json.Unmarshal(there, &a) == nil && json.Unmarshal(value, &b) == nil && reflect.DeepEqual(a, b)
}

func quoted(name string) string {
	text, _ := json.Marshal(name) // strings always encode
	return string(text)
}

// indented returns a value in lines; the first is not indented.
func indented(value []byte, indent, unit string) string {
	var out bytes.Buffer
	_ = json.Indent(&out, value, indent, unit) // it is valid
	return out.String()
}

// indentAt returns the indentation of the line of i.
func (r *reader) indentAt(i int) string {
	start := bytes.LastIndexByte(r.text[:i], '\n') + 1
	end := start
	for end < len(r.text) && (r.text[end] == ' ' || r.text[end] == '\t') {
		end++
	}
	return string(r.text[start:end])
}

// unitOf returns the indentation unit of a text.
func unitOf(text []byte) string {
	for line := range bytes.Lines(text) {
		rest := bytes.TrimLeft(line, " \t")
		if n := len(line) - len(rest); n > 0 && n <= 8 && len(bytes.TrimSpace(rest)) > 0 {
			return string(line[:n])
		}
	}
	return "  "
}

func splice(text []byte, from, to int, with string) []byte {
	out := append([]byte{}, text[:from]...)
	out = append(out, with...)
	return append(out, text[to:]...)
}
