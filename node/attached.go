package node

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// grace is how long the place of an agent is kept that dialled in and was cut off, or whose node was started again.
const grace = 15 * time.Second

// guests are the agents that dialled in: each is offered like one of this process, and answers over its own connection.
type guests struct {
	node *Node

	mu  sync.Mutex
	all map[string]*guest // by thing id; owned by mu
}

// A guest is the place of one agent that dialled in. While the agent is away, calls of it fail at once.
type guest struct {
	mu sync.Mutex
	// what follows is owned by mu.
	agent *connection   // nil while away
	last  *connection   // after which it is away
	over  chan struct{} // closed when the guest has been withdrawn; nil until that begins
}

// A connection is the thing of one connection.
type connection struct {
	interact.Thing
	ended bool // owned by the guest's mu
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
	came := &connection{Thing: thing}
	g, before, err := n.guests.enter(ctx, t.ID, came)
	if err != nil {
		return "", nil, err
	}
	if _, err := n.offer(ctx, t.Raw, g); err != nil {
		if g.yields(came, before) {
			n.guests.leave(t.ID, g, came, false)
		}
		return "", nil, err
	}
	return t.ID, func(over bool) {
		if g.goes(came) {
			n.guests.leave(t.ID, g, came, over)
		}
	}, nil
}

// enter makes c the agent of an id, and returns which was before. Of one that is being withdrawn it waits for the end: it would be
// withdrawn itself.
func (gs *guests) enter(ctx context.Context, id string, c *connection) (g *guest, before *connection, err error) {
	for {
		g, before, over := gs.place(id, c)
		if over == nil {
			return g, before, nil
		}
		select {
		case <-over:
		case <-ctx.Done():
			return nil, nil, interact.AsError(ctx.Err())
		}
	}
}

// place makes c the agent of an id, unless the one that was there is being withdrawn.
func (gs *guests) place(id string, c *connection) (g *guest, before *connection, over <-chan struct{}) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if g = gs.all[id]; g == nil {
		g = &guest{}
		gs.all[id] = g
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over == nil {
		before, g.agent = g.agent, c
	}
	return g, before, g.over
}

// leave ends a guest that is away since c: in time, if it is offered.
func (gs *guests) leave(id string, g *guest, c *connection, over bool) {
	if of := gs.offered(id, g); of != nil {
		gs.node.dir.Away(of.desc, gs.node.DID(), true)
		gs.node.later(func(ctx context.Context) { gs.expire(ctx, id, g, c, over) })
	} else if gs.begin(id, g, c) {
		gs.end(id, g)
	}
}

// offered returns the offer of a guest under the id, or nil: it may be withdrawn, or published as something else.
func (gs *guests) offered(id string, g *guest) *offer {
	if of := gs.node.offers.get(id); of != nil && of.agent == interact.Thing(g) {
		return of
	}
	return nil
}

// begin begins to withdraw a guest that is away since c. It reports false for one that came back, even if it went again: that
// absence has its own time.
func (gs *guests) begin(id string, g *guest, c *connection) bool {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.agent != nil || g.last != c || g.over != nil {
		return false
	}
	g.over = make(chan struct{})
	return true
}

// end makes room for who comes under the same id.
func (gs *guests) end(id string, g *guest) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	delete(gs.all, id)
	close(g.over)
}

// expire withdraws a guest that does not come back in time, or said that it will not.
func (gs *guests) expire(ctx context.Context, id string, g *guest, c *connection, over bool) {
	wait := grace
	if over {
		wait = 0
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return // what is offered ends with the process
	}
	if !gs.begin(id, g, c) {
		return
	}
	defer gs.end(id, g)
	if gs.offered(id, g) == nil {
		return
	}
	n := gs.node
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err := n.Unpublish(ctx, refOf(id, n.DID())); err != nil && ctx.Err() == nil {
		n.log.Warn("an agent that went away is still offered", "thing", id, "err", err)
	}
}

// endOrphans withdraws, after a grace, what did not come back since the start of this node; on a full disk it tries again.
func (n *Node) endOrphans(ctx context.Context) error {
	for wait := true; wait; {
		select {
		case <-time.After(grace):
			wait = n.withdrawOrphans(ctx)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// withdrawOrphans withdraws what a process answered when this node last ended, unless a process offers it again by now. The
// tombstone is told like any other. It reports whether some wait for room on the disk.
func (n *Node) withdrawOrphans(ctx context.Context) (full bool) {
	for _, id := range n.offers.orphaned() {
		switch of, err := n.offers.withdrawOrphan(ctx, id); {
		case codeIs(err, interact.DiskFull):
			full = true
			n.log.Debug("agent not withdrawn: the disk is full", "thing", id, "err", err)
		case err != nil:
			n.log.Warn("agent not withdrawn, though its process did not come back", "thing", id, "err", err)
		case of != nil:
			n.log.Info("agent withdrawn: its process did not come back after the start of the node", "thing", id, "waited", grace)
		}
	}
	return full
}

// yields gives the place of c, which was refused, back to who had it. It reports whether nobody is there: that one may have gone
// meanwhile.
func (g *guest) yields(c, before *connection) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.ended = true
	if g.agent != c {
		return false
	}
	if g.agent = before; before != nil && before.ended {
		g.agent = nil
	}
	g.last = c
	return g.agent == nil
}

// goes notes that c has ended. It reports whether nobody took its place before.
func (g *guest) goes(c *connection) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.ended = true
	if g.agent != c {
		return false
	}
	g.agent, g.last = nil, c
	return true
}

// isHere reports whether the agent is connected.
func (g *guest) isHere() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.agent != nil
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
