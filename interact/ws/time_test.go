package ws

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/ws/frame"
	"github.com/lmosd/lmosd/internal/pipenet"
)

// pipes is a network in a synctest bubble: each dial is a net.Pipe, and written data waits in a buffer, as with TCP.
type pipes struct{ *pipenet.Listener }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	return newBuffered(here), p.Offer(ctx, newBuffered(there))
}

// A buffered is an end of a pipe that holds up to 64 writes.
type buffered struct {
	net.Conn
	queue chan []byte
	done  chan struct{}
	once  sync.Once
}

func newBuffered(c net.Conn) *buffered {
	b := &buffered{Conn: c, queue: make(chan []byte, 64), done: make(chan struct{})}
	go b.pump()
	return b
}

func (b *buffered) pump() {
	for {
		select {
		case p := <-b.queue:
			if _, err := b.Conn.Write(p); err != nil {
				return
			}
			continue
		default:
		}
		select {
		case p := <-b.queue:
			if _, err := b.Conn.Write(p); err != nil {
				return
			}
		case <-b.done:
			_ = b.Conn.Close()
			return
		}
	}
}

func (b *buffered) Write(p []byte) (int, error) {
	select {
	case b.queue <- append([]byte(nil), p...):
		return len(p), nil
	case <-b.done:
		return 0, net.ErrClosed
	}
}

// Close delivers the written data, like TCP; a read ends immediately.
func (b *buffered) Close() error {
	b.once.Do(func() {
		close(b.done)
		_ = b.Conn.SetReadDeadline(time.Unix(1, 0))
	})
	return nil
}

// bubble runs test in a synctest bubble, with a server of a lab.
func bubble(t *testing.T, o ServerOptions, test func(t *testing.T, l *lab, p *pipes, s *Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := newLab()
		l.late, o.Mesh = time.Hour, l
		servePipes(t, o, func(p *pipes, s *Server) { test(t, l, p, s) })
	})
}

// servePipes runs a server of pipes until test returns.
func servePipes(t *testing.T, o ServerOptions, test func(p *pipes, s *Server)) {
	t.Helper()
	o.Find = find(describe(t, `"href": "ws://unused.example"`))
	s, p := NewServer(o), &pipes{pipenet.Listen()}
	h := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.Serve(w, r, true) })}
	var work sync.WaitGroup
	work.Go(func() { _ = h.Serve(p) })
	test(p, s)
	s.Close()
	_ = h.Close()
	work.Wait()
}

func dialPipe(t *testing.T, p *pipes) *wire {
	t.Helper()
	k, _, err := dialer{dial: p.dial}.open(t.Context(), "ws://lab/ws", http.Header{})
	if err != nil {
		t.Fatal(err)
	}
	w := newWire(t, k.ws)
	return w
}

// subscriber returns a connection that has subscribed to the event alarm of the lab.
func subscriber(t *testing.T, l *lab, p *pipes) *wire {
	t.Helper()
	w := dialPipe(t, p)
	w.say(`{"messageType":"subscribeevent","thingId":"urn:x","messageId":"m1","event":"alarm"}`)
	w.hear()
	l.watched(t, 1)
	return w
}

// A slow reader is disconnected and its subscription ends. It gets the reason if it begins to read in time.
func TestSlowReaderIsDropped(t *testing.T) {
	t.Parallel()
	const events = 300
	for _, c := range []struct {
		name    string
		asleep  time.Duration
		reason  bool
		dropped bool
	}{
		{"in time", writeTimeout - time.Second, false, false},
		{"late", writeTimeout + time.Second, true, true},
		{"never", writeTimeout + farewell + time.Second, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			bubble(t, ServerOptions{}, func(t *testing.T, l *lab, p *pipes, _ *Server) {
				w := subscriber(t, l, p)
				for range events { // the pipe holds 64 frames, out 32
					l.emit(interact.Event, "alarm", "", `"fire"`)
				}
				time.Sleep(c.asleep)
				received, err := 0, error(nil)
				for received < events && err == nil {
					if _, err = w.read(); err == nil {
						received++
					}
				}
				if c.dropped != (err != nil) {
					t.Fatalf("%d events were received: %v", received, err)
				}
				var said websocket.CloseError
				if errors.As(err, &said) != c.reason || c.reason && (said.Code != websocket.StatusTryAgainLater || !strings.Contains(said.Reason, "slowly")) {
					t.Errorf("it ended with %v", err)
				}
				if !c.dropped {
					_ = w.ws.CloseNow()
				}
				l.watched(t, 0)
			})
		})
	}
}

// A connection that this side ends writes its waiting frames first, which are responses, except to a peer that failed.
func TestWaitingFramesAreWritten(t *testing.T) {
	t.Parallel()
	const waiting = 3
	for _, c := range []struct {
		why  *closing
		want int
	}{{goodbye, waiting}, {goingAway, waiting}, {readsSlow, 0}, {noPong, 0}} {
		synctest.Test(t, func(t *testing.T) {
			p := &pipes{pipenet.Listen()}
			var received int
			var end error
			h := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ws, err := websocket.Accept(w, r, nil)
				if err != nil {
					t.Error(err)
					return
				}
				for _, _, end = ws.Read(r.Context()); end == nil; _, _, end = ws.Read(r.Context()) {
					received++
				}
			})}
			var work sync.WaitGroup
			work.Go(func() { _ = h.Serve(p) })
			k, _, err := dialer{dial: p.dial}.open(t.Context(), "ws://peer/ws", http.Header{})
			if err != nil {
				t.Fatal(err)
			}
			conn := newConn(t.Context(), k, "peer", settings{}.withDefaults(), frame.Doc, nil)
			for range waiting {
				if err := conn.give(t.Context(), func() (outgoing, error) { return outgoing{data: []byte(`{}`)}, nil }); err != nil {
					t.Fatal(err)
				}
			}
			conn.end(c.why)
			conn.write()
			conn.last.Stop()
			synctest.Wait()
			if received != c.want || websocket.CloseStatus(end) != c.why.code {
				t.Errorf("%s: the peer received %d frames and %v, want %d and status %d", c.why.reason, received, end, c.want, c.why.code)
			}
			_ = h.Close()
			_ = p.Close()
			work.Wait()
		})
	}
}

// TestHalfOpenConnection: a silent end of the peer is detected by the ping, on both sides.
func TestHalfOpenConnection(t *testing.T) {
	t.Parallel()
	bubble(t, ServerOptions{}, func(t *testing.T, l *lab, p *pipes, s *Server) {
		subscriber(t, l, p)
		began := time.Now() // the pipe is not read any more
		l.watched(t, 0)
		if took := time.Since(began); took < pingAfter || took > 2*pingAfter+pongWait {
			t.Errorf("it took %v", took)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{pipenet.Listen()}
		client := NewClient(Options{Dial: p.dial})
		defer client.Close()
		thing := client.Thing(describe(t, formOf("ws://agent/ws", "lmos")).Thing)
		done := make(chan error, 1)
		go func() {
			_, err := interact.Call(t.Context(), thing, message(interact.InvokeAction, "chat", ""))
			done <- err
		}()
		silent, _ := p.Accept()
		over := make(chan struct{})
		defer close(over)
		go func() { // it agrees to the upgrade, reads the request, and stops
			h := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if ws, err := websocket.Accept(w, r, nil); err == nil {
					_, _, _ = ws.Read(context.Background())
					<-over
					_ = ws.CloseNow()
				}
			})}
			_ = h.Serve(&once{conn: silent, end: over})
		}()
		began := time.Now()
		if e := wantError(t, <-done, interact.Unreachable); !e.Started || !strings.Contains(e.Error(), "ping") {
			t.Errorf("got %v", e)
		}
		if took := time.Since(began); took < pingAfter || took > 2*pingAfter+pongWait {
			t.Errorf("it took %v", took)
		}
	})
}

// A once is a listener of one connection.
type once struct {
	conn net.Conn
	end  <-chan struct{}
}

func (o *once) Accept() (net.Conn, error) {
	if c := o.conn; c != nil {
		o.conn = nil
		return c, nil
	}
	<-o.end
	return nil, net.ErrClosed
}
func (o *once) Close() error   { return nil }
func (o *once) Addr() net.Addr { return &net.UnixAddr{} }

// TestQuietConnectionsLive as long as pings are answered: the Kotlin client never opens a second one.
func TestQuietConnectionsLive(t *testing.T) {
	t.Parallel()
	bubble(t, ServerOptions{}, func(t *testing.T, l *lab, p *pipes, _ *Server) {
		w := subscriber(t, l, p)
		go func() {
			time.Sleep(24 * time.Hour)
			l.emit(interact.Event, "alarm", "", `"fire"`)
		}()
		_, data, err := w.ws.Read(context.Background()) // which answers pings
		if err != nil || !strings.Contains(string(data), "fire") {
			t.Errorf("got %s, %v", data, err)
		}
		_ = w.ws.CloseNow()
	})
}

// TestUnusedConnectionOfAClientEnds, and one that is used does not.
func TestUnusedConnectionOfAClientEnds(t *testing.T) {
	t.Parallel()
	bubble(t, ServerOptions{}, func(t *testing.T, l *lab, p *pipes, s *Server) {
		client := NewClient(Options{Dial: p.dial})
		defer client.Close()
		thing := client.Thing(describe(t, formOf("ws://agent/ws", "lmos")).Thing)
		conns := func() int {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.conns)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for range thing.Do(ctx, message(interact.SubscribeEvent, "alarm", "")) {
			}
		}()
		time.Sleep(2 * idle)
		if conns() != 1 {
			t.Errorf("%d connections while it is used", conns())
		}
		cancel()
		time.Sleep(idle + pingAfter)
		if conns() != 0 {
			t.Errorf("%d connections after it was not used", conns())
		}
		if _, err := interact.Call(t.Context(), thing, message(interact.ReadProperty, "level", "")); err != nil {
			t.Error(err)
		}
	})
}

// TestTimesOfAnswers: a deadline ends an interaction and notifies the agent. The default is 30 s, except for actions.
func TestTimesOfAnswers(t *testing.T) {
	t.Parallel()
	bubble(t, ServerOptions{}, func(t *testing.T, l *lab, p *pipes, _ *Server) {
		client := NewClient(Options{Dial: p.dial})
		defer client.Close()
		thing := client.Thing(describe(t, formOf("ws://agent/ws", "lmos")).Thing)
		m := message(interact.InvokeAction, "hang", "")
		m.Deadline = time.Now().Add(time.Minute)
		began := time.Now()
		_, err := interact.Call(t.Context(), thing, m)
		if e := wantError(t, err, interact.Timeout); time.Since(began) != time.Minute || !e.Started {
			t.Errorf("after %v: %+v", time.Since(began), e)
		}
		l.until(t, "the action was cancelled", func() bool { return l.state["left hang"] != 0 })
		patient := newReader(t, thing, message(interact.InvokeAction, "hang", ""))
		time.Sleep(9 * time.Minute)
		l.unblock.Do(func() { close(l.release) })
		if m := patient.next(t); m.Status != interact.StatusCompleted {
			t.Errorf("got %+v", m)
		}
	})
}

// TestAcknowledgementFollowsTheThing: an error within that time takes its place, and an event does not overtake it.
func TestAcknowledgementFollowsTheThing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		after time.Duration
		err   error
		want  string
	}{
		{"an error at once", ackDelay / 2, interact.Errorf(interact.Forbidden, "contact the owner", "rejected"), "error"},
		{"an error later", 2 * ackDelay, interact.Errorf(interact.Forbidden, "contact the owner", "rejected"), "acknowledgement error"},
		{"an event at once", ackDelay / 2, nil, "acknowledgement event error"},
		{"an event later", 2 * ackDelay, nil, "acknowledgement event error"},
	} {
		synctest.Test(t, func(t *testing.T) {
			mesh := interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
				return func(yield func(*interact.Message, error) bool) {
					time.Sleep(c.after)
					if c.err == nil {
						yield(m.Reply(interact.Event, "", []byte(`"x"`)), nil)
						return // the Thing ends the subscription
					}
					yield(nil, c.err)
				}
			})
			servePipes(t, ServerOptions{Mesh: mesh}, func(p *pipes, _ *Server) {
				w := dialPipe(t, p)
				w.say(`{"messageType":"subscribeevent","thingId":"urn:x","messageId":"m1","event":"alarm"}`)
				var got []string
				for len(got) == 0 || got[len(got)-1] != "error" {
					got = append(got, fmt.Sprint(w.hear()["messageType"]))
				}
				if strings.Join(got, " ") != c.want {
					t.Errorf("%s: got %v, want %s", c.name, got, c.want)
				}
				_ = w.ws.CloseNow()
			})
		})
	}
}

// TestBucket takes the tokens of one second immediately, and then tokens at the rate.
func TestBucket(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bucket{rate: 10, left: 10}
		count := func() (n int) {
			for b.take() {
				n++
			}
			return n
		}
		if n := count(); n != 10 {
			t.Errorf("%d at once, want 10", n)
		}
		time.Sleep(500 * time.Millisecond)
		if n := count(); n != 5 {
			t.Errorf("%d after half a second, want 5", n)
		}
		time.Sleep(time.Hour)
		if n := count(); n != 10 {
			t.Errorf("%d after an hour, want 10", n)
		}
	})
}
