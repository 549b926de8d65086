package rest

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/internal/httpbody"
	"github.com/lmosd/lmosd/internal/ratelimit"
	"github.com/lmosd/lmosd/td"
)

// MaxBody is the default limit of the body of a request or response in bytes.
const MaxBody = 4 << 20

// dialTimeout is how long a connection may take to come up.
const dialTimeout = 10 * time.Second

// Options are the settings of a [Client]. The zero value works.
type Options struct {
	// Credentials are the secrets for agents. The zero value has none.
	Credentials credentials.Store
	// Log receives log records; nil discards them.
	Log *slog.Logger
	// MaxBody is the limit in bytes of an answer, a reading or an event, after decompression; 0 means 4 MiB. Answers that pass
	// as streams have none.
	MaxBody int64
	// Dial opens the connections to agents, each within 10 s; nil means a net.Dialer. An [*interact.Error] that it gives is the
	// error of the interaction.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Webhook receives deliveries of agents by the subprotocol webhook; nil means that forms with it cannot be used.
	Webhook Receiver
	// Transport carries the requests; nil means one of the client's own, which connects by Dial, has at most MaxConns connections
	// to an agent beside those of observations, and uses no proxy. It must not follow redirects.
	Transport http.RoundTripper
	// MaxConns limits the connections to one origin, without those of observations; further requests wait, in no fair order. 0 means
	// 64; a negative value sets no limit, for a caller with a limit of its own.
	MaxConns int
}

// A Client calls agents over HTTP. It is safe for concurrent use and keeps connections open between requests.
type Client struct {
	consumer  form.Consumer
	log       *slog.Logger
	limit     int64
	transport http.RoundTripper
	lasting   http.RoundTripper // of observations: each holds a connection, which the others must not wait for
	webhook   Receiver
	pause     time.Duration // before the second look at a background action; other pauses are multiples of it

	work sync.WaitGroup // goroutines that send request streams

	// mu guards the rest.
	mu       sync.Mutex
	closed   bool
	observed *ratelimit.Inflight[string] // observations, by origin
}

// NewClient returns a client with options o. Close it when it is done.
func NewClient(o Options) *Client {
	c := &Client{log: o.Log, limit: o.MaxBody, transport: o.Transport, lasting: o.Transport,
		webhook: o.Webhook, pause: 50 * time.Millisecond, observed: ratelimit.NewInflight[string](maxObserved, math.MaxInt)}
	c.log = cmp.Or(c.log, slog.New(slog.DiscardHandler))
	c.consumer = form.Consumer{Transport: c, Security: form.Security{Protocol: "HTTP", Schemes: []string{"basic", "bearer", "apikey"},
		Credentials: o.Credentials, Log: c.log}}
	c.limit = cmp.Or(max(c.limit, 0), MaxBody)
	if c.transport == nil {
		c.transport, c.lasting = newTransport(o, max(cmp.Or(o.MaxConns, idleConns), 0)), newTransport(o, 0)
	}
	return c
}

// idleConns is how many idle connections to an origin are kept, and the default of [Options.MaxConns].
const idleConns = 64

// newTransport returns a transport with at most most connections to one host; 0 sets no limit.
func newTransport(o Options, most int) *http.Transport {
	dial := o.Dial
	if dial == nil {
		dial = (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext
	}
	return &http.Transport{
		DialContext: httpbody.Dial(func(ctx context.Context, network, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			return dial(ctx, network, addr)
		}),
		TLSHandshakeTimeout: dialTimeout,
		MaxIdleConns:        256,
		MaxIdleConnsPerHost: idleConns,
		MaxConnsPerHost:     most,
		// Many servers close an idle connection after 5 s. To leave it earlier avoids the race in which a POST is lost.
		IdleConnTimeout:        4 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		// The form declares whether a response may be compressed (contentCoding).
		DisableCompression: true,
		ForceAttemptHTTP2:  true,
		// Pings detect a lost agent also without requests.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second},
	}
}

// Close closes connections that are not in use, and waits for the goroutines that still send a request stream: each ends with
// the chunk that comes after its interaction's end. Interactions that still run end as their contexts say.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.work.Wait()
	for _, via := range []http.RoundTripper{c.transport, c.lasting} {
		if t, ok := via.(interface{ CloseIdleConnections() }); ok {
			t.CloseIdleConnections()
		}
	}
}

// enter counts a goroutine in, unless the client is closed.
func (c *Client) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.work.Add(1)
	}
	return !c.closed
}

// Thing returns the agent that t describes. It supports all requests over the HTTP and HTTPS forms of t, except
// QueryAction, CancelAction and QueryAllActions, which the node serves. A message must fit t ([interact.Checked]): only what
// stands in an address or beside a secret is checked here.
//
// Errors are always an [*interact.Error]:
//   - Invalid with issues, NoAffordance, NotAllowed, UnsupportedType, Unauthenticated, Overloaded: nothing was sent.
//   - Unreachable, Timeout, Cancelled: no response came. Started means that the agent may have done the work nevertheless.
//   - AgentFailed: the agent returned an error (Remote) or a response that its description does not declare.
//   - TooLarge: the response exceeded the limit and was cut.
//
// Without a form for them that can be used, all or several properties are read and written one by one; to observe all needs a
// form ([interact.Composed] does without). Reading all gives those that can be read over HTTP, as JSON, CBOR or text, without
// variables. A message without a deadline has 30 s, unless its type is long.
//
// The output of an action whose media type is neither JSON nor CBOR and whose length is unknown or above 1 MiB is a stream:
// states that are running have its parts as they arrive, each at most 64 KiB and of the answer's content type, and the
// completed one has no data. The agent is read as the consumer takes them. A message's Chunks become the body of the request,
// while the answer is read. They should end with the context of the call.
//
// An observation or a subscription takes server-sent events, else longpoll, else a webhook. It outlives broken connections for
// up to five minutes; what happens in between is lost, unless the agent repeats it by the ID of the last event. Longpoll loses
// events between two polls. If an agent responds to a longpoll at once, the polls become rarer, down to one every 30 s; an unchanged
// reading is then no change.
func (c *Client) Thing(t *td.Thing) interact.Thing { return c.consumer.Thing(t) }

// single sends a request that has one reply. Most agents respond to a write with 204: then the reply has no data.
func (r *request) single(ctx context.Context, yield func(*interact.Message) bool) error {
	ans, err := r.client.ask(ctx, r)
	if err != nil {
		return err
	}
	t := interact.PropertyReadings
	if r.Message.Name != "" {
		t = interact.PropertyReading
	}
	yield(reading(r.Message, t, ans.media, ans.data))
	return nil
}

func reading(m *interact.Message, t interact.Type, media string, data []byte) *interact.Message {
	reply := m.Reply(t, media, data)
	reply.Time = time.Now().UTC()
	return reply
}

// invoke runs an action and yields its states; the last one is final.
func (r *request) invoke(ctx context.Context, yield func(*interact.Message) bool) error {
	ctx = r.streams(ctx)
	defer r.release()
	resp, err := r.client.begin(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if r.passes(resp) {
		return r.client.pass(ctx, r, resp, yield)
	}
	ans, err := r.client.judge(ctx, r, resp)
	if err != nil {
		return err
	}
	if t := ans.task(r); t != nil {
		return t.follow(ctx, yield)
	}
	yield(r.Message.ReplyStatus(interact.StatusCompleted, ans.media, ans.data))
	return nil
}
