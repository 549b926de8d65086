package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/lmosd/lmosd/internal/ratelimit"
)

// Notify receives the notifications of a request. An error cancels the request.
type Notify = func(*Message) error

// Ignore is a [Notify] that drops the notifications.
func Ignore(*Message) error { return nil }

// A Server is a local or remote MCP server. It supports stateless requests and sessions; the implementation converts between both if the
// server supports only one of them.
type Server interface {
	// Call sends a request of 2026-07-28 and returns its response. It passes the notifications of the request to notify, in the goroutine
	// of the caller. An error of notify, or the end of ctx, cancels the request. An error response is returned as a response; the error
	// of Call means that there is no response.
	Call(ctx context.Context, m *Message, notify Notify) (*Message, error)
	// Session starts a session of 2025-11-25 or earlier. The first message of the client is initialize. The session ends when the Conn is
	// closed or ctx ends. The Conn returns a response to each request, as [EnsureResponses] does.
	Session(ctx context.Context) (Conn, error)
}

type callerKey struct{}

// WithCaller returns a context with the name of the caller. Servers keep the state of callers apart by this name.
func WithCaller(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, callerKey{}, name)
}

// CallerOf returns the name of the caller; empty if the context has none.
func CallerOf(ctx context.Context) string {
	name, _ := ctx.Value(callerKey{}).(string)
	return name
}

type userKey struct{}

// WithUser returns a context with a user of a relay, by the relay's own name for it. The name is not verified; it only keeps the state of
// users apart.
func WithUser(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, userKey{}, name)
}

// UserOf returns the user of the caller; empty for the caller itself.
func UserOf(ctx context.Context) string {
	name, _ := ctx.Value(userKey{}).(string)
	return name
}

const (
	// maxQueued and maxQueuedBytes bound the messages that wait for a caller. Beyond them progress and log messages are dropped, and any
	// other notification cancels the call, because other callers share the connection.
	maxQueued      = 1024
	maxQueuedBytes = 32 << 20
	// maxInvalid bounds the invalid lines in a row.
	maxInvalid = 1000
	// logTimeout bounds the wait of a request for the log messages of the connection.
	logTimeout = time.Second
	// cancelTimeout bounds the sending of a cancellation.
	cancelTimeout = time.Second
)

var (
	errSlow   = errors.New("the caller reads notifications too slowly")
	errNotMCP = errors.New("the server sends text that is not MCP")
)

// A Multiplexer shares one stateless connection (2026-07-28) among many callers. It gives each request its own id and progress token on
// the connection, and restores those of the caller in responses and notifications. [Multiplexer.Run] reads the connection.
//
// A log message does not name its request. Therefore only one request at a time receives log messages; a request that cannot acquire them
// within a second runs without.
type Multiplexer struct {
	conn        Conn
	unsolicited func(*Message) // receives messages of no call; may be nil
	logs        chan struct{}  // holds a token while a request receives the log messages

	mu          sync.Mutex
	lastID      int64           // latest id
	calls       map[ID]*pending // by id on the connection
	tokens      map[string]*pending
	logCall     *pending // receives the log messages
	endErr      error    // why the connection ended; nil while it is open
	writeFailed bool     // a write failed
	done        chan struct{}
}

// A pending request waits for its response.
type pending struct {
	id    ID              // of the caller
	token json.RawMessage // of the caller; nil if none

	mu      sync.Mutex
	queue   []*Message
	size    int              // bytes of queue
	end     error            // why no more messages follow the queue
	rate    ratelimit.Bucket // of progress and log messages
	changed chan struct{}
}

func newPending(id ID, token json.RawMessage) *pending {
	return &pending{id: id, token: token, changed: make(chan struct{}, 1)}
}

// Multiplex returns a multiplexer of conn. It passes notifications and requests of the server that belong to no call to unsolicited,
// which must not block. If unsolicited is nil they are dropped.
func Multiplex(conn Conn, unsolicited func(*Message)) *Multiplexer {
	return &Multiplexer{conn: conn, unsolicited: unsolicited, logs: make(chan struct{}, 1), done: make(chan struct{}), calls: map[ID]*pending{},
		tokens: map[string]*pending{}}
}

// Run reads the connection until it ends and returns the reason. Pending calls return the same error.
func (s *Multiplexer) Run(ctx context.Context) error {
	invalid := 0
	for {
		m, err := s.conn.Read(ctx)
		if bad, ok := err.(*Error); ok {
			if invalid++; invalid > maxInvalid {
				return s.end(errNotMCP)
			}
			s.failCall(m, bad)
			continue
		}
		if err != nil {
			return s.end(err)
		}
		invalid = 0
		if p := s.callOf(m); p != nil {
			p.add(m)
		} else if s.unsolicited != nil && !m.IsResponse() {
			s.unsolicited(m)
		}
	}
}

// failCall ends the call whose response is invalid, if m has its id.
func (s *Multiplexer) failCall(m *Message, bad *Error) {
	if m == nil {
		return
	}
	s.mu.Lock()
	p := s.calls[m.id]
	s.mu.Unlock()
	if p != nil {
		p.add(RespondMalformed(m.id, bad))
	}
}

func (s *Multiplexer) end(err error) error {
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endErr = err
	close(s.done)
	for _, p := range s.calls {
		p.stop(err)
	}
	s.calls, s.tokens, s.logCall = nil, nil, nil
	return err
}

// callOf returns the call that m belongs to; nil if there is none.
func (s *Multiplexer) callOf(m *Message) *pending {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case m.IsResponse():
		return s.calls[m.id]
	case m.IsRequest():
		return nil
	case m.method == Progress:
		return s.tokens[string(m.ProgressToken())]
	case m.method == Cancelled:
		raw, _ := m.Param("requestId")
		return s.calls[IDOf(raw)]
	case m.method == LogMessage && s.logCall != nil:
		return s.logCall
	}
	raw, _ := m.Param("_meta", MetaSubscription)
	return s.calls[IDOf(raw)]
}

// add queues a message. Progress and log messages beyond the limits are dropped.
func (p *pending) add(m *Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	full := len(p.queue) >= maxQueued || p.size > maxQueuedBytes
	switch {
	case p.end != nil, m.Droppable() && (full || !p.rate.Take(ProgressLimit, 1, time.Now())):
		return
	case full && !m.IsResponse():
		p.end = errSlow
	default:
		p.queue = append(p.queue, m)
		p.size += len(m.text)
	}
	p.signalLocked()
}

// stop ends the queue with an error.
func (p *pending) stop(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end == nil {
		p.end = err
		p.signalLocked()
	}
}

func (p *pending) signalLocked() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// next returns the next message of the queue, or the reason why no more follow.
func (p *pending) next(ctx context.Context) (*Message, error) {
	for {
		p.mu.Lock()
		if len(p.queue) > 0 {
			m := p.queue[0]
			p.queue[0], p.queue = nil, p.queue[1:]
			p.size -= len(m.text)
			p.mu.Unlock()
			return m, nil
		}
		end := p.end
		p.mu.Unlock()
		if end != nil {
			return nil, end
		}
		select {
		case <-p.changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Logging reports whether a request currently receives the log messages, so that another must wait or use another connection.
func (s *Multiplexer) Logging() bool { return len(s.logs) > 0 }

// Call implements [Server] for one connection.
func (s *Multiplexer) Call(ctx context.Context, m *Message, notify Notify) (*Message, error) {
	p := newPending(m.id, m.ProgressToken())
	logs := m.Text("_meta", MetaLogLevel) != ""
	if logs {
		if logs = m.method != Listen && s.acquireLogs(ctx); logs {
			defer func() { <-s.logs }()
		} else {
			m = m.WithParam(nil, "_meta", MetaLogLevel)
		}
	}
	id, sent, err := s.enter(p, m, logs)
	if err != nil {
		return nil, err
	}
	defer s.leave(id, p)
	if err := s.conn.Write(ctx, sent); err != nil {
		if ctx.Err() != nil {
			s.cancel(ctx, id)
			return nil, err
		}
		return nil, s.failWrite(err)
	}
	for {
		r, err := p.next(ctx)
		if err == nil {
			if r = p.translate(r); r.IsResponse() {
				return r, nil
			}
			err = notify(r)
		}
		if err != nil {
			s.cancel(ctx, id)
			return nil, err
		}
	}
}

// failWrite marks the connection as unusable and returns why the connection ended, or err if it has not ended.
func (s *Multiplexer) failWrite(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeFailed = true
	if s.endErr != nil {
		return s.endErr
	}
	return err
}

// acquireLogs waits until no other request receives the log messages and reports whether it succeeded within the timeout.
func (s *Multiplexer) acquireLogs(ctx context.Context) bool {
	timer := time.NewTimer(logTimeout)
	defer timer.Stop()
	select {
	case s.logs <- struct{}{}:
		return true
	case <-timer.C:
	case <-s.done:
	case <-ctx.Done():
	}
	return false
}

// enter registers a call and returns its id and its message on the connection.
func (s *Multiplexer) enter(p *pending, m *Message, logs bool) (ID, *Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endErr != nil {
		return "", nil, s.endErr
	}
	s.lastID++
	id := ID(strconv.FormatInt(s.lastID, 10))
	s.calls[id] = p
	if logs {
		s.logCall = p
	}
	if p.token != nil {
		m = m.WithParam(json.RawMessage(id), "_meta", "progressToken")
		s.tokens[string(id)] = p
	}
	return id, m.WithID(id), nil
}

func (s *Multiplexer) leave(id ID, p *pending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, id)
	delete(s.tokens, string(id))
	if s.logCall == p {
		s.logCall = nil
	}
}

// cancel notifies the server of the cancellation. Later messages of the request are dropped.
func (s *Multiplexer) cancel(ctx context.Context, id ID) {
	if s.Ended() {
		return
	}
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer done()
	_ = s.conn.Write(ctx, Request("", Cancelled, map[string]any{"requestId": json.RawMessage(id), "reason": "cancelled by the caller"}))
}

// translate restores the id and the token of the caller.
func (p *pending) translate(m *Message) *Message {
	switch {
	case m.IsResponse():
		if raw, _ := m.InResult("_meta", MetaSubscription); raw != nil {
			m = m.WithResult(json.RawMessage(p.id), "_meta", MetaSubscription)
		}
		return m.WithID(p.id)
	case m.method == Progress:
		return m.WithParam(p.token, "progressToken")
	case m.method == Cancelled:
		return m.WithParam(json.RawMessage(p.id), "requestId")
	}
	if raw, _ := m.Param("_meta", MetaSubscription); raw != nil {
		return m.WithParam(json.RawMessage(p.id), "_meta", MetaSubscription)
	}
	return m
}

// Done returns a channel that is closed when the connection ends.
func (s *Multiplexer) Done() <-chan struct{} { return s.done }

// Ended reports whether the connection is unusable: it has ended, or a write failed. Pending calls may not have returned yet.
func (s *Multiplexer) Ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endErr != nil || s.writeFailed
}

// Write sends a message of no call: a notification, or a response to a request of the server.
func (s *Multiplexer) Write(ctx context.Context, m *Message) error { return s.conn.Write(ctx, m) }

// Close closes the connection.
func (s *Multiplexer) Close() error { return s.conn.Close() }
