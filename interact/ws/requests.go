package ws

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/ws/frame"
	"github.com/lmosd/lmosd/td"
)

// A target is the Thing of a request.
type target struct {
	ref   string // Message.Thing
	thing interact.Thing
	desc  *td.Thing // nil: unknown
}

// A host serves the requests of a connection.
type host struct {
	// find resolves a reference of the peer. The error is an [*interact.Error] or a context's.
	find func(ctx context.Context, ref string) (target, error)
	// register registers a Thing of the peer; nil rejects all.
	register func(ctx context.Context, raw []byte, agent interact.Thing) (id string, release func(over bool), err error)
	refusal  error
	// detaches means that actions of the Things of find continue without their consumer, if they are not synchronous and the dialect has
	// states for that.
	detaches bool
	// from is the caller. isAgent means that this side is an agent: the peer is its node, which states the caller in each request.
	from    *did.Principal
	isAgent bool
	// capability reads the delegations of the peer; nil refuses them.
	capability func(from *did.Principal, text string) (*interact.Capability, error)
	// gate holds the requests until their responses are with the writer; nil holds none.
	gate *interact.Gate
	// parent and state are the trace context of the upgrade, for messages that have none.
	parent, state string
}

// serving is the server side of a connection.
type serving struct {
	host      *host
	bucket    bucket       // owned by the reader
	pending   atomic.Int64 // requests in progress
	following atomic.Int64 // actions whose states are sent, and that do not need this connection
	runs      runs

	mu     sync.Mutex // guards the rest
	subs   map[subKey]*sub
	turns  map[turnKey]chan struct{}
	known  map[string]cachedTarget
	things map[string]*registered
	coming int // slots of pending registrations
}

// A turnKey identifies a property: writes to one property run one after another.
type turnKey struct{ thing, name string }

// A cachedTarget is a target with its expiry.
type cachedTarget struct {
	target
	until time.Time
}

func (s *serving) init(h *host, o settings) {
	s.host, s.bucket, s.runs.keep = h, bucket{rate: o.rate, left: o.rate}, o.keep
	s.subs, s.turns, s.known = map[subKey]*sub{}, map[turnKey]chan struct{}{}, map[string]cachedTarget{}
	s.things = map[string]*registered{}
}

// request serves the request f in a new goroutine, or rejects it. The reader calls it, in the order of the frames.
func (c *conn) request(f *frame.Frame) {
	s := &c.serving
	switch {
	case s.host == nil:
		c.refuse(f, interact.Errorf(interact.NotAllowed, "send it to a node", "this side of the connection serves no requests"))
	case !s.bucket.take():
		c.refuse(f, interact.Errorf(interact.RateLimited, "send fewer frames", "more than %.0f frames in one second", c.rate))
	case f.Type.Long() && !ends(f.Type):
		c.subscribe(f)
	case s.pending.Add(1) > int64(c.maxPending):
		s.pending.Add(-1)
		c.refuse(f, interact.Errorf(interact.Overloaded, "wait for responses", "this connection has %d running requests", c.maxPending))
	case ends(f.Type):
		c.unsubscribe(f)
	default:
		wait, done := c.turn(f)
		flow, err := c.accept(f)
		release := s.host.gate.Hold()
		c.work.Go(func() {
			defer release()
			defer s.pending.Add(-1)
			defer done()
			defer flow.drop()
			c.guarded(f, func() error {
				if err != nil {
					return err
				}
				return c.serve(f, wait, flow)
			})
		})
	}
}

// guarded sends the error of serve, or of its panic, as the response to f.
func (c *conn) guarded(f *frame.Frame, serve func() error) {
	err := func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				c.log.Error("message handler panicked", "peer", c.name, "type", frame.Name(f.Type), "panic", fmt.Sprint(p),
					"stack", string(debug.Stack()))
				err = interact.Errorf(interact.Internal, "see the log of the node", "the node failed while it served the message")
			}
		}()
		return serve()
	}()
	if err != nil {
		c.refuse(f, err)
	}
}

// turn queues a write behind earlier writes to the same property; the caller calls done after it.
func (c *conn) turn(f *frame.Frame) (wait <-chan struct{}, done func()) {
	if f.Type != interact.WriteProperty {
		return nil, func() {}
	}
	s, key, mine := &c.serving, turnKey{f.Thing, f.Name}, make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	wait = s.turns[key]
	s.turns[key] = mine
	return wait, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.turns[key] == mine {
			delete(s.turns, key)
		}
		close(mine)
	}
}

// serve serves a request other than a subscription. flow is its request stream, or nil.
func (c *conn) serve(f *frame.Frame, wait <-chan struct{}, flow *inflow) error {
	if wait != nil {
		select {
		case <-wait:
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		}
	}
	switch f.Type {
	case frame.TypeRegister:
		return c.register(f)
	case frame.TypeUnregister:
		return c.unregister(f)
	}
	t, err := c.find(f)
	if err != nil {
		return err
	}
	m, err := c.message(f, t)
	if err != nil {
		return err
	}
	switch f.Type {
	case interact.InvokeAction:
		return c.invoke(f, flow, t, m)
	case interact.QueryAction, interact.CancelAction:
		return c.inquire(f, t, m)
	}
	ctx, cancel := context.WithDeadline(c.ctx, c.bound(m))
	defer cancel()
	r, err := interact.Call(ctx, t.thing, m)
	if err != nil {
		return err
	}
	return c.send(ctx, f.Answer(r), nil)
}

// bound returns the deadline of m: that of the consumer, limited to interact.MaxWait. An agent uses the deadline of its node unchanged.
func (c *conn) bound(m *interact.Message) time.Time {
	last := time.Now().Add(interact.MaxWait)
	if !m.Deadline.IsZero() && (c.serving.host.isAgent || m.Deadline.Before(last)) {
		return m.Deadline
	}
	return last
}

// find returns the target of f, from the cache if it is recent.
func (c *conn) find(f *frame.Frame) (target, error) {
	s := &c.serving
	if f.Hops > interact.MaxHops {
		return target{}, interact.Errorf(interact.Loop, "see which nodes relay to each other", "the message passed %d nodes", f.Hops)
	}
	s.mu.Lock()
	k, ok := s.known[f.Thing]
	s.mu.Unlock()
	now := time.Now()
	if ok && now.Before(k.until) {
		return k.target, nil
	}
	t, err := s.host.find(c.ctx, f.Thing)
	if err != nil {
		return target{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= maxKnown {
		clear(s.known)
	}
	s.known[f.Thing] = cachedTarget{t, now.Add(knownFor)}
	return t, nil
}

// message returns the message for the Thing.
func (c *conn) message(f *frame.Frame, t target) (*interact.Message, error) {
	m := f.Message
	m.Thing, m.Correlation = t.ref, f.ReplyTo()
	if h := c.serving.host; !h.isAgent {
		m.From = h.from
		if f.Delegation != "" && h.capability == nil {
			return nil, interact.Errorf(interact.NotAllowed, "leave it out", "this node accepts no delegations")
		}
		if f.Delegation != "" {
			var err error
			if m.With, err = h.capability(h.from, f.Delegation); err != nil {
				return nil, err
			}
		}
	}
	if f.Stream == 0 { // with a type, an agent would send the output as one value after the end of the stream
		m.Accept = interact.JSON
	}
	if m.ID == "" {
		m.ID = f.ReplyTo()
	}
	if m.TraceParent == "" {
		m.TraceParent, m.TraceState = c.serving.host.parent, c.serving.host.state
	}
	return &m, nil
}

// refuse sends an error as the response to f. A disconnected peer receives nothing.
func (c *conn) refuse(f *frame.Frame, err error) {
	if c.ctx.Err() != nil {
		return
	}
	if c.serving.host == nil { // a client does not respond to requests of its peer
		c.log.Debug("message ignored", "peer", c.name, "err", err)
		return
	}
	e := interact.AsError(err)
	if e.Code == interact.Internal {
		c.log.Error("message failed", "peer", c.name, "thing", f.Thing, "name", f.Name, "err", err)
	}
	a := f.Refusal(e)
	var unfit *interact.Error
	if err := c.send(c.ctx, a, nil); errors.As(err, &unfit) { // the issues do not fit into a frame
		a.Fault = &interact.Error{Code: e.Code, Hint: "request less"}
		_ = c.send(c.ctx, a, nil)
	}
}
