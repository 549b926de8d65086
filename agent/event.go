package agent

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// An Event is an event of the agent. It is safe for concurrent use.
type Event[T any] struct {
	topic   *topic
	options []Option
}

// NewEvent returns an event with data of type T.
func NewEvent[T any](name string, options ...Option) *Event[T] {
	return &Event[T]{newTopic(name), options}
}

// Emit sends v to all subscribers. It does not block: a subscriber that is too slow gets an error.
func (e *Event[T]) Emit(v T) { e.topic.deliver(e.topic.happens(v)) }

func (e *Event[T]) add(s *server) error {
	about := map[string]any{}
	if data := schemaFor[T](); data != nil {
		about["data"] = data
	}
	if err := s.put("events", e.topic.name, about, e.options); err != nil {
		return err
	}
	s.events[e.topic.name] = e.topic
	return nil
}

// waiting is the queue length of a listener. The node listens once for all of its subscribers.
const waiting = 1024

// A source can be subscribed to. Join sends later values to l, and if possible those after the reading or event with the id after.
type source interface {
	join(l *listener, after string)
	leave(l *listener)
}

// A topic has listeners.
type topic struct {
	name string

	mu        sync.Mutex
	listeners map[*listener]struct{} // owned by mu
}

// A listener receives values. The channel is closed if it is too slow.
type listener struct{ values chan happening }

// A happening is a value to send, or an error instead.
type happening struct {
	name, id string
	data     []byte
	err      error
	at       time.Time
}

// reply returns the reply to m; nil with an error.
func (h *happening) reply(m *interact.Message, typ interact.Type) *interact.Message {
	if h.err != nil {
		return nil
	}
	r := m.Reply(typ, interact.JSON, h.data)
	r.Name, r.ID, r.Time = h.name, h.id, h.at
	return r
}

func newTopic(name string) *topic { return &topic{name: name, listeners: map[*listener]struct{}{}} }

// happens encodes v.
func (t *topic) happens(v any) happening {
	data, err := encode(t.name, v)
	return happening{name: t.name, data: data, err: err, at: time.Now()}
}

func (t *topic) deliver(h happening) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for l := range t.listeners {
		select {
		case l.values <- h:
		default:
			delete(t.listeners, l)
			close(l.values)
		}
	}
}

func (t *topic) join(l *listener, _ string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.listeners[l] = struct{}{}
}

func (t *topic) leave(l *listener) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.listeners, l)
}

func (s *server) listenAll(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	var all []source
	for _, t := range s.events {
		all = append(all, t)
	}
	return listenTo(ctx, m, interact.Event, all)
}

func (s *server) observeAll(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	var all []source
	for _, p := range s.properties {
		if p.changes != nil {
			all = append(all, p.changes)
		}
	}
	return listenTo(ctx, m, interact.PropertyReading, all)
}

// listenTo yields the values of the sources until the listener leaves.
func listenTo(ctx context.Context, m *interact.Message, typ interact.Type, sources []source) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		l := make([]*listener, len(sources))
		all := make(chan happening)
		ctx, cancel := context.WithCancel(ctx)
		var forwards sync.WaitGroup
		defer forwards.Wait()
		defer cancel()
		for i, s := range sources {
			l[i] = &listener{make(chan happening, waiting)}
			s.join(l[i], m.After)
			defer s.leave(l[i])
			forwards.Go(func() { forward(ctx, l[i].values, all) })
		}
		for {
			select {
			case h := <-all:
				if !deliver(m, typ, h, yield) {
					return
				}
			case <-ctx.Done():
				yield(nil, interact.AsError(ctx.Err()))
				return
			}
		}
	}
}

// forward passes on the values of one source, and an error if it is cut.
func forward(ctx context.Context, from <-chan happening, to chan<- happening) {
	for {
		var h happening
		select {
		case next, ok := <-from:
			if h = next; !ok {
				h.err = interact.Errorf(interact.Overloaded, "subscribe again, and read faster",
					"the subscriber is too slow: %d values are queued", waiting)
			}
		case <-ctx.Done():
			return
		}
		select {
		case to <- h:
			if h.err != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

func deliver(m *interact.Message, typ interact.Type, h happening, yield func(*interact.Message, error) bool) bool {
	if h.err != nil {
		yield(nil, h.err)
		return false
	}
	return yield(h.reply(m, typ), nil)
}
