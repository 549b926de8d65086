package td

import (
	"iter"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/textmatch"
	"github.com/lmosd/lmosd/td/scheme"
)

// A Query asks for things. Empty fields ask nothing; all that are set must hold, or all that are set in one of Or. A thing that
// one of Not fits is not asked for.
type Query struct {
	Capability []string // each an id or a level prefix of one
	// Version is a range, see [ParseRange]. The capabilities that are asked for must have such a version; if none are, one of the
	// thing's must.
	Version      string
	ID           string
	Name         string // what people call a thing, see [Record.Names]
	Owner        did.DID
	Organization string  // the vendor of lmos:metadata, in any case
	Host         did.DID // a node through which the thing is reached
	Protocol     string  // of a form: a scheme, see [scheme.Matching]: "http" finds "https" too
	Action       string  // the name of an action, in any case
	Property     string  // the same of a property
	Event        string  // the same of an event
	Type         string  // "agent", "tool", or any @type
	// Text is a question in words. A thing fits if one of the words that say what it is about is like one of its own (package
	// words): of its title, description, capabilities with their examples, and actions with their descriptions. How well it fits
	// is for who ranks.
	Text  string
	Or    []Query // at most [MaxBranches]; their own Or, Not, Limit and Tally mean nothing
	Not   []Query // the same
	Limit int     // 0 means 32
	// Except has things, by [Key], that the answer leaves out: those of earlier pages. It means nothing to other nodes and inside of Or
	// and Not.
	Except map[[32]byte]bool
	// CoverageCounter counts who was asked and who answered; nil counts nothing.
	Counter *CoverageCounter
}

// MaxBranches is how many queries Or and Not may have each.
const MaxBranches = 8

// Max returns how many answers q asks for at most.
func (q *Query) Max() int {
	if q.Limit > 0 {
		return q.Limit
	}
	return 32
}

// HasCriteria reports whether a field of q itself asks something.
func (q *Query) HasCriteria() bool {
	return len(q.Capability) > 0 || q.Version != "" || q.ID != "" || q.Name != "" || q.Owner != "" || q.Organization != "" || q.Host != "" ||
		q.Protocol != "" || q.Action != "" || q.Property != "" || q.Event != "" || q.Type != "" || q.Text != ""
}

// Branches yields the queries of which one must hold: q itself, unless it asks nothing and Or does, and those of Or. None has an
// Or; each has the Not of q.
func (q *Query) Branches() iter.Seq[*Query] {
	return func(yield func(*Query) bool) {
		one := *q
		one.Or = nil
		if (len(q.Or) == 0 || q.HasCriteria()) && !yield(&one) {
			return
		}
		for _, other := range q.Or[:min(len(q.Or), MaxBranches)] {
			other.Or, other.Not, other.Limit, other.Counter = nil, q.Not, q.Limit, q.Counter
			if !yield(&other) {
				return
			}
		}
	}
}

// Match reports whether d is what q asks for. A description without a thing, that of a tombstone, is nothing that
// anybody asks for. A capability that has no normal form matches nothing, and neither does what is no range of versions.
func (q *Query) Match(d *Description) bool { return q.match(d, true) }

// MatchFields is [Query.Match] without Text, for who has looked for the words already.
func (q *Query) MatchFields(d *Description) bool { return q.match(d, false) }

func (q *Query) match(d *Description, text bool) bool {
	if d == nil || d.Thing == nil {
		return false
	}
	for i := range q.Not[:min(len(q.Not), MaxBranches)] {
		if not := &q.Not[i]; not.HasCriteria() && not.holds(d, true) {
			return false
		}
	}
	for one := range q.Branches() {
		if one.holds(d, text) {
			return true
		}
	}
	return false
}

// holds reports whether the fields of q itself hold.
func (q *Query) holds(d *Description, text bool) bool {
	return (q.ID == "" || q.ID == d.ID) && (q.Name == "" || d.Record.HasName(q.Name)) &&
		(q.Owner == "" || q.Owner == d.Record.Owner) &&
		(q.Host == "" || slices.ContainsFunc(d.Record.Hosts, func(h Host) bool { return h.Node == q.Host })) &&
		(q.Type == "" || d.HasType(q.Type)) &&
		has(d.Actions, q.Action) && has(d.Properties, q.Property) && has(d.Events, q.Event) &&
		q.holdsCapabilities(d.Thing) && q.holdsVersion(d.Thing) && q.holdsOrganization(d.Thing) && q.holdsProtocol(d.Thing) &&
		(!text || q.holdsText(d.Thing))
}

// has reports whether there is an affordance of a name, in any case.
func has[T any](affordances map[string]T, name string) bool {
	if _, ok := affordances[name]; ok || name == "" {
		return true
	}
	for one := range affordances {
		if strings.EqualFold(one, name) {
			return true
		}
	}
	return false
}

func (q *Query) holdsCapabilities(t *Thing) bool {
	for _, asked := range q.Capability {
		id, ok := Normal(asked)
		if !ok || !slices.ContainsFunc(t.Terms(), func(has string) bool { return hasLevels(has, id) }) {
			return false
		}
	}
	return true
}

// holdsVersion reports whether each capability that is asked for, or any if none is, is there in a version of the range.
func (q *Query) holdsVersion(t *Thing) bool {
	if q.Version == "" {
		return true
	}
	r, err := ParseRange(q.Version)
	if err != nil {
		return false
	}
	provides := func(level string) bool {
		return slices.ContainsFunc(t.Capabilities, func(c Capability) bool {
			id, ok := Normal(c.ID)
			return ok && (level == "" || hasLevels(id, level)) && r.Has(c.Version)
		})
	}
	if len(q.Capability) == 0 {
		return provides("")
	}
	for _, asked := range q.Capability {
		if id, _ := Normal(asked); !provides(id) {
			return false
		}
	}
	return true
}

func (q *Query) holdsOrganization(t *Thing) bool {
	return q.Organization == "" || t.Metadata != nil && textmatch.Fold(t.Metadata.VendorName) == textmatch.Fold(q.Organization)
}

// Protocols yields the schemes of all forms of t, in lower case, and may repeat itself.
func (t *Thing) Protocols() iter.Seq[string] {
	return func(yield func(string) bool) {
		for forms := range t.allForms() {
			for i := range forms {
				if scheme, _, ok := strings.Cut(forms[i].Href, ":"); ok && !yield(strings.ToLower(scheme)) {
					return
				}
			}
		}
	}
}

func (t *Thing) allForms() iter.Seq[[]Form] {
	return func(yield func([]Form) bool) {
		if !yield(t.Forms) {
			return
		}
		for _, p := range t.Properties {
			if !yield(p.Forms) {
				return
			}
		}
		for _, a := range t.Actions {
			if !yield(a.Forms) {
				return
			}
		}
		for _, e := range t.Events {
			if !yield(e.Forms) {
				return
			}
		}
	}
}

func (q *Query) holdsProtocol(t *Thing) bool {
	if q.Protocol == "" {
		return true
	}
	asked := strings.ToLower(q.Protocol)
	for name := range t.Protocols() {
		for protocol := range scheme.Matching(name) {
			if protocol == asked {
				return true
			}
		}
	}
	return false
}

// maxQueryWords limits the words of a query that are looked up: untrusted peers may search many Things.
const maxQueryWords = 8

func (q *Query) holdsText(t *Thing) bool {
	content := textmatch.Content(q.Text)
	if len(content) == 0 {
		return true
	}
	content = content[:min(len(content), maxQueryWords)]
	for text := range t.Texts() {
		for _, word := range textmatch.Split(text.Text) {
			if slices.ContainsFunc(content, func(asked string) bool { return textmatch.Like(asked, word) }) {
				return true
			}
		}
	}
	return false
}

// A Field says where in a description a text stands.
type Field int

// The fields that are searched, the most telling first.
const (
	FieldTitle      Field = iota
	FieldCapability       // id and name
	FieldAction           // name and title
	FieldExample          // of a capability
	FieldDescription
	FieldDetail // descriptions of capabilities and actions
	Fields      // how many there are
)

// A Text is a part of a description that people write for people.
type Text struct {
	Field Field
	Text  string
}

// Texts yields what of t is searched by words, in the same order whenever it is called.
func (t *Thing) Texts() iter.Seq[Text] {
	return func(yield func(Text) bool) {
		give := func(f Field, texts ...string) bool {
			for _, text := range texts {
				if text != "" && !yield(Text{f, text}) {
					return false
				}
			}
			return true
		}
		if !give(FieldTitle, t.Title) || !give(FieldDescription, t.Description) {
			return
		}
		for _, c := range t.Capabilities {
			if !give(FieldCapability, c.ID, c.Name) || !give(FieldExample, c.Examples...) || !give(FieldDetail, c.Description) {
				return
			}
		}
		for _, name := range sortedKeys(t.Actions) {
			if a := t.Actions[name]; !give(FieldAction, name, a.Title) || !give(FieldDetail, a.Description) {
				return
			}
		}
	}
}

// HasType reports whether the thing has the @type typ, regardless of case. "agent" and "tool" match all spellings of
// the LMOS types (see [ContextLMOS]).
func (t *Thing) HasType(typ string) bool {
	want := typeKey(typ)
	return slices.ContainsFunc(t.Types, func(has string) bool { return typeKey(has) == want })
}
