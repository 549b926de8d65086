// Package coap implements the WoT CoAP binding, client and server. [Client.Thing] asks an agent that is any CoAP server: it follows
// the forms of the agent's Thing Description. [Server] offers the things of the mesh to local CoAP consumers.
//
// # To agents
//
// Package form chooses a form, fills its variables, converts the input and polls actions that run in the background. Here, the CoAP
// vocabulary of the form is read (vocabulary.go), bodies are sent in blocks (transfer.go), the response is checked (codes.go, form.go),
// and resources are observed (observe.go). Package messaging is CoAP itself.
//
// # To consumers
//
// See [Server].
//
// Sources: WoT Thing Description 1.1; WoT Binding Templates, CoAP; RFC 7252 (CoAP), 7641 (Observe), 7959 (Block), 8323 (TCP),
// 8132 (FETCH, PATCH), 8516 (4.29), 8768 (Hop-Limit), 9177 (Q-Block: its sizes only), 9290 (problem details), 6690 (link
// format).
package coap

import (
	"context"
	"iter"
	"log/slog"
	"net"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/messaging"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/td"
)

// MaxBody is the limit of the body of a request or an answer in bytes, all blocks together, unless Options say otherwise.
const MaxBody = 4 << 20

// Options are the settings of a [Client]. The zero value works.
type Options struct {
	// Credentials are what agents ask for: identity ("username") and key of a pre-shared key, which is used as the bytes of the
	// text. The zero value has none.
	Credentials credentials.Store
	// Dial makes every connection: network is "udp" or "tcp", addr a host and a port. What it returns for "udp" must keep the
	// borders of datagrams. Nil means a [net.Dialer].
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Log gets what an operator should know; nil discards.
	Log *slog.Logger
	// MaxBody is the limit of an answer in bytes, and of an input that comes in chunks; 0 means 4 MiB.
	MaxBody int
}

// A Client asks agents over CoAP. It is safe for concurrent use. It keeps at most 256 connections, one for each agent's host,
// port and scheme (and pre-shared key), and closes those over which nothing came for a minute and that nobody uses.
type Client struct {
	security form.Security
	log      *slog.Logger
	limit    int
	pool     *messaging.Pool
}

// NewClient returns a client with options o. Close it when it is done.
func NewClient(o Options) *Client {
	c := &Client{log: o.Log, limit: o.MaxBody}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.security = form.Security{Protocol: "CoAP", Schemes: []string{"psk"}, Credentials: o.Credentials, Log: c.log}
	if c.limit <= 0 {
		c.limit = MaxBody
	}
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
	c.pool = messaging.NewPool(o.Dial, c.limit)
	return c
}

// Close closes all connections and waits for their goroutines. Interactions that still run end with an error.
func (c *Client) Close() { c.pool.Close() }

// Thing returns the agent that t describes. It answers ReadProperty, WriteProperty, InvokeAction, ObserveProperty and
// SubscribeEvent over the forms of t that it [Claims], and the same on all or several affordances: over a form of the thing if
// there is one that can do it, else one by one. Other messages are [interact.NotAllowed].
//
// An observation uses the Observe option. A resource that cannot be observed is asked again and again, not more often than its
// cov:minPollingInterval says (default: once a second), and only changes are yielded. An answer without payload to a
// subscription confirms it; one with payload is an event. What is observed over an unconfirmed or broken path may be lost:
// readings carry no ID.
//
// Errors are always an [*interact.Error]. Remote tells that the agent answered with an error; its code is that of the one table
// in this package, and its own words are in the title, at most 400 bytes. Started tells that no answer came to a request that the
// agent may have got. TooLarge: the answer passed the limit and was dropped. A message without a deadline has 30 s, unless its
// type is long.
func (c *Client) Thing(t *td.Thing) interact.Thing {
	a := &agent{client: c, thing: t}
	parts := *t
	parts.Forms = nil // so that every part is asked alone
	a.parts = interact.Composed(&parts)(interact.Func(a.alone))
	return a
}

// An agent is a thing behind CoAP forms.
type agent struct {
	client *Client
	thing  *td.Thing
	parts  interact.Thing // answers operations on several affordances by asking for each
}

// Do implements [interact.Thing].
func (a *agent) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	switch m.Type {
	case interact.ReadAllProperties, interact.ReadMultipleProperties, interact.WriteAllProperties, interact.WriteMultipleProperties,
		interact.ObserveAllProperties, interact.SubscribeAllEvents:
		if !a.whole(m) {
			return a.parts.Do(ctx, m)
		}
	}
	return a.alone(ctx, m)
}

// whole tells whether a form of the thing can carry m out. A GET has no body that could name the properties of a reading.
func (a *agent) whole(m *interact.Message) bool {
	for _, f := range interact.Forms(a.thing, m) {
		t := termsOf(&f, m.Type.Op())
		if Claims(&f) && (m.Type != interact.ReadMultipleProperties || takesBody(t.method)) {
			return true
		}
	}
	return false
}

// alone carries m out over one form.
func (a *agent) alone(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		ctx, cancel := form.Within(ctx, m)
		defer cancel()
		r, err := a.request(m)
		switch {
		case err != nil:
			yield(nil, err)
		case m.Type.Long():
			r.watch(ctx, yield)
		case m.Type == interact.InvokeAction:
			r.invoke(ctx, yield)
		default:
			yield(r.unary(ctx))
		}
	}
}

// unary answers readings and writings.
func (r *request) unary(ctx context.Context) (*interact.Message, error) {
	p, err := r.ask(ctx)
	if err != nil {
		return nil, err
	}
	var t interact.Type
	switch r.message.Type {
	case interact.ReadProperty:
		t = interact.PropertyReading
	case interact.ReadAllProperties, interact.ReadMultipleProperties:
		t = interact.PropertyReadings
	default: // what an agent says about a writing that went well has no schema
		return r.message.Reply(interact.Acknowledgement, "", nil), nil
	}
	data, media, err := r.settle(p)
	if err != nil {
		return nil, err
	}
	reply := r.message.Reply(t, media, data)
	reply.Time = time.Now().UTC()
	return reply, nil
}

// invoke runs an action and yields its states; the last one is final.
func (r *request) invoke(ctx context.Context, yield func(*interact.Message, error) bool) {
	p, err := r.ask(ctx)
	if err != nil {
		yield(nil, err)
		return
	}
	if t := r.task(p); t != nil {
		t.follow(ctx, yield)
		return
	}
	data, media, err := r.settle(p)
	if err != nil {
		yield(nil, err)
		return
	}
	yield(form.Completed(r.message, media, data), nil)
}
