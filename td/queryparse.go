package td

import (
	"errors"
	"fmt"
	"iter"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lmosd/lmosd/did"
)

// Bounds of a question as people write it.
const (
	MaxQueryText = 4 << 10 // bytes
	maxParts     = 64      // words and fields
)

// ParseQuery reads a question as people write it: words, and fields such as "capability:urn:example:weather" or "type:agent", all of
// which must hold. "OR" stands between questions of which one must hold, "NOT" or "-" before what must not, "AND" says nothing new.
// Quotes keep words together that are the value of a field: organisation:"Example Corp". What looks like a field of another
// name is words.
//
// All that is set in common holds for each of the questions between "OR".
func ParseQuery(text string, common Query) (Query, error) {
	if len(text) > MaxQueryText {
		return Query{}, fmt.Errorf("the question has %d bytes, %d are possible", len(text), MaxQueryText)
	}
	if !utf8.ValidString(text) {
		return Query{}, errors.New("the question is not UTF-8")
	}
	parts, err := partsOf(text)
	if err != nil {
		return Query{}, err
	}
	if len(parts) > maxParts {
		return Query{}, fmt.Errorf("the question has %d parts, %d are possible", len(parts), maxParts)
	}
	p := parser{common: common, not: common.Not, branches: []Query{branch(common)}}
	for _, part := range parts {
		if err := p.parsePart(part); err != nil {
			return Query{}, err
		}
	}
	return p.query()
}

// branch returns the fields of a query without what holds for all of its branches.
func branch(common Query) Query {
	common.Or, common.Not, common.Limit, common.Counter = nil, nil, 0, nil
	common.Capability = append([]string(nil), common.Capability...)
	return common
}

// A part is a word or a field of a question. What is quoted from its beginning is words, whatever they look like.
type part struct {
	text   string
	quoted bool
}

// partsOf splits a question at spaces that are not between quotes.
func partsOf(text string) (parts []part, err error) {
	var b strings.Builder
	open, quoted := false, false
	end := func() {
		if b.Len() > 0 {
			parts = append(parts, part{b.String(), quoted})
		}
		b.Reset()
		quoted = false
	}
	for _, r := range text {
		switch {
		case r == '"':
			open, quoted = !open, quoted || b.Len() == 0
		case !open && unicode.IsSpace(r):
			end()
		default:
			b.WriteRune(r)
		}
	}
	if end(); open {
		return nil, fmt.Errorf("a quote is open at the end of the question")
	}
	return parts, nil
}

// A parser collects the branches of a question.
type parser struct {
	common   Query
	branches []Query
	parts    int // of the last branch
	not      []Query
	negate   bool // the next part must not hold
}

func (p *parser) parsePart(part part) error {
	switch {
	case !part.quoted && part.text == "AND":
		return nil
	case !part.quoted && (part.text == "OR" || part.text == "|"):
		if p.parts == 0 || p.negate {
			return fmt.Errorf("nothing stands before an OR")
		}
		p.branches, p.parts = append(p.branches, branch(p.common)), 0
		return nil
	case !part.quoted && part.text == "NOT":
		p.negate = true
		return nil
	}
	if rest, minus := strings.CutPrefix(part.text, "-"); minus && rest != "" && !part.quoted {
		part.text, p.negate = rest, true
	}
	if p.negate {
		var not Query
		if err := not.parsePart(part); err != nil {
			return err
		}
		p.not, p.negate = append(p.not, not), false
		return nil
	}
	p.parts++
	return p.branches[len(p.branches)-1].parsePart(part)
}

func (p *parser) query() (Query, error) {
	q := p.common
	q.Not = p.not
	switch {
	case p.negate:
		return Query{}, fmt.Errorf("nothing stands behind a NOT")
	case len(p.branches) > 1 && p.parts == 0:
		return Query{}, fmt.Errorf("nothing stands behind an OR")
	case len(p.branches) > MaxBranches, len(q.Not) > MaxBranches:
		return Query{}, fmt.Errorf("at most %d questions are possible with OR between, and as many NOT", MaxBranches)
	}
	q = p.branches[0]
	q.Or, q.Not, q.Limit, q.Counter = p.branches[1:], p.not, p.common.Limit, p.common.Counter
	if len(q.Or) == 0 {
		q.Or = p.common.Or
	}
	if len(q.Not) > 0 && !q.HasCriteria() && len(q.Or) == 0 {
		return Query{}, fmt.Errorf("the question says only what is not asked for: add what is")
	}
	return q, nil
}

// fields are the names by which people set the fields of a query.
var fields = map[string]func(q *Query) *string{
	"name":         func(q *Query) *string { return &q.Name },
	"version":      func(q *Query) *string { return &q.Version },
	"id":           func(q *Query) *string { return &q.ID },
	"organisation": func(q *Query) *string { return &q.Organization },
	"organization": func(q *Query) *string { return &q.Organization },
	"org":          func(q *Query) *string { return &q.Organization },
	"protocol":     func(q *Query) *string { return &q.Protocol },
	"action":       func(q *Query) *string { return &q.Action },
	"property":     func(q *Query) *string { return &q.Property },
	"event":        func(q *Query) *string { return &q.Event },
	"type":         func(q *Query) *string { return &q.Type },
}

// parsePart sets what one part says: a field or words.
func (q *Query) parsePart(part part) error {
	name, value, isField := strings.Cut(part.text, ":")
	name = strings.ToLower(name)
	switch {
	case !isField || value == "" || part.quoted:
	case name == "capability" || name == "cap":
		q.Capability = append(q.Capability, value)
		return q.checkLast()
	case name == "owner":
		return setDID(&q.Owner, name, value)
	case name == "host":
		return setDID(&q.Host, name, value)
	case fields[name] != nil:
		field := fields[name](q)
		if *field != "" && *field != value {
			return fmt.Errorf("%s is asked for twice; put OR between", name)
		}
		if *field = value; name == "version" {
			_, err := ParseRange(value)
			return err
		}
		return nil
	}
	q.Text = strings.TrimSpace(q.Text + " " + strings.Join(strings.Fields(part.text), " "))
	return nil
}

func (q *Query) checkLast() error {
	asked := q.Capability[len(q.Capability)-1]
	if _, ok := Normal(asked); !ok {
		return fmt.Errorf("%q is no capability; one looks like urn:example:weather:forecast", asked)
	}
	return nil
}

// setDID reads a DID, or the key part of a did:key.
func setDID(field *did.DID, name, value string) error {
	if !strings.HasPrefix(value, "did:") {
		value = "did:key:" + value
	}
	id, err := did.Parse(value)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	*field = id
	return nil
}

// String writes q as [ParseQuery] reads it, but for Limit and Tally. Quotes in it are lost, and so is what it would take brackets to
// say: that several fields of a Not must hold together.
func (q *Query) String() string {
	var b strings.Builder
	if q.HasCriteria() {
		q.write(&b)
	}
	for i := range q.Or {
		if b.Len() > 0 {
			b.WriteString(" OR ")
		}
		q.Or[i].write(&b)
	}
	for i := range q.Not {
		if not := &q.Not[i]; strings.Contains(not.Text, " ") {
			b.WriteString(` NOT "` + strings.ReplaceAll(not.Text, `"`, "") + `"`)
		} else {
			for part := range not.parts() {
				b.WriteString(" NOT " + part)
			}
		}
	}
	return strings.TrimSpace(b.String())
}

func (q *Query) write(b *strings.Builder) {
	between := ""
	for part := range q.parts() {
		b.WriteString(between + part)
		between = " "
	}
}

// parts yields the fields and words of q itself.
func (q *Query) parts() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, f := range [...]struct{ name, value string }{
			{"version", q.Version}, {"id", q.ID}, {"name", q.Name}, {"owner", string(q.Owner)}, {"organisation", q.Organization}, {"host", string(q.Host)},
			{"protocol", q.Protocol}, {"action", q.Action}, {"property", q.Property}, {"event", q.Event}, {"type", q.Type},
		} {
			if f.value != "" && !yield(f.name+":"+quoteValue(f.value)) {
				return
			}
		}
		for _, c := range q.Capability {
			if !yield("capability:" + quoteValue(c)) {
				return
			}
		}
		for word := range strings.FieldsSeq(q.Text) {
			if said := quoteWord(word); said != "" && !yield(said) {
				return
			}
		}
	}
}

// quoteValue is the value of a field.
func quoteValue(value string) string {
	value = strings.ReplaceAll(value, `"`, "")
	if strings.ContainsFunc(value, unicode.IsSpace) {
		return `"` + value + `"`
	}
	return value
}

// quoteWord is a word that is taken for nothing else.
func quoteWord(word string) string {
	word = strings.ReplaceAll(word, `"`, "")
	switch {
	case word == "":
		return ""
	case word == "AND", word == "OR", word == "NOT", word == "|", strings.HasPrefix(word, "-"), strings.Contains(word, ":"):
		return `"` + word + `"`
	}
	return word
}
