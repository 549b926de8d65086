package oneport

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// opened returns a port of loopback with all queues.
func opened(t testing.TB, timeout time.Duration) (*Port, Queues) {
	t.Helper()
	l, err := manet.Listen(ma.StringCast("/ip4/127.0.0.1/tcp/0"))
	if err != nil {
		t.Fatal(err)
	}
	qs := Queues{NewQueue(), NewQueue(), NewQueue()}
	p := open(l, qs, timeout)
	t.Cleanup(func() { _ = p.Close() })
	return p, qs
}

func dialed(t testing.TB, p *Port, text string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c
}

// wantEnd waits for the end of a connection that the port closes.
func wantEnd(t testing.TB, c net.Conn) {
	t.Helper()
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("the port sent %d bytes, want the end of the connection", n)
	}
}

func TestProtocols(t *testing.T) {
	t.Parallel()
	p, qs := opened(t, waitTimeout)
	for name, c := range map[string]struct {
		text string
		to   *Queue
	}{
		"libp2p": {"\x13/multistream/1.0.0\n", qs.Libp2p},
		"HTTP":   {"GET / HTTP/1.1\r\n", qs.HTTP},
		"TLS":    {"\x16\x03\x01\x02\x00\x01", qs.TLS},
	} {
		dialed(t, p, c.text)
		conn, err := c.to.Accept()
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(c.text))
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != c.text {
			t.Errorf("%s: read %q, %v", name, got, err)
		}
		_ = conn.Close()
		if c.to.Addr().String() != p.listener.Addr().String() {
			t.Errorf("%s: address %v", name, c.to.Addr())
		}
	}
	for _, text := range []string{"SSH-2.0-x\r\n", "\x00\x00\x00", "\x13/n", "\x16\x02\x00", "get / "} {
		wantEnd(t, dialed(t, p, text))
	}
	poll.Until(t, "no connection waits", func() bool { return waitingAt(p) == 0 })
}

func waitingAt(p *Port) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting)
}

// A client that is silent is closed after a time, as is one that no consumer accepts.
func TestSilentClient(t *testing.T) {
	t.Parallel()
	p, _ := opened(t, 10*time.Millisecond)
	wantEnd(t, dialed(t, p, ""))
	wantEnd(t, dialed(t, p, "GE"))
	wantEnd(t, dialed(t, p, "GET /")) // no consumer accepts it
	poll.Until(t, "no connection waits", func() bool { return waitingAt(p) == 0 })
}

// The oldest connection of an address ends when the address has too many; others stay.
func TestManySilentClients(t *testing.T) {
	t.Parallel()
	p, qs := opened(t, time.Minute)
	first := dialed(t, p, "")
	poll.Until(t, "the first waits", func() bool { return waitingAt(p) == 1 })
	var all []net.Conn
	for range maxPerAddress {
		all = append(all, dialed(t, p, ""))
	}
	wantEnd(t, first)
	if n := waitingAt(p); n > maxPerAddress {
		t.Errorf("%d connections wait, want at most %d", n, maxPerAddress)
	}
	if _, err := io.WriteString(all[len(all)-1], "GET"); err != nil {
		t.Fatal(err)
	}
	c, err := qs.HTTP.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

// Addresses share a limit by range, and all share one.
func TestLimitOfAllAddresses(t *testing.T) {
	t.Parallel()
	p := &Port{}
	admit := func(ip string) *fakeConn {
		c := &fakeConn{from: &net.TCPAddr{IP: net.ParseIP(ip), Port: 1}}
		p.admit(c)
		return c
	}
	var all []*fakeConn
	for i := range maxWaiting {
		all = append(all, admit(net.IPv4(192, 0, byte(i/16), 7).String()))
	}
	last := admit("2001:db8::1")
	if !all[0].closed || all[1].closed || last.closed {
		t.Error("the oldest connection is not the one that ended")
	}
	for range maxPerAddress {
		admit("2001:db8:0:7::2") // of the same /56
	}
	if !last.closed || len(p.waiting) > maxWaiting {
		t.Errorf("%d connections wait; the oldest of the range ended: %v", len(p.waiting), last.closed)
	}
	p.closed = true
	if c := admit("192.0.2.1"); !c.closed {
		t.Error("a closed port admits")
	}
}

// A fakeConn is a connection from an address that reads from its text.
type fakeConn struct {
	net.TCPConn
	io.Reader
	from   net.Addr
	closed bool
}

func (c *fakeConn) Read(b []byte) (int, error)        { return c.Reader.Read(b) }
func (c *fakeConn) RemoteAddr() net.Addr              { return c.from }
func (c *fakeConn) LocalMultiaddr() ma.Multiaddr      { return nil }
func (c *fakeConn) RemoteMultiaddr() ma.Multiaddr     { return nil }
func (c *fakeConn) SetReadDeadline(_ time.Time) error { return nil }
func (c *fakeConn) Close() error {
	c.closed = true
	return nil
}

// Every connection ends, or reaches one consumer with all its bytes.
func FuzzPort(f *testing.F) {
	for _, text := range []string{"", "G", "GET / HTTP/1.1\r\n\r\n", "\x13/multistream/1.0.0\n", "\x16\x03\x01\x00\x05hello", "PRI * HTTP/2.0\r\n", "\x00\x00\x00\x00"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		qs := Queues{NewQueue(), NewQueue(), NewQueue()}
		p := &Port{to: qs, timeout: time.Minute, stop: make(chan struct{})}
		fake := &fakeConn{Reader: bytes.NewReader(text), from: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}}
		c := p.admit(fake)
		done := make(chan struct{})
		go func() { p.handOver(c); close(done) }()
		var got *Conn
		var from *Queue
		select {
		case <-done:
		case got = <-qs.Libp2p.conns:
			from = qs.Libp2p
		case got = <-qs.HTTP.conns:
			from = qs.HTTP
		case got = <-qs.TLS.conns:
			from = qs.TLS
		}
		<-done
		if len(p.waiting) != 0 {
			t.Error("a connection still waits")
		}
		if got == nil {
			if !fake.closed || len(text) >= 3 && qs.of([3]byte(text)) != nil {
				t.Errorf("%q reached no consumer, closed %v", text, fake.closed)
			}
			return
		}
		if read, err := io.ReadAll(got); err != nil || !bytes.Equal(read, text) || from != qs.of([3]byte(text)) {
			t.Errorf("read %q of %q, %v", read, text, err)
		}
	})
}

func TestClose(t *testing.T) {
	t.Parallel()
	p, qs := opened(t, time.Minute)
	silent, waiting := dialed(t, p, ""), dialed(t, p, "GET")
	poll.Until(t, "both wait", func() bool { return waitingAt(p) == 2 })
	l := p.Libp2p()
	for range 2 {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	wantEnd(t, silent)
	wantEnd(t, waiting)
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept of a closed port: %v", err)
	}
	_ = qs.HTTP.Close()
	if _, err := qs.HTTP.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept of a closed queue: %v", err)
	}
}

// webPort returns a port that only serves WebSockets, and their listener.
func webPort(t testing.TB) (*Port, manet.Listener) {
	t.Helper()
	l, err := manet.Listen(ma.StringCast("/ip4/127.0.0.1/tcp/0"))
	if err != nil {
		t.Fatal(err)
	}
	w, q := NewWebSockets(), NewQueue()
	stop := w.Serve(q, (*tls.Config)(nil))
	p := Open(l, Queues{HTTP: q})
	t.Cleanup(func() {
		_ = w.Close()
		stop()
		_ = p.Close()
	})
	return p, w.Listener(p, Plain, p.Close)
}

func TestWebSocket(t *testing.T) {
	t.Parallel()
	p, l := webPort(t)
	socket, _, err := websocket.Dial(t.Context(), "ws://"+p.listener.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.CloseNow() }()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if !c.LocalMultiaddr().Equal(l.Multiaddr()) || !strings.HasSuffix(c.RemoteMultiaddr().String(), "/ws") {
		t.Errorf("a connection from %s to %s, want it to %s", c.RemoteMultiaddr(), c.LocalMultiaddr(), l.Multiaddr())
	}
	if waitingAt(p) != 0 {
		t.Error("an upgraded connection waits")
	}
	if err := socket.Write(t.Context(), websocket.MessageBinary, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "hello" {
		t.Errorf("read %q, %v", got, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, _, err := socket.Read(t.Context()); err == nil {
		t.Error("the other end stays open")
	}
	_ = l.Close()
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept of a closed listener: %v", err)
	}
}

func TestRequestsThatAreNoWebSockets(t *testing.T) {
	t.Parallel()
	p, _ := webPort(t)
	at := p.listener.Addr().String()
	for name, c := range map[string]struct {
		request string
		status  int
	}{
		"a page":           {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", http.StatusNotFound},
		"another path":     {"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", http.StatusNotFound},
		"half an upgrade":  {"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\r\n", http.StatusUpgradeRequired},
		"another site":     {"GET / HTTP/1.1\r\nHost: x\r\nOrigin: https://evil.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", http.StatusForbidden},
		"the same site":    {"GET / HTTP/1.1\r\nHost: x\r\nOrigin: http://x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", http.StatusForbidden},
		"much of a header": {"GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", maxHeader+8<<10) + "\r\n\r\n", http.StatusRequestHeaderFieldsTooLarge},
		"another protocol": {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", http.StatusNotFound},
		"no valid request": {"GET\r\n\r\n", http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", at)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			go func() { _, _ = io.WriteString(conn, c.request) }() // the server may answer before its end
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			if res.StatusCode != c.status || !res.Close {
				t.Errorf("got %d, closes %v; want %d", res.StatusCode, res.Close, c.status)
			}
		})
	}
}
