package stream

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A reachLog remembers what Options.Reach was told.
type reachLog struct {
	mu   sync.Mutex
	told map[did.DID][]bool
}

func (l *reachLog) reach(node did.DID, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.told == nil {
		l.told = map[did.DID][]bool{}
	}
	l.told[node] = append(l.told[node], ok)
}

func (l *reachLog) last(node did.DID) (ok, told bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.told[node]
	if len(all) == 0 {
		return false, false
	}
	return all[len(all)-1], true
}

func TestHostsAreTriedInOrder(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		var log reachLog
		gone := newHost(t, transport)
		where := at(t, gone)
		_ = gone.Close()
		server := newHost(t, transport)
		newBinding(t, server, Options{}).Serve(answering)
		caller := newBinding(t, newHost(t, transport), Options{Reach: log.reach, DialTimeout: 3 * time.Second})
		caller.inOrder()

		r, err := interact.Call(t.Context(), caller.at([]td.Host{where, at(t, server)}), ask("a", "hello"))
		if err != nil || string(r.Data) != "hello" {
			t.Errorf("got %v, %v, want the answer of the second host", r, err)
		}
		if ok, told := log.last(where.Node); !told || ok {
			t.Error("the dead host was not reported as unreachable")
		}
		if ok, told := log.last(at(t, server).Node); !told || !ok {
			t.Error("the other host was not reported as reachable")
		}
	})
}

func TestConnectedHostsComeFirst(t *testing.T) {
	t.Parallel()
	name := func(s string) interact.Thing {
		return interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) { return done(m, s), nil })
	}
	one, two := newHost(t, "tcp"), newHost(t, "tcp")
	newBinding(t, one, Options{}).Serve(name("one"))
	newBinding(t, two, Options{}).Serve(name("two"))
	h := newHost(t, "tcp")
	connect(t, h, two)
	thing := newBinding(t, h, Options{}).at([]td.Host{at(t, one), at(t, two)})
	r, err := interact.Call(t.Context(), thing, ask("a", ""))
	if err != nil || string(r.Data) != "two" {
		t.Errorf("got %v, %v, want the host that is connected", r, err)
	}
}

func TestHostsThatWereDownComeLast(t *testing.T) {
	t.Parallel()
	gone, server := newHost(t, "tcp"), newHost(t, "tcp")
	hosts := []td.Host{at(t, gone), at(t, server)}
	_ = gone.Close()
	newBinding(t, server, Options{}).Serve(answering)
	caller := newBinding(t, newHost(t, "tcp"), Options{})
	caller.inOrder()
	if _, err := interact.Call(t.Context(), caller.at(hosts), ask("a", "")); err != nil {
		t.Fatal(err)
	}
	until(t, "the connection closes", func() bool {
		_ = caller.host.Network().ClosePeer(server.ID())
		return caller.host.Network().Connectedness(server.ID()) != network.Connected
	})
	if got := caller.at(hosts).order(); got[0].Node != hosts[1].Node {
		t.Error("the host that was down is tried first")
	}
	if caller.sweep(time.Now()); len(caller.remotes) == 0 {
		t.Error("that the host was down is forgotten at once")
	}
	until(t, "the node forgets that the host was down", func() bool {
		caller.sweep(time.Now().Add(2 * unreachableBackoff))
		caller.mu.Lock()
		defer caller.mu.Unlock()
		return len(caller.remotes) == 0
	})
}

// TestACallKeepsItsLane: a session that is about to be closed as idle takes no call with it, nor does a call find it closed.
func TestACallKeepsItsLane(t *testing.T) {
	t.Parallel()
	p := newPair(t, "tcp", answering, Options{Idle: 50 * time.Microsecond}, Options{})
	stop := make(chan struct{})
	var sweeping sync.WaitGroup
	sweeping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				p.caller.sweep(time.Now())
			}
		}
	})
	for range 300 {
		if _, err := interact.Call(t.Context(), p.thing, ask("a", "")); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	sweeping.Wait()
}

// A host that cannot be dialed at the addresses of the record is looked for once, and after a failure not again for a while.
func TestAddressesAreLookedFor(t *testing.T) {
	t.Parallel()
	server := newHost(t, "tcp")
	newBinding(t, server, Options{}).Serve(answering)
	old := td.Host{Node: at(t, server).Node, Addrs: []string{"/ip4/127.0.0.1/tcp/1"}}
	for name, found := range map[string][]multiaddr.Multiaddr{"found": server.Addrs(), "not found": nil} {
		var searches atomic.Int32
		thing := newBinding(t, newHost(t, "tcp"), Options{Find: func(_ context.Context, id peer.ID) (peer.AddrInfo, error) {
			searches.Add(1)
			return peer.AddrInfo{ID: id, Addrs: found}, nil
		}}).at([]td.Host{old})
		for range 2 {
			if _, err := interact.Call(t.Context(), thing, ask("a", "")); (err == nil) != (found != nil) {
				t.Errorf("%s: got %v", name, err)
			}
		}
		if n := searches.Load(); n != 1 {
			t.Errorf("%s: %d searches", name, n)
		}
	}
}

// TestRelayedSessionIsReplaced: once there is a direct connection, new calls take it, and the old ones end where they are.
func TestRelayedSessionIsReplaced(t *testing.T) {
	t.Parallel()
	p := newPair(t, "tcp", answering, Options{}, Options{})
	for range 2 {
		if _, err := interact.Call(t.Context(), p.thing, ask("a", "")); err != nil {
			t.Fatal(err)
		}
		if n := p.caller.Stats().Streams; n != 1 {
			t.Fatalf("%d streams, want 1", n)
		}
	}
	for _, l := range p.caller.all() {
		l.relayed = true
	}
	if _, err := interact.Call(t.Context(), p.thing, ask("a", "")); err != nil {
		t.Fatal(err)
	}
	if n := p.caller.Stats().Streams; n != 2 {
		t.Errorf("%d streams, want the old and a new one", n)
	}
}

func TestAnsweredCallIsNotRepeated(t *testing.T) {
	t.Parallel()
	one, two := newHost(t, "tcp"), newHost(t, "tcp")
	newBinding(t, one, Options{}).Serve(failing(interact.Errorf(interact.AgentFailed, "", "no")))
	newBinding(t, two, Options{}).Serve(answering)
	caller := newBinding(t, newHost(t, "tcp"), Options{})
	caller.inOrder()
	if _, err := interact.Call(t.Context(), caller.at([]td.Host{at(t, one), at(t, two)}), ask("a", "")); code(err) != interact.AgentFailed {
		t.Errorf("got %v, want the first host's error", err)
	}
}

func TestUnreachableNamesThePaths(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		gone := newHost(t, transport)
		where := at(t, gone)
		_ = gone.Close()
		h := newHost(t, transport)
		caller := newBinding(t, h, Options{DialTimeout: 3 * time.Second})
		silent := newHost(t, transport) // does not speak the protocol
		hosts := []td.Host{where, at(t, silent), {Node: "did:web:example.com"}, {Node: where.Node, Addrs: []string{"nonsense"}}}
		_, err := interact.Call(t.Context(), caller.at(hosts), ask("a", ""))
		e := interact.AsError(err)
		if e.Code != interact.Unreachable || e.Remote || e.Hint == "" && e.Next == nil {
			t.Errorf("got %v %v, want Unreachable with a hint", e.Code, e)
		}
		for _, want := range []string{where.Addrs[0], "another mesh.network", "nonsense", "example.com"} {
			if !strings.Contains(e.Error(), want) {
				t.Errorf("%q is missing in: %v", want, e)
			}
		}
		if _, err := interact.Call(t.Context(), caller.at([]td.Host{at(t, h)}), ask("a", "")); !strings.Contains(err.Error(), "this is the calling node itself") {
			t.Errorf("the node as the only host: %v", err)
		}
		if strings.Contains(e.Error(), "\n") {
			t.Errorf("more than one line: %q", e.Error())
		}
	})
}

func TestNoHost(t *testing.T) {
	t.Parallel()
	caller := newBinding(t, newHost(t, "tcp"), Options{})
	if _, err := interact.Call(t.Context(), caller.at(nil), ask("a", "")); code(err) != interact.Unreachable {
		t.Errorf("got %v, want Unreachable", err)
	}
}

func TestCancelledWhileDialing(t *testing.T) {
	t.Parallel()
	caller := newBinding(t, newHost(t, "tcp"), Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	where := at(t, newHost(t, "tcp"))
	if _, err := interact.Call(ctx, caller.at([]td.Host{where}), ask("a", "")); code(err) != interact.Cancelled {
		t.Errorf("got %v, want Cancelled", err)
	}
}

// TestAHostThatRestarted: the session is gone, and the next call must not notice.
func TestAHostThatRestarted(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		p := newPair(t, transport, answering, Options{}, Options{})
		for range 3 {
			if _, err := interact.Call(t.Context(), p.thing, ask("a", "")); err != nil {
				t.Fatal(err)
			}
			_ = p.server.Close()
			until(t, "the caller notices", func() bool { return p.caller.Stats().Streams == 0 })
			p.server = newBinding(t, p.serverHost, Options{})
			p.server.Serve(answering)
		}
	})
}

// TestALostRequest: a host that ends the session in the middle of a call is asked again only if that is harmless.
func TestALostRequest(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		for name, c := range map[string]struct {
			m     *interact.Message
			reset network.StreamErrorCode
			calls int
			want  interact.Code
		}{
			"an action is not repeated":        {ask("a", ""), network.StreamNoError, 1, interact.Unreachable},
			"an idempotent action is repeated": {ask("idempotent", ""), network.StreamNoError, 2, interact.Unreachable},
			"an action with a key is repeated": {&interact.Message{Type: interact.InvokeAction, Name: "a", Key: "k"}, network.StreamNoError, 2, interact.Unreachable},
			"a write is not repeated":          {&interact.Message{Type: interact.WriteProperty, Name: "p"}, 0, 1, interact.Unreachable},
			"a read is repeated":               {&interact.Message{Type: interact.ReadProperty, Name: "p"}, 0, 2, interact.Unreachable},
			"what an idle session never read":  {ask("a", ""), network.StreamGarbageCollected, 2, interact.Unreachable},
			"a subscription is repeated":       {subscribe("e"), 0, 2, interact.Unreachable},
			"an own session is no other":       {ask("a", strings.Repeat("x", inline+1)), 0, 1, interact.Unreachable},
			"a host without room":              {ask("a", ""), network.StreamResourceLimitExceeded, 1, interact.Overloaded},
			"a host that goes":                 {ask("a", ""), network.StreamShutdown, 1, interact.ShuttingDown},
			"a request stream can't be read":   {&interact.Message{Type: interact.ReadProperty, Chunks: nothing}, 0, 1, interact.Unreachable},
		} {
			server := newHost(t, transport)
			calls := make(chan struct{}, 10)
			server.SetStreamHandler(Protocol("test"), func(s network.Stream) {
				_, _ = s.Read(make([]byte, 10))
				calls <- struct{}{}
				_ = s.ResetWithError(c.reset)
			})
			thing := newBinding(t, newHost(t, transport), Options{}).at([]td.Host{at(t, server)})
			_, err := interact.Call(t.Context(), thing, c.m)
			e := interact.AsError(err)
			if e.Code != c.want || e.Hint == "" && e.Next == nil {
				t.Errorf("%s: got %v %v, want %v", name, e.Code, err, c.want)
			}
			if started := !c.m.Type.Reads() && c.reset != network.StreamGarbageCollected; e.Started != started && c.m.Chunks == nil {
				t.Errorf("%s: started %t", name, e.Started)
			}
			if n := len(calls); n != c.calls {
				t.Errorf("%s: sent %d times, want %d", name, n, c.calls)
			}
		}
	})
}

func nothing(func([]byte, error) bool) {}

func TestDrain(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		w := newWaiting()
		p := newPair(t, transport, w, Options{}, Options{})
		ctx, cancel := context.WithCancel(t.Context())
		running := make(chan error)
		go func() {
			_, err := interact.Call(ctx, p.thing, ask("a", ""))
			running <- err
		}()
		<-w.began
		short, stop := context.WithCancel(t.Context())
		stop()
		p.server.Drain(short) // returns at once, and refuses from now on
		if _, err := interact.Call(t.Context(), p.thing, ask("b", "")); code(err) != interact.ShuttingDown {
			t.Errorf("a new call: got %v, want ShuttingDown", err)
		}
		if _, err := interact.Call(t.Context(), p.thing, ask("b", strings.Repeat("x", 100_000))); code(err) != interact.ShuttingDown {
			t.Errorf("a new large call: got %v, want ShuttingDown", err)
		}
		drained := make(chan struct{})
		go func() {
			p.server.Drain(t.Context())
			close(drained)
		}()
		cancel()
		if err := <-running; code(err) != interact.Cancelled {
			t.Errorf("the running call: %v", err)
		}
		<-drained
	})
}

func TestCloseEndsCalls(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		for name, c := range map[string]struct {
			close func(*pair)
			want  interact.Code
		}{
			"at the caller": {func(p *pair) { _ = p.caller.Close() }, interact.ShuttingDown},
			"at the host":   {func(p *pair) { _ = p.server.Close() }, interact.ShuttingDown},
		} {
			for _, m := range []*interact.Message{ask("a", ""), {Type: interact.SubscribeEvent, Name: "e"}} {
				w := newWaiting()
				p := newPair(t, transport, w, Options{}, Options{})
				go func() {
					<-w.began
					c.close(p)
				}()
				_, err := interact.Call(t.Context(), p.thing, m)
				if m.Type == interact.InvokeAction && code(err) != c.want || err == nil {
					t.Errorf("%s: got %v, want %v", name, err, c.want)
				}
				<-w.ended
			}
		}
	})
}

func TestClosedBinding(t *testing.T) {
	t.Parallel()
	p := newPair(t, "tcp", answering, Options{}, Options{})
	_ = p.caller.Close()
	_ = p.caller.Close()
	for _, m := range []*interact.Message{ask("a", ""), ask("a", strings.Repeat("x", 100_000))} {
		if _, err := interact.Call(t.Context(), p.thing, m); code(err) != interact.ShuttingDown {
			t.Errorf("got %v, want ShuttingDown", err)
		}
	}
}

func TestOverloaded(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		for name, o := range map[string]Options{"per peer": {MaxPerPeer: 2}, "in all": {MaxConcurrent: 2}} {
			w := newWaiting()
			p := newPair(t, transport, w, Options{}, o)
			ctx, cancel := context.WithCancel(t.Context())
			running := make(chan error)
			for range 2 {
				go func() {
					_, err := interact.Call(ctx, p.thing, ask("a", ""))
					running <- err
				}()
				<-w.began
			}
			for _, size := range []int{1, 100_000} {
				_, err := interact.Call(t.Context(), p.thing, ask("a", strings.Repeat("x", size)))
				if e := interact.AsError(err); e.Code != interact.Overloaded || !e.Code.Retryable() || !e.Remote {
					t.Errorf("%s: got %v, want Overloaded", name, err)
				}
			}
			cancel()
			<-running
			<-running
		}
	})
}

// A slowStream resets when its channel is closed, as one does whose peer reads slowly.
type slowStream struct {
	network.Stream
	resets chan struct{}
}

func (s *slowStream) ResetWithError(code network.StreamErrorCode) error {
	<-s.resets
	return s.Stream.ResetWithError(code)
}

// A session whose end waits for its peer delays neither the sweep nor the ends of other sessions.
func TestSlowEndsDelayNoOthers(t *testing.T) {
	t.Parallel()
	p := newPair(t, "tcp", answering, Options{}, Options{})
	other := newHost(t, "tcp")
	newBinding(t, other, Options{}).Serve(answering)
	connect(t, p.callerHost, other)
	for _, thing := range []interact.Thing{p.thing, p.caller.at([]td.Host{at(t, other)})} {
		if _, err := interact.Call(t.Context(), thing, ask("a", "")); err != nil {
			t.Fatal(err)
		}
	}
	resets := make(chan struct{})
	for _, l := range p.caller.all() {
		if l.remote.node != at(t, other).Node {
			l.s = &slowStream{l.s, resets}
		}
	}
	p.caller.sweep(time.Now().Add(time.Hour))
	until(t, "the other session has ended", func() bool { return len(p.caller.all()) == 1 })
	close(resets)
	until(t, "the slow session has ended", func() bool { return len(p.caller.all()) == 0 })
}
