package access

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/yamltext"
)

// MaxFile limits a file of rules, in bytes.
const MaxFile = yamltext.MaxFile

const apiVersion = "lmosd/v1"

// A Rule is one line of a file of rules, in its short form.
type Rule struct {
	// Allow or Deny are the callers: "anyone", "own", "partners", "local", NAME of an organization, NAME/ROLE, own/ROLE, local/ROLE of access
	// tokens, "token:NAME", a DID. A rule that allows "local" does not concern callers with an access token.
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
	doc, err := yamltext.Parse(text)
	if err != nil {
		return yamlError(file, err)
	}
	added := &Builder{o: b.o}
	for _, d := range doc.Docs {
		if d.Body == nil {
			continue
		}
		if err := added.addDocument(file, d.Body); err != nil {
			return err
		}
	}
	b.policies = append(b.policies, added.policies...)
	return nil
}

func (b *Builder) addDocument(file string, body ast.Node) error {
	var head struct {
		APIVersion string     `yaml:"apiVersion"`
		Rules      []ast.Node `yaml:"rules"`
	}
	if err := yamltext.Decode(body, &head); err != nil {
		return yamlError(file, err)
	}
	if head.APIVersion != apiVersion {
		return &Error{File: file, Line: 1, Msg: fmt.Sprintf("expected apiVersion: %s, got %q", apiVersion, head.APIVersion)}
	}
	for _, n := range head.Rules {
		if n == nil {
			return &Error{File: file, Msg: "a rule is empty"}
		}
		at := n.GetToken().Position
		if m, ok := n.(*ast.MappingNode); ok && len(m.Values) > 0 {
			at = m.Values[0].Key.GetToken().Position
		}
		var r Rule
		if err := yamltext.Decode(n, &r); err != nil {
			return yamlError(file, err)
		}
		if err := b.AddRule(fmt.Sprintf("%s:%d", file, at.Line), r); err != nil {
			return &Error{File: file, Line: at.Line, Column: at.Column, Msg: err.Error()}
		}
	}
	return nil
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
		switch o := Op(to); {
		case to == "*":
			operations = append(operations, ops...)
		case o == Call:
			operations = append(operations, calls...)
		case isOp(o):
			operations = append(operations, o)
		default:
			return fmt.Errorf("unknown operation %q; expected some of %s", to, opNames())
		}
	}
	slices.Sort(operations)
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

func opNames() string {
	var names []string
	for _, o := range append([]Op{Call}, ops...) {
		names = append(names, string(o))
	}
	return strings.Join(names, ", ") + ` or "*"`
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
		return entity{}, fmt.Errorf("unknown caller %q: expected anyone, own, partners, local, untrusted, the name of a partner, NAME/ROLE, own/ROLE, local/ROLE, token:NAME or a DID", name)
	case hasRole && role == "":
		return entity{}, fmt.Errorf("%q has an empty role", name)
	case hasRole:
		return entity{roleType, organizationID(id), role}, nil
	}
	return entity{typ: organizationType, id: organizationID(id)}, nil
}
