// Package problem encodes errors as problem documents (RFC 9457) and decodes them.
package problem

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// MediaType is the media type of a problem document (RFC 9457 §3).
const MediaType = "application/problem+json"

// EventName is the name of the last event of an event stream that ends with an error; its data is the problem document. The name is
// unlikely to be that of an affordance. EventSource dispatches it to a listener of this name, unlike "error".
const EventName = "lmosd:problem"

// Limits of a received problem.
const (
	MaxText   = 4 << 10 // bytes of a text
	maxIssues = 100
	maxBody   = 64 << 10 // bytes of a body that is not a problem document
)

// typePrefix precedes the slug of a code in the type of a problem.
const typePrefix = "urn:lmosd:error:"

// A Document is an error in its form of RFC 9457 §3.1, with the extension members of lmosd.
type Document struct {
	Type      string         `json:"type"`
	Code      string         `json:"code,omitempty"`
	Title     string         `json:"title"`
	Status    StatusCode     `json:"status"`
	Detail    string         `json:"detail,omitempty"`
	Hint      string         `json:"hint,omitempty"`
	Next      interact.Steps `json:"next,omitempty"`
	Instance  string         `json:"instance,omitempty"`
	Retryable bool           `json:"retryable"`
	Remote    bool           `json:"remote"`
	Started   bool           `json:"started,omitempty"` // the request may have run
	Issues    []td.Issue     `json:"validationErrors,omitempty"`
	Source    string         `json:"source,omitempty"` // of [interact.Error]
}

// A StatusCode is an HTTP status. It is written as a number, and read as a number or, as in the LMOS subprotocol, as a string.
type StatusCode int

// UnmarshalJSON implements [json.Unmarshaler].
func (s *StatusCode) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(bytes.Trim(b, `" `), (*int)(s))
}

// statuses maps the error codes to HTTP (RFC 9110 §15; 499 is "client closed request" of nginx, 508 is RFC 5842, 507 is RFC 4918).
var statuses = map[interact.Code]int{
	interact.Invalid:           400,
	interact.Unauthenticated:   401,
	interact.Forbidden:         403,
	interact.NotFound:          404,
	interact.NoAffordance:      404,
	interact.NotAllowed:        405,
	interact.Ambiguous:         400,
	interact.NoPeer:            404,
	interact.NoTask:            404,
	interact.Withdrawn:         410,
	interact.TooLarge:          413,
	interact.UnsupportedType:   415,
	interact.ClockSkew:         500,
	interact.CredentialInvalid: 403,
	interact.CredentialExpired: 403,
	interact.CredentialRevoked: 403,
	interact.DelegationInvalid: 403,
	interact.GroupDissolved:    410,
	interact.NotMember:         403,
	interact.GroupSplit:        409,
	interact.StatusUnknown:     503,
	interact.IssuerUntrusted:   403,
	interact.InputNeeded:       428,
	interact.RateLimited:       429,
	interact.BadSignature:      403,
	interact.Expired:           410,
	interact.SenderMismatch:    403,
	interact.RolledBack:        409,
	interact.Loop:              508,
	interact.Cancelled:         499,
	interact.Internal:          500,
	interact.AgentFailed:       502,
	interact.Unreachable:       503,
	interact.Timeout:           504,
	interact.Overloaded:        503,
	interact.RelayLimited:      503,
	interact.Usage:             400,
	interact.ConfigUnknown:     400,
	interact.ConfigInvalid:     400,
	interact.ConfigFile:        400,
	interact.InlineSecret:      400,
	interact.WildcardBind:      400,
	interact.InvalidInvite:     400,
	interact.PolicyInvalid:     400,
	interact.NotJSON:           400,
	interact.BadTD:             400,
	interact.NotRunning:        503,
	interact.NodeLost:          503,
	interact.TokenRejected:     401,
	interact.PortBusy:          409,
	interact.DataDirLocked:     409,
	interact.KeyPermissions:    500,
	interact.StoreCorrupt:      500,
	interact.DiskFull:          507,
	interact.StoreTooNew:       500,
	interact.ShuttingDown:      503,
	interact.NotReady:          503,
	interact.KeystoreLocked:    500,
	interact.AuditBroken:       500,
}

// codes maps back the status of a response that has no code of lmosd.
var codes = map[int]interact.Code{
	400: interact.Invalid,
	401: interact.Unauthenticated,
	403: interact.Forbidden,
	404: interact.NotFound,
	405: interact.NotAllowed,
	410: interact.Withdrawn,
	413: interact.TooLarge,
	415: interact.UnsupportedType,
	428: interact.InputNeeded,
	429: interact.RateLimited,
	499: interact.Cancelled,
	502: interact.AgentFailed,
	503: interact.Overloaded,
	504: interact.Timeout,
	507: interact.DiskFull,
	508: interact.Loop,
}

// Status returns the HTTP status of a code; 500 for an unknown code.
func Status(c interact.Code) int {
	if s, ok := statuses[c]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// Write responds to r with err as a problem document. The errors that err wraps are not sent. For [interact.NotAllowed], the caller
// sets the header Allow first. The header WWW-Authenticate is set unless the caller has set it.
func Write(w http.ResponseWriter, r *http.Request, err error) {
	p := New(err)
	body, _ := json.Marshal(p) // strings, numbers and booleans always encode
	h := w.Header()
	h.Set("Content-Type", MediaType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Del("Etag")
	h.Del("Last-Modified")
	switch p.Status {
	case http.StatusUnauthorized: // RFC 9110 §11.6.1
		if h.Get("Www-Authenticate") == "" {
			h.Set("Www-Authenticate", `Bearer realm="lmosd"`)
		}
	case http.StatusForbidden: // RFC 6750 §3.1
		if h.Get("Www-Authenticate") == "" && p.Code == interact.Forbidden.String() && !p.Remote && did.PrincipalOf(r.Context()).Scoped() {
			h.Set("Www-Authenticate", `Bearer realm="lmosd", error="insufficient_scope"`)
		}
	case http.StatusMethodNotAllowed: // RFC 9110 §15.5.6 requires the field, even if it is empty
		if h.Values("Allow") == nil {
			h.Set("Allow", "")
		}
	case http.StatusTooManyRequests, http.StatusServiceUnavailable: // RFC 9110 §15.6.4
		h.Set("Retry-After", strconv.Itoa(max(int(math.Ceil(asError(err).RetryAfter.Seconds())), 1)))
	}
	w.WriteHeader(int(p.Status))
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // a write fails only if the client disconnected
	}
}

// Marshal returns the problem document of err, and its detail, which may be empty.
func Marshal(err error) (doc []byte, detail string) {
	p := New(err)
	doc, _ = json.Marshal(p) // strings, numbers and booleans always encode
	return doc, p.Detail
}

// New returns the problem document of err.
func New(err error) Document {
	e := asError(err)
	return Document{
		Type: typePrefix + e.Code.Slug(), Code: e.Code.String(), Title: e.Code.Title(), Status: StatusCode(Status(e.Code)),
		Detail: detail(e), Hint: e.Hint, Next: e.Next, Instance: "urn:uuid:" + interact.NewID(),
		Retryable: e.Code.Retryable(), Remote: e.Remote, Started: e.Started, Issues: e.Issues, Source: e.Source,
	}
}

// asError is [interact.AsError], but returns an error of code Internal for nil.
func asError(err error) *interact.Error {
	if e := interact.AsError(err); e != nil {
		return e
	}
	return &interact.Error{Code: interact.Internal}
}

// detail returns the title of an error, or its first issue if it has no title.
func detail(e *interact.Error) string {
	if e.Title != "" || len(e.Issues) == 0 {
		return e.Title
	}
	return interact.FirstIssue(e.Issues)
}

// Read returns the error of an HTTP response: the inverse of [Write]. For a body that is not a problem document, such as that of a
// proxy, the error has the code for the status and the start of the body. The result is never nil and wraps no error.
func Read(resp *http.Response, body []byte) *interact.Error {
	if !td.IsJSON(interact.MediaType(resp.Header.Get("Content-Type"))) {
		return foreign(resp.StatusCode, body)
	}
	e := Unmarshal(resp.StatusCode, body)
	if seconds, err := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 16); err == nil && e.Code.Retryable() {
		e.RetryAfter = time.Duration(seconds) * time.Second
	}
	return e
}

// foreign returns the error of a response that is not a problem document.
func foreign(status int, body []byte) *interact.Error {
	text := interact.Excerpt(string(body[:min(len(body), maxBody)]), MaxText)
	return interact.Errorf(CodeOf("", status), "the response is not from lmosd: check the proxies in front of the node",
		"%s", strings.TrimSpace(fmt.Sprintf("status %d %s", status, text)))
}

// Unmarshal returns the error of a problem document in an event or in the state of a task. A document without a code of lmosd has the code
// for the status. The result is never nil.
func Unmarshal(status int, doc []byte) *interact.Error {
	if e := Decode(status, doc); e != nil {
		return e
	}
	return foreign(status, doc)
}

// Decode is [Unmarshal] that returns nil if doc is not a problem document.
func Decode(status int, doc []byte) *interact.Error {
	var p Document
	if json.Unmarshal(doc, &p) != nil || p.Type+p.Title+p.Detail == "" {
		return nil
	}
	if p.Code == "" && p.Title != "" && p.Detail != "" { // only the titles of lmosd repeat the code
		p.Detail = p.Title + ": " + p.Detail
	}
	return p.ErrorOf(CodeOf(p.Code, status))
}

// ErrorOf returns the error of a document, with a code. Each of its texts is one line of at most [MaxText] bytes.
func (p *Document) ErrorOf(c interact.Code) *interact.Error {
	e := &interact.Error{Code: c, Hint: interact.Excerpt(p.Hint, MaxText), Next: p.Next, Remote: p.Remote, Started: p.Started,
		Source: p.Source[:min(len(p.Source), MaxText)]}
	for _, i := range p.Issues[:min(len(p.Issues), maxIssues)] {
		i.Pointer, i.Reason = interact.Excerpt(i.Pointer, MaxText), interact.Excerpt(i.Reason, MaxText)
		e.Issues = append(e.Issues, i)
	}
	if e.Title = interact.Excerpt(p.Detail, MaxText); e.Title == "" && p.Title != e.Code.Title() {
		e.Title = interact.Excerpt(p.Title, MaxText)
	}
	return e
}

// CodeOf parses a code such as "LMOS-1404"; an unknown code is replaced by that of the HTTP status.
func CodeOf(text string, status int) interact.Code {
	if c, ok := interact.ParseCode(text); ok {
		return c
	}
	if c, ok := codes[status]; ok {
		return c
	}
	return interact.Internal
}
