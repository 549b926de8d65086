package td

import (
	"bytes"

	"github.com/lmosd/lmosd/internal/jcs"
)

// The functions below return the zero value for decoded JSON of another type. The schema check reports wrong types.

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

// texts returns a string, or the strings of an array.
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

// bytesOf encodes a decoded value in canonical form (RFC 8785).
func bytesOf(v any) []byte {
	var room [256]byte
	b, err := jcs.Append(room[:0], v)
	if err != nil { // v was decoded from JSON
		return nil
	}
	return bytes.Clone(b) // without spare capacity: views keep it
}
