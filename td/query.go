package td

import (
	"iter"
	"slices"
	"strings"
	"unicode"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/textmatch"
	"github.com/lmosd/lmosd/td/scheme"
)

// A Query selects Things. All fields that are set must match, or all fields of one of Or. Empty fields match everything. A Thing that
// matches one of Not is excluded.
type Query struct {
	Capability []string // each an id or a level prefix of one
	// Version is a range, see [ParseRange]. Each capability of the query must have a version in it. If the query has no capability, any
	// capability of the Thing must.
	Version string
	ID      string
	Name    string // one of [Record.Names]
	Owner   did.DID
	// Organization is the name or the DID of the organization of the owner, as the asking node names it. The owner must be a verified member,
	// see Members; with Claimed, an organization that the description claims matches too ([Thing.ClaimedOrganizations]).
	Organization string
	Claimed      bool
	// Members are the verified members of Organization. The directory sets them; without them nothing is verified.
	Members  *Membership
	Host     did.DID // a host of the Thing
	Protocol string  // of a form: a scheme, see [scheme.Matching]: "http" finds "https" too
	Action   string  // the name of an action, in any case
	Property string  // the name of a property, in any case
	Event    string  // the name of an event, in any case
	Type     string  // "agent", "tool", or any @type
	// Text is free text. A Thing matches if one content word of it is similar (package textmatch) to a word of the Thing's title,
	// description, capabilities with their examples, or actions with their descriptions. The directory ranks the matches.
	Text  string
	Or    []Query // at most [MaxBranches]; their own Or, Not, Limit and Counter are ignored
	Not   []Query // at most [MaxBranches]; their own Or, Not, Limit and Counter are ignored
	Limit int     // 0 means 32
	// Except has the Things of earlier pages, by [Key]. The answer omits them. Other nodes do not receive Except, and it is ignored in Or
	// and Not.
	Except map[[32]byte]bool
	// Counter counts the queried and answering peers; nil counts none.
	Counter *CoverageCounter
}

// MaxBranches limits the queries in each of Or and Not.
const MaxBranches = 8

// Max returns the maximum number of results.
func (q *Query) Max() int {
	if q.Limit > 0 {
		return q.Limit
	}
	return 32
}

// HasCriteria reports whether q itself has a criterion, apart from Or and Not.
func (q *Query) HasCriteria() bool {
	return len(q.Capability) > 0 || q.Version != "" || q.ID != "" || q.Name != "" || q.Owner != "" || q.Organization != "" || q.Host != "" ||
		q.Protocol != "" || q.Action != "" || q.Property != "" || q.Event != "" || q.Type != "" || q.Text != ""
}

// Branches yields the alternatives of q: q itself, unless Or is its only criterion, and those of Or. An alternative has no Or, and the Not
// of q.
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

// Match reports whether d matches q. A description without a Thing, such as that of a tombstone, never matches. A capability without a
// normal form and an invalid range of versions match no Thing.
func (q *Query) Match(d *Description) bool { return q.match(d, true) }

// MatchFields is [Query.Match] without Text, for callers that have matched the text.
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

// holds reports whether d matches the fields of q itself.
func (q *Query) holds(d *Description, text bool) bool {
	return (q.ID == "" || q.ID == d.ID) && (q.Name == "" || d.Record.HasName(q.Name)) &&
		(q.Owner == "" || q.Owner == d.Record.Owner) &&
		(q.Host == "" || slices.ContainsFunc(d.Record.Hosts, func(h Host) bool { return h.Node == q.Host })) &&
		(q.Type == "" || d.HasType(q.Type)) &&
		has(d.Actions, q.Action) && has(d.Properties, q.Property) && has(d.Events, q.Event) &&
		q.holdsCapabilities(d.Thing) && q.holdsVersion(d.Thing) && q.holdsOrganization(d) && q.holdsProtocol(d.Thing) &&
		(!text || q.holdsText(d.Thing))
}

// has reports whether there is an affordance of a name, case-insensitively.
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
	for _, capability := range q.Capability {
		id, ok := Normal(capability)
		if !ok || !slices.ContainsFunc(t.Terms(), func(has string) bool { return hasLevels(has, id) }) {
			return false
		}
	}
	return true
}

// holdsVersion reports whether t has each capability of the query, or any capability if there is none, in a version of the range.
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
	for _, capability := range q.Capability {
		if id, _ := Normal(capability); !provides(id) {
			return false
		}
	}
	return true
}

// Protocols yields the schemes of all absolute forms of t, in lower case, with duplicates.
func (t *Thing) Protocols() iter.Seq[string] {
	return func(yield func(string) bool) {
		for forms := range t.allForms() {
			for i := range forms {
				if scheme := forms[i].Scheme(); scheme != "" && !yield(scheme) {
					return
				}
			}
		}
	}
}

// Hrefs yields the addresses of all forms of t, with duplicates.
func (t *Thing) Hrefs() iter.Seq[string] {
	return func(yield func(string) bool) {
		for forms := range t.allForms() {
			for i := range forms {
				if !yield(forms[i].Href) {
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
	want := strings.ToLower(q.Protocol)
	for name := range t.Protocols() {
		for protocol := range scheme.Matching(name) {
			if protocol == want {
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
			if slices.ContainsFunc(content, func(want string) bool { return textmatch.Like(want, word) }) {
				return true
			}
		}
	}
	return false
}

// A Field is the position of a text in a description.
type Field int

// The fields that are searched, by descending weight.
const (
	FieldTitle      Field = iota
	FieldCapability       // id and name
	FieldAction           // name and title
	FieldExample          // of a capability
	FieldDescription
	FieldDetail // descriptions of capabilities and actions
	Fields      // number of fields
)

// String returns the name of a field.
func (f Field) String() string {
	switch f {
	case FieldTitle:
		return "title"
	case FieldCapability:
		return "capability"
	case FieldAction:
		return "action"
	case FieldExample:
		return "example"
	case FieldDescription:
		return "description"
	case FieldDetail:
		return "detail"
	}
	return "text"
}

// A Text is a text of a description.
type Text struct {
	Field Field
	Text  string
}

// Texts yields the searched texts of t, in a stable order.
func (t *Thing) Texts() iter.Seq[Text] {
	return func(yield func(Text) bool) {
		yieldAll := func(f Field, texts ...string) bool {
			for _, text := range texts {
				if text != "" && !yield(Text{f, text}) {
					return false
				}
			}
			return true
		}
		if !yieldAll(FieldTitle, t.Title) || !yieldAll(FieldDescription, t.Description) {
			return
		}
		for _, c := range t.Capabilities {
			if !yieldAll(FieldCapability, c.ID, c.Name) || !yieldAll(FieldExample, c.Examples...) ||
				!yieldAll(FieldDetail, c.Description) {
				return
			}
		}
		for _, name := range sortedKeys(t.Actions) {
			if a := t.Actions[name]; !yieldAll(FieldAction, name, a.Title) || !yieldAll(FieldDetail, a.Description) {
				return
			}
		}
	}
}

// HasType reports whether the Thing has the @type typ, case-insensitively. "agent" and "tool" match all spellings of the LMOS types (see
// [ContextLMOS]).
func (t *Thing) HasType(typ string) bool {
	want := TypeKey(typ)
	return slices.ContainsFunc(t.Types, func(has string) bool { return TypeKey(has) == want })
}

// String formats q in the syntax of package querytext, without Limit, Counter and Except. It drops quotes in values, and writes each field
// of a Not as a separate exclusion.
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
	for _, not := range q.Not {
		if strings.Contains(not.Text, " ") {
			b.WriteString(` NOT "` + strings.ReplaceAll(not.Text, `"`, "") + `"`)
			not.Text = ""
		}
		for part := range not.parts() {
			b.WriteString(" NOT " + part)
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

// parts yields the fields and words of q, without those of Or and Not.
func (q *Query) parts() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, f := range [...]struct{ name, value string }{
			{"version", q.Version}, {"id", q.ID}, {"name", q.Name}, {"owner", string(q.Owner)}, {"organization", q.Organization},
			{"host", string(q.Host)}, {"protocol", q.Protocol}, {"action", q.Action}, {"property", q.Property}, {"event", q.Event},
			{"type", q.Type},
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
			if quoted := quoteWord(word); quoted != "" && !yield(quoted) {
				return
			}
		}
	}
}

// quoteValue returns the value of a field, quoted if it has spaces.
func quoteValue(value string) string {
	value = strings.ReplaceAll(value, `"`, "")
	if strings.ContainsFunc(value, unicode.IsSpace) {
		return `"` + value + `"`
	}
	return value
}

// quoteWord returns a word, quoted if it could be read as an operator or a field.
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
