package ws

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/ws/frame"
)

// asking has the calls of this side of a connection.
type asking struct {
	// order makes a change of the watchers and the sending of its frame atomic.
	order sync.Mutex

	mu       sync.Mutex // guards the rest
	calls    map[string]*call
	watchers map[subKey][]*call
	// standing has the request of each subscription of the peer. The call of a request may have ended: others share the subscription.
	standing map[subKey]*call
	used     time.Time // end of the last call
}

// A call is one open request to the peer.
type call struct {
	m    *interact.Message // the request
	id   string            // of the request's message, and its correlation
	key  subKey            // only if m is long
	sent atomic.Bool
	// isAccepted means that a subscription was not refused. asking.mu guards it.
	isAccepted bool
	bell       chan struct{} // has an element after a change

	mu    sync.Mutex // guards the rest
	queue []waiting
	held  int // bytes of the queue
	err   error
}

// A waiting frame was not read yet; size is in bytes.
type waiting struct {
	frame *frame.Frame
	size  int
}

func (a *asking) init() {
	a.calls, a.watchers, a.standing = map[string]*call{}, map[subKey][]*call{}, map[subKey]*call{}
	a.used = time.Now()
}

// idleSince returns the time since the last request.
func (a *asking) idleSince(now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.calls) > 0 {
		return 0
	}
	return now.Sub(a.used)
}

// begin sends m to the peer in the style of p; o is its request stream, or nil. It uses ids of this node, because those of consumers
// may be equal. An existing subscription of the peer is shared: a second request would end it.
func (c *conn) begin(ctx context.Context, p *peer, m *interact.Message, o *outflow) (*call, error) {
	f := frame.Request(p.style, p.thing, m.Type, m)
	if f.Deadline, _ = ctx.Deadline(); m.Type.Long() { // shared, and without a deadline
		f.Deadline, f.From = time.Time{}, nil
	}
	k := &call{m: m, id: f.ID, bell: make(chan struct{}, 1)}
	if o != nil {
		f.Stream = o.number
		o.bind(k)
	}
	a := &c.asking
	if m.Type.Long() {
		k.key = keyOf(f)
		a.order.Lock()
		defer a.order.Unlock()
	}
	joined, before := a.add(k)
	if joined {
		return k, nil
	}
	if err := c.send(ctx, f, &k.sent); err != nil {
		a.undo(k, before)
		return nil, c.unsent(p, k, err)
	}
	return k, nil
}

// add records k. It reports whether k shares an existing subscription of the peer; else the subscription of k replaces it. A consumer
// that continues after an event needs its own subscription.
func (a *asking) add(k *call) (joined bool, before *call) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls[k.id] = k
	if !k.m.Type.Long() {
		return false, nil
	}
	a.watchers[k.key] = append(a.watchers[k.key], k)
	before = a.standing[k.key]
	if k.m.After == "" && (before != nil || a.standing[k.key.all()] != nil) {
		k.sent.Store(true)
		return true, nil
	}
	a.standing[k.key] = k
	return false, before
}

// undo removes k, which was not sent.
func (a *asking) undo(k, before *call) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.calls, k.id)
	if a.standing[k.key] == k {
		delete(a.standing, k.key)
		if before != nil {
			a.standing[k.key] = before
		}
	}
	a.unwatchLocked(k)
}

// unsent returns the error of a request that did not reach the writer.
func (c *conn) unsent(p *peer, k *call, err error) error {
	switch {
	case errors.As(err, new(*interact.Error)):
		return err
	case c.ctx.Err() != nil:
		return c.broken(k)
	}
	return p.expired(err)
}

// remove removes k. It returns the subscription of the peer that has no watcher left, if any.
func (a *asking) remove(k *call) (idle subKey, last bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used = time.Now()
	if !k.m.Type.Long() || a.standing[k.key] != k {
		delete(a.calls, k.id)
	}
	if !k.m.Type.Long() || !a.unwatchLocked(k) {
		return subKey{}, false
	}
	idle = k.key
	if all := k.key.all(); a.standing[all] != nil {
		idle = all
	}
	for key := range a.watchers {
		if idle.covers(key) {
			return subKey{}, false
		}
	}
	a.endLocked(idle, false)
	return idle, true
}

// unwatchLocked removes k from the watchers, and reports whether it was one.
func (a *asking) unwatchLocked(k *call) (found bool) {
	list := a.watchers[k.key]
	i := slices.Index(list, k)
	if i < 0 {
		return false
	}
	if a.watchers[k.key] = slices.Delete(list, i, i+1); len(list) == 1 {
		delete(a.watchers, k.key)
	}
	return true
}

// endLocked removes the subscription end of the peer, and those that it covers: it replaced them, unless it was refused.
// It returns the watchers.
func (a *asking) endLocked(end subKey, refused bool) (watched []*call) {
	for key, list := range a.watchers {
		if end.covers(key) && (!refused || key == end || a.standing[key] == nil) {
			watched = append(watched, list...)
			delete(a.watchers, key)
		}
	}
	for key, k := range a.standing {
		if key == end || end.covers(key) && !refused {
			delete(a.standing, key)
			delete(a.calls, k.id)
		}
	}
	return watched
}

// leave ends k. It sends a request to the peer to end a subscription without watchers, or a running action.
func (c *conn) leave(p *peer, k *call, final bool, actionID string) {
	if k.m.Type.Long() {
		c.asking.order.Lock()
		defer c.asking.order.Unlock()
	}
	idle, last := c.asking.remove(k)
	if c.ctx.Err() != nil || final {
		return
	}
	var f *frame.Frame
	switch {
	case last && p.style.Supports(endOf(k.m.Type, idle)):
		f = frame.Request(p.style, p.thing, endOf(k.m.Type, idle), k.m)
		f.Name = idle.name
	case k.m.Type == interact.InvokeAction && !k.m.Detach && p.style.Supports(interact.CancelAction):
		f = frame.Request(p.style, p.thing, interact.CancelAction, k.m)
		f.Correlation, f.ActionID = k.id, actionID
	default:
		return
	}
	f.Data, f.ContentType, f.After, f.Key = nil, "", "", ""
	_ = c.send(context.Background(), f, nil) // the connection ends if it fails, and the interaction with it
}

// endOf returns the type that ends the subscription with the key end, which t may have joined.
func endOf(t interact.Type, end subKey) interact.Type {
	switch one := t == interact.ObserveProperty || t == interact.SubscribeEvent; {
	case end.readings && one && end.name != "":
		return interact.UnobserveProperty
	case end.readings:
		return interact.UnobserveAllProperties
	case one && end.name != "":
		return interact.UnsubscribeEvent
	}
	return interact.UnsubscribeAllEvents
}

// answer delivers the frame f of size bytes to the calls that wait for it. The reader calls it; it does not block. A reading or event
// without a call is a notification for the watchers of its affordance: Kotlin correlates only the first.
func (a *asking) answer(f *frame.Frame, size int) {
	a.mu.Lock()
	k := a.calls[f.Correlation]
	if k == nil {
		k = a.calls[f.ID] // some peers repeat the id of the message instead
	}
	if k != nil && !k.m.Type.Long() {
		a.mu.Unlock()
		k.put(f, size)
		return
	}
	watching := a.watchersLocked(k, f)
	switch {
	case k == nil:
	case f.Type != frame.TypeError:
		k.isAccepted = true
	case a.standing[k.key] == k:
		watching = a.endLocked(k.key, !k.isAccepted)
	}
	for _, w := range watching {
		w.put(f, size)
	}
	a.mu.Unlock()
}

// watchersLocked returns the calls that receive f, the response to k, if k is not nil. Calls with one key share one subscription
// of the peer.
func (a *asking) watchersLocked(k *call, f *frame.Frame) []*call {
	switch f.Type {
	case interact.PropertyReading, interact.Event:
	default:
		if k == nil {
			return nil
		}
		return a.watchers[k.key]
	}
	key := subKey{f.Type == interact.PropertyReading, f.Thing, f.Name}
	if k != nil {
		key.thing = k.key.thing
	}
	found := append(append([]*call(nil), a.watchers[key]...), a.watchers[key.all()]...)
	if k != nil && len(found) == 0 {
		found = a.watchers[k.key]
	}
	return found
}

// put adds f to the queue of the call. A consumer that reads too slowly loses only its own call.
func (k *call) put(f *frame.Frame, size int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	defer k.ring()
	switch {
	case k.err != nil:
		return
	case len(k.queue) >= maxQueued || k.held > 0 && k.held+size > maxHeld:
		k.queue, k.held = nil, 0
		k.err = interact.Errorf(interact.Overloaded, "read faster, or subscribe to less",
			"the consumer reads too slowly: %d messages or %d bytes waited", maxQueued, maxHeld)
	default:
		k.queue, k.held = append(k.queue, waiting{f, size}), k.held+size
	}
}

// fail ends k with err, after the received frames.
func (k *call) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	defer k.ring()
	if k.err == nil {
		k.err = err
	}
}

func (k *call) ring() { poke(k.bell) }

// poke adds an element to a channel of capacity one.
func poke(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// take returns the next frame, if any.
func (k *call) take() (*frame.Frame, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.queue) == 0 {
		return nil, k.err
	}
	first := k.queue[0]
	k.queue[0] = waiting{}
	k.queue, k.held = k.queue[1:], k.held-first.size
	return first.frame, nil
}

// next waits for the next frame.
func (c *conn) next(ctx context.Context, p *peer, k *call) (*frame.Frame, error) {
	for {
		if f, err := k.take(); f != nil || err != nil {
			return f, err
		}
		select {
		case <-k.bell:
		case <-ctx.Done():
			return nil, p.expired(ctx.Err())
		case <-c.ctx.Done():
			if f, err := k.take(); f != nil || err != nil {
				return f, err
			}
			return nil, c.broken(k)
		}
	}
}

// broken returns the error of a call whose connection ended.
func (c *conn) broken(k *call) error {
	e := &interact.Error{Code: interact.Unreachable, Title: "the connection to " + c.name + " was lost", Err: context.Cause(c.ctx),
		Hint: "check that the agent runs, and send it again", Started: k.sent.Load()}
	if e.Started && !k.m.Type.Reads() {
		e.Hint = "the request may have been executed: check that before you repeat it"
	}
	return e
}
