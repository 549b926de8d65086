package td

import "github.com/lmosd/lmosd/internal/jcs"

// The functions below read decoded JSON tolerantly: what has another type than asked for is as good as absent. Whether
// the type is right is for the schema to say, which has been asked before or reports beside.

func object(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

func array(v any) []any {
	a, _ := v.([]any)
	return a
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

func flag(v any) bool {
	b, _ := v.(bool)
	return b
}

// texts reads a string, or an array of strings.
func texts(v any) []string {
	if s, ok := v.(string); ok {
		return []string{s}
	}
	var all []string
	for _, e := range array(v) {
		if s, ok := e.(string); ok {
			all = append(all, s)
		}
	}
	return all
}

// bytesOf writes a decoded value as JSON, in canonical form.
func bytesOf(v any) []byte {
	b, err := jcs.Append(nil, v)
	if err != nil { // v was decoded from JSON
		return nil
	}
	return b
}
