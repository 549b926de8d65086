// Package client implements the client side of the MCP HTTP transports and of MCP authorization (OAuth 2.1). Messages pass as they
// are. What HTTP says in place of an answer is an error of JSON-RPC with lmosd's own code in its data,
// {"code":"LMOS-1401","hint":"…"}.
//
// A [Login] gets what a server wants before it lets anybody in (login.go): it finds the authorization server (discover.go), asks a person
// (consent.go) or says who this host is, and gives back what was granted (logout.go).
//
// Sources: MCP 2026-07-28 and 2025-11-25, "Transports", "Streamable HTTP", "Authorization"; MCP 2024-11-05, "HTTP with SSE".
package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/oauth"
	"github.com/lmosd/lmosd/internal/backoff"
)

const (
	maxPosts   = 1024             // requests that wait at once
	noteWait   = 30 * time.Second // for a notification to be taken
	goodbye    = 2 * time.Second  // for the end of a session to be taken
	maxResumes = 5                // of a stream that breaks without a new event
	resumeWait = time.Second      // before, unless the server says how long
	maxWait    = 30 * time.Second
	listenWait = 2 * time.Second // until a server has begun to speak by itself; some say so with the first word only
	maxLogins  = 3               // for one request: to be let in at all, and for more than that was
)

// Options say where a server is. URL is needed.
type Options struct {
	URL string
	// Params returns the arguments of a tool that headers repeat; nil knows of none.
	Params func(tool string) []protocol.Param
	// Login adds to requests what they need to be let in; nil adds nothing.
	Login *Login
	// Transport makes the requests; nil means that of net/http.
	Transport http.RoundTripper
	// Log is told what is left out; nil is not.
	Log *slog.Logger
}

// Dial returns a connection, which ends with ctx or with Close. Nothing is asked before something is written.
func Dial(ctx context.Context, o Options) protocol.Conn {
	c := &conn{o: o, in: make(chan *protocol.Message, 64), room: make(chan struct{}, maxPosts), posts: map[protocol.ID]context.CancelFunc{}}
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.http = &http.Client{Transport: cmp.Or(o.Transport, http.DefaultTransport), CheckRedirect: stay}
	return c
}

// stay follows no redirect to another origin: it would take the secrets along, or lead to where nobody meant to ask.
func stay(req *http.Request, via []*http.Request) error {
	if first := via[0].URL; len(via) > 3 || req.URL.Scheme != first.Scheme || req.URL.Host != first.Host {
		return http.ErrUseLastResponse
	}
	return nil
}

type conn struct {
	o      Options
	http   *http.Client
	ctx    context.Context
	cancel context.CancelFunc
	in     chan *protocol.Message
	room   chan struct{}
	work   sync.WaitGroup

	renewing sync.Mutex // held while a session is begun again

	// The rest is owned by mu.
	mu      sync.Mutex
	posts   map[protocol.ID]context.CancelFunc // modern requests that wait
	first   *protocol.Message                  // initialize, of a session
	session string
	version string
	pair    *pair // to a server of 2024-11-05
	heard   bool  // the server is listened to beside its answers
	closed  bool
}

// Read implements [protocol.Conn].
func (c *conn) Read(ctx context.Context) (*protocol.Message, error) {
	select {
	case m := <-c.in:
		return m, nil
	case <-c.ctx.Done():
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Write implements [protocol.Conn]. It returns before a request is answered, and after a notification was taken: what comes after it may
// depend on it.
func (c *conn) Write(ctx context.Context, m *protocol.Message) error {
	if m.Method() == protocol.Cancelled && c.drop(m) {
		return nil // who closes a request cancels it (2026-07-28, "Cancellation")
	}
	if !m.IsRequest() {
		ctx, cancel := context.WithTimeout(ctx, noteWait)
		defer cancel()
		defer context.AfterFunc(c.ctx, cancel)()
		if e := c.exchange(ctx, m, nil); e != nil {
			return failure(e)
		}
		if m.Method() == protocol.Initialized {
			c.listen()
		}
		return nil
	}
	select {
	case c.room <- struct{}{}:
	default:
		return interact.Errorf(interact.Overloaded, "try again later", "%d requests wait already", maxPosts)
	}
	post, cancel := context.WithCancel(c.ctx)
	if !c.start(m, cancel, func() {
		defer func() { <-c.room }()
		defer cancel()
		c.request(post, m)
	}) {
		cancel()
		<-c.room
		return io.ErrClosedPipe
	}
	return nil
}

// start runs f in a goroutine that Close waits for.
func (c *conn) start(m *protocol.Message, cancel context.CancelFunc, f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	if m != nil && m.IsModern() {
		c.posts[m.ID()] = cancel
	}
	if m != nil && m.Method() == protocol.Initialize {
		c.first = m
	}
	c.work.Go(f)
	return true
}

// drop ends the modern request that a notification cancels; false if there is none.
func (c *conn) drop(m *protocol.Message) bool {
	raw, _ := m.Param("requestId")
	c.mu.Lock()
	defer c.mu.Unlock()
	cancel := c.posts[protocol.ID(raw)]
	if cancel != nil {
		cancel()
	}
	return cancel != nil
}

// request posts a request and passes on what comes of it: a response always, unless the request was cancelled.
func (c *conn) request(ctx context.Context, m *protocol.Message) {
	answered := false
	e := c.exchange(ctx, m, func(r *protocol.Message) {
		if r.IsResponse() && r.ID() == "" {
			r = protocol.Refuse(m.ID(), r.Error()) // the server could not read the id, and answers all the same
		}
		answered = answered || r.IsResponse() && r.ID() == m.ID()
		if m.Method() == "tools/list" && m.IsModern() {
			r = c.usable(r)
		}
		c.pass(r)
	})
	c.mu.Lock()
	delete(c.posts, m.ID())
	c.mu.Unlock()
	if e == nil && !answered {
		e = refused(interact.Unreachable, "ask again; it may have been done", "the server ended the connection before it answered")
	}
	switch {
	case answered:
	case ctx.Err() != nil && !m.IsModern():
		c.abandon(m)
	case e != nil && ctx.Err() == nil:
		c.pass(protocol.Refuse(m.ID(), e))
	}
}

// abandon tells the server of a session that nobody waits any more for a request: that the connection ends, or even the session, is no
// reason for it to stop (2025-11-25, "Cancellation").
func (c *conn) abandon(m *protocol.Message) {
	if m.Method() == protocol.Initialize {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	n := protocol.Request("", protocol.Cancelled, map[string]any{"requestId": json.RawMessage(m.ID()), "reason": "the connection is closed"})
	c.mu.Lock()
	pair := c.pair
	c.mu.Unlock()
	if pair != nil {
		_ = pair.ask(ctx, c, n, nil)
		return
	}
	if resp, _, e := c.post(ctx, n); e == nil {
		drain(resp)
	}
}

func (c *conn) pass(m *protocol.Message) {
	select {
	case c.in <- m:
	case <-c.ctx.Done():
	}
}

// exchange posts m, and gives what comes back to take. A server that wants to be logged in at, and one that has forgotten the session,
// are asked once more.
func (c *conn) exchange(ctx context.Context, m *protocol.Message, take func(*protocol.Message)) *protocol.Error {
	c.mu.Lock()
	pair := c.pair
	c.mu.Unlock()
	if pair != nil {
		return pair.ask(ctx, c, m, take)
	}
	for renewed := false; ; renewed = true {
		session := ""
		resp, e := c.admitted(ctx, func() (resp *http.Response, e *protocol.Error) {
			resp, session, e = c.post(ctx, m)
			return resp, e
		})
		if e != nil {
			return e
		}
		if resp.StatusCode != http.StatusNotFound || session == "" || renewed || m.Method() == protocol.Initialize {
			defer resp.Body.Close()
			return c.answer(ctx, m, resp, take)
		}
		drain(resp)
		if e := c.renew(ctx, session); e != nil {
			return e
		}
	}
}

// admitted is the answer to a request, which is made again after a login if it was denied.
func (c *conn) admitted(ctx context.Context, ask func() (*http.Response, *protocol.Error)) (*http.Response, *protocol.Error) {
	for logins := 0; ; logins++ {
		resp, e := ask()
		if e != nil || c.o.Login == nil || logins == maxLogins {
			return resp, e
		}
		if resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusForbidden {
			return resp, nil
		}
		again, err := c.o.Login.Anew(ctx, resp)
		if err != nil {
			drain(resp)
			e := interact.AsError(err)
			return nil, refused(e.Code, e.Hint, "%s", e.Error())
		}
		if !again {
			return resp, nil
		}
		drain(resp)
	}
}

// drain lets a connection be used again.
func drain(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
	resp.Body.Close()
}

// post sends m, with the headers of its era.
func (c *conn) post(ctx context.Context, m *protocol.Message) (_ *http.Response, session string, _ *protocol.Error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.o.URL, bytes.NewReader(m.Bytes()))
	if err != nil {
		return nil, "", refused(interact.Usage, "", "%v", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if m.IsModern() {
		c.repeat(req.Header, m)
	} else {
		session = c.mark(req.Header)
	}
	resp, e := c.do(req)
	return resp, session, e
}

// do asks the server, logged in.
func (c *conn) do(req *http.Request) (*http.Response, *protocol.Error) {
	if c.o.Login != nil {
		c.o.Login.Add(req.Context(), req)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		why := oauth.Plain(err) // without the address, which may have a secret in it
		return nil, refused(interact.Unreachable, "see that it runs, and that the address is right", "the MCP server cannot be reached: %v", why)
	}
	return resp, nil
}

// answer reads what the server answers to m.
func (c *conn) answer(ctx context.Context, m *protocol.Message, resp *http.Response, take func(*protocol.Message)) *protocol.Error {
	ok := resp.StatusCode >= 200 && resp.StatusCode < 300
	switch media := interact.MediaType(resp.Header.Get("Content-Type")); {
	case ok && (take == nil || resp.StatusCode == http.StatusAccepted):
		return nil
	case ok && media == "text/event-stream":
		c.note(m, resp.Header, nil)
		return c.stream(ctx, m, resp, take)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, protocol.MaxMessage+1))
	if err != nil {
		return refused(interact.Unreachable, "ask again", "the connection broke in the answer")
	}
	r, bad := protocol.Parse(bytes.TrimSpace(body))
	switch {
	case r != nil && bad == nil && r.IsResponse() && take != nil:
		c.note(m, resp.Header, r)
		take(r)
		return nil
	case ok && len(body) > protocol.MaxMessage:
		return refused(interact.TooLarge, "ask for less", "the answer of the server is too large")
	case ok:
		return refused(interact.AgentFailed, "is this the address of an MCP server?", "the server answers with what is no message of MCP")
	}
	if m.Method() == protocol.Initialize && notPosted(resp.StatusCode) {
		return c.older(ctx, m, resp, take)
	}
	if refusesMethods[resp.StatusCode] && !m.IsModern() && !methods[m.Method()] {
		name := interact.Readable(interact.Clip(m.Method(), 128))
		return protocol.Errorf(protocol.UnknownMethod, "the MCP server answers %d to %s, which is no method of MCP", resp.StatusCode, name)
	}
	return status(resp)
}

// methods are those of the old era. Some servers refuse all others in the words of HTTP, which say nothing of why.
var (
	methods = map[string]bool{protocol.Initialize: true, protocol.Initialized: true, "ping": true, "logging/setLevel": true,
		"completion/complete": true, "tools/list": true, "tools/call": true, "prompts/list": true, "prompts/get": true,
		"resources/list": true, "resources/templates/list": true, "resources/read": true, "resources/subscribe": true,
		"resources/unsubscribe": true}
	refusesMethods = map[int]bool{http.StatusBadRequest: true, http.StatusNotFound: true, http.StatusNotImplemented: true}
)

// notPosted tells whether an answer is one of a server of 2024-11-05 to a post.
func notPosted(code int) bool {
	return code == http.StatusBadRequest || code == http.StatusNotFound || code == http.StatusMethodNotAllowed
}

// older asks a server that does not take m as a post in the way of 2024-11-05. If it does not speak that either, its first answer stands.
func (c *conn) older(ctx context.Context, m *protocol.Message, resp *http.Response, take func(*protocol.Message)) *protocol.Error {
	p, e := c.begin(ctx)
	if e != nil {
		return status(resp)
	}
	c.mu.Lock()
	c.pair = p
	over := p.over
	c.mu.Unlock()
	if over {
		c.cancel()
	}
	return p.ask(ctx, c, m, take)
}

// note remembers the session that the answer to initialize begins.
func (c *conn) note(m *protocol.Message, h http.Header, r *protocol.Message) {
	if m.Method() != protocol.Initialize {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if id := h.Get("Mcp-Session-Id"); id != "" {
		c.session = id
	}
	if r != nil {
		if raw, _ := r.InResult("protocolVersion"); raw != nil {
			_ = json.Unmarshal(raw, &c.version)
		}
	}
}

// stream passes on the messages of an event stream until it has the response to m. One that breaks is resumed, where the server lets it
// be (2025-11-25, "Resumability").
func (c *conn) stream(ctx context.Context, m *protocol.Message, resp *http.Response, take func(*protocol.Message)) *protocol.Error {
	s := &events{wait: resumeWait}
	done := false
	got := func(r *protocol.Message) {
		if r.IsResponse() && r.ID() == m.ID() {
			c.note(m, http.Header{}, r)
			done = true
		}
		take(r)
	}
	last := ""
	for tries := 0; ; tries++ {
		err := s.read(resp.Body, got)
		resp.Body.Close()
		switch {
		case done:
			return nil
		case errors.As(err, new(*protocol.Error)):
			return refused(interact.TooLarge, "ask for less", "an event of the server is too large")
		case s.id == "" || m.IsModern() || ctx.Err() != nil:
			return nil
		case s.id != last:
			last, tries = s.id, 0
		case tries == maxResumes:
			return nil
		}
		var e *protocol.Error
		if resp, e = c.get(ctx, s); e != nil {
			return e
		}
	}
}

// get asks for the events after the last of s.
func (c *conn) get(ctx context.Context, s *events) (*http.Response, *protocol.Error) {
	if s.id != "" {
		if backoff.Sleep(ctx, min(s.wait, maxWait)) != nil {
			return nil, refused(interact.Cancelled, "", "the connection was closed")
		}
	}
	resp, e := c.admitted(ctx, func() (*http.Response, *protocol.Error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.o.URL, nil)
		if err != nil {
			return nil, refused(interact.Usage, "", "%v", err)
		}
		req.Header.Set("Accept", "text/event-stream")
		if s.id != "" {
			req.Header.Set("Last-Event-ID", s.id)
		}
		c.mark(req.Header)
		return c.do(req)
	})
	if e == nil && (resp.StatusCode != http.StatusOK || interact.MediaType(resp.Header.Get("Content-Type")) != "text/event-stream") {
		drain(resp)
		return nil, status(resp)
	}
	return resp, e
}

// listen passes on what an old server says beside its answers, if it does (2025-11-25, "Listening for messages").
func (c *conn) listen() {
	c.mu.Lock()
	again := c.heard || c.pair != nil
	c.heard = true
	c.mu.Unlock()
	if again {
		return
	}
	open := make(chan struct{})
	opened := sync.OnceFunc(func() { close(open) })
	started := c.start(nil, nil, func() {
		defer opened()
		s := &events{wait: resumeWait}
		for c.ctx.Err() == nil {
			resp, e := c.get(c.ctx, s)
			if e != nil {
				break // it does not offer it, or is gone: the next request will tell
			}
			opened()
			_ = s.read(resp.Body, c.pass)
			resp.Body.Close()
			if s.id == "" {
				_ = backoff.Sleep(c.ctx, min(s.wait, maxWait)) // the loop ends with it
			}
		}
		c.mu.Lock()
		c.heard = false
		c.mu.Unlock()
	})
	if !started {
		return
	}
	select { // many servers lose what they want to say before anybody listens
	case <-open:
	case <-time.After(listenWait):
	}
}

// againID is the id of what begins a session again.
const againID protocol.ID = `"lmosd-again"`

// renew begins the session again that the server has forgotten, unless somebody has.
func (c *conn) renew(ctx context.Context, forgotten string) *protocol.Error {
	c.renewing.Lock()
	defer c.renewing.Unlock()
	c.mu.Lock()
	first, fresh := c.first, c.session != forgotten
	if !fresh {
		c.session, c.version = "", ""
	}
	c.mu.Unlock()
	if fresh {
		return nil
	}
	var refusal *protocol.Error
	if e := c.exchange(ctx, first.WithID(againID), func(r *protocol.Message) { refusal = r.Error() }); e != nil || refusal != nil {
		return cmp.Or(e, refusal)
	}
	e := c.exchange(ctx, protocol.Request("", protocol.Initialized, nil), nil)
	if e == nil {
		c.listen()
	}
	return e
}

// Close implements [protocol.Conn]. A session is ended at the server, too.
func (c *conn) Close() error {
	c.mu.Lock()
	again, session := c.closed, c.session
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.work.Wait()
	if again || session == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, c.o.URL, nil)
	if err != nil {
		return err
	}
	c.mark(req.Header)
	if resp, e := c.do(req); e == nil {
		drain(resp)
	}
	return nil
}

// statuses are what HTTP says in place of an answer. All others are AgentFailed.
var statuses = map[int]interact.Code{
	http.StatusUnauthorized: interact.Unauthenticated, http.StatusForbidden: interact.Forbidden, http.StatusRequestEntityTooLarge: interact.TooLarge,
	http.StatusTooManyRequests: interact.RateLimited, http.StatusBadGateway: interact.Unreachable, http.StatusServiceUnavailable: interact.Unreachable,
	http.StatusGatewayTimeout: interact.Timeout, http.StatusRequestTimeout: interact.Timeout,
}

func status(resp *http.Response) *protocol.Error {
	hint := "is this the address of an MCP server?"
	code, known := statuses[resp.StatusCode]
	if !known {
		code = interact.AgentFailed
	}
	if code == interact.Unauthenticated || code == interact.Forbidden {
		hint = "the operator of the host adds what it needs to its credentials file; see docs/agents.md"
	}
	return refused(code, hint, "the MCP server answers %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
}

// refused is an error of lmosd's own.
func refused(code interact.Code, hint, format string, args ...any) *protocol.Error {
	return protocol.Errorf(protocol.InternalError, "%s", fmt.Sprintf(format, args...)).With(map[string]any{"code": code.String(), "hint": hint})
}

// failure is a refusal as an error of Write.
func failure(e *protocol.Error) error {
	return interact.Errorf(interact.Unreachable, "try again later", "%s", strings.TrimSpace(e.Message))
}
