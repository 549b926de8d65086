// Package rest is the HTTP binding of the Web of Things, both sides. [Client.Thing] asks an agent that is any HTTP server:
// it follows the forms of the agent's Thing Description. [Handler] offers the things of the mesh to local HTTP consumers.
//
// A request to an agent goes through the same steps each time, one file each: the message is checked against the
// description before anything is sent (check.go), a form is chosen and filled (form.go, variables.go), the security schemes
// add what they need from a file that stays on this node (security.go, credentials.go), and the answer is read within a
// limit and judged (answer.go). An action that the agent runs in the background is followed to its end (task.go).
//
// # Variables of an address
//
// A form's href may be a URI template (RFC 6570). The values of its uriVariables are the members of the same names in the
// input: of the input object of an action, of the value that is written, of the data of a read. They are taken out of the
// body, unless the input's schema names them too. Where the input is no object, a string say, the object holds it as its
// member "value": {"room": "kitchen", "value": 21}. A variable that stands in the path must be given; one in the query may
// be left out.
//
// Sources: WoT Thing Description 1.1; WoT Binding Templates, HTTP; WoT Profile, HTTP Basic; RFC 9110, 9457, 6570.
package rest

import (
	"context"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/td"
)

// DefaultTimeout is how long an interaction may take whose message has no deadline.
const DefaultTimeout = 30 * time.Second

// MaxBody is the limit of a request's or an answer's body in bytes, unless Options say otherwise.
const MaxBody = 4 << 20

// Options are the settings of a [Client]. The zero value works.
type Options struct {
	// Credentials are what agents ask for. The zero value has none.
	Credentials credentials.Store
	// Log gets what an operator should know; nil discards.
	Log *slog.Logger
	// MaxBody is the limit of an answer in bytes, after decompression; 0 means 4 MiB.
	MaxBody int64
	// Transport carries the requests; nil means one of the client's own, which has at most 64 connections to an agent and
	// uses no proxy. It must not follow redirects.
	Transport http.RoundTripper
}

// A Client asks agents over HTTP. It is safe for concurrent use and keeps connections open between requests.
type Client struct {
	credentials credentials.Store
	log         *slog.Logger
	limit       int64
	transport   http.RoundTripper
	pause       time.Duration // before the second look at a background action
}

// NewClient returns a client with options o. Close it when it is done.
func NewClient(o Options) *Client {
	c := &Client{credentials: o.Credentials, log: o.Log, limit: o.MaxBody, transport: o.Transport,
		pause: 50 * time.Millisecond}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.limit <= 0 {
		c.limit = MaxBody
	}
	if c.transport == nil {
		c.transport = newTransport()
	}
	return c
}

func newTransport() *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConns:        256,
		MaxIdleConnsPerHost: 32,
		MaxConnsPerHost:     64,
		// Many servers close an idle connection after 5 s. To leave it earlier avoids the race in which a POST is lost.
		IdleConnTimeout:        4 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		// The form says whether an answer may be compressed (contentCoding).
		DisableCompression: true,
		ForceAttemptHTTP2:  true,
	}
}

// Close closes connections that are not in use. Interactions that still run end as their contexts say.
func (c *Client) Close() {
	if t, ok := c.transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// Thing returns the agent that t describes. It answers ReadProperty, WriteProperty, ReadAllProperties,
// ReadMultipleProperties (data: an array of names), WriteMultipleProperties (data: values by name) and InvokeAction over
// the HTTP and HTTPS forms of t; other messages are [interact.NotAllowed].
//
// Errors are always an [*interact.Error]:
//   - Invalid with issues, NoAffordance, NotAllowed, UnsupportedType, Unauthenticated: nothing was sent.
//   - Unreachable, Timeout, Cancelled: no answer came; whether the agent did the work is unknown, unless it never listened.
//   - AgentFailed: the agent answered, with an error (Remote) or with something that its description does not promise.
//   - TooLarge: the answer passed the limit and was cut.
//
// Reading all properties gives those that can be read over HTTP, as JSON or text, without variables. A message without a
// deadline has 30 s.
func (c *Client) Thing(t *td.Thing) interact.Thing { return &agent{client: c, thing: t} }

// An agent is a thing behind HTTP forms.
type agent struct {
	client *Client
	thing  *td.Thing
}

// Do implements [interact.Thing].
func (a *agent) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		ctx, cancel := context.WithDeadline(ctx, deadline(m))
		defer cancel()
		if m.Type == interact.InvokeAction {
			a.invoke(ctx, m, yield)
			return
		}
		yield(a.property(ctx, m))
	}
}

func deadline(m *interact.Message) time.Time {
	if m.Deadline.IsZero() {
		return time.Now().Add(DefaultTimeout)
	}
	return m.Deadline
}

// property answers the messages that have exactly one reply.
func (a *agent) property(ctx context.Context, m *interact.Message) (*interact.Message, error) {
	switch m.Type {
	case interact.ReadProperty:
		return a.read(ctx, m)
	case interact.WriteProperty:
		return a.write(ctx, m)
	case interact.ReadAllProperties:
		return a.readAll(ctx, m)
	case interact.ReadMultipleProperties:
		return a.readMultiple(ctx, m)
	case interact.WriteMultipleProperties:
		return a.writeMultiple(ctx, m)
	}
	return nil, interact.Errorf(interact.NotAllowed,
		"ask for a reading, a writing or an action; over HTTP the rest is not offered yet",
		"%s over HTTP cannot be asked for this (message type %d)", label(a.thing), m.Type)
}

// invoke runs an action and yields its states; the last one is final.
func (a *agent) invoke(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
	r, err := check(a.thing, m)
	if err != nil {
		yield(nil, err)
		return
	}
	ans, err := a.client.ask(ctx, r)
	if err != nil {
		yield(nil, err)
		return
	}
	if t := ans.task(r); t != nil {
		t.follow(ctx, yield)
		return
	}
	yield(finished(m, ans.media, ans.data), nil)
}

// finished is the last message of an action that went well.
func finished(m *interact.Message, media string, data []byte) *interact.Message {
	reply := m.Reply(interact.ActionStatus, media, data)
	reply.Status = interact.StatusCompleted
	return reply
}
