package rest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
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

// near returns the names that are alike: equal but for case, one in the other, or at most a third of the letters apart.
func near(name string, have []string) []string {
	if len(name) > 256 {
		return nil
	}
	var found []string
	low := strings.ToLower(name)
	for _, h := range have {
		other := strings.ToLower(h)
		within := min(len(low), len(other)) > 2 && (strings.Contains(other, low) || strings.Contains(low, other))
		if len(found) < 3 && (within || distance(low, other) <= max(len(low), len(other))/3) {
			found = append(found, h)
		}
	}
	return found
}

// distance is the number of single-byte edits between a and b (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}

// members splits the object of data.
func members(data []byte) ([]jcs.Member, error) { return jcs.Members(trimJSON(data)) }

// trimJSON cuts the space that JSON allows around a value (RFC 8259 §2), and no other.
func trimJSON(data []byte) []byte { return bytes.Trim(data, " \t\r\n") }
