package protocol

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/lmosd/lmosd/internal/jsonedit"
)

// Field returns the value at path in text, which is valid JSON; nil if there is none, or null. Readers of JSON differ in what
// they take for the name of a field: those of Go pass over its case, those of ProtoJSON take "task_id" for "taskId". So does
// Field, and a name that could be found in two places is an [*Error] of code [InvalidParams]: what one reader checks another
// would not do.
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
				return nil, Errorf(InvalidParams, "%s is there twice", name).At(name)
			}
			at = m.At
		}
		if text = text[at.From:at.To]; len(text) == 0 || string(text) == "null" {
			return nil, nil
		}
	}
	return text, nil
}

// FieldText is [Field] for a string; empty if there is none. What is no string is an error, too.
func FieldText(text json.RawMessage, path ...string) (string, *Error) {
	raw, e := Field(text, path...)
	if raw == nil || e != nil {
		return "", e
	}
	s, ok := jsonedit.String(raw)
	if !ok {
		return "", Errorf(InvalidParams, "%s is no string", path[len(path)-1]).At(path[len(path)-1])
	}
	return s, nil
}

// sameField reports whether a reader may take name for that of a field, which is written in camelCase.
func sameField(name []byte, field string) bool {
	if bytes.IndexByte(name, '_') >= 0 {
		name = bytes.ReplaceAll(name, []byte("_"), nil)
	}
	return strings.EqualFold(string(name), field)
}
