package prompt

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/mail"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/input"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/td"
)

// A field of a form (MCP 2026-07-28, "PrimitiveSchemaDefinition").
type field struct {
	name     string
	required bool
	check    *td.Schema

	Type        string
	Title       string
	Description string
	Format      string
	Unit        string
	Default     json.RawMessage
	Minimum     *json.Number
	Maximum     *json.Number
	MinItems    int
	Enum        []any
	EnumNames   []string
	OneOf       []constant
	Items       *struct {
		Enum  []any
		AnyOf []constant
		OneOf []constant
	}
}

// A constant is an option of a choice, with its title.
type constant struct {
	Const any
	Title string
}

// fieldsOf returns the fields of a form in their written order. A schema that is not an object has one field without a name.
func fieldsOf(schema json.RawMessage) []field {
	var form struct {
		Type       any
		Properties json.RawMessage
		Required   []string
	}
	_ = json.Unmarshal(schema, &form) // an invalid schema has no fields
	if len(schema) > 0 && form.Properties == nil && form.Type != nil && form.Type != "object" {
		return []field{fieldOf("", schema, true)}
	}
	var raw map[string]json.RawMessage
	_ = json.Unmarshal(form.Properties, &raw)
	var all []field
	for _, name := range membersOf(form.Properties) {
		all = append(all, fieldOf(name, raw[name], slices.Contains(form.Required, name)))
	}
	return all
}

func fieldOf(name string, raw json.RawMessage, required bool) field {
	f := field{name: name, required: required, check: schemaOf(raw)}
	_ = json.Unmarshal(raw, &f) // members of other types are not shown; the value is validated anyway
	return f
}

func schemaOf(raw json.RawMessage) *td.Schema {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return nil
	}
	return td.ParseSchema(v)
}

// membersOf returns the names of an object's members in their written order, each once.
func membersOf(object json.RawMessage) (names []string) {
	d := json.NewDecoder(bytes.NewReader(object))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil
	}
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		var value json.RawMessage
		if err != nil || !ok || d.Decode(&value) != nil {
			return names
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// form prompts for the values of a form.
func (p *Person) form(ctx context.Context, schema json.RawMessage) (json.RawMessage, error) {
	fields := fieldsOf(schema)
	if len(fields) == 0 {
		_, err := p.line(ctx, "  Enter when you agree: ")
		return json.RawMessage("{}"), err
	}
	for {
		var members []string
		for i := range fields {
			f := &fields[i]
			v, err := p.field(ctx, f)
			if err != nil {
				return nil, err
			}
			if f.name == "" {
				return v, nil
			}
			if v != nil {
				members = append(members, string(input.Quoted(f.name))+":"+string(v))
			}
		}
		content := json.RawMessage("{" + strings.Join(members, ",") + "}")
		issues := misfits(schemaOf(schema), content)
		if len(issues) == 0 {
			return content, nil
		}
		for _, issue := range issues { // of several fields together
			p.wrong(issue.String())
		}
	}
}

// Missing prompts for the required members of a schema that an input lacks: JSON of an object, or nothing. It returns the completed input.
// After a refusal, or at the end of the terminal's input, the input is unchanged. The error is that of ctx.
func (p *Person) Missing(ctx context.Context, s *td.Schema, given []byte) ([]byte, error) {
	names := needed(s, given)
	if len(names) == 0 {
		return given, nil
	}
	var before map[string]json.RawMessage
	_ = json.Unmarshal(given, &before) // validated by Needed
	p.heading("needs", "")
	members := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(string(given)), "{"), "}")
	for i, name := range names {
		f := fieldOf(name, encoded(oneValue(s.Property(name)).Value()), true)
		f.check = s.Property(name)
		v, err := p.field(ctx, &f)
		switch {
		case errors.Is(err, errDeclined), errors.Is(err, errStopped), errors.Is(err, io.EOF):
			return given, nil
		case err != nil:
			return nil, err
		}
		if i > 0 || len(before) > 0 {
			members += ","
		}
		members += string(input.Quoted(name)) + ":" + string(v)
	}
	return []byte("{" + members + "}"), nil
}

// oneValue returns the schema of one value, for one that permits one or several.
func oneValue(s *td.Schema) *td.Schema {
	if elements := s.Elements(); elements != nil && s.Type() == "" {
		return elements
	}
	return s
}

// needed returns the names of the required members that given, JSON or nothing, lacks; none if given is not an object.
func needed(s *td.Schema, given []byte) (names []string) {
	var members map[string]json.RawMessage
	if t := s.Type(); t != "object" && (t != "" || len(s.Properties()) == 0) || len(given) > 0 && (json.Unmarshal(given, &members) != nil || members == nil) {
		return nil
	}
	for _, name := range s.Required() {
		if members[name] == nil && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// field prompts for one value until it is valid; nil omits it.
func (p *Person) field(ctx context.Context, f *field) (json.RawMessage, error) {
	if about := strings.Join(slices.DeleteFunc([]string{f.Title, f.Description, f.Unit}, func(s string) bool { return s == "" }), ": "); about != "" {
		p.to.Item("  ", 2, about)
	}
	options := f.options()
	label := f.label("one", yesOrNo)
	if f.Type == "array" {
		label = f.label("any, with commas between", yesOrNo)
	}
	for i, o := range options {
		p.to.Item(fmt.Sprintf("    %2d  ", i+1), 8, o.label())
	}
	for {
		text, err := p.line(ctx, "  "+label+": ")
		if err != nil {
			return nil, err
		}
		v, err := f.value(text, options)
		if err == nil {
			return v, nil
		}
		p.wrong(err.Error())
	}
}

// options returns the possible values; nil if all are.
func (f *field) options() (all []constant) {
	add := func(values []any, names []string) {
		for i, v := range values {
			o := constant{Const: v}
			if i < len(names) {
				o.Title = names[i]
			}
			all = append(all, o)
		}
	}
	add(f.Enum, f.EnumNames)
	for _, o := range f.OneOf {
		if o.Const != nil || o.Title != "" { // else it is an alternative, not a value
			all = append(all, o)
		}
	}
	if f.Items != nil {
		add(f.Items.Enum, nil)
		all = append(append(all, f.Items.AnyOf...), f.Items.OneOf...)
	}
	return all
}

func (c constant) word() string {
	if text, ok := c.Const.(string); ok {
		return text
	}
	return string(encoded(c.Const))
}

func (c constant) label() string {
	if c.Title == "" || c.Title == c.word() {
		return c.word()
	}
	return c.word() + " (" + c.Title + ")"
}

// words returns the values of the options.
func (f *field) words() string {
	var words []string
	for _, o := range f.options() {
		words = append(words, o.word())
	}
	return strings.Join(words, "|")
}

// yesOrNo describes the input of a boolean. On command lines it is JSON.
const yesOrNo = "y or n"

// label returns the name of a field with the possible input: choice for one with options, flag for a boolean.
func (f *field) label(choice, flag string) string {
	words := []string{terminal.OneLine(cmp.Or(f.name, "value"))}
	switch {
	case len(f.options()) > 0:
		words = append(words, "("+terminal.OneLine(choice)+")")
	case f.Type == "boolean":
		words = append(words, "("+flag+")")
	case f.Type == "integer" || f.Type == "number":
		words = append(words, "("+f.Type+f.span()+")")
	case f.Format != "":
		words = append(words, "("+terminal.OneLine(f.Format)+")")
	}
	switch {
	case len(f.Default) > 0 && f.Type == "boolean" && flag != yesOrNo:
		words = append(words, "["+terminal.OneLine(string(f.Default))+"]")
	case len(f.Default) > 0:
		words = append(words, "["+terminal.OneLine(plain(f.Default))+"]")
	case !f.required:
		words = append(words, "[leave it out]")
	}
	return strings.Join(words, " ")
}

func (f *field) span() string {
	switch {
	case f.Minimum != nil && f.Maximum != nil:
		return " from " + f.Minimum.String() + " to " + f.Maximum.String()
	case f.Minimum != nil:
		return " from " + f.Minimum.String()
	case f.Maximum != nil:
		return " to " + f.Maximum.String()
	}
	return ""
}

// plain returns JSON in the form in which it may be typed.
func plain(raw json.RawMessage) string {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return string(raw)
	}
	switch v := v.(type) {
	case string:
		return v
	case bool:
		return map[bool]string{true: "y", false: "n"}[v]
	case []any:
		words := make([]string, len(v))
		for i, one := range v {
			words[i] = constant{Const: one}.word()
		}
		return strings.Join(words, ", ")
	}
	return string(raw)
}

// value converts typed text to JSON. Empty text means the default, or nil to omit the field. The error is for the person.
func (f *field) value(text string, options []constant) (v json.RawMessage, err error) {
	switch {
	case text == "" && len(f.Default) > 0:
		return f.Default, nil
	case text == "" && !f.required:
		return nil, nil
	case text == "" && (f.Type != "array" || f.MinItems > 0):
		return nil, fmt.Errorf("it is needed")
	}
	switch {
	case f.Type == "array" && len(options) > 0:
		v, err = several(text, options)
	case len(options) > 0:
		v, err = chosen(text, options)
	case f.Type == "boolean":
		v, err = yesNo(text)
	case f.Type == "" && json.Valid([]byte(text)) && len(misfits(f.check, input.Quoted(text))) > 0:
		v = json.RawMessage(text) // one of several types
	case f.Type == "string" || f.Type == "":
		v, err = input.Quoted(text), wellFormed(f.Format, text)
	default:
		if v = json.RawMessage(text); !json.Valid(v) {
			err = fmt.Errorf("%q is not a valid %s", text, cmp.Or(f.Type, "JSON"))
		}
	}
	if err != nil {
		return nil, err
	}
	if issues := misfits(f.check, v); len(issues) > 0 {
		return nil, fmt.Errorf("it %s", issues[0].Reason)
	}
	return v, nil
}

// chosen returns the option for a value, a title or a number.
func chosen(text string, options []constant) (json.RawMessage, error) {
	for _, o := range options {
		if text == o.word() {
			return encoded(o.Const), nil
		}
	}
	for _, o := range options {
		if strings.EqualFold(text, o.word()) || strings.EqualFold(text, o.Title) {
			return encoded(o.Const), nil
		}
	}
	if n, err := strconv.Atoi(text); err == nil && n >= 1 && n <= len(options) {
		return encoded(options[n-1].Const), nil
	}
	return nil, fmt.Errorf("%q is not one of the choices; a number is enough", text)
}

// several returns the options in a list separated by commas.
func several(text string, options []constant) (json.RawMessage, error) {
	all := []json.RawMessage{}
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		one, err := chosen(word, options)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return encoded(all), nil
}

func yesNo(text string) (json.RawMessage, error) {
	switch strings.ToLower(text) {
	case "y", "yes", "true":
		return json.RawMessage("true"), nil
	case "n", "no", "false":
		return json.RawMessage("false"), nil
	}
	return nil, fmt.Errorf("%q is neither y nor n", text)
}

// wellFormed checks the formats of forms (MCP 2026-07-28, "StringSchema").
func wellFormed(format, text string) error {
	var err error
	switch format {
	case "email":
		_, err = mail.ParseAddress(text)
	case "uri":
		var at *url.URL
		if at, err = url.Parse(text); err == nil && at.Scheme == "" {
			err = fmt.Errorf("no scheme")
		}
	case "date":
		_, err = time.Parse(time.DateOnly, text)
	case "date-time":
		_, err = time.Parse(time.RFC3339, text)
	}
	if err != nil {
		return fmt.Errorf("%q is not a valid %s", text, format)
	}
	return nil
}

// misfits returns the issues of content under a schema. An invalid schema accepts all content.
func misfits(s *td.Schema, content json.RawMessage) []td.Issue {
	var v any
	if err := json.Unmarshal(content, &v); err != nil {
		return []td.Issue{{Reason: "is not JSON"}}
	}
	return s.Check(v)
}
