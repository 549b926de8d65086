// Package access decides which caller may do what: it compiles rules to Cedar policies, and evaluates those that concern a request.
//
// Without a rule for a request the relation of the caller decides (see [Set.Decide]). A rule that denies wins over all rules that allow.
// Sources: Cedar policy language; docs/decisions/0037-access-rules.md.
package access

import (
	"fmt"
	"slices"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// An Op is an operation that a caller may be allowed.
type Op string

// The operations. The first three concern the node, the others one of its Things.
const (
	Connect   Op = "connect"   // open streams
	Store     Op = "store"     // store records in the DHT
	Relay     Op = "relay"     // be reached through this node
	Find      Op = "find"      // receive the description
	Read      Op = "read"      // read and observe properties
	Write     Op = "write"     // write properties
	Invoke    Op = "invoke"    // invoke, query, cancel and continue actions
	Subscribe Op = "subscribe" // subscribe to events
	Delegate  Op = "delegate"  // delegate a right to another caller
	Manage    Op = "manage"    // change the node or its Things
)

// Call is the name of read, write, invoke and subscribe together in rules.
const Call Op = "call"

var (
	calls = []Op{Read, Write, Invoke, Subscribe}
	ops   = []Op{Connect, Store, Relay, Find, Read, Write, Invoke, Subscribe, Delegate, Manage}
)

// A Target is what a request concerns: a Thing of this node, or the node itself, which is the zero value.
type Target struct {
	ID           string
	Names        []string // by which rules name the Thing
	Capabilities []string // with those above them: "urn:example", "urn:example:catalogue"
	Visibility   td.Visibility
}

// A Request is an operation that a caller wants to perform.
type Request struct {
	Op         Op
	Target     *Target // nil: the node
	Affordance string  // name of the property, action or event; empty: none in particular
	Hops       int     // nodes that the message has passed
	Now        time.Time
	// Input is read only if a rule mentions it. Nil: there is none.
	Input Input
}

// An Input is the input of a request.
type Input interface {
	// Value returns the input as decoded JSON.
	Value() (any, error)
}

// An InputFunc is an [Input].
type InputFunc func() (any, error)

// Value calls f.
func (f InputFunc) Value() (any, error) { return f() }

// A Decision is the answer to a request.
type Decision struct {
	Allow    bool
	Rule     string // "policy.yaml:12", or "" if none concerns the request
	Op       Op
	Relation did.Relation
	// Problem is a reason other than the relation of the caller: a rule that may deny the request could not be evaluated, for example.
	Problem string
	// Conditional reports that a rule with a condition concerns the request: another input or another time may change the decision.
	Conditional bool
}

// Why returns the reason for a person, without the text of a rule: "no rule lets partner callers invoke".
func (d Decision) Why() string {
	switch {
	case d.Problem != "":
		return d.Problem
	case d.Rule != "" && d.Allow:
		return fmt.Sprintf("a rule lets the caller %s", d.Op)
	case d.Rule != "":
		return fmt.Sprintf("a rule denies %s to the caller", d.Op)
	case d.Allow:
		return fmt.Sprintf("%s callers may %s", d.Relation, d.Op)
	}
	return fmt.Sprintf("no rule lets %s callers %s", d.Relation, d.Op)
}

// The rights of untrusted callers.
const (
	UntrustedOpen = "open" // they find public Things and call them
	UntrustedFind = "find" // they find public Things
	UntrustedNone = "none" // they may not connect
)

// The rights of members whose organization has no current status list, or is not confirmed.
const (
	StaleDeny = "deny" // those of untrusted callers
	StaleRead = "read" // also to connect, to find and to read properties as members
)

// The nodes that may connect.
const (
	ConnectAnyone   = "anyone"
	ConnectPartners = "partners" // members of the organization and of its partners
	ConnectMembers  = "members"  // members of the organization
)

// Decide decides a request. Without a rule that concerns it:
//
//   - consumers of this node may do all that the listener permits, except callers with a token: only rules permit them something
//     (its scopes are such rules), of those that allow all local callers none,
//   - members of the organization may connect, store, relay, find and call, except private Things and those for named callers,
//   - partners may connect, store, relay, find public Things, and what untrusted callers may do,
//   - untrusted callers may do what Options.Untrusted and Options.Relay state. Pending ones are untrusted, but for Options.Stale.
//
// A caller without a principal, or a barred one, may do nothing. A rule for all Things or for a capability does not extend the audience of
// a Thing for the organization or for this node: such a Thing must be named. Decide is safe for concurrent use.
func (s *Set) Decide(p *did.Principal, r Request) Decision {
	if p == nil {
		return Decision{Op: r.Op, Problem: "the request has no caller"}
	}
	if p.Barred != "" {
		return Decision{Op: r.Op, Relation: p.Relation, Problem: p.Barred}
	}
	p = s.counted(p, r.Op)
	byRules, decided := s.byRules(p, r)
	if decided {
		return byRules
	}
	d := s.byRelation(p, r)
	d.Conditional = byRules.Conditional
	return d
}

// byRelation decides a request that no rule concerns.
func (s *Set) byRelation(p *did.Principal, r Request) Decision {
	visibility := td.Public
	if r.Target != nil {
		visibility = r.Target.Visibility
	}
	var allow bool
	switch p.Relation {
	case did.Local:
		if p.Scoped() {
			return Decision{Op: r.Op, Relation: p.Relation, Problem: fmt.Sprintf("no scope of the token permits %s", r.Op)}
		}
		return Decision{Allow: true, Op: r.Op, Relation: p.Relation}
	case did.Own:
		allow = r.Op != Manage && r.Op != Delegate && visibility <= td.Organization
	default:
		switch {
		case s.untrusted == UntrustedOpen:
			allow = r.Op != Manage && r.Op != Delegate && visibility == td.Public
		case s.untrusted == UntrustedFind || p.Relation == did.Partner:
			allow = r.Op == Connect || r.Op == Store || r.Op == Find && visibility == td.Public ||
				r.Op == Relay && (s.relay || p.Relation == did.Partner)
		}
	}
	if p.Relation < s.connect && (r.Op == Connect || r.Op == Store || r.Op == Relay) {
		allow = false
	}
	return Decision{Allow: allow, Op: r.Op, Relation: p.Relation}
}

// Options of a [Set].
type Options struct {
	// Self is the organization of this node; empty: none.
	Self did.DID
	// Organization returns the organization that rules call name. It also knows names of former partners.
	Organization func(name string) (did.DID, bool)
	// Group returns the id of the group that rules call name. It also knows the names of former groups. Nil knows none.
	Group func(name string) (string, bool)
	// Names returns the names of the partners, for errors. Nil: they are unknown.
	Names func() []string
	// Untrusted is UntrustedOpen, UntrustedFind or UntrustedNone.
	Untrusted string
	// Relay lets untrusted nodes that may find be reached through this node. Those that may call may always.
	Relay bool
	// Connect has the nodes that may connect and store records: ConnectAnyone, ConnectPartners or ConnectMembers; empty: all.
	Connect string
	// Stale is StaleDeny or StaleRead; empty: StaleDeny.
	Stale string
}

// unnamed are targets of which only the visibility is known.
var unnamed = [td.Private + 1]Target{{}, {Visibility: td.Partners}, {Visibility: td.Organization}, {Visibility: td.Named}, {Visibility: td.Private}}

// Finds decides whether a caller may find a Thing. The target is made only if some rule on find may depend on it.
func (s *Set) Finds(p *did.Principal, now time.Time, v td.Visibility, target func() *Target) bool {
	t := &unnamed[v]
	if s.findsByTarget {
		t = target()
	}
	return s.Decide(p, Request{Op: Find, Target: t, Now: now}).Allow
}

// Scope returns what a caller may find. Things that rules on find name are exceptions; the decision for an unnamed Thing holds for the others.
func (s *Set) Scope(p *did.Principal, now time.Time) (scope td.Scope) {
	if p == nil || p.Barred != "" {
		return scope
	}
	p = s.counted(p, Find)
	var broad, each bool
	if len(s.finds) > 0 {
		var room [16]entity
		for _, caller := range s.callers(room[:0], p) {
			if !s.principals.has(caller.typ) {
				continue
			}
			found := s.finds[caller]
			broad, each = broad || found.broad, each || found.each
			scope.Allow, scope.Deny = join(scope.Allow, found.allow), join(scope.Deny, found.deny)
		}
	}
	for v := range scope.All {
		r := Request{Op: Find, Target: &unnamed[v], Now: now}
		if broad {
			d := s.Decide(p, r)
			scope.All[v], scope.Each[v] = d.Allow, d.Conditional
		} else {
			scope.All[v] = s.byRelation(p, r).Allow
		}
		scope.Each[v] = scope.Each[v] || each
	}
	return scope
}

// join appends b to a. It does not copy b if a is empty, and never changes either.
func join[T any](a, b []T) []T {
	if len(a) == 0 {
		return slices.Clip(b)
	}
	return append(a, b...)
}

// counted returns the principal by which an operation is decided: the unconfirmed membership of p, if that suffices. A node finds what its agents may find.
func (s *Set) counted(p *did.Principal, op Op) *did.Principal {
	if s.staleRead && p.Unconfirmed != nil && (op == Connect || op == Find || op == Read) {
		p = p.Unconfirmed
	}
	if op == Find && len(p.Agents) > 0 {
		c := *p
		c.Groups, c.Agents = slices.Clone(p.Groups), nil
		for _, m := range p.Agents {
			c.Groups = append(c.Groups, m.Membership)
		}
		return &c
	}
	return p
}

// finds are the rules of one caller that concern the operation find.
type finds struct {
	allow, deny []td.Query // for the Things of those that concern single ones
	broad       bool       // some concern all Things, or all of a visibility
	each        bool       // the index of a directory may lack Things that one denies: each must be asked for
}

// add adds a policy.
func (f *finds) add(p *policy) {
	var q td.Query
	switch p.resource.typ {
	case thingType:
		q.ID = p.resource.id
	case nameType:
		q.Name = p.resource.id
	case capabilityType:
		q.Capability = []string{p.resource.id}
		f.each = f.each || p.effect == forbid // the record of a Thing has not all of its capabilities
	default:
		f.broad = true
		return
	}
	if p.effect == forbid {
		f.deny = append(f.deny, q)
	} else {
		f.allow = append(f.allow, q)
	}
}

// includes reports whether a caller belongs to an audience.
func includes(v td.Visibility, p *did.Principal) bool {
	switch v {
	case td.Public, td.Partners:
		return true
	case td.Organization:
		return p.Relation >= did.Own
	}
	return p.Relation == did.Local
}

func isOp(o Op) bool { return slices.Contains(ops, o) }
