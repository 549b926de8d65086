package coap

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/messaging"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/td"
)

// maxBody is the limit of the body of a request or a response in bytes, with all blocks.
const maxBody = 4 << 20

// Options are the settings of a [Client]. The zero value works.
type Options struct {
	// Credentials are the secrets for agents: identity ("username") and key of a pre-shared key, the bytes of the text. The zero value
	// has none.
	Credentials credentials.Store
	// Dial opens every connection: network is "udp" or "tcp", addr a host and a port. A connection for "udp" preserves datagram
	// boundaries. Nil means a [net.Dialer].
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Log receives log records; nil discards them.
	Log *slog.Logger
	// MaxBody is the limit of a response in bytes, and of an input in chunks; 0 means 4 MiB.
	MaxBody int
}

// A Client calls agents over CoAP. It is safe for concurrent use. It keeps at most 256 connections, one for each host, port, scheme
// and pre-shared key, and closes those that are not in use and have received nothing for one minute.
type Client struct {
	consumer form.Consumer
	log      *slog.Logger
	limit    int
	pool     *messaging.Pool
}

// NewClient returns a client with options o. Close it when it is done.
func NewClient(o Options) *Client {
	c := &Client{log: o.Log, limit: o.MaxBody}
	c.log = cmp.Or(c.log, slog.New(slog.DiscardHandler))
	c.limit = cmp.Or(max(c.limit, 0), maxBody)
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
	c.pool = messaging.NewPool(o.Dial, c.limit)
	c.consumer = form.Consumer{Transport: c, GatherUpTo: c.limit,
		Security: form.Security{Protocol: "CoAP", Schemes: []string{"psk"}, Credentials: o.Credentials, Log: c.log, Add: addKey}}
	return c
}

// Close closes all connections and waits for their goroutines. Interactions that still run end with an error.
func (c *Client) Close() { c.pool.Close() }

// Thing returns the agent that t describes. It supports ReadProperty, WriteProperty, InvokeAction, ObserveProperty and
// SubscribeEvent over the forms of t that it [Supports], and operations on all or several affordances: over a form of the Thing if one
// can be used, else for each affordance. Other messages are [interact.NotAllowed].
//
// An observation uses the Observe option. A resource that cannot be observed is polled, at most once in its cov:minPollingInterval
// (default: 1 s), and only changes are yielded. A response without payload to a
// subscription confirms it; one with payload is an event. Notifications over an unconfirmed or broken path may be lost:
// readings have no ID.
//
// Errors are always an [*interact.Error]. Remote: the agent responded with an error. The table in codes.go maps its response code; the
// title has at most 400 bytes of its text. Started: the agent may have received the request, and there is no response. TooLarge: the
// response exceeds the limit and was dropped. A message without a deadline has 30 s, unless its type is long.
func (c *Client) Thing(t *td.Thing) interact.Thing { return c.consumer.Thing(t) }

// unary executes readings and writings.
func (r *request) unary(ctx context.Context, yield func(*interact.Message) bool) error {
	p, err := r.call(ctx)
	if err != nil {
		return err
	}
	var t interact.Type
	switch r.Message.Type {
	case interact.ReadProperty:
		t = interact.PropertyReading
	case interact.ReadAllProperties, interact.ReadMultipleProperties:
		t = interact.PropertyReadings
	default: // the payload of a successful write has no schema
		yield(r.Message.Reply(interact.Acknowledgement, "", nil))
		return nil
	}
	data, media, err := r.settle(p)
	if err != nil {
		return err
	}
	reply := r.Message.Reply(t, media, data)
	reply.Time = time.Now().UTC()
	yield(reply)
	return nil
}

// invoke runs an action and yields its states; the last one is final.
func (r *request) invoke(ctx context.Context, yield func(*interact.Message) bool) error {
	p, err := r.call(ctx)
	if err != nil {
		return err
	}
	if t := r.task(p); t != nil {
		return t.follow(ctx, yield)
	}
	data, media, err := r.settle(p)
	if err == nil {
		yield(r.Message.ReplyStatus(interact.StatusCompleted, media, data))
	}
	return err
}
