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

// A Server is an MCP server as a relay sees it, wherever it is. Both eras are spoken; who is behind it makes one of the other.
type Server interface {
	// Call sends a request of 2026-07-28 and returns the response. What the server says of it meanwhile goes to notify, from the
	// goroutine of the call; an error of notify, and the end of ctx, cancel the request. A response with an error is a response;
	// the error of Call says why there is none.
	Call(ctx context.Context, m *Message, notify func(*Message) error) (*Message, error)
	// Session begins a session of 2025-11-25 or before. The client's first message is initialize; the server's end is closed
	// with the Conn, or when ctx ends. It keeps the promise of [Answered].
	Session(ctx context.Context) (Conn, error)
}

type callerKey struct{}

// WithCaller says who makes the calls that have the context: what a server keeps for one caller is not given to another.
func WithCaller(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, callerKey{}, name)
}

// CallerOf returns who makes a call; empty for nobody in particular.
func CallerOf(ctx context.Context) string {
	name, _ := ctx.Value(callerKey{}).(string)
	return name
}

type userKey struct{}

// WithUser says which user of a relay makes the calls that have the context, whatever the relay calls it. Nobody has verified that:
// what is kept for one user is not given to another, and nothing more.
func WithUser(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, userKey{}, name)
}

// UserOf returns which user of the caller makes a call; empty for the caller itself.
func UserOf(ctx context.Context) string {
	name, _ := ctx.Value(userKey{}).(string)
	return name
}

const (
	// maxBehind and maxBehindBytes are how far a caller may be behind. Then it gets no more of progress and log messages; what it
	// would have to know sends it away: others share the connection.
	maxBehind      = 1024
	maxBehindBytes = 32 << 20
	// maxRubbish is how many lines that are no messages a server may print one after the other.
	maxRubbish = 1000
	// logPatience is how long a request that asks for log messages waits for its turn.
	logPatience = time.Second
	// cancelPatience is how long it is tried to tell a server that it need not go on.
	cancelPatience = time.Second
)

var (
	errSlow    = errors.New("the caller reads too slowly what the server says meanwhile")
	errRubbish = errors.New("the server prints what are no messages of MCP")
)

// A Shared is a connection of 2026-07-28 that many callers use at once: each request has an id and a progress token of its own on
// it, and what comes back goes to the caller whose it is, under the caller's own. [Shared.Run] reads it.
//
// A log message does not say which request it belongs to. So requests that ask for them take turns; one whose turn does not come
// soon goes without.
type Shared struct {
	conn  Conn
	asked func(*Message) // nil: what belongs to no call is dropped
	logs  chan struct{}  // holds a token while a request gets the log messages

	mu     sync.Mutex
	last   int64           // the latest id
	calls  map[ID]*pending // by our id
	tokens map[string]*pending
	logged *pending // whose the log messages are
	ended  error    // why nothing can be called any more
	cut    bool     // nothing can be written
	over   chan struct{}
}

// A pending request waits for its response.
type pending struct {
	id    ID              // the caller's
	token json.RawMessage // the caller's; nil: none

	mu   sync.Mutex
	said []*Message
	size int              // bytes of said
	end  error            // why there is no more, after what was said
	rate ratelimit.Bucket // of progress and log messages
	news chan struct{}
}

func newPending(id ID, token json.RawMessage) *pending {
	return &pending{id: id, token: token, news: make(chan struct{}, 1)}
}

// Share returns the connection, to be shared. What the server says that belongs to no call, its own requests among it, goes to asked,
// which must not block; nil drops it.
func Share(conn Conn, asked func(*Message)) *Shared {
	return &Shared{conn: conn, asked: asked, logs: make(chan struct{}, 1), over: make(chan struct{}), calls: map[ID]*pending{},
		tokens: map[string]*pending{}}
}

// Run reads the connection to its end, and returns why it ended. Calls that wait get that error.
func (s *Shared) Run(ctx context.Context) error {
	rubbish := 0
	for {
		m, err := s.conn.Read(ctx)
		if bad, ok := err.(*Error); ok {
			if rubbish++; rubbish > maxRubbish {
				return s.end(errRubbish)
			}
			s.spoilt(m, bad)
			continue
		}
		if err != nil {
			return s.end(err)
		}
		rubbish = 0
		if p := s.whose(m); p != nil {
			p.add(m)
		} else if s.asked != nil && !m.IsResponse() {
			s.asked(m)
		}
	}
}

// spoilt ends the call whose response cannot be read, if it can be told. What else cannot be read harms nobody.
func (s *Shared) spoilt(m *Message, bad *Error) {
	if m == nil {
		return
	}
	s.mu.Lock()
	p := s.calls[m.id]
	s.mu.Unlock()
	if p != nil {
		p.add(Refuse(m.id, Errorf(InternalError, "the server's response cannot be read: %s", bad.Message)))
	}
}

func (s *Shared) end(err error) error {
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = err
	close(s.over)
	for _, p := range s.calls {
		p.stop(err)
	}
	s.calls, s.tokens, s.logged = nil, nil, nil
	return err
}

// whose returns the call that m belongs to; nil for none.
func (s *Shared) whose(m *Message) *pending {
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
	case m.method == LogMessage && s.logged != nil:
		return s.logged
	}
	raw, _ := m.Param("_meta", MetaSubscription)
	return s.calls[IDOf(raw)]
}

// add takes what the server said. Progress and log messages are dropped if there are too many, or the caller is far behind.
func (p *pending) add(m *Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	full := len(p.said) >= maxBehind || p.size > maxBehindBytes
	switch {
	case p.end != nil, m.Chats() && (full || !p.rate.Take(ProgressLimit, 1, time.Now())):
		return
	case full && !m.IsResponse():
		p.end = errSlow
	default:
		p.said = append(p.said, m)
		p.size += len(m.text)
	}
	p.tellLocked()
}

// stop says why there is no more.
func (p *pending) stop(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end == nil {
		p.end = err
		p.tellLocked()
	}
}

func (p *pending) tellLocked() {
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// next returns what was said next, or why there is no more.
func (p *pending) next(ctx context.Context) (*Message, error) {
	for {
		p.mu.Lock()
		if len(p.said) > 0 {
			m := p.said[0]
			p.said[0], p.said = nil, p.said[1:]
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
		case <-p.news:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Logging reports whether a request gets the log messages now, so that another must wait, or be sent over another connection.
func (s *Shared) Logging() bool { return len(s.logs) > 0 }

// Call implements [Server] for one connection.
func (s *Shared) Call(ctx context.Context, m *Message, notify func(*Message) error) (*Message, error) {
	p := newPending(m.id, m.ProgressToken())
	logs := m.Text("_meta", MetaLogLevel) != ""
	if logs {
		if logs = m.method != Listen && s.turn(ctx); logs {
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
		return nil, s.broken(err)
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

// broken notes that nothing can be written, and returns why: if the connection has ended, why that has.
func (s *Shared) broken(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = true
	if s.ended != nil {
		return s.ended
	}
	return err
}

// turn waits until no other request gets the log messages, and reports whether that came soon.
func (s *Shared) turn(ctx context.Context) bool {
	soon := time.NewTimer(logPatience)
	defer soon.Stop()
	select {
	case s.logs <- struct{}{}:
		return true
	case <-soon.C:
	case <-s.over:
	case <-ctx.Done():
	}
	return false
}

// enter gives a call its id and token on the connection.
func (s *Shared) enter(p *pending, m *Message, logs bool) (ID, *Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return "", nil, s.ended
	}
	s.last++
	id := ID(strconv.FormatInt(s.last, 10))
	s.calls[id] = p
	if logs {
		s.logged = p
	}
	if p.token != nil {
		m = m.WithParam(json.RawMessage(id), "_meta", "progressToken")
		s.tokens[string(id)] = p
	}
	return id, m.WithID(id), nil
}

func (s *Shared) leave(id ID, p *pending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, id)
	delete(s.tokens, string(id))
	if s.logged == p {
		s.logged = nil
	}
}

// cancel tells the server that nobody waits any more. What it still says of the request goes nowhere.
func (s *Shared) cancel(ctx context.Context, id ID) {
	if s.Ended() {
		return
	}
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), cancelPatience)
	defer done()
	_ = s.conn.Write(ctx, Request("", Cancelled, map[string]any{"requestId": json.RawMessage(id), "reason": "nobody waits any more"}))
}

// translate gives what the server says the caller's id and token.
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

// Done is closed when the connection has ended.
func (s *Shared) Done() <-chan struct{} { return s.over }

// Ended reports whether nothing more can be called: the connection has ended, or cannot be written to. It is so before any call hears of it.
func (s *Shared) Ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended != nil || s.cut
}

// Write sends what belongs to no call: a notification, or a response to a request of the server.
func (s *Shared) Write(ctx context.Context, m *Message) error { return s.conn.Write(ctx, m) }

// Close ends the connection.
func (s *Shared) Close() error { return s.conn.Close() }
