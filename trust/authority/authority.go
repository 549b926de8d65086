// Package authority keeps what a node knows of one organization: its log, its status lists, whom it revoked, and which nodes confirmed that
// nothing newer exists.
//
// An [Authority] decides whether a credential of the organization counts now (authority.go, evidence.go). A [Folder] stores its documents. A
// [Statement] is what another node states about the organization. The package uses no network.
//
// Sources: did:webvh 1.0; Bitstring Status List 1.0.
package authority

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
	// Grace is how long a status list counts after its end, so that an issuer may be away.
	Grace = time.Hour
	// AloneFor is the time without a connection to a node that could report a revocation, after which the state must be confirmed again.
	AloneFor = 5 * time.Minute
	// maxExclusion limits how long a list can exclude a member.
	maxExclusion = organization.Exclusion + 24*time.Hour
)

// An Authority is what is known of an organization. It is not safe for concurrent use.
type Authority struct {
	log     *webvh.Log
	keys    map[string]did.DID  // the issuing keys of log, by their DID URLs
	methods []string            // their DID URLs, sorted
	lists   map[string]*vc.List // the newest of each issuing key, by its DID URL
	kept    *Record             // never nil

	evidence map[did.DID]witness // the nodes that confirmed the state since the start, and since the node was alone
	// seen has the time of the last connection with each node that could report a revocation, within AloneFor. solo has the time at which
	// a node was the only one of them: it cannot hide its own revocation.
	seen, solo map[did.DID]time.Time
	last       time.Time // of contact

	changes changes
}

// New returns an organization of which only the log is known.
func New(l *webvh.Log) *Authority {
	a := &Authority{lists: map[string]*vc.List{}, kept: &Record{}, evidence: map[did.DID]witness{}, seen: map[did.DID]time.Time{},
		solo: map[did.DID]time.Time{}}
	a.setKeys(l)
	a.Touch()
	return a
}

// A Record is what counts although no present document of the organization states it. It is immutable.
type Record struct {
	// Excluded are the members that an issuer revoked before its key was removed from the log, with the end of the exclusion.
	Excluded map[did.DID]time.Time `json:"excluded,omitempty"`
	// Set are the entries that a list of an issuing key had set and a newer one has not, by its DID URL.
	Set map[string][]int `json:"set,omitempty"`
}

// SCID returns the identifier of the organization.
func (a *Authority) SCID() string { return a.log.SCID() }

// Log returns the newest log.
func (a *Authority) Log() *webvh.Log { return a.log }

// DID returns the present DID of the organization.
func (a *Authority) DID() did.DID { return a.log.DID() }

// Methods returns the DID URLs of the issuing keys in the newest document, sorted. The caller must not change them.
func (a *Authority) Methods() []string { return a.methods }

// Key returns an issuing key of the newest document, or "".
func (a *Authority) Key(method string) did.DID { return a.keys[method] }

// List returns the newest status list of an issuing key, or nil.
func (a *Authority) List(method string) *vc.List { return a.lists[method] }

// Versions returns the versions of the status lists by issuing key.
func (a *Authority) Versions() map[string]uint64 {
	all := make(map[string]uint64, len(a.lists))
	for method, l := range a.lists {
		all[method] = l.Version
	}
	return all
}

// Resolve implements [did.Resolver] for the organization.
func (a *Authority) Resolve(_ context.Context, id did.DID) (*did.Document, error) {
	if id != a.log.DID() {
		return nil, fmt.Errorf("%w: %s is not the present DID of the organization", did.ErrNotFound, id.Short())
	}
	return a.log.Document()
}

// keysOf returns the issuing keys of a log by their DID URLs. A deactivated one has none.
func keysOf(l *webvh.Log) map[string]did.DID {
	all := map[string]did.DID{}
	doc, err := l.Document()
	if err != nil {
		return all
	}
	for _, m := range doc.VerificationMethod {
		if key, err := did.FromKey(m.PublicKey); err == nil && m.KeyType == "Ed25519" && doc.Allows(did.PurposeAssertion, m.ID) {
			all[m.ID] = key
		}
	}
	return all
}

func (a *Authority) setKeys(l *webvh.Log) {
	a.log, a.keys = l, keysOf(l)
	a.methods = slices.Sorted(maps.Keys(a.keys))
}

// AfterLog returns the record that goes with a newer log: it is to be stored before [Authority.SetLog]. Whom an issuer revoked before its key
// was removed stays excluded, unless another issuer has revoked that key: then it may have been stolen. The keys of a history that the new
// log replaces count for nothing.
func (a *Authority) AfterLog(l *webvh.Log, now time.Time) *Record {
	keys, excluded, set := keysOf(l), maps.Clone(a.kept.Excluded), maps.Clone(a.kept.Set)
	maps.DeleteFunc(excluded, func(_ did.DID, end time.Time) bool { return !now.Before(end) })
	for method, old := range a.lists {
		if keys[method] == a.keys[method] {
			continue
		}
		delete(set, method)
		if !l.Has(a.log.Head()) || a.isKeyExcluded(method, now) {
			continue
		}
		excluded = excludedBy(old, excluded, now)
	}
	return a.kept.with(excluded, set)
}

// excludedBy adds whom an issuer has revoked to all, which may be nil.
func excludedBy(l *vc.List, all map[did.DID]time.Time, now time.Time) map[did.DID]time.Time {
	for member, end := range l.Revoked {
		if excludes(end, now) && end.After(all[member]) {
			if all == nil {
				all = map[did.DID]time.Time{}
			}
			all[member] = end
		}
	}
	return all
}

// Keep returns the record that has whom an issuer has revoked, too. It is stored before the log without the key of that issuer is: after a crash
// between the two, they stay excluded.
func (a *Authority) Keep(method string, now time.Time) *Record {
	l := a.lists[method]
	if l == nil || a.isKeyExcluded(method, now) {
		return a.kept
	}
	return a.kept.with(excludedBy(l, maps.Clone(a.kept.Excluded), now), a.kept.Set)
}

// with returns a record with other content, or r if it has the same.
func (r *Record) with(excluded map[did.DID]time.Time, set map[string][]int) *Record {
	if maps.EqualFunc(r.Excluded, excluded, time.Time.Equal) && maps.EqualFunc(r.Set, set, slices.Equal) {
		return r
	}
	return &Record{Excluded: excluded, Set: set}
}

// SetLog replaces the log by a newer one, with the record of [Authority.AfterLog].
func (a *Authority) SetLog(l *webvh.Log, r *Record) {
	before := a.keys
	a.noteExcluded()
	a.setKeys(l)
	maps.DeleteFunc(a.lists, func(method string, _ *vc.List) bool { return a.keys[method] != before[method] })
	a.kept = r
	a.Touch()
}

// AfterList returns the record that goes with a newer status list: it is to be stored before [Authority.SetList]. An entry that was set stays
// set, whatever a later list states.
func (a *Authority) AfterList(l *vc.List) *Record {
	old := a.lists[l.Method]
	if old == nil {
		return a.kept
	}
	set := maps.Clone(a.kept.Set)
	if missing := l.Missing(old); len(missing) == 0 {
		delete(set, l.Method)
	} else {
		if set == nil {
			set = map[string][]int{}
		}
		set[l.Method] = missing
	}
	return a.kept.with(a.kept.Excluded, set)
}

// SetList replaces the status list of an issuing key by a newer one, with the record of [Authority.AfterList].
func (a *Authority) SetList(l *vc.List, r *Record, now time.Time) {
	if set := r.Set[l.Method]; len(set) > 0 {
		raw := l.Raw
		l = l.With(set...)
		l.Raw = raw
	}
	old := a.lists[l.Method]
	a.lists[l.Method], a.kept = l, r
	witnesses := len(a.evidence)
	maps.DeleteFunc(a.evidence, func(node did.DID, _ witness) bool { return a.Excludes(node, now) })
	if len(a.evidence) != witnesses {
		a.Touch()
	}
	a.noteList(old, l, now)
}

// Issuers returns the DID URLs of the issuing keys in the newest document, sorted, without those that another issuer excludes.
func (a *Authority) Issuers(now time.Time) []string {
	all := make([]string, 0, len(a.methods))
	for _, method := range a.methods {
		if !a.isKeyExcluded(method, now) {
			all = append(all, method)
		}
	}
	return all
}

// IsIssuer reports whether an issuing key is one of [Authority.Issuers].
func (a *Authority) IsIssuer(method string, now time.Time) bool {
	return a.keys[method] != "" && !a.isKeyExcluded(method, now)
}

// otherIssuers counts the keys of [Authority.Issuers] that are not own, and returns one of them.
func (a *Authority) otherIssuers(own string, now time.Time) (count int, last string) {
	for _, method := range a.methods {
		if method != own && !a.isKeyExcluded(method, now) {
			count, last = count+1, method
		}
	}
	return count, last
}

// isKeyExcluded reports whether another issuer excludes an issuing key.
func (a *Authority) isKeyExcluded(method string, now time.Time) bool {
	for other, l := range a.lists {
		if other != method && l.Excludes(a.keys[method], now) {
			return true
		}
	}
	return false
}

// excludes reports whether an exclusion that ends at a time is in force.
func excludes(end, now time.Time) bool { return now.Before(end) && end.Before(now.Add(maxExclusion)) }

// Excludes reports whether an issuer revoked a member lately.
func (a *Authority) Excludes(member did.DID, now time.Time) bool {
	for _, l := range a.lists {
		if excludes(l.Revoked[member], now) {
			return true
		}
	}
	return excludes(a.kept.Excluded[member], now)
}

// Revokes reports whether a credential is revoked: by its entry in the list of its issuing key, or by its subject in any list.
func (a *Authority) Revokes(c *vc.Credential, now time.Time) bool {
	if a.Excludes(c.Subject, now) || c.Host != "" && a.Excludes(c.Host, now) {
		return true
	}
	l := a.lists[c.Method]
	return l != nil && c.Status.List == l.ID && l.IsSet(c.Status.Index)
}

// Check returns why a credential does not prove a membership now: a problem for good, or a state that is pending. Both are empty if it does.
// subject is the node that shows it. own is the issuing key of this node in the organization, or empty, and settled reports that this node
// knows what other issuers revoked.
func (a *Authority) Check(c *vc.Credential, subject did.DID, own string, settled bool, now time.Time) (problem, pending string) {
	switch {
	case c.Issuer != a.log.DID():
		return "the credential names an earlier DID of the organization", ""
	case !a.IsIssuer(c.Method, now):
		return "the issuing key is not valid any more", ""
	case now.After(c.Until.Add(vc.Skew)):
		return "the credential has expired", ""
	case c.Status.List != organization.ListID(c.Method):
		return "the credential names the status list of another key", ""
	case a.lists[c.Method] == nil:
		return "", "the status list of the issuing key is unknown"
	case !a.isFresh(now):
		return "", "no status list of the organization is valid now"
	case !a.confirmed(subject, own, settled, now):
		return "", "no issuer has confirmed the members of the organization since this node started or was alone"
	}
	return "", ""
}

// isFresh reports whether the status list of an issuer is valid.
func (a *Authority) isFresh(now time.Time) bool {
	for method, l := range a.lists {
		if now.Before(l.Until.Add(Grace)) && !a.isKeyExcluded(method, now) {
			return true
		}
	}
	return false
}
