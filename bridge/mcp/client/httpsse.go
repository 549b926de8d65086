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

// greetWait is how long a server may take to say where it is to be asked.
const greetWait = 10 * time.Second

// A pair is a connection to a server of 2024-11-05: what is posted to an endpoint is answered in a stream that stays open, and that
// begins with where the endpoint is (2024-11-05, "HTTP with SSE"). When the stream ends, so does the connection.
type pair struct {
	endpoint string
	over     bool // its stream has ended; owned by conn.mu

	mu      sync.Mutex
	waiting map[protocol.ID]chan *protocol.Message
}

// begin opens the stream of a server that takes no posts at its address.
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
			c.cancel() // who is connected to it connects again
		}
	}) {
		resp.Body.Close()
		return nil, refused(interact.Cancelled, "", "the connection was closed")
	}
	select {
	case at := <-greeting:
		if p.endpoint = c.beside(at); p.endpoint == "" {
			return nil, refused(interact.AgentFailed, "", "the server wants to be asked elsewhere: %s", interact.Readable(interact.Clip(at, 200)))
		}
		return p, nil
	case <-time.After(greetWait):
	case <-ctx.Done():
	}
	return nil, refused(interact.AgentFailed, "is this the address of an MCP server?", "the server does not say where it is to be asked")
}

// listen reads the stream to its end.
func (p *pair) listen(c *conn, stream io.Reader, greeting chan<- string) {
	s := &events{named: func(name string, data []byte) {
		if name != "endpoint" {
			return
		}
		select {
		case greeting <- string(data):
		default: // it has said so
		}
	}}
	_ = s.read(stream, func(m *protocol.Message) {
		if !p.answered(m) {
			c.pass(m)
		}
	})
	close(greeting)
}

// beside is an address that the server names, if it is of its own origin: secrets go there.
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

// answered gives a response to who waits for it; false if nobody does.
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

// ask posts m, and gives what is answered to take.
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
		return refused(interact.Cancelled, "", "the connection was closed")
	}
}
