package coap

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/messaging"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/td"
)

const (
	maxWait = 10 * time.Minute // the longest timeout that a consumer can request
	ageMax  = 60               // seconds: the longest Max-Age of 4.29
)

// An exchange is one request to the server and its response.
type exchange struct {
	server   *Server
	q        *messaging.Packet
	from     messaging.Remote
	host     netip.Addr
	replay   *messaging.Replay
	observer *observer // that the request registered; nil if there is none

	mu    sync.Mutex // guards acked
	acked bool       // in an empty message; the response follows in a separate one
}

// failure returns the response for err, with a diagnostic payload (RFC 7252 §5.5.2).
func failure(err error) *messaging.Packet {
	if r, ok := err.(*messaging.Reject); ok {
		return &messaging.Packet{Code: r.Code, Payload: []byte(r.Text)}
	}
	e := interact.AsError(err)
	p := &messaging.Packet{Code: responseOf(e.Code), Payload: diagnostic(e)}
	if e.Code == interact.RateLimited || p.Code == codes.ServiceUnavailable {
		p.AddUint(message.MaxAge, 1) // RFC 8516 §3, RFC 7252 §5.9.3.4
	}
	return p
}

// run executes the request and sends the response. A request that takes long is acknowledged first, so that the consumer does not
// retransmit it.
func (x *exchange) run(ctx context.Context) {
	fired := make(chan struct{})
	timer := time.AfterFunc(x.server.ackDelay, func() {
		defer close(fired)
		x.acknowledge()
	})
	var a *messaging.Packet
	if err := x.server.safely("a request", func() (err error) { a, err = x.handle(ctx); return err }); err != nil {
		a = failure(err)
	}
	if !timer.Stop() {
		<-fired
	}
	x.respond(ctx, a)
	switch w := &x.server.watches; {
	case x.observer == nil:
	case a.Good():
		x.server.work.Go(func() { w.serve(x.observer) })
	default:
		w.remove(x.observer)
	}
}

// acknowledge announces a separate response.
func (x *exchange) acknowledge() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.q.Kind == message.Confirmable {
		x.acked = true
		b := messaging.Bare(message.Acknowledgement, x.q.Mid)
		x.server.seen.Keep(x.replay, b)
		x.server.send(b, x.from)
	}
}

// respond sends the response: with the acknowledgement, or in a separate message until that is acknowledged.
func (x *exchange) respond(ctx context.Context, a *messaging.Packet) {
	s := x.server
	a.Token = x.q.Token
	x.mu.Lock()
	acked := x.acked
	x.mu.Unlock()
	if x.q.Kind == message.Confirmable && !acked {
		a.Kind, a.Mid = message.Acknowledgement, x.q.Mid
		b, err := a.Datagram()
		if err != nil {
			s.o.Log.Error("coap response failed", "err", err)
			return
		}
		if x.q.Code != codes.GET {
			s.seen.Keep(x.replay, b)
		}
		s.send(b, x.from)
	} else {
		peer := s.peers.get(x.from)
		defer s.peers.release(peer)
		err := error(nil)
		if acked {
			_, _, err = peer.Confirm(ctx, a, nil)
		} else {
			err = peer.Fire(a)
		}
		if err != nil {
			s.o.Log.Debug("coap response failed", "to", x.from.Addr, "err", err)
		}
	}
	if x.q.Code == codes.GET { // GET is idempotent (RFC 7252 §4.5)
		s.seen.Forget(x.replay)
	}
}

// handle returns the response.
func (x *exchange) handle(ctx context.Context) (*messaging.Packet, error) {
	if id, bad := x.q.Faulty(); bad {
		if id == message.ProxyURI || id == message.ProxyScheme {
			return nil, messaging.Rejected(codes.ProxyingNotSupported, "this server is not a proxy") // RFC 7252 §5.7.2
		}
		return nil, messaging.Rejected(codes.BadOption, fmt.Sprintf("unknown option %d, or invalid value", id))
	}
	p, t, err := parseResource(x.q)
	if err != nil {
		return nil, err
	}
	want, wanted := x.q.Block(message.Block2)
	if wanted && want.SZX > messaging.SZX1024 {
		return nil, messaging.Rejected(codes.BadRequest, "the block size is reserved (RFC 7959 §2.2)")
	}
	key := messaging.TransferKey(x.from.Addr, x.q)
	now := time.Now()
	if wanted && want.Num > 0 {
		if a := x.server.going.Get(key, now); a != nil {
			return x.cut(a, key)
		}
		if x.q.Code != codes.GET {
			return nil, messaging.ErrGap
		}
	}
	body := x.q.Payload
	b, parted := x.q.Block(message.Block1)
	if parted {
		var whole bool
		if body, whole, err = x.gather(key, b, now); err != nil || !whole {
			return acknowledged(&messaging.Packet{Code: codes.Continue}, b), err
		}
	}
	a, err := x.execute(ctx, p, t, body)
	if err != nil {
		a = failure(err)
	}
	if parted {
		acknowledged(a, b)
	}
	return x.cut(a, key)
}

// acknowledged adds the block of the request that a response acknowledges (RFC 7959 §2.3).
func acknowledged(a *messaging.Packet, b messaging.Block) *messaging.Packet {
	a.AddUint(message.Block1, b.Value())
	return a
}

// gather adds a block to the body.
func (x *exchange) gather(key string, b messaging.Block, now time.Time) (body []byte, whole bool, err error) {
	s := x.server
	if size, ok := x.q.Uint(message.Size1); ok && int64(size) > int64(s.o.MaxBody) {
		return nil, false, x.tooLarge()
	}
	return s.coming.Gather(key, x.host, b, x.q.Payload, s.o.MaxBody, now)
}

func (x *exchange) tooLarge() error {
	return interact.Errorf(interact.TooLarge, "send less", "the body is larger than %d bytes", x.server.o.MaxBody)
}

// execute executes a request with its complete body.
func (x *exchange) execute(ctx context.Context, p resource, t interact.Type, body []byte) (*messaging.Packet, error) {
	s := x.server
	if wait := s.rate.Take(x.host, 1, time.Now()); wait > 0 {
		a := failure(interact.Errorf(interact.RateLimited, "send fewer requests", "more than %.0f requests in one second", s.o.Rate))
		a.Options = nil
		a.AddUint(message.MaxAge, uint32(min(wait.Seconds()+1, ageMax))) // RFC 8516 §3
		return a, nil
	}
	ctx = did.WithPrincipal(ctx, s.o.From)
	if p.kind == wellKnown {
		return x.known(ctx)
	}
	ctx, cancel, err := x.within(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	d, err := x.find(ctx, p)
	if err != nil {
		return nil, err
	}
	if p.kind == theThing {
		return x.describe(d)
	}
	m, err := x.message(ctx, p, t, d, body)
	if err != nil {
		return nil, err
	}
	return x.dispatch(ctx, d, p, m)
}

// find resolves the Thing. An id with escapes is tried with and without them.
func (x *exchange) find(ctx context.Context, p resource) (*td.Description, error) {
	var first error
	for _, id := range p.ids() {
		d, err := x.server.o.Find(ctx, id)
		if err == nil && d != nil && d.Thing != nil {
			return d, nil
		}
		if err == nil {
			err = interact.NoAgent(id)
		}
		first = cmp.Or(first, err)
		if interact.AsError(err).Code != interact.NotFound {
			break
		}
	}
	return nil, first
}

// within returns ctx with the timeout of the consumer.
func (x *exchange) within(ctx context.Context) (context.Context, context.CancelFunc, error) {
	wait := form.DefaultTimeout
	if text, ok := x.query("timeout"); ok {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 || d > maxWait {
			return nil, nil, interact.Errorf(interact.Invalid, "for example ?timeout=5s",
				"expected as timeout a duration of at most %v", maxWait)
		}
		wait = d
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	return ctx, cancel, nil
}

// query returns the value of name=value in the query.
func (x *exchange) query(name string) (value string, ok bool) {
	for _, q := range x.q.Texts(message.URIQuery) {
		if key, value, _ := strings.Cut(q, "="); key == name {
			return value, true
		}
	}
	return "", false
}

// message converts a request to a message.
func (x *exchange) message(ctx context.Context, p resource, t interact.Type, d *td.Description,
	body []byte) (*interact.Message, error) {
	m := &interact.Message{Type: t, From: x.server.o.From, Thing: d.Ref(), ID: rand.Text(), Name: p.name, ActionID: p.action, Data: body}
	m.Deadline, _ = ctx.Deadline()
	if left, ok := x.q.Uint(messaging.HopLimit); ok && left == 0 {
		return nil, messaging.Rejected(codes.BadRequest, "the Hop-Limit is 0") // RFC 8768 §3
	} else if ok && left <= interact.MaxHops {
		m.Hops = uint8(interact.MaxHops + 1 - left)
	}
	if len(body) > 0 {
		m.ContentType = interact.JSON // the default of simple consumers
		if format, ok := x.q.Uint(message.ContentFormat); ok {
			if m.ContentType = messaging.Media(format); m.ContentType == "" {
				return nil, interact.Errorf(interact.UnsupportedType, "50 is JSON, 60 is CBOR",
					"unknown content format %d", format)
			}
		}
	}
	if len(body) > x.server.o.MaxBody {
		return nil, x.tooLarge()
	}
	if format, ok := x.q.Uint(message.Accept); ok {
		if m.Accept = messaging.Media(format); m.Accept == "" {
			return nil, messaging.Rejected(codes.NotAcceptable, "unknown content format; 50 is JSON, 60 is CBOR")
		}
	}
	return m, x.variables(d.Thing, m)
}

// present adds the data of a reply to a response, in the type that the consumer accepts. The result of a change is sent in any type;
// the result of a read must be acceptable (RFC 7252 §5.10.4).
func present(a *messaging.Packet, r, m *interact.Message) (*messaging.Packet, error) {
	data, is, err := interact.Transcode(r.Data, r.Media(), m.Accept)
	if err != nil {
		return nil, err
	}
	if a.Payload = data; len(data) == 0 {
		return a, nil
	}
	if m.Accept != "" && m.Type.Reads() && !form.Alike(m.Accept, is) {
		return nil, messaging.Rejected(codes.NotAcceptable, "it is "+clip(interact.Readable(interact.MediaType(is)), 100))
	}
	format, ok := messaging.FormatOf(is)
	switch {
	case ok:
	case td.IsJSON(is):
		format, ok = messaging.FormatJSON, true
	case interact.IsCBOR(is):
		format, ok = messaging.FormatCBOR, true
	}
	if ok {
		a.AddUint(message.ContentFormat, format)
	}
	return a, nil
}

// tag returns the ETag of a body (RFC 7252 §5.10.6).
func tag(body []byte) []byte {
	sum := sha256.Sum256(body)
	return sum[:8]
}

// cut returns the block of the response a that the request selects, and stores the rest for the next requests (RFC 7959 §2.4).
func (x *exchange) cut(a *messaging.Packet, key string) (*messaging.Packet, error) {
	want, wanted := x.q.Block(message.Block2)
	if !wanted {
		want.SZX = messaging.SZX1024
	}
	want.More = false
	if len(a.Payload) > x.server.o.MaxBody {
		return nil, responseTooLarge(x.server.o.MaxBody)
	}
	if x.q.Code == codes.GET && a.Code == codes.Content {
		if _, ok := a.Option(message.ETag); !ok && len(a.Payload) > 0 {
			a.Add(message.ETag, tag(a.Payload))
		}
		if x.has(a) {
			valid := &messaging.Packet{Code: codes.Valid} // RFC 7252 §5.9.1.3
			valid.Options = copied(a.Options).Remove(message.ContentFormat)
			return valid, nil
		}
	}
	part, is, ok := want.Cut(a.Payload)
	if !ok {
		return nil, messaging.Rejected(codes.BadRequest, "the response has no such block")
	}
	if is.Num == 0 && !is.More {
		if _, ok := x.q.Option(message.Size2); ok && a.Good() {
			a.AddUint(message.Size2, uint32(len(a.Payload)))
		}
		return a, nil
	}
	if is.Num == 0 {
		if _, ok := a.Option(message.ETag); !ok && a.Good() {
			a.Add(message.ETag, tag(a.Payload))
		}
		x.server.keep(key, x.host, a)
	}
	return parted(a, part, is), nil
}

// keep stores a response for the next blocks. Without room, the request is executed again for each block.
func (s *Server) keep(key string, host netip.Addr, a *messaging.Packet) {
	whole := *a
	whole.Options = withoutBlocks(a.Options)
	if err := s.going.Keep(key, host, &whole, time.Now()); err != nil {
		s.o.Log.Debug("coap blocks", "err", err)
	}
}

// parted returns one block of the response a.
func parted(a *messaging.Packet, part []byte, is messaging.Block) *messaging.Packet {
	b := *a
	b.Options = copied(a.Options)
	b.AddUint(message.Block2, is.Value())
	if is.Num == 0 {
		b.AddUint(message.Size2, uint32(len(a.Payload))) // RFC 7959 §4
	}
	b.Payload = part
	return &b
}

// copied returns options that can be changed.
func copied(o message.Options) message.Options { return append(message.Options(nil), o...) }

// withoutBlocks returns the options that each block of a response has.
func withoutBlocks(o message.Options) message.Options {
	return copied(o).Remove(message.Block1).Remove(message.Observe)
}

// has reports whether the request has the ETag of a, because the consumer has the value.
func (x *exchange) has(a *messaging.Packet) bool {
	mine, ok := a.Option(message.ETag)
	for _, o := range x.q.Options {
		if ok && o.ID == message.ETag && bytes.Equal(o.Value, mine) {
			return true
		}
	}
	return false
}
