package td

import (
	"slices"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"

	"github.com/lmosd/lmosd/did"
)

// A Query asks for things. Empty fields ask nothing; all that are set must hold.
type Query struct {
	Capability []string // each an id or a level prefix of one
	ID         string
	Owner      did.DID
	Action     string // the name of an action, in any case
	Type       string // "agent", "tool", or any @type
	Text       string // words in title, description, capability names and ids, action names
	Limit      int    // 0 means 32
	// Tally counts who was asked and who answered; nil counts nothing.
	Tally *Tally
}

// Max returns how many answers q asks for at most.
func (q *Query) Max() int {
	if q.Limit > 0 {
		return q.Limit
	}
	return 32
}

// Match reports whether d is what q asks for. A description without a thing, that of a tombstone, is nothing that
// anybody asks for. A capability that has no normal form matches nothing.
func (q *Query) Match(d *Description) bool {
	return d != nil && d.Thing != nil &&
		(q.ID == "" || q.ID == d.ID) &&
		(q.Owner == "" || q.Owner == d.Record.Owner) &&
		(q.Type == "" || d.HasType(q.Type)) &&
		q.matchAction(d.Thing) && q.matchCapabilities(d.Thing) && q.matchText(d.Thing)
}

func (q *Query) matchAction(t *Thing) bool {
	if q.Action == "" || t.Actions[q.Action] != nil {
		return true
	}
	for name := range t.Actions {
		if strings.EqualFold(name, q.Action) {
			return true
		}
	}
	return false
}

func (q *Query) matchCapabilities(t *Thing) bool {
	for _, asked := range q.Capability {
		id, ok := Normal(asked)
		if !ok || !slices.ContainsFunc(t.Terms(), func(has string) bool { return under(has, id) }) {
			return false
		}
	}
	return true
}

func (q *Query) matchText(t *Thing) bool {
	if q.Text == "" {
		return true
	}
	text := t.text
	if text == "" {
		text = t.makeText()
	}
	for _, word := range Words(q.Text) {
		if !strings.Contains(text, word) {
			return false
		}
	}
	return true
}

// Words returns the words of s, folded for comparison: NFC, lower case, split at what is neither letter, digit nor
// mark.
func Words(s string) []string {
	return strings.FieldsFunc(fold(s), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r)
	})
}

func fold(s string) string { return norm.NFC.String(strings.ToLower(s)) }

// makeText returns all that [Query.Text] is looked for in, folded.
func (t *Thing) makeText() string {
	var b strings.Builder
	for _, s := range []string{t.Title, t.Description} {
		b.WriteString(s + "\n")
	}
	for _, c := range t.Capabilities {
		b.WriteString(c.ID + "\n" + c.Name + "\n" + c.Description + "\n")
	}
	for _, name := range sortedKeys(t.Actions) {
		b.WriteString(name + "\n")
	}
	return fold(b.String())
}

// HasType reports whether the thing has the @type typ, regardless of case. "agent" and "tool" match all spellings of
// the LMOS types (see [ContextLMOS]).
func (t *Thing) HasType(typ string) bool {
	want := bareType(typ)
	return slices.ContainsFunc(t.Types, func(has string) bool { return bareType(has) == want })
}
