package node

import (
	"fmt"
	"slices"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// forkedFor is how long a thing stands out after its owner was seen to equivocate: as long as what it signed then can be valid.
const forkedFor = 24 * time.Hour

// Equivocation returns the equivocation about a thing that was seen in the last day.
func (n *Node) Equivocation(r *td.Record) (directory.Equivocation, bool) {
	f, ok := n.dir.Equivocation(r.Owner, r.Thing)
	return f, ok && time.Since(f.Seen) < forkedFor
}

// recentForks returns what was seen in the last day, the newest first: of this node's key, and of others'.
func (n *Node) recentForks() (own, others []directory.Equivocation) {
	all := n.dir.Equivocations()
	for _, f := range slices.Backward(all) {
		switch {
		case time.Since(f.Seen) >= forkedFor:
		case f.Owner == n.DID():
			own = append(own, f)
		default:
			others = append(others, f)
		}
	}
	return own, others
}

// maxForksShown is how many are in a status.
const maxForksShown = 16

// showForks writes equivocation into a status: what was seen, what it means, and what to do.
func (n *Node) showForks(s *api.Status) {
	own, others := n.recentForks()
	for _, f := range slices.Concat(own, others) {
		if len(s.Equivocations) < maxForksShown {
			s.Equivocations = append(s.Equivocations, api.Equivocation{ID: f.Thing, Owner: f.Owner, Seq: f.Seq, Seen: f.Seen.UTC()})
		}
	}
	warn := func(forks []directory.Equivocation, severity, who, hint string, next []interact.Step) {
		if len(forks) == 0 {
			return
		}
		last := forks[0]
		s.Warnings = append(s.Warnings, api.Warning{Code: "LMOS-W061", Title: "equivocation", Severity: severity, Hint: hint, Next: next, Since: forks[len(forks)-1].Seen,
			Text: fmt.Sprintf("%s signed two different records with one number, and others may know another one than you: %s; in all of %d things",
				who, td.ExactRef(last.Thing, last.Owner), len(forks))})
	}
	warn(own, "high", "a process with this node's key", "let one process have identity.pem: stop the other one, then publish again here", nil)
	if len(others) > 0 {
		warn(others, "medium", others[0].Owner.Short(), "ask the owner whether two programs use the key, or deny it (trust.deny); its details in JSON have both records",
			interact.Next(interact.StepShow, td.ExactRef(others[0].Thing, others[0].Owner)))
	}
}
