package protocol

import (
	"encoding/json"
	"strings"

	"github.com/lmosd/lmosd/internal/jsonedit"
)

// camel returns the ProtoJSON name of a field: "taskId" for "task_id".
func camel(name string) string {
	if !strings.Contains(name, "_") {
		return name
	}
	var b strings.Builder
	up := false
	for _, r := range name {
		switch {
		case r == '_':
			up = b.Len() > 0
			continue
		case up && r >= 'a' && r <= 'z':
			r -= 'a' - 'A'
		}
		up = false
		b.WriteRune(r)
	}
	return b.String()
}

// snake returns the proto name of a field: "task_id" for "taskId".
func snake(name string) string {
	var b strings.Builder
	for _, r := range name {
		if r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// free are members with application-defined content: names below them are not field names.
var free = map[string]bool{"metadata": true, "data": true, "params": true, "header": true, "scopes": true}

// maxDepth is the depth to which names are converted.
const maxDepth = 32

// Normal converts field names to camelCase, the form that this package reads: ProtoJSON allows the proto names too (ProtoJSON, "JSON
// options"). Application-defined content stays unchanged, and so does text without proto names.
func Normal(params json.RawMessage) json.RawMessage {
	if !hasSnake(params) {
		return params
	}
	return normal(params, 0)
}

// hasSnake reports whether text may have a proto name: lower-case letters around "_", in quotes before a colon.
func hasSnake(text []byte) bool {
	small := func(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' }
	for i := 1; i < len(text); i++ {
		if text[i] != '_' || !small(text[i-1]) {
			continue
		}
		end := i
		for end < len(text) && small(text[end]) {
			end++
		}
		i = end
		if end < len(text) && text[end] == '"' {
			if at := jsonedit.SkipSpace(text, end+1); at < len(text) && text[at] == ':' {
				return true
			}
		}
	}
	return false
}

func normal(v json.RawMessage, depth int) json.RawMessage {
	i := jsonedit.SkipSpace(v, 0)
	if depth > maxDepth || i >= len(v) {
		return v
	}
	switch v[i] {
	case '{':
		var members map[string]json.RawMessage
		if json.Unmarshal(v, &members) != nil {
			return v
		}
		out := make(map[string]json.RawMessage, len(members))
		for name, m := range members {
			camel := camel(name)
			if _, both := members[camel]; both && camel != name {
				continue
			}
			if !free[camel] {
				m = normal(m, depth+1)
			}
			out[camel] = m
		}
		return object(out)
	case '[':
		var items []json.RawMessage
		if json.Unmarshal(v, &items) != nil {
			return v
		}
		b := []byte{'['}
		for i, item := range items {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, normal(item, depth+1)...)
		}
		return append(b, ']')
	}
	return v
}
