// Package policy authorizes and rate-limits callers: it turns rules into [interact.Middleware].
//
// [Policy.Gate] checks the principal that the binding proved (interact.Message.From); [Policy.Limit] limits callers, and
// [Policy.LimitThing] limits one agent. A message without a principal is rejected. Consumers of this node (whose principal has no Node)
// were authorized by the gateway: no mode rejects them and no rate limits them, since they could use the agents directly; the limits of
// concurrency apply, but they are served first. The messages of consumers behind another node count for that node, because it chooses their
// names. Within the limits of the node each of its consumers has its own part.
//
// The files: accounts.go has the state of each caller, acquaintance.go the callers that are known, admission.go the slots for calls, rate.go
// and meter.go the rates, limit.go the middleware that combines them.
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
	Open      = "open"      // all callers that are not denied
	Verified  = "verified"  // callers that proved a DID and are not denied: every node of the mesh has one
	Allowlist = "allowlist" // callers that are allowed and not denied
)

// Rules determine which callers may use this node and its agents. The zero value admits all without a limit.
type Rules struct {
	// Mode is Open, Verified or Allowlist; empty means Open, and any other value admits no caller.
	Mode string
	// Self is the node itself, which is always admitted.
	Self did.DID
	// Allow lists the callers of the allowlist; Deny lists callers that are rejected in every mode.
	Allow, Deny []did.DID
	// PerPeer limits the messages of one caller per second, Burst those at once; the consumers of a node share both (see meter). Zero
	// PerPeer sets no limit; a Burst below 1 is 1. Lower values protect agents, and delay legitimate bursts.
	PerPeer float64
	Burst   int
	// ReadsPerPeer is the limit of messages that only read properties and states of actions, which do not count for PerPeer; its burst is
	// that of one second, or Burst. Zero sets no limit.
	ReadsPerPeer float64
	// Concurrency limits the concurrent interactions of all callers with a DID, and separately of those on this host. Further ones wait in
	// turns (see admission) for at most queueFor. Zero sets no limit. Subscriptions and observations are not included: they are mostly
	// idle, and last for days.
	Concurrency int
	// CallerConcurrency limits the running or waiting interactions of one caller. One consumer of a node leaves a quarter to the others.
	// Zero sets no limit.
	CallerConcurrency int
	// Subscriptions limits the subscriptions and observations of one caller; zero sets no limit here, but the hub of the node has one.
	Subscriptions int
	// PerThing limits the messages to one agent of this node per second, of all callers with a DID together, and ThingBurst those at once.
	// Zero PerThing sets no limit; a ThingBurst below 1 is the number of one second.
	PerThing   float64
	ThingBurst int
	// ThingConcurrency limits the concurrent interactions with one agent of this node, of all callers; its TD may set a lower limit.
	// Further ones wait in turns until their deadlines. Zero sets no limit and no order.
	ThingConcurrency int
	// UntrustedDeadline is the longest deadline of an untrusted caller, and UntrustedRun that of a request stream or a long action. Longer
	// ones are shortened, and the error names the limit. Zero sets no limit.
	UntrustedDeadline, UntrustedRun time.Duration
}

// A Policy applies Rules. It is safe for concurrent use.
type Policy struct {
	rules       Rules
	allow, deny map[did.DID]bool
	peers       *admission // of callers with a DID; nil: no limit
	own         *admission // of callers on this host, which other callers cannot take
	free        bool       // no limit of concurrency or time
	met         acquaintances
	untrusted   count // subscriptions of untrusted callers
	unverified  count // subscriptions of untrusted and known callers
	callers     accounts[did.DID]
	things      accounts[thingKey]
}

// A thingKey is an agent and its concurrency: a change of it creates new places.
type thingKey struct {
	id     string
	places int
}

// queueFor is how long an interaction waits for a place of the node. Agents that call each other hold places while they wait: such cycles
// must end before their deadlines.
const queueFor = 10 * time.Second

// Subscriptions last for days: those of untrusted callers leave room for others. A node serves 4,096.
const (
	maxUntrusted  = 1024 // of untrusted callers together
	maxUnverified = 2048 // of those and known ones
)

// Limits of the accounts of callers, and of agents of this node. Further ones share an account.
const (
	maxCallers = 4096
	maxThings  = 1 << 16
)

// New returns a policy with rules r. It copies the lists.
func New(r Rules) *Policy {
	if r.ThingBurst < 1 {
		r.ThingBurst = int(min(max(r.PerThing, 1), 1<<30))
	}
	p := &Policy{rules: r, allow: set(r.Allow), deny: set(r.Deny)}
	p.callers, p.things = newAccounts(maxCallers, p.beginCaller), newAccounts(maxThings, p.beginThing)
	p.free = r.Concurrency <= 0 && r.CallerConcurrency <= 0 && r.ThingConcurrency <= 0 && r.UntrustedDeadline <= 0 && r.UntrustedRun <= 0
	if r.Concurrency > 0 {
		p.peers, p.own = newAdmission(r.Concurrency), newAdmission(r.Concurrency)
	}
	return p
}

// Most returns the maximal number of running or waiting interactions of other nodes, without subscriptions; 0 without a limit. A server
// with a lower limit rejects callers before the policy classifies them.
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

// Admits returns nil if id may take part, else an [*interact.Error] of code Forbidden that names the rule. It applies to each message, and
// to peers in connections, gossip and the DHT. An empty id is a caller on this host.
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

// The callers that a policy admits, as [Policy.Callers] returns them.
const (
	Anyone  = "anyone"  // all peers that are not denied
	Allowed = "allowed" // peers in Rules.Allow
)

// Callers returns which callers the rules admit: Anyone or Allowed. Callers on this machine are always admitted.
func (p *Policy) Callers() string {
	if p.rules.Mode == Allowlist {
		return Allowed
	}
	return Anyone
}

// Trust returns the trust in id, 0 to 1, and its rule, for ranking: 1 if trust.allow lists it, 0 if it is not admitted, 0.5 without a rule.
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
		"%s is rejected: %s", id.Short(), rule)
}

// Gate rejects messages of callers that the policy does not admit.
func (p *Policy) Gate() interact.Middleware {
	return func(t interact.Thing) interact.Thing {
		return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			if m.From == nil {
				return interact.Fail(interact.Errorf(interact.Forbidden, "report it: the receiver of a message must set its sender",
					"the message has no caller"))
			}
			if err := p.Admits(m.From.Node); err != nil {
				return interact.Fail(err)
			}
			return t.Do(ctx, m)
		})
	}
}
