package ws

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/interact/ws/frame"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/scheme"
)

// Options are the settings of a [Client]. The zero value works.
type Options struct {
	// Credentials are the secrets for agents. The zero value has none.
	Credentials credentials.Store
	// Dial opens every connection; nil means net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS is for wss and https; nil trusts the roots of the system.
	TLS *tls.Config
	// Log receives log records; nil discards them.
	Log *slog.Logger
	// MaxMessage is the limit of a frame in bytes, in both directions; 0 means 4 MiB. A larger frame of an agent ends its connection.
	MaxMessage int64
}

// A Client calls agents that are WebSocket servers. It keeps one connection per address and credentials, opens a new one
// after a loss, and closes a connection that was not used for five minutes. It is safe for concurrent use.
type Client struct {
	consumer form.Consumer
	dialer   dialer
	settings settings
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	work     sync.WaitGroup

	mu     sync.Mutex // guards the rest
	lines  map[lineKey]*line
	closed bool
}

// A lineKey identifies a connection. Other credentials need another connection (Web Thing Protocol, connections).
type lineKey struct {
	url, subprotocol string
	login            [sha256.Size]byte
}

// A line is a connection that is open or being opened. ready is closed when conn or err is set.
type line struct {
	ready chan struct{}
	conn  *conn
	echo  string // the subprotocol that the agent agreed to
	err   error
}

// NewClient returns a client with options o. Close it when it is done.
func NewClient(o Options) *Client {
	c := &Client{dialer: dialer{o.Dial, o.TLS}, lines: map[lineKey]*line{}}
	c.settings = settings{log: o.Log, maxMessage: o.MaxMessage, idle: idle}.withDefaults()
	c.consumer = form.Consumer{Transport: c, LongActions: true, NoVariables: true, Security: form.Security{Protocol: "WebSockets",
		Schemes: []string{"basic", "bearer", "apikey"}, NotIn: []string{"body", "uri"}, Credentials: o.Credentials, Log: c.settings.log}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Close ends all connections and waits for the goroutines. Interactions that run end with an error.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	for _, l := range c.lines {
		select {
		case <-l.ready:
			if l.conn != nil {
				l.conn.end(goodbye)
			}
		default: // keep ends it after the end of the client
		}
	}
	c.mu.Unlock()
	c.cancel()
	c.work.Wait()
}

// Supports reports whether this binding can use f: its scheme is ws or wss with a known subprotocol or none, or http or https with
// a known subprotocol, and its href is not a template.
func Supports(f *td.Form) bool {
	_, known := frame.Subprotocol(f.Subprotocol)
	protocol := scheme.Lookup(f.Scheme()).Protocol
	return (protocol == "ws" && (known || f.Subprotocol == "") || protocol == "http" && known) && !strings.Contains(f.Href, "{")
}

// Thing returns the agent that t describes. It supports all messages that its WebSocket forms and its dialect have; others are
// [interact.NotAllowed].
//
// The dialect is that of the Web Thing Protocol if the form declares it. Else it is that of the LMOS documents, if the agent accepts
// the subprotocol at the upgrade, or Kotlin: the Kotlin server does not accept it, and closes connections on unknown message types.
// In both, each id and each name of a property has both spellings of LMOS (frame.Style). The member "lmosd:thingId" of a form is the
// name of the Thing at the agent, if that is not its id.
//
// Observations and subscriptions of one affordance share one subscription of the agent. A consumer that reads too slowly gets
// [interact.Overloaded]. When the connection breaks, its interactions end with [interact.Unreachable]; Started reports whether the
// agent may have read the request.
func (c *Client) Thing(t *td.Thing) interact.Thing { return c.consumer.Thing(t) }

// A request is a message for an agent, over one form.
type request struct {
	*form.Request
	client *Client
}

// Fits implements [form.Transport].
func (c *Client) Fits(f *td.Form, _ string) bool { return Supports(f) }

// Prepare implements [form.Transport].
func (c *Client) Prepare(of *form.Request) (form.Exchange, error) {
	r := &request{of, c}
	return r.send, nil
}

// send sends the message over the connection of the agent. If the connection has closed, it opens a new one, once.
func (r *request) send(ctx context.Context, yield func(*interact.Message) bool) error {
	m := r.Message
	l := login{http.Header{"User-Agent": {"lmosd"}}, r.Secrets}
	if m.TraceParent != "" { // LMOS, trace context: in the messages and at the upgrade
		l.header.Set("Traceparent", m.TraceParent)
	}
	answered := false
	seen := func(reply *interact.Message, _ error) bool {
		answered = true
		return yield(reply)
	}
	for try := 1; ; try++ {
		p, fresh, err := r.connect(ctx, l)
		if err != nil {
			return err
		}
		err = p.call(ctx, m, seen)
		if fresh || answered || try == 3 || !r.stale(err) {
			return l.scrub(err)
		}
	}
}

// stale reports whether the message can be sent again: the connection had ended before, or a repetition has no effect. An established
// subscription is not repeated, because it may have missed events.
func (r *request) stale(err error) bool {
	var e *interact.Error
	return errors.As(err, &e) && e.Code == interact.Unreachable && !e.Remote &&
		(!e.Started || !r.Message.Type.Long() && interact.Repeatable(r.Thing, r.Message))
}

// connect returns the agent at the other end of a connection; fresh means that it is new.
func (r *request) connect(ctx context.Context, l login) (p *peer, fresh bool, err error) {
	n, fresh, err := r.client.line(r.Form, l)
	if err != nil {
		return nil, false, err
	}
	select {
	case <-n.ready:
	case <-ctx.Done():
		return nil, false, interact.AsError(ctx.Err())
	}
	if n.err != nil {
		return nil, false, n.err
	}
	style := frame.Style{Dialect: dialectOf(r.Thing, r.Form, n.echo), Proven: true, Both: true}
	return &peer{c: n.conn, thing: thingID(r.Thing, r.Form), style: style}, fresh, nil
}

// dialectOf returns the dialect of the agent (LMOS WebSocket subprotocol, dialect detection).
func dialectOf(t *td.Thing, f *td.Form, echo string) frame.Dialect {
	offered, _ := frame.Subprotocol(f.Subprotocol)
	agreed, _ := frame.Subprotocol(echo)
	switch {
	case offered == frame.WTP, agreed == frame.WTP:
		return frame.WTP
	case !strings.Contains(t.ID, ":"), len(t.Security) == 0 && len(t.SecurityDefs) == 0,
		bytes.Contains(f.Raw, []byte(`"optionalProperties"`)), echo == "":
		return frame.Kotlin
	}
	return frame.Doc
}

// thingID returns the name of the Thing at the agent.
func thingID(t *td.Thing, f *td.Form) string {
	if bytes.Contains(f.Raw, []byte(`"lmosd:thingId"`)) {
		var own struct {
			ID string `json:"lmosd:thingId"`
		}
		if json.Unmarshal(f.Raw, &own) == nil && own.ID != "" {
			return own.ID
		}
	}
	return t.ID
}

// line returns the connection for a form, which may still be opening; fresh means that it is new.
func (c *Client) line(f *td.Form, l login) (n *line, fresh bool, err error) {
	key := lineKey{f.Href, strings.ToLower(f.Subprotocol), l.sum()}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false, interact.ShutdownError("try again in a moment")
	}
	if n := c.lines[key]; n != nil && n.usable() {
		return n, false, nil
	}
	n = &line{ready: make(chan struct{})}
	c.lines[key] = n
	c.work.Go(func() { c.keep(key, n, f, l) })
	return n, true, nil
}

// usable reports whether a line is being opened or is open.
func (l *line) usable() bool {
	select {
	case <-l.ready:
		return l.conn != nil && l.conn.ctx.Err() == nil
	default:
		return true
	}
}

// keep opens the connection of n and runs it until it ends.
func (c *Client) keep(key lineKey, n *line, f *td.Form, l login) {
	c.open(n, f, l)
	close(n.ready)
	if n.conn != nil {
		if c.ctx.Err() != nil {
			n.conn.end(goodbye)
		}
		err := n.conn.run()
		c.settings.log.Debug("connection to agent ended", "agent", n.conn.name, "err", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lines[key] == n {
		delete(c.lines, key)
	}
}

// open dials. After an error nothing has started at the agent.
func (c *Client) open(n *line, f *td.Form, l login) {
	var offer []string
	if f.Subprotocol != "" {
		offer = []string{f.Subprotocol}
	}
	header, url, err := l.request(f)
	if err != nil {
		n.err = err
		return
	}
	s, status, err := c.dialer.open(c.ctx, url, header, offer...)
	name := form.Plain(f.Href)
	switch {
	case err == nil:
		n.echo = s.ws.Subprotocol()
		n.conn = newConn(context.Background(), s, name, c.settings, frame.Undecided, nil)
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		n.err = interact.Errorf(interact.Unauthenticated, "see the credentials file on the agent's node",
			"%s rejected this node: %d", name, status)
	case status != 0:
		n.err = interact.Errorf(interact.Unreachable, "compare the form's href and subprotocol with the agent",
			"%s answered %d and opened no WebSocket", name, status)
	default:
		n.err = form.Unreachable("the agent", f.Href, form.Reason(err, true))
	}
}
