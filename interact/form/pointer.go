package form

import (
	"slices"
	"strings"

	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

// escapePointer writes a name as a part of a JSON pointer (RFC 6901 §3).
var escapePointer = strings.NewReplacer("~", "~0", "/", "~1")

var unescapePointer = strings.NewReplacer("~1", "/", "~0", "~")

// below returns issues under a pointer.
func below(pointer string, issues []td.Issue) []td.Issue {
	moved := slices.Clone(issues)
	for i := range moved {
		moved[i].Pointer = pointer + moved[i].Pointer
	}
	return moved
}

// decode reads JSON strictly: a name that occurs twice could have one value here and another at the agent. No data is nil.
func decode(data []byte) (any, error) {
	if len(data) == 0 {
		return nil, nil
	}
	return jcs.Decode(data, len(data))
}

// bodyPointers are the JSON pointers of the members of a body that security schemes of the forms fill (TD 1.1 §5.3.3, in: body).
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

// place sets the member at a JSON pointer and makes the objects above it. It reports whether value has room for the member.
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
