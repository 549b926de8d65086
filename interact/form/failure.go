package form

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/lmosd/lmosd/interact"
)

// Ended returns the error of an interaction whose context has ended, with what as the name of the affordance; nil if ctx has not ended.
func Ended(ctx context.Context, what, href string) *interact.Error {
	switch err := ctx.Err(); {
	case errors.Is(err, context.Canceled):
		return &interact.Error{Code: interact.Cancelled, Title: what + " was cancelled", Err: err}
	case err != nil:
		return &interact.Error{Code: interact.Timeout, Title: what + ": no response in time (agent at " + Plain(href) + ")",
			Hint: interact.BusyHint, Next: interact.MoreTime(), Err: err}
	}
	return nil
}

// Unreachable returns the error of an agent without a connection.
func Unreachable(what, href, reason string) *interact.Error {
	return interact.Errorf(interact.Unreachable, "start the agent, or publish its new address",
		"%s cannot be reached at %s: %s", what, Plain(href), reason).Then(interact.StepPublish)
}

// Broken returns the error of an unusable response.
func Broken(what, why string) error {
	return interact.Errorf(interact.AgentFailed, "see the agent's log, or correct its description",
		"unusable response of %s: %s", what, why)
}

// Plain returns an address for display: without user, query and fragment, also those of a template (RFC 6570), on one line, at most 200 bytes.
func Plain(href string) string {
	for _, end := range []string{"{#", "#", "{?", "{&", "?"} {
		href, _, _ = strings.Cut(href, end)
	}
	if scheme, rest, ok := strings.Cut(href, "://"); ok {
		authority, path, _ := strings.Cut(rest, "/")
		href = scheme + "://" + authority[strings.LastIndexByte(authority, '@')+1:] + "/" + path
	}
	return interact.Excerpt(href, 200)
}

// Bad returns the error of an invalid form.
func Bad(href, why string) error {
	return interact.Errorf(interact.BadTD, "correct the form and publish the description again", "the form's href %s %s", Plain(href), why)
}

// A refusal is the error of a dialer that does not connect to an address, such as that of package netguard. Its text has no secrets.
type refusal interface {
	error
	Refused() bool
}

// Reason returns a short cause of a failed connection. hasSecrets means that the text of err may contain an address with secrets.
func Reason(err error, hasSecrets bool) string {
	var guarded *interact.Error
	var refused refusal
	var dns *net.DNSError
	var errno syscall.Errno
	var timeout interface{ Timeout() bool }
	var op *net.OpError
	switch {
	case errors.As(err, &guarded): // of the dialer of this node
		return guarded.Error()
	case errors.As(err, &refused):
		return refused.Error()
	case errors.As(err, &dns):
		return "the name " + interact.Excerpt(dns.Name, 100) + " is unknown"
	case errors.As(err, &errno):
		return errno.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), errors.Is(err, io.ErrClosedPipe):
		return "the connection was closed"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "no response in time"
	case !hasSecrets:
		return interact.Excerpt(err.Error(), 200)
	case errors.As(err, &op):
		return op.Op + " failed"
	case strings.Contains(err.Error(), "tls:"), strings.Contains(err.Error(), "x509:"):
		return "its certificate is not trusted, or it does not support TLS"
	}
	return "the connection failed"
}
