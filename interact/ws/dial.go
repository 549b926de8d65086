package ws

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"

	"github.com/coder/websocket"
)

// A dialer opens WebSockets.
type dialer struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	tls  *tls.Config
}

// A socket is an open WebSocket and its network connection, whose end ends all waits for the peer.
type socket struct {
	ws  *websocket.Conn
	raw io.Closer
}

// open dials url and upgrades. Redirects are not followed: credentials are for one origin. The status is that of a
// response without upgrade.
func (d dialer) open(ctx context.Context, url string, header http.Header, offer ...string) (s socket, status int, err error) {
	dial := d.dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	var raw net.Conn
	t := &http.Transport{ // not shared: it carries one request
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
