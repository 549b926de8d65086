package agent

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// An Event is something the agent tells whoever subscribes. It is safe for concurrent use.
type Event[T any] struct {
	topic   *topic
	options []Option
}

// NewEvent returns an event with data of type T.
func NewEvent[T any](name string, options ...Option) *Event[T] {
	return &Event[T]{newTopic(name), options}
}

// Emit tells all subscribers. It does not wait for them: one that does not keep up is dropped, with a reason.
func (e *Event[T]) Emit(v T) { e.topic.tell(v) }

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

// waiting is how many values may wait for a listener. The node listens once, whatever the number of subscribers is.
const waiting = 1024

// A topic is what many may listen to.
type topic struct {
	name string

	mu        sync.Mutex
	listeners map[*listener]struct{} // owned by mu
}

// A listener is one who listens. The channel is closed when it was too slow.
type listener struct{ values chan happening }

type happening struct {
	name string
	data []byte
	err  error
	at   time.Time
}

func newTopic(name string) *topic { return &topic{name: name, listeners: map[*listener]struct{}{}} }

func (t *topic) tell(v any) {
	data, err := encode(t.name, v)
	h := happening{t.name, data, err, time.Now()}
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

func (t *topic) join(l *listener) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.listeners[l] = struct{}{}
}

func (t *topic) leave(l *listener) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.listeners, l)
}

func (t *topic) listen(ctx context.Context, m *interact.Message, typ interact.Type) iter.Seq2[*interact.Message, error] {
	return listenTo(ctx, m, typ, []*topic{t})
}

func (s *server) listenAll(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	var all []*topic
	for _, t := range s.events {
		all = append(all, t)
	}
	return listenTo(ctx, m, interact.Event, all)
}

func (s *server) observeAll(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	var all []*topic
	for _, p := range s.properties {
		if p.changes != nil {
			all = append(all, p.changes)
		}
	}
	return listenTo(ctx, m, interact.PropertyReading, all)
}

// listenTo yields what the topics tell until the listener leaves.
func listenTo(ctx context.Context, m *interact.Message, typ interact.Type, topics []*topic) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		l := make([]*listener, len(topics))
		all := make(chan happening)
		ctx, cancel := context.WithCancel(ctx)
		var forwards sync.WaitGroup
		defer forwards.Wait()
		defer cancel()
		for i, t := range topics {
			l[i] = &listener{make(chan happening, waiting)}
			t.join(l[i])
			defer t.leave(l[i])
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

// forward gives on what one topic tells, and says at the end that it was cut.
func forward(ctx context.Context, from <-chan happening, to chan<- happening) {
	for {
		var h happening
		select {
		case next, ok := <-from:
			if h = next; !ok {
				h.err = interact.Errorf(interact.Overloaded, "subscribe again, and read faster", "the subscriber reads too slowly: %d values waited", waiting)
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
	r := m.Reply(typ, interact.JSON, h.data)
	r.Name, r.Time = h.name, h.at
	return yield(r, nil)
}
