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

// Emit sends v to all subscribers. It does not block: a subscriber that is too slow receives an error.
func (e *Event[T]) Emit(v T) { e.topic.deliver(updateOf(e.topic.name, v)) }

func (e *Event[T]) add(s *server) error {
	about := map[string]any{}
	if data := schemaFor[T](); data != nil {
		about["data"] = data
	}
	if err := s.addAffordance("events", e.topic.name, about, e.options); err != nil {
		return err
	}
	s.events[e.topic.name] = e.topic
	return nil
}

// queueLength is the number of updates that a listener may have queued. The node subscribes once for all of its consumers.
const queueLength = 1024

// A source sends updates to its listeners. subscribe sends later updates to l, and if possible those after the one with the id after.
type source interface {
	subscribe(l *listener, after string)
	unsubscribe(l *listener)
}

// A topic has listeners.
type topic struct {
	name string

	mu        sync.Mutex
	listeners map[*listener]struct{} // owned by mu
}

// A listener receives updates. The channel is closed if the listener is too slow.
type listener struct{ values chan update }

// An update is a value to send, or an error instead.
type update struct {
	name, id string
	data     []byte
	err      error
	at       time.Time
}

// reply returns the reply to m; nil with an error.
func (u *update) reply(m *interact.Message, typ interact.Type) *interact.Message {
	if u.err != nil {
		return nil
	}
	r := m.Reply(typ, interact.JSON, u.data)
	r.Name, r.ID, r.Time = u.name, u.id, u.at
	return r
}

func newTopic(name string) *topic { return &topic{name: name, listeners: map[*listener]struct{}{}} }

// updateOf returns the update of an event or a property to v.
func updateOf(name string, v any) update {
	data, err := encode(name, v)
	return update{name: name, data: data, err: err, at: time.Now()}
}

func (t *topic) deliver(u update) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for l := range t.listeners {
		select {
		case l.values <- u:
		default:
			delete(t.listeners, l)
			close(l.values)
		}
	}
}

func (t *topic) subscribe(l *listener, _ string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.listeners[l] = struct{}{}
}

func (t *topic) unsubscribe(l *listener) {
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

// listenTo yields the updates of the sources until the consumer leaves.
func listenTo(ctx context.Context, m *interact.Message, typ interact.Type, sources []source) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		l := make([]*listener, len(sources))
		all := make(chan update)
		ctx, cancel := context.WithCancel(ctx)
		var forwards sync.WaitGroup
		defer forwards.Wait()
		defer cancel()
		for i, s := range sources {
			l[i] = &listener{make(chan update, queueLength)}
			s.subscribe(l[i], m.After)
			defer s.unsubscribe(l[i])
			forwards.Go(func() { forward(ctx, l[i].values, all) })
		}
		for {
			select {
			case u := <-all:
				if !deliver(m, typ, u, yield) {
					return
				}
			case <-ctx.Done():
				yield(nil, interact.AsError(ctx.Err()))
				return
			}
		}
	}
}

// forward forwards the updates of one source, and an error if the source dropped the listener.
func forward(ctx context.Context, from <-chan update, to chan<- update) {
	for {
		var u update
		select {
		case next, ok := <-from:
			if u = next; !ok {
				u.err = interact.Errorf(interact.Overloaded, "subscribe again, and read faster",
					"the subscriber is too slow: %d values are queued", queueLength)
			}
		case <-ctx.Done():
			return
		}
		select {
		case to <- u:
			if u.err != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// deliver yields an update. It returns false after the last one.
func deliver(m *interact.Message, typ interact.Type, u update, yield func(*interact.Message, error) bool) bool {
	if u.err != nil {
		yield(nil, u.err)
		return false
	}
	return yield(u.reply(m, typ), nil)
}
