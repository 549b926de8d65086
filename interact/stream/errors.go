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

// A pathError says that a host could not be reached, so that nothing has begun there.
type pathError struct {
	host td.Host
	err  error
}

func (e *pathError) Error() string {
	at := "no known address"
	if len(e.host.Addrs) > 0 {
		at = strings.Join(e.host.Addrs, ", ")
	}
	return fmt.Sprintf("%s at %s: %s", e.host.Node.Short(), at, brief(e.err))
}

func (e *pathError) Unwrap() error { return e.err }

// brief tells on one line why a host could not be reached: libp2p writes a line per address.
func brief(err error) string {
	if unsupported(err) {
		return "it is there, and speaks another protocol: it is of another mesh.network, or runs another version of lmosd"
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

// unreachable is the error for a thing none of whose hosts was reached. One that refused says more than those that are away.
func unreachable(thing string, failed []*pathError) error {
	if len(failed) == 0 {
		return interact.Errorf(interact.Unreachable, "its owner must publish it again, with the hosts that serve it",
			"%q has no host", thing)
	}
	causes := make([]error, len(failed))
	names := make([]string, len(failed))
	for i, f := range failed {
		if refusal, ok := errors.AsType[*interact.Error](f.err); ok && refusal.Code == interact.Forbidden {
			return refusal
		}
		causes[i], names[i] = f, f.host.Node.Short()
	}
	return &interact.Error{Code: interact.Unreachable, Err: &paths{causes},
		Title: fmt.Sprintf("no path leads to %q on %s", thing, strings.Join(names, ", ")),
		Hint:  "see that the node runs there, and which peers are connected", Next: interact.Next(interact.StepPeers)}
}

// paths lists the paths that were tried, on one line.
type paths struct{ causes []error }

func (p *paths) Error() string {
	lines := make([]string, len(p.causes))
	for i, err := range p.causes {
		lines[i] = err.Error()
	}
	return "tried " + strings.Join(lines, "; ")
}

func (p *paths) Unwrap() []error { return p.causes }

// expired is the error for a call to node that ended with the error of a context, or before it began since this node is shutting down.
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

// A lostError says that a session ended before the answer.
type lostError struct {
	cause    error // why the session ended
	sent     bool  // the far end may have read the request
	answered bool  // a reply had come
}

func (e *lostError) Error() string { return "connection lost: " + e.cause.Error() }
func (e *lostError) Unwrap() error { return e.cause }

// repeatable reports whether m may be sent again: nothing was answered, and nothing can have begun or it does not matter.
func (e *lostError) repeatable(m *interact.Message) bool {
	switch {
	case e.answered || m.Chunks != nil || errors.Is(e.cause, errClosed):
		return false
	case !e.sent || m.Type.Reads() || m.Key != "":
		return true
	}
	// A session that its serving end closed as unused had read nothing; one that was never agreed on has no reader.
	return resetBy(e.cause, network.StreamGarbageCollected) || unsupported(e.cause)
}

// report is the error for a caller whose request may have begun. The cause decides the code.
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
	case errors.Is(e.cause, errSilent):
		r.Title = "host " + node.Short() + " does not answer any more"
	}
	return r
}

// resetBy reports whether the far end reset the stream with code.
func resetBy(err error, code network.StreamErrorCode) bool {
	var s *network.StreamError
	return errors.As(err, &s) && s.Remote && s.ErrorCode == code
}

// unsupported reports whether the far end does not know the protocol. With lazy negotiation that is told by the first read;
// the error's type is that of a module which is not ours to import.
func unsupported(err error) bool {
	return resetBy(err, network.StreamProtocolNegotiationFailed) || strings.Contains(err.Error(), "protocols not supported")
}
