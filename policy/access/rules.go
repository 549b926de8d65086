package access

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/yamltext"
)

// MaxFile limits a file of rules, in bytes.
const MaxFile = yamltext.MaxFile

const apiVersion = "lmosd/v1"

// A Rule is one line of a file of rules, in its short form.
type Rule struct {
	// Allow or Deny are the callers: "anyone", "own", "partners", "local", NAME of an organization, NAME/ROLE, own/ROLE, local/ROLE of access
	// tokens, "token:NAME", "oidc:PROVIDER:SUBJECT" of an identity provider, "scope:SCOPE" (a right that the configuration gives to its tokens),
	// "group:NAME", "group:NAME/ROLE", a DID. A rule that allows "local" does not concern callers with a token.
	Allow list `yaml:"allow,omitempty"`
	Deny  list `yaml:"deny,omitempty"`
	// To are operations; "call" and "*" are several.
	To list `yaml:"to"`
	// On are Things: "*", a name or an id, NAME/AFFORDANCE, in which "*" matches any text, "cap:ID" for a capability and those below it, or
	// "node". Empty: "*".
	On list `yaml:"on,omitempty"`
	// When is a condition in Cedar on the context: affordance, via, hops, time, input.
	When string `yaml:"when,omitempty"`
}

// A list is one text or several.
type list []string

// UnmarshalYAML reads a text or an array of texts.
func (l *list) UnmarshalYAML(unmarshal func(any) error) error {
	var one string
	if unmarshal(&one) == nil {
		*l = list{one}
		return nil
	}
	return unmarshal((*[]string)(l))
}

// An Error is the reason why rules were refused, with its place.
type Error struct {
	File         string
	Line, Column int // from 1; 0: unknown
	Msg          string
}

// Error returns "policy.yaml:12:3: reason".
func (e *Error) Error() string {
	switch {
	case e.Line == 0:
		return e.File + ": " + e.Msg
	case e.Column == 0:
		return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Msg)
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Msg)
}

// AddYAML adds the rules of a file in the short form. The error is an [*Error]; the set is then unchanged.
func (b *Builder) AddYAML(file string, text []byte) error {
	all, err := parseRules(file, text)
	if err != nil {
		return err
	}
	added := &Builder{o: b.o}
	for _, d := range all {
		for _, i := range d.items {
			if err := added.AddRule(fmt.Sprintf("%s:%d", file, i.at.Line), i.rule); err != nil {
				return &Error{File: file, Line: i.at.Line, Column: i.at.Column, Msg: err.Error()}
			}
		}
	}
	b.addAll(added)
	return nil
}

// addAll adds what another builder has.
func (b *Builder) addAll(added *Builder) {
	b.policies, b.entries = append(b.policies, added.policies...), append(b.entries, added.entries...)
}

// yamlError returns the place and the first line of an error of the parser.
func yamlError(file string, err error) error {
	message, line, column := yamltext.Position(err)
	return &Error{file, line, column, message}
}

// AddRule adds one rule, which [Decision.Rule] calls id.
func (b *Builder) AddRule(id string, r Rule) error {
	who, effect := r.Allow, permit
	if len(r.Deny) > 0 {
		who, effect = r.Deny, forbid
	}
	switch {
	case len(r.Allow) > 0 && len(r.Deny) > 0:
		return fmt.Errorf("a rule has allow or deny, not both")
	case len(who) == 0:
		return fmt.Errorf("a rule needs allow or deny: a caller, or several")
	case len(r.To) == 0:
		return fmt.Errorf("a rule needs to: an operation, or several of %s", opNames())
	}
	var operations []Op
	for _, to := range r.To {
		some, ok := CallsOf(to)
		if !ok {
			return unknownOp(to)
		}
		operations = append(operations, some...)
	}
	slices.Sort(operations)
	b.entries = append(b.entries, Entry{id, r.Text(), r, who})
	if len(r.On) == 0 {
		r.On = list{"*"}
	}
	for _, w := range who {
		caller, err := b.caller(w)
		if err != nil {
			return err
		}
		for _, on := range r.On {
			if err := b.add(id, effect, caller, slices.Compact(operations), on, r.When); err != nil {
				return err
			}
		}
	}
	return nil
}

func unknownOp(to string) error {
	return fmt.Errorf("unknown operation %q; expected some of %s", to, opNames())
}

func opNames() string {
	return strings.Join(append([]string{string(Call)}, OpNames()...), ", ") + ` or "*"`
}

// caller returns the entity of a caller in a rule.
func (b *Builder) caller(name string) (entity, error) {
	organization, role, hasRole := strings.Cut(name, "/")
	switch {
	case name == "anyone":
		return entity{}, nil
	case name == "own", name == "partners", name == "local", name == "untrusted":
		return entity{typ: relationType, id: strings.TrimSuffix(name, "s")}, nil
	case strings.HasPrefix(name, "token:") && len(name) > len("token:"):
		return entity{typ: tokenType, id: name[len("token:"):]}, nil
	case strings.HasPrefix(name, "group:"):
		return b.group(name[len("group:"):])
	case isSubject(name):
		return entity{typ: tokenType, id: name}, nil
	case strings.HasPrefix(name, "scope:") && len(name) > len("scope:"):
		return entity{typ: scopeType, id: name[len("scope:"):]}, nil
	case strings.HasPrefix(name, "did:key:"):
		id, consumer, _ := strings.Cut(name, "#")
		if _, err := did.Parse(id); err != nil {
			return entity{}, err
		}
		if consumer != "" {
			return entity{typ: agentType, id: name}, nil
		}
		return entity{typ: nodeType, id: id}, nil
	case strings.HasPrefix(name, "did:"):
		id, err := did.Parse(name)
		return entity{typ: organizationType, id: organizationID(id)}, err
	}
	id, ok := b.o.Self, b.o.Self != ""
	switch {
	case organization == "local" && role != "":
		return entity{roleType, localRoles, role}, nil
	case organization != "own":
		id, ok = did.DID(""), false
		if b.o.Organization != nil {
			id, ok = b.o.Organization(organization)
		}
	}
	switch {
	case !ok && organization == "own":
		return entity{}, fmt.Errorf("%q: this node has no organization", name)
	case !ok:
		return entity{}, fmt.Errorf("unknown caller %q: expected anyone, own, partners, local, untrusted, the name of a partner%s, NAME/ROLE, own/ROLE, local/ROLE, token:NAME, oidc:PROVIDER:SUBJECT, group:NAME or a DID", name, b.knownNames())
	case hasRole && role == "":
		return entity{}, fmt.Errorf("%q has an empty role", name)
	case hasRole:
		return entity{roleType, organizationID(id), role}, nil
	}
	return entity{typ: organizationType, id: organizationID(id)}, nil
}

// group returns the entity of a group, or of a role in it.
func (b *Builder) group(name string) (entity, error) {
	name, role, hasRole := strings.Cut(name, "/")
	id, ok := "", false
	if b.o.Group != nil {
		id, ok = b.o.Group(name)
	}
	switch {
	case !ok:
		return entity{}, fmt.Errorf("unknown group %q: this node is and was in no group of that name", name)
	case hasRole && role == "":
		return entity{}, fmt.Errorf("group:%s/ has an empty role", name)
	}
	return entity{groupType, id, role}, nil
}

// isSubject reports whether a caller in a rule is a subject of an identity provider, "oidc:PROVIDER:SUBJECT", which is its did.Principal.Name.
func isSubject(name string) bool {
	rest, ok := strings.CutPrefix(name, "oidc:")
	provider, subject, _ := strings.Cut(rest, ":")
	return ok && provider != "" && subject != ""
}

// knownNames returns the names of organizations in parentheses, or "" if they are unknown.
func (b *Builder) knownNames() string {
	if b.o.Names == nil {
		return ""
	}
	all := slices.Sorted(slices.Values(b.o.Names()))
	if len(all) == 0 {
		return " (there is none)"
	}
	return " (" + strings.Join(all, ", ") + ")"
}
