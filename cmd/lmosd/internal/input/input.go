// Package input converts command-line arguments (k=v, k:=JSON, @file, -) to the JSON input of an action.
package input

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/httpbody"
	"github.com/lmosd/lmosd/td"
)

// MaxInput limits the input of a call, as the node does, in bytes.
const MaxInput = 4 << 20

// Read converts the arguments after the name of an action or property: k=v, k:=JSON, @file, - (standard input) or, if the schema is one
// value, that value. It returns JSON, or nil without arguments.
func Read(c *cli.Console, s *td.Schema, words []string) ([]byte, error) {
	if len(words) != 1 || words[0] != "-" && !strings.HasPrefix(words[0], "@") {
		return inputOf(s, words)
	}
	b, err := Content(c, strings.TrimPrefix(words[0], "@"), MaxInput)
	if err != nil {
		return nil, err
	}
	return whole(s, words[0], b)
}

// Content reads a file, or standard input for "-", of at most most bytes: a longer one is [interact.TooLarge], an unreadable one
// [interact.Usage].
func Content(c *cli.Console, name string, most int) ([]byte, error) {
	reader := c.Stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, Unreadable(name, err)
		}
		defer f.Close()
		reader = f
	}
	b, err := httpbody.ReadAll(reader, -1, int64(most))
	switch {
	case errors.Is(err, httpbody.ErrTooLarge):
		return nil, interact.Errorf(interact.TooLarge, "remove what is not needed", "%s has more than %d KiB",
			Called(name), most>>10)
	case err != nil:
		return nil, Unreadable(name, err)
	}
	return b, nil
}

// Unreadable returns the error for an unreadable file of the user.
func Unreadable(name string, err error) error {
	hint := "check the name and the permissions: ls -l " + terminal.Shell(name)
	if errors.Is(err, syscall.EISDIR) {
		hint = "name the files in it: " + terminal.Shell(strings.TrimSuffix(name, "/")) + "/*.td.json"
	}
	return &interact.Error{Code: interact.Usage, Title: "cannot read " + Called(name), Hint: hint, Err: cli.Reason(err)}
}

// whole returns the content of a file as the input: text if the schema is a string, else JSON.
func whole(s *td.Schema, name string, content []byte) ([]byte, error) {
	if s.Type() == "string" {
		return Quoted(strings.TrimSuffix(string(content), "\n")), nil
	}
	content = bytes.TrimSpace(content)
	if !json.Valid(content) {
		return nil, interact.Errorf(interact.Invalid, `for example {"name": "value"}`, "%s is no JSON", inputIn(name))
	}
	return content, nil
}

// inputOf converts words to the input.
func inputOf(s *td.Schema, words []string) ([]byte, error) {
	if len(words) == 0 {
		return nil, nil
	}
	if text, ok := strings.CutPrefix(words[0], ":="); ok && len(words) == 1 {
		return literal("", text)
	}
	switch kind := s.Type(); kind {
	case "string":
		return Quoted(strings.Join(words, " ")), nil
	case "", "object":
		if isDocument(kind, words) {
			return literal("", words[0])
		}
		// An open schema accepts any value: words that are not pairs are text.
		if kind == "" && s != nil && len(s.Properties()) == 0 &&
			!slices.ContainsFunc(words, func(w string) bool { return strings.ContainsRune(w, '=') }) {
			return Quoted(strings.Join(words, " ")), nil
		}
		return objectOf(s, words)
	default:
		if len(words) > 1 {
			return nil, interact.Errorf(interact.Invalid, "write one value, or :=JSON", "the input is %s, and %d words were given",
				withArticle(kind), len(words))
		}
		return value(kind, "", words[0])
	}
}

// isDocument reports whether words are the whole input in JSON: one object, or one array if kind, the type of the schema, permits it.
func isDocument(kind string, words []string) bool {
	text := strings.TrimSpace(words[0])
	return len(words) == 1 && (strings.HasPrefix(text, "{") || kind == "" && strings.HasPrefix(text, "[")) && json.Valid([]byte(text))
}

// objectOf converts k=v and k:=JSON to an object. Members keep the order of the words; a repeated name becomes a list if the schema permits
// one.
func objectOf(s *td.Schema, words []string) ([]byte, error) {
	var names []string
	values := map[string][][]byte{}
	for _, word := range words {
		name, text, isJSON, ok := pair(word)
		if !ok {
			return nil, noPair(s, words, word)
		}
		if !isJSON && !accepts(s, name) {
			return nil, unknownMember(s, name, word, text)
		}
		schema := s.Property(name)
		if elements := schema.Elements(); elements != nil && times(words, name) > 1 {
			schema = elements
		}
		v, err := member(schema, name, text, isJSON)
		switch {
		case err != nil && !isJSON:
			e := *interact.AsError(err)
			e.Hint = "for example"
			return nil, e.Then(cli.StepRetype, word, name+"="+placeholder(schema))
		case err != nil:
			return nil, err
		case values[name] == nil:
			names = append(names, name)
		case s.Property(name).Elements() == nil:
			return nil, interact.Errorf(interact.Invalid, "keep one of them", "%s is given twice", name).Then(cli.StepRetype, word, "")
		}
		values[name] = append(values[name], v)
	}
	var b bytes.Buffer
	for i, name := range names {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(append(Quoted(name), ':'))
		if all := values[name]; len(all) == 1 {
			b.Write(all[0])
		} else {
			b.Write(append(append([]byte{'['}, bytes.Join(all, []byte{','})...), ']'))
		}
	}
	return append(append([]byte{'{'}, b.Bytes()...), '}'), nil
}

// noPair returns the error for a word that is not a pair, with the pair that it probably means: name:value, name value, a value without a
// name for the only text, or JSON that is not valid.
func noPair(s *td.Schema, words []string, word string) error {
	e := interact.Errorf(interact.Invalid, "", "expected k=v, got %q", word)
	switch {
	case strings.HasPrefix(word, "{") && json.Valid([]byte(word)):
		var changes []string
		for _, w := range words {
			if w != word {
				changes = append(changes, w, "")
			}
		}
		e.Title, e.Hint = "a JSON object is the whole input", "leave the other words out"
		return e.Then(cli.StepRetype, changes...)
	case strings.HasPrefix(word, "{"):
		e.Title = "the input is not valid JSON: " + word
	}
	known := s.Properties()
	if name, text, ok := strings.Cut(word, ":"); ok && slices.Contains(known, name) {
		return e.Then(cli.StepRetype, word, name+"="+placeholderIfInvalid(s.Property(name), text))
	}
	if i := slices.Index(words, word); slices.Contains(known, word) && i+1 < len(words) && !strings.Contains(words[i+1], "=") {
		return e.Then(cli.StepRetype, word, word+"="+placeholderIfInvalid(s.Property(word), words[i+1]), words[i+1], "")
	}
	isPair := func(w string) bool { _, _, _, ok := pair(w); return ok }
	if name := onlyText(s); name != "" && !strings.HasPrefix(word, "{") && !slices.ContainsFunc(words, isPair) {
		changes := []string{word, name + "=" + strings.Join(words, " ")}
		for _, w := range words[1:] {
			changes = append(changes, w, "")
		}
		return e.Then(cli.StepRetype, changes...)
	}
	sample := cmp.Or(Sample(s), "name=value")
	e.Hint = "give the input as " + sample
	if len(known) > 0 && len(words) == 1 && len(strings.Fields(sample)) == 1 {
		e.Hint = "give the input as"
		return e.Then(cli.StepRetype, word, sample)
	}
	return e
}

// onlyText returns the member that a text without a name means: the only required one, or the only one, if it is a string.
func onlyText(s *td.Schema) string {
	names := s.Required()
	if len(names) == 0 {
		names = s.Properties()
	}
	if len(names) == 1 && s.Property(names[0]).Type() == "string" {
		return names[0]
	}
	return ""
}

// accepts reports whether an object may have a member: the schema has it, is open, or says elsewhere which members there are. A schema with
// properties is open only if it states additionalProperties: a misspelled name would be dropped silently by most agents.
func accepts(s *td.Schema, name string) bool {
	known := s.Properties()
	if len(known) == 0 || slices.Contains(known, name) {
		return true
	}
	for _, keyword := range []string{"$ref", "allOf", "anyOf", "oneOf", "patternProperties", "if", "dependentSchemas", "not"} {
		if s.Keyword(keyword) != nil {
			return true
		}
	}
	more := s.Keyword("additionalProperties")
	return more != nil && more != false
}

// unknownMember returns the error for a member that the schema does not have, with the most similar one.
func unknownMember(s *td.Schema, name, word, text string) error {
	known := s.Properties()
	e := interact.Errorf(interact.Invalid, "", "the action has no input %q", name)
	e.Err = fmt.Errorf("its inputs are %s; %s:=JSON passes any other", strings.Join(known, ", "), terminal.Shell(name))
	near := cli.Nearest(name, known)
	if near == "" && len(known) == 1 {
		near = known[0]
	}
	if near == "" {
		e.Hint = "leave it out"
		return e.Then(cli.StepRetype, word, "")
	}
	e.Hint = fmt.Sprintf("did you mean %q?", near)
	return e.Then(cli.StepRetype, word, near+"="+text)
}

// placeholderIfInvalid returns text, or a sample value if text does not fit the type of the schema.
func placeholderIfInvalid(s *td.Schema, text string) string {
	if v, err := member(s, "", text, false); err != nil || len(v) == 0 {
		return placeholder(s)
	}
	return text
}

// times counts the words with name.
func times(words []string, name string) (n int) {
	for _, word := range words {
		if given, _, _, ok := pair(word); ok && given == name {
			n++
		}
	}
	return n
}

// member converts the text of an object member to JSON. If its schema has alternatives, the text is a string if that is valid, else JSON if
// that is valid.
func member(s *td.Schema, name, text string, isJSON bool) ([]byte, error) {
	kind := s.Type()
	if isJSON {
		return value("json", name, text)
	}
	if kind != "" || len(s.Check(text)) == 0 {
		return value(kind, name, text)
	}
	var v any
	if json.Unmarshal([]byte(text), &v) == nil && len(s.Check(v)) == 0 {
		return []byte(text), nil
	}
	return nil, interact.Errorf(interact.Invalid, "for example "+terminal.Shell(name)+"="+terminal.Shell(placeholder(s)), "%s %s, is %q", name,
		s.Check(text)[0].Reason, text)
}

// pair splits k=v and k:=JSON at the first equals sign.
func pair(word string) (name, text string, isJSON, ok bool) {
	name, text, ok = strings.Cut(word, "=")
	if before, found := strings.CutSuffix(name, ":"); found {
		name, isJSON = before, true
	}
	return name, text, isJSON, ok && name != ""
}

// value converts the text for name to JSON of kind. Without a kind it is a string.
func value(kind, name, text string) ([]byte, error) {
	switch kind {
	case "", "string":
		return Quoted(text), nil
	case "json":
		return literal(name, text)
	}
	v, err := literal(name, text)
	if err == nil && fitsKind(kind, v) {
		return v, nil
	}
	if name == "" {
		return nil, interact.Errorf(interact.Invalid, "for example "+example(kind)[1:], "the input is %s, and %q is none",
			withArticle(kind), text)
	}
	return nil, interact.Errorf(interact.Invalid, "for example "+name+example(kind), "%s is %s, and %q is none", name, withArticle(kind), text)
}

// inputIn returns the name of the source of the input.
func inputIn(word string) string {
	if word == "-" {
		return "the input from standard input"
	}
	return "the input in " + strings.TrimPrefix(word, "@")
}

// literal returns text, which must be JSON; an empty name means the whole input.
func literal(name, text string) ([]byte, error) {
	v := bytes.TrimSpace([]byte(text))
	if !json.Valid(v) {
		if name == "" {
			return nil, interact.Errorf(interact.Invalid, `for example :='{"name": "value"}'`, "the input behind := is no JSON: %s", text)
		}
		return nil, interact.Errorf(interact.Invalid, "with := a string needs quotes: "+name+`:='"text"'`,
			"the value of %s is no JSON: %s", name, text)
	}
	return v, nil
}

// fitsKind reports whether the JSON v is of a type, by its first byte; the node validates it.
func fitsKind(kind string, v []byte) bool {
	switch c := v[0]; kind {
	case "integer", "number":
		return c == '-' || c >= '0' && c <= '9'
	case "boolean":
		return c == 't' || c == 'f'
	case "array":
		return c == '['
	case "object":
		return c == '{'
	case "null":
		return c == 'n'
	}
	return true
}

func example(kind string) string {
	return map[string]string{"integer": "=3", "number": "=1.5", "boolean": "=true", "array": `='["a","b"]'`, "object": `='{"k":"v"}'`,
		"null": "=null"}[kind]
}

func withArticle(kind string) string {
	if strings.ContainsRune("aeio", rune(kind[0])) {
		return "an " + kind
	}
	return "a " + kind
}

// Quoted returns text as JSON. Invalid UTF-8 becomes U+FFFD.
func Quoted(text string) []byte {
	b, err := cli.Encode(text, false)
	if err != nil {
		panic(err) // strings always encode
	}
	return bytes.TrimSuffix(b, []byte("\n"))
}

// Sample returns an example of the input of a schema: the required members, or else all.
func Sample(s *td.Schema) string {
	switch s.Type() {
	case "", "object":
	case "string":
		return "STRING"
	default:
		return terminal.Shell(placeholder(s))
	}
	names := s.Required()
	if len(names) == 0 {
		names = s.Properties()
	}
	var words []string
	for _, name := range names {
		words = append(words, terminal.Shell(name)+"="+terminal.Shell(placeholder(s.Property(name))))
	}
	return strings.Join(words, " ")
}

// Usage returns the input of a schema with types; optional members are in brackets, and text is three dots.
func Usage(s *td.Schema) string {
	if t := s.Type(); t != "" && t != "object" {
		return strings.ToUpper(t)
	}
	var words []string
	required := s.Required()
	for _, name := range required {
		words = append(words, terminal.Shell(name)+"="+kindOf(s.Property(name)))
	}
	for _, name := range s.Properties() {
		if !slices.Contains(required, name) {
			words = append(words, "["+terminal.Shell(name)+"="+kindOf(s.Property(name))+"]")
		}
	}
	return strings.Join(words, " ")
}

// Explain returns a line for each member of an object, required ones first: its name, type, default, unit and description.
func Explain(s *td.Schema) (lines []string) {
	required := s.Required()
	names := slices.Clone(required)
	for _, name := range s.Properties() {
		if !slices.Contains(required, name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		p := s.Property(name)
		kind := cmp.Or(p.Type(), "any value")
		if len(p.Enum()) > 0 {
			kind = kindOf(p)
		} else if p.Type() == "" && p.Elements() != nil {
			kind = "one or several: " + cmp.Or(p.Elements().Type(), "any value")
		}
		parts := []string{name, kind}
		if slices.Contains(required, name) {
			parts = append(parts, "required")
		}
		if text, ok := textOf(p.Keyword("default")); ok {
			parts = append(parts, "default "+text)
		}
		for _, keyword := range []string{"unit", "title", "description"} {
			if text, ok := p.Keyword(keyword).(string); ok && text != "" {
				parts = append(parts, text)
			}
		}
		lines = append(lines, strings.Join(parts, " · "))
	}
	return lines
}

// maxValues limits the listed values.
const maxValues = 8

// kindOf describes the possible values: a choice, a number, a list of them, …
func kindOf(s *td.Schema) string {
	if values := s.Enum(); len(values) > 0 {
		words := make([]string, 0, maxValues)
		for _, v := range values[:min(len(values), maxValues)] {
			words = append(words, fmt.Sprint(v))
		}
		if len(values) > maxValues {
			words = append(words, "…")
		}
		return strings.Join(words, "|")
	}
	switch t := s.Type(); {
	case t == "" && s.Elements() != nil: // one value, or several
		return kindOf(s.Elements()) + ",…"
	case t == "" || t == "string":
		return "…"
	case t == "array" || t == "object":
		return "JSON"
	default:
		return strings.ToUpper(t)
	}
}

// placeholder returns a sample value that fits the schema in most cases: a choice, the default, an example, the least number, or one of the
// type; three dots for text.
func placeholder(s *td.Schema) string {
	choices := s.Enum()
	if list, ok := s.Keyword("examples").([]any); ok {
		choices = append(choices, list...)
	}
	for _, v := range append(choices, s.Keyword("default"), s.Keyword("minimum")) {
		if text, ok := textOf(v); ok {
			return text
		}
	}
	return cmp.Or(samples[s.Type()], "…")
}

// samples are values of the types.
var samples = map[string]string{"integer": "3", "number": "1.5", "boolean": "true", "array": "[]", "object": "{}", "null": "null"}

// textOf returns a value of a schema as the text of an argument, if it is short.
func textOf(v any) (string, bool) {
	text, isText := v.(string)
	if v != nil && !isText {
		b, err := cli.Encode(v, false)
		if err != nil {
			return "", false
		}
		text = strings.TrimSpace(string(b))
	}
	return text, text != "" && len(text) <= 60 && !strings.ContainsAny(text, "\n\r")
}

// Called returns the name of a file for messages.
func Called(file string) string {
	if file == "-" {
		return "standard input"
	}
	return file
}
