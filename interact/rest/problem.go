package rest

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// ProblemType is the media type of an error (RFC 9457 §3).
const ProblemType = "application/problem+json"

// maxIssues is how many issues of a problem are read.
const maxIssues = 100

// typePrefix and a code's slug make the type of a problem.
const typePrefix = "urn:lmosd:error:"

// A problem is an error as it travels over HTTP (RFC 9457 §3.1, with the members of lmosd).
type problem struct {
	Type      string     `json:"type"`
	Code      string     `json:"code"`
	Title     string     `json:"title"`
	Status    int        `json:"status"`
	Detail    string     `json:"detail,omitempty"`
	Hint      string     `json:"hint,omitempty"`
	Instance  string     `json:"instance"`
	Retryable bool       `json:"retryable"`
	Remote    bool       `json:"remote"`
	Issues    []td.Issue `json:"validationErrors,omitempty"`
}

// statuses is the one table from the catalogue to HTTP (RFC 9110 §15; 499 is nginx's "client closed request", 508 RFC 5842,
// 507 RFC 4918).
var statuses = map[interact.Code]int{
	interact.Invalid:         400,
	interact.Unauthenticated: 401,
	interact.Forbidden:       403,
	interact.NotFound:        404,
	interact.NoAffordance:    404,
	interact.NotAllowed:      405,
	interact.Ambiguous:       400,
	interact.NoPeer:          404,
	interact.NoTask:          404,
	interact.Withdrawn:       410,
	interact.TooLarge:        413,
	interact.UnsupportedType: 415,
	interact.ClockSkew:       500,
	interact.InputNeeded:     428,
	interact.RateLimited:     429,
	interact.BadSignature:    403,
	interact.Expired:         410,
	interact.SenderMismatch:  403,
	interact.RolledBack:      409,
	interact.Loop:            508,
	interact.Cancelled:       499,
	interact.Internal:        500,
	interact.AgentFailed:     502,
	interact.Unreachable:     503,
	interact.Timeout:         504,
	interact.Overloaded:      503,
	interact.Usage:           400,
	interact.ConfigUnknown:   400,
	interact.ConfigInvalid:   400,
	interact.ConfigFile:      400,
	interact.InlineSecret:    400,
	interact.WildcardBind:    400,
	interact.NotJSON:         400,
	interact.BadTD:           400,
	interact.NotRunning:      503,
	interact.NodeLost:        503,
	interact.TokenRejected:   401,
	interact.PortBusy:        409,
	interact.DataDirLocked:   409,
	interact.KeyPermissions:  500,
	interact.StoreCorrupt:    500,
	interact.DiskFull:        507,
	interact.ShuttingDown:    503,
	interact.NotReady:        503,
}

// codes is the way back, for an answer that says no code of its own.
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

// StatusOf returns the HTTP status of a code; 500 for one that is not in the catalogue.
func StatusOf(c interact.Code) int {
	if s, ok := statuses[c]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// Problem answers r with err as an RFC 9457 problem. What err wraps is for the log of whoever calls, and is not sent. Set
// Allow on w before, where the error is [interact.NotAllowed].
func Problem(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(err)
	body, _ := json.Marshal(p) // strings, a number and booleans always have a JSON form
	h := w.Header()
	h.Set("Content-Type", ProblemType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Del("Etag")
	h.Del("Last-Modified")
	switch p.Status {
	case http.StatusUnauthorized: // RFC 9110 §11.6.1
		h.Set("Www-Authenticate", `Bearer realm="lmosd"`)
	case http.StatusMethodNotAllowed: // RFC 9110 §15.5.6: the field is there, even if it is empty
		if h.Values("Allow") == nil {
			h.Set("Allow", "")
		}
	case http.StatusTooManyRequests, http.StatusServiceUnavailable: // RFC 9110 §15.6.4
		h.Set("Retry-After", strconv.Itoa(max(int(math.Ceil(asProblem(err).RetryAfter.Seconds())), 1)))
	}
	w.WriteHeader(p.Status)
	if r == nil || r.Method != http.MethodHead {
		_, _ = w.Write(body) // the consumer is gone; there is nobody to tell
	}
}

// ProblemOf returns err as the document that [Problem] answers with, and its detail: what happened, in a line. That may be empty.
func ProblemOf(err error) (doc []byte, detail string) {
	p := problemOf(err)
	doc, _ = json.Marshal(p) // strings, a number and booleans always have a JSON form
	return doc, p.Detail
}

// problemOf returns err as it is sent. The cause is not.
func problemOf(err error) problem {
	e := asProblem(err)
	return problem{
		Type: typePrefix + e.Code.Slug(), Code: e.Code.String(), Title: e.Code.Title(), Status: StatusOf(e.Code),
		Detail: detail(e), Hint: e.Hint, Instance: "urn:uuid:" + interact.NewID(),
		Retryable: e.Code.Retryable(), Remote: e.Remote, Issues: e.Issues,
	}
}

// asProblem is [interact.AsError], with an error even for nil.
func asProblem(err error) *interact.Error {
	if e := interact.AsError(err); e != nil {
		return e
	}
	return &interact.Error{Code: interact.Internal}
}

// detail is what happened, in a line. Without a title of its own, an error with issues tells the first.
func detail(e *interact.Error) string {
	if e.Title != "" || len(e.Issues) == 0 {
		return e.Title
	}
	text := e.Issues[0].Reason
	if p := e.Issues[0].Pointer; p != "" {
		text = p + ": " + text
	}
	if n := len(e.Issues) - 1; n > 0 {
		text += fmt.Sprintf(" (and %d more)", n)
	}
	return text
}

// FromProblem reads the error of a node's answer: the inverse of [Problem]. A body that is no problem, of a proxy say,
// gives the code of its status and its text, bounded. The result is never nil; Err is.
func FromProblem(resp *http.Response, body []byte) *interact.Error {
	var p problem
	media := interact.MediaType(resp.Header.Get("Content-Type"))
	if !td.IsJSON(media) || json.Unmarshal(body, &p) != nil || p.Type+p.Title+p.Detail == "" {
		text := interact.Clip(interact.Readable(string(body[:min(len(body), maxRefusal)])), maxText)
		return interact.Errorf(codeOf("", resp.StatusCode),
			"this answer is none of lmosd's: see what is between here and the node",
			"%s", strings.TrimSpace(fmt.Sprintf("status %d %s", resp.StatusCode, text)))
	}
	e := &interact.Error{Code: codeOf(p.Code, resp.StatusCode), Hint: interact.Clip(interact.Readable(p.Hint), maxText), Remote: p.Remote}
	for _, i := range p.Issues[:min(len(p.Issues), maxIssues)] {
		i.Pointer, i.Reason = interact.Clip(interact.Readable(i.Pointer), maxText), interact.Clip(interact.Readable(i.Reason), maxText)
		e.Issues = append(e.Issues, i)
	}
	if seconds, err := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 16); err == nil && e.Code.Retryable() {
		e.RetryAfter = time.Duration(seconds) * time.Second
	}
	if e.Title = interact.Clip(interact.Readable(p.Detail), maxText); e.Title == "" && p.Title != e.Code.Title() {
		e.Title = interact.Clip(interact.Readable(p.Title), maxText)
	}
	return e
}

// codeOf reads "LMOS-1404"; a code that is not in the catalogue is that of the status.
func codeOf(text string, status int) interact.Code {
	if digits, ok := strings.CutPrefix(text, "LMOS-"); ok {
		n, err := strconv.ParseUint(digits, 10, 16)
		if _, known := statuses[interact.Code(n)]; err == nil && known {
			return interact.Code(n)
		}
	}
	if c, ok := codes[status]; ok {
		return c
	}
	return interact.Internal
}
