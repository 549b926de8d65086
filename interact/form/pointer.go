package form

import (
	"slices"
	"strings"

	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

// unescapePointer decodes a part of a JSON pointer (RFC 6901 §4).
var unescapePointer = strings.NewReplacer("~1", "/", "~0", "~")

// below returns issues with pointer before their pointers.
func below(pointer string, issues []td.Issue) []td.Issue {
	moved := slices.Clone(issues)
	for i := range moved {
		moved[i].Pointer = pointer + moved[i].Pointer
	}
	return moved
}

// decode reads JSON strictly: parsers differ in the value of a duplicate name. Empty data is nil.
func decode(data []byte) (any, error) {
	if len(data) == 0 {
		return nil, nil
	}
	return jcs.Decode(data, len(data))
}

// bodyPointers returns the JSON pointers of the body members with credentials, from the security schemes of the forms (TD 1.1 §5.3.3,
// in: body).
func bodyPointers(t *td.Thing, forms []td.Form) []string {
	var pointers []string
	for _, f := range forms {
		for _, name := range f.Security {
			if s := t.SecurityDefs[name]; s != nil && s.In == "body" {
				pointers = append(pointers, bodyPointer(s.Name))
			}
		}
	}
	return pointers
}

// place sets the member at a JSON pointer and creates missing objects above it. It reports false if value cannot have the member.
func place(value any, pointer, member string) bool {
	o, ok := value.(map[string]any)
	steps := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	for i, step := range steps {
		if !ok {
			return false
		}
		step = unescapePointer.Replace(step)
		if i == len(steps)-1 {
			o[step] = member
			break
		}
		if o[step] == nil {
			o[step] = map[string]any{}
		}
		o, ok = o[step].(map[string]any)
	}
	return ok
}
