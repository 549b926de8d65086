package policy

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// running are the observations, subscriptions and request streams that continue. They are checked again when the rules or the standing of
// their caller change. Other interactions end within their deadlines, or with the connection of their caller.
type running struct {
	principal func(did.DID) *did.Principal

	mu  sync.Mutex
	all map[*run]struct{} // owned by mu
}

// A run is one of them.
type run struct {
	m     *interact.Message
	check func(*interact.Message) (*did.Lent, error)
	lent  *did.Lent // the delegation that permits it; nil: it needs none
	end   context.CancelCauseFunc
}

// while forwards m to next until the loop is left, or until check fails.
func (r *running) while(ctx context.Context, next interact.Thing, m *interact.Message, check func(*interact.Message) (*did.Lent, error),
	lent *did.Lent) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		ctx, end := context.WithCancelCause(ctx)
		defer end(nil)
		one := &run{m, check, lent, end}
		r.add(one)
		defer r.remove(one)
		if err := r.check(one); err != nil { // it changed before one was added
			yield(nil, err)
			return
		}
		more := true
		next.Do(ctx, m)(func(reply *interact.Message, err error) bool {
			if lostRight(ctx) != nil {
				return false
			}
			more = yield(reply, err)
			return more
		})
		if lost := lostRight(ctx); lost != nil && more {
			yield(nil, lost)
		}
	}
}

// lostRight returns the error with which recheck ended an interaction, or nil.
func lostRight(ctx context.Context) error {
	if lost := (*interact.Error)(nil); errors.As(context.Cause(ctx), &lost) {
		return lost
	}
	return nil
}

func (r *running) add(one *run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[*run]struct{}{}
	}
	r.all[one] = struct{}{}
}

func (r *running) remove(one *run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, one)
}

// recheck ends the interactions that their callers may not continue: those that concern a node as caller or delegator, or all if node is empty.
func (r *running) recheck(node did.DID) {
	r.recheckIf(func(one *run) bool {
		return node == "" || one.m.From.Node == node || one.lent != nil && one.lent.By == node
	})
}

func (r *running) recheckIf(concerned func(*run) bool) {
	r.mu.Lock()
	all := slices.Collect(maps.Keys(r.all))
	r.mu.Unlock()
	for _, one := range all {
		if !concerned(one) {
			continue
		}
		if err := r.check(one); err != nil {
			one.end(err)
		}
	}
}

// check returns the error of an interaction that its caller may not continue, with the rights that the caller has now. A request stream, such as
// a tunnel, ends with any loss: its agent has received the caller, and the messages in it have the principal of its start.
func (r *running) check(one *run) error {
	m := *one.m
	if from := m.From; from.Node != "" {
		m.From = current(r.principal(from.Node), from)
		// An agent that only a group knows is not reached through the node any more.
		left := from.Agent() != "" && len(from.Groups) > 0 && len(m.From.Groups) == 0
		if left || m.Chunks != nil && m.From.Lost(from) {
			return interact.Errorf(interact.Forbidden, "start it again", "the standing of %s has changed", from.Short())
		}
	}
	_, err := one.check(&m)
	return err
}

// current returns the principal of a consumer whose node is known as node now: it has no more rights than before. The roles of another
// organization are other roles.
func current(node, before *did.Principal) *did.Principal {
	most, is := before, node
	if before.Unconfirmed != nil { // its membership may be confirmed now
		most = before.Unconfirmed
	}
	if node.Unconfirmed != nil {
		is = node.Unconfirmed
	}
	has := func(role string) bool { return is.Org == most.Org && slices.Contains(most.Roles, role) }
	if agent := before.Agent(); agent != "" {
		node = node.WithAgent(agent, has, before.Expires)
	}
	p := node.Narrowed(before.Name, most.Relation, has)
	for _, m := range before.Groups {
		if slices.Contains(node.Groups, m) {
			p.Groups = append(p.Groups, m)
		}
	}
	p.Attested = slices.DeleteFunc(slices.Clone(node.Attested), func(a did.Attestation) bool { return !slices.Contains(before.Attested, a) })
	return p
}

// Recheck ends the interactions of a node and its consumers that they may not continue, after its standing has changed; of all nodes if it is empty.
// It also ends what runs by delegations of the node that do not count any more.
func (p *Policy) Recheck(node did.DID) {
	p.running.recheck(node)
	p.recheckDelegations(node)
}

// EndDelegation ends what runs by a delegation that has ended.
func (p *Policy) EndDelegation(link string) {
	p.running.recheckIf(func(one *run) bool { return one.lent != nil && one.lent.Link == link })
	p.lent.ended(link)
}
