package mqtt

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/mqtt/packet"
	"github.com/lmosd/lmosd/td"
)

// problemType is the media type of an error (RFC 9457 §3).
const problemType = "application/problem+json"

// typePrefix and a code's slug make the type of a problem.
const typePrefix = "urn:lmosd:error:"

// maxIssues is how many issues of a problem are read.
const maxIssues = 100

// A problem is an encoded error (RFC 9457 §3.1, with the members of lmosd), without the HTTP status.
type problem struct {
	Type      string         `json:"type"`
	Code      string         `json:"code,omitempty"`
	Title     string         `json:"title"`
	Detail    string         `json:"detail,omitempty"`
	Hint      string         `json:"hint,omitempty"`
	Next      interact.Steps `json:"next,omitempty"`
	Instance  string         `json:"instance,omitempty"`
	Retryable bool           `json:"retryable"`
	Remote    bool           `json:"remote"`
	Issues    []td.Issue     `json:"validationErrors,omitempty"`
}

// encodeProblem encodes err without its cause, and returns its code.
func encodeProblem(err error) (data []byte, code interact.Code) {
	e := interact.AsError(err)
	detail := e.Title
	if detail == "" && len(e.Issues) > 0 {
		detail = strings.TrimPrefix(e.Issues[0].Pointer+": "+e.Issues[0].Reason, ": ")
	}
	data, _ = json.Marshal(problem{Type: typePrefix + e.Code.Slug(), Code: e.Code.String(), Title: e.Code.Title(), Detail: detail,
		Hint: e.Hint, Next: e.Next, Instance: "urn:uuid:" + interact.NewID(), Retryable: e.Code.Retryable(), Remote: e.Remote, Issues: e.Issues})
	return data, e.Code
}

// refused returns the error of the problem of an agent, with bounded text.
func (q *call) refused(d *delivery) error {
	e := decodeProblem(d.data, d.prop(propCode))
	e.Title = interact.Clip(q.What()+": "+e.Title, maxText)
	if e.Hint == "" && len(e.Next) == 0 {
		e.Hint = "see the agent's log"
	}
	return e
}

// decodeProblem decodes a problem. Only codes of interactions are accepted; others become AgentFailed.
func decodeProblem(data []byte, code string) *interact.Error {
	e := &interact.Error{Code: interact.AgentFailed, Remote: true, Title: "the agent answered with an error"}
	var p problem
	if len(data) > packet.MaxControl || json.Unmarshal(data, &p) != nil {
		return e
	}
	if code == "" {
		code = p.Code
	}
	if digits, ok := strings.CutPrefix(code, "LMOS-1"); ok {
		n, err := strconv.ParseUint("1"+digits, 10, 16)
		if c := interact.Code(n); err == nil && c.String() == code && c.Slug() != interact.Internal.Slug() {
			e.Code = c
		}
	}
	switch {
	case p.Detail != "" && p.Title != "" && p.Title != e.Code.Title():
		e.Title = fmt.Sprintf("%s: %s", p.Title, p.Detail)
	case p.Detail+p.Title != "":
		e.Title = p.Detail
		if p.Detail == "" {
			e.Title = p.Title
		}
	}
	e.Title, e.Hint, e.Next = interact.Clip(interact.Readable(e.Title), maxText), interact.Clip(interact.Readable(p.Hint), maxText), p.Next
	for _, i := range p.Issues[:min(len(p.Issues), maxIssues)] {
		e.Issues = append(e.Issues, td.Issue{Pointer: interact.Clip(interact.Readable(i.Pointer), maxText),
			Reason: interact.Clip(interact.Readable(i.Reason), maxText)})
	}
	return e
}
