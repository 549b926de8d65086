package packet

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// feed returns a guard that reads raw and then the end.
func feed(t testing.TB, r Rule, limit int, raw []byte) *Conn {
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
	return NewConn(here, r, limit)
}

func packetOf(first byte, body string) []byte {
	return append(AppendLength([]byte{first}, len(body)), body...)
}

func join(packets ...[]byte) []byte { return bytes.Join(packets, nil) }

var (
	connack5 = packetOf(0x20, "\x00\x00\x00")
	connack3 = packetOf(0x20, "\x00\x00")
	connect5 = packetOf(0x10, "\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00")
	connect3 = packetOf(0x10, "\x00\x04MQTT\x04\x02\x00\x3c\x00\x05first")
)

func TestGuardForwardsAllowedPackets(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		rule Rule
		raw  []byte
	}{
		{"a broker of 5", FromBroker, join(connack5, packetOf(0x30, "\x00\x01ax"), packetOf(0x90, "\x00\x01\x00\x00"), packetOf(0xd0, ""),
			packetOf(0xe0, ""))},
		{"a broker of 3.1.1", FromBroker3, join(connack3, packetOf(0x32, "\x00\x01a\x00\x01x"), packetOf(0xd0, ""))},
		{"a client", FromClient, join(connect5, packetOf(0x82, "\x00\x01\x00\x00\x01a\x00"),
			packetOf(0x32, "\x00\x01a\x00\x01\x00\xff\xff\x7f"), packetOf(0xc0, ""))},
		{"a client of 3.1.1", FromClient, join(connect3, packetOf(0x30, "\x00\x01a\xff\xff\x7f"))},
	}
	for _, tt := range tests {
		got, err := io.ReadAll(feed(t, tt.rule, 1000, tt.raw))
		if err != nil || !bytes.Equal(got, tt.raw) {
			t.Errorf("%s: %x, %v", tt.name, got, err)
		}
	}
}

func TestGuardClosesInvalidConnections(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		rule Rule
		raw  []byte
		want error
	}{
		{"HTTP", FromBroker, []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), ErrProtocol},
		{"nothing", FromBroker, nil, ErrSilent},
		{"a message before the CONNACK", FromBroker, packetOf(0x30, "\x00\x01a"), ErrProtocol},
		{"two CONNACKs", FromBroker, join(connack5, connack5), ErrProtocol},
		{"a request of authentication", FromBroker, join(connack5, packetOf(0xf0, "\x18\x00")), ErrProtocol},
		{"a CONNECT from a broker", FromBroker, join(connack5, packetOf(0x10, "")), ErrProtocol},
		{"QoS 3", FromBroker, join(connack5, packetOf(0x36, "\x00\x01a\x00\x01")), ErrProtocol},
		{"a length without end", FromBroker, join(connack5, []byte{0x30, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}), ErrProtocol},
		{"a message that is too large", FromBroker, join(connack5, []byte{0x30, 0xff, 0xff, 0xff, 0x7f}), ErrTooLarge},
		{"a SUBACK that is too large", FromBroker, join(connack5, []byte{0x90, 0xff, 0xff, 0x7f}), ErrTooLarge},
		{"two return codes for one filter", FromBroker3, join(connack3, packetOf(0x90, "\x00\x01\x00\x00")), ErrProtocol},
		{"an acknowledgement of nothing", FromBroker3, join(connack3, packetOf(0x40, "\x00\x01")), ErrProtocol},
		{"an AUTH in 3.1.1", FromBroker3, join(connack3, packetOf(0xf0, "")), ErrProtocol},
		{"a client that begins with a message", FromClient, packetOf(0x30, "\x00\x01a"), ErrProtocol},
		{"properties that are too large", FromClient, join(connect5, packetOf(0x30, "\x00\x01a\xff\xff\x7f")), ErrTooLarge},
		{"the same of a broker", FromBroker, join(connack5, packetOf(0x32, "\x00\x01a\x00\x01\xff\xff\x7f")), ErrTooLarge},
		{"a topic that is too long", FromBroker, join(connack5, packetOf(0x30, "\x20\x00abcde")), ErrProtocol},
		{"a client with a long CONNECT", FromClient, []byte{0x10, 0xff, 0xff, 0x7f}, ErrTooLarge},
	}
	for _, tt := range tests {
		g := feed(t, tt.rule, 1000, tt.raw)
		_, err := io.ReadAll(g)
		if tt.want == ErrSilent { // io.ReadAll takes no other end for the end
			err = g.Cause()
		}
		if !errors.Is(err, tt.want) || !errors.Is(g.Cause(), tt.want) {
			t.Errorf("%s: %v, %v", tt.name, err, g.Cause())
		}
	}
}

func TestGuardLimitsSizes(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 5000)
	raw := join(connack3, packetOf(0x31, "\x00\x01a"+large), packetOf(0x32, "\x00\x02bc\x00\x07"+large), packetOf(0x30, "\x00\x01ay"))
	g := feed(t, FromBroker3, 1000, raw)
	got, err := io.ReadAll(g)
	want := join(connack3, packetOf(0x31, "\x00\x01a"), packetOf(0x32, "\x00\x02bc\x00\x07"), packetOf(0x30, "\x00\x01ay"))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %q, %v", got, err)
	}
	if !g.WasCut("a") || g.WasCut("a") || !g.WasCut("bc") || g.WasCut("other") {
		t.Error("what was cut is not known")
	}
	g = feed(t, FromBroker3, 1000, join(connack3, packetOf(0x30, "\xff\xff"+large)))
	if _, err := io.ReadAll(g); !errors.Is(err, ErrProtocol) {
		t.Errorf("a topic longer than its packet: %v", err)
	}
}

func TestGuardTracksSentPackets(t *testing.T) {
	t.Parallel()
	sent := join(packetOf(0x82, "\x00\x01\x00\x01a\x01"), packetOf(0xa2, "\x00\x02\x00\x01a"))
	tests := []struct {
		name     string
		sent     [][]byte
		received []byte
		ok       bool
	}{
		{"a subscription", [][]byte{packetOf(0x82, "\x00\x01\x00\x01a\x01")}, packetOf(0x90, "\x00\x01\x00"), true},
		{"its end", [][]byte{packetOf(0xa2, "\x01\x02\x00\x01a")}, packetOf(0xb0, "\x01\x02"), true},
		{"a message", [][]byte{packetOf(0x32, "\x00\x01a\x00\x07x")}, packetOf(0x40, "\x00\x07"), true},
		{"a message of QoS 2", [][]byte{packetOf(0x34, "\x00\x01a\x00\x07x")}, join(packetOf(0x50, "\x00\x07"), packetOf(0x70,
			"\x00\x07")), true},
		{"a message of QoS 0", [][]byte{packetOf(0x30, "\x00\x01a\x00\x07x")}, packetOf(0x40, "\x00\x07"), false},
		{"twice", [][]byte{packetOf(0x32, "\x00\x01a\x00\x07x")}, join(packetOf(0x40, "\x00\x07"), packetOf(0x40, "\x00\x07")), false},
		{"another", [][]byte{packetOf(0x32, "\x00\x01a\x00\x07x")}, packetOf(0x40, "\x00\x08"), false},
		{"what is no packet", [][]byte{{}, {0x32}, packetOf(0x32, "\xff\xff"), packetOf(0x82, "\x00"), sent}, packetOf(0x40, "\xff\xff"),
			false},
	}
	for _, tt := range tests {
		g := NewConn(bufferConn{bytes.NewReader(join(connack3, tt.received))}, FromBroker3, 1000)
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

// A failed write ends the connection; only the reader gets the error.
func TestGuardKeepsFailedWritesToItself(t *testing.T) {
	t.Parallel()
	for _, r := range []Rule{FromBroker3, FromBroker} {
		here, there := net.Pipe()
		there.Close()
		g := NewConn(here, r, 1000)
		if !r.exact {
			g.Lock()
		}
		if n, err := g.Write([]byte{0xc0, 0}); n != 2 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		if !r.exact {
			g.Unlock()
		}
		if g.Cause() == nil {
			t.Error("the end of the connection is not reported")
		}
		if _, err := g.Read(make([]byte, 1)); err == nil {
			t.Error("it is read on")
		}
	}
}

func TestGuardRecognizesOlderBrokers(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]bool{"\x20\x02\x00\x01": true, "\x20\x03\x00\x84\x00": false} {
		g := feed(t, FromBroker, 1000, []byte(raw))
		_, _ = io.ReadAll(g)
		if g.IsV3() != want {
			t.Errorf("%x: %v", raw, g.IsV3())
		}
	}
}

// Reading in other pieces gives the same.
func FuzzGuard(f *testing.F) {
	f.Add(join(connack5, packetOf(0x30, "\x00\x01ax")), byte(0), byte(1))
	f.Add(join(connack3, packetOf(0x32, "\x00\x02bc\x00\x07"+strings.Repeat("x", 300))), byte(1), byte(3))
	f.Add(packetOf(0x10, "\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00"), byte(2), byte(7))
	f.Fuzz(func(t *testing.T, raw []byte, who, step byte) {
		r := []Rule{FromBroker, FromBroker3, FromClient}[who%3]
		whole, errWhole := io.ReadAll(NewConn(bufferConn{bytes.NewReader(raw)}, r, 200))
		g := NewConn(bufferConn{bytes.NewReader(raw)}, r, 200)
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
