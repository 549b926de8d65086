package protocol

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/lmosd/lmosd/internal/jsonedit"
)

// Field returns the value at path in text, which is valid JSON; nil if it is missing or null. JSON readers differ in the names that
// they accept for a field: Go readers ignore case, and ProtoJSON readers accept "task_id" for "taskId". Field accepts both, and
// returns an [*Error] of code [InvalidParams] if a field occurs twice, because two readers could then see different values.
func Field(text json.RawMessage, path ...string) (json.RawMessage, *Error) {
	var room [12]jsonedit.Member
	for _, name := range path {
		i := jsonedit.SkipSpace(text, 0)
		if i >= len(text) || text[i] != '{' {
			return nil, nil
		}
		text = text[i:]
		all, err := jsonedit.Members(room[:0], text)
		if err != nil {
			return nil, Errorf(InvalidParams, "%v", err)
		}
		var at jsonedit.Span
		for _, m := range all {
			if !sameField(m.Name, name) {
				continue
			}
			if at != (jsonedit.Span{}) {
				return nil, Errorf(InvalidParams, "duplicate field %s", name).At(name)
			}
			at = m.At
		}
		if text = text[at.From:at.To]; len(text) == 0 || string(text) == "null" {
			return nil, nil
		}
	}
	return text, nil
}

// FieldText is [Field] for a string; empty if it is missing. A value of another type is an error.
func FieldText(text json.RawMessage, path ...string) (string, *Error) {
	raw, e := Field(text, path...)
	if raw == nil || e != nil {
		return "", e
	}
	s, ok := jsonedit.String(raw)
	if !ok {
		return "", Errorf(InvalidParams, "%s is not a string", path[len(path)-1]).At(path[len(path)-1])
	}
	return s, nil
}

// sameField reports whether a JSON reader may accept name for a field, which is written in camelCase.
func sameField(name []byte, field string) bool {
	if bytes.IndexByte(name, '_') >= 0 {
		name = bytes.ReplaceAll(name, []byte("_"), nil)
	}
	return strings.EqualFold(string(name), field)
}
