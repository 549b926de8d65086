package agent

import (
	"context"
	"encoding/json"
	"iter"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// Property returns a property that read and write access; a nil write makes it read-only, a nil read write-only.
func Property[T any](name string, read func(ctx context.Context) (T, error), write func(ctx context.Context, v T) error,
	options ...Option) Part {
	p := &property{name: name, about: propertyAbout[T](read == nil, write == nil, false), options: options}
	if read != nil {
		p.read = func(ctx context.Context) update {
			v, err := read(ctx)
			if err != nil {
				return update{err: callError(name, err)}
			}
			return updateOf(name, v)
		}
	}
	if write != nil {
		p.write = func(ctx context.Context, m *interact.Message) error {
			var v T
			if err := decode(m, &v); err != nil {
				return err
			}
			return write(ctx, v)
		}
	}
	return p
}

func propertyAbout[T any](writeOnly, readOnly, observable bool) map[string]any {
	about := schemaFor[T]()
	if about == nil {
		about = map[string]any{}
	}
	for name, set := range map[string]bool{"readOnly": readOnly, "writeOnly": writeOnly, "observable": observable} {
		if set {
			about[name] = true
		}
	}
	return about
}

// A State is a property with a value in memory: others can read, write and observe it. It is safe for concurrent use.
type State[T any] struct {
	name    string
	options []Option
	changes *topic
	changed func(T) error

	start string // prefix of the ids of its readings

	mu      sync.Mutex
	value   T     // owned by mu
	version int64 // counts the values; owned by mu
}

// NewState returns a property with a first value. Written, if not nil, is called before a written value is stored, and may reject it.
func NewState[T any](name string, first T, written func(v T) error, options ...Option) *State[T] {
	return &State[T]{name: name, options: options, changes: newTopic(name), changed: written, start: interact.NewID() + "-",
		value: first}
}

// Get returns the value.
func (s *State[T]) Get() T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value
}

// Set changes the value and notifies observers.
func (s *State[T]) Set(v T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.value = v
	s.version++
	s.changes.deliver(s.nowLocked())
}

// nowLocked returns the current value as an update.
func (s *State[T]) nowLocked() update {
	u := updateOf(s.name, s.value)
	u.id = s.start + strconv.FormatInt(s.version, 36)
	return u
}

// subscribe adds l. It receives the current value if after is the id of an earlier one, so that it misses no change.
func (s *State[T]) subscribe(l *listener, after string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes.subscribe(l, "")
	if now := s.nowLocked(); after != "" && after != now.id {
		l.values <- now // l is new and has room
	}
}

func (s *State[T]) unsubscribe(l *listener) { s.changes.unsubscribe(l) }

// now returns the current value as an update.
func (s *State[T]) now(context.Context) update {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nowLocked()
}

func (s *State[T]) add(to *server) error {
	p := &property{name: s.name, about: propertyAbout[T](false, false, true), options: s.options, changes: s, read: s.now,
		write: func(_ context.Context, m *interact.Message) error {
			var v T
			if err := decode(m, &v); err != nil {
				return err
			}
			if s.changed != nil {
				if err := s.changed(v); err != nil {
					return err
				}
			}
			s.Set(v)
			return nil
		}}
	return p.add(to)
}

// A property is a property of the agent, without its Go type.
type property struct {
	name    string
	about   map[string]any
	options []Option
	read    func(ctx context.Context) update                     // nil: write-only
	write   func(ctx context.Context, m *interact.Message) error // nil: read-only
	changes source                                               // nil: cannot be observed
}

func (p *property) add(s *server) error {
	if err := s.addAffordance("properties", p.name, p.about, p.options); err != nil {
		return err
	}
	s.properties[p.name] = p
	return nil
}

func (p *property) do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	switch {
	case m.Type == interact.ReadProperty && p.read != nil:
		return interact.Unary(func(ctx context.Context, m *interact.Message) (*interact.Message, error) {
			u := p.read(ctx)
			return u.reply(m, interact.PropertyReading), u.err
		}).Do(ctx, m)
	case m.Type == interact.WriteProperty && p.write != nil:
		return interact.Unary(func(ctx context.Context, m *interact.Message) (*interact.Message, error) {
			if err := p.write(ctx, m); err != nil {
				return nil, callError(p.name, err)
			}
			return m.Reply(interact.Acknowledgement, "", nil), nil
		}).Do(ctx, m)
	case m.Type == interact.ObserveProperty && p.changes != nil:
		return listenTo(ctx, m, interact.PropertyReading, []source{p.changes})
	}
	return interact.Fail(interact.Errorf(interact.NotAllowed, "see its operations",
		"%s is not supported by %s", m.Type.Op(), p.name).Then(interact.StepShow))
}

// readSome reads the properties that m names, or all readable properties.
func (s *server) readSome(ctx context.Context, m *interact.Message) (*interact.Message, error) {
	names := slices.Sorted(maps.Keys(s.properties))
	if m.Type == interact.ReadMultipleProperties {
		names = nil
		if err := decode(m, &names); err != nil {
			return nil, err
		}
	}
	values := map[string]json.RawMessage{}
	for _, name := range names {
		p := s.properties[name]
		if p != nil && p.read == nil && m.Type == interact.ReadAllProperties {
			continue
		}
		one := *m
		one.Type, one.Name, one.Data = interact.ReadProperty, name, nil
		r, err := interact.Call(ctx, s, &one)
		if err != nil {
			return nil, err
		}
		values[name] = r.Data
	}
	data, err := encode("the properties", values)
	if err != nil {
		return nil, err
	}
	r := m.Reply(interact.PropertyReadings, interact.JSON, data)
	r.Time = time.Now()
	return r, nil
}

// writeSome writes properties in order, until one fails.
func (s *server) writeSome(ctx context.Context, m *interact.Message) (*interact.Message, error) {
	var values map[string]json.RawMessage
	if err := decode(m, &values); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		one := *m
		one.Type, one.Name, one.ContentType, one.Data = interact.WriteProperty, name, interact.JSON, values[name]
		if _, err := interact.Call(ctx, s, &one); err != nil {
			return nil, err
		}
	}
	return m.Reply(interact.Acknowledgement, "", nil), nil
}
