package rest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/internal/backoff"
	events "github.com/lmosd/lmosd/internal/sse" // sse is the name of the subprotocol
)

const eventsType = events.MediaType

// errOver means that the agent has ended the observation.
var errOver = errors.New("the agent ended it")

// A lostError is a failure after which the observation is retried.
type lostError struct {
	error
	after time.Duration // before the next try, as the agent requires
}

// retryable returns err as a *lostError if the agent was not reached, else err.
func retryable(err error) error {
	if e := interact.AsError(err); e.Code == interact.Unreachable && !e.Remote {
		return &lostError{error: err}
	}
	return err
}

// refusal returns the error of a response with an error status. It reads the text of the agent for at most [form.CancelTimeout].
func (o *observation) refusal(resp *http.Response) error {
	defer time.AfterFunc(form.CancelTimeout, o.drop).Stop()
	return o.client.refused(o.r, resp)
}

// refused returns the refusal, as a *lostError if the status is temporary.
func (o *observation) refused(resp *http.Response) error {
	err := o.refusal(resp)
	if isTemporary(resp.StatusCode) {
		return &lostError{err, retryAfter(resp.Header.Get("Retry-After"))}
	}
	return err
}

// retry waits after err before the next try. Its error ends the observation: the error of the context, or err if it is permanent, occurs
// before the agent has accepted the observation, or lasts too long.
func (o *observation) retry(ctx context.Context, err error, out *outage, least time.Duration) error {
	lost, ok := err.(*lostError)
	switch {
	case err == form.ErrLeft:
		return err
	case ctx.Err() != nil:
		return o.r.lost(ctx, err)
	case !ok:
		return err
	case !o.opened || out.late():
		return lost.error
	}
	o.client.log.Debug("observation lost", "thing", o.r.Thing.ID, "op", o.r.op, "affordance", o.r.Message.Name, "err", lost.error)
	if err := backoff.Sleep(ctx, max(least, lost.after)); err != nil {
		return o.r.lost(ctx, err)
	}
	return nil
}

// A listener is an observation by server-sent events (WoT Profile §7.2; HTML §9.2.3).
type listener struct {
	*observation
	outage
	last     string        // id of the last event
	required time.Duration // pause between two streams, of the agent; 0 if unset
}

// listen reads one stream after another, until the consumer leaves or the agent ends the observation.
func (o *observation) listen(ctx context.Context) error {
	l := &listener{observation: o, outage: outage{first: 10 * o.client.pause}, last: o.r.Message.After}
	for {
		err := l.connect(ctx)
		if err == errOver {
			return nil
		}
		if err := o.retry(ctx, err, &l.outage, l.between()); err != nil {
			return err
		}
	}
}

// between returns the pause before the next stream: the one that the agent requires, else a growing one.
func (l *listener) between() time.Duration {
	if l.required > 0 && l.since.IsZero() {
		return min(max(l.required, 4*l.client.pause), maxBackoff)
	}
	return l.next()
}

// connect opens a stream and reads its events until it breaks.
func (l *listener) connect(ctx context.Context) error {
	resp, err := l.send(ctx, func(h http.Header) {
		h.Set("Accept", eventsType)
		h.Set("Cache-Control", "no-store")
		after(h, l.last)
	})
	defer l.drop()
	if err != nil {
		l.begin()
		return retryable(err)
	}
	defer resp.Body.Close()
	if err := l.accepts(resp); err != nil {
		l.begin()
		return err
	}
	src, err := l.client.source(ctx, l.r, resp)
	if err != nil {
		return err
	}
	l.opened = true
	l.recovers()
	return l.take(src)
}

// accepts reports whether a response is an event stream. After the first, 204 is the end (HTML §9.2.3).
func (l *listener) accepts(resp *http.Response) error {
	media := resp.Header.Get("Content-Type")
	switch {
	case resp.StatusCode == http.StatusNoContent && l.opened:
		return errOver
	case !l.r.expected(resp.StatusCode):
		return l.refused(resp)
	case resp.StatusCode == http.StatusNoContent || media != "" && interact.MediaType(media) != eventsType:
		return form.Broken(l.r.What(), "expected an event stream, got "+interact.Excerpt(media, 60))
	}
	return nil
}

// take yields the events of a stream until it breaks.
func (l *listener) take(src io.Reader) error {
	started := time.Now()
	in := events.NewReader(src, int(l.client.limit))
	in.ID = l.last
	for {
		ev, err := in.Next()
		l.last = boundedID(in.ID)
		if in.Retry > 0 {
			l.required = in.Retry
		}
		switch {
		case err == events.ErrTooLarge:
			return l.client.tooLarge(l.r, "an event")
		case err != nil:
			if time.Since(started) > maxBackoff {
				l.end()
			}
			return &lostError{error: interact.Errorf(interact.Unreachable, "see the agent's log",
				"%s: its event stream at %s broke off: %s", l.r.What(), form.Plain(l.r.Form.Href), form.Reason(err, true))}
		}
		l.end()
		if ev.Name == problem.EventName && !l.observes(problem.EventName) {
			return problemIn(ev.Data)
		}
		if err := l.yieldNotice(notice{id: boundedID(ev.ID), name: ev.Name, data: ev.Data}); err != nil {
			return err
		}
	}
}

// problemIn returns the error with which a node ends a stream of events, as a *lostError if it is temporary.
func problemIn(data []byte) error {
	e := problem.Unmarshal(http.StatusBadGateway, data)
	if e.Remote = true; e.Code.Retryable() {
		return &lostError{error: e}
	}
	return e
}
