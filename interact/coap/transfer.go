package coap

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/messaging"
)

// maxRefetch limits the fetches of a response that changes between its blocks.
const maxRefetch = 3

// A transfer is one request and its response, each in one or more blocks (RFC 7959). All its messages have the same token, by which
// some servers distinguish transfers.
type transfer struct {
	r *request
	k *messaging.Call
}

func (r *request) transfer(k *messaging.Call) transfer { return transfer{r, k} }

// do sends p with body and returns the response with its complete payload.
func (t transfer) do(ctx context.Context, p *messaging.Packet, body []byte) (*messaging.Packet, error) {
	a, err := t.upload(ctx, p, body)
	if err != nil {
		return nil, err
	}
	return t.complete(ctx, p, a)
}

// exchange sends p and checks the response, which is invalid with an unknown critical option.
func (t transfer) exchange(ctx context.Context, p *messaging.Packet) (*messaging.Packet, error) {
	a, err := t.k.Ask(ctx, p)
	if err != nil {
		return nil, err
	}
	if id, bad := a.Faulty(); bad {
		return nil, t.r.broken("unknown option %d, or invalid value", id)
	}
	return a, nil
}

// upload sends p with body, in blocks if necessary, and returns the first message of the response.
func (t transfer) upload(ctx context.Context, p *messaging.Packet, body []byte) (*messaging.Packet, error) {
	b := messaging.Block{SZX: messaging.SZX1024}
	if t.r.terms.szx1 != nil {
		b.SZX = *t.r.terms.szx1
	}
	room := b.Size()
	if t.k.Stream() && len(body) > room/2 {
		room = t.k.Room(ctx)
	}
	if len(body) <= room {
		p.Payload = body
		a, err := t.exchange(ctx, p)
		if err == nil && a.Code == codes.Continue {
			return nil, t.r.broken("it requests more blocks than the request has")
		}
		return a, err
	}
	for {
		part, is, _ := b.Cut(body)
		q := *p
		q.Options = slices.Clone(p.Options)
		q.AddUint(message.Block1, is.Value())
		if b.Num == 0 {
			q.AddUint(message.Size1, uint32(len(body)))
		}
		q.Payload = part
		a, err := t.exchange(ctx, &q)
		if err != nil {
			return nil, markStarted(err, b.Num > 0)
		}
		next, more, err := t.next(is, a)
		if err != nil || !more {
			return a, err
		}
		b = next
		if b.Num >= messaging.MaxBlock {
			return nil, interact.Errorf(interact.TooLarge, "send less", "%s takes blocks too small for %d bytes", t.r.What(), len(body))
		}
	}
}

// markStarted records in a loss that earlier blocks have arrived.
func markStarted(err error, arrived bool) error {
	var l *messaging.Loss
	if errors.As(err, &l) && arrived {
		l.Started = true
	}
	return err
}

// next returns the block to send after the response a to block b. The agent may request smaller blocks (RFC 7959 §2.3, §2.9.3). more is
// false if a is the response to the complete body.
func (t transfer) next(b messaging.Block, a *messaging.Packet) (next messaging.Block, more bool, err error) {
	answered, ok := a.Block(message.Block1)
	smaller := ok && answered.SZX < b.SZX
	switch {
	case a.Code == codes.RequestEntityTooLarge && b.Num == 0 && smaller:
		return messaging.Block{SZX: answered.SZX}, true, nil
	case !a.Good() || !b.More && a.Code != codes.Continue:
		return b, false, nil
	case !b.More || !ok || answered.Num != b.Num:
		return b, false, t.r.broken("it answered %s to block %d of the request", messaging.Dotted(a.Code), b.Num)
	case smaller:
		return messaging.Block{Num: uint32((b.Offset() + b.Size()) >> (answered.SZX + 4)), SZX: answered.SZX}, true, nil
	}
	return messaging.Block{Num: b.Num + 1, SZX: b.SZX}, true, nil
}

// complete fetches the remaining blocks of the response a to p. The total size is limited.
func (t transfer) complete(ctx context.Context, p, a *messaging.Packet) (*messaging.Packet, error) {
	for try := 0; ; try++ {
		whole, changed, err := t.gather(ctx, p, a)
		if err != nil || !changed {
			return whole, err
		}
		if p.Code != codes.GET || try == maxRefetch {
			return nil, t.r.broken("it changed while it was read, block by block")
		}
		b, _ := a.Block(message.Block2)
		if a, err = t.exchange(ctx, t.follow(p, messaging.Block{SZX: b.SZX})); err != nil {
			return nil, err
		}
	}
}

// gather fetches the blocks behind a. changed means that one of them belongs to another response.
func (t transfer) gather(ctx context.Context, p, a *messaging.Packet) (whole *messaging.Packet, changed bool, err error) {
	b, ok := a.Block(message.Block2)
	size, _ := a.Uint(message.Size2)
	switch {
	case len(a.Payload) > t.r.client.limit, int64(size) > int64(t.r.client.limit):
		return nil, false, t.tooLarge()
	case !ok || !b.More && b.Num == 0:
		return a, false, nil
	case b.Num != 0, b.SZX == messaging.BERT && !t.k.Stream():
		return nil, false, t.r.broken("it began with block %d of the size %d", b.Num, b.SZX)
	}
	tag, _ := a.Option(message.ETag)
	body := bytes.Clone(a.Payload)
	for last := a; b.More; {
		if !b.Full(len(last.Payload)) {
			return nil, false, t.r.broken("a block of %d bytes has %d", b.Size(), len(last.Payload))
		}
		want := messaging.Block{Num: uint32(len(body) / b.Size()), SZX: b.SZX}
		if last, err = t.exchange(ctx, t.follow(p, want)); err != nil {
			return nil, false, markStarted(err, true)
		}
		if !last.Good() {
			return nil, false, refused(t.r.What(), last)
		}
		if other, _ := last.Option(message.ETag); !bytes.Equal(tag, other) {
			return nil, true, nil
		}
		if b, ok = last.Block(message.Block2); !ok || b.Offset() != len(body) || b.SZX > want.SZX {
			return nil, false, t.r.broken("it sent another block than %d", want.Num)
		}
		if body = append(body, last.Payload...); len(body) > t.r.client.limit {
			return nil, false, t.tooLarge()
		}
	}
	complete := *a
	complete.Payload = body
	return &complete, false, nil
}

func (t transfer) tooLarge() error {
	return interact.Errorf(interact.TooLarge, "request less, or let the agent send the output in parts",
		"the response of %s is larger than %d bytes", t.r.What(), t.r.client.limit)
}

// follow requests a block of the response to p (RFC 7959 §2.4, §3.3). Only FETCH repeats the body (RFC 8132 §2).
func (t transfer) follow(p *messaging.Packet, b messaging.Block) *messaging.Packet {
	q := &messaging.Packet{Kind: p.Kind, Code: p.Code}
	for _, o := range p.Options {
		switch o.ID {
		case message.Observe, message.Block1, message.Block2, message.Size1:
		case message.ContentFormat:
			if p.Code == messaging.Fetch {
				q.Add(o.ID, o.Value)
			}
		default:
			q.Add(o.ID, o.Value)
		}
	}
	if p.Code == messaging.Fetch {
		q.Payload = p.Payload
	}
	q.AddUint(message.Block2, b.Value())
	return q
}
