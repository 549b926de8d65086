package ws

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/interact/ws/frame"
)

// AttachOptions are the settings of [Attach]. URL, TD and Thing are required.
type AttachOptions struct {
	// URL is the WebSocket endpoint of the node, e.g. "ws://127.0.0.1:4668/ws", and Token the token of the node; empty sends none.
	URL, Token string
	// Dial opens the connection; nil means net.Dialer. For a unix socket it ignores the address.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// TD is the description of the Thing: JSON, complete or a draft without forms.
	TD []byte
	// Changing, if it is not nil, returns the description in place of TD. It closes the channel when the description changes; the thing
	// is then registered again, and its interactions continue.
	Changing func() (td []byte, changed <-chan struct{})
	// Thing serves the requests of the node, which may have a request stream (interact.Message.Chunks).
	Thing interact.Thing
	// Log receives log records; nil discards them.
	Log *slog.Logger
	// Registered, if it is not nil, is called with the id of the thing when the node has registered it.
	Registered func(id string)
}

// attachedDrain limits the wait for running calls before an attached thing is unregistered.
const attachedDrain = 8 * time.Second

// Attach attaches an agent in this process to a node: it dials the node, registers the Thing, and serves the requests of the node over
// the same connection, so that the agent has no port. When ctx ends, new calls are rejected with ShuttingDown, running calls have 8 s to
// finish, the Thing is unregistered, and Attach returns nil. Any other end is an error, an [*interact.Error]: NodeLost if the node is not
// reachable or the connection is lost, TokenRejected, or the error of the node about the description (Remote). Attach does not reconnect.
//
//	→ {"messageType":"registerThing","messageId":"m1","streams":true,"data":{"title":"weather","actions":{…}}}
//	← {"messageType":"thingRegistered","messageId":"n1","correlationId":"m1","thingId":"urn:…","streams":true}
//	← {"messageType":"invokeAction","messageId":"n2","thingId":"urn:…","action":"ask","input":"Bonn?"}
//	→ {"messageType":"actionStatus","messageId":"m2","correlationId":"n2","thingId":"urn:…","status":"completed","output":"ok"}
//	→ {"messageType":"unregisterThing","messageId":"m3","thingId":"urn:…"}
func Attach(ctx context.Context, o AttachOptions) error {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	gate := new(interact.Gate)
	o.Thing = interact.Chain(o.Thing, gate.Middleware())
	c, err := o.connect(ctx, gate)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.run() }()
	err = o.attached(ctx, c, gate)
	c.end(goodbye)
	<-ended
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// connect dials the node.
func (o *AttachOptions) connect(ctx context.Context, gate *interact.Gate) (*conn, error) {
	header := http.Header{"User-Agent": {"lmosd"}}
	if o.Token != "" {
		header.Set("Authorization", "Bearer "+o.Token)
	}
	s, status, err := dialer{dial: o.Dial}.open(ctx, o.URL, header, "lmosprotocol")
	switch name := form.Plain(o.URL); {
	case err == nil:
		h := &host{isAgent: true, gate: gate, refusal: interact.Errorf(interact.Forbidden, "register it with a node", "this is an agent, not a node")}
		h.find = func(_ context.Context, ref string) (target, error) { return target{ref: ref, thing: o.Thing}, nil }
		own := settings{log: o.Log, maxPending: 4 * defaultPending, rate: 1e6}.withDefaults() // the node has its own limits
		return newConn(context.Background(), s, name, own, frame.Doc, h), nil
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return nil, interact.Errorf(interact.TokenRejected, "export LMOSD_TOKEN=$(cat FILE), the token file of the node",
			"%s refused the token", name)
	case status != 0:
		return nil, interact.Errorf(interact.NodeLost, "check that this is the address of a node, with /ws at its end",
			"%s answered %d and opened no WebSocket", name, status)
	default:
		return nil, interact.Errorf(interact.NodeLost, "", "the node at %s cannot be reached: %s", name, form.Reason(err, true)).Then(interact.StepRun)
	}
}

// attached registers the thing and waits for the end of ctx or of the connection. If the connection is open, it lets running calls
// finish and unregisters the Thing.
func (o *AttachOptions) attached(ctx context.Context, c *conn, gate *interact.Gate) error {
	p := &peer{c: c, style: frame.Style{Dialect: frame.Doc}}
	id, changed, err := o.register(ctx, p)
	if err != nil {
		return err
	}
	if o.Registered != nil {
		o.Registered(id)
	}
	for ctx.Err() == nil {
		select {
		case <-c.ctx.Done():
			return &interact.Error{Code: interact.NodeLost, Title: "the connection to the node was lost", Err: context.Cause(c.ctx),
				Hint: "see that the node runs", Next: interact.Next(interact.StepStatus)}
		case <-changed:
			if _, changed, err = o.register(ctx, p); err != nil {
				o.Log.Warn("changed description rejected by the node", "thing", id, "err", err)
			}
		case <-ctx.Done():
		}
	}
	select {
	case <-gate.Close():
	case <-time.After(attachedDrain):
		o.Log.Warn("unfinished calls cancelled", "thing", id, "after", attachedDrain)
	case <-c.ctx.Done():
	}
	p.thing = id
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, err = o.request(last, p, frame.TypeUnregister, nil)
	return err
}

// register registers the Thing with the node. It returns the id of the Thing there, and when to register again.
func (o *AttachOptions) register(ctx context.Context, p *peer) (id string, changed <-chan struct{}, err error) {
	raw := o.TD
	if o.Changing != nil {
		raw, changed = o.Changing()
	}
	wait, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	id, err = o.request(wait, p, frame.TypeRegister, raw)
	return id, changed, err
}

// request sends a message of the extension and waits for the response. It returns the id of the Thing in the response.
func (o *AttachOptions) request(ctx context.Context, p *peer, t interact.Type, data []byte) (id string, err error) {
	k, err := p.c.begin(ctx, p, &interact.Message{Type: t, Data: data}, nil)
	if err != nil {
		return "", err
	}
	defer p.c.asking.remove(k)
	f, err := p.c.next(ctx, p, k)
	switch {
	case err != nil:
		return "", err
	case f.Type == frame.TypeError:
		return "", f.Fault
	}
	return f.Thing, nil
}
