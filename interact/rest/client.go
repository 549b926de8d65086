package rest

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/url"
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

// dialTimeout limits the time to open a connection.
const dialTimeout = 10 * time.Second

// Options are the settings of a [Client]. The zero value works.
type Options struct {
	// Credentials are the secrets for agents. The zero value has none.
	Credentials credentials.Store
	// CallerSecret returns the secret of a Thing for a request to an address, or "" (publication.CallerSecrets). Nil: there are none.
	CallerSecret func(thing string, to *url.URL) string
	// Log receives log records; nil discards them.
	Log *slog.Logger
	// MaxBody is the limit in bytes of a response or an event, after decompression; 0 means 4 MiB. Response streams have no limit.
	MaxBody int64
	// Dial opens the connections to agents, each within 10 s; nil means a net.Dialer. An [*interact.Error] that it returns is the error
	// of the interaction.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Webhook receives deliveries of agents by the subprotocol webhook; nil means that forms with it cannot be used.
	Webhook Receiver
	// Transport sends the requests; nil means a transport of the client, which connects with Dial, has at most MaxConns connections to an
	// agent in addition to those of observations, and uses no proxy. It must not follow redirects.
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
	lasting   http.RoundTripper // of observations: each occupies a connection
	webhook   Receiver
	secretOf  func(thing string, to *url.URL) string
	pause     time.Duration // before the second poll of a background action; other pauses are multiples of it

	work sync.WaitGroup // goroutines that send request streams

	// mu guards the rest.
	mu       sync.Mutex
	closed   bool
	observed *ratelimit.Inflight[string] // observations, by origin
}

// NewClient returns a client with options o. Close it when it is done.
func NewClient(o Options) *Client {
	c := &Client{log: o.Log, limit: o.MaxBody, transport: o.Transport, lasting: o.Transport,
		webhook: o.Webhook, secretOf: o.CallerSecret, pause: 50 * time.Millisecond, observed: ratelimit.NewInflight[string](maxObserved, math.MaxInt)}
	c.log = cmp.Or(c.log, slog.New(slog.DiscardHandler))
	c.consumer = form.Consumer{Transport: c, Security: form.Security{Protocol: "HTTP", Schemes: []string{"basic", "bearer", "apikey"},
		Credentials: o.Credentials, Log: c.log}}
	c.limit = cmp.Or(max(c.limit, 0), MaxBody)
	if c.transport == nil {
		c.transport, c.lasting = newTransport(o, max(cmp.Or(o.MaxConns, idleConns), 0)), newTransport(o, 0)
	}
	return c
}

// idleConns is the number of idle connections to an origin that are kept, and the default of [Options.MaxConns].
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
		// Many servers close an idle connection after 5 s. Closing it earlier avoids the race in which a POST is lost.
		IdleConnTimeout:        4 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		// The form declares whether a response may be compressed (contentCoding).
		DisableCompression: true,
		ForceAttemptHTTP2:  true,
		// Pings detect lost agents between requests.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second},
	}
}

// Close closes idle connections and waits for the goroutines that send request streams: each ends with the next chunk after the end of
// its interaction. Running interactions continue until their contexts end.
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

// enter adds a goroutine to work, unless the client is closed.
func (c *Client) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.work.Add(1)
	}
	return !c.closed
}

// Thing returns the agent that t describes. It supports all requests over the HTTP and HTTPS forms of t, except
// QueryAction, CancelAction and QueryAllActions, which the node serves. A message must fit t ([interact.Checked]): only variables of an
// address and a body with secrets are checked here.
//
// Errors are always an [*interact.Error]:
//   - Invalid with issues, NoAffordance, NotAllowed, UnsupportedType, Unauthenticated, Overloaded: nothing was sent.
//   - Unreachable, Timeout, Cancelled: there is no response. Started means that the agent may have executed the request.
//   - AgentFailed: the agent returned an error (Remote) or a response that its description does not declare.
//   - TooLarge: the response exceeded the limit and was cut.
//
// An operation on all or several affordances without a usable form is executed for each affordance ([form.Consumer.Thing]). Reading all
// properties returns those that can be read over HTTP, as JSON, CBOR or text, without variables. The default deadline is 30 s, except for
// observations and subscriptions.
//
// The output of an action whose media type is neither JSON nor CBOR and whose length is unknown or above 1 MiB is a stream: running
// states have its parts as they arrive, each with at most 64 KiB and the content type of the response, and the completed state has no
// data. The response is read at the speed of the consumer. The Chunks of a message are the body of the request, and the response is read
// at the same time. They should end with the context of the call.
//
// An observation or a subscription uses server-sent events, else longpoll, else a webhook. It continues after lost connections for up
// to 5 min; events in between are lost, unless the agent sends them again after the ID of the last event. Longpoll loses events between
// two polls. If an agent responds to a longpoll immediately, the pauses between polls grow up to 30 s, and an unchanged reading is then
// not a change.
func (c *Client) Thing(t *td.Thing) interact.Thing { return c.consumer.Thing(t) }

// single sends a request that has one reply. Most agents respond to a write with 204; the reply then has no data.
func (r *request) single(ctx context.Context, yield func(*interact.Message) bool) error {
	ans, err := r.client.roundTrip(ctx, r)
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
	ans, err := r.client.read(ctx, r, resp)
	if err != nil {
		return err
	}
	if t := ans.task(r); t != nil {
		return t.follow(ctx, yield)
	}
	yield(r.Message.ReplyStatus(interact.StatusCompleted, ans.media, ans.data))
	return nil
}
