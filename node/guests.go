package node

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// grace is how long the place of an agent is kept that dialled in and was cut off.
const grace = 15 * time.Second

// guests are the agents that dialled in: each is offered like one of this process, and answers over its own connection.
type guests struct {
	node *Node

	mu  sync.Mutex
	all map[string]*guest // by thing id; owned by mu
}

// A guest is one agent that dialled in. While it is away, calls of it fail at once.
type guest struct {
	mu    sync.Mutex
	agent interact.Thing // nil while away; owned by mu
}

// Register offers an agent that dialled in: it is described by a TD, or by a draft of one (td.Draft), and answers through thing.
// A second registration of an id takes the place of the first. Gone is called once: when the agent has taken itself back (over),
// and then it is withdrawn, or when its connection has ended, and then its place is kept for some seconds first.
func (n *Node) Register(ctx context.Context, raw []byte, thing interact.Thing) (id string, gone func(over bool), err error) {
	draft, err := td.Draft(raw)
	if err != nil {
		return "", nil, interact.AsError(err)
	}
	t, err := td.Complete(draft, n.DID())
	if err != nil {
		return "", nil, interact.AsError(err)
	}
	g := n.guests.enter(t.ID)
	came := &connection{thing}
	before := g.comes(came)
	if _, err := n.offer(ctx, t.Raw, g); err != nil {
		g.yields(came, before)
		n.guests.drop(t.ID, g)
		return "", nil, err
	}
	return t.ID, func(over bool) {
		if g.goes(came) {
			n.later(func(ctx context.Context) { n.guests.expire(ctx, t.ID, g, over) })
		}
	}, nil
}

// A connection is the thing of one connection; two are equal only if they are the same.
type connection struct{ interact.Thing }

func (gs *guests) enter(id string) *guest {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	g := gs.all[id]
	if g == nil {
		g = &guest{}
		gs.all[id] = g
	}
	return g
}

func (gs *guests) drop(id string, g *guest) bool {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.agent != nil || gs.all[id] != g {
		return false // it came back
	}
	delete(gs.all, id)
	return true
}

// expire withdraws a guest that does not come back in time, or said that it will not.
func (gs *guests) expire(ctx context.Context, id string, g *guest, over bool) {
	wait := grace
	if over {
		wait = 0
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return // what is offered ends with the process
	}
	if !gs.drop(id, g) {
		return
	}
	n := gs.node
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err := n.Unpublish(ctx, refOf(id, n.DID())); err != nil && ctx.Err() == nil {
		n.log.Warn("an agent that went away is still offered", "thing", id, "err", err)
	}
}

// comes makes c the agent, and returns which was before.
func (g *guest) comes(c *connection) interact.Thing {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.agent
	g.agent = c
	return before
}

// yields gives the place of c, which was refused, back to who had it. If that went meanwhile, it says so itself when it is asked.
func (g *guest) yields(c *connection, before interact.Thing) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.agent == interact.Thing(c) {
		g.agent = before
	}
}

// goes notes that c has ended. It reports whether nobody took its place before.
func (g *guest) goes(c *connection) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.agent != c {
		return false
	}
	g.agent = nil
	return true
}

// Do implements [interact.Thing].
func (g *guest) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	g.mu.Lock()
	agent := g.agent
	g.mu.Unlock()
	if agent == nil {
		return interact.Fail(interact.Errorf(interact.Unreachable, "wait until it is back: it has "+grace.String()+", then it is withdrawn",
			"the agent %s is away: its connection to its node broke", m.Thing))
	}
	return agent.Do(ctx, m)
}
