package rules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/td"
)

// A Part is one property of a principal, and where the node got it from.
type Part struct{ Name, Value, From string }

// A Caller is a principal for which a decision is explained.
type Caller struct {
	Name      string // as it was given
	Principal *did.Principal
	Parts     []Part
}

// assumed is the node of a caller that is only assumed.
const assumed did.DID = "did:example:caller"

// Caller returns the principal of a caller as rules name it: the current principal of a node for its DID, otherwise the principal of any such
// caller. The error is Invalid for an unknown name.
func (s *Store) Caller(name string) (*Caller, error) {
	unknown := func() error {
		return access.NewBuilder(s.options()).CheckCaller(name)
	}
	who := &did.Principal{DID: assumed, Node: assumed, Via: did.Peer}
	organization, role, hasRole := strings.Cut(name, "/")
	switch {
	case name == "anyone", name == "untrusted":
		return described(name, who, "assumed: a node without a known organization"), nil
	case name == "local":
		return described(name, did.Consumer(did.Socket, ""), "assumed: a consumer of this node"), nil
	case name == "partners":
		who.Relation = did.Partner
		return described(name, who, "assumed: a member of a partner"), nil
	case strings.HasPrefix(name, "token:") && len(name) > len("token:"):
		return described(name, did.Consumer(did.Token, name[len("token:"):]), "assumed: a consumer of this node with the token"), nil
	case strings.HasPrefix(name, "oidc:"):
		if err := unknown(); err != nil {
			return nil, noCaller(err)
		}
		return described(name, did.Consumer(did.OIDC, name), "assumed: a subject of an identity provider, with a token without scopes"), nil
	case strings.HasPrefix(name, "group:"):
		if err := unknown(); err != nil {
			return nil, noCaller(err)
		}
		id, _ := s.o.Load().Group(strings.TrimPrefix(organization, "group:"))
		who.Groups = []did.Membership{{Group: id, Role: role}}
		return described(name, who, "assumed: a member of the group, without a known organization"), nil
	case strings.HasPrefix(name, "did:key:"):
		if err := unknown(); err != nil {
			return nil, noCaller(err)
		}
		return s.known(name), nil
	}
	if hasRole {
		who.Roles = []string{role}
	}
	self := s.options().Self
	switch {
	case hasRole && role == "":
		return nil, noCaller(fmt.Errorf("%q has an empty role", name))
	case strings.HasPrefix(name, "did:"):
		id, err := did.Parse(organization)
		if err != nil {
			return nil, noCaller(err)
		}
		who.Org = id
	case organization == "own" && !hasRole:
		who.Org = self
	default:
		if err := unknown(); err != nil {
			return nil, noCaller(err)
		}
		if who.Org = self; organization != "own" {
			who.Org, _ = s.o.Load().Organization(organization)
		}
	}
	if m := who.Org.Method(); m == "key" || m == "web" { // no organization
		who.Attested, who.Org, who.Roles = []did.Attestation{{Issuer: who.Org, Role: role}}, "", nil
		return described(name, who, "assumed: a node with a credential of a foreign issuer"), nil
	}
	switch {
	case organization == "own" || self != "" && who.Org == self:
		who.Relation = did.Own
	case s.isPartner(who.Org):
		who.Relation = did.Partner
	default:
		who.Org, who.Roles = "", nil
		return described(name, who, "assumed: a member of an organization that is not, or no longer, a partner: its credential does not count"), nil
	}
	return described(name, who, "assumed: a member of the organization"), nil
}

// isPartner reports whether an organization is a partner now. Without the names of the partners, each organization is assumed to be one.
func (s *Store) isPartner(id did.DID) bool {
	if s.o.Load().Names == nil {
		return true
	}
	return slices.ContainsFunc(s.o.Load().Names(), func(name string) bool {
		known, _ := s.o.Load().Organization(name)
		return known == id
	})
}

// known returns the caller with the DID of a node, and the name of a consumer behind it after "#".
func (s *Store) known(name string) *Caller {
	id, consumer, _ := strings.Cut(name, "#")
	who := s.Principal(did.DID(id))
	if consumer != "" {
		named := *who
		named.Name, who = consumer, &named
	}
	from := "no credential of a known organization"
	if who.Org != "" {
		from = "the credential that the node has shown"
	}
	return described(name, who, from)
}

// described returns a caller with the parts of its principal; from is where its relation is from.
func described(name string, who *did.Principal, from string) *Caller {
	c := &Caller{Name: name, Principal: who}
	add := func(name, value, from string) {
		if value != "" {
			c.Parts = append(c.Parts, Part{name, value, from})
		}
	}
	if who.Node != assumed {
		add("node", string(who.Node), "the key of its connection")
		add("name", who.Name, map[bool]string{true: "this node", false: "the statement of its node"}[who.Node == ""])
	}
	add("via", string(who.Via), "the listener")
	add("relation", who.Relation.String(), from)
	add("organization", string(who.Org), from)
	add("roles", strings.Join(who.Roles, ", "), from)
	for _, m := range who.Groups {
		add("group", strings.TrimSuffix(m.Group+", "+m.Role, ", "), "the log of the group")
	}
	for _, one := range who.Attested {
		add("attested", one.Role+" by "+string(one.Issuer), "a credential of a foreign issuer")
	}
	add("barred", who.Barred, "the standing of the node")
	return c
}

func noCaller(err error) error {
	return interact.Errorf(interact.Invalid, "name a caller as access rules do", "%v", err)
}

// Audience returns the smallest audience that has all callers of a publication. The error is of code Invalid, with the known names, for the
// first name that rules cannot name as a caller, and of code Forbidden for a partner that is not confirmed.
func (s *Store) Audience(names []string) (td.Visibility, error) {
	b, widest := access.NewBuilder(s.options()), td.Private
	for _, name := range names {
		v, organization, err := b.Audience(name)
		if err != nil {
			return 0, noCaller(err)
		}
		if organization != "" && s.o.Load().Unconfirmed != nil {
			if partner := s.o.Load().Unconfirmed(organization); partner != "" {
				return 0, interact.Errorf(interact.Forbidden, "compare its six words with its operator, then confirm it",
					"the partner %s is unconfirmed", partner).Then(interact.StepConfirm, partner)
			}
		}
		widest = min(widest, v)
	}
	return widest, nil
}

// A File is a file of access rules that is not in force: the ending .cedar means policies in Cedar.
type File struct {
	Name string
	Text []byte
}

// An Explanation is a decision with its reasons, for the operator of the node.
type Explanation struct {
	access.Decision
	Rule access.Entry // that decided; zero: none
}

// Explain decides a request by the rules in force, or with a file in place of the one of the same kind. The error is PolicyInvalid for a
// file that does not compile.
func (s *Store) Explain(who *did.Principal, r access.Request, with *File) (Explanation, error) {
	set := s.access.Load()
	if with != nil {
		var err error
		if set, err = s.with(*with); err != nil {
			return Explanation{}, err
		}
	}
	r.Now = now(r)
	d := set.Decide(who, r)
	rule, _ := set.Entry(d.Rule)
	return Explanation{d, rule}, nil
}

// with compiles the rules in force with a file in place of the one of the same kind.
func (s *Store) with(f File) (*access.Set, error) {
	s.files.mu.Lock()
	defer s.files.mu.Unlock()
	texts, i := s.files.texts, 0
	if strings.HasSuffix(f.Name, ".cedar") {
		i = 1
	}
	texts[i] = f.Text
	set, err := compile(s.o.Load(), texts)
	if err != nil {
		return nil, invalid(err)
	}
	return set, nil
}

// A Right is the decision about one operation of a caller.
type Right struct {
	Who        string
	Thing      string // its name, or "node"
	Affordance string // empty: all of the operation
	access.Decision
}

// Kinds are the kinds of callers.
var Kinds = []string{"local", "own", "partners", "anyone"}

// Named returns the callers that the rules name.
func (s *Store) Named() []string { return s.access.Load().Names() }

// WithRoles returns the name of a caller, and those of its roles that the rules name.
func (s *Store) WithRoles(name string) []string {
	all := []string{name}
	for _, one := range s.Named() {
		if strings.HasPrefix(one, name+"/") {
			all = append(all, one)
		}
	}
	return all
}

// NodeRights returns the decisions about the operations of the node itself.
func (s *Store) NodeRights(c *Caller) (all []Right) {
	for _, op := range []access.Op{access.Connect, access.Store, access.Relay} {
		all = append(all, Right{c.Name, access.NameOf(nil), "", s.Decide(c.Principal, access.Request{Op: op})})
	}
	return all
}

// ThingRights returns the decisions about the operations of a Thing: one for each operation, or one for each affordance of it if they
// differ. Operations without an affordance are left out.
func (s *Store) ThingRights(c *Caller, t *td.Thing, target *access.Target) []Right {
	right := func(op access.Op, affordance string) Right {
		return Right{c.Name, access.NameOf(target), affordance, s.Decide(c.Principal, access.Request{Op: op, Target: target, Affordance: affordance})}
	}
	all := []Right{right(access.Find, "")}
	known := access.Affordances(t)
	known[access.Write] = slices.DeleteFunc(slices.Clone(known[access.Write]), func(name string) bool { return t.Properties[name].ReadOnly })
	for _, op := range []access.Op{access.Read, access.Write, access.Invoke, access.Subscribe} {
		var rights []Right
		for _, name := range known[op] {
			rights = append(rights, right(op, name))
		}
		equal := func(r Right) bool { return r.Decision == rights[0].Decision }
		if len(rights) > 0 && !slices.ContainsFunc(rights, func(r Right) bool { return !equal(r) }) {
			rights = rights[:1]
			rights[0].Affordance = ""
		}
		all = append(all, rights...)
	}
	return all
}
