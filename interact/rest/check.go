package rest

import (
	"bytes"
	"fmt"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

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

// trimJSON cuts the space that JSON allows around a value (RFC 8259 §2), and no other.
func trimJSON(data []byte) []byte { return bytes.Trim(data, " \t\r\n") }
