package td

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td/schema"
)

// A ValidationError lists the issues of a TD or an input.
type ValidationError struct {
	// NotJSON means that the bytes are not strict JSON. Issues then has one entry, with line and column in its reason.
	NotJSON bool
	// TooLarge means that the size exceeds the limit. Nothing was parsed.
	TooLarge bool
	Issues   []Issue // at least one, at most 32, sorted by pointer
}

// An Issue is one problem of a TD or of a value.
type Issue = schema.Issue

// A Schema is a data schema.
type Schema = schema.Schema

// ParseSchema returns the data schema v, decoded JSON; see [schema.Parse].
func ParseSchema(v any) *Schema { return schema.Parse(v) }

// Error returns the first issue, and the number of further ones.
func (e *ValidationError) Error() string {
	switch n := len(e.Issues); n {
	case 0:
		return "invalid"
	case 1:
		return e.Issues[0].String()
	default:
		return fmt.Sprintf("%s (and %d more)", e.Issues[0], n-1)
	}
}

// Parse parses and validates a TD: size, strict JSON, the TD 1.1 schema, and the checks beyond the schema. It accepts TD 1.0, 1.1 and
// the context of the 2.0 draft. The error is a [*ValidationError]. A byte order mark before the document is ignored (TD 1.1 §6) and is
// not part of Raw; it is rejected in a TD from the network and in a signed TD. The Thing keeps raw; the caller must not change it.
func Parse(raw []byte) (*Thing, error) {
	t, err := check(raw)
	if err != nil {
		return nil, err
	}
	return t.withView(), nil
}

// Validate is [Parse] for a caller that needs only the id of the TD, which is empty if the TD has none. It costs less than half.
func Validate(raw []byte) (id string, err error) {
	t, err := check(raw)
	if err != nil {
		return "", err
	}
	return t.ID, nil
}

// check decodes and checks a TD. The result has a document, an id and a title; withView adds the rest.
func check(raw []byte) (*Thing, error) {
	raw = bytes.TrimPrefix(raw, []byte("\ufeff"))
	doc, err := decode(raw)
	if err != nil {
		return nil, err
	}
	if err := checkDocument(doc); err != nil {
		return nil, err
	}
	return &Thing{Raw: raw, ID: text(doc["id"]), Title: text(doc["title"]), doc: doc}, nil
}

// withView returns the typed view of a checked TD, with the warnings for its author and with the document for signing.
func (t *Thing) withView() *Thing {
	whole := view(t.Raw, t.doc)
	whole.doc, whole.Warnings = t.doc, warnings(t.doc, whole)
	return whole
}

// decode decodes the JSON of a TD. All later steps use the result, whose strings are parts of raw.
func decode(raw []byte) (map[string]any, error) {
	if len(raw) > MaxTD {
		reason := fmt.Sprintf("has %d bytes; a Thing Description may have %d", len(raw), MaxTD)
		return nil, &ValidationError{TooLarge: true, Issues: []Issue{{Reason: reason, Rule: ownLimit}}}
	}
	v, err := jcs.View(raw)
	if err != nil {
		return nil, notJSON(raw, err)
	}
	doc, ok := v.(map[string]any)
	if !ok {
		return nil, &ValidationError{Issues: []Issue{schema.WrongType("", v, "object")}}
	}
	return doc, nil
}

func notJSON(raw []byte, err error) *ValidationError {
	reason := err.Error()
	var syntax *jcs.SyntaxError
	if errors.As(err, &syntax) {
		reason = fmt.Sprintf("not JSON at line %d, column %d: %s", syntax.Line, syntax.Column, syntax.Msg)
	}
	i := Issue{Reason: reason}
	if json.Valid(raw) { // ambiguous JSON, such as duplicate names, which cannot be signed
		i.Rule = "RFC 7493 §2"
	}
	return &ValidationError{NotJSON: true, Issues: []Issue{i}}
}

// checkDocument checks a decoded TD: the schema, and the checks beyond it.
func checkDocument(doc map[string]any) error {
	c := &checker{doc: doc}
	if c.check(); len(c.errors) > 0 {
		return &ValidationError{Issues: schema.SortIssues(c.errors)}
	}
	return nil
}
