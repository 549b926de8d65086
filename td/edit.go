package td

import (
	"slices"

	"github.com/lmosd/lmosd/internal/jsonedit"
)

// The functions below edit JSON text that is known to be valid, because it was decoded before. All other bytes are unchanged, including
// the order and spacing of the author.

// A span is a part of a text: a value, or a member from its name to the end of its value.
type span struct{ from, to int }

// An edit replaces a span, which may be empty, by text.
type edit struct {
	span
	text string
}

// apply returns b with the edits made; they must not overlap.
func apply(b []byte, edits []edit) []byte {
	slices.SortStableFunc(edits, func(x, y edit) int { return x.from - y.from })
	size := len(b)
	for _, e := range edits {
		size += len(e.text) - (e.to - e.from)
	}
	out := make([]byte, 0, size) // it is kept
	done := 0
	for _, e := range edits {
		out = append(append(out, b[done:e.from]...), e.text...)
		done = e.to
	}
	return append(out, b[done:]...)
}

// parts returns the elements of the array, or the members of the object, that begins at i.
func parts(b []byte, i int) []span {
	isObject := b[i] == '{'
	var all []span
	for i = jsonedit.SkipSpace(b, i+1); b[i] != '}' && b[i] != ']'; {
		from := i
		if isObject {
			i = jsonedit.SkipSpace(b, jsonedit.SkipSpace(b, jsonedit.SkipString(b, i))+1)
		}
		i = jsonedit.SkipValue(b, i)
		all = append(all, span{from, i})
		if i = jsonedit.SkipSpace(b, i); b[i] == ',' {
			i = jsonedit.SkipSpace(b, i+1)
		}
	}
	return all
}

// separator returns the text between parts: that between the first two, or a comma and the space before the first.
func separator(b []byte, open int, all []span) string {
	switch len(all) {
	case 0:
		return ""
	case 1:
		return "," + string(b[open+1:all[0].from])
	}
	return string(b[all[0].to:all[1].from])
}

// valueOf returns the value in a member of an object.
func valueOf(b []byte, member span) span {
	return span{jsonedit.SkipSpace(b, jsonedit.SkipSpace(b, jsonedit.SkipString(b, member.from))+1), member.to}
}

// addMember returns the object b with an additional last member.
func addMember(b []byte, name string, value []byte) []byte {
	open := jsonedit.SkipSpace(b, 0)
	all := parts(b, open)
	text := `"` + name + `": ` + string(value)
	if len(all) == 0 {
		return apply(b, []edit{{span{open + 1, open + 1}, text}})
	}
	end := all[len(all)-1].to
	return apply(b, []edit{{span{end, end}, separator(b, open, all) + text}})
}
