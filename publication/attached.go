package publication

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Grace is how long a Thing stays published after the connection of its agent broke, or after a restart of the node.
const Grace = 15 * time.Second

// attached are the agents in other processes that are attached to this node: each answers over a connection that it opened, like the
// registerThing of a WebSocket. Its Thing is published like that of an agent in this process.
type attached struct {
	mu     sync.Mutex
	agents map[string]*attachedAgent // by thing id; owned by mu
}

// An attachedAgent is the handler of a Thing over its current connection. While it is disconnected, calls fail at once.
type attachedAgent struct {
	// mu owns what follows. It is taken after that of attached.
	mu        sync.Mutex
	current   *connection   // nil while disconnected
	last      *connection   // the one before current became nil
	withdrawn chan struct{} // closed when the Thing has been withdrawn; nil until that begins
}

// A connection handles the messages of one connection.
type connection struct {
	interact.Thing
	ended bool // owned by the agent's mu
}

// Attach publishes the Thing of an agent that is attached over a connection: raw is its TD, or a draft of one (td.Draft), and handler
// sends messages over the connection. A later Attach of the same id replaces the connection. Detach is called once, when the connection
// has ended: with final the Thing is withdrawn at once, else it stays published for [Grace].
func (p *Publisher) Attach(ctx context.Context, raw []byte, handler interact.Thing) (id string, detach func(final bool), err error) {
	draft, err := td.Draft(raw)
	if err != nil {
		return "", nil, interact.AsError(err)
	}
	t, err := td.Complete(draft, p.o.Signer.DID())
	if err != nil {
		return "", nil, interact.AsError(err)
	}
	return p.attach(ctx, t.ID, handler, func(a interact.Thing) error {
		_, err := p.Publish(ctx, t.Raw, a, Registration{})
		return err
	})
}

// AttachGranted is [Publisher.Attach] for the Thing of an agent with a key of its own, which has signed a grant for this node, and the TD body. The
// agent attaches again with a newer grant before the end of the first one. If the owner grants the Thing to other nodes only, its hosting ends
// here, and so does the connection.
func (p *Publisher) AttachGranted(ctx context.Context, grant, body []byte, handler interact.Thing) (id string, detach func(final bool), err error) {
	g, err := td.ParseGrant(grant)
	if err != nil {
		return "", nil, interact.Errorf(interact.Invalid, "sign the grant again", "%v", err)
	}
	return p.attach(ctx, g.Thing, handler, func(a interact.Thing) error {
		_, err := p.Host(ctx, grant, body, a)
		return err
	})
}

// attach makes handler the connection of the Thing with the id, which publish publishes.
func (p *Publisher) attach(ctx context.Context, id string, handler interact.Thing, publish func(agent interact.Thing) error) (string, func(final bool), error) {
	c := &connection{Thing: handler}
	a, before, err := p.attached.connect(ctx, id, c)
	if err != nil {
		return "", nil, err
	}
	if err := publish(a); err != nil {
		if a.revert(c, before) {
			p.detached(id, a, c, false)
		}
		return "", nil, err
	}
	return id, func(final bool) {
		if a.disconnect(c) {
			p.detached(id, a, c, final)
		}
	}, nil
}

// connect makes c the connection of an id and returns the one before. It waits for the end of a withdrawal that has begun: c's Thing would
// be withdrawn with it.
func (at *attached) connect(ctx context.Context, id string, c *connection) (a *attachedAgent, before *connection, err error) {
	for {
		a, before, withdrawn := at.tryConnect(id, c)
		if withdrawn == nil {
			return a, before, nil
		}
		select {
		case <-withdrawn:
		case <-ctx.Done():
			return nil, nil, interact.AsError(ctx.Err())
		}
	}
}

// tryConnect makes c the connection of an id, unless its Thing is being withdrawn.
func (at *attached) tryConnect(id string, c *connection) (a *attachedAgent, before *connection, withdrawn <-chan struct{}) {
	at.mu.Lock()
	defer at.mu.Unlock()
	if a = at.agents[id]; a == nil {
		a = &attachedAgent{}
		at.agents[id] = a
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.withdrawn == nil {
		before, a.current = a.current, c
	}
	return a, before, a.withdrawn
}

// detached deals with an agent that is disconnected since c.
func (p *Publisher) detached(id string, a *attachedAgent, c *connection, final bool) {
	if pub := p.publishedBy(id, a); pub != nil {
		p.o.Directory.SetAway(pub.Description, p.o.Signer.DID(), true)
		if !final {
			p.o.Log.Warn("agent disconnected, withdrawn unless it returns", "agent", agentName(pub), "within", Grace)
		}
		p.o.Go(func(ctx context.Context) { p.expire(ctx, id, a, c, final) })
	} else if p.attached.beginWithdrawal(id, a, c) {
		p.attached.remove(id, a)
	}
}

// publishedBy returns the publication with the id if a handles it, else nil: the Thing may be withdrawn, or published in another way.
func (p *Publisher) publishedBy(id string, a *attachedAgent) *Publication {
	if pub := p.o.Index.Get(id); pub != nil && pub.handler == interact.Thing(a) {
		return pub
	}
	return nil
}

// beginWithdrawal reports false for an agent that has attached again after c, even if it is disconnected again: that disconnection has its
// own grace.
func (at *attached) beginWithdrawal(id string, a *attachedAgent, c *connection) bool {
	at.mu.Lock()
	defer at.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.current != nil || a.last != c || a.withdrawn != nil {
		return false
	}
	a.withdrawn = make(chan struct{})
	return true
}

// remove ends a withdrawal, so that an agent can attach with the same id.
func (at *attached) remove(id string, a *attachedAgent) {
	at.mu.Lock()
	defer at.mu.Unlock()
	delete(at.agents, id)
	close(a.withdrawn)
}

// expire withdraws the Thing of an agent that does not attach again within the grace; final means that it will not.
func (p *Publisher) expire(ctx context.Context, id string, a *attachedAgent, c *connection, final bool) {
	wait := Grace
	if final {
		wait = 0
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return // The next start of the node withdraws it.
	}
	if !p.attached.beginWithdrawal(id, a, c) {
		return
	}
	defer p.attached.remove(id, a)
	pub := p.publishedBy(id, a)
	if pub == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, announceWait)
	defer cancel()
	if _, err := p.Withdraw(did.AsProcess(ctx), td.ExactRef(id, p.ownerOf(pub))); err != nil && ctx.Err() == nil {
		p.o.Log.Warn("withdrawal of a detached agent failed", "thing", id, "err", err)
	}
}

// endOrphans withdraws, after a grace, the Things whose agents did not attach again since the start of the node. On a full disk it tries
// again.
func (p *Publisher) endOrphans(ctx context.Context) error {
	if err := p.o.Index.awaitAll(ctx); err != nil {
		return err
	}
	for full := true; full; {
		select {
		case <-time.After(Grace):
			full = p.withdrawOrphans(ctx)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// withdrawOrphans withdraws the Things that had an attached agent when the node last stopped, and have none now. The tombstones are
// announced by repeat. It reports whether some wait for room on the disk.
func (p *Publisher) withdrawOrphans(ctx context.Context) (full bool) {
	for _, id := range p.orphans.things() {
		switch pub, err := p.withdrawOrphan(ctx, id); {
		case codeIs(err, interact.DiskFull):
			full = true
			p.o.Log.Debug("agent not withdrawn: the disk is full", "thing", id, "err", err)
		case err != nil:
			p.o.Log.Warn("agent not withdrawn, though its process did not come back", "thing", id, "err", err)
		case pub != nil:
			p.o.Log.Info("agent withdrawn: its process did not come back after the start of the node", "thing", id, "waited", Grace)
		}
	}
	return full
}

// withdrawOrphan withdraws a Thing whose agent did not attach again; the publication is nil if one did.
func (p *Publisher) withdrawOrphan(ctx context.Context, thing string) (*Publication, error) {
	p.turn.Lock()
	defer p.turn.Unlock()
	if p.o.Index.Get(thing) != nil {
		return nil, nil
	}
	if orphan := p.orphans.get(thing); orphan.Owner != "" {
		return p.endHostingLocked(ctx, orphan, time.Now())
	}
	return p.withdrawLocked(ctx, thing, 0, "")
}

// revert gives the place of c, whose Attach failed, back to the connection before. It reports whether the agent is disconnected now: that
// connection may have ended in between.
func (a *attachedAgent) revert(c, before *connection) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	c.ended = true
	if a.current != c {
		return false
	}
	if a.current = before; before != nil && before.ended {
		a.current = nil
	}
	a.last = c
	return a.current == nil
}

// disconnect notes that c has ended. It reports whether c was the current connection.
func (a *attachedAgent) disconnect(c *connection) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	c.ended = true
	if a.current != c {
		return false
	}
	a.current, a.last = nil, c
	return true
}

// evict ends the current connection, whose agent is offered by another node.
func (a *attachedAgent) evict() {
	a.mu.Lock()
	c := a.current
	a.mu.Unlock()
	if c == nil {
		return
	}
	if e, ok := c.Thing.(interface{ Evict() }); ok {
		e.Evict()
	}
}

// isConnected reports whether the agent is connected.
func (a *attachedAgent) isConnected() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.current != nil
}

// Do implements [interact.Thing].
func (a *attachedAgent) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	a.mu.Lock()
	c := a.current
	a.mu.Unlock()
	if c == nil {
		return interact.Fail(interact.Errorf(interact.Unreachable, "wait until it is back: it has "+Grace.String()+", then it is withdrawn",
			"the agent %s is away: its connection to its node broke", m.Thing))
	}
	return c.Do(ctx, m)
}
