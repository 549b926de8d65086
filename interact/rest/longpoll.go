package rest

import (
	"bytes"
	"context"
	"net/http"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/internal/backoff"
)

const (
	// maxHold is the timeout of one poll, as in node-wot and the Kotlin SDK.
	maxHold = 60 * time.Minute
	// minHold is the time after which a response counts as held by the agent.
	minHold = 250 * time.Millisecond
	// maxRow limits the consecutive events without hold; later polls have a short pause before them.
	maxRow = 32
)

// A poller is an observation by longpoll: the response to a GET is one event or change, and the next GET follows.
type poller struct {
	*observation
	outage         // of the agent
	repeats outage // grows while the agent responds without hold and without a change
	row     int    // consecutive events without hold
	before  []byte // the previous reading
	last    string // id of the previous event, from a node; else empty
}

// poll repeats the request until the consumer leaves.
func (o *observation) poll(ctx context.Context) error {
	p := &poller{observation: o, outage: outage{first: 10 * o.client.pause}, repeats: outage{first: 4 * o.client.pause},
		last: o.r.Message.After}
	for {
		started := time.Now()
		ans, err := p.request(ctx)
		held := time.Since(started) >= minHold
		if err == nil {
			err = p.accept(ctx, ans, held)
		} else {
			p.fail(held)
		}
		if err == nil {
			continue
		}
		if err := o.retry(ctx, err, &p.outage, p.next()); err != nil {
			return err
		}
	}
}

// fail records a failure. A failure after a held poll starts a new outage: the timeout of a proxy can be shorter than that of the agent.
func (p *poller) fail(held bool) {
	if held && p.opened {
		p.end()
	}
	p.begin()
}

// request sends one request. After maxHold the response is empty.
func (p *poller) request(ctx context.Context) (*answer, error) {
	held, cancel := context.WithTimeout(ctx, maxHold)
	defer cancel()
	resp, err := p.send(held, p.prepare)
	defer p.drop()
	switch {
	case err != nil && held.Err() != nil && ctx.Err() == nil:
		return &answer{status: http.StatusNoContent}, nil
	case err != nil:
		return nil, retryable(err)
	}
	defer resp.Body.Close()
	if !p.r.expected(resp.StatusCode) {
		return nil, p.refused(resp)
	}
	data, err := p.client.body(ctx, p.r, resp)
	if err != nil && interact.AsError(err).Code == interact.AgentFailed {
		return nil, &lostError{error: err} // an incomplete response
	}
	return &answer{status: resp.StatusCode, header: resp.Header, data: data}, err
}

func (p *poller) prepare(h http.Header) {
	h.Set("Accept", interact.MediaType(p.promises()))
	h.Set("Cache-Control", "no-store")
	after(h, p.last)
}

// accept handles a response, and waits before the next request if the agent did not hold this one.
func (p *poller) accept(ctx context.Context, ans *answer, held bool) error {
	p.opened = true
	p.end()
	if held {
		p.repeats.end()
		p.row = 0
	}
	if p.empty(ans, held) || p.unchanged(ans, held) {
		if held {
			return nil
		}
		return backoff.Sleep(ctx, p.repeats.next())
	}
	p.repeats.end()
	p.last = boundedID(ans.header.Get(EventIDHeader))
	n := notice{id: p.last, media: ans.header.Get("Content-Type"), data: ans.data}
	if p.r.Message.Name == "" {
		n.name = ans.header.Get(EventNameHeader)
	}
	if err := p.yieldNotice(n); err != nil {
		return err
	}
	if p.row++; p.row > maxRow {
		return backoff.Sleep(ctx, 4*p.client.pause)
	}
	return nil
}

// empty reports whether a response has no value. A held response without data is an event without data.
func (p *poller) empty(ans *answer, held bool) bool {
	if ans.status == http.StatusNoContent {
		return true
	}
	signal := p.r.Message.Type == interact.SubscribeEvent && !p.r.isPromised
	return len(form.TrimJSON(ans.data)) == 0 && !(signal && held)
}

// unchanged reports whether an agent that does not hold requests returned the same reading again.
func (p *poller) unchanged(ans *answer, held bool) bool {
	if p.r.Message.Type != interact.ObserveProperty && p.r.Message.Type != interact.ObserveAllProperties {
		return false
	}
	same := p.before != nil && bytes.Equal(p.before, ans.data)
	p.before = ans.data
	return same && !held
}
