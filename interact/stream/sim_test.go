package stream

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"iter"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	"github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/stream/frame"
	"github.com/lmosd/lmosd/internal/testhost"
	"github.com/lmosd/lmosd/td"
)

// simulated runs a test in a bubble of simulated time, in which to sleep takes none, with n connected hosts.
func simulated(t *testing.T, n int, test func(t *testing.T, hosts []host.Host)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		net := testhost.NewNetwork(t, 0)
		for range n {
			key, _, err := crypto.GenerateEd25519Key(rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := net.AddPeer(key, multiaddr.StringCast("/ip4/192.0.2.1/tcp/1")); err != nil {
				t.Fatal(err)
			}
		}
		if err := net.LinkAll(); err != nil {
			t.Fatal(err)
		}
		if err := net.ConnectAllButSelf(); err != nil {
			t.Fatal(err)
		}
		test(t, net.Hosts())
		synctest.Wait()
	})
}

// bind returns a binding that runs, and what ends it.
func bind(h host.Host, o Options) (*Binding, func()) {
	o.Network = "test"
	b := New(h, o)
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = b.Run(ctx)
	}()
	return b, func() {
		cancel()
		<-over
		_ = b.Close()
	}
}

// open opens a stream of the protocol and sends b on it.
func open(t *testing.T, from, to host.Host, b []byte) network.Stream {
	t.Helper()
	s, err := from.NewStream(t.Context(), to.ID(), Protocol("test"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write(b); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestPatienceWithCallers(t *testing.T) {
	whole := rawRequest(1, ask("echo", "x"), frame.Extra{})
	stream := rawRequest(0, ask("echo", "x"), frame.Extra{Size: 10})
	for name, c := range map[string]struct {
		sent []byte
		want time.Duration
	}{
		"no frame at all":          {nil, frameTime},
		"one byte":                 {whole[:1], frameTime},
		"half a frame":             {whole[:len(whole)/2], frameTime},
		"a frame and half a frame": {append(whole[:len(whole):len(whole)], whole[:5]...), frameTime},
		"half the data":            {append(stream[:len(stream):len(stream)], raw(frame.Chunk, 0, "12345")...), frameTime},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 2, func(t *testing.T, hosts []host.Host) {
				b, stop := bind(hosts[0], Options{})
				defer stop()
				b.Serve(answering)
				began := time.Now()
				s := open(t, hosts[1], hosts[0], c.sent)
				_, _ = io.Copy(io.Discard, s) // until the host ends it
				if took := time.Since(began); took < c.want || took > c.want+time.Second {
					t.Errorf("the host waited for %v, want %v", took, c.want)
				}
				_ = s.Reset()
			})
		})
	}
}

func TestIdleLanesAreClosed(t *testing.T) {
	simulated(t, 2, func(t *testing.T, hosts []host.Host) {
		server, stop := bind(hosts[0], Options{})
		defer stop()
		server.Serve(answering)
		caller, stop := bind(hosts[1], Options{})
		defer stop()
		thing := caller.at([]td.Host{at(t, hosts[0])})
		for range 3 {
			if _, err := interact.Call(t.Context(), thing, ask("a", "")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if s := caller.Stats(); s.Pooled != 1 {
				t.Errorf("after a minute %d streams are kept, want 1", s.Pooled)
			}
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if c, s := caller.Stats(), server.Stats(); c.Streams != 0 || s.Streams != 0 {
			t.Errorf("after three minutes %d and %d streams are open", c.Streams, s.Streams)
		}
		if n := len(caller.remotes); n != 0 {
			t.Errorf("%d peers are remembered", n)
		}
		if _, err := interact.Call(t.Context(), thing, ask("a", "")); err != nil {
			t.Errorf("the next call: %v", err)
		}
	})
}

func TestTheHostClosesIdleLanesLater(t *testing.T) {
	simulated(t, 2, func(t *testing.T, hosts []host.Host) {
		b, stop := bind(hosts[0], Options{})
		defer stop()
		b.Serve(answering)
		s := open(t, hosts[1], hosts[0], rawRequest(1, ask("a", ""), frame.Extra{}))
		began := time.Now()
		_, _ = io.Copy(io.Discard, s)
		if took := time.Since(began); took < 4*time.Minute || took > 6*time.Minute {
			t.Errorf("closed after %v, want five minutes", took)
		}
		_ = s.Reset()
	})
}

func TestPeerThatDoesNotRead(t *testing.T) {
	simulated(t, 2, func(t *testing.T, hosts []host.Host) {
		b, stop := bind(hosts[0], Options{})
		defer stop()
		b.Serve(big(30_000))
		s := open(t, hosts[1], hosts[0], nil)
		for i := range uint64(100) {
			if _, err := s.Write(rawRequest(i+1, ask("a", ""), frame.Extra{})); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if n := b.Stats(); n.Streams != 0 || n.ServingNow != 0 {
			t.Errorf("%d streams and %d calls wait for a peer that reads nothing", n.Streams, n.ServingNow)
		}
		_ = s.Reset()
	})
}

// TestDeadlines: time is up at the very moment, whatever else the caller's node waits for.
func TestDeadlines(t *testing.T) {
	for name, c := range map[string]struct {
		typ    interact.Type
		size   int
		before time.Duration // the deadline of a call that waits already; 0: none, <0: it has no deadline
		after  time.Duration // the deadline that is tested
		slots  int
		mute   bool // the host answers nothing, not even probes
	}{
		"before the first doubt":          {interact.InvokeAction, 1, 0, 300 * time.Millisecond, 0, false},
		"after some probes":               {interact.InvokeAction, 1, 0, 3 * time.Second, 0, false},
		"while a probe waits":             {interact.InvokeAction, 1, 0, time.Second, 0, true},
		"beside a call without one":       {interact.InvokeAction, 1, -1, 2 * time.Second, 0, false},
		"beside a call with a later one":  {interact.InvokeAction, 1, time.Hour, 100 * time.Millisecond, 0, false},
		"on a session of its own":         {interact.InvokeAction, 100_000, 0, 5 * time.Second, 0, false},
		"while it waits for a slot":       {interact.InvokeAction, 1, -1, 2 * time.Second, 1, false},
		"of an observation":               {interact.ObserveProperty, 1, 0, 4 * time.Second, 0, false},
		"of an observation with a sister": {interact.ObserveProperty, 1, time.Minute, 4 * time.Second, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 2, func(t *testing.T, hosts []host.Host) {
				w := newWaiting()
				ping.NewPingService(hosts[0])
				server, stop := bind(hosts[0], Options{})
				defer stop()
				server.Serve(w)
				if c.mute {
					hosts[0].SetStreamHandler(Protocol("test"), swallow)
					hosts[0].SetStreamHandler(ping.ID, swallow)
				}
				caller, stop := bind(hosts[1], Options{MaxPerPeer: c.slots})
				defer stop()
				thing := caller.at([]td.Host{at(t, hosts[0])})
				first, cancel := context.WithCancel(t.Context())
				over := make(chan error, 1)
				if c.before != 0 {
					m := ask("first", "")
					if c.before > 0 {
						m.Deadline = time.Now().Add(c.before)
					}
					go func() { _, err := interact.Call(first, thing, m); over <- err }()
					<-w.began
				} else {
					over <- nil
				}
				began := time.Now()
				m := &interact.Message{Type: c.typ, Thing: "x", Data: make([]byte, c.size), Deadline: began.Add(c.after)}
				_, err := interact.Call(t.Context(), thing, m)
				if took := time.Since(began); code(err) != interact.Timeout || took != c.after {
					t.Errorf("got %v after %v, want Timeout after %v", err, took, c.after)
				}
				cancel()
				<-over
			})
		})
	}
}

func TestDeadlineAtTheHost(t *testing.T) {
	simulated(t, 2, func(t *testing.T, hosts []host.Host) {
		b, stop := bind(hosts[0], Options{})
		defer stop()
		w := newWaiting()
		b.Serve(w)
		sent, err := frame.Append(nil, frame.Request, 1, func(b []byte) ([]byte, error) {
			return frame.AppendRequest(b, ask("a", ""), frame.Extra{}, 3000)
		})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		s := open(t, hosts[1], hosts[0], sent) // a caller that never cancels
		<-w.ended
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("the host worked for %v, want 3 s", took)
		}
		_ = s.Reset()
	})
}

// swallow takes streams and never answers, like a peer that was killed.
func swallow(s network.Stream) {
	_, _ = io.Copy(io.Discard, s)
	_ = s.Reset()
}

// A connection ends without a word, and the host is there: what is repeatable is sent once more over a new one.
func TestRepeatableCallsSurviveASilentConnection(t *testing.T) {
	for name, c := range map[string]struct {
		m    *interact.Message
		want interact.Code // 0: the answer
	}{
		"a read":                {&interact.Message{Type: interact.ReadProperty, Thing: "x"}, 0},
		"an idempotent action":  {ask("idempotent", ""), 0},
		"an action with a key":  {&interact.Message{Type: interact.InvokeAction, Name: "a", Key: "k"}, 0},
		"another action is not": {ask("a", ""), interact.Unreachable},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 2, func(t *testing.T, hosts []host.Host) {
				server, stop := bind(hosts[0], Options{})
				defer stop()
				server.Serve(answering)
				var silent atomic.Bool
				silent.Store(true)
				hosts[0].SetStreamHandler(Protocol("test"), func(s network.Stream) {
					if silent.CompareAndSwap(true, false) {
						swallow(s)
						return
					}
					server.accept(s)
				})
				hosts[0].SetStreamHandler(ping.ID, swallow)
				caller, stop := bind(hosts[1], Options{})
				defer stop()
				if _, err := interact.Call(t.Context(), caller.at([]td.Host{at(t, hosts[0])}), c.m); code(err) != c.want || (err != nil) != (c.want != 0) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

func TestUnresponsivePeer(t *testing.T) {
	for name, c := range map[string]struct {
		m    *interact.Message
		want string // the answer, "" for Unreachable
	}{
		"an action is lost":            {ask("a", ""), ""},
		"a read is asked elsewhere":    {&interact.Message{Type: interact.ReadProperty, Thing: "x", Data: []byte("d")}, "d"},
		"an observation is, too":       {&interact.Message{Type: interact.ObserveProperty, Thing: "x", Data: []byte("d")}, "d"},
		"a large action, on its own":   {ask("a", string(make([]byte, 100_000))), ""},
		"an action with much patience": {&interact.Message{Type: interact.InvokeAction, Deadline: time.Now().Add(1e6 * time.Hour)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, func(t *testing.T, hosts []host.Host) {
				var log reachLog
				dead := hosts[0]
				dead.SetStreamHandler(Protocol("test"), swallow)
				dead.SetStreamHandler(ping.ID, swallow)
				other, stop := bind(hosts[1], Options{})
				defer stop()
				other.Serve(answering)
				caller, stop := bind(hosts[2], Options{Reach: log.reach})
				defer stop()
				caller.inOrder()
				began := time.Now()
				r, err := interact.Call(t.Context(), caller.at([]td.Host{at(t, dead), at(t, hosts[1])}), c.m)
				// 700 ms until the doubt, 1 s for the probe.
				if took := time.Since(began); took < 1700*time.Millisecond || took > 2*time.Second {
					t.Errorf("it took %v, want 1.7 s", took)
				}
				if c.want == "" && code(err) != interact.Unreachable || c.want != "" && (err != nil || string(r.Data) != c.want) {
					t.Errorf("got %v, %v", r, err)
				}
				if ok, told := log.last(at(t, dead).Node); ok || !told {
					t.Error("the silent peer was not reported")
				}
				synctest.Wait()
				if n := hosts[2].Network().Connectedness(dead.ID()); n == network.Connected {
					t.Error("the connection is still there")
				}
			})
		})
	}
}

func TestSlowAgentDoesNotEndTheSession(t *testing.T) {
	simulated(t, 2, func(t *testing.T, hosts []host.Host) {
		var probes atomic.Int32
		pong := &ping.PingService{Host: hosts[0]}
		hosts[0].SetStreamHandler(ping.ID, func(s network.Stream) {
			probes.Add(1)
			pong.PingHandler(s)
		})
		server, stop := bind(hosts[0], Options{})
		defer stop()
		server.Serve(slow(time.Minute))
		caller, stop := bind(hosts[1], Options{})
		defer stop()
		if _, err := interact.Call(t.Context(), caller.at([]td.Host{at(t, hosts[0])}), ask("a", "")); err != nil {
			t.Fatal(err)
		}
		if n := probes.Load(); n < 5 || n > 15 {
			t.Errorf("probed %d times in a minute, want about 12", n)
		}
		time.Sleep(time.Minute)
		if n := probes.Load(); n > 15 {
			t.Errorf("probed %d times without a waiting call", n)
		}
	})
}

// A starvedHost opens its first streams for probes late, as a process without a processor does.
type starvedHost struct {
	host.Host
	late int32
	n    atomic.Int32
}

func (h *starvedHost) NewStream(ctx context.Context, id peer.ID, protocols ...protocol.ID) (network.Stream, error) {
	if protocols[0] == ping.ID && h.n.Add(1) <= h.late {
		time.Sleep(2 * time.Second)
		return nil, ctx.Err()
	}
	return h.Host.NewStream(ctx, id, protocols...)
}

// TestAStarvedProcessBlamesNoPeer: probes that this process could not finish in time do not count, within a limit.
func TestAStarvedProcessBlamesNoPeer(t *testing.T) {
	for late, want := range map[int32]interact.Code{1: 0, lateProbes: 0, lateProbes + 1: interact.Unreachable} {
		t.Run(fmt.Sprint(late), func(t *testing.T) {
			simulated(t, 2, func(t *testing.T, hosts []host.Host) {
				server, stop := bind(hosts[0], Options{})
				defer stop()
				server.Serve(slow(time.Minute))
				caller, stop := bind(&starvedHost{Host: hosts[1], late: late}, Options{})
				defer stop()
				_, err := interact.Call(t.Context(), caller.at([]td.Host{at(t, hosts[0])}), ask("a", ""))
				if want == 0 && err != nil || want != 0 && code(err) != want {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// slow is a Thing that answers after d.
func slow(d time.Duration) interact.Thing {
	return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		select {
		case <-time.After(d):
			return interact.One(done(m, "at last"))
		case <-ctx.Done():
			return interact.Fail(ctx.Err())
		}
	})
}

func TestANodeWithoutPing(t *testing.T) {
	simulated(t, 2, func(t *testing.T, hosts []host.Host) {
		hosts[0].RemoveStreamHandler(ping.ID)
		server, stop := bind(hosts[0], Options{})
		defer stop()
		server.Serve(slow(10 * time.Second))
		caller, stop := bind(hosts[1], Options{})
		defer stop()
		if _, err := interact.Call(t.Context(), caller.at([]td.Host{at(t, hosts[0])}), ask("a", "")); err != nil {
			t.Error(err)
		}
	})
}

func TestOtherAnswersAreASignOfLife(t *testing.T) {
	simulated(t, 2, func(t *testing.T, hosts []host.Host) {
		hosts[0].SetStreamHandler(ping.ID, swallow) // no probe would be answered
		server, stop := bind(hosts[0], Options{})
		defer stop()
		server.Serve(interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			if m.Name == "slow" {
				return slow(10*time.Second).Do(ctx, m)
			}
			return answering(ctx, m)
		}))
		caller, stop := bind(hosts[1], Options{})
		defer stop()
		thing := caller.at([]td.Host{at(t, hosts[0])})
		over := make(chan error)
		go func() {
			_, err := interact.Call(t.Context(), thing, ask("slow", ""))
			over <- err
		}()
		for range 50 {
			if _, err := interact.Call(t.Context(), thing, ask("echo", "")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(300 * time.Millisecond)
		}
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
}

// TestAPeerWithAnotherKey: only Ed25519 keys are DIDs of nodes.
func TestAPeerWithAnotherKey(t *testing.T) {
	simulated(t, 1, func(t *testing.T, hosts []host.Host) {
		b, stop := bind(hosts[0], Options{})
		defer stop()
		key, _, err := crypto.GenerateECDSAKeyPair(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		id, err := peer.IDFromPrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		s := &script{conn: scriptConn{id: id}, scope: &tally{}}
		if b.accept(s); s.code != network.StreamGated {
			t.Errorf("the stream was reset with %#x, want %#x", s.code, network.StreamGated)
		}
	})
}

func TestWorkersRetire(t *testing.T) {
	simulated(t, 2, func(t *testing.T, hosts []host.Host) {
		server, stop := bind(hosts[0], Options{})
		defer stop()
		server.Serve(slow(time.Second))
		caller, stop := bind(hosts[1], Options{})
		defer stop()
		thing := caller.at([]td.Host{at(t, hosts[0])})
		over := make(chan error)
		for range 2 * maxWorkers {
			go func() {
				_, err := interact.Call(t.Context(), thing, ask("a", ""))
				over <- err
			}()
		}
		for range 2 * maxWorkers {
			if err := <-over; err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if n := server.waiting.Load(); n != maxWorkers {
			t.Errorf("%d workers wait, want %d", n, maxWorkers)
		}
		time.Sleep(maxWorkers * writeTime)
		synctest.Wait()
		if n := server.waiting.Load(); n != 0 {
			t.Errorf("%d workers wait after a quiet time", n)
		}
	})
}

// TestDoubtBesideAPatientCall: a call that may take an hour does not keep the node from seeing that another gets no answer.
func TestDoubtBesideAPatientCall(t *testing.T) {
	simulated(t, 2, func(t *testing.T, hosts []host.Host) {
		hosts[0].SetStreamHandler(ping.ID, swallow) // no probe would be answered
		w := newWaiting()
		w.first = func(m *interact.Message) *interact.Message { return part(m, []byte("1")) }
		server, stop := bind(hosts[0], Options{})
		defer stop()
		server.Serve(interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			if m.Chunks == nil {
				return slow(time.Hour).Do(ctx, m)
			}
			return w.Do(ctx, m)
		}))
		caller, stop := bind(hosts[1], Options{})
		defer stop()
		thing := caller.at([]td.Host{at(t, hosts[0])})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		heard, over := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(over)
			for range thing.Do(ctx, streamed(nothing)) {
				select {
				case <-heard:
				default:
					close(heard)
				}
			}
		}()
		<-heard
		time.Sleep(10 * time.Second)
		began := time.Now()
		_, err := interact.Call(t.Context(), thing, ask("a", ""))
		if took := time.Since(began); code(err) != interact.Unreachable || took > 3*time.Second {
			t.Errorf("got %v after %v, want Unreachable within 3 s", err, took)
		}
		<-over // what is dead is given up as a whole
	})
}

// TestBusyHostIsRetried: a host that has no place, and says when to come again, is asked again for a while, each time later; not
// beyond the deadline, and not with a request stream, which cannot be sent again.
func TestBusyHostIsRetried(t *testing.T) {
	for name, c := range map[string]struct {
		refused int // calls, before one is taken
		after   time.Duration
		left    time.Duration // 0: no deadline
		stream  bool
		asked   int
		took    time.Duration
		ok      bool
	}{
		"soon free":        {2, time.Second / 4, 0, false, 3, 3 * time.Second / 4, true},
		"never free":       {99, time.Second / 4, time.Hour, false, 4, 7 * time.Second / 4, false},
		"no time":          {99, time.Second / 4, time.Second / 2, false, 2, time.Second / 4, false},
		"it says no time":  {99, 0, time.Hour, false, 1, 0, false},
		"a request stream": {99, time.Second, time.Hour, true, 1, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 2, func(t *testing.T, hosts []host.Host) {
				caller, end := bind(hosts[0], Options{})
				defer end()
				server, endServer := bind(hosts[1], Options{})
				defer endServer()
				asked := 0
				server.Serve(interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
					if asked++; asked <= c.refused {
						return nil, &interact.Error{Code: interact.Overloaded, Title: "full", RetryAfter: c.after}
					}
					r := m.Reply(interact.ActionStatus, interact.JSON, nil)
					r.Status = interact.StatusCompleted
					return r, nil
				}))
				begun := time.Now()
				m := &interact.Message{Type: interact.InvokeAction, Thing: "urn:x", Name: "do"}
				if c.left > 0 {
					m.Deadline = begun.Add(c.left)
				}
				if c.stream {
					m.Chunks = func(yield func([]byte, error) bool) { yield([]byte("x"), nil) }
				}
				_, err := interact.Call(t.Context(), caller.at([]td.Host{at(t, hosts[1])}), m)
				if e := interact.AsError(err); (e == nil) != c.ok || e != nil && (e.Code != interact.Overloaded || !e.Remote) {
					t.Errorf("got %v, want it to be answered: %v", err, c.ok)
				}
				if took := time.Since(begun); asked != c.asked || took != c.took {
					t.Errorf("asked %d times in %v, want %d in %v", asked, took, c.asked, c.took)
				}
			})
		})
	}
}

// TestCloseEndsWaitingCalls: calls that wait until their host wants to be asked again end with the node.
func TestCloseEndsWaitingCalls(t *testing.T) {
	for _, code := range []interact.Code{interact.RateLimited, interact.Overloaded} {
		t.Run(code.Slug(), func(t *testing.T) {
			simulated(t, 2, func(t *testing.T, hosts []host.Host) {
				caller, end := bind(hosts[0], Options{})
				defer end()
				server, endServer := bind(hosts[1], Options{})
				defer endServer()
				server.Serve(interact.Unary(func(context.Context, *interact.Message) (*interact.Message, error) {
					return nil, &interact.Error{Code: code, Title: "later", RetryAfter: time.Second}
				}))
				ended, begun := make(chan error, 2), time.Now()
				for range 2 {
					go func() {
						_, err := interact.Call(t.Context(), caller.at([]td.Host{at(t, hosts[1])}), &interact.Message{Type: interact.InvokeAction, Thing: "urn:x", Name: "do"})
						ended <- err
					}()
				}
				synctest.Wait()
				_ = caller.Close()
				for range 2 {
					if e := interact.AsError(<-ended); e == nil || e.Code != interact.ShuttingDown || e.Started || time.Since(begun) != 0 {
						t.Errorf("after %v: %+v, want ShuttingDown at once", time.Since(begun), e)
					}
				}
			})
		})
	}
}
