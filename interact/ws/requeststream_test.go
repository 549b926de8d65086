package ws

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/ws/frame"
	"github.com/lmosd/lmosd/internal/liveheap"
)

// source is a request stream that a test feeds. Left is closed when it has no reader any more.
type source struct {
	chunks chan []byte
	left   chan struct{}
	err    error // at the end
	sent   int   // bytes
}

func newSource(t *testing.T, chunks ...string) *source {
	s := &source{chunks: make(chan []byte, 1000), left: make(chan struct{})}
	for _, c := range chunks {
		s.chunks <- []byte(c)
	}
	t.Cleanup(func() { // ends an open stream
		select {
		case <-s.left:
		default:
			close(s.chunks)
		}
	})
	return s
}

func (s *source) all(yield func([]byte, error) bool) {
	defer close(s.left)
	for c := range s.chunks {
		s.sent += len(c)
		if !yield(c, nil) {
			return
		}
	}
	if s.err != nil {
		yield(nil, s.err)
	}
}

// streamed returns an invocation with a request stream.
func streamed(chunks iter.Seq2[[]byte, error]) *interact.Message {
	m := message(interact.InvokeAction, "hear", "")
	m.ContentType, m.Chunks = "audio/wav", chunks
	return m
}

// listening attaches an agent to a node: its action "hear" is f, the rest is a lab.
func listening(t *testing.T, f func(ctx context.Context, m *interact.Message, say func(interact.Status, []byte) bool) error,
) interact.Thing {
	t.Helper()
	r, l := newRegistry(), newLab()
	_, url := serve(t, newLab(), ServerOptions{Register: r.register})
	id, _ := attach(t, AttachOptions{URL: url, Token: "token", TD: []byte(`{"title":"lab"}`),
		Thing: interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			if m.Name != "hear" {
				return l.Do(ctx, m)
			}
			return func(yield func(*interact.Message, error) bool) {
				err := f(ctx, m, func(s interact.Status, data []byte) bool {
					r := m.Reply(interact.ActionStatus, "application/octet-stream", data)
					r.Status = s
					return yield(r, nil)
				})
				if err != nil {
					yield(nil, err)
				}
			}
		})})
	return r.agent(id)
}

// TestStreamBothWays answers each chunk before the next is sent. The borders of chunks stay, but for those that are too large.
func TestStreamBothWays(t *testing.T) {
	t.Parallel()
	thing := listening(t, func(_ context.Context, m *interact.Message, say func(interact.Status, []byte) bool) error {
		if m.ContentType != "audio/wav" || len(m.Data) > 0 {
			return fmt.Errorf("the agent gets %+v", m)
		}
		for chunk, err := range m.Chunks {
			if err != nil {
				return err
			}
			say(interact.StatusRunning, chunk)
		}
		for _, err := range m.Chunks {
			if err == nil {
				return errors.New("a stream is read once")
			}
		}
		say(interact.StatusCompleted, nil)
		return nil
	})
	s, got, want := newSource(t), 0, []int{frame.MaxChunk, frame.MaxChunk, 1}
	for range 1000 {
		want = append(want, 1)
	}
	s.chunks <- make([]byte, 2*frame.MaxChunk+1)
	for r, err := range thing.Do(t.Context(), streamed(s.all)) {
		switch {
		case err != nil:
			t.Fatal(err)
		case r.Status == interact.StatusCompleted:
			if got != len(want) {
				t.Errorf("%d chunks came", got)
			}
			return
		case len(r.Data) != want[got]:
			t.Fatalf("chunk %d has %d bytes", got, len(r.Data))
		}
		if got++; got == len(want) {
			close(s.chunks)
		} else if got >= 3 {
			s.chunks <- []byte{1}
		}
	}
	t.Error("it has no end")
}

// TestPeersThatDoNotReadCostLittle is not parallel, because it measures the heap. Each peer has requested more than is written to it.
func TestPeersThatDoNotReadCostLittle(t *testing.T) {
	const peers, events, size = 15, 60, 128 << 10
	const allowed = maxWait + 2*size // in out, being written, and to be given to out
	data := []byte(`"` + strings.Repeat("x", size) + `"`)
	s := NewServer(ServerOptions{Find: find(describe(t, `"href": "ws://unused.example"`)),
		Mesh: interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(yield func(*interact.Message, error) bool) {
				for range events {
					if !yield(m.Reply(interact.Event, "", data), nil) {
						return
					}
				}
			}
		})})
	url, before := listen(t, s), liveheap.Bytes()
	narrow := dialer{dial: func(ctx context.Context, network, addr string) (net.Conn, error) { // the buffers of sockets are not in the heap
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err == nil {
			err = c.(*net.TCPConn).SetReadBuffer(256 << 10)
		}
		return c, err
	}}
	for range peers {
		k, _, err := narrow.open(t.Context(), url, http.Header{})
		if err != nil {
			t.Fatal(err)
		}
		w := newWire(t, k.ws)
		for _, event := range []string{"alarm", "other"} {
			w.say(`{"messageType":"subscribeEvent","thingId":"urn:x","messageId":"` + event + `","event":"` + event + `"}`)
		}
	}
	eventually(t, "all are full", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		full := 0
		for c := range s.conns {
			if c.waiting.Load()+size > maxWait {
				full++
			}
		}
		return full == peers
	})
	if now := liveheap.Bytes(); now > before+peers*allowed+8<<20 {
		t.Errorf("the heap grew from %d to %d bytes", before, now)
	}
}

// TestStreamInConstantMemory is not parallel: it looks at the heap.
func TestStreamInConstantMemory(t *testing.T) {
	const size, part = 64 << 20, 32 << 10
	before, most := liveheap.Bytes(), int64(0)
	thing := listening(t, func(_ context.Context, m *interact.Message, say func(interact.Status, []byte) bool) error {
		n := 0
		for chunk, err := range m.Chunks {
			if err != nil {
				return err
			}
			if n += len(chunk); n%(4<<20) == 0 {
				most = max(most, liveheap.Bytes())
			}
		}
		say(interact.StatusCompleted, fmt.Append(nil, n))
		return nil
	})
	r, err := interact.Call(t.Context(), thing, streamed(func(yield func([]byte, error) bool) {
		chunk := make([]byte, part)
		for range size / part {
			if !yield(chunk, nil) {
				return
			}
		}
	}))
	if err != nil || string(r.Data) != fmt.Sprint(size) {
		t.Fatalf("got %+v, %v", r, err)
	}
	if most > before+8<<20 {
		t.Errorf("the heap grew from %d to %d bytes", before, most)
	}
}

// TestSlowReader holds its own producer back, and nothing else.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	thing := listening(t, func(_ context.Context, m *interact.Message, say func(interact.Status, []byte) bool) error {
		n := 0
		for chunk, err := range m.Chunks {
			if err != nil {
				return err
			}
			if n += len(chunk); n == len(chunk) {
				<-release
			}
		}
		say(interact.StatusCompleted, fmt.Append(nil, n))
		return nil
	})
	s := newSource(t)
	for range 1000 {
		s.chunks <- make([]byte, 1000)
	}
	close(s.chunks)
	got := newReader(t, thing, streamed(s.all))
	f := &lineOf(thing).flows
	eventually(t, "the producer waits", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		if o := f.out[1]; o != nil {
			o.mu.Lock()
			defer o.mu.Unlock()
			return o.credit < 0
		}
		return false
	})
	if n := 1000 - len(s.chunks); n < 200 || n > 2+(window+frame.MaxChunk)/1000 {
		t.Errorf("%d chunks were sent to a reader that stands", n)
	}
	if _, err := ask(t, thing, message(interact.ReadProperty, "level", "")); err != nil {
		t.Error(err)
	}
	close(release)
	if r := got.next(t); string(r.Data) != "1000000" {
		t.Errorf("got %s", r.Data)
	}
}

// TestStreamBreaks: each end gets an error, and the source is left.
func TestStreamBreaks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		source   error           // of the source, after the first chunk
		leave    bool            // the consumer leaves
		answer   error           // the agent's, after the first chunk
		want     interact.Code   // what the consumer receives
		received []interact.Code // what the agent receives
	}{
		"by the source": {source: interact.Errorf(interact.TooLarge, "cut it", "too long"), want: interact.TooLarge,
			received: []interact.Code{interact.Cancelled}},
		"by the consumer":   {leave: true, want: interact.Cancelled, received: []interact.Code{interact.Cancelled}},
		"by the agent":      {answer: interact.Errorf(interact.AgentFailed, "see its log", "it is full"), want: interact.AgentFailed},
		"the agent is done": {answer: errDone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, received := make(chan struct{}), make(chan error, 1)
			thing := listening(t, func(_ context.Context, m *interact.Message, say func(interact.Status, []byte) bool) error {
				for _, err := range m.Chunks {
					switch {
					case err != nil:
						received <- err
						return err
					case errors.Is(c.answer, errDone):
						say(interact.StatusCompleted, nil)
						return nil
					case c.answer != nil:
						return c.answer
					}
					close(first)
				}
				return nil
			})
			s := newSource(t, "x")
			s.err = c.source
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				<-first
				if c.leave {
					cancel()
				} else {
					close(s.chunks)
				}
			}()
			_, err := interact.Call(ctx, thing, streamed(s.all))
			if c.want != 0 {
				wantError(t, err, c.want)
			} else if err != nil {
				t.Error(err)
			}
			for _, code := range c.received {
				wantError(t, <-received, code)
			}
			if c.received == nil {
				close(first)
			}
			if c.leave {
				s.chunks <- []byte("one more")
			}
			<-s.left
		})
	}
}

var errDone = errors.New("done")

// A packet of a test's agent or consumer.
func (w *wire) pack(k frame.Kind, stream uint32, body string) {
	w.t.Helper()
	p := frame.Packet{Kind: k, Stream: stream, Body: []byte(body)}
	if err := w.ws.Write(context.Background(), websocket.MessageBinary, p.Encode()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wire) credit(stream, n uint32) {
	b := frame.Packet{Kind: frame.KindCredit, Stream: stream, Credit: n}.Encode()
	w.pack(frame.KindCredit, stream, "") // one that cannot be read is ignored
	if err := w.ws.Write(context.Background(), websocket.MessageBinary, b); err != nil {
		w.t.Fatal(err)
	}
}

// unpack expects a binary frame and returns it.
func (w *wire) unpack() frame.Packet {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	k, b, err := w.ws.Read(ctx)
	for err == nil && k == websocket.MessageText {
		w.kept = append(w.kept, b)
		k, b, err = w.ws.Read(ctx)
	}
	if err != nil {
		w.t.Fatalf("got %v, want a binary frame", err)
	}
	p, err := frame.ReadPacket(b)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// plays registers an agent that the test plays.
func plays(t *testing.T, about string) (*wire, interact.Thing) {
	t.Helper()
	r := newRegistry()
	_, url := serve(t, newLab(), ServerOptions{Register: r.register})
	w := dialWithToken(t, url)
	w.talk(`
		> {"messageType":"registerThing","messageId":"m1",` + about + `"data":{"title":"a"}}
		< {"messageType":"thingRegistered","correlationId":"m1"}`)
	return w, r.agent("urn:agent:13")
}

// TestPlayedAgent sends valid and invalid packets of an agent for a request stream.
func TestPlayedAgent(t *testing.T) {
	t.Parallel()
	done := `{"messageType":"actionStatus","messageId":"a","correlationId":"ID","thingId":"urn:agent:13","action":"hear",
		"status":"completed"}`
	for name, c := range map[string]struct {
		say  func(w *wire, stream uint32)
		text string // the answer, if there is one
		want interact.Code
	}{
		"all of it": {func(w *wire, n uint32) {
			w.credit(n, 1) // one frame may overdraw it
			first := w.unpack()
			w.credit(n, 100)
			if second, end := w.unpack(), w.unpack(); string(first.Body)+string(second.Body) != "onetwo" || end.Kind != frame.KindEnd {
				w.t.Errorf("got %q, %q, %+v", first.Body, second.Body, end)
			}
		}, done, 0},
		"unknown packets": {func(w *wire, n uint32) {
			for _, k := range []frame.Kind{frame.KindChunk, frame.KindAbort, frame.KindStop, 0, 9} {
				w.pack(k, n+1, "x")
			}
			w.credit(n+1, 1<<31)
			w.pack(frame.KindChunk, n, "no stream of the agent has this number")
			w.pack(frame.KindEnd, 0, "")
			if err := w.ws.Write(context.Background(), websocket.MessageBinary, []byte("x")); err != nil {
				w.t.Fatal(err)
			}
		}, done, 0},
		"enough":          {func(w *wire, n uint32) { w.pack(frame.KindStop, n, "") }, done, 0},
		"broken off":      {func(w *wire, n uint32) { w.pack(frame.KindStop, n, "I have a headache") }, "", interact.AgentFailed},
		"too much credit": {func(w *wire, n uint32) { w.credit(n, maxCredit+1) }, "", interact.AgentFailed},
		"too much in all": {func(w *wire, n uint32) { w.credit(n, maxCredit); w.credit(n, 1<<31) }, "", interact.AgentFailed},
		"it dies":         {func(w *wire, n uint32) { w.credit(n, 9); w.unpack(); _ = w.ws.CloseNow() }, "", interact.Unreachable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, thing := plays(t, `"streams":true,`)
			s := newSource(t, "one", "two")
			if c.text != "" {
				close(s.chunks)
			}
			got := newReader(t, thing, streamed(s.all))
			m := w.hear()
			if m["stream"] != 1.0 || m["contentType"] != "audio/wav" || m["input"] != nil {
				t.Fatalf("the agent receives %v", m)
			}
			c.say(w, 1)
			if c.text != "" {
				w.say(strings.ReplaceAll(c.text, "ID", m["messageId"].(string)))
				if r := got.next(t); r.Status != interact.StatusCompleted {
					t.Errorf("got %+v", r)
				}
			} else {
				e := wantError(t, <-got.err, c.want)
				if name == "it dies" && !e.Started {
					t.Error("it is Started")
				}
				close(s.chunks)
			}
			<-s.left
		})
	}
}

// TestStreamsAreRefused if the agent has not declared support, or has too many.
func TestStreamsAreRefused(t *testing.T) {
	t.Parallel()
	_, plain := plays(t, "")
	_, err := ask(t, plain, streamed(newSource(t).all))
	wantError(t, err, interact.NotAllowed)
	w, thing := plays(t, `"streams":true,`)
	both := streamed(newSource(t).all)
	both.Data = []byte("1")
	_, err = ask(t, thing, both)
	wantError(t, err, interact.Invalid)
	write := streamed(newSource(t).all)
	write.Type = interact.WriteProperty
	_, err = ask(t, thing, write)
	wantError(t, err, interact.NotAllowed)
	for range maxStreams {
		newReader(t, thing, streamed(func(func([]byte, error) bool) {}))
		if w.hear()["stream"] == nil || w.unpack().Kind != frame.KindEnd {
			t.Fatal("no stream came")
		}
	}
	_, err = ask(t, thing, streamed(newSource(t).all))
	wantError(t, err, interact.Overloaded)
}

// TestPlayedConsumer sends request streams to a node.
func TestPlayedConsumer(t *testing.T) {
	t.Parallel()
	say := func(id, more string) string {
		return `{"messageType":"invokeAction","messageId":"` + id + `","thingId":"urn:x","action":"chat"` + more + `}`
	}
	for name, c := range map[string]struct {
		play func(w *wire)
		want string // the last frame
		slow bool   // the reader stands until the stream is broken off
	}{
		"a sum": {func(w *wire) {
			w.pack(frame.KindChunk, 8, "of no stream")
			if p := w.unpack(); p.Kind != frame.KindCredit || p.Credit != window {
				w.t.Errorf("got %+v", p)
			}
			w.pack(frame.KindChunk, 7, "abc")
			w.pack(frame.KindChunk, 7, "de")
			w.pack(frame.KindEnd, 7, "")
			w.pack(frame.KindChunk, 7, "too late")
		}, `{"messageType":"actionStatus","status":"completed","output":"abcde audio/wav"}`, false},
		"without credit": {func(w *wire) {
			w.unpack()
			for range 5 {
				w.pack(frame.KindChunk, 7, strings.Repeat("x", frame.MaxChunk))
			}
			w.pack(frame.KindChunk, 7, "x")
			if p := w.unpack(); p.Kind != frame.KindStop || len(p.Body) == 0 {
				w.t.Errorf("got %+v", p)
			}
		}, `{"messageType":"error","correlationId":"m1","status":"400"}`, true},
		"a chunk that is too large": {func(w *wire) {
			w.unpack()
			w.pack(frame.KindChunk, 7, strings.Repeat("x", frame.MaxChunk+1))
			if p := w.unpack(); p.Kind != frame.KindStop || len(p.Body) == 0 {
				w.t.Errorf("got %+v", p)
			}
		}, `{"messageType":"error","correlationId":"m1","status":"400"}`, false},
		"broken off": {func(w *wire) {
			w.unpack()
			w.pack(frame.KindAbort, 7, "the microphone fell")
		}, `{"messageType":"error","correlationId":"m1"}`, false},
		"a number twice": {func(w *wire) {
			w.unpack()
			w.say(say("m2", `,"stream":7`))
			w.expect(`{"messageType":"error","correlationId":"m2","status":"400"}`)
			w.pack(frame.KindEnd, 7, "")
		}, `{"messageType":"actionStatus","status":"completed","output":" audio/wav"}`, false},
		"no number": {func(w *wire) {
			w.unpack()
			for _, more := range []string{`,"stream":0`, `,"stream":-1`, `,"stream":"x"`, `,"stream":4294967296`,
				`,"stream":1,"input":1`} {
				w.say(say("m2", more))
				w.expect(`{"messageType":"error","correlationId":"m2","status":"400"}`)
			}
			w.pack(frame.KindEnd, 7, "")
		}, `{"messageType":"actionStatus","status":"completed"}`, false},
		"too many": {func(w *wire) {
			w.unpack()
			for i := range maxStreams - 1 {
				w.say(say("m2", fmt.Sprintf(`,"stream":%d`, 100+i)))
				w.unpack()
			}
			w.say(say("m3", `,"stream":8`))
			w.expect(`{"messageType":"error","correlationId":"m3","code":"LMOS-1529"}`)
			w.pack(frame.KindEnd, 7, "")
		}, `{"messageType":"actionStatus","status":"completed"}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hold := make(chan struct{})
			release := sync.OnceFunc(func() { close(hold) })
			defer release()
			if !c.slow {
				release()
			}
			s := NewServer(ServerOptions{Find: find(describe(t, `"href": "ws://unused.example"`)), Mesh: gather(hold)})
			w := dial(t, listen(t, s), "lmosprotocol")
			w.say(say("m1", `,"stream":7,"contentType":"audio/wav"`))
			c.play(w)
			release()
			w.expect(c.want)
		})
	}
}

// gather replies with all chunks, their type and the accepted type. It waits for hold after each.
func gather(hold chan struct{}) interact.Thing {
	return interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
		var all []byte
		for chunk, err := range m.Chunks {
			if err != nil {
				return nil, err
			}
			all = append(all, chunk...)
			<-hold
		}
		text, err := json.Marshal(string(all) + " " + m.ContentType + m.Accept)
		r := m.Reply(interact.ActionStatus, "", text)
		r.Status = interact.StatusCompleted
		return r, err
	})
}

// TestPacketsBeforeTheirStream: a peer sends packets for a stream whose request it has not received yet. They are ignored.
func TestPacketsBeforeTheirStream(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]frame.Packet{
		"a stop":          {Kind: frame.KindStop, Stream: 1, Body: []byte("no")},
		"too much credit": {Kind: frame.KindCredit, Stream: 1, Credit: maxCredit + 1},
	} {
		c := unrun(t)
		o, err := c.offer(streamed(newSource(t).all))
		if err != nil {
			t.Fatal(err)
		}
		c.packet(p.Encode())
		if o.over || o.credit != 0 {
			t.Errorf("%s: got %+v", name, o)
		}
	}
}
