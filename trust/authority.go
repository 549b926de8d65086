package trust

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/trust/organization"
)

// Times of the state of an organization.
const (
	// grace is how long a status list counts after its end, so that an issuer may be away.
	grace = time.Hour
	// aloneFor is the time without a connection to a node that could report a revocation, after which the state must be confirmed again.
	aloneFor = 5 * time.Minute
	// maxExclusion limits how long a list can exclude a member.
	maxExclusion = 31 * 24 * time.Hour
)

// An authority is an organization whose credentials count here: the own one or a partner. Trust.mu owns it.
type authority struct {
	scid    string
	log     *webvh.Log
	keys    map[string]did.DID  // the issuing keys of log, by their DID URLs
	lists   map[string]*vc.List // the newest of each issuing key, by its DID URL
	partner *partner            // nil: the own organization
	// evidence has the nodes that confirmed the state since the start, and since the node was alone.
	evidence map[did.DID]witness
	// seen has the time of the last connection with each node that could report a revocation, within aloneFor. solo has the time at which
	// a node was the only one of them: it cannot hide its own revocation.
	seen, solo map[did.DID]time.Time
	last       time.Time // of contact
}

func newAuthority(scid string, l *webvh.Log, p *partner) *authority {
	a := &authority{scid: scid, partner: p, lists: map[string]*vc.List{}, evidence: map[did.DID]witness{},
		seen: map[did.DID]time.Time{}, solo: map[did.DID]time.Time{}}
	a.setLog(l)
	return a
}

// A witness is a node that confirmed the state of an organization.
type witness struct {
	at     time.Time // of the confirmation
	method string    // the issuing key that it holds; empty: a member of the own organization that knows the state
}

// Resolve implements [did.Resolver] for the organization.
func (a *authority) Resolve(_ context.Context, id did.DID) (*did.Document, error) {
	if id != a.log.DID() {
		return nil, fmt.Errorf("%w: %s is not the present DID of the organization", did.ErrNotFound, id.Short())
	}
	return a.log.Document()
}

// setLog replaces the log by a newer one.
func (a *authority) setLog(l *webvh.Log) {
	a.log, a.keys = l, map[string]did.DID{}
	doc, err := l.Document()
	if err != nil {
		return // deactivated: no key is valid
	}
	for _, m := range doc.VerificationMethod {
		if key, err := did.FromKey(m.PublicKey); err == nil && m.KeyType == "Ed25519" && doc.Allows(did.PurposeAssertion, m.ID) {
			a.keys[m.ID] = key
		}
	}
	// The list of a key that is not valid any more says nothing: the key may have been stolen.
	maps.DeleteFunc(a.lists, func(method string, _ *vc.List) bool { return a.keys[method] == "" })
}

// issuers returns the DID URLs of the issuing keys in the newest document, without those that another issuer excludes.
func (a *authority) issuers(now time.Time) []string {
	var all []string
	for method, key := range a.keys {
		excluded := false
		for other, l := range a.lists {
			excluded = excluded || other != method && l.Excludes(key, now)
		}
		if !excluded {
			all = append(all, method)
		}
	}
	slices.Sort(all)
	return all
}

// excludes reports whether an issuer revoked a member lately.
func (a *authority) excludes(member did.DID, now time.Time) bool {
	for _, l := range a.lists {
		if end := l.Revoked[member]; now.Before(end) && end.Before(now.Add(maxExclusion)) {
			return true
		}
	}
	return false
}

// revokes reports whether a credential is revoked: by its bit in the list of its issuing key, or by its subject in any list.
func (a *authority) revokes(c *vc.Credential, now time.Time) bool {
	if a.excludes(c.Subject, now) || c.Host != "" && a.excludes(c.Host, now) {
		return true
	}
	l := a.lists[c.Method]
	return l != nil && c.Status.List == l.ID && l.IsSet(c.Status.Index)
}

// check returns why a credential does not prove a membership now: a problem for good, or a state that is pending. Both are empty if it does.
func (a *authority) check(c *vc.Credential, subject did.DID, own string, settled bool, now time.Time) (problem, pending string) {
	issuers := a.issuers(now)
	switch {
	case c.Issuer != a.log.DID():
		return "the credential names an earlier DID of the organization", ""
	case !slices.Contains(issuers, c.Method):
		return "the issuing key is not valid any more", ""
	case now.After(c.Until.Add(vc.Skew)):
		return "the credential has expired", ""
	case c.Status.List != organization.ListID(c.Method):
		return "the credential names the status list of another key", ""
	case a.partner != nil && a.partner.suspended():
		return "the partner is suspended", ""
	case a.partner != nil && !a.partner.Until.IsZero() && now.After(a.partner.Until):
		return "the partnership has ended", ""
	}
	fresh := slices.ContainsFunc(issuers, func(method string) bool {
		l := a.lists[method]
		return l != nil && now.Before(l.Until.Add(grace))
	})
	switch {
	case a.lists[c.Method] == nil:
		return "", "the status list of the issuing key is unknown"
	case !fresh:
		return "", "no status list of the organization is valid now"
	case !a.confirmed(subject, own, settled, now):
		return "", "no issuer has confirmed the members of the organization since this node started or was alone"
	}
	return "", ""
}

// soloMax returns the latest time at which a node was the only one that could report a revocation.
func (a *authority) soloMax() (last time.Time) {
	for _, at := range a.solo {
		if at.After(last) {
			last = at
		}
	}
	return last
}

// isGood reports whether a node is evidence for all subjects but itself.
func (a *authority) isGood(node did.DID) bool {
	w, ok := a.evidence[node]
	return ok && w.at.After(a.soloMax())
}

// good counts the evidence for all subjects.
func (a *authority) good() (n int) {
	for node := range a.evidence {
		if a.isGood(node) {
			n++
		}
	}
	return n
}

// confirmed reports whether a node other than subject confirmed the state. If no other issuing key exists than that of subject and of this
// node, there is nobody else who could have revoked it. own is the issuing key of this node in the organization, or empty.
func (a *authority) confirmed(subject did.DID, own string, settled bool, now time.Time) bool {
	if own != "" && settled {
		return true
	}
	others := slices.DeleteFunc(a.issuers(now), func(method string) bool { return method == own })
	if len(others) == 0 {
		return own != ""
	}
	for node, w := range a.evidence {
		if node != subject && w.at.After(a.solo[subject]) || len(others) == 1 && others[0] == w.method {
			return true
		}
	}
	return false
}

// contact records which nodes that could report a revocation are connected now. Evidence ends when none was for aloneFor.
func (a *authority) contact(connected []did.DID, now time.Time) {
	if gap := now.Sub(a.last).Abs(); !a.last.IsZero() && gap > aloneFor { // the machine slept, or its clock was set
		clear(a.seen)
		clear(a.evidence)
		clear(a.solo)
		connected = nil
	}
	a.last = now
	for _, node := range connected {
		a.seen[node] = now
	}
	maps.DeleteFunc(a.seen, func(_ did.DID, at time.Time) bool { return now.Sub(at).Abs() > aloneFor })
	switch len(a.seen) {
	case 0:
		clear(a.evidence)
		clear(a.solo)
	case 1:
		for node := range a.seen {
			a.solo[node] = now
		}
	}
}

// witnessed adds evidence.
func (a *authority) witnessed(node did.DID, method string, now time.Time) {
	a.evidence[node] = witness{now, method}
	a.seen[node] = now
}

// versions returns the versions of the lists by issuing key.
func (a *authority) versions() map[string]uint64 {
	all := make(map[string]uint64, len(a.lists))
	for method, l := range a.lists {
		all[method] = l.Version
	}
	return all
}

// known returns the documents of the organization with their versions.
func (a *authority) known() []known {
	all := []known{{SCID: a.scid, Kind: kindLog, Version: uint64(a.log.Len()), Head: a.log.Head()}}
	for _, method := range slices.Sorted(maps.Keys(a.lists)) {
		all = append(all, known{SCID: a.scid, Kind: kindList, Method: method, Version: a.lists[method].Version})
	}
	return all
}

// lacks reports whether k is newer than what is stored here.
func (a *authority) lacks(k known) bool {
	switch k.Kind {
	case kindLog:
		return k.Version > uint64(a.log.Len()) || k.Version == uint64(a.log.Len()) && k.Head != a.log.Head()
	case kindList:
		l := a.lists[k.Method]
		return a.keys[k.Method] != "" && (l == nil || k.Version > l.Version)
	}
	return false
}
