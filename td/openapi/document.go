package openapi

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/lmosd/lmosd/td"
)

// A document is a decoded document, with the first problem that was found in it.
type document struct {
	root map[string]any // of nil, bool, float64, string, []any and map[string]any
	err  error
	read int // elements of lists and objects, and parts of references, that were read, of some more than once
}

// maxRead limits document.read. Usual documents have less than a tenth: it ends the conversion of parts that are large and used very often.
const maxRead = 2 << 20

// An object is an object of a document. The zero value is an absent object, which has no members.
type object struct {
	*document
	members map[string]any
	at      string // JSON pointer (RFC 6901)
	ref     string // the last reference that led to it
}

// whole returns the object that is the document.
func (d *document) whole() object { return object{document: d, members: d.root} }

// fail records a problem, unless there was one before.
func (d *document) fail(at, format string, args ...any) {
	if d.err == nil {
		d.err = invalid(clip(at, 300), "cannot be read: "+clip(fmt.Sprintf(format, args...), 300))
	}
}

// spend counts elements that are read. It reports false, and records the problem, if there are too many.
func (d *document) spend(n int) bool {
	if d.read += n; d.read > maxRead && d.err == nil {
		d.err = &td.ValidationError{TooLarge: true, Issues: []td.Issue{{Reason: "is too large: large parts of it are used too often"}}}
	}
	return d.read <= maxRead
}

func (o object) exists() bool { return o.members != nil }

// has reports whether a member exists and is not null.
func (o object) has(name string) bool { return o.members[name] != nil }

// Tokens of JSON pointers (RFC 6901 §3).
var (
	escape   = strings.NewReplacer("~", "~0", "/", "~1")
	unescape = strings.NewReplacer("~1", "/", "~0", "~")
)

func (o object) pointer(name string) string {
	return o.at + "/" + escape.Replace(name)
}

// wrong records that a member has another kind.
func (o object) wrong(name, expected string) {
	o.fail(o.pointer(name), "expected %s, got %s", expected, kindOf(o.members[name]))
}

func kindOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(v)
	case string:
		return "text"
	case []any:
		return "a list"
	case map[string]any:
		return "an object"
	}
	return "a number"
}

// text returns a member that is text; empty if it is absent.
func (o object) text(name string) string {
	text, ok := o.members[name].(string)
	if !ok && o.has(name) {
		o.wrong(name, "text")
	}
	return text
}

// flag returns a member that is true or false, and false if it is absent.
func (o object) flag(name string) bool {
	flag, ok := o.members[name].(bool)
	if !ok && o.has(name) {
		o.wrong(name, "true or false")
	}
	return flag
}

// number returns a member that is a number.
func (o object) number(name string) (n float64, ok bool) {
	if n, ok = o.members[name].(float64); !ok && o.has(name) {
		o.wrong(name, "a number")
	}
	return n, ok
}

// elements returns a member that is a list.
func (o object) elements(name string) []any {
	list, ok := o.members[name].([]any)
	if !ok && o.has(name) {
		o.wrong(name, "a list")
	}
	if len(list) == 0 || !o.spend(len(list)) {
		return nil
	}
	return list
}

// names returns the names of the members, sorted.
func (o object) names() []string {
	if len(o.members) == 0 || !o.spend(len(o.members)) {
		return nil
	}
	return slices.Sorted(maps.Keys(o.members))
}

// texts returns a member that is a list of texts. Nulls, which are empty elements in YAML, are omitted.
func (o object) texts(name string) []string {
	var texts []string
	for i, e := range o.elements(name) {
		text, ok := e.(string)
		if e == nil {
			continue
		}
		if !ok {
			o.fail(o.pointer(name)+"/"+strconv.Itoa(i), "expected text, got %s", kindOf(e))
			return nil
		}
		texts = append(texts, text)
	}
	return texts
}

// A kind of object determines the meaning of members beside a reference.
type kind uint8

const (
	part     kind = iota // in OpenAPI 3.1, summary and description replace those of the target (OpenAPI 3.1.1 §4.8.23)
	pathItem             // members of both apply (OpenAPI 3.0.4 §4.7.9)
	schema               // may be true or false; in OpenAPI 3.1, members of both apply (JSON Schema 2020-12 §8.2.3.1)
)

// object returns a member that is an object, or refers to one.
func (o object) object(name string) object { return o.member(name, part) }

// schema returns a member that is a schema.
func (o object) schema(name string) object { return o.member(name, schema) }

func (o object) member(name string, k kind) object {
	if !o.has(name) {
		return object{}
	}
	return o.follow(o.members[name], o.pointer(name), k)
}

// list returns a member that is a list of objects.
func (o object) list(name string, k kind) []object {
	var objects []object
	for i, e := range o.elements(name) {
		objects = append(objects, o.follow(e, o.pointer(name)+"/"+strconv.Itoa(i), k))
	}
	return objects
}

// each returns the objects in a member that is an object, sorted by name. Nulls are omitted.
func (o object) each(name string, k kind) iter.Seq2[string, object] {
	return func(yield func(string, object) bool) {
		parent := o.object(name)
		for _, name := range parent.names() {
			if parent.has(name) && !yield(name, parent.member(name, k)) {
				return
			}
		}
	}
}

// follow returns the object v, or the one that it refers to. A schema that is true or false (JSON Schema 2020-12 §4.3.2) is an object, too.
func (d *document) follow(v any, at string, k kind) object {
	const most = 100 // references to references
	ref, beside := "", []map[string]any(nil)
	for range most {
		switch {
		case k == schema && v == true:
			v = map[string]any{}
		case k == schema && v == false:
			v = map[string]any{"not": map[string]any{}}
		}
		m, ok := v.(map[string]any)
		if !ok {
			d.fail(at, "expected an object, got %s", kindOf(v))
			return object{}
		}
		text, ok := m["$ref"].(string)
		if !ok {
			for _, outer := range slices.Backward(beside) {
				m = d.beside(m, outer, k)
			}
			return object{d, m, at, ref}
		}
		target, err := d.resolve(text, 0)
		if err != nil {
			d.fail(at, "%v", err)
			return object{}
		}
		if len(m) > 1 {
			beside = append(beside, m)
		}
		v, at, ref = target, strings.TrimPrefix(text, "#"), text
	}
	d.fail(at, "the reference %s leads to itself", clip(ref, 100))
	return object{}
}

// annotations are the keywords of a schema that restrict no values.
var annotations = map[string]bool{"title": true, "description": true, "default": true, "deprecated": true, "readOnly": true,
	"writeOnly": true, "example": true, "examples": true, "externalDocs": true, "xml": true, "$comment": true}

// beside returns the target of a reference with the members beside the reference.
func (d *document) beside(target, reference map[string]any, k kind) map[string]any {
	version, _ := d.root["openapi"].(string)
	if k != pathItem && strings.HasPrefix(version, "3.0") || !d.spend(len(target)+len(reference)) {
		return target
	}
	both, more := maps.Clone(target), map[string]any{}
	for name, v := range reference {
		switch {
		case name == "$ref":
		case k == pathItem, k == schema && annotations[name], name == "summary", name == "description":
			both[name] = v
		case k == schema:
			more[name] = v
		}
	}
	if len(more) > 0 {
		all, _ := target["allOf"].([]any)
		both["allOf"] = append(slices.Clip(all), more)
	}
	return both
}

// resolve returns what a reference leads to, which is in the document (RFC 6901 §6). A pointer may lead through other references.
func (d *document) resolve(ref string, depth int) (any, error) {
	const (
		longest = 1024 // bytes
		deepest = 10   // references on the path
	)
	if len(ref) > longest || depth > deepest {
		return nil, fmt.Errorf("the reference %s is too long, or leads through too many others", clip(ref, 100))
	}
	pointer, ok := strings.CutPrefix(ref, "#")
	if !ok {
		return nil, fmt.Errorf("the reference %s leads out of the document: bundle the document with the files that it refers to",
			cmp.Or(clip(ref, 100), "without text"))
	}
	pointer, err := url.PathUnescape(pointer)
	if err != nil {
		return nil, fmt.Errorf("the reference %s is not a JSON pointer", clip(ref, 100))
	}
	tokens := strings.Split(pointer, "/")
	if !d.spend(len(tokens)) {
		return nil, errors.New("the references of the document lead through too many parts")
	}
	nothing := fmt.Errorf("the reference %s leads to nothing", clip(ref, 100))
	var v any = d.root
	for i, token := range tokens {
		if i == 0 && token == "" {
			continue
		}
		token = unescape.Replace(token)
		parent, isObject := v.(map[string]any)
		for {
			through, is := parent["$ref"].(string)
			if !is || parent[token] != nil {
				break
			}
			depth++
			if v, err = d.resolve(through, depth); err != nil {
				return nil, err
			}
			parent, isObject = v.(map[string]any)
		}
		if isObject {
			if v, ok = parent[token]; !ok {
				return nil, nothing
			}
			continue
		}
		list, _ := v.([]any)
		n, err := strconv.Atoi(token)
		if err != nil || n < 0 || n >= len(list) || strconv.Itoa(n) != token {
			return nil, nothing
		}
		v = list[n]
	}
	return v, nil
}
