package messaging

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/coaptest"
)

var udpTarget = Target{Scheme: "coap", Hostport: "10.0.0.1:5683", Host: "10.0.0.1"}

// A far is the far end of a line: it notes what comes and may answer.
type far struct {
	*coaptest.Conn
	work  sync.WaitGroup
	react func(f *far, q *Packet)
	got   chan *Packet
}

// poolOf returns a pool whose connections all lead to far ends that react, and a count of them.
func poolOf(react func(f *far, q *Packet)) (*Pool, *atomic.Int32, func()) {
	var mu sync.Mutex
	var fars []*far
	var dials atomic.Int32
	p := NewPool(func(context.Context, string, string) (net.Conn, error) {
		near, other := coaptest.Pipe()
		f := &far{Conn: other, react: react, got: make(chan *Packet, 1000)}
		f.work.Go(f.run)
		mu.Lock()
		defer mu.Unlock()
		fars = append(fars, f)
		dials.Add(1)
		return near, nil
	}, 1<<20)
	return p, &dials, func() {
		p.Close()
		for _, f := range fars {
			_ = f.Close()
			f.work.Wait()
		}
	}
}

func (f *far) run() {
	buf := make([]byte, MaxDatagram)
	for {
		n, err := f.Read(buf)
		if err != nil {
			return
		}
		if q, err := ParseDatagram(slices.Clone(buf[:n])); err == nil {
			f.got <- q
			f.react(f, q)
		}
	}
}

func (f *far) send(p *Packet) {
	if b, err := p.Datagram(); err == nil {
		_, _ = f.Write(b)
	}
}

// echo answers with the path.
func echo(f *far, q *Packet) {
	if q.IsRequest() {
		f.send(&Packet{Kind: message.Acknowledgement, Mid: q.Mid, Code: codes.Content, Token: q.Token, Payload: []byte("ok")})
	}
}

func get(t *testing.T, p *Pool, to Target) (*Packet, error) {
	t.Helper()
	l, err := p.Get(t.Context(), to)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	k := l.Call(1)
	defer k.End()
	return k.Ask(t.Context(), &Packet{Code: codes.GET})
}

func size(p *Pool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

func TestPoolKeepsConnectionsAsLongAsTheyAreUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, dials, end := poolOf(echo)
		defer end()
		for range 3 {
			if a, err := get(t, p, udpTarget); err != nil || string(a.Payload) != "ok" {
				t.Fatalf("%v, %v", a, err)
			}
			time.Sleep(idleAfter / 2)
		}
		if dials.Load() != 1 {
			t.Errorf("%d connections", dials.Load())
		}
		l, err := p.Get(t.Context(), udpTarget)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * idleAfter) // somebody has it
		l.Release()
		if get(t, p, udpTarget); dials.Load() != 1 {
			t.Errorf("%d connections, one of which was in use", dials.Load())
		}
		time.Sleep(3 * idleAfter)
		if size(p) != 0 {
			t.Error("an unused connection is kept")
		}
		if _, err := get(t, p, udpTarget); err != nil || dials.Load() != 2 {
			t.Errorf("%d connections, %v", dials.Load(), err)
		}
		if l, err = p.Get(t.Context(), udpTarget); err != nil {
			t.Fatal(err)
		}
		l.Drop()
		synctest.Wait()
		select {
		case <-l.Ended():
			t.Error("a connection ended that somebody has")
		default:
		}
		l.Release()
		<-l.Ended()
		if get(t, p, udpTarget); dials.Load() != 3 {
			t.Errorf("%d connections, one of which was dropped", dials.Load())
		}
	})
}

func TestPoolIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, dials, end := poolOf(echo)
		defer end()
		to := func(n int) Target {
			return Target{Scheme: "coap", Hostport: fmt.Sprintf("10.0.0.1:%d", n), Host: "10.0.0.1"}
		}
		for n := range 2 * maxConns {
			if _, err := get(t, p, to(n)); err != nil {
				t.Fatal(err)
			}
		}
		if size(p) != maxConns || dials.Load() != 2*maxConns {
			t.Errorf("%d connections of %d", size(p), dials.Load())
		}
		var all []*Lease
		for n := range maxConns {
			l, err := p.Get(t.Context(), to(n))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, l)
		}
		if _, err := p.Get(t.Context(), to(9999)); interact.AsError(err).Code != interact.Overloaded {
			t.Errorf("with all in use: %v", err)
		}
		for _, l := range all {
			l.Release()
		}
	})
}

func TestPoolDialsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dials, fail := 0, errors.New("no route")
		p := NewPool(func(ctx context.Context, _, _ string) (net.Conn, error) {
			dials++
			select {
			case <-time.After(time.Second):
				return nil, fail
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}, 1<<20)
		defer p.Close()
		var work sync.WaitGroup
		for n := range 10 {
			work.Go(func() {
				ctx := t.Context()
				if n == 0 { // one that leaves does not affect the others
					short, cancel := context.WithTimeout(ctx, time.Millisecond)
					defer cancel()
					ctx = short
				}
				_, err := p.Get(ctx, udpTarget)
				var l *Loss
				if !errors.As(err, &l) || l.Started || n > 0 && !errors.Is(err, fail) {
					t.Errorf("%d: got %v", n, err)
				}
			})
		}
		if work.Wait(); dials != 1 {
			t.Errorf("dialled %d times", dials)
		}
		if _, err := p.Get(t.Context(), udpTarget); !errors.Is(err, fail) || dials != 2 {
			t.Errorf("later: %v after %d", err, dials)
		}
	})
}

// TestAnswersOfAllKinds: piggybacked, separate, before the acknowledgement, not confirmable.
func TestAnswersOfAllKinds(t *testing.T) {
	t.Parallel()
	answer := func(kind message.Type, mid uint16, q *Packet) *Packet {
		return &Packet{Kind: kind, Mid: mid, Code: codes.Content, Token: q.Token, Payload: []byte("ok")}
	}
	for name, react := range map[string]func(f *far, q *Packet){
		"piggybacked": echo,
		"separate": func(f *far, q *Packet) {
			_, _ = f.Write(Bare(message.Acknowledgement, q.Mid))
			time.Sleep(time.Minute)
			f.send(answer(message.Confirmable, 77, q))
			f.send(answer(message.Confirmable, 77, q))
		},
		"before the acknowledgement": func(f *far, q *Packet) { f.send(answer(message.Confirmable, 77, q)) },
		"not confirmable":            func(f *far, q *Packet) { f.send(answer(message.NonConfirmable, 78, q)) },
		"after nonsense": func(f *far, q *Packet) {
			_, _ = f.Write([]byte("GET / HTTP/1.1"))
			_, _ = f.Write(nil)
			f.send(&Packet{Kind: message.Acknowledgement, Mid: q.Mid + 1})
			f.send(&Packet{Kind: message.NonConfirmable, Mid: 3, Code: codes.Content, Token: "other"})
			echo(f, q)
		},
		"at the third copy": func() func(f *far, q *Packet) {
			n := 0
			return func(f *far, q *Packet) {
				if n++; n == 3 {
					echo(f, q)
				}
			}
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p, _, end := poolOf(func(f *far, q *Packet) {
					if q.IsRequest() {
						react(f, q)
					}
				})
				defer end()
				if a, err := get(t, p, udpTarget); err != nil || string(a.Payload) != "ok" {
					t.Errorf("%+v, %v", a, err)
				}
				synctest.Wait()
			})
		})
	}
}

// TestUnexpectedResponsesAreRejected is rejected, each copy alike, and what somebody waits for is acknowledged, each copy alike.
func TestUnexpectedResponsesAreRejected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fars := make(chan *far, 1000)
		p, _, end := poolOf(func(one *far, _ *Packet) { fars <- one })
		defer end()
		l, err := p.Get(t.Context(), udpTarget)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Release()
		k := l.Call(4)
		defer k.End()
		if _, err := k.Send(t.Context(), &Packet{Kind: message.NonConfirmable, Code: codes.GET}); err != nil {
			t.Fatal(err)
		}
		f := <-fars
		token := (<-f.got).Token
		tests := []struct {
			name string
			p    *Packet
			want string
		}{
			{"a ping", &Packet{Kind: message.Confirmable, Mid: 1}, "3 1"},
			{"a request", &Packet{Kind: message.Confirmable, Mid: 2, Code: codes.GET}, "3 2"},
			{"an answer to another", &Packet{Kind: message.Confirmable, Mid: 3, Code: codes.Content, Token: "x"}, "3 3"},
			{"a copy of it", &Packet{Kind: message.Confirmable, Mid: 3, Code: codes.Content, Token: "x"}, "3 3"},
			{"an answer", &Packet{Kind: message.Confirmable, Mid: 4, Code: codes.Content, Token: token}, "2 4"},
			{"a copy of it", &Packet{Kind: message.Confirmable, Mid: 4, Code: codes.Content, Token: token}, "2 4"},
			{"an unconfirmed answer", &Packet{Kind: message.NonConfirmable, Mid: 5, Code: codes.Content, Token: token}, ""},
			{"an unconfirmed answer to another", &Packet{Kind: message.NonConfirmable, Mid: 6, Code: codes.Content, Token: "x"}, "3 6"},
			{"an unconfirmed ping", &Packet{Kind: message.NonConfirmable, Mid: 7}, ""},
			{"a reset", &Packet{Kind: message.Reset, Mid: 8}, ""},
		}
		for _, tt := range tests {
			f.send(tt.p)
			synctest.Wait()
			got := ""
			for len(f.got) > 0 {
				q := <-f.got
				got += fmt.Sprintf("%d %d", q.Kind, q.Mid)
			}
			if got != tt.want {
				t.Errorf("%s: answered %q, want %q", tt.name, got, tt.want)
			}
		}
		if len(k.Answers) != 2 {
			t.Errorf("%d answers, want each once", len(k.Answers))
		}
		for mid := range 3 * recent { // what is remembered is bounded
			f.send(&Packet{Kind: message.NonConfirmable, Mid: uint16(1000 + mid), Code: codes.Content, Token: "x"})
		}
		synctest.Wait()
		end()
		if len(l.seen) > recent {
			t.Errorf("%d messages are remembered", len(l.seen))
		}
	})
}

func TestLosses(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		react        func(f *far, q *Packet)
		kind         message.Type
		cause        error
		begun, acked bool
	}{
		"never acknowledged": {func(*far, *Packet) {}, message.Confirmable, context.DeadlineExceeded, true, false},
		"never answered": {func(f *far, q *Packet) { _, _ = f.Write(Bare(message.Acknowledgement, q.Mid)) },
			message.Confirmable, context.DeadlineExceeded, true, true},
		"not confirmable": {func(*far, *Packet) {}, message.NonConfirmable, context.DeadlineExceeded, true, false},
		"rejected": {func(f *far, q *Packet) { _, _ = f.Write(Bare(message.Reset, q.Mid)) }, message.Confirmable,
			ErrReset, false, false},
		"the connection ended": {nil, message.Confirmable, errClosed, true, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var p *Pool
				react := tt.react
				if react == nil {
					react = func(f *far, q *Packet) {
						_, _ = f.Write(Bare(message.Acknowledgement, q.Mid))
						time.Sleep(time.Second)
						p.cancel()
					}
				}
				p, _, end := poolOf(react)
				defer end()
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				l, err := p.Get(ctx, udpTarget)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Release()
				k := l.Call(1)
				defer k.End()
				_, err = k.Ask(ctx, &Packet{Kind: tt.kind, Code: codes.POST})
				var lost *Loss
				if !errors.As(err, &lost) || !errors.Is(err, tt.cause) || lost.Started != tt.begun || lost.Acked != tt.acked {
					t.Errorf("got %+v", lost)
				}
			})
		})
	}
}

// TestNotMoreThanAFewAtOnce: of what is not acknowledged only so much is on the way (NSTART, RFC 7252 §4.7).
func TestNotMoreThanAFewAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var waiting atomic.Int32
		p, _, end := poolOf(func(*far, *Packet) { waiting.Add(1) })
		defer end()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		l, err := p.Get(ctx, udpTarget)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Release()
		var work sync.WaitGroup
		var unsent atomic.Int32
		for range 3 * parallel {
			work.Go(func() {
				k := l.Call(1)
				defer k.End()
				_, err := k.Ask(ctx, &Packet{Code: codes.POST})
				if lost := new(Loss); errors.As(err, &lost) && !lost.Started {
					unsent.Add(1)
				}
			})
		}
		if work.Wait(); waiting.Load() != parallel || unsent.Load() != 2*parallel {
			t.Errorf("%d were sent, %d not", waiting.Load(), unsent.Load())
		}
	})
}

// stream returns a connection over a stream and its far end, which has read the CSM.
func stream(t *testing.T) (*Lease, *Pool, net.Conn, *bufio.Reader) {
	near, other := net.Pipe()
	p := NewPool(func(context.Context, string, string) (net.Conn, error) { return near, nil }, 1<<20)
	r := bufio.NewReader(other)
	got := make(chan *Packet)
	go func() {
		csm, _ := readFrame(r, 1<<20)
		got <- csm
	}()
	l, err := p.Get(t.Context(), Target{Scheme: "coap+tcp", Hostport: "h:1", Host: "h"})
	if err != nil {
		t.Fatal(err)
	}
	csm := <-got
	if size, _ := csm.Option(message.TCPMaxMessageSize); csm.Code != codes.CSM || uint32Of(size) != 1<<20+beside {
		t.Fatalf("the first message is %+v", csm)
	}
	return l, p, other, r
}

func put(t *testing.T, c net.Conn, p *Packet) {
	t.Helper()
	b, err := p.frame()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
}

func TestStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, p, other, r := stream(t)
		defer p.Close()
		defer l.Release()
		if !l.Stream() {
			t.Error("TCP is no stream")
		}
		begun := time.Now()
		if room := l.Room(t.Context()); room != 512 || time.Since(begun) != Writing {
			t.Errorf("room for %d bytes after %v, while the far end says nothing", room, time.Since(begun))
		}
		csm := &Packet{Code: codes.CSM}
		csm.AddUint(message.TCPMaxMessageSize, 100000)
		put(t, other, csm)
		put(t, other, csm) // again
		put(t, other, &Packet{Code: codes.Ping, Token: "p"})
		if pong, err := readFrame(r, 1000); err != nil || pong.Code != codes.Pong || pong.Token != "p" {
			t.Errorf("a ping was answered with %+v, %v", pong, err)
		}
		if room := l.Room(t.Context()); room != 100000-1024 {
			t.Errorf("room for %d bytes", room)
		}
		put(t, other, &Packet{Code: codes.Content, Token: "nobody"})
		k := l.Call(1)
		defer k.End()
		go func() {
			q, _ := readFrame(r, 1000)
			put(t, other, &Packet{Code: codes.Content, Token: q.Token, Payload: []byte("ok")})
		}()
		if a, err := k.Ask(t.Context(), &Packet{Code: codes.GET}); err != nil || string(a.Payload) != "ok" {
			t.Errorf("%+v, %v", a, err)
		}
		time.Sleep(3 * idleAfter) // somebody has it
		put(t, other, &Packet{Code: codes.Release})
		<-l.Ended()
		if l.Why() == nil {
			t.Error("it ended for no reason")
		}
		if _, err := k.Ask(t.Context(), &Packet{Code: codes.GET}); err == nil {
			t.Error("a connection that has ended was asked")
		}
	})
}

func TestStreamsThatBreak(t *testing.T) {
	t.Parallel()
	for name, say := range map[string]string{"nonsense": "GET / HTTP/1.1\r\n\r\n", "too large": "\xf0\x7f\x00\x00\x00\x45",
		"cut off": "\xd0", "abort": "\x00\xe5"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, p, other, r := stream(t)
				defer p.Close()
				defer l.Release()
				k := l.Call(1)
				defer k.End()
				go func() {
					_, _ = readFrame(r, 1000)
					_, _ = other.Write([]byte(say))
					_ = other.Close()
				}()
				_, err := k.Ask(t.Context(), &Packet{Code: codes.POST})
				if lost := new(Loss); !errors.As(err, &lost) || !lost.Started {
					t.Errorf("got %v", err)
				}
				<-l.Ended()
			})
		})
	}
}

// TestAFarEndThatDoesNotRead: a remote end that does not read blocks callers only for a short time.
func TestAFarEndThatDoesNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, p, _, _ := stream(t)
		defer p.Close()
		defer l.Release()
		k := l.Call(1)
		defer k.End()
		begun := time.Now()
		_, err := k.Ask(t.Context(), &Packet{Code: codes.POST})
		if lost := new(Loss); !errors.As(err, &lost) || lost.Started || time.Since(begun) != Writing {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		<-l.Ended()
	})
}

func TestTooManyAnswers(t *testing.T) {
	t.Parallel()
	k := &conn{calls: map[string]*Call{}}
	for _, newest := range []bool{false, true} {
		c := k.Call(2)
		c.Newest = newest
		for n := range 5 {
			k.deliver(&Packet{Token: c.token, Mid: uint16(n)})
		}
		a, b := <-c.Answers, <-c.Answers
		over := false
		select {
		case <-c.Over:
			over = true
		default:
		}
		if over == newest || newest && (a.Mid != 3 || b.Mid != 4) || !newest && (a.Mid != 0 || b.Mid != 1) {
			t.Errorf("newest %v: %d, %d, over %v", newest, a.Mid, b.Mid, over)
		}
		c.End()

		large := k.Call(64) // of a stream that floods
		large.Newest = newest
		for range 64 {
			k.deliver(&Packet{Token: large.token, Payload: make([]byte, MaxDatagram+1)})
		}
		if n := len(large.Answers); n != 4 {
			t.Errorf("newest %v: %d large answers wait", newest, n)
		}
		large.End()
	}
}
