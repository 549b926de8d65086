package protocol

import (
	"encoding/json"
	"strings"
)

// Camel returns the spelling of ProtoJSON for the name of a field: "task_id" is "taskId".
func Camel(name string) string {
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

// Snake returns the name of the proto for a field: "taskId" is "task_id".
func Snake(name string) string {
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

// free are members whose content belongs to whoever wrote it: names below them are not those of fields.
var free = map[string]bool{"metadata": true, "data": true, "params": true, "header": true, "scopes": true}

// maxDepth is how deep names are looked at.
const maxDepth = 32

// Normal spells the names of fields in camelCase, which is what this package reads: ProtoJSON allows the names of the proto too
// (ProtoJSON, "JSON options"). What is free stays as it is. Text that has no such name comes back itself.
func Normal(params json.RawMessage) json.RawMessage {
	if !hasSnake(params) {
		return params
	}
	return normal(params, 0)
}

// hasSnake reports whether text may have a name of the proto: small letters around "_", in quotes before a colon.
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
			rest := text[end+1:]
			if at := firstByte(rest); at < len(rest) && rest[at] == ':' {
				return true
			}
		}
	}
	return false
}

func normal(v json.RawMessage, depth int) json.RawMessage {
	i := firstByte(v)
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
			camel := Camel(name)
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
