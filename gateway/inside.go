package gateway

import (
	"bytes"
	"context"
	"io"
	"net/http"
)

// Inside returns a client that asks g in this process, without a connection and with the rights of the unix socket. It works
// from New on, whether or not g listens anywhere: embedders and simulations use it.
func (g *Gateway) Inside() *Client {
	return &Client{target: "inside", base: "http://localhost", http: &http.Client{Transport: inside{g}, CheckRedirect: noRedirect}}
}

// inside carries requests to a gateway as function calls.
type inside struct{ g *Gateway }

// RoundTrip answers with everything that the handler wrote. It returns when the handler has; once the gateway is closed its
// context is cancelled.
func (t inside) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(req.Context())
	defer cancel()
	defer context.AfterFunc(t.g.alive, cancel)() // A drain ends it, as it ends requests that came by a connection.
	r := req.Clone(context.WithValue(ctx, trustedKey{}, true))
	r.RequestURI, r.RemoteAddr, r.Host = req.URL.RequestURI(), "@", req.URL.Host
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.1", 1, 1
	if r.Body == nil {
		r.Body = http.NoBody
	}
	defer r.Body.Close()
	w := &written{header: http.Header{}, status: http.StatusOK}
	t.g.serve(w, r)
	return &http.Response{Status: http.StatusText(w.status), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.header, ContentLength: int64(w.body.Len()), Body: io.NopCloser(&w.body), Request: req}, nil
}

// written is an http.ResponseWriter into memory.
type written struct {
	header http.Header
	status int
	done   bool // the status is final
	body   bytes.Buffer
}

func (w *written) Header() http.Header { return w.header }

func (w *written) WriteHeader(status int) {
	if !w.done && status >= 200 {
		w.status, w.done = status, true
	}
}

func (w *written) Write(b []byte) (int, error) {
	w.done = true
	return w.body.Write(b)
}
