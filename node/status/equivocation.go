package status

import (
	"slices"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// shownFor is how long an equivocation is shown: as long as a record that was signed then can be valid.
const shownFor = 24 * time.Hour

// maxShown limits the equivocations in a status.
const maxShown = 16

// Equivocation returns the equivocation about a Thing that was seen in the last day.
func (r *Reporter) Equivocation(rec *td.Record) (directory.Equivocation, bool) {
	e, ok := r.Directory.Equivocation(rec.Owner, rec.Thing)
	return e, ok && time.Since(e.Seen) < shownFor
}

// recent returns the equivocations of the last day, newest first: those of this node's key, and the others.
func (r *Reporter) recent() (own, others []directory.Equivocation) {
	all := r.Directory.Equivocations()
	for _, e := range slices.Backward(all) {
		switch {
		case time.Since(e.Seen) >= shownFor:
		case e.Owner == r.DID:
			own = append(own, e)
		default:
			others = append(others, e)
		}
	}
	return own, others
}

// addEquivocations adds the recent equivocations to a status, with warnings.
func (r *Reporter) addEquivocations(s *api.Status) {
	own, others := r.recent()
	for _, e := range slices.Concat(own, others) {
		if len(s.Equivocations) < maxShown {
			s.Equivocations = append(s.Equivocations, api.Equivocation{ID: e.Thing, Owner: e.Owner, Seq: e.Seq, Seen: e.Seen.UTC()})
		}
	}
	warn := func(all []directory.Equivocation, severity, signer, hint string, next []interact.Step) {
		if len(all) == 0 {
			return
		}
		last := all[0]
		w := api.Equivocated.Warning(hint, "%s signed two different records with one sequence number, and other nodes may have the other one: %s; in all of %d things",
			signer, td.ExactRef(last.Thing, last.Owner), len(all))
		w.Severity, w.Next, w.Since = severity, next, all[len(all)-1].Seen
		s.Warnings = append(s.Warnings, w)
	}
	warn(own, "high", "a process with this node's key", "let one process have identity.pem: stop the other one, then publish again here", nil)
	if len(others) > 0 {
		warn(others, "medium", others[0].Owner.Short(), "ask the owner whether two programs use the key, or deny it; its details in JSON have both records",
			append(interact.Next(interact.StepShow, td.ExactRef(others[0].Thing, others[0].Owner)), interact.Next(interact.StepPolicy, "deny", string(others[0].Owner))...))
	}
}
