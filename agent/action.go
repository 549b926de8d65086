package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"runtime/debug"

	"github.com/lmosd/lmosd/interact"
)

// None is the input or output of an action that has none.
type None struct{}

// Action makes an action of a function. In and Out are what encoding/json reads and writes; [None] is nothing. An error of f is
// the agent's answer: its text goes to the caller, so it should hold no secret. f runs once per call, at the same time as
// others; ctx ends when the caller gives up. With [Chunks] as In it reads its input while that comes, and with [Data] as Out the
// output is no JSON.
func Action[In, Out any](name string, f func(ctx context.Context, in In) (Out, error), options ...Option) Part {
	return &action[In, Out]{name: name, options: options, run: func(ctx context.Context, in In) iter.Seq2[Out, error] {
		return func(yield func(Out, error) bool) { yield(f(ctx, in)) }
	}, one: true}
}

// Stream makes an action that answers in parts: each Out that f yields goes to the caller at once, as a part of a running
// action. f ends early if the caller leaves.
func Stream[In, Out any](name string, f func(ctx context.Context, in In) iter.Seq2[Out, error], options ...Option) Part {
	return &action[In, Out]{name: name, options: options, run: f}
}

type action[In, Out any] struct {
	name    string
	options []Option
	run     func(ctx context.Context, in In) iter.Seq2[Out, error]
	one     bool // the first Out is all
}

func (a *action[In, Out]) add(s *server) error {
	about := map[string]any{"synchronous": true}
	if in := schemaFor[In](); in != nil {
		about["input"] = in
	}
	if out := schemaFor[Out](); out != nil && a.one {
		about["output"] = out
	}
	if err := s.put("actions", a.name, about, a.options); err != nil {
		return err
	}
	s.actions[a.name] = func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return a.do(ctx, m, &s.parking)
	}
	return nil
}

// do runs the action for one call.
func (a *action[In, Out]) do(ctx context.Context, m *interact.Message, parking *interact.Parking) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		asks := &asker{parking: parking, m: m, yield: yield}
		ctx := withAsker(ctx, asks)
		var in In
		if err := decode(m, &in); err != nil {
			yield(nil, err)
			return
		}
		if c, ok := any(&in).(*Chunks); ok {
			defer c.pull.close()
		}
		for out, err := range guard(func() iter.Seq2[Out, error] { return a.run(ctx, in) }) {
			switch {
			case asks.left:
				return
			case err != nil:
				yield(nil, failed(m.Name, err))
				return
			}
			r, err := status(m, interact.StatusRunning, out)
			if a.one && r != nil {
				r.Status = interact.StatusCompleted
			}
			if !yield(r, err) || err != nil || a.one {
				return
			}
		}
		if asks.left {
			return
		}
		last := m.Reply(interact.ActionStatus, "", nil)
		last.Status = interact.StatusCompleted
		yield(last, nil)
	}
}

// guard yields what run gives. A panic in it is an error of this call alone.
func guard[Out any](run func() iter.Seq2[Out, error]) iter.Seq2[Out, error] {
	return func(yield func(Out, error) bool) {
		left := false
		defer func() {
			if p := recover(); p != nil {
				if left {
					panic(p) // it is the caller's, whose loop was running
				}
				var none Out
				yield(none, &panicError{p, debug.Stack()})
			}
		}()
		for out, err := range run() {
			left = true
			ok := yield(out, err)
			left = false
			if !ok || err != nil {
				return
			}
		}
	}
}

// A panicError is a function that panicked. The stack is for the agent's own log.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("it panicked: %v", e.value) }

// failed is what the caller hears of an error of the agent's own code.
func failed(name string, err error) error {
	if e, ok := errors.AsType[*interact.Error](err); ok {
		return e
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return interact.AsError(err)
	}
	return &interact.Error{Code: interact.AgentFailed, Remote: true, Title: name + ": " + err.Error(), Hint: "see the agent's log"}
}

// decode reads the input of m into v.
func decode(m *interact.Message, v any) error {
	if c, ok := v.(*Chunks); ok {
		*c = chunksOf(m)
		return nil
	}
	if m.Chunks != nil {
		return interact.Errorf(interact.NotAllowed, "send the data as one input", "%s takes no request stream", m.Name)
	}
	if _, none := v.(*None); none || len(m.Data) == 0 {
		return nil
	}
	data, _, err := interact.Transcode(m.Data, m.Media(), interact.JSON)
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		return &interact.Error{Code: interact.Invalid, Title: "the input of " + m.Name + " is not of the type that the agent takes",
			Hint: "see what it takes", Next: interact.Next(interact.StepShow), Err: err}
	}
	return nil
}

// status makes a state of an action with v as its data.
func status(m *interact.Message, s interact.Status, v any) (*interact.Message, error) {
	if d, ok := v.(Data); ok {
		r := m.Reply(interact.ActionStatus, cmp.Or(d.ContentType, octets), d.Bytes)
		r.Status = s
		return r, nil
	}
	data, err := encode(m.Name, v)
	if err != nil {
		return nil, err
	}
	r := m.Reply(interact.ActionStatus, interact.JSON, data)
	r.Status = s
	return r, nil
}

// encode writes v; [None] is nothing. A list or map that is nil is an empty one: null would not fit its schema.
func encode(name string, v any) ([]byte, error) {
	if _, none := v.(None); none {
		return nil, nil
	}
	if _, own := v.(json.Marshaler); !own {
		switch r := reflect.ValueOf(v); {
		case r.Kind() == reflect.Slice && r.IsNil() && r.Type().Elem().Kind() != reflect.Uint8:
			return []byte("[]"), nil
		case r.Kind() == reflect.Map && r.IsNil():
			return []byte("{}"), nil
		}
	}
	data, err := json.Marshal(v)
	if err != nil {
		return nil, &interact.Error{Code: interact.AgentFailed, Remote: true, Hint: "see the agent's log", Err: err,
			Title: "the output of " + name + " cannot be written as JSON"}
	}
	return data, nil
}
