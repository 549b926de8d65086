package publication

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/dht"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/scheme"
)

// Limits of probing the agents of this node.
const (
	probePause   = 5 * time.Second // after a reply or a probe
	probeTimeout = time.Second
	maxProbes    = 16 // agents at once
	maxTargets   = 4  // addresses of one agent
	// failureMemory is how long an agent without an address to probe counts as away after a failed call.
	failureMemory = time.Minute
	// failurePause is the time between two log lines about failed calls of one agent.
	failurePause = 10 * time.Second
)

// A liveness holds the state of the agent of a publication, from the results of interactions with it. If the agent has an address and there
// is no recent result, the address is probed on demand. It is safe for concurrent use.
type liveness struct {
	p       *Publisher
	desc    *td.Description
	link    *attachedAgent // nil for other agents
	targets []target       // of the agent, or of its broker; empty: it cannot be probed
	probing sync.Mutex
	checked atomic.Int64 // when it last answered, failed or was probed, in nanoseconds since 1970
	down    atomic.Bool  // it could not be reached then
	warned  atomic.Int64 // when a failed call was logged, in nanoseconds since 1970
	byCall  atomic.Bool  // a call found that, and a call shows more than a probe of the broker
}

// newLiveness returns the liveness of the agent of d. Handler is nil for an agent that is called over the forms of d.
func (p *Publisher) newLiveness(d *td.Description, handler interact.Thing) *liveness {
	l := &liveness{p: p, desc: d}
	if handler == nil {
		l.targets = p.targetsOf(d.Thing)
	}
	l.link, _ = handler.(*attachedAgent)
	p.o.Directory.SetAway(d, p.o.Signer.DID(), false) // its agent has just published it
	return l
}

// watch records the results of interactions with the agent.
func (l *liveness) watch(agent interact.Thing) interact.Thing {
	return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			agent.Do(ctx, m)(func(r *interact.Message, err error) bool {
				if l.note(err); err != nil {
					l.logFailure(m, err)
				}
				return yield(r, err)
			})
		}
	})
}

// note records one reply. An error that the agent itself has sent shows that it is up, unless it is attached: an attached process reports
// Unreachable for an agent behind it.
func (l *liveness) note(err error) {
	e, failed := errors.AsType[*interact.Error](err)
	switch {
	case err == nil && !l.down.Load():
		l.checked.Store(time.Now().UnixNano())
		l.p.o.Directory.Answered(l.desc)
	case err == nil:
		l.set(true)
	case failed && e.Code == interact.Unreachable && (!e.Remote || l.link != nil):
		l.set(false)
		l.byCall.Store(true)
	case failed && e.Remote:
		l.set(true)
	}
}

// logFailure logs that the agent failed a call, at most every [failurePause].
func (l *liveness) logFailure(m *interact.Message, err error) {
	e, ok := errors.AsType[*interact.Error](err)
	if !ok || e.Code != interact.AgentFailed && e.Code != interact.Internal && e.Code != interact.Timeout {
		return // the consumer left, or its request is refused
	}
	now, last := time.Now(), l.warned.Load()
	if now.Sub(time.Unix(0, last)) < failurePause || !l.warned.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	l.p.o.Log.Warn("agent failed", "agent", l.desc.Name(), "action", m.Name, "code", e.Code.String(), "err", err)
}

// set records whether the agent answers, also in the directory.
func (l *liveness) set(up bool) {
	l.checked.Store(time.Now().UnixNano())
	if l.down.Swap(!up) == up {
		if up {
			l.p.o.Log.Info("agent answers again", "agent", l.desc.Name())
		} else {
			l.p.o.Log.Warn("agent does not answer", "agent", l.desc.Name(), "thing", l.desc.ID)
		}
	}
	l.byCall.Store(false)
	l.p.o.Directory.SetAway(l.desc, l.p.o.Signer.DID(), !up)
}

// isUp reports whether the agent answers, as far as is known. Without a recent result it probes the agent, which takes up to probeTimeout
// for each caller.
func (l *liveness) isUp(ctx context.Context) bool {
	if l.link != nil && !l.link.isConnected() {
		l.p.o.Directory.SetAway(l.desc, l.p.o.Signer.DID(), true)
		return false
	}
	if len(l.targets) == 0 {
		if l.isForgotten() || l.link != nil && !l.down.Load() {
			l.set(true)
		}
		return !l.down.Load()
	}
	l.probing.Lock()
	defer l.probing.Unlock()
	if l.age() >= cmp.Or(l.p.o.ProbePause, probePause) {
		switch direct, vague := probe(ctx, l.targets); {
		case direct || vague && (!l.byCall.Load() || l.isForgotten()):
			l.set(true)
		case !vague && ctx.Err() == nil:
			l.set(false)
		}
	}
	return !l.down.Load()
}

// isForgotten reports whether the last failure of the agent is too old to count.
func (l *liveness) isForgotten() bool { return l.down.Load() && l.age() >= failureMemory }

func (l *liveness) age() time.Duration { return time.Since(time.Unix(0, l.checked.Load())) }

// A target is an address that is probed.
type target struct {
	addr    string
	probe   func(ctx context.Context, addr string) error
	isVague bool // success does not show that the agent is up; failure shows that it is away
}

// newTarget returns the target of a scheme at addr. A broker may be up without the agent behind it. A scheme over UDP without a ping cannot be
// probed.
func (p *Publisher) newTarget(s scheme.Scheme, addr string) target {
	ping := p.o.Pings[s.Name]
	switch {
	case p.o.Dial != nil:
		return target{addr, connects(p.o.Dial), s.IsBroker}
	case s.Network != "udp":
		return target{addr, connects(new(net.Dialer).DialContext), s.IsBroker}
	case ping != nil:
		return target{addr, ping, false}
	}
	return target{addr, func(context.Context, string) error { return nil }, true}
}

// connects returns a probe that opens a connection.
func connects(dial func(ctx context.Context, network, addr string) (net.Conn, error)) func(ctx context.Context, addr string) error {
	return func(ctx context.Context, addr string) error {
		c, err := dial(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

// probe probes all targets within probeTimeout. It reports whether the agent itself answers, and whether it may be up.
func probe(ctx context.Context, targets []target) (direct, vague bool) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	answers := make([]bool, len(targets))
	var g sync.WaitGroup
	for i, t := range targets {
		g.Go(func() {
			if answers[i] = t.probe(ctx, t.addr) == nil; answers[i] && !t.isVague {
				cancel() // one direct answer is enough
			}
		})
	}
	g.Wait()
	for i, t := range targets {
		direct, vague = direct || answers[i] && !t.isVague, vague || answers[i]
	}
	return direct, vague
}

// targetsOf returns the addresses in the forms of t that can be probed.
func (p *Publisher) targetsOf(t *td.Thing) (targets []target) {
	for _, f := range interact.AllForms(t) {
		u, err := url.Parse(origin(f.Href))
		if err != nil || u.Hostname() == "" {
			continue
		}
		s := scheme.Lookup(u.Scheme)
		addr := net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), s.Port))
		if s.Name != "" && len(targets) < maxTargets && !slices.ContainsFunc(targets, func(t target) bool { return t.addr == addr }) {
			targets = append(targets, p.newTarget(s, addr))
		}
	}
	return targets
}

// origin cuts an address after its host; the rest may be a URI template.
func origin(href string) string {
	if parts := strings.SplitN(href, "/", 4); len(parts) == 4 {
		return strings.Join(parts[:3], "/")
	}
	return href
}

// IsUp reports whether the agent of pub answers, as far as is known; it probes the agent if that is not known. It probes 16 agents at once.
func (p *Publisher) IsUp(ctx context.Context, pub *Publication) bool {
	l := pub.live
	if l == nil {
		return true
	}
	select {
	case p.probes <- struct{}{}:
		defer func() { <-p.probes }()
	case <-ctx.Done():
		return !l.down.Load()
	}
	return l.isUp(ctx)
}

// States returns the states of the agents with the keys, for other nodes (dht.Options.States). Things that the caller of ctx may not know
// count as not hosted here.
func (p *Publisher) States(ctx context.Context, keys [][32]byte) []dht.AgentState {
	states := make([]dht.AgentState, len(keys))
	if p.o.Index.awaitAll(ctx) != nil {
		return states // as of Things that are not here
	}
	var g sync.WaitGroup
	for i, key := range keys {
		if pub := p.o.Index.byKey(key); pub != nil && p.o.Index.isVisible(ctx, pub) {
			g.Go(func() {
				if states[i] = dht.AgentPresent; !p.IsUp(ctx, pub) {
					states[i] = dht.AgentAway
				}
			})
		}
	}
	g.Wait()
	return states
}
