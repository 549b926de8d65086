package mqtt

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/mochi-mqtt/server/v2/listeners"

	"github.com/lmosd/lmosd/interact/mqtt/packet"
)

// A listener accepts the connections of a broker, counts them, checks their packets, and waits for their end.
type listener struct {
	net.Listener
	limit   int
	packet  int
	goodbye func()         // notifies the clients before the listener closes
	gone    func(net.Conn) // called after the end of a connection
	log     *slog.Logger
	full    rareLog
	serving sync.WaitGroup

	mu     sync.Mutex // guards the rest
	closed bool
	open   map[net.Conn]bool
}

func newListener(l net.Listener, o BrokerOptions, goodbye func(), gone func(net.Conn)) *listener {
	return &listener{Listener: l, limit: o.MaxConnections, packet: o.MaxPacket, goodbye: goodbye, gone: gone, log: o.Log,
		open: map[net.Conn]bool{}}
}

// ID implements [listeners.Listener], as do the methods below.
func (d *listener) ID() string { return "lmosd" }

// Address returns the address of the socket.
func (d *listener) Address() string { return d.Addr().String() }

// Protocol returns "tcp".
func (d *listener) Protocol() string { return d.Addr().Network() }

// Init does nothing.
func (d *listener) Init(*slog.Logger) error { return nil }

// Serve accepts connections until the listener is closed.
func (d *listener) Serve(establish listeners.EstablishFn) {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return
	}
	d.serving.Add(1)
	d.mu.Unlock()
	defer d.serving.Done()
	for {
		conn, err := d.Accept()
		switch {
		case err == nil:
			d.enter(conn, establish)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			d.full.warn(d.log, "mqtt accept", "err", err)
			time.Sleep(50 * time.Millisecond) // probably no file descriptors; Close waits this long
		}
	}
}

// enter serves one connection in its own goroutine, within the limits.
func (d *listener) enter(conn net.Conn, establish listeners.EstablishFn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || !d.roomLocked(conn) {
		conn.Close()
		return
	}
	d.open[conn] = true
	g := packet.NewConn(conn, packet.FromClient, d.packet)
	d.serving.Go(func() {
		defer d.leave(conn)
		defer d.gone(g)
		_ = conn.SetReadDeadline(time.Now().Add(greeting)) // mochi sets its own after CONNECT
		if err := establish(d.ID(), g); err != nil && !errors.Is(err, io.EOF) {
			d.log.Debug("mqtt client gone", "remote", conn.RemoteAddr().String(), "err", err)
		}
	})
}

// roomLocked reports whether a connection may be served. A remote host may have half of the connections.
func (d *listener) roomLocked(conn net.Conn) bool {
	host, mine := hostOf(conn), 0
	for other := range d.open {
		if hostOf(other) == host {
			mine++
		}
	}
	if len(d.open) < d.limit && (host.IsLoopback() || mine < max(d.limit/2, 1)) {
		return true
	}
	d.full.warn(d.log, "mqtt connection closed: there are too many", "remote", conn.RemoteAddr().String(), "open", len(d.open),
		"of_this_host", mine, "limit", d.limit, "hint", "close clients that are not needed, or raise mqtt.BrokerOptions.MaxConnections")
	return false
}

func hostOf(conn net.Conn) netip.Addr {
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// A rareLog limits log records of one event to one a minute.
type rareLog struct {
	mu    sync.Mutex // guards the rest
	last  time.Time
	again int // times since then
}

func (s *rareLog) warn(log *slog.Logger, what string, attrs ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.again++; !s.last.IsZero() && time.Since(s.last) < time.Minute {
		return
	}
	log.Warn(what, append(attrs, "times", s.again)...)
	s.last, s.again = time.Now(), 0
}

// leave removes a connection. A packet that makes mochi panic ends only its connection.
func (d *listener) leave(conn net.Conn) {
	if r := recover(); r != nil {
		d.log.Error("mqtt client ended by a panic", "remote", conn.RemoteAddr().String(), "panic", r)
	}
	conn.Close()
	d.mu.Lock()
	delete(d.open, conn)
	d.mu.Unlock()
}

// Close stops listening, sends DISCONNECT, and waits for the end of all connections. It does not use the callback of mochi, which locks
// a read lock twice and hangs if a client connects or disconnects in between.
func (d *listener) Close(listeners.CloseFn) {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	_ = d.Listener.Close() // the listener is closed even after an error
	d.goodbye()
	d.mu.Lock()
	for conn := range d.open {
		conn.Close()
	}
	d.mu.Unlock()
	d.serving.Wait()
}
