package oneport

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

// Endings of the multiaddrs of libp2p over WebSocket.
var (
	Plain  = ma.StringCast("/ws")
	Secure = ma.StringCast("/tls/ws")
)

// isUpgrade reports whether a request opens a libp2p connection: a WebSocket at the root of the server, the only path that a multiaddr
// can name.
func isUpgrade(r *http.Request) bool {
	return r.URL.Path == "/" && r.Method == http.MethodGet && strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// WebSockets has the connections of libp2p over WebSocket to this node.
type WebSockets struct {
	conns chan manet.Conn
	done  chan struct{}
	close func()
}

// NewWebSockets returns WebSockets for handlers of HTTP.
func NewWebSockets() *WebSockets {
	done := make(chan struct{})
	return &WebSockets{conns: make(chan manet.Conn), done: done, close: sync.OnceFunc(func() { close(done) })}
}

// Close rejects further connections.
func (w *WebSockets) Close() error {
	w.close()
	return nil
}

// ServeHTTP implements [http.Handler]. It returns 404 for requests that open no connection.
func (w *WebSockets) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if !w.Upgrade(rw, r) {
		http.NotFound(rw, r)
	}
}

// Upgrade serves a request that opens a libp2p connection: a WebSocket at the root of the server. It returns false, without an answer, for
// others. Web pages get the status 403: they are no nodes, and would reach one that only the network of their reader reaches.
func (w *WebSockets) Upgrade(rw http.ResponseWriter, r *http.Request) bool {
	if !isUpgrade(r) {
		return false
	}
	if r.Header.Get("Origin") != "" {
		http.Error(rw, "only nodes open connections here", http.StatusForbidden)
		return true
	}
	w.upgrade(rw, r)
	return true
}

func (w *WebSockets) upgrade(rw http.ResponseWriter, r *http.Request) {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	socket, err := websocket.Accept(rw, r, nil)
	if err != nil {
		return // Accept has sent the reason
	}
	if c, ok := r.Context().Value(connKey{}).(*Conn); ok {
		c.Settle()
	}
	c, err := newWebConn(socket, local, r.TLS != nil)
	if err != nil {
		_ = socket.CloseNow()
		return
	}
	timer := time.NewTimer(waitTimeout)
	defer timer.Stop()
	select {
	case w.conns <- c:
	case <-timer.C:
		_ = c.Close()
	case <-w.done:
		_ = c.Close()
	}
}

// A webConn is a connection of libp2p inside a WebSocket.
type webConn struct {
	net.Conn
	socket        *websocket.Conn
	cancel        context.CancelFunc
	local, remote ma.Multiaddr
}

func newWebConn(socket *websocket.Conn, local net.Addr, secure bool) (*webConn, error) {
	ctx, cancel := context.WithCancel(context.Background())
	c := &webConn{Conn: websocket.NetConn(ctx, socket, websocket.MessageBinary), socket: socket, cancel: cancel}
	ending := Plain
	if secure {
		ending = Secure
	}
	for _, at := range []struct {
		addr net.Addr
		to   *ma.Multiaddr
	}{{local, &c.local}, {c.RemoteAddr(), &c.remote}} {
		m, err := manet.FromNetAddr(at.addr)
		if err != nil {
			cancel()
			return nil, err
		}
		*at.to = m.Encapsulate(ending)
	}
	return c, nil
}

func (c *webConn) LocalMultiaddr() ma.Multiaddr  { return c.local }
func (c *webConn) RemoteMultiaddr() ma.Multiaddr { return c.remote }

// Close does not wait for the peer, as that of TCP does not.
func (c *webConn) Close() error {
	c.cancel()
	return c.socket.CloseNow()
}

// Listener returns a listener for the WebSockets, at a port with the ending of a multiaddr. Closing it calls close.
func (w *WebSockets) Listener(p *Port, ending ma.Multiaddr, close func() error) manet.Listener {
	return &webListener{w, p, ending, close, make(chan struct{}), new(sync.Once)}
}

type webListener struct {
	*WebSockets
	port   *Port
	ending ma.Multiaddr
	end    func() error
	ended  chan struct{}
	once   *sync.Once
}

func (l *webListener) Accept() (manet.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ended:
	case <-l.done:
	}
	return nil, net.ErrClosed
}

func (l *webListener) Close() (err error) {
	l.once.Do(func() {
		close(l.ended)
		err = l.end()
	})
	return err
}

func (l *webListener) Addr() net.Addr          { return l.port.listener.Addr() }
func (l *webListener) Multiaddr() ma.Multiaddr { return l.port.Multiaddr().Encapsulate(l.ending) }

// maxHeader limits the headers of a request to a server of [WebSockets.Serve], in bytes.
const maxHeader = 8 << 10

type connKey struct{}

// Serve serves the WebSockets of a queue that no other server of HTTP has: each connection carries one request. With conf it serves TLS. stop
// ends it and waits. A connection counts as waiting until it is upgraded.
func (w *WebSockets) Serve(q *Queue, conf *tls.Config) (stop func()) {
	q.settles = true
	var l net.Listener = q
	if conf != nil {
		l = tls.NewListener(q, conf)
	}
	var done sync.WaitGroup
	s := &http.Server{Handler: w, ReadHeaderTimeout: waitTimeout, WriteTimeout: waitTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: log.New(io.Discard, "", 0), ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if t, ok := c.(*tls.Conn); ok {
				c = t.NetConn()
			}
			return context.WithValue(ctx, connKey{}, c)
		}, ConnState: func(_ net.Conn, s http.ConnState) {
			switch s {
			case http.StateNew:
				done.Add(1)
			case http.StateHijacked, http.StateClosed:
				done.Done()
			}
		}}
	s.SetKeepAlivesEnabled(false)
	done.Go(func() { _ = s.Serve(l) }) // it ends with Close
	return func() {
		_ = s.Close() // the queue has no error
		done.Wait()
	}
}
