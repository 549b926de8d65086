package authority

import (
	"maps"
	"time"

	"github.com/lmosd/lmosd/did"
)

// A witness is a node that confirmed the state of an organization.
type witness struct {
	at     time.Time // of the confirmation
	method string    // the issuing key that it holds; empty: a member of the own organization that knows the state
}

// Witness adds a node that confirmed the state. method is the issuing key that it holds, or empty for a member that knows the state.
func (a *Authority) Witness(node did.DID, method string, now time.Time) {
	if w, ok := a.evidence[node]; !ok || w.method != method || !w.at.After(a.soloMax()) || now.Before(w.at) {
		a.Touch()
	}
	a.evidence[node] = witness{now, method}
	a.seen[node] = now
}

// IsWitness reports whether a node is evidence for some subject.
func (a *Authority) IsWitness(node did.DID) bool { _, ok := a.evidence[node]; return ok }

// soloMax returns the latest time at which a node was the only one that could report a revocation.
func (a *Authority) soloMax() (last time.Time) {
	for _, at := range a.solo {
		if at.After(last) {
			last = at
		}
	}
	return last
}

// IsGood reports whether a node is evidence for all subjects but itself.
func (a *Authority) IsGood(node did.DID) bool {
	w, ok := a.evidence[node]
	return ok && w.at.After(a.soloMax())
}

// Good counts the evidence for all subjects.
func (a *Authority) Good() (n int) {
	for node := range a.evidence {
		if a.IsGood(node) {
			n++
		}
	}
	return n
}

// HasWitness reports whether a node other than subject is evidence.
func (a *Authority) HasWitness(subject did.DID) bool {
	for node := range a.evidence {
		if node != subject {
			return true
		}
	}
	return false
}

// HasIssuerWitness reports whether a node with an issuing key is evidence.
func (a *Authority) HasIssuerWitness() bool {
	for _, w := range a.evidence {
		if w.method != "" {
			return true
		}
	}
	return false
}

// HasOtherIssuer reports whether there is an issuing key other than own that counts.
func (a *Authority) HasOtherIssuer(own string, now time.Time) bool {
	n, _ := a.otherIssuers(own, now)
	return n > 0
}

// confirmed reports whether a node other than subject confirmed the state. If no other issuing key exists than that of subject and of this
// node, there is no node that could have revoked it.
func (a *Authority) confirmed(subject did.DID, own string, settled bool, now time.Time) bool {
	if own != "" && settled {
		return true
	}
	count, only := a.otherIssuers(own, now)
	if count == 0 {
		return own != ""
	}
	for node, w := range a.evidence {
		if node != subject && w.at.After(a.solo[subject]) || count == 1 && only == w.method {
			return true
		}
	}
	return false
}

// Contact records which nodes that could report a revocation are connected now. Evidence ends when none was for [AloneFor].
func (a *Authority) Contact(connected []did.DID, now time.Time) {
	if gap := now.Sub(a.last).Abs(); !a.last.IsZero() && gap > AloneFor { // the machine slept, or its clock was set
		clear(a.seen)
		a.forget()
		connected = nil
	}
	a.last = now
	for _, node := range connected {
		a.seen[node] = now
	}
	maps.DeleteFunc(a.seen, func(_ did.DID, at time.Time) bool { return now.Sub(at).Abs() > AloneFor })
	switch len(a.seen) {
	case 0:
		a.forget()
	case 1:
		for node := range a.seen {
			a.solo[node] = now
			a.changes.note(node)
		}
	}
}

// forget ends all evidence.
func (a *Authority) forget() {
	if len(a.evidence) > 0 {
		a.Touch()
	}
	clear(a.evidence)
	clear(a.solo)
}
