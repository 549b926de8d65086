package ws

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/ws/frame"
)

// A subKey identifies a subscription: one affordance of a thing, or all without a name. The thing has the spelling of the peer.
type subKey struct {
	readings bool // of properties, not events
	thing    string
	name     string
}

// all returns the key of the subscription to all affordances that covers k.
func (k subKey) all() subKey { return subKey{readings: k.readings, thing: k.thing} }

// covers reports whether a subscription to k includes other.
func (k subKey) covers(other subKey) bool { return k == other || k == other.all() }

// keyOf returns the key of an observation, a subscription, or its end.
func keyOf(f *frame.Frame) subKey {
	k := subKey{thing: f.Thing, name: f.Name}
	switch f.Type {
	case interact.ObserveProperty, interact.UnobserveProperty:
		k.readings = true
	case interact.ObserveAllProperties, interact.UnobserveAllProperties:
		k.readings, k.name = true, ""
	case interact.SubscribeAllEvents, interact.UnsubscribeAllEvents:
		k.name = ""
	}
	return k
}

// ends reports whether t ends an observation or subscription.
func ends(t interact.Type) bool {
	switch t {
	case interact.UnobserveProperty, interact.UnobserveAllProperties, interact.UnsubscribeEvent, interact.UnsubscribeAllEvents:
		return true
	}
	return false
}

// A sub is a subscription of the peer. The last one with a key counts (LMOS WebSocket subprotocol, tolerance 12).
type sub struct {
	key    subKey
	f      *frame.Frame
	cancel context.CancelFunc
	done   chan struct{} // closed after its last frame
	// except are the names that a subscription to all excludes: they have a subscription of their own, or were ended separately.
	// serving.mu guards it.
	except map[string]bool
}

// subscribe starts the subscription of f, and ends those that it replaces. The reader calls it.
func (c *conn) subscribe(f *frame.Frame) {
	ctx, cancel := context.WithCancel(c.ctx)
	s := &sub{key: keyOf(f), f: f, cancel: cancel, done: make(chan struct{})}
	replaced, room := c.serving.put(s, c.maxSubscriptions)
	if !room {
		cancel()
		c.refuse(f, interact.Errorf(interact.RateLimited, "end some, or subscribe to all events of a Thing",
			"this connection has %d subscriptions", c.maxSubscriptions))
		return
	}
	c.work.Go(func() {
		defer close(s.done)
		defer cancel()
		defer c.serving.drop(s)
		wait(replaced)
		c.guarded(f, func() error {
			err := c.follow(ctx, s)
			c.serving.drop(s) // before the error is sent: its receiver has room for another one
			return err
		})
	})
}

// put adds one and cancels the subscriptions that it replaces: one with the same key, and those that it covers. room is false if there
// are limit others.
func (s *serving) put(one *sub, limit int) (replaced []*sub, room bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subs[one.key] == nil && len(s.subs) >= limit {
		return nil, false
	}
	replaced = s.takeLocked(one.key, limit)
	s.subs[one.key] = one
	return replaced, true
}

// takeLocked cancels and removes the subscriptions that key covers. A remaining subscription to all then excludes the name of key.
func (s *serving) takeLocked(key subKey, limit int) (taken []*sub) {
	if a := s.subs[key.all()]; a != nil && key.name != "" && len(a.except) < limit {
		if a.except == nil {
			a.except = map[string]bool{}
		}
		a.except[key.name] = true
	}
	for k, one := range s.subs {
		if key.covers(k) {
			one.cancel()
			delete(s.subs, k)
			taken = append(taken, one)
		}
	}
	return taken
}

// drop removes s if it was not replaced.
func (s *serving) drop(one *sub) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subs[one.key] == one {
		delete(s.subs, one.key)
	}
}

// excludes reports whether a subscription to all excludes name.
func (s *serving) excludes(one *sub, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return one.except[name]
}

func wait(subs []*sub) {
	for _, one := range subs {
		<-one.done
	}
}

// unsubscribe ends the subscription of f. An unknown subscription is not an error (Web Thing Protocol, unsubscribeevent). The reader calls
// it.
func (c *conn) unsubscribe(f *frame.Frame) {
	c.serving.mu.Lock()
	taken := c.serving.takeLocked(keyOf(f), c.maxSubscriptions)
	c.serving.mu.Unlock()
	c.work.Go(func() {
		defer c.serving.pending.Add(-1) // its request counted it
		wait(taken)
		c.acknowledge(f)
	})
}

// acknowledge responds to f without data, if the dialect of the peer has acknowledgements.
func (c *conn) acknowledge(f *frame.Frame) {
	if f.WantsAck() {
		_ = c.send(c.ctx, f.Reply(interact.Acknowledgement), nil) // it fails if the connection has ended
	}
}

// follow sends the events or readings of the subscription s until ctx ends. An end by the Thing is an error.
func (c *conn) follow(ctx context.Context, s *sub) error {
	t, err := c.find(s.f)
	if err != nil {
		return err
	}
	m, err := c.message(s.f, t)
	if err != nil {
		return err
	}
	if t.desc != nil {
		if err := interact.Check(t.desc, m); err != nil { // invalid requests must not be acknowledged
			return err
		}
	}
	ack := func() { c.acknowledge(s.f) }
	if m.Type == interact.ObserveProperty && s.f.Dialect != frame.WTP {
		if ack, err = c.current(ctx, s, t, m); err != nil {
			return c.unless(ctx, err)
		}
	}
	return c.unless(ctx, c.relay(ctx, s, t, m, ack))
}

// unless returns nil after the end of ctx, else err.
func (c *conn) unless(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// current sends the current reading: in LMOS it is the response to an observation. A property that cannot be read has none. It returns
// the function that sends the remaining acknowledgement. The observation continues after the id of the reading.
func (c *conn) current(ctx context.Context, s *sub, t target, m *interact.Message) (ack func(), err error) {
	q := *m
	q.Type, q.ID, q.After, q.Data = interact.ReadProperty, interact.NewID(), "", nil
	r, err := interact.Call(ctx, t.thing, &q)
	switch {
	case err != nil && interact.AsError(err).Code == interact.NotAllowed:
		return func() { c.acknowledge(s.f) }, nil
	case err != nil:
		return nil, err
	}
	m.After = cmp.Or(m.After, r.ID)
	return func() {}, c.send(ctx, s.f.Reading(r), nil)
}

// relay sends the notifications of the Thing. The acknowledgement is sent before the first one, or after ackDelay without an error.
func (c *conn) relay(ctx context.Context, s *sub, t target, m *interact.Message, ack func()) error {
	var once sync.Once
	timer := time.AfterFunc(ackDelay, func() { once.Do(ack) })
	defer once.Do(func() {}) // waits for an acknowledgement in progress
	defer timer.Stop()
	for r, err := range t.thing.Do(ctx, m) {
		if err != nil || r == nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		if c.serving.excludes(s, r.Name) {
			continue
		}
		once.Do(ack)
		var unfit *interact.Error
		if err := c.send(ctx, s.f.Notification(r), nil); errors.As(err, &unfit) {
			c.log.Warn("notification dropped", "thing", s.f.Thing, "name", r.Name, "err", err)
		} else if err != nil {
			return err
		}
	}
	return interact.Errorf(interact.Unreachable, "subscribe again", "the Thing ended the subscription")
}
