package coap

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/messaging"
)

// A radio is a mesh that delivers readings and events to all observers.
type radio struct {
	listening, listened atomic.Int32
	send                chan *interact.Message
	end                 chan error
}

func newRadio() *radio { return &radio{send: make(chan *interact.Message), end: make(chan error)} }

func (r *radio) mesh(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
	if !m.Type.Long() {
		yield(m.Reply(interact.PropertyReading, "", []byte("0")), nil)
		return
	}
	r.listening.Add(1)
	r.listened.Add(1)
	defer r.listening.Add(-1)
	for {
		select {
		case x := <-r.send:
			if !yield(x, nil) {
				return
			}
		case err := <-r.end:
			yield(nil, err)
			return
		case <-ctx.Done():
			yield(nil, ctx.Err())
			return
		}
	}
}

// tell delivers a reading or event.
func (r *radio) tell(name, data string) {
	r.send <- &interact.Message{Type: interact.PropertyReading, Name: name, Data: []byte(data)}
}

// hear returns and acknowledges the new notifications of an observer, until there are no more.
func (b *bench) hear(who netip.AddrPort, acknowledge bool) (said []string) {
	b.t.Helper()
	for {
		synctest.Wait()
		all := b.taken(who)
		if len(all) == 0 {
			return said
		}
		for _, p := range all {
			seq, observed := p.Uint(message.Observe)
			text := told(p)
			if observed {
				text = fmt.Sprintf("%d: %s", seq, text)
			}
			said = append(said, text)
			if acknowledge && p.Kind == message.Confirmable {
				b.post(who, &messaging.Packet{Kind: message.Acknowledgement, Mid: p.Mid})
			}
		}
	}
}

// observers is how many there are.
func (b *bench) observers() int {
	w := &b.server.watches
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.observers)
}

func (b *bench) register(who netip.AddrPort, path string, more ...func(*messaging.Packet)) *messaging.Packet {
	q := b.request(codes.GET, path, append(more, option(message.Observe, 0))...)
	b.post(who, q)
	return q
}

func equal(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func peerN(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}), 1)
}

// TestObserversShareASource: two of one property and one of it as CBOR need one observation of the mesh, which ends with the
// last.
func TestObserversShareASource(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRadio()
		b := newBench(t, ServerOptions{Mesh: fakeMesh(r.mesh)}, describe(t, "", serveTD))
		defer b.end()
		first := b.register(peerN(1), at+"/properties/p")
		b.register(peerN(2), at+"/properties/p")
		b.register(peerN(3), at+"/properties/p", option(message.Accept, 60))
		for n := 1; n <= 2; n++ {
			equal(t, "the first answer", b.hear(peerN(n), true), "1: 2.05 [50] 0")
		}
		equal(t, "the first answer", b.hear(peerN(3), true), "1: 2.05 [60] \x00")
		if r.listening.Load() != 1 {
			t.Fatalf("the mesh is observed %d times", r.listening.Load())
		}
		r.tell("p", "7")
		equal(t, "a change", b.hear(peerN(1), true), "2: 2.05 [50] 7")
		equal(t, "a change", b.hear(peerN(2), true), "2: 2.05 [50] 7")
		equal(t, "a change", b.hear(peerN(3), true), "2: 2.05 [60] \x07")

		leave := b.request(codes.GET, at+"/properties/p", option(message.Observe, 1))
		leave.Token = first.Token
		b.post(peerN(1), leave)
		equal(t, "one that leaves gets the value", b.hear(peerN(1), true), "2.05 [50] 0")
		r.tell("p", "8")
		equal(t, "the one that left", b.hear(peerN(1), true))
		synctest.Wait()
		last := b.taken(peerN(2))
		b.post(peerN(2), &messaging.Packet{Kind: message.Reset, Mid: last[0].Mid}) // leaves too (RFC 7641 §3.6)
		b.hear(peerN(3), true)
		r.tell("p", "9")
		equal(t, "the one that rejected", b.hear(peerN(2), true))
		equal(t, "the remaining one", b.hear(peerN(3), true), "4: 2.05 [60] \x09")
		r.tell("p", "10")
		synctest.Wait() // this is not acknowledged
		time.Sleep(2 * time.Minute)
		if got := len(b.taken(peerN(3))); got != 5 || r.listening.Load() != 0 {
			t.Errorf("a notification was sent %d times; the mesh is observed %d times", got, r.listening.Load())
		}
	})
}

func TestEventsAreReceived(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRadio()
		b := newBench(t, ServerOptions{Mesh: fakeMesh(r.mesh)}, describe(t, "", serveTD))
		defer b.end()
		rounds := int32(0)
		for _, tt := range []struct{ path, first, want string }{
			{"/events/e", "1: 2.05", `2: 2.05 [50] {"n":1}`},
			{"/events", "1: 2.05", `2: 2.05 [50] {"e":{"n":1}}`},
			{"/properties", "1: 2.05 [50] 0", `2: 2.05 [50] {"e":{"n":1}}`},
			{"/properties/still", "2.05 [50] 0", ""}, // not observable: the option is passed over
		} {
			q := b.register(me, at+tt.path)
			equal(t, tt.path, b.hear(me, true), tt.first)
			if tt.want == "" {
				continue
			}
			rounds++
			for range 2 { // each counts
				r.tell("e", `{"n":1}`)
			}
			equal(t, tt.path, b.hear(me, true), tt.want, strings.Replace(tt.want, "2:", "3:", 1))
			// With the same token it is the same observation, which nothing interrupts.
			q.Mid += 10000
			b.post(me, q)
			equal(t, tt.path, b.hear(me, true), strings.Replace(tt.first, "1:", "4:", 1))
			if b.observers() != 1 || r.listened.Load() != rounds {
				t.Errorf("%s: %d observers, the mesh was observed %d times", tt.path, b.observers(), r.listened.Load())
			}
			leave := b.request(codes.GET, at+tt.path, option(message.Observe, 1))
			leave.Token = q.Token
			b.post(me, leave)
			if b.hear(me, true); r.listening.Load() != 0 {
				t.Errorf("%s: the mesh is still observed", tt.path)
			}
		}
	})
}

func TestEndsOfSources(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRadio()
		b := newBench(t, ServerOptions{Mesh: fakeMesh(r.mesh)}, describe(t, "", serveTD))
		defer b.end()
		b.register(me, at+"/events/e")
		b.hear(me, true)
		r.end <- interact.Errorf(interact.Forbidden, "ask the owner", "rule 7 refused")
		equal(t, "the end", b.hear(me, true), "4.03 LMOS-1403 rule 7 refused (ask the owner)")
		if b.observers() != 0 {
			t.Error("the observer is still there")
		}
		b.register(me, at+"/events/e")
		equal(t, "again", b.hear(me, true), "1: 2.05")
		if r.listened.Load() != 2 {
			t.Errorf("the mesh was observed %d times", r.listened.Load())
		}
		b.cancel()
		synctest.Wait()
		equal(t, "the server leaves", b.hear(me, false), "5.03 LMOS-3030 the server is shutting down (observe again later)")
	})
}

// TestSlowObservers: one that is slow gets the newest value of a property, and of events an end when it is too far maxBehind.
// Neither holds up another.
func TestSlowObservers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRadio()
		b := newBench(t, ServerOptions{Mesh: fakeMesh(r.mesh)}, describe(t, "", serveTD))
		defer b.end()
		q := b.register(me, at+"/properties/p")
		b.hear(me, true)
		for n := 1; n <= 100; n++ {
			r.tell("p", fmt.Sprint(n))
			synctest.Wait()
		}
		equal(t, "readings", b.hear(me, true), "2: 2.05 [50] 1", "3: 2.05 [50] 100")
		b.server.watches.leave(observerKey{me, q.Token})

		slow, quick := peerN(1), peerN(2)
		b.register(slow, at+"/events/e")
		b.register(quick, at+"/events/e")
		b.hear(slow, true)
		b.hear(quick, true)
		r.tell("e", "0")
		synctest.Wait()
		waiting := b.taken(slow)
		received := len(b.hear(quick, true))
		for n := 1; n <= maxBehind+1; n++ {
			r.tell("e", fmt.Sprint(n))
			received += len(b.hear(quick, true))
		}
		if received != maxBehind+2 {
			t.Errorf("the quick one received %d events", received)
		}
		b.post(slow, &messaging.Packet{Kind: message.Acknowledgement, Mid: waiting[0].Mid})
		got := b.hear(slow, true)
		if len(got) != maxBehind+1 || !strings.HasPrefix(got[maxBehind], "5.03 LMOS-1529") {
			t.Errorf("the slow one received %q", got)
		}

		large := peerN(3) // a few events may be as much as many
		b.register(large, at+"/events/e")
		b.hear(large, true)
		for range 4 {
			r.tell("e", big(maxBehindBytes/2))
			synctest.Wait()
			b.hear(quick, true)
		}
		b.server.watches.mu.Lock()
		defer b.server.watches.mu.Unlock()
		for _, o := range b.server.watches.observers {
			if waits := o.waitingLocked(); o.remote.Addr == large && (waits > maxBehindBytes || o.end == nil) {
				t.Errorf("%d bytes wait for one that does not acknowledge, and its end is %v", waits, o.end)
			}
		}
	})
}

// TestTooManyObservers: observers above the limit get only the value, or an error if there is no value. One host may have half.
func TestTooManyObservers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRadio()
		b := newBench(t, ServerOptions{Mesh: fakeMesh(r.mesh), MaxObservers: 10}, describe(t, "", serveTD))
		defer b.end()
		for n := range 20 {
			b.register(me, at+"/properties/p")
			want := "1: 2.05 [50] 0"
			if n >= 5 {
				want = "2.05 [50] 0"
			}
			equal(t, fmt.Sprint("observer ", n), b.hear(me, true), want)
		}
		for n := range 10 {
			b.register(peerN(n), at+"/events/e")
			got := b.hear(peerN(n), true)
			if ok := len(got) == 1 && got[0] == "1: 2.05"; ok != (n < 5) {
				t.Errorf("observer %d of another host: %q", n, got)
			}
		}
	})
}

// TestDisconnectedObservers are detected without notifications.
func TestDisconnectedObservers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRadio()
		b := newBench(t, ServerOptions{Mesh: fakeMesh(r.mesh)}, describe(t, "", serveTD))
		defer b.end()
		gone, there := peerN(1), peerN(2)
		b.register(gone, at+"/events/e")
		b.register(there, at+"/events/e")
		b.hear(gone, true)
		b.hear(there, true)
		for range 3 {
			time.Sleep(5*time.Minute + time.Second)
			for _, p := range b.taken(there) { // the answer to a ping is a Reset
				if p.Code != codes.Empty {
					t.Errorf("received %+v", p)
				}
				b.post(there, &messaging.Packet{Kind: message.Reset, Mid: p.Mid})
			}
		}
		time.Sleep(2 * time.Minute)
		if n := b.observers(); n != 1 {
			t.Errorf("%d observers are left", n)
		}
		r.tell("e", "1")
		equal(t, "the connected one", b.hear(there, true), "2: 2.05 [50] 1")
	})
}

// TestLargeReadings begin with their first block, and the rest is of the same value.
func TestLargeReadings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRadio()
		b := newBench(t, ServerOptions{Mesh: fakeMesh(r.mesh)}, describe(t, "", serveTD))
		defer b.end()
		text := big(3000)
		b.register(me, at+"/properties/p")
		b.hear(me, true)
		r.tell("p", text)
		synctest.Wait()
		note := b.taken(me)[0]
		b.post(me, &messaging.Packet{Kind: message.Acknowledgement, Mid: note.Mid})
		is, _ := note.Block(message.Block2)
		tag, _ := note.Option(message.ETag)
		if !is.More || len(note.Payload) != 1024 {
			t.Fatalf("the notification has %d bytes, %+v", len(note.Payload), is)
		}
		got := string(note.Payload)
		for num := uint32(1); is.More; num++ {
			a := b.ask(b.request(codes.GET, at+"/properties/p", block(message.Block2, num, false, 6)))
			is, _ = a.Block(message.Block2)
			if other, _ := a.Option(message.ETag); string(other) != string(tag) {
				t.Fatal("another value")
			}
			got += string(a.Payload)
		}
		if got != text {
			t.Errorf("%d bytes of %d", len(got), len(text))
		}
	})
}

// TestRefusedRegistrationIsRemoved: the value cannot be read, or not in the type that is accepted.
func TestRefusedRegistrationIsRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRadio()
		fails := false
		mesh := func(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
			if fails && !m.Type.Long() {
				yield(nil, interact.Errorf(interact.Forbidden, "ask", "no"))
				return
			}
			r.mesh(ctx, m, yield)
		}
		b := newBench(t, ServerOptions{Mesh: fakeMesh(mesh)}, describe(t, "", serveTD))
		defer b.end()
		b.register(me, at+"/properties/p", option(message.Accept, 0))
		equal(t, "a type that it has not", b.hear(me, true), "4.06 it is application/json")
		b.register(me, at+"/properties/p", block(message.Block2, 9, false, 6))
		equal(t, "a block that it has not", b.hear(me, true), "4.00 the response has no such block")
		fails = true
		b.register(me, at+"/properties/p")
		equal(t, "no reading", b.hear(me, true), "4.03 LMOS-1403 no (ask)")
		if n := b.observers(); n != 0 || r.listening.Load() != 0 {
			t.Errorf("%d observers, the mesh is observed %d times", n, r.listening.Load())
		}
	})
}

// TestATokenThatIsUsedAgain for another resource observes that, and no longer the first (RFC 7641 §4.1).
func TestATokenThatIsUsedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRadio()
		b := newBench(t, ServerOptions{Mesh: fakeMesh(r.mesh), MaxBody: 2000}, describe(t, "", serveTD))
		defer b.end()
		q := b.register(me, at+"/events/e")
		b.hear(me, true)
		b.register(me, at+"/properties/p", func(p *messaging.Packet) { p.Token = q.Token })
		equal(t, "the first answer", b.hear(me, true), "1: 2.05 [50] 0")
		if r.listening.Load() != 1 || b.observers() != 1 {
			t.Errorf("the mesh is observed %d times by %d observers", r.listening.Load(), b.observers())
		}
		r.tell("p", "7")
		equal(t, "a change", b.hear(me, true), "2: 2.05 [50] 7")
		r.tell("p", big(3000))
		equal(t, "a value beyond the limit", b.hear(me, true), "4.13 LMOS-1413 the response is larger than 2000 bytes (request less)")
		if b.observers() != 0 {
			t.Error("an observer is left that was told an error")
		}
	})
}
