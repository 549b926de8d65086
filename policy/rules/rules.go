// Package rules keeps the access rules of a node in force: it reads their files, changes them, and explains their decisions.
package rules

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/policy/access"
)

// Options of a [Store]. With the zero value untrusted callers find the public agents and call none, and the nodes of the own organization may
// call.
type Options struct {
	// Untrusted has the rights of untrusted callers without a rule: access.UntrustedOpen, UntrustedFind or UntrustedNone; empty means
	// UntrustedFind. Connect has the nodes that may connect: access.ConnectAnyone, ConnectPartners or ConnectMembers; empty means all.
	Untrusted, Connect string
	// Relay lets untrusted nodes be reached through this node.
	Relay bool
	// Stale has the rights of members that are not confirmed, access.StaleDeny or StaleRead; empty means StaleDeny.
	Stale string
	// File is the path of the access rules, "policy.yaml", and of the policies in Cedar beside it, "policy.cedar". Missing files have no
	// rules. Empty: no rules.
	File string
	// More are sources of access rules besides File, which Load reads again.
	More []func(*access.Builder) error
	// Principal returns the current principal of a node, never nil. It must not block. Nil: all nodes are untrusted.
	Principal func(node did.DID) *did.Principal
	// Organization returns the organization of a name in rules, and that of this node for "own". Nil knows none.
	Organization func(name string) (did.DID, bool)
	// Group returns the id of the group of a name in rules. Nil knows none.
	Group func(name string) (string, bool)
	// Unconfirmed returns the name of the partner with an id in access rules, of any for access.AnyPartner, if it is not confirmed; otherwise
	// "". Nil: all are confirmed.
	Unconfirmed func(organization string) string
	// Names returns the names of the partners, without former ones. Nil: they are unknown.
	Names func() []string
	// OnLoad is called after other access rules have come into force, with the changes for a person. It must be fast and not block; nil is
	// ignored.
	OnLoad func(changes string)
}

// A Store has the access rules in force. It is safe for concurrent use.
type Store struct {
	o      atomic.Pointer[Options] // replaced while files.mu is held
	access atomic.Pointer[access.Set]
	files  files
}

// New returns a store without the rules of Options.File and More, which [Store.Load] reads.
func New(o Options) *Store {
	o.Untrusted = cmp.Or(o.Untrusted, access.UntrustedFind)
	s := &Store{}
	s.o.Store(&o)
	s.access.Store(access.NewBuilder(s.options()).Build())
	return s
}

// Set returns the rules in force.
func (s *Store) Set() *access.Set { return s.access.Load() }

// Change puts Untrusted, Connect, Relay, Stale and File of o in force, with the rules in the file. The error is that of [Store.Load]; nothing has
// changed then. preview, if not nil, is called with true before the rules of Options.More are compiled, so that they are those of another
// configuration, too, and with false if nothing changes.
func (s *Store) Change(o Options, preview func(on bool)) error {
	s.files.mu.Lock()
	defer s.files.mu.Unlock()
	next := *s.o.Load()
	next.Untrusted, next.Connect, next.Relay, next.Stale, next.File = cmp.Or(o.Untrusted, access.UntrustedFind), o.Connect, o.Relay, o.Stale, o.File
	state := s.files.fileState
	if preview != nil {
		preview(true)
	}
	set, texts, err := s.prepareLocked(&next)
	if err != nil {
		s.files.fileState = state
		if preview != nil {
			preview(false)
		}
		return err
	}
	s.o.Store(&next)
	s.files.err = nil
	s.putLocked(set, texts)
	return nil
}

// Decide decides a request of a caller by the rules in force.
func (s *Store) Decide(who *did.Principal, r access.Request) access.Decision {
	r.Now = now(r)
	return s.Set().Decide(who, r)
}

// now returns the time of a request, which is the current one unless it has another.
func now(r access.Request) time.Time {
	if r.Now.IsZero() {
		return time.Now()
	}
	return r.Now
}

// Principal returns the current principal of a node, which is untrusted if nothing else is known.
func (s *Store) Principal(node did.DID) *did.Principal {
	if s.o.Load().Principal != nil {
		return s.o.Load().Principal(node)
	}
	return did.NodePrincipal(node, "")
}
