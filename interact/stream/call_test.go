package stream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/stream/frame"
	"github.com/lmosd/lmosd/td"
)

// each runs a test over each transport, in parallel.
func each(t *testing.T, test func(t *testing.T, transport string)) {
	t.Helper()
	t.Parallel()
	for transport := range transports {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			test(t, transport)
		})
	}
}

// ask builds an action request.
func ask(name string, data string) *interact.Message {
	return &interact.Message{Type: interact.InvokeAction, Thing: "urn:example:weather", ID: "id-1", Name: name, Data: []byte(data)}
}

// done is the final status of the action of m.
func done(m *interact.Message, data string) *interact.Message {
	r := m.Reply(interact.ActionStatus, "", []byte(data))
	r.Status = interact.StatusCompleted
	return r
}

// code returns the code of err's *interact.Error, or 0.
func code(err error) interact.Code {
	var e *interact.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// failing makes a thing that answers with err.
func failing(err error) interact.Thing {
	return interact.Func(func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] {
		return interact.Fail(err)
	})
}

func TestUnary(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		received := make(chan *interact.Message, 1)
		p := newPair(t, transport, interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
			received <- m
			r := done(m, "sunny")
			r.Time, r.Began = time.Unix(1, 2).UTC(), time.Unix(0, 1).UTC()
			r.ActionID, r.Timing = "run-1", &interact.Timing{Path: "local", Host: 3 * time.Millisecond, Agent: time.Millisecond}
			return r, nil
		}), Options{}, Options{})
		m := &interact.Message{Type: interact.InvokeAction, Thing: "urn:example:weather@z6Mk", ID: "id-1", Correlation: "c-1",
			Name: "getWeather", ContentType: "text/plain", Data: []byte("Bonn?"), TraceParent: "00-aa-bb-01", TraceState: "v=1",
			Time: time.Unix(3, 4).UTC(), Hops: 2, ActionID: "run-0", Key: "k", Detach: true, Accept: "application/cbor",
			Timing: &interact.Timing{}, Via: "mesh"}
		r, err := interact.Call(t.Context(), p.thing, m)
		if err != nil {
			t.Fatal(err)
		}
		want := *m
		want.From, want.Hops, want.Via = did.NodePrincipal(at(t, p.callerHost).Node, ""), 3, "" // how this node is to ask is its own affair
		if d := cmp.Diff(&want, <-received); d != "" {
			t.Errorf("the host received (-want +got):\n%s", d)
		}
		if r.Correlation != "c-1" || r.Thing != m.Thing || r.Name != m.Name || r.TraceParent != m.TraceParent ||
			string(r.Data) != "sunny" || r.Status != interact.StatusCompleted || !r.Time.Equal(time.Unix(1, 2)) ||
			!r.Began.Equal(time.Unix(0, 1)) || r.ActionID != "run-1" {
			t.Errorf("the caller received %+v", r)
		}
		if want := (interact.Timing{Path: "mesh " + map[string]string{"quic": "quic-v1", "tcp": "tcp"}[transport], Host: 3 * time.Millisecond, Agent: time.Millisecond}); r.Timing == nil || r.Timing.Node == "" || withoutDial(*r.Timing) != want {
			t.Errorf("the caller learned the times %+v, want %+v", r.Timing, want)
		}
	})
}

func TestFromIsTheAuthenticatedPeer(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		p := newPair(t, transport, interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
			return done(m, m.From.ID()), nil
		}), Options{}, Options{})
		m := ask("whoami", "")
		m.From = did.NodePrincipal("did:key:z6MkForged", "")
		r, err := interact.Call(t.Context(), p.thing, m)
		if err != nil {
			t.Fatal(err)
		}
		if want := at(t, p.callerHost).Node; string(r.Data) != string(want) {
			t.Errorf("From is %s, want %s", r.Data, want)
		}
	})
}

func TestManyCallsAtOnce(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		p := newPair(t, transport, answering, Options{MaxPerPeer: 16}, Options{})
		errs := make(chan error)
		for i := range 300 { // more than may be under way: they wait
			go func() {
				want := strings.Repeat(fmt.Sprint(i), i)
				r, err := interact.Call(t.Context(), p.thing, ask("echo", want))
				if err == nil && string(r.Data) != want {
					err = fmt.Errorf("call %d got the answer of another", i)
				}
				errs <- err
			}()
		}
		for range 300 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if s := p.caller.Stats(); s.CallsOut != 300 || s.Pooled != 1 || s.ErrorsOut != 0 {
			t.Errorf("the caller's figures are %+v, want 300 calls on one pooled stream", s)
		}
		if s := p.server.Stats(); s.CallsIn != 300 || s.Pooled != 0 || s.Streams != 1 {
			t.Errorf("the host's figures are %+v, want 300 calls on one stream", s)
		}
	})
}

func TestDataOfAllSizes(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		p := newPair(t, transport, answering, Options{}, Options{})
		for _, size := range []int{0, 1, 1200, 5000, inline, inline + 1, 100_000, 3 << 20, 16 << 20} {
			data := strings.Repeat("0123456789abcdef", size/16+1)[:size]
			r, err := interact.Call(t.Context(), p.thing, ask("echo", data))
			if err != nil {
				t.Fatalf("%d bytes: %v", size, err)
			}
			if string(r.Data) != data {
				t.Errorf("%d bytes: %d came back, or others", size, len(r.Data))
			}
		}
	})
}

func TestTooLarge(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		big := strings.Repeat("x", 100_000)
		small := Options{MaxMessage: 50_000}
		local := interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) { return done(m, big), nil })
		for name, c := range map[string]struct {
			caller, server Options
			data           string
			remote         bool
		}{
			"request, at the caller": {small, Options{}, big, false},
			"request, at the host":   {Options{}, small, big, true},
			"answer, at the caller":  {small, Options{}, "", false},
			"answer, at the host":    {Options{}, small, "", true},
		} {
			p := newPair(t, transport, local, c.caller, c.server)
			_, err := interact.Call(t.Context(), p.thing, ask("echo", c.data))
			if e := interact.AsError(err); e.Code != interact.TooLarge || e.Remote != c.remote || e.Hint == "" && e.Next == nil {
				t.Errorf("%s: got %v %q remote=%t, want TooLarge with a hint, remote=%t", name, e.Code, e, e.Remote, c.remote)
			}
		}
	})
}

func TestManyReplies(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		big := bytes.Repeat([]byte("b"), 200_000)
		p := newPair(t, transport, interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(yield func(*interact.Message, error) bool) {
				for i := range 5000 { // much more than the window holds
					r := m.Reply(interact.ActionStatus, "", fmt.Append(nil, i))
					r.Status = interact.StatusRunning
					if !yield(r, nil) {
						return
					}
				}
				r := m.Reply(interact.ActionStatus, "", big)
				r.Status = interact.StatusRunning
				_ = yield(r, nil) && yield(done(m, "end"), nil)
			}
		}), Options{}, Options{})
		n := 0
		for r, err := range p.thing.Do(t.Context(), ask("count", "")) {
			if err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprint(n)
			switch n {
			case 5000:
				want = string(big)
			case 5001:
				want = "end"
			}
			if string(r.Data) != want {
				t.Fatalf("reply %d has %d bytes %.20q", n, len(r.Data), r.Data)
			}
			n++
		}
		if n != 5002 {
			t.Errorf("got %d replies, want 5002", n)
		}
	})
}

func TestNoReply(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		p := newPair(t, transport, interact.Func(func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(func(*interact.Message, error) bool) {}
		}), Options{}, Options{})
		for range p.thing.Do(t.Context(), ask("silence", "")) {
			t.Error("a reply came")
		}
	})
}

func TestErrorsTravel(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		sent := &interact.Error{Code: interact.Invalid, Title: "input does not fit", Hint: "see lmosd show weather",
			Issues: []td.Issue{{Pointer: "/question", Reason: "is missing"}, {Pointer: "", Reason: "x"}}, Err: errors.New("why"), Remote: true}
		p := newPair(t, transport, failing(sent), Options{}, Options{})
		for name, m := range map[string]*interact.Message{"shared session": ask("a", ""),
			"own session": ask("a", strings.Repeat("x", 100_000))} {
			_, err := interact.Call(t.Context(), p.thing, m)
			got := interact.AsError(err)
			if got.Code != sent.Code || got.Title != sent.Title || got.Hint != sent.Hint || !got.Remote || got.Err.Error() != "why" ||
				!slices.Equal(got.Issues, sent.Issues) {
				t.Errorf("%s: got %+v", name, got)
			}
		}
		if s := p.server.Stats(); s.ErrorsIn != 2 {
			t.Errorf("the host counted %d errors, want 2", s.ErrorsIn)
		}
		if s := p.caller.Stats(); s.ErrorsOut != 2 {
			t.Errorf("the caller counted %d errors, want 2", s.ErrorsOut)
		}
	})
}

func TestErrorAfterReplies(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		p := newPair(t, transport, interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(yield func(*interact.Message, error) bool) {
				_ = yield(done(m, "first"), nil) && yield(nil, interact.Errorf(interact.AgentFailed, "", "then it failed"))
			}
		}), Options{}, Options{})
		var got []string
		for r, err := range p.thing.Do(t.Context(), ask("a", "")) {
			if err != nil {
				got = append(got, err.Error())
			} else {
				got = append(got, string(r.Data))
			}
		}
		if want := []string{"first", "then it failed"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// waiting is a thing that works until its context ends, and tells when that was.
type waiting struct {
	began chan *interact.Message
	ended chan error
	first func(m *interact.Message) *interact.Message // a first reply, or nil
}

func newWaiting() *waiting {
	return &waiting{began: make(chan *interact.Message, 16), ended: make(chan error, 16)}
}

func (w *waiting) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		w.began <- m
		if w.first != nil {
			yield(w.first(m), nil)
		}
		<-ctx.Done()
		w.ended <- ctx.Err()
		yield(nil, ctx.Err())
	}
}

func TestCancelReachesTheHost(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		for name, m := range map[string]*interact.Message{
			"shared session":    ask("a", ""),
			"session of events": {Type: interact.ObserveProperty, Thing: "x", Name: "p"},
			"own session":       streamed(nothing),
		} {
			w := newWaiting()
			p := newPair(t, transport, w, Options{}, Options{})
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-w.began
				cancel()
			}()
			_, err := interact.Call(ctx, p.thing, m)
			if e := interact.AsError(err); e.Code != interact.Cancelled || !errors.Is(err, context.Canceled) {
				t.Errorf("%s: got %v, want Cancelled", name, err)
			}
			if err := <-w.ended; !errors.Is(err, context.Canceled) {
				t.Errorf("%s: the host's context ended with %v", name, err)
			}
		}
	})
}

func TestLeavingTheLoopReachesTheHost(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		for name, m := range map[string]*interact.Message{
			"shared session":    ask("a", ""),
			"session of events": subscribe("e"),
			"own session":       streamed(nothing),
		} {
			w := newWaiting()
			w.first = func(m *interact.Message) *interact.Message { return m.Reply(interact.Event, "", []byte("1")) }
			p := newPair(t, transport, w, Options{}, Options{})
			for r, err := range p.thing.Do(t.Context(), m) {
				if err != nil || string(r.Data) != "1" {
					t.Fatalf("%s: got %v, %v", name, r, err)
				}
				break
			}
			if err := <-w.ended; !errors.Is(err, context.Canceled) {
				t.Errorf("%s: the host's context ended with %v", name, err)
			}
			if s := p.caller.Stats(); s.ErrorsOut != 0 {
				t.Errorf("%s: leaving was counted as an error", name)
			}
		}
	})
}

func TestDeadlineAppliesAtBothEnds(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		for name, prepare := range map[string]func(*interact.Message) context.Context{
			"of the message": func(m *interact.Message) context.Context {
				m.Deadline = time.Now().Add(50 * time.Millisecond)
				return t.Context()
			},
			"of the context": func(*interact.Message) context.Context {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				t.Cleanup(cancel)
				return ctx
			},
		} {
			w := newWaiting()
			p := newPair(t, transport, w, Options{}, Options{})
			m := ask("a", "")
			_, err := interact.Call(prepare(m), p.thing, m)
			if code(err) != interact.Timeout {
				t.Errorf("%s: got %v, want Timeout", name, err)
			}
			if got := <-w.began; got.Deadline.IsZero() {
				t.Errorf("%s: the host saw no deadline", name)
			}
			if err := <-w.ended; err == nil {
				t.Errorf("%s: the host went on", name)
			}
		}
	})
}

func TestPastDeadlineSendsNothing(t *testing.T) {
	t.Parallel()
	p := newPair(t, "tcp", answering, Options{}, Options{})
	m := ask("a", "")
	m.Deadline = time.Now().Add(-time.Second)
	if _, err := interact.Call(t.Context(), p.thing, m); code(err) != interact.Timeout {
		t.Errorf("got %v, want Timeout", err)
	}
	if s := p.server.Stats(); s.CallsIn != 0 {
		t.Errorf("the host was called")
	}
}

func TestHops(t *testing.T) {
	t.Parallel()
	p := newPair(t, "tcp", answering, Options{}, Options{})
	m := ask("a", "")
	m.Hops = interact.MaxHops - 1
	if _, err := interact.Call(t.Context(), p.thing, m); err != nil {
		t.Errorf("the last allowed hop: %v", err)
	}
	m.Hops = interact.MaxHops
	if _, err := interact.Call(t.Context(), p.thing, m); code(err) != interact.Loop {
		t.Errorf("one hop more: got %v, want Loop", err)
	}
}

func TestUnsendable(t *testing.T) {
	t.Parallel()
	p := newPair(t, "tcp", answering, Options{}, Options{})
	for name, m := range map[string]*interact.Message{
		"name of bad UTF-8":    ask("\xff", ""),
		"thing of 10 kB":       {Type: interact.ReadProperty, Thing: strings.Repeat("x", 10_000)},
		"id of 1 kB":           {Type: interact.ReadProperty, ID: strings.Repeat("x", 1000)},
		"no type":              {Thing: "x"},
		"status of no meaning": {Type: interact.ActionStatus, Status: 99},
	} {
		_, err := interact.Call(t.Context(), p.thing, m)
		if e := interact.AsError(err); e.Code != interact.Invalid || e.Remote {
			t.Errorf("%s: got %v, want Invalid", name, err)
		}
	}
	if _, err := interact.Call(t.Context(), p.thing, ask("a", "")); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

func TestUnsendableReply(t *testing.T) {
	t.Parallel()
	p := newPair(t, "tcp", interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
		if m.Name == "nothing" {
			return nil, nil
		}
		r := done(m, "")
		r.ContentType = "\xff"
		return r, nil
	}), Options{}, Options{})
	if _, err := interact.Call(t.Context(), p.thing, ask("a", "")); code(err) != interact.Invalid {
		t.Errorf("content type of bad UTF-8: got %v, want Invalid", err)
	}
	if _, err := interact.Call(t.Context(), p.thing, ask("nothing", "")); code(err) != interact.Internal {
		t.Errorf("neither reply nor error: got %v, want Internal", err)
	}
}

func TestAPanicCostsItsCallOnly(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		var log bytes.Buffer
		o := Options{Log: slog.New(slog.NewTextHandler(&log, nil))}
		p := newPair(t, transport, interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
			if m.Name == "panic" {
				panic("boom")
			}
			return done(m, "fine"), nil
		}), Options{}, o)
		for _, size := range []int{1, 100_000} { // shared session, own session
			_, err := interact.Call(t.Context(), p.thing, ask("panic", strings.Repeat("x", size)))
			if e := interact.AsError(err); e.Code != interact.Internal || !e.Remote {
				t.Errorf("got %v, want Internal from the host", err)
			}
		}
		if _, err := interact.Call(t.Context(), p.thing, ask("a", "")); err != nil {
			t.Errorf("the next call: %v", err)
		}
		_ = p.server.Close() // nothing is logged any more
		if s := log.String(); !strings.Contains(s, "boom") || !strings.Contains(s, "call_test.go") {
			t.Errorf("the log lacks the panic or its stack:\n%s", s)
		}
	})
}

func TestRequestStream(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		p := newPair(t, transport, interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(yield func(*interact.Message, error) bool) {
				total := 0
				for chunk, err := range m.Chunks {
					if err != nil {
						yield(nil, err)
						return
					}
					total += len(chunk)
					r := m.Reply(interact.ActionStatus, "", fmt.Append(nil, len(chunk)))
					r.Status = interact.StatusRunning
					if !yield(r, nil) {
						return
					}
				}
				yield(done(m, fmt.Sprint(total, " after ", string(m.Data))), nil)
			}
		}), Options{}, Options{})
		sizes := []int{1, 0, 70_000, 2 << 20, 3}
		m := ask("upload", "start")
		m.Chunks = func(yield func([]byte, error) bool) {
			for _, n := range sizes {
				if !yield(make([]byte, n), nil) {
					return
				}
			}
		}
		var got []string
		for r, err := range p.thing.Do(t.Context(), m) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(r.Data))
		}
		// An empty chunk says nothing; one of 2 MiB travels in two.
		want := []string{"1", "70000", "1048576", "1048576", "3", "2167156 after start"}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestRequestStreamThatFails(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		began, ended := make(chan struct{}), make(chan error, 1)
		p := newPair(t, transport, interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(yield func(*interact.Message, error) bool) {
				var last error
				for _, err := range m.Chunks {
					if last = err; err == nil {
						close(began)
					}
				}
				ended <- last
			}
		}), Options{}, Options{})
		m := ask("upload", "")
		m.Chunks = func(yield func([]byte, error) bool) {
			if yield([]byte("one"), nil) {
				<-began
				yield(nil, errors.New("the microphone was unplugged"))
			}
		}
		_, err := interact.Call(t.Context(), p.thing, m)
		if err == nil || !strings.Contains(err.Error(), "unplugged") {
			t.Errorf("the caller got %v, want its own error", err)
		}
		if err := <-ended; err == nil {
			t.Error("the host took a broken stream for a complete one")
		}
	})
}

func TestAnAnswerEndsTheRequestStream(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		p := newPair(t, transport, answering, Options{}, Options{}) // reads no chunk
		over := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		m := ask("upload", "enough")
		m.Chunks = func(yield func([]byte, error) bool) {
			defer close(over)
			for ctx.Err() == nil && yield(make([]byte, 1000), nil) {
			}
		}
		r, err := interact.Call(ctx, p.thing, m)
		cancel()
		if err != nil || string(r.Data) != "enough" {
			t.Errorf("got %v, %v", r, err)
		}
		<-over
	})
}

func TestSlowConsumerDelaysItsOwnCallOnly(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		sent := make(chan int, 1)
		p := newPair(t, transport, interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			if m.Name != "flood" {
				return interact.One(done(m, "fine"))
			}
			return func(yield func(*interact.Message, error) bool) {
				n := 0
				for ; n < 1_000_000 && yield(m.Reply(interact.Event, "", make([]byte, 1000)), nil); n++ {
				}
				sent <- n
			}
		}), Options{}, Options{})
		for _, m := range []*interact.Message{ask("flood", ""), {Type: interact.SubscribeEvent, Thing: "x", Name: "flood"}} {
			for range p.thing.Do(t.Context(), m) {
				// While this consumer does not read on, another call goes through.
				if _, err := interact.Call(t.Context(), p.thing, ask("a", "")); err != nil {
					t.Error(err)
				}
				break
			}
			if n := <-sent; n > 3000 {
				t.Errorf("the host sent %d replies of 1 kB to a consumer that took one", n)
			}
		}
	})
}

// TestACallAllocates holds what a small call costs at both ends together, libp2p included: 30 objects, 40 over QUIC.
func TestACallAllocates(t *testing.T) {
	for transport, limit := range map[string]float64{"tcp": 30, "quic": 40} {
		p := newPair(t, transport, answering, Options{}, Options{})
		m := ask("getWeather", strings.Repeat("x", payload))
		m.TraceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		var failed error
		n := testing.AllocsPerRun(1000, func() {
			if _, err := interact.Call(t.Context(), p.thing, m); err != nil {
				failed = err
			}
		})
		if n > limit || failed != nil {
			t.Errorf("a call over %s allocates %v objects (%v), want %v at most", transport, n, failed, limit)
		}
		t.Logf("%s: %v objects", transport, n)
	}
}

// TestConsumersOfANode: a host receives the name that a node has for the consumer of a call, and no more: what a
// message says of others is not passed on, and what is observed is observed by the node.
func TestConsumersOfANode(t *testing.T) {
	t.Parallel()
	p := newPair(t, "tcp", interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
		return done(m, m.From.ID()+" "+string(m.From.Via)), nil
	}), Options{As: func(p *did.Principal) frame.As {
		as := frame.As{IsConsumer: p.Name != "", Name: p.Name, Relation: did.Own}
		if p.Name == "uid:1000" {
			as.Name = "u-1"
		}
		return as
	}}, Options{})
	node := string(at(t, p.callerHost).Node)
	for name, c := range map[string]struct {
		from *did.Principal
		want string
	}{
		"nobody":              {nil, node},
		"without a name":      {did.Consumer(did.Loopback, ""), node},
		"a token":             {did.Consumer(did.Token, "operator"), node + "#operator"},
		"a user":              {did.Consumer(did.Socket, "uid:1000"), node + "#u-1"},
		"of another node":     {did.NodePrincipal("did:key:z6MkForged", "crm"), node},
		"another node itself": {did.NodePrincipal("did:key:z6MkForged", ""), node},
	} {
		for range 2 {
			m := ask("who", "")
			m.From = c.from
			r, err := interact.Call(t.Context(), p.thing, m)
			if err != nil || string(r.Data) != c.want+" peer" {
				t.Errorf("%s: the host got %v, %v, want %s", name, r, err, c.want)
			}
		}
	}
	m := ask("who", "")
	m.From = did.Consumer(did.Token, "No Name")
	if _, err := interact.Call(t.Context(), p.thing, m); interact.AsError(err).Code != interact.Invalid {
		t.Errorf("a name that is none: %v", err)
	}
	m = &interact.Message{Type: interact.SubscribeEvent, Thing: "t", Name: "e", From: did.Consumer(did.Token, "operator")}
	for r, err := range p.thing.Do(t.Context(), m) {
		if err != nil || string(r.Data) != node+" peer" {
			t.Errorf("a subscription is of %v, %v", r, err)
		}
		break
	}
}

// A call whose data arrive late has the rights that its caller has then.
func TestLateDataHavePresentRights(t *testing.T) {
	t.Parallel()
	var relation atomic.Int32
	relation.Store(int32(did.Own))
	waited, got := make(chan struct{}), make(chan did.Relation, 1)
	p := newPair(t, "tcp", interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
		got <- m.From.Relation
		return done(m, ""), nil
	}), Options{}, Options{
		Wait: func(context.Context, did.DID) { close(waited) },
		Principal: func(node did.DID) *did.Principal {
			p := did.NodePrincipal(node, "")
			p.Relation = did.Relation(relation.Load())
			return p
		}})
	s, err := p.callerHost.NewStream(t.Context(), p.serverHost.ID(), Protocol("test"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Reset() }()
	if _, err := s.Write(append(rawRequest(0, ask("a", ""), frame.Extra{Size: 2}), raw(frame.Chunk, 0, "x")...)); err != nil {
		t.Fatal(err)
	}
	<-waited
	time.Sleep(20 * time.Millisecond) // the server waits for the last chunk
	relation.Store(int32(did.Untrusted))
	if _, err := s.Write(raw(frame.Chunk, 0, "y")); err != nil {
		t.Fatal(err)
	}
	if r := <-got; r != did.Untrusted {
		t.Errorf("the call of a former member came from %s", r)
	}
}

// withoutDial returns t without the members that depend on the test.
func withoutDial(t interact.Timing) interact.Timing {
	t.Dial, t.Node = 0, ""
	return t
}
