package access

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// An Entry is a rule of a set, for lists. A policy in Cedar has only ID, Text and Names.
type Entry struct {
	ID   string // as in [Decision.Rule]
	Text string // its source
	Rule Rule   // zero: a policy in Cedar
	// Names are the callers that the rule names, in the form of [Rule]. A role is ORGANIZATION/ROLE.
	Names []string
}

// Entries returns the rules in the order in which they were added. The caller must not change them.
func (s *Set) Entries() []Entry { return s.entries }

// Same reports whether the rules and the settings of both sets are the same: names of organizations stand for the same ones, too.
func (s *Set) Same(other *Set) bool { return s.sum == other.sum }

// Entry returns the rule with an id.
func (s *Set) Entry(id string) (Entry, bool) {
	i := slices.IndexFunc(s.entries, func(e Entry) bool { return e.ID == id })
	if i < 0 {
		return Entry{}, false
	}
	return s.entries[i], true
}

// Names returns the callers that the rules name, sorted, each once.
func (s *Set) Names() []string {
	var all []string
	for _, e := range s.entries {
		all = append(all, e.Names...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// CallsOf returns the operations that a name in [Rule.To] stands for. It reports false for an unknown name.
func CallsOf(to string) ([]Op, bool) {
	switch o := Op(to); {
	case to == "*":
		return ops, true
	case o == Call:
		return calls, true
	case isOp(o):
		return []Op{o}, true
	}
	return nil, false
}

// OpNames returns the names of the operations.
func OpNames() []string {
	names := make([]string, len(ops))
	for i, o := range ops {
		names[i] = string(o)
	}
	return names
}

// OfNode reports whether an operation concerns the node and not one of its Things.
func (o Op) OfNode() bool { return o == Connect || o == Store || o == Manage }

// CheckCaller returns the error of a rule with a caller that has no meaning in this set, or nil.
func (b *Builder) CheckCaller(name string) error {
	_, err := b.caller(name)
	return err
}

// Audience returns the smallest audience that has a caller of a rule, and the id of its organization if it is another one; "partners" has
// [AnyPartner]. A node that is named by its key may be untrusted: only public descriptions reach it. The error is that of CheckCaller.
func (b *Builder) Audience(name string) (v td.Visibility, organization string, err error) {
	e, err := b.caller(name)
	switch {
	case err != nil, e == entity{}, e.typ == nodeType, e.typ == agentType, e.typ == relationType && e.id == did.Untrusted.String():
		return td.Public, "", err
	case e.typ == tokenType, e.typ == relationType && e.id == did.Local.String(), e.typ == roleType && e.id == localRoles:
		return td.Private, "", nil
	case e.typ == relationType && e.id == did.Partner.String():
		return td.Partners, AnyPartner, nil
	case e.typ == relationType, b.o.Self != "" && e.id == organizationID(b.o.Self):
		return td.Organization, "", nil
	case e.typ == groupType:
		return td.Named, "", nil
	}
	return td.Partners, e.id, nil
}

// AnyPartner stands for the ids of all partners.
const AnyPartner = "*"

// Text returns a rule in the short form, as one line of YAML.
func (r Rule) Text() string {
	var parts []string
	add := func(name string, l list) {
		if len(l) > 0 {
			parts = append(parts, name+": "+l.text())
		}
	}
	add("allow", r.Allow)
	add("deny", r.Deny)
	add("to", r.To)
	add("on", r.On)
	if r.When != "" {
		add("when", list{r.When})
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// text returns one text, or several in brackets.
func (l list) text() string {
	all := make([]string, len(l))
	for i, s := range l {
		all[i] = scalar(s)
	}
	if len(all) == 1 {
		return all[0]
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// reserved are words that YAML does not read as text.
var reserved = []string{"", "null", "true", "false", "yes", "no", "on", "off", "y", "n"}

// scalar returns a text as a scalar of YAML inside of brackets. A quoted one has the form of JSON, which is part of YAML.
func scalar(s string) string {
	plain := !slices.Contains(reserved, strings.ToLower(s)) && strings.IndexFunc(s, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '/' || r == '_' || r == '-' || r == '.')
	}) < 0 && ('a' <= s[0] && s[0] <= 'z' || 'A' <= s[0] && s[0] <= 'Z')
	if plain {
		return s
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string always encodes
	return strings.TrimSuffix(b.String(), "\n")
}

// name returns the name of a caller in the scope of a policy, or "" if it names no caller.
func (e entity) name() string {
	switch e.typ {
	case agentType, nodeType:
		return e.id
	case tokenType:
		if isSubject(e.id) {
			return e.id
		}
		return "token:" + e.id
	case groupType:
		if e.role != "" {
			return "group:" + e.id + "/" + e.role
		}
		return "group:" + e.id
	case scopeType:
		return "scope:" + e.id
	case relationType:
		if e.id == did.Partner.String() {
			return "partners"
		}
		return e.id
	case organizationType, roleType:
		id := e.id
		if !strings.HasPrefix(id, "did:") {
			id = "did:webvh:" + id
		}
		if e.role != "" {
			id += "/" + e.role
		}
		return id
	}
	return ""
}
