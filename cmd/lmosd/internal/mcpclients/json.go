package mcpclients

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/interact"
)

// maxDepth bounds the nesting of what is read.
const maxDepth = 200

// A reader walks over JSON with comments and commas at the end, which some clients allow in their files.
type reader struct{ text []byte }

// A member of an object, and where it stands.
type member struct {
	name             string
	at               int // where its name begins
	value, end, next int // the value, and what comes behind it and its comma
}

// An object, and where it stands.
type object struct {
	open, close int // its braces
	members     []member
	comma       bool // there is one behind the last member
}

func broken(what string) error {
	return interact.Errorf(interact.ConfigInvalid, "mend it, or write the entry by hand, as lmosd install … --dry-run --file /dev/null shows it",
		"the configuration cannot be read: %s", what)
}

// skip returns where what is no space and no comment begins.
func (r *reader) skip(i int) (int, error) {
	for i < len(r.text) {
		rest := r.text[i:]
		switch {
		case strings.IndexByte(" \t\r\n", rest[0]) >= 0:
			i++
		case bytes.HasPrefix(rest, []byte("//")):
			n := bytes.IndexByte(rest, '\n')
			if n < 0 {
				return len(r.text), nil
			}
			i += n
		case bytes.HasPrefix(rest, []byte("/*")):
			n := bytes.Index(rest, []byte("*/"))
			if n < 0 {
				return 0, broken("a comment does not end")
			}
			i += n + 2
		default:
			return i, nil
		}
	}
	return i, nil
}

// value returns where the value ends that begins at i.
func (r *reader) value(i, depth int) (int, error) {
	if i >= len(r.text) || depth > maxDepth {
		return 0, broken("it ends in the middle, or is too deep")
	}
	switch r.text[i] {
	case '{':
		o, err := r.object(i, depth)
		return o.close + 1, err
	case '[':
		return r.array(i, depth)
	case '"':
		return r.str(i)
	}
	end := i
	for end < len(r.text) && strings.IndexByte(" \t\r\n,]}/", r.text[end]) < 0 {
		end++
	}
	if !json.Valid(r.text[i:end]) {
		return 0, broken("there is something that is no JSON")
	}
	return end, nil
}

func (r *reader) str(i int) (int, error) {
	for end := i + 1; end < len(r.text); end++ {
		switch r.text[end] {
		case '\\':
			end++
		case '"':
			if !json.Valid(r.text[i : end+1]) {
				return 0, broken("a text is no JSON")
			}
			return end + 1, nil
		}
	}
	return 0, broken("a text does not end")
}

func (r *reader) array(i, depth int) (int, error) {
	for i++; ; {
		var err error
		if i, err = r.skip(i); err != nil {
			return 0, err
		}
		if i < len(r.text) && r.text[i] == ']' {
			return i + 1, nil
		}
		if i, err = r.value(i, depth+1); err != nil {
			return 0, err
		}
		if i, err = r.skip(i); err != nil {
			return 0, err
		}
		switch {
		case i < len(r.text) && r.text[i] == ',':
			i++
		case i >= len(r.text) || r.text[i] != ']':
			return 0, broken("a list does not end")
		}
	}
}

// object reads the object that begins at i.
func (r *reader) object(i, depth int) (o object, err error) {
	o.open = i
	for i++; ; {
		if i, err = r.skip(i); err != nil {
			return o, err
		}
		if i < len(r.text) && r.text[i] == '}' {
			o.close = i
			return o, nil
		}
		if len(o.members) > 0 && !o.comma {
			return o, broken("a comma is missing")
		}
		m := member{at: i}
		if i >= len(r.text) || r.text[i] != '"' {
			return o, broken("the name of a member is missing")
		}
		if i, err = r.str(i); err != nil {
			return o, err
		}
		_ = json.Unmarshal(r.text[m.at:i], &m.name) // it is valid
		if i, err = r.skip(i); err != nil {
			return o, err
		}
		if i >= len(r.text) || r.text[i] != ':' {
			return o, broken("a member has no value")
		}
		if m.value, err = r.skip(i + 1); err != nil {
			return o, err
		}
		if m.end, err = r.value(m.value, depth+1); err != nil {
			return o, err
		}
		m.next = m.end
		if i, err = r.skip(m.end); err != nil {
			return o, err
		}
		if o.comma = i < len(r.text) && r.text[i] == ','; o.comma {
			i++
			m.next = i
		}
		o.members = append(o.members, m)
	}
}

func (o *object) find(name string) *member {
	for i := range o.members {
		if o.members[i].name == name {
			return &o.members[i]
		}
	}
	return nil
}

// root reads the whole text.
func root(text []byte) (*reader, object, error) {
	r := &reader{text}
	i, err := r.skip(0)
	if err != nil {
		return nil, object{}, err
	}
	if i >= len(text) || text[i] != '{' {
		return nil, object{}, broken("it is no JSON object")
	}
	o, err := r.object(i, 0)
	if err != nil {
		return nil, object{}, err
	}
	if end, err := r.skip(o.close + 1); err != nil || end < len(text) {
		return nil, object{}, broken("something stands behind the object")
	}
	return r, o, nil
}

// setMember gives the member name of the object that section leads to a value, and makes what is missing on the way.
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
			return nil, broken(one + " is no object")
		}
		if servers, err = r.object(s.value, i+1); err != nil {
			return nil, err
		}
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

// insert puts a member behind the last of an object.
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
	if within := string(r.text[o.open+1 : o.close]); strings.TrimSpace(within) != "" { // a comment, which may run to the end of its line
		return splice(r.text, o.open+1, o.open+1, "\n"+inner+quoted(name)+": "+value)
	}
	return splice(r.text, o.open+1, o.close, "\n"+inner+quoted(name)+": "+value+"\n"+outer)
}

// sectionOf returns the object that a path leads to; ok tells whether there is one.
func sectionOf(text []byte, path []string) (o object, ok bool, err error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return o, false, nil
	}
	r, o, err := root(text)
	for depth, one := range path {
		if err != nil {
			return o, false, err
		}
		s := o.find(one)
		if s == nil || text[s.value] != '{' {
			return o, false, nil
		}
		o, err = r.object(s.value, depth+1)
	}
	return o, err == nil, err
}

// dropMember takes a member out of the object that section leads to.
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
		before := servers.members[i-1] // its comma goes, what stands between stays
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

// same reports whether a value is there already, however it is written.
func same(there, value []byte) bool {
	var a, b any
	return json.Unmarshal(there, &a) == nil && json.Unmarshal(value, &b) == nil && reflect.DeepEqual(a, b)
}

func quoted(name string) string {
	text, _ := json.Marshal(name) // a string
	return string(text)
}

// indented writes a value in lines, the first of which stands where it is put.
func indented(value []byte, indent, unit string) string {
	var out bytes.Buffer
	_ = json.Indent(&out, value, indent, unit) // it was made here
	return out.String()
}

// indentAt is what the line of i begins with.
func (r *reader) indentAt(i int) string {
	start := bytes.LastIndexByte(r.text[:i], '\n') + 1
	end := start
	for end < len(r.text) && (r.text[end] == ' ' || r.text[end] == '\t') {
		end++
	}
	return string(r.text[start:end])
}

// unitOf is by how much lines are indented in a text.
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
