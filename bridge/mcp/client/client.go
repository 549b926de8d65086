// Package client implements the client side of the MCP HTTP transports and of MCP authorization (OAuth 2.1). It passes messages on
// unchanged. An HTTP error becomes a JSON-RPC error with the code of lmosd in its data, {"code":"LMOS-1401","hint":"…"}.
//
// A [Login] obtains and renews tokens (login.go): it finds the authorization server (discover.go), lets the user log in (authorize.go) or
// authenticates as a confidential client, and revokes grants (revoke.go). The metadata types and the dynamic registration of OAuth are
// those of go-sdk; docs/decisions/0036 has the reason for the rest.
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
	"github.com/lmosd/lmosd/internal/httpbody"
)

const (
	maxPosts       = 1024             // pending requests
	notifyTimeout  = 30 * time.Second // bounds the sending of a notification
	closeTimeout   = 2 * time.Second  // bounds the end of a session
	maxResumes     = 5                // retries of a broken stream without a new event
	resumeDelay    = time.Second      // before a retry, unless the server sets it
	maxResumeDelay = 30 * time.Second
	listenTimeout  = 2 * time.Second // until the server opens its stream; some do so with the first event only
	maxLogins      = 3               // per request: one login, and up to two for more scopes
)

// Options configure a connection. URL is required.
type Options struct {
	URL string
	// Params returns the arguments of a tool that headers repeat; may be nil.
	Params func(tool string) []protocol.Param
	// Login authenticates the requests; may be nil.
	Login *Login
	// Transport sends the requests; nil means [http.DefaultTransport].
	Transport http.RoundTripper
	// Log receives warnings about omitted tools; may be nil.
	Log *slog.Logger
}

// Dial returns a connection, which ends with ctx or Close. It sends nothing before the first Write.
func Dial(ctx context.Context, o Options) protocol.Conn {
	c := &conn{o: o, in: make(chan *protocol.Message, 64), room: make(chan struct{}, maxPosts), posts: map[protocol.ID]context.CancelFunc{}}
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.http = &http.Client{Transport: cmp.Or(o.Transport, http.DefaultTransport), CheckRedirect: checkRedirects}
	return c
}

// checkRedirects rejects redirects to another origin, which would receive the secrets or bypass the address checks.
func checkRedirects(req *http.Request, via []*http.Request) error {
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
	room   chan struct{} // holds a token per pending request
	work   sync.WaitGroup

	renewing sync.Mutex // serializes the renewal of a session

	// mu guards the following fields.
	mu        sync.Mutex
	posts     map[protocol.ID]context.CancelFunc // pending stateless requests
	first     *protocol.Message                  // the initialize request of the session
	session   string
	version   string
	sse       *httpSSE // the connection to a server of 2024-11-05
	listening bool     // the stream of the server is open, or is being opened
	closed    bool
}

func (c *conn) Read(ctx context.Context) (*protocol.Message, error) {
	return protocol.Receive(ctx, c.in, c.ctx)
}

// Write implements [protocol.Conn]. It returns before the response to a request, but after the server has accepted a notification: later
// messages may depend on it.
func (c *conn) Write(ctx context.Context, m *protocol.Message) error {
	if m.Method() == protocol.Cancelled && c.drop(m) {
		return nil // closing the HTTP request cancels it (2026-07-28, "Cancellation")
	}
	if !m.IsRequest() {
		ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
		defer cancel()
		defer context.AfterFunc(c.ctx, cancel)()
		if e := c.exchange(ctx, m, nil); e != nil {
			return writeError(e)
		}
		if m.Method() == protocol.Initialized {
			c.listen()
		}
		return nil
	}
	select {
	case c.room <- struct{}{}:
	default:
		return interact.Errorf(interact.Overloaded, "try again later", "%d requests are pending", maxPosts)
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

// start runs f in a goroutine that Close waits for. It reports false if the connection is closed.
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

// drop ends the stateless request that a notification cancels, and reports whether there is one.
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

// request posts a request and passes on its messages. It always passes on a response, unless the request was cancelled.
func (c *conn) request(ctx context.Context, m *protocol.Message) {
	answered := false
	e := c.exchange(ctx, m, func(r *protocol.Message) {
		if r.IsResponse() && r.ID() == "" {
			r = protocol.RespondError(m.ID(), r.Error()) // the server could not read the id
		}
		answered = answered || r.IsResponse() && r.ID() == m.ID()
		if m.Method() == protocol.ListTools && m.IsModern() {
			r = c.dropInvalidTools(r)
		}
		c.pass(r)
	})
	c.mu.Lock()
	delete(c.posts, m.ID())
	c.mu.Unlock()
	if e == nil && !answered {
		e = newError(interact.Unreachable, "try again; the server may have executed it", "the server closed the connection before the response")
	}
	switch {
	case answered:
	case ctx.Err() != nil && !m.IsModern():
		c.abandon(m)
	case e != nil && ctx.Err() == nil:
		c.pass(protocol.RespondError(m.ID(), e))
	}
}

// abandon notifies the server of a session that a request is cancelled: the end of the connection does not cancel it (2025-11-25,
// "Cancellation").
func (c *conn) abandon(m *protocol.Message) {
	if m.Method() == protocol.Initialize {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	n := protocol.Request("", protocol.Cancelled, map[string]any{"requestId": json.RawMessage(m.ID()), "reason": "connection closed"})
	c.mu.Lock()
	p := c.sse
	c.mu.Unlock()
	if p != nil {
		_ = p.send(ctx, c, n, nil)
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

// exchange posts m and passes the messages of the response to receive. It logs in and repeats m if the server requires it, and restarts a
// session that the server no longer has.
func (c *conn) exchange(ctx context.Context, m *protocol.Message, receive func(*protocol.Message)) *protocol.Error {
	c.mu.Lock()
	p := c.sse
	c.mu.Unlock()
	if p != nil {
		return p.send(ctx, c, m, receive)
	}
	for renewed := false; ; renewed = true {
		session := ""
		resp, e := c.authorized(ctx, func() (resp *http.Response, e *protocol.Error) {
			resp, session, e = c.post(ctx, m)
			return resp, e
		})
		if e != nil {
			return e
		}
		if resp.StatusCode != http.StatusNotFound || session == "" || renewed || m.Method() == protocol.Initialize {
			defer resp.Body.Close()
			return c.answer(ctx, m, resp, receive)
		}
		drain(resp)
		if e := c.renew(ctx, session); e != nil {
			return e
		}
	}
}

// authorized sends a request, logs in if it is denied, and sends it again.
func (c *conn) authorized(ctx context.Context, send func() (*http.Response, *protocol.Error)) (*http.Response, *protocol.Error) {
	for logins := 0; ; logins++ {
		resp, e := send()
		if e != nil || c.o.Login == nil || logins == maxLogins {
			return resp, e
		}
		if resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusForbidden {
			return resp, nil
		}
		again, err := c.o.Login.reauthorize(ctx, resp)
		if err != nil {
			drain(resp)
			e := interact.AsError(err)
			return nil, protocol.Errorf(protocol.InternalError, "%s", e.Error()).
				With(map[string]any{"code": e.Code.String(), "hint": e.Hint, "next": e.Next})
		}
		if !again {
			return resp, nil
		}
		drain(resp)
	}
}

// drain discards the body so that the connection can be reused.
func drain(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
	resp.Body.Close()
}

// post sends m with the headers of its revision. It returns the session id that it sent.
func (c *conn) post(ctx context.Context, m *protocol.Message) (_ *http.Response, session string, _ *protocol.Error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.o.URL, bytes.NewReader(m.Bytes()))
	if err != nil {
		return nil, "", newError(interact.Usage, "", "%v", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if m.IsModern() {
		c.mirror(req.Header, m)
	} else {
		session = c.addSession(req.Header)
	}
	resp, e := c.do(req)
	return resp, session, e
}

// Hints of errors.
const (
	unreachableHint = "check that it runs, and its address"
	notMCPHint      = "is this the address of an MCP server?"
)

// do sends an authenticated request.
func (c *conn) do(req *http.Request) (*http.Response, *protocol.Error) {
	if c.o.Login != nil {
		c.o.Login.Add(req.Context(), req)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		why := oauth.Plain(err) // without the URL, which may contain a secret
		return nil, newError(interact.Unreachable, unreachableHint, "MCP server unreachable: %v", why)
	}
	return resp, nil
}

// answer reads the response to m.
func (c *conn) answer(ctx context.Context, m *protocol.Message, resp *http.Response, receive func(*protocol.Message)) *protocol.Error {
	ok := resp.StatusCode >= 200 && resp.StatusCode < 300
	switch media := interact.MediaType(resp.Header.Get("Content-Type")); {
	case ok && (receive == nil || resp.StatusCode == http.StatusAccepted):
		return nil
	case ok && media == "text/event-stream":
		c.noteSession(m, resp.Header, nil)
		return c.stream(ctx, m, resp, receive)
	}
	body, err := httpbody.ReadAll(resp.Body, resp.ContentLength, protocol.MaxMessage)
	isTooLarge := errors.Is(err, httpbody.ErrTooLarge)
	if err != nil && !isTooLarge {
		return newError(interact.Unreachable, "try again", "connection broken during the response")
	}
	r, bad := protocol.Parse(bytes.TrimSpace(body))
	switch {
	case ok && isTooLarge:
		return newError(interact.TooLarge, "request less", "the response of the server is too large")
	case r != nil && bad == nil && r.IsResponse() && receive != nil:
		c.noteSession(m, resp.Header, r)
		receive(r)
		return nil
	case ok:
		return newError(interact.AgentFailed, notMCPHint, "the response of the server is not an MCP message")
	}
	if m.Method() == protocol.Initialize && isLegacyStatus(resp.StatusCode) {
		return c.openLegacy(ctx, m, resp, receive)
	}
	if unknownMethodStatus[resp.StatusCode] && !m.IsModern() && !legacyMethods[m.Method()] {
		name := interact.Readable(interact.Clip(m.Method(), 128))
		return protocol.Errorf(protocol.UnknownMethod, "MCP server responded %d to %s, which is not an MCP method", resp.StatusCode, name)
	}
	return status(resp)
}

// legacyMethods are the methods of sessions. Some servers respond to unknown methods with a bare HTTP status.
var (
	legacyMethods = map[string]bool{protocol.Initialize: true, protocol.Initialized: true, protocol.Ping: true, protocol.SetLevel: true,
		protocol.Complete: true, protocol.ListTools: true, protocol.CallTool: true, protocol.ListPrompts: true, protocol.GetPrompt: true,
		protocol.ListResources: true, protocol.ListTemplates: true, protocol.ReadResource: true, protocol.Subscribe: true,
		protocol.Unsubscribe: true}
	unknownMethodStatus = map[int]bool{http.StatusBadRequest: true, http.StatusNotFound: true, http.StatusNotImplemented: true}
)

// isLegacyStatus reports whether a server of 2024-11-05 responds to POST with the status.
func isLegacyStatus(code int) bool {
	return code == http.StatusBadRequest || code == http.StatusNotFound || code == http.StatusMethodNotAllowed
}

// openLegacy connects to a server of 2024-11-05, which does not accept m as POST. If that fails, it returns the error of the first response.
func (c *conn) openLegacy(ctx context.Context, m *protocol.Message, resp *http.Response, receive func(*protocol.Message)) *protocol.Error {
	p, e := c.openSSE(ctx)
	if e != nil {
		return status(resp)
	}
	c.mu.Lock()
	c.sse = p
	over := p.ended
	c.mu.Unlock()
	if over {
		c.cancel()
	}
	return p.send(ctx, c, m, receive)
}

// noteSession stores the session id and the revision in the response to initialize.
func (c *conn) noteSession(m *protocol.Message, h http.Header, r *protocol.Message) {
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

// stream passes on the messages of an event stream until the response to m. It resumes a broken stream if the events have ids
// (2025-11-25, "Resumability").
func (c *conn) stream(ctx context.Context, m *protocol.Message, resp *http.Response, receive func(*protocol.Message)) *protocol.Error {
	s := &events{wait: resumeDelay}
	done := false
	got := func(r *protocol.Message) {
		if r.IsResponse() && r.ID() == m.ID() {
			c.noteSession(m, http.Header{}, r)
			done = true
		}
		receive(r)
	}
	last := ""
	for tries := 0; ; tries++ {
		err := s.read(resp.Body, got)
		resp.Body.Close()
		switch {
		case done:
			return nil
		case errors.As(err, new(*protocol.Error)):
			return newError(interact.TooLarge, "request less", "an event of the server is too large")
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

// get requests the events after the last event of s.
func (c *conn) get(ctx context.Context, s *events) (*http.Response, *protocol.Error) {
	if s.id != "" {
		if backoff.Sleep(ctx, min(s.wait, maxResumeDelay)) != nil {
			return nil, newError(interact.Cancelled, "", "connection closed")
		}
	}
	resp, e := c.authorized(ctx, func() (*http.Response, *protocol.Error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.o.URL, nil)
		if err != nil {
			return nil, newError(interact.Usage, "", "%v", err)
		}
		req.Header.Set("Accept", "text/event-stream")
		if s.id != "" {
			req.Header.Set("Last-Event-ID", s.id)
		}
		c.addSession(req.Header)
		return c.do(req)
	})
	if e == nil && (resp.StatusCode != http.StatusOK || interact.MediaType(resp.Header.Get("Content-Type")) != "text/event-stream") {
		drain(resp)
		return nil, status(resp)
	}
	return resp, e
}

// listen passes on the messages of the server that belong to no request, if the server has such a stream (2025-11-25, "Listening for
// messages").
func (c *conn) listen() {
	c.mu.Lock()
	again := c.listening || c.sse != nil
	c.listening = true
	c.mu.Unlock()
	if again {
		return
	}
	open := make(chan struct{})
	opened := sync.OnceFunc(func() { close(open) })
	started := c.start(nil, nil, func() {
		defer opened()
		s := &events{wait: resumeDelay}
		for c.ctx.Err() == nil {
			resp, e := c.get(c.ctx, s)
			if e != nil {
				break // not supported, or the server is down, which the next request reports
			}
			opened()
			_ = s.read(resp.Body, c.pass)
			resp.Body.Close()
			if s.id == "" {
				_ = backoff.Sleep(c.ctx, min(s.wait, maxResumeDelay)) // the loop checks the context
			}
		}
		c.mu.Lock()
		c.listening = false
		c.mu.Unlock()
	})
	if !started {
		return
	}
	select { // many servers drop messages that they send before the stream is open
	case <-open:
	case <-time.After(listenTimeout):
	}
}

// renewID is the id of the initialize request that restarts a session.
const renewID protocol.ID = `"lmosd-again"`

// renew restarts a session that the server no longer has, unless another request did so.
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
	if e := c.exchange(ctx, first.WithID(renewID), func(r *protocol.Message) { refusal = r.Error() }); e != nil || refusal != nil {
		return cmp.Or(e, refusal)
	}
	e := c.exchange(ctx, protocol.Request("", protocol.Initialized, nil), nil)
	if e == nil {
		c.listen()
	}
	return e
}

// Close implements [protocol.Conn]. It also ends the session at the server.
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
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, c.o.URL, nil)
	if err != nil {
		return err
	}
	c.addSession(req.Header)
	if resp, e := c.do(req); e == nil {
		drain(resp)
	}
	return nil
}

// statuses maps HTTP errors to codes. All others are AgentFailed.
var statuses = map[int]interact.Code{
	http.StatusUnauthorized: interact.Unauthenticated, http.StatusForbidden: interact.Forbidden,
	http.StatusRequestEntityTooLarge: interact.TooLarge, http.StatusTooManyRequests: interact.RateLimited,
	http.StatusBadGateway: interact.Unreachable, http.StatusServiceUnavailable: interact.Unreachable,
	http.StatusGatewayTimeout: interact.Timeout, http.StatusRequestTimeout: interact.Timeout,
}

// status returns the error for an HTTP status without an MCP message.
func status(resp *http.Response) *protocol.Error {
	hint := notMCPHint
	code, known := statuses[resp.StatusCode]
	if !known {
		code = interact.AgentFailed
	}
	if code == interact.Unauthenticated || code == interact.Forbidden {
		hint = "the operator of the host must add its credentials to the credentials file: docs/agents.md"
	}
	return newError(code, hint, "MCP server responded %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
}

// newError returns an error of lmosd as a JSON-RPC error.
func newError(code interact.Code, hint, format string, args ...any) *protocol.Error {
	return protocol.Errorf(protocol.InternalError, "%s", fmt.Sprintf(format, args...)).With(map[string]any{"code": code.String(), "hint": hint})
}

// writeError converts the error of a notification for Write.
func writeError(e *protocol.Error) error {
	return interact.Errorf(interact.Unreachable, "try again later", "%s", strings.TrimSpace(e.Message))
}
