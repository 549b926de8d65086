// Package querytext parses queries that users write, such as "weather type:agent NOT protocol:mqtt".
package querytext

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// Limits of a query.
const (
	MaxLength = 4 << 10 // bytes
	maxParts  = 64      // words and fields
)

// Parse parses a query: words, and fields such as "capability:urn:example:weather" or "type:agent". All of them must match. "OR" separates
// alternatives. "NOT" or "-" precedes a word or field that must not match. "AND" has no effect. Quotes make several words one value:
// organization:"Example Corp". A word with a colon whose prefix is not a field name is a plain word.
//
// The fields of common apply to each alternative.
func Parse(text string, common td.Query) (td.Query, error) {
	if len(text) > MaxLength {
		return td.Query{}, fmt.Errorf("the query has %d bytes, the limit is %d", len(text), MaxLength)
	}
	if !utf8.ValidString(text) {
		return td.Query{}, errors.New("the query is not UTF-8")
	}
	parts, err := split(text)
	if err != nil {
		return td.Query{}, err
	}
	if len(parts) > maxParts {
		return td.Query{}, fmt.Errorf("the query has %d words and fields, the limit is %d", len(parts), maxParts)
	}
	p := parser{common: common, not: common.Not, branches: []td.Query{branch(common)}}
	for _, part := range parts {
		if err := p.parsePart(part); err != nil {
			return td.Query{}, err
		}
	}
	return p.query()
}

// branch returns a query with the fields of common, without those that apply to all branches together.
func branch(common td.Query) td.Query {
	common.Or, common.Not, common.Limit, common.Counter = nil, nil, 0, nil
	common.Capability = slices.Clone(common.Capability)
	return common
}

// A part is a word or a field of a query. A part that begins with a quote has words, not a field.
type part struct {
	text   string
	quoted bool
}

// split splits a query at spaces outside of quotes.
func split(text string) (parts []part, err error) {
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
		return nil, errors.New("the query ends inside a quote")
	}
	return parts, nil
}

// A parser collects the branches of a query.
type parser struct {
	common   td.Query
	branches []td.Query
	parts    int // of the last branch
	not      []td.Query
	negate   bool // the next part must not match
}

func (p *parser) parsePart(part part) error {
	switch {
	case !part.quoted && part.text == "AND":
		return nil
	case !part.quoted && (part.text == "OR" || part.text == "|"):
		if p.parts == 0 || p.negate {
			return errors.New("expected a word or a field before OR")
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
		var not td.Query
		if err := setPart(&not, part); err != nil {
			return err
		}
		p.not, p.negate = append(p.not, not), false
		return nil
	}
	p.parts++
	return setPart(&p.branches[len(p.branches)-1], part)
}

func (p *parser) query() (td.Query, error) {
	switch {
	case p.negate:
		return td.Query{}, errors.New("expected a word or a field after NOT")
	case len(p.branches) > 1 && p.parts == 0:
		return td.Query{}, errors.New("expected a word or a field after OR")
	case len(p.branches) > td.MaxBranches, len(p.not) > td.MaxBranches:
		return td.Query{}, fmt.Errorf("the query has too many alternatives or exclusions, the limit is %d of each", td.MaxBranches)
	}
	q := p.branches[0]
	q.Or, q.Not, q.Limit, q.Counter = p.branches[1:], p.not, p.common.Limit, p.common.Counter
	if len(q.Or) == 0 {
		q.Or = p.common.Or
	}
	if len(q.Not) > 0 && !q.HasCriteria() && len(q.Or) == 0 {
		return td.Query{}, errors.New("the query has exclusions only; add a word or a field that must match")
	}
	return q, nil
}

// fields are the names of the text fields of a query.
var fields = map[string]func(q *td.Query) *string{
	"name":         func(q *td.Query) *string { return &q.Name },
	"version":      func(q *td.Query) *string { return &q.Version },
	"id":           func(q *td.Query) *string { return &q.ID },
	"organization": func(q *td.Query) *string { return &q.Organization },
	"org":          func(q *td.Query) *string { return &q.Organization },
	"protocol":     func(q *td.Query) *string { return &q.Protocol },
	"action":       func(q *td.Query) *string { return &q.Action },
	"property":     func(q *td.Query) *string { return &q.Property },
	"event":        func(q *td.Query) *string { return &q.Event },
	"type":         func(q *td.Query) *string { return &q.Type },
}

// setPart adds a field or words to q.
func setPart(q *td.Query, part part) error {
	name, value, isField := strings.Cut(part.text, ":")
	name = strings.ToLower(name)
	switch {
	case !isField || value == "" || part.quoted:
	case name == "capability" || name == "cap":
		q.Capability = append(q.Capability, value)
		return checkCapability(value)
	case name == "owner":
		return setDID(&q.Owner, name, value)
	case name == "host":
		return setDID(&q.Host, name, value)
	case fields[name] != nil:
		field := fields[name](q)
		if *field != "" && *field != value {
			return fmt.Errorf("the field %s occurs twice; separate the alternatives with OR", name)
		}
		if *field = value; name == "version" {
			_, err := td.ParseRange(value)
			return err
		}
		return nil
	}
	q.Text = strings.TrimSpace(q.Text + " " + strings.Join(strings.Fields(part.text), " "))
	return nil
}

func checkCapability(id string) error {
	if _, ok := td.Normal(id); !ok {
		return fmt.Errorf("expected a capability id such as urn:example:weather:forecast, got %q", id)
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
