package stream

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/control"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/core/sec"
	"github.com/libp2p/go-libp2p/p2p/muxer/yamux"
	"github.com/libp2p/go-libp2p/p2p/net/upgrader"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	circuit "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	library "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/util"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	"github.com/multiformats/go-multiaddr"
	"google.golang.org/protobuf/proto"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/p2p/relay"
	"github.com/lmosd/lmosd/td"
)

// newRelay returns a host that relays with limits.
func newRelay(t testing.TB, data int64, length time.Duration) host.Host {
	t.Helper()
	h := newHost(t, "tcp", libp2p.DisableRelay(), libp2p.ResourceManager(&network.NullResourceManager{}))
	r, err := library.New(h, library.WithLimit(&library.RelayLimit{Data: data, Duration: length}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return h
}

// counting is a connection gater that avoids relays.
type counting struct{ *relay.Circuits }

func (counting) InterceptPeerDial(peer.ID) bool                            { return true }
func (c counting) InterceptAddrDial(p peer.ID, a multiaddr.Multiaddr) bool { return !c.Avoids(p, a) }
func (counting) InterceptAccept(network.ConnMultiaddrs) bool               { return true }
func (counting) InterceptSecured(network.Direction, peer.ID, network.ConnMultiaddrs) bool {
	return true
}
func (counting) InterceptUpgraded(network.Conn) (bool, control.DisconnectReason) { return true, 0 }

// newBehind returns a host that is reached through relays only, unless it listens.
func newBehind(t testing.TB, listen ...libp2p.Option) host.Host {
	t.Helper()
	circuits := &relay.Circuits{}
	opts := append([]libp2p.Option{libp2p.ResourceManager(&network.NullResourceManager{}), libp2p.DisableRelay(), libp2p.DisableMetrics(),
		libp2p.ConnectionGater(counting{circuits}), libp2p.NoListenAddrs}, listen...)
	h, err := libp2p.New(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	muxers := []upgrader.StreamMuxer{{ID: yamux.ID, Muxer: yamux.DefaultTransport}}
	key := h.Peerstore().PrivKey(h.ID())
	tls, err := libp2ptls.New(libp2ptls.ID, key, muxers)
	if err != nil {
		t.Fatal(err)
	}
	up, err := upgrader.New([]sec.SecureTransport{tls}, muxers, nil, nil, counting{circuits})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.AddTransport(h, circuits.Upgrader(up)); err != nil {
		t.Fatal(err)
	}
	return h
}

// through reserves places for a host at relays, and returns it as the host of a thing that is reached through them.
func through(t testing.TB, hidden host.Host, relays ...host.Host) td.Host {
	t.Helper()
	node, err := did.FromPeer([]byte(hidden.ID()))
	if err != nil {
		t.Fatal(err)
	}
	where := td.Host{Node: node}
	for _, r := range relays {
		if _, err := client.Reserve(t.Context(), hidden, peer.AddrInfo{ID: r.ID(), Addrs: r.Addrs()}); err != nil {
			t.Fatal(err)
		}
		where.Addrs = append(where.Addrs, fmt.Sprintf("%s/p2p/%s/p2p-circuit", r.Addrs()[0], r.ID()))
	}
	return where
}

// A relayedPair is a calling node and one that it reaches through relays.
type relayedPair struct {
	*pair
	where td.Host
}

// soon are options with short waits for direct connections.
var soon = Options{DirectWait: 50 * time.Millisecond}

func newRelayedPair(t testing.TB, local interact.Thing, relays ...host.Host) *relayedPair {
	t.Helper()
	p := &pair{callerHost: newBehind(t), serverHost: newBehind(t)}
	p.caller, p.server = newBinding(t, p.callerHost, soon), newBinding(t, p.serverHost, soon)
	p.server.Serve(local)
	where := through(t, p.serverHost, relays...)
	p.thing = p.caller.at([]td.Host{where})
	return &relayedPair{p, where}
}

// relaysInUse returns the relays of the open circuits of the calling node.
func (p *relayedPair) relaysInUse() map[peer.ID]int {
	all := map[peer.ID]int{}
	for _, c := range p.callerHost.Network().ConnsToPeer(p.serverHost.ID()) {
		if m := relay.MeterOf(c); m != nil && !c.IsClosed() {
			all[m.Relay()]++
		}
	}
	return all
}

// Actions of more data than the limit of a circuit succeed: each of them would fail if the relay had cut its connection.
func TestCallsMoveToNewCircuits(t *testing.T) {
	t.Parallel()
	p := newRelayedPair(t, answering, newRelay(t, 256<<10, time.Hour))
	const calls, size = 64, 16 << 10
	for i := range calls {
		if r, err := interact.Call(t.Context(), p.thing, ask("echo", string(bytes.Repeat([]byte{'a'}, size)))); err != nil {
			t.Fatalf("call %d: %v, %v", i, r, err)
		}
	}
	if n := len(p.callerHost.Network().ConnsToPeer(p.serverHost.ID())); n < 2 {
		t.Errorf("%d circuits carried %d KiB", n, calls*size>>10)
	}
}

// What is too large for the limits of the only relay is refused with them, and the host stays reachable for calls.
func TestTooLargeForARelay(t *testing.T) {
	t.Parallel()
	p := newRelayedPair(t, ticking(nil), newRelay(t, 128<<10, 2*time.Minute))
	for name, m := range map[string]*interact.Message{
		"a subscription":   subscribe("e"),
		"a large request":  ask("echo", string(make([]byte, inline+1))),
		"a request stream": streamed(func(func([]byte, error) bool) {}),
	} {
		_, err := interact.Call(t.Context(), p.thing, m)
		e := interact.AsError(err)
		if e == nil || e.Code != interact.RelayLimited || e.Started || !bytes.Contains([]byte(e.Hint), []byte("128 KiB in each direction and 2m0s")) {
			t.Errorf("%s: got %v, want RelayLimited with the limit", name, err)
		}
		if _, err := interact.Call(t.Context(), p.thing, ask("echo", "x")); err != nil {
			t.Errorf("a call after %s: %v", name, err)
		}
	}
}

// An answer that is larger than what is left is refused before the relay cuts it.
func TestAnswerTooLargeForARelay(t *testing.T) {
	t.Parallel()
	p := newRelayedPair(t, interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
		return done(m, string(make([]byte, 200<<10))), nil
	}), newRelay(t, 128<<10, 2*time.Minute))
	_, err := interact.Call(t.Context(), p.thing, ask("echo", "x"))
	if e := interact.AsError(err); e == nil || e.Code != interact.RelayLimited || !e.Started || !e.Remote {
		t.Errorf("got %v, want RelayLimited of the host, which may have carried it out", err)
	}
}

// An interaction that is too large for one relay of a host uses another one that grants more.
func TestRelayThatGrantsMore(t *testing.T) {
	t.Parallel()
	low, high := newRelay(t, 128<<10, 2*time.Minute), newRelay(t, 64<<20, 30*time.Minute)
	p := newRelayedPair(t, ticking(nil), low)
	if _, err := interact.Call(t.Context(), p.thing, ask("echo", "x")); err != nil {
		t.Fatal(err)
	}
	both := p.caller.at([]td.Host{through(t, p.serverHost, low, high)})
	p.callerHost.Peerstore().AddAddrs(p.serverHost.ID(), multiaddrs(through(t, p.serverHost, high).Addrs), time.Hour)
	for r, err := range both.Do(t.Context(), subscribe("e")) {
		if err != nil || string(r.Data) != "e" {
			t.Fatalf("got %v, %v", r, err)
		}
		break
	}
	if in := p.relaysInUse(); in[low.ID()] != 0 || in[high.ID()] != 1 {
		t.Errorf("the circuits are %v", in)
	}
}

// If all relays of a host have failed lately, the last one is dialed again.
func TestTheLastRelayIsNotAvoided(t *testing.T) {
	t.Parallel()
	p := newRelayedPair(t, answering, newRelay(t, 64<<20, 30*time.Minute), newRelay(t, 64<<20, 30*time.Minute))
	for range 4 {
		if _, err := interact.Call(t.Context(), p.thing, ask("echo", "x")); err != nil {
			t.Fatal(err)
		}
		p.caller.mu.Lock()
		r := p.caller.remotes[p.where.Node]
		p.caller.mu.Unlock()
		r.mu.Lock()
		sessions := slices.Collect(maps.Keys(r.sessions))
		r.mu.Unlock()
		p.callerHost.Peerstore().AddAddrs(p.serverHost.ID(), multiaddrs(p.where.Addrs), time.Hour) // identify has removed them
		r.avoidRelays(sessions)
		avoided := 0
		for _, a := range multiaddrs(p.where.Addrs) {
			if len(sessions) == 0 || sessions[0].meter == nil {
				t.Fatal("the session is not relayed")
			}
			if sessions[0].meter.Avoids(r.id, a) {
				avoided++
			}
		}
		if avoided != 1 {
			t.Errorf("%d of %d relays are avoided", avoided, len(p.where.Addrs))
		}
		_ = p.callerHost.Network().ClosePeer(p.serverHost.ID())
		until(t, "the end of the sessions", func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return len(r.sessions) == 0
		})
	}
}

// A numbered is a thing whose events have numbers as their IDs. It goes on after the last one that a consumer names, with a pause between two.
type numbered struct {
	size  int
	pause time.Duration
	begun atomic.Int32 // subscriptions
}

func (n *numbered) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	if !m.Type.Long() {
		return answering(ctx, m)
	}
	n.begun.Add(1)
	return func(yield func(*interact.Message, error) bool) {
		at, _ := strconv.Atoi(m.After)
		for {
			at++
			r := m.Reply(interact.Event, "", make([]byte, n.size))
			r.ID = strconv.Itoa(at)
			if !yield(r, nil) {
				return
			}
			select {
			case <-time.After(n.pause):
			case <-ctx.Done():
				yield(nil, ctx.Err())
				return
			}
		}
	}
}

// count receives events until stop is true, and reports those that are missing or repeated.
func count(t *testing.T, thing interact.Thing, stop func(n int) bool) error {
	t.Helper()
	n := 0
	for r, err := range thing.Do(t.Context(), subscribe("e")) {
		if err != nil {
			return err
		}
		if n++; r.ID != strconv.Itoa(n) {
			t.Errorf("event %d is %q", n, r.ID)
			return nil
		}
		if stop(n) {
			return nil
		}
	}
	return nil
}

// A subscription of more data than the limit of a circuit moves to others, without a gap.
func TestSubscriptionMovesBeforeTheLimit(t *testing.T) {
	t.Parallel()
	n := &numbered{size: 4 << 10}
	p := newRelayedPair(t, n, newRelay(t, 1<<20, time.Hour))
	if err := count(t, p.thing, func(n int) bool { return n == 1000 }); err != nil {
		t.Fatal(err)
	}
	if got := n.begun.Load(); got < 4 {
		t.Errorf("4 MB of events needed %d subscriptions", got)
	}
}

// A subscription moves before the time of its circuit ends.
func TestSubscriptionMovesBeforeTheTime(t *testing.T) {
	t.Parallel()
	n := &numbered{size: 1, pause: 5 * time.Millisecond}
	p := newRelayedPair(t, n, newRelay(t, 64<<20, 2*time.Second))
	if err := count(t, p.thing, func(int) bool { return n.begun.Load() == 3 }); err != nil {
		t.Fatal(err)
	}
}

// A stream that cannot move ends with the reason before the relay cuts it.
func TestStreamEndsBeforeTheLimit(t *testing.T) {
	t.Parallel()
	p := newRelayedPair(t, interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			for yield(part(m, make([]byte, 32<<10)), nil) {
			}
		}
	}), newRelay(t, 16<<20, time.Hour))
	m := ask("sound", "")
	m.Accept = "audio/opus"
	got := 0
	var last error
	for r, err := range p.thing.Do(t.Context(), m) {
		if last = err; err == nil {
			got += len(r.Data)
		}
	}
	e := interact.AsError(last)
	if e == nil || e.Code != interact.RelayLimited || !e.Started || got < 12<<20 || got > 16<<20 {
		t.Errorf("after %d KiB: %v, want RelayLimited", got>>10, last)
	}
}

// A subscription moves to a direct connection, and new calls use that at once.
func TestDirectConnectionTakesOver(t *testing.T) {
	t.Parallel()
	n := &numbered{size: 1, pause: 5 * time.Millisecond}
	through := newRelay(t, 64<<20, time.Hour)
	p := newRelayedPair(t, n, through)
	first, called, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- count(t, p.thing, func(at int) bool {
			if at == 1 {
				close(first)
			}
			select {
			case <-called:
				return n.begun.Load() == 2
			default:
				return false
			}
		})
	}()
	<-first
	path := func() string {
		m := ask("echo", "x")
		m.Timing = &interact.Timing{}
		r, err := interact.Call(t.Context(), p.thing, m)
		if err != nil {
			t.Fatal(err)
		}
		return r.Timing.Path
	}
	if want := "mesh relay " + at(t, through).Node.Short(); path() != want {
		t.Errorf("the path is %q, want %q", path(), want)
	}
	if err := p.serverHost.Network().Listen(multiaddr.StringCast(transports["tcp"])); err != nil {
		t.Fatal(err)
	}
	if err := p.callerHost.Connect(network.WithForceDirectDial(t.Context(), "test"), peer.AddrInfo{ID: p.serverHost.ID(), Addrs: p.serverHost.Addrs()}); err != nil {
		t.Fatal(err)
	}
	until(t, "the move", func() bool { return n.begun.Load() == 2 })
	if got := path(); !strings.HasPrefix(got, "mesh tcp direct after ") {
		t.Errorf("the path is %q", got)
	}
	close(called)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	p.caller.sweep(time.Now())
	until(t, "no stream on the circuit", func() bool {
		for _, c := range p.callerHost.Network().ConnsToPeer(p.serverHost.ID()) {
			if isRelayed(c) && len(c.GetStreams()) > 0 {
				return false
			}
		}
		return true
	})
}

// A relay ends: reads, what is idempotent or has a key, and subscriptions go on through the other one. Another action that may have begun says so.
func TestRelayEnds(t *testing.T) {
	t.Parallel()
	one, two := newRelay(t, 64<<20, time.Hour), newRelay(t, 64<<20, time.Hour)
	n := &numbered{size: 1, pause: 5 * time.Millisecond}
	began := make(chan struct{}, 1)
	p := newRelayedPair(t, interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		if !strings.HasPrefix(m.Name, "slow") {
			return n.Do(ctx, m)
		}
		return func(yield func(*interact.Message, error) bool) {
			select {
			case began <- struct{}{}:
				<-ctx.Done()
			default: // the second time
				yield(done(m, "x"), nil)
			}
		}
	}), one)
	first, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- count(t, p.thing, func(at int) bool {
			if at == 1 {
				close(first)
			}
			return n.begun.Load() == 2
		})
	}()
	<-first
	if in := p.relaysInUse(); in[one.ID()] != 1 {
		t.Fatalf("the circuits are %v", in)
	}
	p.callerHost.Peerstore().AddAddrs(p.serverHost.ID(), multiaddrs(through(t, p.serverHost, two).Addrs), time.Hour)
	send := func(m *interact.Message) chan error {
		ended := make(chan error, 1)
		go func() {
			_, err := interact.Call(t.Context(), p.thing, m)
			ended <- err
		}()
		<-began
		return ended
	}
	action, read := ask("slow", ""), ask("slow", "")
	read.Type = interact.ReadProperty
	keyed := ask("slow", "")
	keyed.Key = "k"
	actionEnded, readEnded, keyedEnded, idempotentEnded := send(action), send(read), send(keyed), send(ask("slow idempotent", ""))
	began <- struct{}{} // nothing waits any more
	_ = one.Close()
	if e := interact.AsError(<-actionEnded); e == nil || e.Code != interact.Unreachable || !e.Started {
		t.Errorf("an action of a relay that ended: %v", e)
	}
	for what, err := range map[string]error{"a read": <-readEnded, "an action with a key": <-keyedEnded, "an idempotent action": <-idempotentEnded, "a subscription": <-ended} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := interact.Call(t.Context(), p.thing, ask("echo", "x")); err != nil {
		t.Error(err)
	}
	if in := p.relaysInUse(); in[two.ID()] != 1 || in[one.ID()] != 0 {
		t.Errorf("the circuits are %v", in)
	}
}

// A tap is one end of a circuit at a relay that does more than to relay: what it reads is from the calling node.
type tap struct {
	network.Stream
	read, written func([]byte) []byte // replace what passes; nil passes it
	left          []byte
	stop          func() error // ends or delays a read; nil does not
}

// Read implements [network.Stream].
func (t *tap) Read(b []byte) (int, error) {
	if t.stop != nil {
		if err := t.stop(); err != nil {
			return 0, err
		}
	}
	if len(t.left) == 0 {
		n, err := t.Stream.Read(b[:min(len(b), 1024)])
		if err != nil {
			return n, err
		}
		if t.read == nil {
			return n, nil
		}
		t.left = t.read(bytes.Clone(b[:n]))
	}
	n := copy(b, t.left)
	t.left = t.left[n:]
	return n, nil
}

// Write implements [network.Stream].
func (t *tap) Write(b []byte) (int, error) {
	sent := b
	if t.written != nil {
		sent = t.written(bytes.Clone(b))
	}
	if _, err := t.Stream.Write(sent); err != nil {
		return 0, err
	}
	return len(b), nil
}

// newTapped returns a relay that taps each request for a circuit.
func newTapped(t *testing.T, wrap func(*tap)) host.Host {
	t.Helper()
	return newTappedWith(t, 64<<20, wrap, nil)
}

// newTappedWith has a limit of data, and taps the streams to the called nodes, too, if stop is not nil.
func newTappedWith(t *testing.T, data int64, wrap, stop func(*tap)) host.Host {
	t.Helper()
	h := newHost(t, "tcp", libp2p.DisableRelay(), libp2p.ResourceManager(&network.NullResourceManager{}))
	captured := &hopOf{Host: h, stop: stop}
	r, err := library.New(captured, library.WithLimit(&library.RelayLimit{Data: data, Duration: time.Hour}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	h.SetStreamHandler(circuit.ProtoIDv2Hop, func(s network.Stream) {
		tapped := &tap{Stream: s}
		wrap(tapped)
		captured.serve(tapped)
	})
	return h
}

type hopOf struct {
	host.Host
	serve network.StreamHandler
	stop  func(*tap)
}

// NewStream implements [host.Host].
func (h *hopOf) NewStream(ctx context.Context, id peer.ID, ids ...protocol.ID) (network.Stream, error) {
	s, err := h.Host.NewStream(ctx, id, ids...)
	if err != nil || h.stop == nil {
		return s, err
	}
	tapped := &tap{Stream: s}
	h.stop(tapped)
	return tapped, nil
}

func (h *hopOf) SetStreamHandler(_ protocol.ID, f network.StreamHandler) { h.serve = f }
func (h *hopOf) RemoveStreamHandler(protocol.ID)                         {}

// A relay that records all that it relays sees nothing of the calls: not what is called, by which name, nor with what.
func TestRelaySeesNoMarkers(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var seen []byte
	record := func(b []byte) []byte {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, b...)
		return b
	}
	arrived := map[string]bool{}
	p := newRelayedPair(t, interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
		mu.Lock()
		defer mu.Unlock()
		arrived[m.Thing], arrived[m.Name], arrived[string(m.Data)] = true, true, true
		return done(m, string(m.Data)), nil
	}), newTapped(t, func(s *tap) { s.read, s.written = record, record }))
	var markers []string
	for len(markers) < 1000 {
		m := ask(rand.Text(), rand.Text())
		m.Thing = "urn:x:" + rand.Text()
		if r, err := interact.Call(t.Context(), p.thing, m); err != nil || string(r.Data) != string(m.Data) {
			t.Fatalf("got %v, %v", r, err)
		}
		markers = append(markers, m.Thing, m.Name, string(m.Data))
	}
	mu.Lock()
	defer mu.Unlock()
	if len(seen) < 30*len(markers) || !bytes.Contains(seen, []byte("/multistream/1.0.0")) {
		t.Fatalf("the relay has recorded %d bytes", len(seen))
	}
	for _, m := range markers {
		if !arrived[m] {
			t.Fatalf("the marker %q did not arrive", m)
		}
		if bytes.Contains(seen, []byte(strings.TrimPrefix(m, "urn:x:"))) {
			t.Errorf("the relay has seen %q", m)
		}
	}
}

// A relay that stalls, cuts, replays or reorders harms nothing but the connections through it: a call fails with a code that can be retried, and goes
// through the other relay.
func TestHostileRelays(t *testing.T) {
	t.Parallel()
	const first, later = 200, 12 << 10 // in the handshake, and in calls
	for name, c := range map[string]struct {
		after int
		do    func(s *tap)
	}{
		"cuts in the handshake":     {first, func(s *tap) { s.stop = func() error { return network.ErrReset } }},
		"stalls in the handshake":   {first, stall},
		"replays in the handshake":  {first, func(s *tap) { s.read = func(b []byte) []byte { return append(b, b...) } }},
		"reorders in the handshake": {first, func(s *tap) { s.read = reversed }},
		"cuts later":                {later, func(s *tap) { s.stop = func() error { return network.ErrReset } }},
		"stalls later":              {later, stall},
		"replays later":             {later, func(s *tap) { s.read = func(b []byte) []byte { return append(b, b...) } }},
		"reorders later":            {later, func(s *tap) { s.read = reversed }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var bad atomic.Bool
			hostile := newTapped(t, func(s *tap) {
				n := 0
				if bad.Load() { // it stays hostile: the next circuit through it fails at once
					n = c.after
				}
				s.read = func(b []byte) []byte {
					if n += len(b); n > c.after {
						bad.Store(true)
						s.read = nil
						c.do(s)
						if s.read != nil {
							return s.read(b)
						}
					}
					return b
				}
			})
			honest := newRelay(t, 64<<20, time.Hour)
			var ran sync.Map
			p := newRelayedPair(t, interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
				if _, again := ran.LoadOrStore(m.Name, true); again {
					t.Errorf("the action %s ran twice", m.Name)
				}
				return done(m, string(m.Data)), nil
			}), hostile)
			both := append(through(t, p.serverHost, honest).Addrs, p.where.Addrs...)
			for i := 0; ; i++ {
				m := ask(strconv.Itoa(i), strings.Repeat("x", 4<<10))
				r, err := interact.Call(t.Context(), p.thing, m)
				if e := interact.AsError(err); err != nil && !e.Code.Retryable() || err == nil && !bytes.Equal(r.Data, m.Data) {
					t.Fatalf("call %d: %v, %v", i, r, err)
				}
				if bad.Load() {
					if p.callerHost.Peerstore().AddAddrs(p.serverHost.ID(), multiaddrs(both), time.Hour); err == nil && p.relaysInUse()[honest.ID()] > 0 {
						break
					}
				}
				if i > 30 {
					t.Fatalf("the last error is %v, the circuits are %v", err, p.relaysInUse())
				}
			}
		})
	}
}

func stall(s *tap) {
	s.stop = func() error {
		for {
			if _, err := s.Stream.Read(make([]byte, 1024)); err != nil {
				return err
			}
		}
	}
}

func reversed(b []byte) []byte { return slices.Concat(b[len(b)/2:], b[:len(b)/2]) }

// overstated returns a tap that replaces the limit in the first message of a relay, which limit points to, by 1 GiB.
func overstated(t *testing.T, m proto.Message, limit **pb.Limit) func(*tap) {
	return func(s *tap) {
		var raw []byte
		s.written = func(part []byte) []byte {
			raw = append(raw, part...)
			in := util.NewDelimitedReader(bytes.NewReader(raw), 4096)
			defer in.Close()
			if err := in.ReadMsg(m); err != nil {
				return nil // the next part completes it
			}
			s.written = nil
			data, length := uint64(1<<30), uint32(3600)
			*limit = &pb.Limit{Data: &data, Duration: &length}
			var out bytes.Buffer
			if err := util.NewDelimitedWriter(&out).WriteMsg(m); err != nil {
				t.Error(err)
			}
			return out.Bytes()
		}
	}
}

// A relay states 1 GiB to both ends, and cuts after 64 KiB. A subscription goes on through the other relay and misses nothing.
func TestRelayThatStatesTooMuch(t *testing.T) {
	t.Parallel()
	lies := newTappedWith(t, 64<<10, func(s *tap) {
		m := &pb.HopMessage{}
		overstated(t, m, &m.Limit)(s)
	}, func(s *tap) {
		m := &pb.StopMessage{}
		overstated(t, m, &m.Limit)(s)
	})
	n := &numbered{size: 1 << 10, pause: time.Millisecond}
	p := newRelayedPair(t, n, lies)
	first, known := make(chan struct{}), make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- count(t, p.thing, func(at int) bool {
			if at == 1 {
				close(first)
				<-known
			}
			return at == 200
		})
	}()
	<-first
	if data, _ := p.circuit(t).Limits(); data != 1<<30 {
		t.Errorf("the relay states %d bytes", data)
	}
	p.callerHost.Peerstore().AddAddrs(p.serverHost.ID(), multiaddrs(through(t, p.serverHost, newRelay(t, 64<<20, time.Hour)).Addrs), time.Hour)
	close(known)
	if err := <-ended; err != nil || n.begun.Load() < 2 {
		t.Errorf("after %d subscriptions: %v", n.begun.Load(), err)
	}
	if in := p.relaysInUse(); in[lies.ID()] != 0 {
		t.Errorf("the circuits are %v", in)
	}
}

// circuit returns the only circuit of the calling node.
func (p *relayedPair) circuit(t *testing.T) *relay.Meter {
	t.Helper()
	for _, c := range p.callerHost.Network().ConnsToPeer(p.serverHost.ID()) {
		if m := relay.MeterOf(c); m != nil {
			return m
		}
	}
	t.Fatal("there is no circuit")
	return nil
}

// A relay loses its power. QUIC would notice after half a minute; a read goes on through the other relay after a probe.
func TestSilentRelayIsLeft(t *testing.T) {
	t.Parallel()
	relays := [2]host.Host{}
	for i := range relays {
		relays[i] = newHost(t, "quic", libp2p.DisableRelay(), libp2p.ResourceManager(&network.NullResourceManager{}))
		r, err := library.New(relays[i], library.WithLimit(&library.RelayLimit{Data: 64 << 20, Duration: time.Hour}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
	}
	cord, near := newWire(t, quicAddr(t, relays[0]))
	began := make(chan struct{}, 1)
	p := &relayedPair{pair: &pair{callerHost: newBehind(t), serverHost: newBehind(t)}}
	p.caller = newBinding(t, p.callerHost, Options{DirectWait: soon.DirectWait, ProbeAfter: 500 * time.Millisecond, ProbeTimeout: 500 * time.Millisecond})
	p.server = newBinding(t, p.serverHost, soon)
	p.server.Serve(interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			select {
			case began <- struct{}{}:
				<-ctx.Done()
			default: // the second time
				yield(done(m, "x"), nil)
			}
		}
	}))
	where := through(t, p.serverHost, relays[0])
	where.Addrs = []string{fmt.Sprintf("%s/p2p/%s/p2p-circuit", near, relays[0].ID())}
	thing, other := p.caller.at([]td.Host{where}), through(t, p.serverHost, relays[1])
	read := make(chan error, 1)
	go func() {
		m := ask("slow", "")
		m.Type = interact.ReadProperty
		_, err := interact.Call(t.Context(), thing, m)
		read <- err
	}()
	until(t, "the read", func() bool { return len(began) == 1 })
	cord.sever() // before the first probe
	p.callerHost.Peerstore().AddAddrs(p.serverHost.ID(), multiaddrs(other.Addrs), time.Hour)
	if err := <-read; err != nil {
		t.Error(err)
	}
	if in := p.relaysInUse(); in[relays[1].ID()] != 1 || in[relays[0].ID()] != 0 {
		t.Errorf("the circuits are %v", in)
	}
	if p.callerHost.Network().Connectedness(relays[0].ID()) == network.Connected {
		t.Error("the silent relay is connected")
	}
}

// A node behind a relay that is known to answer quickly has less time for a probe than one that is not, and than one with a direct connection.
func TestProbesOfNodesBehindRelays(t *testing.T) {
	t.Parallel()
	echo := interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) { yield(done(m, "x"), nil) }
	})
	near := newRelayedPair(t, echo, newRelay(t, 64<<20, time.Hour))
	near.caller.o.ProbeTimeout = time.Hour // nothing probes yet; a quarter of 0.7 of it is longer than any call of this test
	call := func(p *pair, thing interact.Thing) *remote {
		if _, err := interact.Call(t.Context(), thing, ask("echo", "")); err != nil {
			t.Fatal(err)
		}
		node, err := did.FromPeer([]byte(p.serverHost.ID()))
		if err != nil {
			t.Fatal(err)
		}
		r, err := p.caller.remote(node)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.users.Add(-1) })
		return r
	}
	r := call(near.pair, near.thing)
	if got := r.probeTimeout(); got != 42*time.Minute {
		t.Errorf("behind a relay: got %v, want seven tenths", got)
	}
	near.caller.o.ProbeTimeout = time.Nanosecond
	if got := r.probeTimeout(); got != time.Nanosecond {
		t.Errorf("a node that is not that quick: got %v, want the whole time", got)
	}
	direct := newPair(t, "tcp", echo, Options{ProbeTimeout: time.Hour}, Options{})
	if got := call(direct, direct.thing).probeTimeout(); got != time.Hour {
		t.Errorf("over a direct connection: got %v, want the whole time", got)
	}
	o := &Options{ProbeAfter: 700 * time.Millisecond}
	if a, b := o.probeAfter(true), o.probeAfter(false); a != 400*time.Millisecond || b != o.ProbeAfter {
		t.Errorf("probes after %v and %v", a, b)
	}
}
