package ws

import (
	"context"
	"iter"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/ws/frame"
)

// A registered Thing is registered by the peer over its connection. ready is closed after the registration or its failure. serving.take
// sets gone and cancel; gone is nil after a failure.
type registered struct {
	peer
	ready   chan struct{}
	gone    context.Context // ends when it is unregistered
	cancel  context.CancelFunc
	release func(over bool)
}

// register registers a Thing of the peer (extension of lmosd: registerThing). For a registered Thing it replaces the description;
// running interactions continue.
func (c *conn) register(f *frame.Frame) error {
	s := &c.serving
	if s.host.register == nil {
		return s.host.refusal
	}
	if len(f.Data) == 0 {
		return interact.Errorf(interact.Invalid, `send the description as the member "data"`, "expected a description, got none")
	}
	if !s.reserve() {
		return interact.Errorf(interact.RateLimited, "open another connection", "this connection has %d Things", maxThings)
	}
	r := &registered{peer: peer{c: c, style: frame.Style{Dialect: frame.Doc, Capital: f.Capital}, streams: f.Streams},
		ready: make(chan struct{})}
	id, release, err := s.host.register(c.ctx, f.Data, r)
	if err != nil {
		s.take("", nil)
		close(r.ready)
		return err
	}
	r.thing, r.release = id, release
	if old := s.take(id, r); old != nil {
		old.release(false)
	}
	close(r.ready)
	a := f.Reply(frame.TypeRegistered)
	a.Thing, a.Streams = id, f.Streams
	return c.send(c.ctx, a, nil)
}

// reserve takes a slot for one more Thing, which take frees. It reports false if none is free.
func (s *serving) reserve() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.things)+s.coming >= maxThings {
		return false
	}
	s.coming++
	return true
}

// take stores a Thing in its reserved slot, or frees the slot for nil. It returns the previous Thing of the id, or nil. The interactions
// of the previous Thing continue until r ends.
func (s *serving) take(id string, r *registered) (old *registered) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.coming--
	if r == nil {
		return nil
	}
	old, s.things[id] = s.things[id], r
	if old != nil {
		r.gone, r.cancel = old.gone, old.cancel
	} else {
		r.gone, r.cancel = context.WithCancel(r.c.ctx)
	}
	return old
}

// end releases a Thing after its registration; over means that the agent unregistered it.
func (r *registered) end(over bool) {
	r.cancel()
	if r.release != nil {
		r.release(over)
	}
}

// Evict ends the connection: the owner of the Thing has granted it to other nodes.
func (r *registered) Evict() { r.c.end(evicted) }

// unregister unregisters a Thing.
func (c *conn) unregister(f *frame.Frame) error {
	s := &c.serving
	s.mu.Lock()
	r := s.things[f.Thing]
	delete(s.things, f.Thing)
	s.mu.Unlock()
	if r == nil {
		return interact.Errorf(interact.NotFound, "send the thingId of thingRegistered", "%q is not registered by this connection",
			frame.Clip(f.Thing, 200))
	}
	r.end(true)
	return c.send(c.ctx, f.Reply(interact.Acknowledgement), nil)
}

// release releases all Things after the end of the connection.
func (s *serving) release() {
	s.mu.Lock()
	things := s.things
	s.things = map[string]*registered{}
	s.mu.Unlock()
	for _, r := range things {
		r.end(false)
	}
}

// Do calls the Thing over the connection of its registration. It implements [interact.Thing].
func (r *registered) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		select {
		case <-r.ready:
		case <-r.c.ctx.Done():
		case <-ctx.Done():
			yield(nil, ctx.Err())
			return
		}
		if r.c.ctx.Err() != nil || r.gone == nil || r.gone.Err() != nil {
			yield(nil, interact.Errorf(interact.Unreachable, "start the agent again", "the agent is not connected"))
			return
		}
		if err := r.call(ctx, m, yield); err != nil {
			yield(nil, err)
		}
	}
}
