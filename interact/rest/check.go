package rest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// RFC 6901 §3.
var (
	escapePointer   = strings.NewReplacer("~", "~0", "/", "~1")
	unescapePointer = strings.NewReplacer("~1", "/", "~0", "~")
)

// below moves issues under a pointer.
func below(pointer string, issues []td.Issue) []td.Issue {
	moved := slices.Clone(issues)
	for i := range moved {
		moved[i].Pointer = pointer + moved[i].Pointer
	}
	return moved
}

func invalid(m *interact.Message, issues []td.Issue) error {
	what := m.Name
	if what == "" {
		what = "the input"
	}
	first := issues[0].Reason
	if p := issues[0].Pointer; p != "" {
		first = p + ": " + first
	}
	if n := len(issues) - 1; n > 0 {
		first += fmt.Sprintf(" (and %d more)", n)
	}
	return &interact.Error{Code: interact.Invalid, Title: what + " does not take this: " + first, Issues: issues,
		Hint: "lmosd show " + interact.Quote(m.Thing) + " prints what it takes"}
}

// label is how a thing is called in errors.
func label(t *td.Thing) string {
	if t.Title != "" {
		return t.Title
	}
	return t.ID
}

// trimJSON cuts the space that JSON allows around a value (RFC 8259 §2), and no other.
func trimJSON(data []byte) []byte { return bytes.Trim(data, " \t\r\n") }
