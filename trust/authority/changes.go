package authority

import (
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/vc"
)

// changes are those of an organization since the last [Authority.TakeChanges].
type changes struct {
	members bool             // the standing of any member may have changed
	nodes   map[did.DID]bool // those whose exclusion may have changed, members or not
	at      time.Time        // of the last TakeChanges
	due     time.Time        // the next time at which something changes without a document; zero: never
}

func (c *changes) note(node did.DID) {
	if c.nodes == nil {
		c.nodes = map[did.DID]bool{}
	}
	c.nodes[node] = true
}

// Touch notes that the standing of any member may have changed.
func (a *Authority) Touch() { a.changes.members = true }

// noteExcluded notes all nodes that a list or the record names.
func (a *Authority) noteExcluded() {
	for _, l := range a.lists {
		for node := range l.Revoked {
			a.changes.note(node)
		}
	}
	for node := range a.kept.Excluded {
		a.changes.note(node)
	}
}

// noteList notes what a newer list changes. A list that is only signed again changes nothing.
func (a *Authority) noteList(old, l *vc.List, now time.Time) {
	for node, end := range l.Revoked {
		if old == nil || !old.Revoked[node].Equal(end) {
			a.noteEnd(node)
		}
	}
	if old == nil || !now.Before(old.Until.Add(Grace)) || len(old.Missing(l)) > 0 {
		a.Touch()
	}
	if old != nil {
		for node := range old.Revoked {
			if _, ok := l.Revoked[node]; !ok {
				a.noteEnd(node)
			}
		}
	}
	a.setDue(now)
}

// noteEnd notes that the exclusion of a node, or of an issuing key, has changed.
func (a *Authority) noteEnd(id did.DID) {
	a.changes.note(id)
	for _, key := range a.keys {
		if key == id {
			a.Touch()
		}
	}
}

// setDue finds the next time at which a list or an exclusion ends, or an exclusion begins that was too long before.
func (a *Authority) setDue(now time.Time) {
	a.changes.due = time.Time{}
	next := func(at time.Time) {
		if at.After(now) && (a.changes.due.IsZero() || at.Before(a.changes.due)) {
			a.changes.due = at
		}
	}
	exclusion := func(end time.Time) {
		next(end)
		next(end.Add(-maxExclusion + 1))
	}
	for _, l := range a.lists {
		next(l.Until.Add(Grace))
		for _, end := range l.Revoked {
			exclusion(end)
		}
	}
	for _, end := range a.kept.Excluded {
		exclusion(end)
	}
}

// TakeChanges returns what has changed since the last call, by documents or by time: members reports that the standing of any member may
// have changed, and nodes are others whose exclusion may have.
func (a *Authority) TakeChanges(now time.Time) (members bool, nodes map[did.DID]bool) {
	c := &a.changes
	if c.members || now.Before(c.at) || !c.due.IsZero() && !now.Before(c.due) { // the clock may have been set back
		c.members = true
		a.noteExcluded()
		a.setDue(now)
	}
	members, nodes = c.members, c.nodes
	c.members, c.nodes, c.at = false, nil, now
	return members, nodes
}
