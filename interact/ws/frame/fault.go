package frame

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/internal/jsonedit"
)

// Prefixes of the types and instances of errors (LMOS, constants; Web Thing Protocol, errors).
const (
	errorBase    = "https://eclipse.dev/lmos/protocol/v1/errors#"
	instanceBase = "https://eclipse.dev/lmos/protocol/v1/errors/"
	errorBaseWTP = "https://w3c.github.io/web-thing-protocol/errors#"
)

// A class is an encoded code: the fragment of the error type, and its status.
type class struct {
	fragment string
	status   int
}

const unsupported = "unsupported-message-type"

var internal = class{"internal-server-error", 500}

// classes maps the error codes to the wire (LMOS WebSocket subprotocol, errors, with additions of lmosd). Other codes are internal.
var classes = map[interact.Code]class{
	interact.Invalid:         {"bad-request", 400},
	interact.Ambiguous:       {"bad-request", 400},
	interact.TooLarge:        {"bad-request", 400},
	interact.UnsupportedType: {"bad-request", 400},
	interact.NotJSON:         {"bad-request", 400},
	interact.BadTD:           {"bad-request", 400},
	interact.Unauthenticated: {"unauthorized", 401},
	interact.TokenRejected:   {"unauthorized", 401},
	interact.Forbidden:       {"forbidden", 403},
	interact.BadSignature:    {"forbidden", 403},
	interact.SenderMismatch:  {"forbidden", 403},
	interact.NotFound:        {"not-found", 404},
	interact.NoAffordance:    {"not-found", 404},
	interact.NoPeer:          {"not-found", 404},
	interact.NoTask:          {"not-found", 404},
	interact.Withdrawn:       {"not-found", 404},
	interact.Expired:         {"not-found", 404},
	interact.NotAllowed:      {"operation-not-allowed", 405},
	interact.InputNeeded:     {"input-required", 428},
	interact.RateLimited:     {"too-many-requests", 429},
	interact.Unreachable:     {"unavailable", 503},
	interact.Overloaded:      {"unavailable", 503},
	interact.RelayLimited:    {"unavailable", 503},
	interact.ShuttingDown:    {"unavailable", 503},
	interact.ClockSkew:       {"unavailable", 503},
	interact.NotReady:        {"unavailable", 503},
	interact.Timeout:         {"timeout", 504},
	interact.Loop:            {"loop-detected", 508},
}

// codes maps the fragments to error codes, for a peer that sends no code. "Not found" is the affordance: the peer was reached.
var codes = map[string]interact.Code{
	unsupported:             interact.NotAllowed,
	"bad-request":           interact.Invalid,
	"unauthorized":          interact.Unauthenticated,
	"forbidden":             interact.Forbidden,
	"not-found":             interact.NoAffordance,
	"operation-not-allowed": interact.NotAllowed,
	"input-required":        interact.InputNeeded,
	"too-many-requests":     interact.RateLimited,
	"unavailable":           interact.Overloaded,
	"timeout":               interact.Timeout,
	"loop-detected":         interact.Loop,
}

func classOf(e *interact.Error) class {
	if errors.Is(e, errUnsupported) {
		return class{unsupported, 400}
	}
	if c, ok := classes[e.Code]; ok {
		return c
	}
	return internal
}

// title returns the short text of an error, as in kotlin-wot if that has one.
func title(e *interact.Error, op interact.Type) string {
	about := infoOf(op).about
	switch {
	case errors.Is(e, errUnsupported):
		return "Unsupported Message Type"
	case e.Code == interact.NotFound:
		return "Thing Not Found"
	case e.Code == interact.NoAffordance && about == aboutProperty:
		return "Property Not Found"
	case e.Code == interact.NoAffordance && about == aboutAction:
		return "Action Not Found"
	case e.Code == interact.NoAffordance && about == aboutEvent:
		return "Event Not Found"
	case e.Code == interact.NotAllowed && op == interact.WriteProperty:
		return "Property Read-Only"
	case e.Code == interact.NotAllowed && op == interact.ReadProperty:
		return "Property is write-only"
	case classOf(e) == internal:
		return "Internal Server Error"
	}
	return e.Code.Title()
}

// detail returns the title of an error, without the wrapped cause.
func detail(e *interact.Error) string {
	switch {
	case e.Title != "":
		return e.Title
	case len(e.Issues) > 0:
		return e.Issues[0].String()
	}
	return e.Code.Title()
}

// writeFault writes the error of f: as members of the frame in LMOS, as one member in wtp.
func (f *Frame) writeFault(w *writer) {
	if f.part == none {
		f.writeProblem(w, f.Fault, strconv.Quote(strconv.Itoa(classOf(f.Fault).status)))
		return
	}
	inner := writer{b: []byte{'{'}, style: w.style}
	f.writeProblem(&inner, f.Fault, strconv.Itoa(classOf(f.Fault).status))
	w.raw(sError, append(inner.b, '}'))
}

// writeProblem writes the members of an error (RFC 9457 §3.1). LMOS requires all five members, and a string as status.
func (f *Frame) writeProblem(w *writer, e *interact.Error, status string) {
	c := classOf(e)
	typ := errorBase + c.fragment
	if f.part != none && (c.status == 400 || c.status == 403 || c.status == 404 || c.status == 500 || c.status == 503) {
		typ = errorBaseWTP + strconv.Itoa(c.status)
	}
	w.field("type", typ)
	w.field("title", title(e, f.op))
	w.member("status")
	w.b = append(w.b, status...)
	w.field("detail", detail(e))
	w.field("instance", instanceBase+interact.NewID())
	w.field("code", e.Code.String())
	if e.Hint != "" {
		w.field("hint", e.Hint)
	}
	if len(e.Next) > 0 {
		w.list("next", e.Next)
	}
	if len(e.Issues) > 0 {
		w.list("validationErrors", e.Issues)
	}
}

// list writes a list that always has a JSON form.
func (w *writer) list(name string, of any) {
	raw, _ := json.Marshal(of)
	w.member(name)
	w.b = append(w.b, raw...)
}

func (w *writer) field(name, text string) {
	w.member(name)
	w.b = appendText(w.b, text)
}

// Problem returns e as an RFC 9457 problem: the data of a failed action of type op, whose media type is [problem.MediaType].
func Problem(e *interact.Error, op interact.Type) []byte {
	w := writer{b: []byte{'{'}}
	f := &Frame{part: response, op: op}
	f.writeProblem(&w, e, strconv.Itoa(classOf(e).status))
	return append(w.b, '}')
}

// readFault reads the error of a frame: from the members of the frame in LMOS, and from the member error in wtp.
func (f *Frame) readFault(m *members, b []byte) {
	if f.part != none {
		b = m.raw[sError]
	}
	f.Fault = ReadProblem(b)
}

// ReadProblem reads an error of any dialect, or an RFC 9457 problem; its status may be a text or a number. The result is Remote and
// never nil; an unreadable error is [interact.AgentFailed]. Its texts have one line of at most [problem.MaxText] bytes.
func ReadProblem(raw []byte) *interact.Error {
	var p problem.Document
	if text, ok := jsonedit.String(raw); ok {
		p.Title = text
	} else {
		_ = json.Unmarshal(raw, &p) // a member of another type counts as absent
	}
	e := p.ErrorOf(codeOf(&p))
	e.Remote = true
	if e.Hint == "" && len(e.Next) == 0 {
		e.Hint = "see the log of the agent"
	}
	e.Started = e.Started || e.Code == interact.Timeout // the agent may have acted before the timeout
	if strings.HasSuffix(p.Type, "#"+unsupported) {
		e.Err = errUnsupported
	}
	return e
}

// codeOf returns the code of an error: its member code, else the code of its type, else that of its status.
func codeOf(p *problem.Document) interact.Code {
	if c, ok := interact.ParseCode(p.Code); ok {
		return c
	}
	if fragment, ok := strings.CutPrefix(p.Type, errorBase); ok && codes[fragment] != 0 {
		return codes[fragment]
	}
	for fragment, code := range codes {
		if fragment != unsupported && classes[code].status == int(p.Status) {
			return code
		}
	}
	return interact.AgentFailed
}
