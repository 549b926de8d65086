package coap

import (
	"cmp"
	"fmt"
	"strconv"
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

// meanings maps the response codes of agents to error codes.
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
	codes.TooManyRequests:         {interact.RateLimited, "ask less often"},      // RFC 8516 §3
	codes.InternalServerError:     {interact.AgentFailed, hintLog},               // RFC 7252 §5.9.3.1
	codes.NotImplemented:          {interact.NotAllowed, hintForm},               // RFC 7252 §5.9.3.2
	codes.BadGateway:              {interact.AgentFailed, hintLog},               // RFC 7252 §5.9.3.3
	codes.ServiceUnavailable:      {interact.Overloaded, "try again in a while"}, // RFC 7252 §5.9.3.4
	codes.GatewayTimeout:          {interact.Timeout, hintLog},                   // RFC 7252 §5.9.3.5
	codes.ProxyingNotSupported:    {interact.NotAllowed, hintForm},               // RFC 7252 §5.9.3.6
	hopLimitReached:               {interact.Loop, "see which proxies are on the way, and cov:hopLimit"},
}

const (
	hintRequest     = "the agent did not like the request; its own words are in the error"
	hintCredentials = "the agent refused this node: see its security scheme and the credentials file on the agent's node"
	hintForm        = "the form of the description may be wrong: compare its href and cov:method with the agent"
	hintOption      = "the form of the description may be wrong: the agent does not know an option that it asks for"
	hintAccept      = "the form of the description may be wrong: compare cov:accept with what the agent sends"
	hintFormat      = "the form of the description may be wrong: compare contentType and cov:contentFormat with what the agent takes"
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
	maxWords      = 400 // bytes of the agent's text in an error
)

// diagnostic is the diagnostic payload for err (RFC 7252 §5.5.2): "LMOS-1404 no agent matches "x" (see what there is)". It does not
// contain the errors that err wraps.
func diagnostic(e *interact.Error) []byte {
	title := cmp.Or(e.Title, e.Code.Title())
	if len(e.Issues) > 0 {
		title += ": " + strings.TrimPrefix(e.Issues[0].Pointer+": "+e.Issues[0].Reason, ": ")
	}
	if e.Hint != "" {
		title += " (" + e.Hint + ")"
	}
	return []byte(clip(e.Code.String()+" "+interact.Readable(title), maxDiagnostic))
}

// refused is the error for a response of class 4 or 5. The diagnostic payload of another lmosd contains the exact code.
func refused(what string, p *messaging.Packet) *interact.Error {
	meaning, ok := meanings[p.Code]
	if !ok {
		meaning.code, meaning.hint = interact.AgentFailed, hintLog
	}
	words := clip(interact.Readable(string(textOf(p))), maxWords)
	title := fmt.Sprintf("%s: the agent answered %s", what, messaging.Dotted(p.Code))
	if words != "" {
		title += ": " + words
	}
	e := &interact.Error{Code: meaning.code, Title: title, Hint: meaning.hint, Remote: true}
	if code := codeIn(words); code != 0 && responseOf(code) == p.Code {
		e.Code = code
	}
	return e
}

// codeIn reads the code at the beginning of a diagnostic of lmosd.
func codeIn(words string) interact.Code {
	digits, ok := strings.CutPrefix(words, "LMOS-")
	if !ok || len(digits) < 4 {
		return 0
	}
	n, err := strconv.ParseUint(digits[:4], 10, 16)
	if err != nil {
		return 0
	}
	return interact.Code(n)
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
