package node

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"net"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/dht"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/publication"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/scheme"
)

// Bounds of looking after the agents of this host.
const (
	tryAgain    = 5 * time.Second // an agent that answered, or was tried, so lately is not tried again
	tryAgent    = time.Second     // how long it is tried
	triesAtOnce = 16              // agents
	maxTried    = 4               // addresses of one agent
	// downMemory is how long an agent that nobody can try, and that could not be reached by a call, counts as away.
	downMemory = time.Minute
)

// hosted is the agent of a thing of this node, and whether it answers.
type hosted struct {
	interact.Thing
	*health
}

// A connector is the handler of an attached agent (publication.Publisher.Attach).
type connector interface{ IsConnected() bool }

// health knows whether an agent of this host answers: by how interactions with it end, and for those with an address by trying
// that, when somebody asks and nothing was heard of it lately. It is safe for concurrent use.
type health struct {
	node    *Node
	desc    *td.Description
	link    connector // of an attached agent; nil for others
	targets []target  // where it, or its broker, listens; empty: it cannot be tried
	trying  sync.Mutex
	heard   atomic.Int64 // when it answered, failed or was tried, in nanoseconds since 1970
	down    atomic.Bool  // it could not be reached then
	called  atomic.Bool  // down was found by a call, which knows more than that a broker is there
}

// healthOf is that of an agent, which is nil if it is asked over its forms.
func (n *Node) healthOf(d *td.Description, agent interact.Thing) *health {
	h := &health{node: n, desc: d}
	if agent == nil {
		h.targets = targetsOf(d.Thing)
	}
	h.link, _ = agent.(connector)
	n.dir.Away(d, n.DID(), false) // it is published anew: there is somebody
	return h
}

// wrap notes how interactions with the agent end.
func (h *health) wrap(agent interact.Thing) interact.Thing {
	return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			agent.Do(ctx, m)(func(r *interact.Message, err error) bool {
				h.note(err)
				return yield(r, err)
			})
		}
	})
}

// note notes one reply of the agent. An error that it has sent itself says that it is there: only who dialled in speaks for an agent
// behind it, which may be away.
func (h *health) note(err error) {
	e, failed := errors.AsType[*interact.Error](err)
	switch {
	case err == nil && !h.down.Load():
		h.heard.Store(time.Now().UnixNano())
		h.node.dir.Answers(h.desc)
	case err == nil:
		h.set(true)
	case failed && e.Code == interact.Unreachable && (!e.Remote || h.link != nil):
		h.set(false)
		h.called.Store(true)
	case failed && e.Remote:
		h.set(true)
	}
}

// set notes whether the agent answers, and has the directory know.
func (h *health) set(up bool) {
	h.heard.Store(time.Now().UnixNano())
	h.down.Store(!up)
	h.called.Store(false)
	h.node.dir.Away(h.desc, h.node.DID(), !up)
}

// answers reports whether the agent is there, as far as is known, and tries it if nothing was heard of it lately. It takes no longer
// than tryAgent, for each caller.
func (h *health) answers(ctx context.Context) bool {
	if h.link != nil && !h.link.IsConnected() {
		h.node.dir.Away(h.desc, h.node.DID(), true)
		return false
	}
	if len(h.targets) == 0 {
		if h.forgives() || h.link != nil && !h.down.Load() {
			h.set(true)
		}
		return !h.down.Load()
	}
	h.trying.Lock()
	defer h.trying.Unlock()
	if h.age() >= tryAgain {
		switch direct, vague := try(ctx, h.targets); {
		case direct || vague && (!h.called.Load() || h.forgives()):
			h.set(true)
		case !vague && ctx.Err() == nil:
			h.set(false)
		}
	}
	return !h.down.Load()
}

// forgives reports whether an agent could not be reached so long ago that it gets another chance.
func (h *health) forgives() bool { return h.down.Load() && h.age() >= downMemory }

func (h *health) age() time.Duration { return time.Since(time.Unix(0, h.heard.Load())) }

// A target is what is tried to find out whether an agent is there.
type target struct {
	attempt
	addr string
}

// An attempt probes an address of a scheme.
type attempt struct {
	answers func(ctx context.Context, addr string) error
	isVague bool // an answer shows nothing of the agent; without one the agent is away
}

// attemptOf returns the probe of a scheme: a ping over UDP, else a connection. A broker that answers says nothing of the agent behind it.
func attemptOf(s scheme.Scheme) attempt {
	if s.Network != "udp" {
		return attempt{connects, s.IsBroker}
	}
	if ping := pings[s.Name]; ping != nil {
		return attempt{ping, false}
	}
	return attempt{func(context.Context, string) error { return nil }, true}
}

func connects(ctx context.Context, addr string) error {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return c.Close()
}

// try tries some targets, all within tryAgent, and reports whether the agent itself answers, and whether it may be there.
func try(ctx context.Context, targets []target) (direct, vague bool) {
	ctx, cancel := context.WithTimeout(ctx, tryAgent)
	defer cancel()
	answers := make([]bool, len(targets))
	var g sync.WaitGroup
	for i, t := range targets {
		g.Go(func() {
			if answers[i] = t.answers(ctx, t.addr) == nil; answers[i] && !t.isVague {
				cancel() // that is enough
			}
		})
	}
	g.Wait()
	for i, t := range targets {
		direct, vague = direct || answers[i] && !t.isVague, vague || answers[i]
	}
	return direct, vague
}

// targetsOf returns where the forms of t lead, if that can be tried.
func targetsOf(t *td.Thing) (targets []target) {
	for _, f := range everyForm(t) {
		u, err := url.Parse(origin(f.Href))
		if err != nil || u.Hostname() == "" {
			continue
		}
		s := scheme.Lookup(u.Scheme)
		if s.Name == "" {
			continue
		}
		addr := net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), s.Port))
		if len(targets) < maxTried && !slices.ContainsFunc(targets, func(t target) bool { return t.addr == addr }) {
			targets = append(targets, target{attemptOf(s), addr})
		}
	}
	return targets
}

// origin cuts what comes behind the host of an address, which may be a template.
func origin(href string) string {
	for i, rest := 0, href; i < 3; i++ {
		at := slices.Index([]byte(rest), '/')
		if at < 0 {
			break
		}
		if rest = rest[at+1:]; i == 2 {
			return href[:len(href)-len(rest)-1]
		}
	}
	return href
}

// agentStates answers other nodes how agents of this one are (dht.Options.States). Of what is told to nobody it says nothing.
func (n *Node) agentStates(ctx context.Context, keys [][32]byte) []dht.AgentState {
	states := make([]dht.AgentState, len(keys))
	var g sync.WaitGroup
	for i, key := range keys {
		if of := n.offered.ByKey(key); of != nil && !of.IsUnlisted() {
			g.Go(func() {
				if states[i] = dht.AgentPresent; !n.answers(ctx, of) {
					states[i] = dht.AgentAway
				}
			})
		}
	}
	g.Wait()
	return states
}

// answers reports whether the agent of an offer is there. Only so many are tried at once.
func (n *Node) answers(ctx context.Context, of *publication.Publication) bool {
	h, ok := of.Agent.(*hosted)
	if !ok {
		return true
	}
	select {
	case n.looks.trying <- struct{}{}:
		defer func() { <-n.looks.trying }()
	case <-ctx.Done():
		return !h.down.Load()
	}
	return h.answers(ctx)
}
