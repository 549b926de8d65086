package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A pathError is the error for a host that is unreachable. The request has not started there, or is repeatable.
type pathError struct {
	host    td.Host
	err     error
	started bool // the request may have started
}

func (e *pathError) Error() string {
	at := "no known address"
	if len(e.host.Addrs) > 0 {
		at = strings.Join(e.host.Addrs, ", ")
	}
	return fmt.Sprintf("%s at %s: %s", e.host.Node.Short(), at, brief(e.err))
}

func (e *pathError) Unwrap() error { return e.err }

// brief returns the reason on one line: libp2p writes a line per address.
func brief(err error) string {
	if unsupported(err) {
		return "reachable, but with another protocol: another mesh.network or version of lmosd"
	}
	var d *swarm.DialError
	if !errors.As(err, &d) || len(d.DialErrors) == 0 {
		return strings.ReplaceAll(err.Error(), "\n", " ")
	}
	seen := make([]string, 0, len(d.DialErrors))
	for _, e := range d.DialErrors {
		seen = append(seen, fmt.Sprintf("[%s] %s", e.Address, strings.ReplaceAll(e.Cause.Error(), "\n", " ")))
	}
	return strings.Join(seen, "; ")
}

// unreachable returns the error for a Thing without a reachable host. A host that refused determines the error.
func unreachable(thing string, failed []*pathError) error {
	if len(failed) == 0 {
		return interact.Errorf(interact.Unreachable, "its owner must publish it again, with the hosts that serve it",
			"%q has no host", thing)
	}
	causes := make([]error, len(failed))
	names := make([]string, len(failed))
	started := false
	for i, f := range failed {
		if refusal, ok := errors.AsType[*interact.Error](f.err); ok && refusal.Code == interact.Forbidden {
			return refusal
		}
		if limit, ok := errors.AsType[*limitError](f.err); ok && len(failed) == 1 {
			return limit.report(f.host.Node)
		}
		causes[i], names[i], started = f, f.host.Node.Short(), started || f.started
	}
	return &interact.Error{Code: interact.Unreachable, Started: started, Err: &paths{causes},
		Title: fmt.Sprintf("no path leads to %q on %s", thing, strings.Join(names, ", ")),
		Hint:  "see that the node runs there, and which peers are connected", Next: interact.Next(interact.StepPeers)}
}

// paths are the errors of the paths, on one line.
type paths struct{ causes []error }

func (p *paths) Error() string {
	lines := make([]string, len(p.causes))
	for i, err := range p.causes {
		lines[i] = err.Error()
	}
	return "tried " + strings.Join(lines, "; ")
}

func (p *paths) Unwrap() []error { return p.causes }

// expired returns the error for a call to node that ended with the error of a context, or because this node is shutting down.
func expired(err error, node did.DID) error {
	if errors.Is(err, errClosed) {
		return interact.Errorf(interact.ShuttingDown, "start it again", "this node is shutting down").Then(interact.StepRun)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &interact.Error{Code: interact.Timeout, Title: "no answer from host " + node.Short() + " in time",
			Hint: interact.BusyHint, Next: interact.MoreTime(), Err: err}
	}
	return interact.AsError(err)
}

// A lostError is the error of a session that ended before the response.
type lostError struct {
	cause    error  // of the end of the session
	sent     bool   // the peer may have read the request
	answered bool   // a reply has arrived
	last     string // the ID of the last one that the consumer received
}

func (e *lostError) Error() string { return "connection lost: " + e.cause.Error() }
func (e *lostError) Unwrap() error { return e.cause }

// resumable reports whether the subscription m can go on after the last event that the consumer received: at another connection to the same host.
func (e *lostError) resumable(m *interact.Message) bool {
	return m.Type.Long() && m.Chunks == nil && e.last != "" && !errors.Is(e.cause, errClosed) && !errors.Is(e.cause, errSilent)
}

// repeatable reports whether m may be sent to the same host again: without a response, and not started or without effect. Anywhere means that it is
// repeatable at any host.
func (e *lostError) repeatable(m *interact.Message, anywhere bool) bool {
	switch {
	case e.answered || m.Chunks != nil || errors.Is(e.cause, errClosed):
		return false
	case !e.sent || anywhere || m.Key != "":
		return true
	}
	return e.unread()
}

// unread reports whether the host did not read the request: the serving end closes a session as unused only before it reads a request; without the
// protocol it has no reader.
func (e *lostError) unread() bool {
	return resetBy(e.cause, network.StreamGarbageCollected) || unsupported(e.cause)
}

// mayHaveStarted reports whether the host may have started the request m, which is not a read.
func (e *lostError) mayHaveStarted(m *interact.Message) bool {
	return e.sent && !e.unread() && !m.Type.Reads()
}

// after returns the error for a request that was lost by e and repeated at the same host, with the result err. What is repeatable anywhere can be sent to
// another host.
func (e *lostError) after(err error, anywhere bool, node did.DID) error {
	switch known := err.(type) {
	case *pathError:
		if !anywhere {
			return e.report(node)
		}
		known.started = true
	case *interact.Error:
		if !known.Started {
			started := *known
			started.Started = true
			return &started
		}
	}
	return err
}

// hostIsThere reports whether the session ended for a reason that does not concern the host or the connection to it.
func (e *lostError) hostIsThere() bool {
	return e.unread() || errors.Is(e.cause, errIdle) || errors.Is(e.cause, errMoved) || isSpent(e.cause) || errors.Is(e.cause, errClosed)
}

// report returns the error for a request that may have started. The cause determines the code.
func (e *lostError) report(node did.DID) error {
	r := &interact.Error{Code: interact.Unreachable, Started: true, Err: e.cause,
		Title: "host " + node.Short() + " was lost before it answered",
		Hint:  "the request may have been carried out; look before you repeat it"}
	switch {
	case errors.Is(e.cause, errClosed):
		r.Code, r.Title, r.Hint, r.Next = interact.ShuttingDown, "this node is shutting down", "start it again", interact.Next(interact.StepRun)
	case resetBy(e.cause, network.StreamResourceLimitExceeded):
		r.Code, r.Title = interact.Overloaded, "host "+node.Short()+" has no room for more calls"
	case resetBy(e.cause, network.StreamShutdown):
		r.Code, r.Title = interact.ShuttingDown, "host "+node.Short()+" is shutting down"
	case isSpent(e.cause):
		r.Code, r.Title = interact.RelayLimited, "the limit of the relayed connection to host "+node.Short()+" was reached before the answer"
		r.Hint += "; a direct connection has no such limit, and relays of its organization have higher ones"
	case errors.Is(e.cause, errRelay):
		r.Title = "the relay through which host " + node.Short() + " was reached does not answer any more"
	case errors.Is(e.cause, errSilent):
		r.Title = "host " + node.Short() + " does not answer any more"
	}
	return r
}

// resetBy reports whether the peer reset the stream with code.
func resetBy(err error, code network.StreamErrorCode) bool {
	var s *network.StreamError
	return errors.As(err, &s) && s.Remote && s.ErrorCode == code
}

// unsupported reports whether the peer does not support the protocol. With lazy negotiation, the first read returns this error; its type
// is in a module that this package does not import.
func unsupported(err error) bool {
	return resetBy(err, network.StreamProtocolNegotiationFailed) || strings.Contains(err.Error(), "protocols not supported")
}
