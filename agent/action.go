package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"reflect"

	"github.com/lmosd/lmosd/interact"
)

// None is the type of a missing input or output.
type None struct{}

// Action returns an action that calls f. In and Out are types of encoding/json; [None] means none. The text of an error of f is sent to the
// caller, so it must not contain secrets. f runs once per call, concurrently with others; ctx ends when the caller cancels. With [Chunks]
// as In, f reads its input as it arrives; with [Data] as Out, the output is not JSON.
func Action[In, Out any](name string, f func(ctx context.Context, in In) (Out, error), options ...Option) Part {
	return &action[In, Out]{name: name, options: options, run: func(ctx context.Context, in In) iter.Seq2[Out, error] {
		return func(yield func(Out, error) bool) { yield(f(ctx, in)) }
	}, one: true}
}

// Stream returns an action with partial outputs: each Out that f yields is sent to the caller at once. The loop of f ends early if the
// caller leaves.
func Stream[In, Out any](name string, f func(ctx context.Context, in In) iter.Seq2[Out, error], options ...Option) Part {
	return &action[In, Out]{name: name, options: options, run: f}
}

type action[In, Out any] struct {
	name    string
	options []Option
	run     func(ctx context.Context, in In) iter.Seq2[Out, error]
	one     bool // the first Out is the whole output
}

func (a *action[In, Out]) add(s *server) error {
	about := map[string]any{"synchronous": true}
	if in := schemaFor[In](); in != nil {
		about["input"] = in
	}
	if out := schemaFor[Out](); out != nil && a.one {
		about["output"] = out
	}
	if err := s.addAffordance("actions", a.name, about, a.options); err != nil {
		return err
	}
	s.actions[a.name] = func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return a.do(ctx, m, &s.inputs)
	}
	return nil
}

// do runs the action for one call.
func (a *action[In, Out]) do(ctx context.Context, m *interact.Message, inputs *interact.InputWaiter) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		run := &actionRun{inputs: inputs, m: m, yield: yield}
		ctx := withRun(ctx, run)
		var in In
		if err := decode(m, &in); err != nil {
			yield(nil, err)
			return
		}
		if c, ok := any(&in).(*Chunks); ok {
			defer c.reader.close()
		}
		for out, err := range guard(func() iter.Seq2[Out, error] { return a.run(ctx, in) }) {
			switch {
			case run.left:
				return
			case err != nil:
				yield(nil, callError(m.Name, err))
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
		if run.left {
			return
		}
		yield(m.ReplyStatus(interact.StatusCompleted, "", nil), nil)
	}
}

// guard yields the outputs of run. A panic in it becomes an error of this call; after the consumer left, it is dropped.
func guard[Out any](run func() iter.Seq2[Out, error]) iter.Seq2[Out, error] {
	return func(yield func(Out, error) bool) {
		inConsumer, ended := false, false
		defer func() {
			p := recover()
			switch {
			case p != nil && inConsumer:
				panic(p) // of the consumer's loop
			case p != nil && !ended:
				var none Out
				yield(none, fmt.Errorf("panic: %v", p))
			}
		}()
		for out, err := range run() {
			inConsumer = true
			ended = !yield(out, err) || err != nil
			inConsumer = false
			if ended {
				return
			}
		}
	}
}

// callError returns the error that the caller receives for an error of f.
func callError(name string, err error) error {
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
		return interact.Errorf(interact.NotAllowed, "send the data as one input", "%s does not accept a request stream", m.Name)
	}
	if _, none := v.(*None); none || len(m.Data) == 0 {
		return nil
	}
	data, _, err := interact.Transcode(m.Data, m.Media(), interact.JSON)
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		return &interact.Error{Code: interact.Invalid, Title: "the input of " + m.Name + " does not have the type of the action",
			Hint: "see the schema of its input", Next: interact.Next(interact.StepShow), Err: err}
	}
	return nil
}

// status returns a state of an action with v as its data.
func status(m *interact.Message, s interact.Status, v any) (*interact.Message, error) {
	if d, ok := v.(Data); ok {
		return m.ReplyStatus(s, cmp.Or(d.ContentType, octetStream), d.Bytes), nil
	}
	data, err := encode(m.Name, v)
	if err != nil {
		return nil, err
	}
	return m.ReplyStatus(s, interact.JSON, data), nil
}

// encode returns v as JSON; [None] is empty. A nil slice or map becomes an empty one, because null does not match its schema.
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
			Title: "the output of " + name + " cannot be encoded as JSON"}
	}
	return data, nil
}
