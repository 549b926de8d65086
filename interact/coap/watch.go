package coap

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/messaging"
)

// Limits of the events that wait for an observer; one event may be larger.
const (
	maxBehind      = 32
	maxBehindBytes = 1 << 20
)

// watches are the observations of the server's consumers. All observers of one affordance share a source: one observation of
// the mesh, with a goroutine. Each observer has a goroutine too, which sends one notification at a time.
type watches struct {
	server *Server
	limit  int // of observers

	mu        sync.Mutex // guards the rest, and the fields of sources and observers that name it
	sources   map[sourceKey]*source
	observers map[observerKey]*observer
	closed    bool // no observer can join
}

type sourceKey struct {
	thing string
	kind  interact.Type
	name  string
	media string // of a subscription's data
	data  string
}

// A source is one observation of the mesh.
type source struct {
	key       sourceKey
	observers map[*observer]bool // guarded by watches.mu
	cancel    context.CancelFunc
	started   chan struct{} // closed before the request to the mesh
}

// An observerKey identifies an observation: the consumer, and the token of the registration (RFC 7641 §4.1).
type observerKey struct {
	from  netip.AddrPort
	token string
}

// An observer is one observation of a consumer.
type observer struct {
	key         observerKey
	source      *source
	remote      messaging.Remote
	host        netip.Addr
	ask         *interact.Message // the request, with the accepted media type
	transferKey string            // of the stored responses that are sent in blocks
	newest      bool              // a new value replaces waiting ones
	cancel      context.CancelFunc
	ctx         context.Context // ends when it is removed
	wake        chan struct{}   // holds one element: there is a notification to send

	queue []*interact.Message // guarded by watches.mu
	end   error               // guarded by watches.mu: the last notification; nil during the observation

	seq atomic.Uint32 // of the last notification
}

// next is the number of a notification, greater than all before (RFC 7641 §4.4).
func (o *observer) next() uint32 { return o.seq.Add(1) & (1<<24 - 1) }

// observed are the types of the observations by the types of the requests.
var observed = map[interact.Type]interact.Type{interact.ReadProperty: interact.ObserveProperty,
	interact.ReadAllProperties: interact.ObserveAllProperties, interact.SubscribeEvent: interact.SubscribeEvent,
	interact.SubscribeAllEvents: interact.SubscribeAllEvents}

// observe registers the consumer. The response is the value of a property, or confirms the subscription to an event. Without room, the
// response is the value alone (RFC 7641 §4.1), or an error for events.
func (x *exchange) observe(ctx context.Context, m *interact.Message) (*messaging.Packet, error) {
	s := x.server
	o, fresh, err := s.watches.join(x, m)
	reads := m.Type == interact.ReadProperty || m.Type == interact.ReadAllProperties
	if err != nil && !reads {
		return nil, err
	}
	a := &messaging.Packet{Code: codes.Content}
	if reads {
		if o != nil {
			<-o.source.started // an earlier read could miss a change
		}
		r, err := interact.Call(ctx, s.o.Mesh, m)
		if err == nil {
			a, err = present(a, r, m)
		}
		if err != nil {
			if o != nil {
				s.watches.remove(o)
			}
			return nil, err
		}
	}
	if o != nil {
		a.AddUint(message.Observe, o.next())
		if fresh {
			x.observer = o
		}
	}
	return a, nil
}

// join adds an observer, and starts the observation of the mesh for the first one. An observer with the same token is kept if it
// observes the same, else it is replaced (RFC 7641 §4.1); fresh means that the observer is new.
func (w *watches) join(x *exchange, m *interact.Message) (o *observer, fresh bool, err error) {
	ask := &interact.Message{Type: observed[m.Type], From: m.From, Thing: m.Thing, ID: m.ID, Name: m.Name, Data: m.Data,
		ContentType: m.ContentType}
	key := sourceKey{ask.Thing, ask.Type, ask.Name, ask.ContentType, string(ask.Data)}
	o = &observer{key: observerKey{x.from.Addr, x.q.Token}, remote: x.from, host: x.host, ask: m,
		transferKey: messaging.TransferKey(x.from.Addr, x.q), newest: m.Type == interact.ReadProperty, wake: make(chan struct{}, 1)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if old := w.observers[o.key]; old != nil {
		if old.source.key == key && old.transferKey == o.transferKey && old.end == nil {
			return old, false, nil
		}
		w.removeLocked(old)
	}
	mine := 0
	for _, other := range w.observers {
		if other.host == o.host {
			mine++
		}
	}
	if len(w.observers) >= w.limit || mine >= max(1, w.limit/2) {
		return nil, false, interact.Errorf(interact.Overloaded, "end other observations, or poll", "the server has too many observers")
	}
	if w.closed {
		return nil, false, errShutdown()
	}
	if o.source = w.sources[key]; o.source == nil {
		o.source = &source{key: key, observers: map[*observer]bool{}, started: make(chan struct{})}
		var ctx context.Context
		ctx, o.source.cancel = context.WithCancel(w.server.ctx)
		w.sources[key] = o.source
		w.server.work.Go(func() { w.follow(ctx, o.source, ask) })
	}
	o.ctx, o.cancel = context.WithCancel(w.server.ctx)
	o.source.observers[o] = true
	w.observers[o.key] = o
	return o, true, nil
}

// follow observes the mesh for a source and publishes the messages. The end of the observation ends its observers.
func (w *watches) follow(ctx context.Context, s *source, m *interact.Message) {
	defer s.cancel()
	close(s.started)
	end := w.server.safely("an observation", func() error {
		for r, err := range w.server.o.Mesh.Do(ctx, m) {
			if err != nil {
				return err
			}
			w.publish(s, r)
		}
		return interact.Errorf(interact.AgentFailed, hintLog, "the observation ended")
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sources[s.key] == s {
		delete(w.sources, s.key)
	}
	for o := range s.observers {
		o.finishLocked(end)
	}
}

// publish queues a reading or an event for all observers of its source, without waiting.
func (w *watches) publish(s *source, r *interact.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for o := range s.observers {
		switch {
		case o.newest:
			o.queue = append(o.queue[:0], r)
		case len(o.queue) >= maxBehind, len(o.queue) > 0 && o.waitingLocked()+len(r.Data) > maxBehindBytes:
			o.finishLocked(interact.Errorf(interact.Overloaded, "acknowledge faster, and observe again",
				"the observer is %d events behind", len(o.queue)))
			continue
		default:
			o.queue = append(o.queue, r)
		}
		o.wakeLocked()
	}
}

// waitingLocked returns the number of bytes that wait for the observer.
func (o *observer) waitingLocked() (n int) {
	for _, r := range o.queue {
		n += len(r.Data)
	}
	return n
}

func (o *observer) finishLocked(err error) {
	o.end = cmp.Or(o.end, err)
	o.wakeLocked()
}

func (o *observer) wakeLocked() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// leave removes the observer with a key, if there is one.
func (w *watches) leave(key observerKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if o := w.observers[key]; o != nil {
		w.removeLocked(o)
	}
}

func (w *watches) remove(o *observer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removeLocked(o)
}

// removeLocked ends an observer, and with the last one its source.
func (w *watches) removeLocked(o *observer) {
	o.cancel()
	if w.observers[o.key] == o {
		delete(w.observers, o.key)
	}
	s := o.source
	if delete(s.observers, o); len(s.observers) == 0 {
		s.cancel()
		if w.sources[s.key] == s {
			delete(w.sources, s.key)
		}
	}
}

// serve sends notifications until the observer leaves, or does not acknowledge one (RFC 7641 §4.5). A silent observer is pinged.
func (w *watches) serve(o *observer) {
	defer w.remove(o)
	peer := w.server.peers.get(o.remote)
	defer w.server.peers.release(peer)
	for {
		quiet := time.NewTimer(w.server.quiet)
		var err error
		select {
		case <-o.wake:
			err = w.drain(o, peer)
		case <-quiet.C:
			err = ping(o.ctx, peer)
		case <-o.ctx.Done():
			err = o.ctx.Err()
		}
		if quiet.Stop(); err != nil {
			if !isDone(err) {
				w.server.o.Log.Info("coap observer dropped", "to", o.remote.Addr, "name", o.source.key.name, "err", err)
			}
			return
		}
	}
}

// ping reports whether the consumer answers an Empty message with a Reset (RFC 7252 §4.3).
func ping(ctx context.Context, p *peer) error {
	_, _, err := p.Confirm(ctx, &messaging.Packet{}, nil)
	if errors.Is(err, messaging.ErrReset) {
		return nil
	}
	return err
}

// drain sends the waiting notifications. After the last one it returns an error.
func (w *watches) drain(o *observer, p *peer) error {
	for {
		r, end := w.take(o)
		switch {
		case r != nil:
			if err := w.notify(o, p, r); err != nil {
				return err
			}
		case end != nil:
			if isDone(end) {
				return end
			}
			last := failure(end) // without Observe: it ends the observation (RFC 7641 §4.2)
			last.Token = o.key.token
			_, _, err := p.Confirm(o.ctx, last, nil)
			return errors.Join(end, err)
		default:
			return nil
		}
	}
}

// take returns the next message to send.
func (w *watches) take(o *observer) (*interact.Message, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(o.queue) > 0 {
		r := o.queue[0]
		o.queue = slices.Delete(o.queue, 0, 1)
		return r, nil
	}
	return nil, o.end
}

// notify sends one reading or event and waits for its acknowledgement. Of a larger payload it sends the first block; the consumer
// fetches the rest (RFC 7959 §3.4).
func (w *watches) notify(o *observer, p *peer, r *interact.Message) error {
	a, err := present(&messaging.Packet{Code: codes.Content}, named(o.ask, r), o.ask)
	if err == nil && len(a.Payload) > w.server.o.MaxBody {
		err = responseTooLarge(w.server.o.MaxBody)
	}
	if err != nil {
		a = failure(err)
	}
	if a.Token = o.key.token; err == nil {
		a.AddUint(message.Observe, o.next())
	}
	if part, is, _ := (messaging.Block{SZX: messaging.SZX1024}).Cut(a.Payload); is.More {
		a.Add(message.ETag, tag(a.Payload))
		w.server.keep(o.transferKey, o.host, a)
		a = parted(a, part, is)
	}
	if _, _, sent := p.Confirm(o.ctx, a, nil); sent != nil {
		return sent
	}
	return err
}

// named returns r for an observation of all: an object with one member.
func named(ask, r *interact.Message) *interact.Message {
	if ask.Type != interact.ReadAllProperties && ask.Type != interact.SubscribeAllEvents {
		return r
	}
	value := asJSON(r)
	if value == nil {
		value = json.RawMessage("null")
	}
	name, _ := json.Marshal(r.Name) // always has a JSON form
	one := *r
	one.ContentType, one.Data = interact.JSON, bytes.Join([][]byte{[]byte("{"), name, []byte(":"), value, []byte("}")}, nil)
	return &one
}

// farewell notifies all observers of the shutdown, once and without waiting, and ends them.
func (w *watches) farewell() {
	w.mu.Lock()
	w.closed = true
	var all []*observer
	for _, o := range w.observers {
		all = append(all, o)
	}
	for _, o := range all {
		w.removeLocked(o)
	}
	w.mu.Unlock()
	for _, o := range all {
		last := failure(errShutdown())
		last.Token = o.key.token
		p := w.server.peers.get(o.remote)
		if err := p.Fire(last); err != nil {
			w.server.o.Log.Debug("coap write", "to", o.remote.Addr, "err", err)
		}
		w.server.peers.release(p)
	}
}

func errShutdown() error {
	return interact.Errorf(interact.ShuttingDown, "observe again later", "the server is shutting down")
}

// isDone reports whether err is the end of the server or of an observer.
func isDone(err error) bool { return errors.Is(err, context.Canceled) }
