package coap

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/messaging"
	"github.com/lmosd/lmosd/internal/cbor"
	"github.com/lmosd/lmosd/td"
)

// Response codes without a name in the CoAP module.
const (
	conflict        codes.Code = 4<<5 | 9  // RFC 8132 §2.3.2
	unprocessable   codes.Code = 4<<5 | 22 // RFC 8132 §2.3.1
	hopLimitReached codes.Code = 5<<5 | 8  // RFC 8768 §3
)

// meanings maps the response codes of agents to error codes and hints.
var meanings = map[codes.Code]struct {
	code interact.Code
	hint string
}{
	codes.BadRequest:              {interact.Invalid, hintRequest},               // RFC 7252 §5.9.2.1
	codes.Unauthorized:            {interact.Unauthenticated, hintCredentials},   // RFC 7252 §5.9.2.2
	codes.BadOption:               {interact.NotAllowed, hintOption},             // RFC 7252 §5.9.2.3
	codes.Forbidden:               {interact.Forbidden, hintCredentials},         // RFC 7252 §5.9.2.4
	codes.NotFound:                {interact.NoAffordance, hintForm},             // RFC 7252 §5.9.2.5
	codes.MethodNotAllowed:        {interact.NotAllowed, hintForm},               // RFC 7252 §5.9.2.6
	codes.NotAcceptable:           {interact.UnsupportedType, hintAccept},        // RFC 7252 §5.9.2.7
	codes.RequestEntityIncomplete: {interact.AgentFailed, "send it again"},       // RFC 7959 §2.9.2
	conflict:                      {interact.AgentFailed, hintRequest},           // RFC 8132 §2.3.2
	codes.PreconditionFailed:      {interact.AgentFailed, hintRequest},           // RFC 7252 §5.9.2.8
	codes.RequestEntityTooLarge:   {interact.TooLarge, "send less"},              // RFC 7252 §5.9.2.9, RFC 7959 §2.9.3
	codes.UnsupportedMediaType:    {interact.UnsupportedType, hintFormat},        // RFC 7252 §5.9.2.10
	unprocessable:                 {interact.Invalid, hintRequest},               // RFC 8132 §2.3.1
	codes.TooManyRequests:         {interact.RateLimited, "send fewer requests"}, // RFC 8516 §3
	codes.InternalServerError:     {interact.AgentFailed, hintLog},               // RFC 7252 §5.9.3.1
	codes.NotImplemented:          {interact.NotAllowed, hintForm},               // RFC 7252 §5.9.3.2
	codes.BadGateway:              {interact.AgentFailed, hintLog},               // RFC 7252 §5.9.3.3
	codes.ServiceUnavailable:      {interact.Overloaded, "try again in a while"}, // RFC 7252 §5.9.3.4
	codes.GatewayTimeout:          {interact.Timeout, hintLog},                   // RFC 7252 §5.9.3.5
	codes.ProxyingNotSupported:    {interact.NotAllowed, hintForm},               // RFC 7252 §5.9.3.6
	hopLimitReached:               {interact.Loop, "check the proxies on the path, and cov:hopLimit"},
}

const (
	hintRequest     = "the agent rejected the request; the error has its reason"
	hintCredentials = "the agent refused this node: see its security scheme and the credentials file on the agent's node"
	hintForm        = "the form of the description may be wrong: compare its href and cov:method with the agent"
	hintOption      = "the form of the description may be wrong: it has an option that the agent does not support"
	hintAccept      = "the form of the description may be wrong: compare cov:accept with the content formats of the agent"
	hintFormat      = "the form of the description may be wrong: compare contentType and cov:contentFormat with the agent"
	hintLog         = "see the agent's log"
)

// replies maps error codes to response codes (RFC 7252 §5.9, RFC 7959 §2.9, RFC 8516 §3, RFC 8768 §3).
var replies = map[interact.Code]codes.Code{
	interact.Invalid:         codes.BadRequest,
	interact.Unauthenticated: codes.Unauthorized,
	interact.Forbidden:       codes.Forbidden,
	interact.NotFound:        codes.NotFound,
	interact.NoAffordance:    codes.NotFound,
	interact.NotAllowed:      codes.MethodNotAllowed,
	interact.Ambiguous:       codes.BadRequest,
	interact.NoPeer:          codes.NotFound,
	interact.NoTask:          codes.NotFound,
	interact.Withdrawn:       codes.NotFound,
	interact.TooLarge:        codes.RequestEntityTooLarge,
	interact.UnsupportedType: codes.UnsupportedMediaType,
	interact.ClockSkew:       codes.ServiceUnavailable,
	interact.InputNeeded:     codes.PreconditionFailed,
	interact.RateLimited:     codes.TooManyRequests,
	interact.BadSignature:    codes.Forbidden,
	interact.Expired:         codes.NotFound,
	interact.SenderMismatch:  codes.Forbidden,
	interact.RolledBack:      codes.Forbidden,
	interact.Loop:            hopLimitReached,
	interact.Cancelled:       codes.ServiceUnavailable,
	interact.Internal:        codes.InternalServerError,
	interact.AgentFailed:     codes.BadGateway,
	interact.Unreachable:     codes.ServiceUnavailable,
	interact.Timeout:         codes.GatewayTimeout,
	interact.Overloaded:      codes.ServiceUnavailable,
	interact.RelayLimited:    codes.ServiceUnavailable,
	interact.NotJSON:         codes.BadRequest,
	interact.BadTD:           codes.BadRequest,
	interact.NotRunning:      codes.ServiceUnavailable,
	interact.NodeLost:        codes.ServiceUnavailable,
	interact.TokenRejected:   codes.Unauthorized,
	interact.ShuttingDown:    codes.ServiceUnavailable,
	interact.NotReady:        codes.ServiceUnavailable,
}

// responseOf returns the response code of c, or 5.00 if the table has none.
func responseOf(c interact.Code) codes.Code {
	if r, ok := replies[c]; ok {
		return r
	}
	return codes.InternalServerError
}

const (
	maxDiagnostic = 512 // bytes of a diagnostic payload that is sent
	maxText       = 400 // bytes of the agent's text in an error
)

// diagnostic returns the diagnostic payload for e (RFC 7252 §5.5.2): "LMOS-1404 no agent matches "x" (list the agents)". It does not
// contain the errors that e wraps.
func diagnostic(e *interact.Error) []byte {
	title := cmp.Or(e.Title, e.Code.Title())
	if len(e.Issues) > 0 {
		title += ": " + e.Issues[0].String()
	}
	if e.Hint != "" {
		title += " (" + e.Hint + ")"
	}
	return []byte(clip(e.Code.String()+" "+interact.Readable(title), maxDiagnostic))
}

// refused returns the error of a response of class 4 or 5. The diagnostic payload of another lmosd begins with the exact code.
func refused(what string, p *messaging.Packet) *interact.Error {
	meaning, ok := meanings[p.Code]
	if !ok {
		meaning.code, meaning.hint = interact.AgentFailed, hintLog
	}
	text := clip(interact.Readable(string(textOf(p))), maxText)
	title := fmt.Sprintf("%s: the agent answered %s", what, messaging.Dotted(p.Code))
	if text != "" {
		title += ": " + text
	}
	e := &interact.Error{Code: meaning.code, Title: title, Hint: meaning.hint, Remote: true}
	first, _, _ := strings.Cut(text, " ")
	if code, ok := interact.ParseCode(first); ok && responseOf(code) == p.Code {
		e.Code = code
	}
	return e
}

// textOf returns the text in the payload of an error response: a diagnostic text, or title and detail of problem details.
func textOf(p *messaging.Packet) []byte {
	format, ok := p.Uint(message.ContentFormat)
	if !ok || format == 0 || td.IsJSON(messaging.Media(format)) {
		return p.Payload
	}
	var m map[any]any
	if format != messaging.ProblemDetails || cbor.Unmarshal(p.Payload, &m) != nil {
		return nil
	}
	title, _ := m[int64(-1)].(string) // RFC 9290 §2
	detail, _ := m[int64(-2)].(string)
	return []byte(strings.TrimSuffix(strings.TrimPrefix(title+": "+detail, ": "), ": "))
}

// clip cuts a text to at most n bytes, including the ellipsis.
func clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return interact.Clip(text, n-len("…"))
}
