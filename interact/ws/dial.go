package ws

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"

	"github.com/coder/websocket"

	"github.com/lmosd/lmosd/interact"
)

// A dialer opens WebSockets.
type dialer struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	tls  *tls.Config
}

// A socket is an open WebSocket and the connection below it, whose end ends whatever waits for the peer.
type socket struct {
	ws  *websocket.Conn
	raw io.Closer
}

// open dials url and upgrades. Redirects are not followed: credentials are for one origin. The status is that of an answer that
// is no upgrade.
func (d dialer) open(ctx context.Context, url string, header http.Header, offer ...string) (s socket, status int, err error) {
	dial := d.dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	var raw net.Conn
	t := &http.Transport{ // of its own: it carries one request
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			var err error
			raw, err = dial(ctx, network, addr)
			return raw, err
		},
		TLSClientConfig:        d.tls,
		MaxResponseHeaderBytes: 64 << 10,
		DisableKeepAlives:      true,
	}
	ctx, cancel := context.WithTimeout(ctx, dialWait)
	defer cancel()
	ws, resp, err := websocket.Dial(ctx, url, &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}},
		HTTPHeader:   header,
		Subprotocols: offer,
	})
	if resp != nil {
		status = resp.StatusCode
	}
	if err != nil {
		return socket{}, status, err // raw may still be written
	}
	return socket{ws, raw}, status, nil
}

// reason is a short cause of a failed connection. The library's own text can hold the whole address, secrets included.
func reason(err error) string {
	var no syscall.Errno
	var dns *net.DNSError
	var op *net.OpError
	var own *interact.Error
	var timeout interface{ Timeout() bool }
	switch {
	case errors.As(err, &own): // of the guard of addresses
		return own.Error()
	case errors.As(err, &dns):
		return "the name " + clip(dns.Name, 100) + " is unknown"
	case errors.As(err, &no):
		return no.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, io.ErrClosedPipe):
		return "the connection was closed"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "nothing answered in time"
	case errors.As(err, &op):
		return op.Op + " failed"
	case strings.Contains(err.Error(), "tls:"), strings.Contains(err.Error(), "x509:"):
		return "its certificate is not trusted, or it speaks no TLS"
	}
	return "the connection failed"
}

// plain returns an address as it may be shown: without user, query and fragment.
func plain(href string) string {
	href, _, _ = strings.Cut(href, "#")
	href, _, _ = strings.Cut(href, "?")
	if scheme, rest, ok := strings.Cut(href, "://"); ok {
		authority, path, _ := strings.Cut(rest, "/")
		if at := strings.LastIndex(authority, "@"); at >= 0 {
			authority = authority[at+1:]
		}
		href = scheme + "://" + authority + "/" + path
	}
	return clip(href, 200)
}

// clip makes a peer's text fit to be shown: on one line, and of at most n bytes, cut at a character's border.
func clip(text string, n int) string {
	return interact.Clip(interact.Readable(text[:min(len(text), 4*n)]), n)
}
