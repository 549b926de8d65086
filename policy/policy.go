// Package policy authorizes and rate-limits callers: it turns rules into [interact.Middleware].
//
// The access rules of the operator (package rules) are asked at three points: [Policy.Connects] for the streams of other nodes,
// [Policy.Authorize] for messages to a Thing, and [Policy.Sees] for descriptions. [Policy.Limit] limits callers, and [Policy.LimitThing] limits
// one agent. No rate limits the consumers of this node (whose principal has no Node), since they could use the agents directly; the limits of
// concurrency apply, but they are served first. The messages of consumers behind another node count for that node, because it chooses their
// names. Within the limits of the node each of its consumers has its own part.
//
// The files: decide.go has the points, running.go ends interactions that lose their right, lent.go has the
// rights by delegations, accounts.go has the state of each caller,
// acquaintance.go the callers that are known, admission.go the slots for calls, rate.go and meter.go the rates, limit.go the middleware that
// combines them.
package policy

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/policy/rules"
)

// Rules determine which callers may use this node and its agents. With the zero value
// untrusted callers find the public agents and call none, the nodes of the own organization may call, and there is no limit.
type Rules struct {
	// Self is the node itself, which may do everything.
	Self          did.DID
	rules.Options // of the access rules
	// Record receives each decision on a message, with the code of its error, 0 if it is allowed. It must be fast and not block; nil is ignored.
	Record func(m *interact.Message, r access.Request, d access.Decision, code interact.Code)
	// Log receives the refusals of messages; nil discards. Hint returns what the operator can do about one, for the log; nil: nothing.
	Log  *slog.Logger
	Hint func(Refusal) string
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
	*rules.Store
	rules      atomic.Pointer[Rules] // [Policy.Change] replaces it
	running    running
	lent       lending
	refused    refusals
	peers      *admission // of callers with a DID; nil: no limit
	own        *admission // of callers on this host, which other callers cannot take
	met        acquaintances
	untrusted  count // subscriptions of untrusted callers
	unverified count // subscriptions of untrusted and known callers
	callers    accounts[did.DID]
	things     accounts[thingKey]
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

// New returns a policy with rules r, without those of Rules.File, which [rules.Store.Load] reads.
func New(r Rules) *Policy {
	p := &Policy{}
	p.rules.Store(r.withDefaults())
	o := r.Options
	o.OnLoad = func(changes string) {
		p.Recheck("")
		if r.OnLoad != nil {
			r.OnLoad(changes)
		}
	}
	p.Store = rules.New(o)
	p.running.principal = p.Principal
	p.callers, p.things = newAccounts(maxCallers, p.beginCaller), newAccounts(maxThings, p.beginThing)
	if r.Concurrency > 0 {
		p.peers, p.own = newAdmission(r.Concurrency), newAdmission(r.Concurrency)
	}
	return p
}

func (r Rules) withDefaults() *Rules {
	if r.ThingBurst < 1 {
		r.ThingBurst = int(min(max(r.PerThing, 1), 1<<30))
	}
	return &r
}

// unlimited reports whether there is no limit of concurrency or time.
func (r *Rules) unlimited() bool {
	return r.Concurrency <= 0 && r.CallerConcurrency <= 0 && r.ThingConcurrency <= 0 && r.UntrustedDeadline <= 0 && r.UntrustedRun <= 0
}

// Change puts other settings in force: the rates, CallerConcurrency, ThingConcurrency and the limits of untrusted callers, and those that
// [rules.Store.Change] takes, as it does preview. The other fields of r are ignored. The error is that of [rules.Store.Load]; nothing has changed
// then.
func (p *Policy) Change(r Rules, preview func(on bool)) error {
	if err := p.Store.Change(r.Options, preview); err != nil {
		return err
	}
	next := *p.rules.Load()
	next.PerPeer, next.Burst, next.ReadsPerPeer, next.PerThing, next.ThingBurst = r.PerPeer, r.Burst, r.ReadsPerPeer, r.PerThing, r.ThingBurst
	next.CallerConcurrency, next.ThingConcurrency = r.CallerConcurrency, r.ThingConcurrency
	next.UntrustedDeadline, next.UntrustedRun = r.UntrustedDeadline, r.UntrustedRun
	before, after := p.rules.Load(), next.withDefaults()
	p.rules.Store(after)
	if before.PerPeer != after.PerPeer || before.Burst != after.Burst || before.ReadsPerPeer != after.ReadsPerPeer { // others keep their levels
		p.callers.each(p.beginCaller)
	}
	if before.PerThing != after.PerThing || before.ThingBurst != after.ThingBurst {
		p.things.each(p.meterThing)
	}
	return nil
}

// Most returns the maximal number of running or waiting interactions of other nodes, without subscriptions; 0 without a limit. A server
// with a lower limit rejects callers before the policy classifies them.
func (p *Policy) Most() int {
	if p.peers == nil {
		return 0
	}
	return p.peers.places * (1 + int(owner)*classWaits)
}
