package configs

import (
	"encoding"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// A Key is one setting; its name is that of flags ("mesh.dht.mode") and, by level, of the file.
type Key struct {
	Name    string
	Type    string   // string, bool, int, duration, size, rate, list or mappings
	Default string   // as in a file; "[]" is the empty list
	Doc     string   // the comment of the field, lines joined
	Values  []string // the possible values of a fixed set
}

// List reports whether the key takes several values.
func (k Key) List() bool { return k.Type == "list" }

// Env returns the environment variable of the key: "http.listen" has LMOSD_HTTP__LISTEN.
func (k Key) Env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(k.Name, ".", "__"))
}

// Keys returns every key in the order of the file.
func Keys() []Key { return slices.Clone(keys()) }

// keys parses the source of the documentation once.
var keys = sync.OnceValue(func() (keys []Key) {
	docs := fieldDocs()
	for f := range Default().fields() {
		keys = append(keys, Key{Name: f.key, Type: f.kind(), Default: f.yaml(), Doc: docs[f.owner.Name()+"."+f.field.Name],
			Values: f.values()})
	}
	return keys
})

// A field is one key of a Config: its value and its struct field.
type field struct {
	key   string
	owner reflect.Type
	field reflect.StructField
	value reflect.Value
}

// fields yields the keys of c in the order of the struct.
func (c *Config) fields() iter.Seq[field] {
	return func(yield func(field) bool) { walk("", reflect.ValueOf(c).Elem(), yield) }
}

func walk(prefix string, section reflect.Value, yield func(field) bool) bool {
	for i := range section.NumField() {
		sf := section.Type().Field(i)
		name, ok := sf.Tag.Lookup("yaml")
		if !ok {
			continue
		}
		key, v := prefix+name, section.Field(i)
		more := true
		if v.Kind() == reflect.Struct {
			more = walk(key+".", v, yield)
		} else {
			more = yield(field{key, section.Type(), sf, v})
		}
		if !more {
			return false
		}
	}
	return true
}

// field returns the field of a key.
func (c *Config) field(key string) (field, bool) {
	for f := range c.fields() {
		if f.key == key {
			return f, true
		}
	}
	return field{}, false
}

// Get returns the value of a key as text, one line for each element of a list, and whether the key exists.
func (c *Config) Get(key string) (string, bool) {
	f, ok := c.field(key)
	if !ok {
		return "", false
	}
	return strings.Join(f.texts(), "\n"), true
}

func (f field) kind() string {
	switch f.value.Interface().(type) {
	case Duration:
		return "duration"
	case Size:
		return "size"
	case Rate:
		return "rate"
	case []string:
		return "list"
	case Providers:
		return "mappings"
	}
	return f.value.Kind().String()
}

func (f field) values() []string { return strings.Fields(f.field.Tag.Get("values")) }

// texts returns the elements of the value, as in an environment variable.
func (f field) texts() []string {
	if list, ok := f.value.Interface().([]string); ok {
		return list
	}
	return []string{fmt.Sprint(f.value.Interface())}
}

// set sets the field to values in their written form.
func (f field) set(values []string) error {
	if f.kind() == "list" {
		f.value.Set(reflect.ValueOf(append([]string{}, values...)))
		return nil
	}
	if len(values) != 1 {
		return fmt.Errorf("expected one value, got %d", len(values))
	}
	if err := f.checkValues(values[0]); err != nil {
		return err
	}
	next := reflect.New(f.value.Type())
	if err := parse(next.Interface(), values[0]); err != nil {
		return err
	}
	if err := f.checkRange(next.Elem()); err != nil {
		return err
	}
	f.value.Set(next.Elem())
	return nil
}

// parse reads text into the pointer dst.
func parse(dst any, text string) (err error) {
	switch d := dst.(type) {
	case *string:
		*d = text
	case *bool:
		if text != "true" && text != "false" {
			return fmt.Errorf("expected true or false, got %q", text)
		}
		*d = text == "true"
	case *int:
		if *d, err = strconv.Atoi(text); err != nil {
			return fmt.Errorf("expected a whole number, got %q", text)
		}
	case encoding.TextUnmarshaler:
		return d.UnmarshalText([]byte(text))
	}
	return nil
}

func (f field) checkValues(text string) error {
	known := f.values()
	if len(known) == 0 || slices.Contains(known, text) {
		return nil
	}
	return &choiceError{text, known}
}

// A choiceError reports a value that is not one of the known ones.
type choiceError struct {
	given string
	known []string
}

func (e *choiceError) Error() string {
	return fmt.Sprintf("%q, expected one of %s", e.given, strings.Join(e.known, ", "))
}

// checkRange checks v against the tags min and max.
func (f field) checkRange(v reflect.Value) error {
	for _, bound := range []struct {
		tag  string
		sign int64
	}{{"min", 1}, {"max", -1}} {
		text, ok := f.field.Tag.Lookup(bound.tag)
		if !ok {
			continue
		}
		limit := reflect.New(v.Type())
		if err := parse(limit.Interface(), text); err != nil {
			return err
		}
		if bound.sign*v.Int() < bound.sign*limit.Elem().Int() {
			return fmt.Errorf("%v is out of range: the %s is %s", v.Interface(), bound.tag, text)
		}
	}
	return nil
}
