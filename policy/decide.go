package policy

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/td"
)

// Connects returns nil if a node may open streams here, else an [*interact.Error] of code Forbidden.
func (p *Policy) Connects(node did.DID) error {
	if node == p.rules.Load().Self {
		return nil
	}
	who := p.Principal(node)
	if d := p.Decide(who, access.Request{Op: access.Connect}); !d.Allow {
		return interact.Errorf(interact.Forbidden, "ask the operator of that node for an invitation", "%s is rejected: %s", node.Short(), d.Why())
	}
	return nil
}

// Stores reports whether a node may store records in the part of the DHT at this node.
func (p *Policy) Stores(node did.DID) bool {
	return node == p.rules.Load().Self || p.Decide(p.Principal(node), access.Request{Op: access.Store}).Allow
}

// Relays reports whether a node may be reached through this one, and its relation, which decides how much.
func (p *Policy) Relays(node did.DID) (bool, did.Relation) {
	who := p.Principal(node)
	return p.Decide(who, access.Request{Op: access.Relay}).Allow, who.Relation
}

// Denies returns the error of Connects if it holds whatever the relation of the node turns out to be: a rule rejects it, or it is barred.
func (p *Policy) Denies(node did.DID) error {
	who := p.Principal(node)
	if d := p.Decide(who, access.Request{Op: access.Connect}); node == p.rules.Load().Self || d.Allow || d.Rule == "" && who.Barred == "" {
		return nil
	}
	return p.Connects(node)
}

// Rejects reports whether the connection of a node is to end: it may not connect, and its membership is decided or Denies applies.
func (p *Policy) Rejects(node did.DID) bool {
	return p.Connects(node) != nil && (p.Principal(node).Pending == "" || p.Denies(node) != nil)
}

// Sees reports whether a caller may receive the description of a Thing.
func (p *Policy) Sees(who *did.Principal, t *access.Target) bool {
	return p.Decide(who, access.Request{Op: access.Find, Target: t}).Allow
}

// Finds is Sees for a description (directory.Options.Sees), and Scope returns what a caller finds (directory.Options.Scope). A reader without
// a principal finds what an unproven caller finds.
func (p *Policy) Finds(who *did.Principal, d *td.Description) bool {
	return p.Set().Finds(reader(who), time.Now(), d.Visibility, func() *access.Target { return access.TargetOf(d.Thing, d.Name()) })
}

func reader(who *did.Principal) *did.Principal {
	if who == nil {
		return did.Consumer(did.Unproven, "")
	}
	return who
}

// Scope is described at Finds.
func (p *Policy) Scope(who *did.Principal) td.Scope {
	return p.Set().Scope(reader(who), time.Now())
}

// Trust returns the trust in a node, 0 to 1, and its reason, for ranking: 1 for the own organization and partners, 0 if it may not connect,
// 0.5 for others.
func (p *Policy) Trust(node did.DID) (amount float64, why string) {
	if node == p.rules.Load().Self {
		return 1, "this node"
	}
	who := p.Principal(node)
	switch {
	case !p.Decide(who, access.Request{Op: access.Connect}).Allow:
		return 0, "denied"
	case who.Relation >= did.Own:
		return 1, "own organization"
	case who.Relation == did.Partner:
		return 1, "partner"
	}
	return 0.5, "untrusted"
}

// The callers of public agents, as [Policy.Callers] returns them.
const (
	Anyone    = "anyone"    // all nodes that no rule denies
	Permitted = "permitted" // nodes of the own organization, and those that a rule permits
)

// Callers returns which nodes may call the public agents of this node: Anyone or Permitted. Callers on this machine may always.
func (p *Policy) Callers() string {
	if p.Decide(&did.Principal{Via: did.Peer}, access.Request{Op: access.Invoke, Target: &access.Target{}}).Allow {
		return Anyone
	}
	return Permitted
}

var errNoCaller = interact.Errorf(interact.Forbidden, "report it: the receiver of a message must set its sender", "the message has no caller")

// opOf are the operations of messages.
var opOf = map[interact.Type]access.Op{
	interact.ReadProperty: access.Read, interact.ReadAllProperties: access.Read, interact.ReadMultipleProperties: access.Read,
	interact.ObserveProperty: access.Read, interact.ObserveAllProperties: access.Read,
	interact.WriteProperty: access.Write, interact.WriteAllProperties: access.Write, interact.WriteMultipleProperties: access.Write,
	interact.InvokeAction: access.Invoke, interact.QueryAction: access.Invoke, interact.CancelAction: access.Invoke,
	interact.ContinueAction: access.Invoke, interact.QueryAllActions: access.Invoke,
	interact.SubscribeEvent: access.Subscribe, interact.SubscribeAllEvents: access.Subscribe,
}

// Authorize rejects the messages to a Thing that its callers may not send. The error is Forbidden if the caller may receive the description
// of the Thing, otherwise that of a Thing that does not exist. A message on several affordances needs the right for each of them. Opening a
// tunnel needs the right to one affordance, because its messages are checked by [Policy.Allows]; tunnel reports whether an action is a
// tunnel.
func (p *Policy) Authorize(t *td.Thing, target *access.Target, tunnel func(action string) bool) interact.Middleware {
	known := sync.OnceValue(func() map[access.Op][]string { return access.Affordances(t) })
	check := func(m *interact.Message) (*did.Lent, error) {
		if m.Type == interact.InvokeAction && tunnel != nil && tunnel(m.Name) {
			return nil, p.authorizeTunnel(m, target, known())
		}
		return p.authorize(m, target, known)
	}
	return func(next interact.Thing) interact.Thing {
		return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			lent, err := check(m)
			then := next
			switch {
			case err != nil:
				return interact.Fail(err)
			case lent != nil:
				then = p.whileLent(next, lent, target.ID)
			case !m.From.Local(): // the caller has the right itself, and uses no other one later
				m = withoutDelegation(m)
			}
			if m.Type.Long() || m.Chunks != nil {
				return p.running.while(ctx, then, m, check, lent)
			}
			return then.Do(ctx, m)
		})
	}
}

// Permits reports whether a caller may send messages of a type about one affordance of a Thing, by what is known before the message.
func (p *Policy) Permits(who *did.Principal, d *td.Description, typ interact.Type, name string) bool {
	return p.Decide(who, access.Request{Op: opOf[typ], Target: access.TargetOf(d.Thing, d.Name()), Affordance: name}).Allow
}

// authorize returns the error of a message that its caller may not send, or the delegation that permits it if no rule does.
func (p *Policy) authorize(m *interact.Message, t *access.Target, known func() map[access.Op][]string) (*did.Lent, error) {
	if m.From == nil {
		return nil, errNoCaller
	}
	op := opOf[m.Type]
	if op == "" {
		return nil, nil // not a request: the Thing rejects it
	}
	r := access.Request{Op: op, Target: t, Affordance: m.Name, Hops: int(m.Hops), Input: (*messageInput)(m)}
	if m.Name != "" {
		return p.refusal(m, r)
	}
	var names []string
	if known != nil {
		names = known()[op]
	}
	if m.Type == interact.ReadMultipleProperties || m.Type == interact.WriteMultipleProperties || m.Type == interact.WriteAllProperties {
		names = namesIn(m, names)
	}
	if len(names) == 0 {
		return p.refusal(m, r)
	}
	for _, name := range names {
		r.Affordance = name
		if _, err := p.refusal(m, r); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// authorizeTunnel returns nil if the caller may use one affordance of the Thing.
func (p *Policy) authorizeTunnel(m *interact.Message, t *access.Target, known map[access.Op][]string) error {
	if m.From != nil {
		for op, names := range known {
			for _, name := range names {
				if p.Decide(m.From, access.Request{Op: op, Target: t, Affordance: name, Hops: int(m.Hops)}).Allow {
					return nil
				}
			}
		}
	}
	_, err := p.authorize(withoutDelegation(m), t, nil)
	return err
}

// refusal returns nil if r is allowed, with the delegation that allows it, if only that does.
func (p *Policy) refusal(m *interact.Message, r access.Request) (*did.Lent, error) {
	d := p.Decide(m.From, r)
	if d.Allow {
		p.record(m, r, d, 0)
		return nil, nil
	}
	if m.From.Pending != "" {
		p.record(m, r, d, interact.StatusUnknown)
		return nil, Unsettled(m.From)
	}
	if d.Rule == "" && d.Problem == "" {
		if p.lent.isOwnRun(m, r.Target.ID, interact.QueryAction, interact.CancelAction) {
			d.Allow, d.Rule = true, "a run by a delegation"
			p.record(m, r, d, 0)
			return nil, nil
		}
		lent, err := p.byDelegation(m, r)
		switch {
		case err != nil:
			p.record(m, r, d, interact.AsError(err).Code)
			return nil, err
		case lent != nil:
			d.Allow, d.Rule = true, "delegation "+lent.Link
			p.record(m, r, d, 0)
			return lent, nil
		}
	}
	sees := p.Sees(m.From, r.Target)
	p.logRefusal(Refusal{Who: m.From, Request: r, Decision: d, Hidden: !sees})
	if !sees {
		p.record(m, r, d, interact.NotFound)
		return nil, interact.NotOffered(m.Thing)
	}
	p.record(m, r, d, interact.Forbidden)
	return nil, interact.Errorf(interact.Forbidden, "ask the operator of that host for the right", "%s may not %s %s: %s", m.From.Short(), r.Op,
		m.Thing, d.Why())
}

func (p *Policy) record(m *interact.Message, r access.Request, d access.Decision, code interact.Code) {
	if p.rules.Load().Record != nil {
		p.rules.Load().Record(m, r, d, code)
	}
}

// A messageInput is the input of a message, for conditions of rules.
type messageInput interact.Message

// Value implements [access.Input].
func (m *messageInput) Value() (any, error) { return input((*interact.Message)(m)) }

var errStreamed = errors.New("it is a stream")

// input returns the data of a request as decoded JSON, for conditions of rules.
func input(m *interact.Message) (v any, err error) {
	if m.Chunks != nil {
		return nil, errStreamed
	}
	if len(m.Data) == 0 {
		return nil, nil
	}
	v, ok, err := interact.Value(m.Data, m.ContentType)
	if err == nil && !ok {
		err = errors.New("it is not JSON or CBOR")
	}
	return v, err
}

// namesIn returns the affordances that a message names, or all if it names none in the expected form: the Thing rejects such a message.
func namesIn(m *interact.Message, all []string) []string {
	v, err := input(m)
	if err != nil {
		return all
	}
	switch v := v.(type) {
	case []any:
		names := make([]string, 0, len(v))
		for _, one := range v {
			name, ok := one.(string)
			if !ok {
				return all
			}
			names = append(names, name)
		}
		return names
	case map[string]any:
		return slices.Sorted(maps.Keys(v))
	}
	return all
}

// Unsettled returns the error for a caller whose membership cannot be decided yet.
func Unsettled(who *did.Principal) error {
	e := interact.Errorf(interact.StatusUnknown, "try again later", "the membership of %s cannot be decided yet: %s", who.Short(), who.Pending)
	e.RetryAfter = 2 * time.Second
	return e
}

// Settled gives callers whose membership cannot be decided yet one answer for Things that exist and those that do not.
func (p *Policy) Settled() interact.Middleware {
	return func(t interact.Thing) interact.Thing {
		return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			if m.From == nil || m.From.Pending == "" {
				return t.Do(ctx, m)
			}
			return func(yield func(*interact.Message, error) bool) {
				t.Do(ctx, m)(func(r *interact.Message, err error) bool {
					if e := interact.AsError(err); e != nil && (e.Code == interact.NotFound || e.Code == interact.Withdrawn) {
						err = Unsettled(m.From)
					}
					return yield(r, err)
				})
			}
		})
	}
}
