package client

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// endpointTimeout bounds the wait for the endpoint event.
const endpointTimeout = 10 * time.Second

// An httpSSE is a connection to a server of 2024-11-05: requests are posted to an endpoint, and the responses arrive on one event stream.
// The first event of the stream names the endpoint (2024-11-05, "HTTP with SSE"). The connection ends with the stream.
type httpSSE struct {
	endpoint string
	ended    bool // the stream has ended; guarded by conn.mu

	mu      sync.Mutex
	waiting map[protocol.ID]chan *protocol.Message
}

// openSSE opens the event stream and waits for the endpoint.
func (c *conn) openSSE(ctx context.Context) (_ *httpSSE, e *protocol.Error) {
	life, stop := context.WithCancel(c.ctx)
	defer func() {
		if e != nil {
			stop()
		}
	}()
	resp, e := c.authorized(ctx, func() (*http.Response, *protocol.Error) {
		req, err := http.NewRequestWithContext(life, http.MethodGet, c.o.URL, nil)
		if err != nil {
			return nil, newError(interact.Usage, "", "%v", err)
		}
		req.Header.Set("Accept", "text/event-stream")
		return c.do(req)
	})
	if e != nil {
		return nil, e
	}
	if resp.StatusCode != http.StatusOK || interact.MediaType(resp.Header.Get("Content-Type")) != "text/event-stream" {
		drain(resp)
		return nil, status(resp)
	}
	p := &httpSSE{waiting: map[protocol.ID]chan *protocol.Message{}}
	endpoint := make(chan string, 1)
	if !c.start(nil, nil, func() {
		defer stop()
		defer resp.Body.Close()
		p.listen(c, resp.Body, endpoint)
		c.mu.Lock()
		defer c.mu.Unlock()
		if p.ended = true; c.sse == p {
			c.cancel() // the owner of the connection dials again
		}
	}) {
		resp.Body.Close()
		return nil, newError(interact.Cancelled, "", "connection closed")
	}
	select {
	case at := <-endpoint:
		if p.endpoint = c.resolve(at); p.endpoint == "" {
			return nil, newError(interact.AgentFailed, "", "the endpoint has another origin than the server: %s",
				interact.Readable(interact.Clip(at, 200)))
		}
		return p, nil
	case <-time.After(endpointTimeout):
	case <-ctx.Done():
	}
	return nil, newError(interact.AgentFailed, notMCPHint, "no endpoint event from the server")
}

// listen reads the stream until it ends.
func (p *httpSSE) listen(c *conn, stream io.Reader, endpoint chan<- string) {
	s := &events{named: func(name string, data []byte) {
		if name != "endpoint" {
			return
		}
		select {
		case endpoint <- string(data):
		default: // duplicate
		}
	}}
	_ = s.read(stream, func(m *protocol.Message) {
		if !p.deliver(m) {
			c.pass(m)
		}
	})
	close(endpoint)
}

// resolve returns the URL of an endpoint; empty if its origin is not that of the server, since the requests contain secrets.
func (c *conn) resolve(at string) string {
	base, err := url.Parse(c.o.URL)
	if err != nil {
		return ""
	}
	u, err := base.Parse(strings.TrimSpace(at))
	if err != nil || at == "" || u.Scheme != base.Scheme || u.Host != base.Host || u.User != nil {
		return ""
	}
	return u.String()
}

// deliver passes a response to its pending request, and reports whether there is one.
func (p *httpSSE) deliver(m *protocol.Message) bool {
	if !m.IsResponse() {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	to := p.waiting[m.ID()]
	if to != nil {
		to <- m
		delete(p.waiting, m.ID())
	}
	return to != nil
}

// send posts m and passes the response to receive.
func (p *httpSSE) send(ctx context.Context, c *conn, m *protocol.Message, receive func(*protocol.Message)) *protocol.Error {
	answer := make(chan *protocol.Message, 1)
	if receive != nil {
		p.mu.Lock()
		p.waiting[m.ID()] = answer
		p.mu.Unlock()
		defer func() {
			p.mu.Lock()
			delete(p.waiting, m.ID())
			p.mu.Unlock()
		}()
	}
	resp, e := c.authorized(ctx, func() (*http.Response, *protocol.Error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.endpoint, bytes.NewReader(m.Bytes()))
		if err != nil {
			return nil, newError(interact.Usage, "", "%v", err)
		}
		req.Header.Set("Content-Type", "application/json")
		return c.do(req)
	})
	if e != nil {
		return e
	}
	drain(resp)
	if resp.StatusCode < 200 || resp.StatusCode >= 300 {
		return status(resp)
	}
	if receive == nil {
		return nil
	}
	select {
	case r := <-answer:
		receive(r)
		return nil
	case <-ctx.Done():
		return newError(interact.Cancelled, "", "connection closed")
	}
}
