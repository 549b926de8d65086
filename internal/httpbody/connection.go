package httpbody

import (
	"context"
	"crypto/tls"
	"net"
	"net/http/httptrace"
)

// A client of net/http returns the loss of a connection only after the body was read to its end, and its context does not shorten that
// wait ([net/http.Transport] of Go 1.26, persistConn.mapRoundTripError). A body whose next bytes do not come would block the request.
// [Dial] and [Bind] end it.

// A Dialer opens a connection.
type Dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// A conn reports its end.
type conn struct {
	net.Conn
	ctx context.Context // ends with the connection
	end context.CancelFunc
}

func (c *conn) Close() error {
	defer c.end()
	return c.Conn.Close()
}

// Dial returns a dialer for the transport of requests with [Bind].
func Dial(dial Dialer) Dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		ended, end := context.WithCancel(context.Background())
		return &conn{c, ended, end}, nil
	}
}

// Bind returns the context of a request. It calls end, which ends the body of the request, when ctx ends or the connection is closed. The
// caller cancels ctx when the request is done.
func Bind(ctx context.Context, end func()) context.Context {
	context.AfterFunc(ctx, end)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		used := info.Conn
		if secure, ok := used.(*tls.Conn); ok {
			used = secure.NetConn()
		}
		if c, ok := used.(*conn); ok {
			stop := context.AfterFunc(c.ctx, end)
			context.AfterFunc(ctx, func() { stop() })
		}
	}})
}
