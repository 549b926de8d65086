package mqtt

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// feed returns a guard that reads raw and then the end.
func feed(t testing.TB, r rule, limit int, raw []byte) *guard {
	t.Helper()
	here, there := net.Pipe()
	var work sync.WaitGroup
	work.Go(func() {
		_, _ = there.Write(raw)
		there.Close()
	})
	t.Cleanup(func() {
		here.Close()
		work.Wait()
	})
	return newGuard(here, r, limit)
}

func packet(first byte, body string) []byte {
	return append(appendLength([]byte{first}, len(body)), body...)
}

func join(packets ...[]byte) []byte { return bytes.Join(packets, nil) }

var (
	connack5 = packet(0x20, "\x00\x00\x00")
	connack3 = packet(0x20, "\x00\x00")
	connect5 = packet(0x10, "\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00")
	connect3 = packet(0x10, "\x00\x04MQTT\x04\x02\x00\x3c\x00\x05first")
)

func TestGuardPassesOnWhatIsAllowed(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		rule rule
		raw  []byte
	}{
		{"a broker of 5", fromBroker, join(connack5, packet(0x30, "\x00\x01ax"), packet(0x90, "\x00\x01\x00\x00"), packet(0xd0, ""),
			packet(0xe0, ""))},
		{"a broker of 3.1.1", fromOldBroker, join(connack3, packet(0x32, "\x00\x01a\x00\x01x"), packet(0xd0, ""))},
		{"a client", fromConsumer, join(connect5, packet(0x82, "\x00\x01\x00\x00\x01a\x00"),
			packet(0x32, "\x00\x01a\x00\x01\x00\xff\xff\x7f"), packet(0xc0, ""))},
		{"a client of 3.1.1", fromConsumer, join(connect3, packet(0x30, "\x00\x01a\xff\xff\x7f"))},
	}
	for _, tt := range tests {
		got, err := io.ReadAll(feed(t, tt.rule, 1000, tt.raw))
		if err != nil || !bytes.Equal(got, tt.raw) {
			t.Errorf("%s: %x, %v", tt.name, got, err)
		}
	}
}

func TestGuardEndsWhatIsNot(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		rule rule
		raw  []byte
		want error
	}{
		{"HTTP", fromBroker, []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), errProtocol},
		{"nothing", fromBroker, nil, errSilent},
		{"a message before the CONNACK", fromBroker, packet(0x30, "\x00\x01a"), errProtocol},
		{"two CONNACKs", fromBroker, join(connack5, connack5), errProtocol},
		{"a request of authentication", fromBroker, join(connack5, packet(0xf0, "\x18\x00")), errProtocol},
		{"a CONNECT from a broker", fromBroker, join(connack5, packet(0x10, "")), errProtocol},
		{"QoS 3", fromBroker, join(connack5, packet(0x36, "\x00\x01a\x00\x01")), errProtocol},
		{"a length without end", fromBroker, join(connack5, []byte{0x30, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}), errProtocol},
		{"a message that is too large", fromBroker, join(connack5, []byte{0x30, 0xff, 0xff, 0xff, 0x7f}), errTooLarge},
		{"a SUBACK that is too large", fromBroker, join(connack5, []byte{0x90, 0xff, 0xff, 0x7f}), errTooLarge},
		{"two return codes for one filter", fromOldBroker, join(connack3, packet(0x90, "\x00\x01\x00\x00")), errProtocol},
		{"an acknowledgement of nothing", fromOldBroker, join(connack3, packet(0x40, "\x00\x01")), errProtocol},
		{"an AUTH in 3.1.1", fromOldBroker, join(connack3, packet(0xf0, "")), errProtocol},
		{"a client that begins with a message", fromConsumer, packet(0x30, "\x00\x01a"), errProtocol},
		{"properties that are too large", fromConsumer, join(connect5, packet(0x30, "\x00\x01a\xff\xff\x7f")), errTooLarge},
		{"the same of a broker", fromBroker, join(connack5, packet(0x32, "\x00\x01a\x00\x01\xff\xff\x7f")), errTooLarge},
		{"a topic that is too long", fromBroker, join(connack5, packet(0x30, "\x20\x00abcde")), errProtocol},
		{"a client with a long CONNECT", fromConsumer, []byte{0x10, 0xff, 0xff, 0x7f}, errTooLarge},
	}
	for _, tt := range tests {
		g := feed(t, tt.rule, 1000, tt.raw)
		_, err := io.ReadAll(g)
		if tt.want == errSilent { // io.ReadAll takes no other end for the end
			err = g.cause()
		}
		if !errors.Is(err, tt.want) || !errors.Is(g.cause(), tt.want) {
			t.Errorf("%s: %v, %v", tt.name, err, g.cause())
		}
	}
}

func TestGuardCutsWhatIsTooLarge(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 5000)
	raw := join(connack3, packet(0x31, "\x00\x01a"+large), packet(0x32, "\x00\x02bc\x00\x07"+large), packet(0x30, "\x00\x01ay"))
	g := feed(t, fromOldBroker, 1000, raw)
	got, err := io.ReadAll(g)
	want := join(connack3, packet(0x31, "\x00\x01a"), packet(0x32, "\x00\x02bc\x00\x07"), packet(0x30, "\x00\x01ay"))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %q, %v", got, err)
	}
	if !g.wasCut("a") || g.wasCut("a") || !g.wasCut("bc") || g.wasCut("other") {
		t.Error("what was cut is not known")
	}
	g = feed(t, fromOldBroker, 1000, join(connack3, packet(0x30, "\xff\xff"+large)))
	if _, err := io.ReadAll(g); !errors.Is(err, errProtocol) {
		t.Errorf("a topic longer than its packet: %v", err)
	}
}

func TestGuardKnowsWhatWasSent(t *testing.T) {
	t.Parallel()
	sent := join(packet(0x82, "\x00\x01\x00\x01a\x01"), packet(0xa2, "\x00\x02\x00\x01a"))
	tests := []struct {
		name  string
		sent  [][]byte
		heard []byte
		ok    bool
	}{
		{"a subscription", [][]byte{packet(0x82, "\x00\x01\x00\x01a\x01")}, packet(0x90, "\x00\x01\x00"), true},
		{"its end", [][]byte{packet(0xa2, "\x01\x02\x00\x01a")}, packet(0xb0, "\x01\x02"), true},
		{"a message", [][]byte{packet(0x32, "\x00\x01a\x00\x07x")}, packet(0x40, "\x00\x07"), true},
		{"a message of QoS 2", [][]byte{packet(0x34, "\x00\x01a\x00\x07x")}, join(packet(0x50, "\x00\x07"), packet(0x70,
			"\x00\x07")), true},
		{"a message of QoS 0", [][]byte{packet(0x30, "\x00\x01a\x00\x07x")}, packet(0x40, "\x00\x07"), false},
		{"twice", [][]byte{packet(0x32, "\x00\x01a\x00\x07x")}, join(packet(0x40, "\x00\x07"), packet(0x40, "\x00\x07")), false},
		{"another", [][]byte{packet(0x32, "\x00\x01a\x00\x07x")}, packet(0x40, "\x00\x08"), false},
		{"what is no packet", [][]byte{{}, {0x32}, packet(0x32, "\xff\xff"), packet(0x82, "\x00"), sent}, packet(0x40, "\xff\xff"),
			false},
	}
	for _, tt := range tests {
		g := newGuard(bufferConn{bytes.NewReader(join(connack3, tt.heard))}, fromOldBroker, 1000)
		for _, p := range tt.sent {
			if n, err := g.Write(p); n != len(p) || err != nil {
				t.Fatal(n, err)
			}
		}
		if _, err := io.ReadAll(g); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// A write that fails ends the connection; only who reads hears of it.
func TestGuardKeepsFailedWritesToItself(t *testing.T) {
	t.Parallel()
	for _, r := range []rule{fromOldBroker, fromBroker} {
		here, there := net.Pipe()
		there.Close()
		g := newGuard(here, r, 1000)
		if !r.exact {
			g.Lock()
		}
		if n, err := g.Write([]byte{0xc0, 0}); n != 2 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		if !r.exact {
			g.Unlock()
		}
		if g.cause() == nil {
			t.Error("nobody knows that the connection ended")
		}
		if _, err := g.Read(make([]byte, 1)); err == nil {
			t.Error("it is read on")
		}
	}
}

func TestGuardKnowsAnOldBroker(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]bool{"\x20\x02\x00\x01": true, "\x20\x03\x00\x84\x00": false} {
		g := feed(t, fromBroker, 1000, []byte(raw))
		_, _ = io.ReadAll(g)
		if g.isOld() != want {
			t.Errorf("%x: %v", raw, g.isOld())
		}
	}
}

// Reading in other pieces gives the same.
func FuzzGuard(f *testing.F) {
	f.Add(join(connack5, packet(0x30, "\x00\x01ax")), byte(0), byte(1))
	f.Add(join(connack3, packet(0x32, "\x00\x02bc\x00\x07"+strings.Repeat("x", 300))), byte(1), byte(3))
	f.Add(packet(0x10, "\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00"), byte(2), byte(7))
	f.Fuzz(func(t *testing.T, raw []byte, who, step byte) {
		r := []rule{fromBroker, fromOldBroker, fromConsumer}[who%3]
		whole, errWhole := io.ReadAll(newGuard(bufferConn{bytes.NewReader(raw)}, r, 200))
		g := newGuard(bufferConn{bytes.NewReader(raw)}, r, 200)
		var parts []byte
		buf := make([]byte, step%32+1)
		var err error
		for err == nil {
			var n int
			n, err = g.Read(buf)
			parts = append(parts, buf[:n]...)
		}
		if err == io.EOF {
			err = nil
		}
		if !bytes.Equal(whole, parts) || (errWhole == nil) != (err == nil) {
			t.Errorf("%x and %x, %v and %v", whole, parts, errWhole, err)
		}
		if len(whole) > len(raw) {
			t.Errorf("%d bytes became %d", len(raw), len(whole))
		}
	})
}

// A bufferConn is a connection from which a text is read.
type bufferConn struct{ *bytes.Reader }

func (bufferConn) Write(p []byte) (int, error)      { return len(p), nil }
func (bufferConn) Close() error                     { return nil }
func (bufferConn) LocalAddr() net.Addr              { return nil }
func (bufferConn) RemoteAddr() net.Addr             { return nil }
func (bufferConn) SetDeadline(time.Time) error      { return nil }
func (bufferConn) SetReadDeadline(time.Time) error  { return nil }
func (bufferConn) SetWriteDeadline(time.Time) error { return nil }

// Nothing that a broker says ends the process, or leaves something running: in both libraries, from the CONNACK on or after a
// good one.
func FuzzHostileBroker(f *testing.F) {
	for mode, seeds := range [][][]byte{
		{packet(0x30, "\x00\x01a\x00x"), packet(0x50, "\x00\x01"), packet(0x90, "\x00\x01\x00\x80"),
			packet(0x34, "\x00\x01a\x00\x01\x00x"), packet(0xe0, "\x8b")},
		{packet(0x90, "\x00\x01\x80"), packet(0x62, "\x00\x01"), packet(0x32, "\x00")},
		{packet(0x20, "\x00\x00\x04\x15\x00\x01a"), packet(0x20, "\x00\x87\x00"), connack3, []byte("SSH-2.0-x\r\n")},
		{packet(0x20, "\x00\x05"), packet(0x20, "\x01\x00"), connack5},
	} {
		for _, seed := range seeds {
			f.Add(seed, byte(mode))
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte, mode byte) {
		if len(raw) > 4096 {
			return
		}
		old := mode&1 == 1
		switch {
		case mode&2 == 0 && old:
			raw = join(connack3, raw)
		case mode&2 == 0:
			raw = join(connack5, raw)
		}
		here, there := net.Pipe()
		var broker sync.WaitGroup
		broker.Go(func() { _, _ = io.Copy(io.Discard, there) })
		broker.Go(func() {
			_, _ = there.Write(raw)
			there.Close()
		})
		defer broker.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var w wire
		var err error
		deliver := func(*delivery) {}
		if old {
			w, err = dial3(ctx, newGuard(here, fromOldBroker, 1000), "id", login{}, 50*time.Millisecond, deliver)
		} else {
			w, err = dial5(ctx, newGuard(here, fromBroker, 1000), "id", login{}, 1000, deliver)
		}
		if err != nil {
			return
		}
		defer w.close()
		_ = w.subscribe(ctx, "a/#", 1)
		_ = w.publish(ctx, &publication{topic: "a", qos: 2})
	})
}
