package interact

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing"

	"github.com/lmosd/lmosd/did"
)

// saying returns a layer that notes when a message passes, both ways.
func saying(log *[]string, name string) Middleware {
	return func(t Thing) Thing {
		return Func(func(ctx context.Context, m *Message) iter.Seq2[*Message, error] {
			return func(yield func(*Message, error) bool) {
				*log = append(*log, "into "+name)
				t.Do(ctx, m)(yield)
				*log = append(*log, "out of "+name)
			}
		})
	}
}

var echo = Unary(func(_ context.Context, m *Message) (*Message, error) { return m.Reply(ActionStatus, "", m.Data), nil })

func TestChain(t *testing.T) {
	t.Parallel()
	var log []string
	thing := Chain(echo, saying(&log, "policy"), saying(&log, "trace"))
	r, err := Call(t.Context(), thing, &Message{Data: []byte("x")})
	if err != nil || string(r.Data) != "x" {
		t.Fatalf("got %v, %v", r, err)
	}
	if want := []string{"into policy", "into trace", "out of trace", "out of policy"}; !slices.Equal(log, want) {
		t.Errorf("got %q, want %q", log, want)
	}
	if r, err := Call(t.Context(), Chain(echo), &Message{Data: []byte("y")}); err != nil || string(r.Data) != "y" {
		t.Errorf("a chain of nothing: %v, %v", r, err)
	}
}

func TestReply(t *testing.T) {
	t.Parallel()
	m := &Message{Type: ReadProperty, Thing: "weather", ID: "1", Name: "temperature", TraceParent: "tp", TraceState: "ts", Hops: 3,
		From: did.NodePrincipal("did:key:zX", "")}
	r := m.Reply(PropertyReading, "text/plain", []byte("21"))
	want := &Message{Type: PropertyReading, Thing: "weather", Correlation: "1", Name: "temperature", TraceParent: "tp",
		TraceState: "ts", ContentType: "text/plain", Data: []byte("21")}
	if fmt.Sprintf("%+v", r) != fmt.Sprintf("%+v", want) {
		t.Errorf("got %+v, want %+v", r, want)
	}
	m.Correlation = "c"
	if r := m.Reply(PropertyReading, "", nil); r.Correlation != "c" {
		t.Errorf("the correlation is %q, want that of the request", r.Correlation)
	}
}

func TestMedia(t *testing.T) {
	t.Parallel()
	if got := (&Message{}).Media(); got != JSON {
		t.Errorf("got %q, want %q", got, JSON)
	}
	if got := (&Message{ContentType: "text/plain"}).Media(); got != "text/plain" {
		t.Errorf("got %q", got)
	}
}

func TestAsk(t *testing.T) {
	t.Parallel()
	failure := errors.New("failed")
	running, completed := &Message{Status: StatusRunning}, &Message{Status: StatusCompleted}
	for name, c := range map[string]struct {
		replies iter.Seq2[*Message, error]
		want    *Message
		code    Code
	}{
		"one reply":            {One(completed), completed, 0},
		"the last of several":  {several(running, completed), completed, 0},
		"an error":             {Fail(Errorf(Loop, "", "x")), nil, Loop},
		"an error of no code":  {Fail(failure), nil, Internal},
		"an error after reply": {func(yield func(*Message, error) bool) { _ = yield(running, nil) && yield(nil, failure) }, nil, Internal},
		"nothing":              {several(), nil, Internal},
		"an empty reply":       {One(nil), nil, Internal},
	} {
		thing := Func(func(context.Context, *Message) iter.Seq2[*Message, error] { return c.replies })
		got, err := Call(t.Context(), thing, &Message{})
		if got != c.want || c.code == 0 && err != nil || c.code != 0 && AsError(err).Code != c.code {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
}

func several(ms ...*Message) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		for _, m := range ms {
			if !yield(m, nil) {
				return
			}
		}
	}
}

func TestLeavingTheLoop(t *testing.T) {
	t.Parallel()
	released := false
	thing := Func(func(context.Context, *Message) iter.Seq2[*Message, error] {
		return func(yield func(*Message, error) bool) {
			defer func() { released = true }()
			for yield(&Message{}, nil) {
			}
		}
	})
	n := 0
	for range Chain(thing, func(t Thing) Thing { return Func(t.Do) }).Do(t.Context(), &Message{}) {
		if n++; n == 3 {
			break
		}
	}
	if n != 3 || !released {
		t.Errorf("left after %d replies, released=%t", n, released)
	}
}

// places is a finder of few things.
type places map[string]Thing

func (p places) Locate(_ context.Context, ref string) (Thing, error) {
	if t, ok := p[ref]; ok {
		return t, nil
	}
	return nil, Errorf(NotFound, "", "no agent matches %q", ref).Then(StepFind)
}

func TestRouter(t *testing.T) {
	t.Parallel()
	name := func(s string) Thing {
		return Unary(func(context.Context, *Message) (*Message, error) { return &Message{Data: []byte(s)}, nil })
	}
	router := Router(places{"weather": name("sunny"), "clock": name("noon")})
	for ref, want := range map[string]string{"weather": "sunny", "clock": "noon"} {
		r, err := Call(t.Context(), router, &Message{Thing: ref})
		if err != nil || string(r.Data) != want {
			t.Errorf("%s: got %v, %v, want %s", ref, r, err, want)
		}
	}
	if _, err := Call(t.Context(), router, &Message{Thing: "weathr"}); AsError(err).Code != NotFound {
		t.Errorf("got %v, want NotFound", err)
	}
}
