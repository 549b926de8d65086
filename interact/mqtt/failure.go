package mqtt

import (
	"context"
	"errors"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/interact/mqtt/packet"
)

// connectError returns the error of a failed connection to the broker.
func (s *session) connectError(err error) error {
	var r *refusal
	where := s.key.host
	switch {
	case s.life.Err() != nil:
		return shuttingDown()
	case errors.As(err, &r) && refusals[r.code].code == interact.Unauthenticated:
		// Not Remote: the agent sent nothing, and another form may be tried.
		return interact.Errorf(interact.Unauthenticated, "see user name and password in the credentials file on the agent's node",
			"the broker at %s refused this node: %s", where, r)
	case errors.As(err, &r):
		return interact.Errorf(interact.Unreachable, "see the broker's log", "the broker at %s refused the connection: %s", where, r)
	case errors.Is(err, packet.ErrProtocol), errors.Is(err, packet.ErrTooLarge):
		return interact.Errorf(interact.Unreachable, "see what serves that address", "%s is not an MQTT broker: %v",
			where, err)
	}
	return interact.Errorf(interact.Unreachable, "start the broker, or publish its new address",
		"the broker at %s cannot be reached: %s", where, form.Reason(err, false)).Then(interact.StepPublish)
}

// timeoutError returns the error of a ctx that ended before the broker had finished.
func (s *session) timeoutError(ctx context.Context, what string) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return &interact.Error{Code: interact.Cancelled, Err: ctx.Err()}
	}
	return &interact.Error{Code: interact.Timeout, Title: "the broker at " + s.key.host + " " + what,
		Hint: "check whether the broker is busy, or allow more time", Next: interact.MoreTime(), Err: ctx.Err()}
}

// subscribeError returns the error of a failed subscription, or nil.
func (s *session) subscribeError(ctx context.Context, w wire, filter string, err error) error {
	var r *refusal
	switch {
	case err == nil:
		return nil
	case s.life.Err() != nil:
		return shuttingDown()
	case errors.As(err, &r):
		return interact.Errorf(interact.NotAllowed, "let this node's user read that topic at the broker, or add another form",
			"the broker at %s refused the subscription to %s: %s", s.key.host, quoted(filter), r)
	case ctx.Err() != nil:
		return s.timeoutError(ctx, "did not accept a subscription in time")
	}
	return &interact.Error{Code: interact.Unreachable, Title: "the broker at " + s.key.host + " did not accept a subscription",
		Hint: "see the broker's log", Err: lostTo(w, err)}
}

// publishError returns the error of a message that was not published, or may not have been published.
func (s *session) publishError(ctx context.Context, w wire, topic string, err error) error {
	var r *refusal
	where := s.key.host
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errUnsent):
		return &interact.Error{Code: interact.Unreachable, Title: "the connection to the broker at " + where + " is lost",
			Hint: "send it again", Err: errUnsent}
	case errors.Is(err, errNoSubscriber):
		return interact.Errorf(interact.Unreachable, "start the agent", "no subscriber for topic %s at the broker %s", quoted(topic), where)
	case errors.As(err, &r):
		code := refusals[r.code].code
		if code == 0 || code == interact.Unauthenticated || code == interact.Unreachable {
			code = interact.AgentFailed
		}
		return &interact.Error{Code: code, Remote: true, Title: "the broker at " + where + " refused a message to " + quoted(topic) +
			": " + r.Error(),
			Hint: "see the broker's log, and what this node's user may publish there"}
	case s.life.Err() != nil:
		e := *interact.AsError(shuttingDown())
		e.Started = true
		return &e
	case errors.Is(ctx.Err(), context.Canceled):
		return &interact.Error{Code: interact.Cancelled, Started: true, Err: ctx.Err()}
	case ctx.Err() != nil, errors.Is(err, errSlowAck):
		return &interact.Error{Code: interact.Timeout, Started: true, Title: "the broker at " + where +
			" did not acknowledge a message in time",
			Hint: "see whether the broker is busy", Err: err}
	}
	return &interact.Error{Code: interact.Unreachable, Started: true, Title: "the connection to the broker at " + where +
		" broke after the message was sent",
		Hint: "check whether the agent has executed it before you repeat it", Err: lostTo(w, err)}
}

// lostTo adds the cause that the packet check recorded to err.
func lostTo(w wire, err error) error {
	if cause := w.cause(); cause != nil {
		return cause
	}
	return err
}
