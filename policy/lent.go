package policy

import (
	"context"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/boundedmap"
	"github.com/lmosd/lmosd/policy/access"
)

// Delegations verify the delegations that callers present (package delegation).
type Delegations interface {
	// Verify returns what the delegations of m permit its caller: an operation on a Thing. It returns nil without an error if this host did not issue
	// the first one for the Thing: m counts as a message without. The error is an [*interact.Error].
	Verify(m *interact.Message, op access.Op, thing string) (*Delegation, error)
	// Holds reports whether the delegation of this host that link names has neither ended nor been revoked.
	Holds(link string) bool
}

// A Delegation is a right that a caller uses in place of its delegator.
type Delegation struct {
	did.Lent
	// Delegator is the principal of the delegator when this host issued the delegation. It has no more rights now.
	Delegator *did.Principal
}

// Limits of what is known of delegations in use.
const (
	maxLentUses = 4096 // as many as a host issues: none in force is dropped
	maxLentRuns = 4096
	keepLentRun = time.Hour // after the delegation: how long its caller may query a run
)

// lending has the delegations in use.
type lending struct {
	verify Delegations       // set before the first message; nil: there are none
	onEnd  func(link string) // set before the first message

	mu   sync.Mutex
	uses map[string]lentUse    // by link; owned by mu, as the next one
	runs map[lentRun]time.Time // until when their callers may query and cancel them
}

// A lentUse is a right that a delegation gave.
type lentUse struct {
	delegation *Delegation
	request    access.Request // without its input
}

// A lentRun is a run of an action that a caller started by a delegation.
type lentRun struct{ caller, thing, id string }

// UseDelegations sets what verifies delegations. It is called before the first message.
func (p *Policy) UseDelegations(d Delegations) { p.lent.verify = d }

// OnDelegationEnd sets a function that is called with the link of a delegation in use that permits no call any more. It is called before the first message.
func (p *Policy) OnDelegationEnd(f func(link string)) { p.lent.onEnd = f }

// MayDelegate returns nil if a caller may delegate an operation on an affordance, which it must have itself. The error is that of a Thing that does
// not exist, if the caller may not find it.
func (p *Policy) MayDelegate(who *did.Principal, t *access.Target, op access.Op, name string) error {
	r, d := p.delegates(who, access.Request{Op: op, Target: t, Affordance: name})
	switch {
	case d.Allow:
		return nil
	case who.Pending != "":
		return Unsettled(who)
	case !p.Sees(who, t):
		return interact.NotOffered(t.ID)
	case r.Op == access.Delegate:
		return interact.Errorf(interact.Forbidden, "ask the operator of that host for a rule that allows "+who.ID()+" to delegate",
			"%s may not delegate %s of %s: %s", who.Short(), name, access.NameOf(t), d.Why())
	}
	return interact.Errorf(interact.Forbidden, "only who may call can delegate it", "%s may not %s %s: %s", who.Short(), op, access.NameOf(t), d.Why())
}

// delegates decides whether a caller may delegate r, and r itself. It returns the request that is refused.
func (p *Policy) delegates(who *did.Principal, r access.Request) (access.Request, access.Decision) {
	right := r
	right.Op = access.Delegate
	if d := p.Decide(who, right); !d.Allow {
		return right, d
	}
	return r, p.Decide(who, r)
}

// byDelegation returns the delegation that permits r to the caller of m, which no rule concerns; nil: none.
func (p *Policy) byDelegation(m *interact.Message, r access.Request) (*did.Lent, error) {
	if m.With == nil || p.lent.verify == nil || m.From.Node == "" || m.From.Anonymous() || m.Name == "" || r.Affordance != m.Name ||
		!p.Decide(m.From, access.Request{Op: access.Connect}).Allow {
		return nil, nil
	}
	d, err := p.lent.verify.Verify(m, r.Op, r.Target.ID)
	if d == nil || err != nil {
		return nil, err
	}
	if m.Type == interact.ContinueAction && !p.lent.isOwnRun(m, r.Target.ID, interact.ContinueAction) {
		return nil, interact.Errorf(interact.DelegationInvalid, "", "the delegation permits inputs for runs that began by it, and %s is none", interact.Excerpt(m.ActionID, 80))
	}
	r.Input = nil    // the conditions of rules for the delegator are on its own calls
	p.lent.use(d, r) // before the right is checked: a change after the check is a change of a use
	if err := p.stillDelegates(d, r); err != nil {
		return nil, err
	}
	return &d.Lent, nil
}

// withoutDelegation returns m without its delegation, by which its caller may do nothing.
func withoutDelegation(m *interact.Message) *interact.Message {
	if m.With == nil {
		return m
	}
	c := *m
	c.With = nil
	return &c
}

// stillDelegates returns nil if the delegator has the right now.
func (p *Policy) stillDelegates(d *Delegation, r access.Request) error {
	who := d.Delegator
	if who.Node != "" {
		who = current(p.Principal(who.Node), who)
	}
	refused, decision := p.delegates(who, r)
	if decision.Allow && who.Node != "" {
		refused = access.Request{Op: access.Connect}
		decision = p.Decide(who, refused)
	}
	switch {
	case decision.Allow:
		return nil
	case who.Pending != "":
		return Unsettled(who)
	}
	if refused.Op == access.Connect {
		return interact.Errorf(interact.DelegationInvalid, "ask another delegator", "the delegator %s may not connect", who.Short())
	}
	hint := "ask another delegator"
	if who.Relation < d.Delegator.Relation && who.Barred == "" {
		hint = "the delegator must connect to that host and show its membership"
	}
	return interact.Errorf(interact.DelegationInvalid, hint, "the delegator %s may not %s %s: %s", who.Short(), refused.Op, access.NameOf(r.Target), decision.Why())
}

func (l *lending) use(d *Delegation, r access.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	boundedmap.Put(&l.uses, d.Link, lentUse{d, r}, maxLentUses, func(u lentUse) bool { return !l.verify.Holds(u.delegation.Link) })
}

// whileLent forwards messages with the delegation that permits them, until it expires.
func (p *Policy) whileLent(next interact.Thing, lent *did.Lent, thing string) interact.Thing {
	return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			from, c := *m.From, *m
			from.Lent = lent
			c.From, c.With, c.Deadline = &from, nil, earliest(m.Deadline, lent.Expires)
			ctx, cancel := context.WithDeadline(ctx, c.Deadline)
			defer cancel()
			more := true
			next.Do(ctx, &c)(func(r *interact.Message, err error) bool {
				switch {
				case err != nil && !time.Now().Before(lent.Expires):
					over := *errLentOver
					over.Err, over.Started = err, interact.AsError(err).Started
					err = &over
				case err == nil && r.ActionID != "" && m.Type == interact.InvokeAction:
					p.began(&c, thing, r.ActionID)
				}
				more = err == nil && yield(r, nil)
				if err != nil {
					yield(nil, err)
				}
				return more
			})
			if more && m.Type.Long() && !time.Now().Before(lent.Expires) {
				yield(nil, errLentOver)
			}
		}
	})
}

var errLentOver = interact.Errorf(interact.DelegationInvalid, "ask the delegator for a new one", "Expired: the delegation ended while the interaction ran")

// began notes a run that a caller started by a delegation. It ends the run if the delegation has ended meanwhile.
func (p *Policy) began(m *interact.Message, thing, id string) {
	l, now := &p.lent, time.Now()
	l.mu.Lock()
	boundedmap.Put(&l.runs, lentRun{m.From.ID(), thing, id}, m.From.Lent.Expires.Add(keepLentRun), maxLentRuns,
		func(until time.Time) bool { return !now.Before(until) })
	u, inUse := l.uses[m.From.Lent.Link]
	l.mu.Unlock()
	if (!inUse || !p.holds(u)) && l.onEnd != nil {
		l.onEnd(m.From.Lent.Link)
	}
}

// holds reports whether a delegation has not ended, and its delegator has the right.
func (p *Policy) holds(u lentUse) bool {
	return p.lent.verify.Holds(u.delegation.Link) && p.stillDelegates(u.delegation, u.request) == nil
}

// isOwnRun reports whether m, of one of the types, is about a run that its caller started by a delegation.
func (l *lending) isOwnRun(m *interact.Message, thing string, types ...interact.Type) bool {
	if m.ActionID == "" || !slices.Contains(types, m.Type) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.runs[lentRun{m.From.ID(), thing, m.ActionID}]
	return ok
}

// recheckDelegations ends the use of delegations that were revoked, or whose delegators have lost the right: those of a node, or all if node is empty.
func (p *Policy) recheckDelegations(node did.DID) {
	if p.lent.verify == nil {
		return
	}
	p.lent.mu.Lock()
	uses := maps.Clone(p.lent.uses)
	p.lent.mu.Unlock()
	for _, link := range slices.Sorted(maps.Keys(uses)) {
		u := uses[link]
		if (node == "" || u.delegation.Delegator.Node == node) && !p.holds(u) {
			p.lent.ended(link)
		}
	}
}

// ended ends what runs by a delegation.
func (l *lending) ended(link string) {
	l.mu.Lock()
	delete(l.uses, link)
	l.mu.Unlock()
	if l.onEnd != nil {
		l.onEnd(link)
	}
}
