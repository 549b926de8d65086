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
const greetWait = 10 * time.Second

// An httpSSE is a connection to a server of 2024-11-05: requests are posted to an endpoint, and the responses arrive on one event stream.
// The first event of the stream names the endpoint (2024-11-05, "HTTP with SSE"). The connection ends with the stream.
type pair struct {
	endpoint string
	over     bool // the stream has ended; guarded by conn.mu

	mu      sync.Mutex
	waiting map[protocol.ID]chan *protocol.Message
}

// openSSE opens the event stream and waits for the endpoint.
func (c *conn) begin(ctx context.Context) (_ *pair, e *protocol.Error) {
	life, stop := context.WithCancel(c.ctx)
	defer func() {
		if e != nil {
			stop()
		}
	}()
	resp, e := c.admitted(ctx, func() (*http.Response, *protocol.Error) {
		req, err := http.NewRequestWithContext(life, http.MethodGet, c.o.URL, nil)
		if err != nil {
			return nil, refused(interact.Usage, "", "%v", err)
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
	p := &pair{waiting: map[protocol.ID]chan *protocol.Message{}}
	greeting := make(chan string, 1)
	if !c.start(nil, nil, func() {
		defer stop()
		defer resp.Body.Close()
		p.listen(c, resp.Body, greeting)
		c.mu.Lock()
		defer c.mu.Unlock()
		if p.over = true; c.pair == p {
			c.cancel() // the owner of the connection dials again
		}
	}) {
		resp.Body.Close()
		return nil, refused(interact.Cancelled, "", "connection closed")
	}
	select {
	case at := <-greeting:
		if p.endpoint = c.beside(at); p.endpoint == "" {
			return nil, refused(interact.AgentFailed, "", "the endpoint has another origin than the server: %s", interact.Readable(interact.Clip(at, 200)))
		}
		return p, nil
	case <-time.After(greetWait):
	case <-ctx.Done():
	}
	return nil, refused(interact.AgentFailed, "is this the address of an MCP server?", "no endpoint event from the server")
}

// listen reads the stream until it ends.
func (p *pair) listen(c *conn, stream io.Reader, greeting chan<- string) {
	s := &events{named: func(name string, data []byte) {
		if name != "endpoint" {
			return
		}
		select {
		case greeting <- string(data):
		default: // duplicate
		}
	}}
	_ = s.read(stream, func(m *protocol.Message) {
		if !p.answered(m) {
			c.pass(m)
		}
	})
	close(greeting)
}

// resolve returns the URL of an endpoint; empty if its origin is not that of the server, since the requests contain secrets.
func (c *conn) beside(at string) string {
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
func (p *pair) answered(m *protocol.Message) bool {
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
func (p *pair) ask(ctx context.Context, c *conn, m *protocol.Message, take func(*protocol.Message)) *protocol.Error {
	answer := make(chan *protocol.Message, 1)
	if take != nil {
		p.mu.Lock()
		p.waiting[m.ID()] = answer
		p.mu.Unlock()
		defer func() {
			p.mu.Lock()
			delete(p.waiting, m.ID())
			p.mu.Unlock()
		}()
	}
	resp, e := c.admitted(ctx, func() (*http.Response, *protocol.Error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.endpoint, bytes.NewReader(m.Bytes()))
		if err != nil {
			return nil, refused(interact.Usage, "", "%v", err)
		}
		req.Header.Set("Content-Type", "application/json")
		return c.do(req)
	})
	if e != nil {
		return e
	}
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
	resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode >= 300 {
		return status(resp)
	}
	if take == nil {
		return nil
	}
	select {
	case r := <-answer:
		take(r)
		return nil
	case <-ctx.Done():
		return refused(interact.Cancelled, "", "connection closed")
	}
}
