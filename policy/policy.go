// Package policy authorizes and rate-limits callers: it turns rules into [interact.Middleware].
//
// [Policy.Gate] looks at the principal that the binding proved (interact.Message.From); [Policy.Limit] counts what callers ask, and
// [Policy.LimitThing] what one agent is asked. A message without a principal is refused: who asks is never guessed. Consumers of
// this node (whose principal has no Node) were let in by its edge: no mode refuses them and no rate slows them, since they could as
// well use the agents themselves; the numbers that may run at once, of all callers and of one agent, hold for them too, and they
// are served first. What a caller behind another node asks is counted of that node: its names are the node's word, and invented
// ones buy nothing. Within what the node may have each of its consumers has a part of its own.
package policy

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// Modes of a policy.
const (
	Open      = "open"      // everyone who is not denied
	Verified  = "verified"  // whoever proved a DID and is not denied: every node of the mesh has
	Allowlist = "allowlist" // only those allowed, and not denied
)

// Rules say who may ask this node and its agents. The zero value admits everyone without a limit.
type Rules struct {
	// Mode is Open, Verified or Allowlist; empty means Open, and anything else admits nobody.
	Mode string
	// Self is the node itself, which is always admitted: its own agents and records are not those of a stranger whom a list left out.
	Self did.DID
	// Allow names who passes the allowlist; Deny who is refused in every mode.
	Allow, Deny []did.DID
	// PerPeer is how many messages a second one caller may send in the long run, Burst how many at once; the consumers of a node share
	// both, each with a part of its own (see meter). Zero PerPeer sets no limit; a Burst below 1 is 1. Lower values protect agents from greedy callers, and
	// slow honest ones in a hurry.
	PerPeer float64
	Burst   int
	// ReadsPerPeer is the same for what only reads, properties and states of actions, which costs little and is not counted above;
	// at once may come what a second brings, or Burst. Zero sets no limit.
	ReadsPerPeer float64
	// Concurrency is how many interactions may run at once, of all callers with a DID, and again as many of those on this machine.
	// What comes on top waits, by turns (see admission), for at most queueFor. Zero sets no limit. Subscriptions and observations
	// are counted apart: they wait most of the time, and go on for days.
	Concurrency int
	// ConsumerConcurrency is how many of one caller may run or wait at once; more are refused. One consumer of a node leaves a quarter to
	// the others. Zero sets no limit.
	ConsumerConcurrency int
	// Subscriptions is how many subscriptions and observations one caller may have at once; zero sets no limit.
	Subscriptions int
	// PerThing is how many messages a second one agent of this node gets in the long run, of all callers with a DID together,
	// and ThingBurst how many at once. Zero PerThing sets no limit; a ThingBurst below 1 is what a second brings.
	PerThing   float64
	ThingBurst int
	// ThingConcurrency is how many interactions may run at once with one agent of this node, of all callers, and fewer if its
	// description says so; what comes on top waits, by turns, until its deadline. Zero lets run what comes, in no order.
	ThingConcurrency int
	// UntrustedDeadline is the longest deadline of a caller that is untrusted, and UntrustedRun that of a message with a request
	// stream, and of a long action, which is no part of its caller's time. More is cut, and who waited for it is told. Zero cuts
	// nothing.
	UntrustedDeadline, UntrustedRun time.Duration
}

// A Policy applies Rules. It is safe for concurrent use.
type Policy struct {
	rules       Rules
	allow, deny map[did.DID]bool
	peers       *admission // of callers with a DID; nil: no limit
	own         *admission // of callers on this machine: no stranger takes their places
	free        bool       // nothing is counted of what runs, and no time is cut
	met         acquaintances
	untrusted   count // subscriptions of untrusted callers
	unverified  count // subscriptions of untrusted and known callers
	callers     accounts[did.DID]
	things      accounts[thingKey]
}

// A thingKey is an agent, and how many interactions it says that it takes at once: if that changes, its places are counted anew.
type thingKey struct {
	id     string
	places int
}

// queueFor is how long an interaction waits for a place of the node. An agent that calls another one holds a place while that call
// waits for one: such cycles must end before their deadlines.
const queueFor = 10 * time.Second

// Subscriptions last for days: those of untrusted callers leave slots for others. A node serves 4,096.
const (
	maxUntrusted  = 1024 // of untrusted callers together
	maxUnverified = 2048 // of those and known ones
)

// At most so many callers, and agents of this node, are remembered. Beyond that new ones share an account.
const (
	maxCallers = 4096
	maxThings  = 1 << 16
)

// New returns a policy with rules r. It keeps r's lists.
func New(r Rules) *Policy {
	if r.ThingBurst < 1 {
		r.ThingBurst = int(min(max(r.PerThing, 1), 1<<30))
	}
	p := &Policy{rules: r, allow: set(r.Allow), deny: set(r.Deny)}
	p.callers, p.things = newAccounts(maxCallers, p.beginCaller), newAccounts(maxThings, p.beginThing)
	p.free = r.Concurrency <= 0 && r.ConsumerConcurrency <= 0 && r.ThingConcurrency <= 0 && r.UntrustedDeadline <= 0 && r.UntrustedRun <= 0
	if r.Concurrency > 0 {
		p.peers, p.own = newAdmission(r.Concurrency), newAdmission(r.Concurrency)
	}
	return p
}

// Most is how many interactions of other nodes may run or wait for a place of the node, without subscriptions; 0 if that is not limited. What
// serves fewer at once refuses callers before the policy has seen who they are.
func (p *Policy) Most() int {
	if p.peers == nil {
		return 0
	}
	return p.peers.places * (1 + int(owner)*classWaits)
}

func set(ids []did.DID) map[did.DID]bool {
	m := make(map[did.DID]bool, len(ids))
	for _, id := range ids {
		m[id] = true
	}
	return m
}

// Admits returns nil if id may take part, else an [*interact.Error] of code Forbidden that names the rule. It is what the
// gate asks for each message, and connections, gossip and the DHT for each peer. An empty id is a caller on this machine.
func (p *Policy) Admits(id did.DID) error {
	switch {
	case id == "" || id == p.rules.Self:
		return nil
	case p.deny[id]:
		return forbidden(id, "trust.deny lists it")
	case p.rules.Mode == "" || p.rules.Mode == Open || p.rules.Mode == Verified || p.allow[id] && p.rules.Mode == Allowlist:
		return nil
	case p.rules.Mode == Allowlist:
		return forbidden(id, "trust.policy is allowlist and trust.allow does not list it")
	}
	return forbidden(id, fmt.Sprintf("trust.policy %q is unknown", p.rules.Mode))
}

// Who may call the agents of a node, as [Policy.Callers] says it.
const (
	Anyone  = "anyone"  // each peer that is not denied
	Allowed = "allowed" // peers in Rules.Allow
)

// Callers tells whom the rules admit: Anyone or Allowed. Callers on this machine are always admitted.
func (p *Policy) Callers() string {
	if p.rules.Mode == Allowlist {
		return Allowed
	}
	return Anyone
}

// Trust says how much id is trusted, 0 to 1, and by which rule, for those who rank: wholly if trust.allow lists it, not at all if it is
// not admitted, half if the rules do not know it.
func (p *Policy) Trust(id did.DID) (amount float64, why string) {
	switch {
	case id == p.rules.Self:
		return 1, "this node"
	case p.deny[id]:
		return 0, "trust.deny"
	case p.allow[id]:
		return 1, "trust.allow"
	case p.Admits(id) != nil:
		return 0, "not in trust.allow"
	}
	return 0.5, "no rule"
}

func forbidden(id did.DID, rule string) error {
	return interact.Errorf(interact.Forbidden, "ask the operator of that node to change its trust settings",
		"%s is refused: %s", id.Short(), rule)
}

// Gate refuses messages of callers that the policy does not admit.
func (p *Policy) Gate() interact.Middleware {
	return func(t interact.Thing) interact.Thing {
		return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			if m.From == nil {
				return interact.Fail(interact.Errorf(interact.Forbidden, "report it: what received the message has to say who sent it",
					"nobody asks: the message has no caller"))
			}
			if err := p.Admits(m.From.Node); err != nil {
				return interact.Fail(err)
			}
			return t.Do(ctx, m)
		})
	}
}
