package protocol

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/lmosd/lmosd/interact"
)

// Error codes of JSON-RPC (A2A 1.0 §5.4, §9.5; JSON-RPC 2.0 §5.1). The specification does not define the last two; they are those of
// a2a-go.
const (
	ParseError             = -32700
	InvalidRequest         = -32600
	UnknownMethod          = -32601
	InvalidParams          = -32602
	InternalError          = -32603
	TaskNotFound           = -32001
	TaskNotCancelable      = -32002
	PushNotSupported       = -32003
	UnsupportedOperation   = -32004
	ContentTypeUnsupported = -32005
	InvalidAgentResponse   = -32006
	NoExtendedCard         = -32007
	ExtensionRequired      = -32008
	VersionUnsupported     = -32009
	Unauthenticated        = -31401
	Forbidden              = -31403
)

// A kind is a row of the table of errors (A2A 1.0.1 §5.4).
type kind struct {
	code         int
	http         int
	status       string // google.rpc.Code
	reason       string
	interactCode interact.Code
}

var kinds = []kind{
	{ParseError, 400, "INVALID_ARGUMENT", "PARSE_ERROR", interact.NotJSON},
	{InvalidRequest, 400, "INVALID_ARGUMENT", "INVALID_REQUEST", interact.Invalid},
	{UnknownMethod, 404, "NOT_FOUND", "METHOD_NOT_FOUND", interact.NotAllowed},
	{InvalidParams, 400, "INVALID_ARGUMENT", "INVALID_PARAMS", interact.Invalid},
	{InternalError, 500, "INTERNAL", "INTERNAL_ERROR", interact.AgentFailed},
	{TaskNotFound, 404, "NOT_FOUND", "TASK_NOT_FOUND", interact.NoTask},
	{TaskNotCancelable, 400, "FAILED_PRECONDITION", "TASK_NOT_CANCELABLE", interact.NotAllowed},
	{PushNotSupported, 400, "FAILED_PRECONDITION", "PUSH_NOTIFICATION_NOT_SUPPORTED", interact.NotAllowed},
	{UnsupportedOperation, 400, "FAILED_PRECONDITION", "UNSUPPORTED_OPERATION", interact.NotAllowed},
	{ContentTypeUnsupported, 400, "INVALID_ARGUMENT", "CONTENT_TYPE_NOT_SUPPORTED", interact.UnsupportedType},
	{InvalidAgentResponse, 500, "INTERNAL", "INVALID_AGENT_RESPONSE", interact.AgentFailed},
	{NoExtendedCard, 400, "FAILED_PRECONDITION", "EXTENDED_AGENT_CARD_NOT_CONFIGURED", interact.NotAllowed},
	{ExtensionRequired, 400, "FAILED_PRECONDITION", "EXTENSION_SUPPORT_REQUIRED", interact.NotAllowed},
	{VersionUnsupported, 400, "FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED", interact.NotAllowed},
	{Unauthenticated, 401, "UNAUTHENTICATED", "UNAUTHENTICATED", interact.Unauthenticated},
	{Forbidden, 403, "PERMISSION_DENIED", "PERMISSION_DENIED", interact.Forbidden},
}

func kindOf(code int) kind {
	for _, k := range kinds {
		if k.code == code {
			return k
		}
	}
	return kind{code: code, http: 500, status: "INTERNAL", interactCode: interact.AgentFailed}
}

// An Error is an A2A error, in the form of the JSON-RPC binding.
type Error struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	// Data is an array of objects with "@type" (google.rpc.Status details); agents may send other JSON.
	Data json.RawMessage `json:"data,omitempty"`
}

// Error returns the message.
func (e *Error) Error() string { return fmt.Sprintf("%s (A2A %d)", e.Message, e.Code) }

// Is reports whether target is an error of the same code.
func (e *Error) Is(target error) bool {
	var t *Error
	return errors.As(target, &t) && t.Code == e.Code
}

// Errorf returns an error with its ErrorInfo (A2A 1.0 §9.5).
func Errorf(code int, format string, args ...any) *Error {
	return (&Error{Code: code, Message: fmt.Sprintf(format, args...)}).With(nil)
}

// With sets the metadata of the ErrorInfo.
func (e *Error) With(metadata map[string]string) *Error {
	info := map[string]any{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": kindOf(e.Code).reason,
		"domain": "a2a-protocol.org"}
	if len(metadata) > 0 {
		info["metadata"] = metadata
	}
	e.Data = Encode([]any{info})
	return e
}

// At adds the name of the invalid field to an error of parameters (google.rpc.BadRequest). The ErrorInfo stays, because REST clients
// identify errors by its reason.
func (e *Error) At(field string) *Error {
	var details []any
	_ = json.Unmarshal(e.Data, &details) // Errorf encoded it
	e.Data = Encode(append(details, map[string]any{"@type": "type.googleapis.com/google.rpc.BadRequest",
		"fieldViolations": []any{map[string]string{"field": field, "description": e.Message}}}))
	return e
}

func (e *Error) bytes() []byte {
	b := fmt.Appendf(nil, `{"code":%d,"message":%s`, e.Code, Encode(e.Message))
	if len(e.Data) > 0 {
		b = append(append(b, `,"data":`...), e.Data...)
	}
	return append(b, '}')
}

// NoSuchTask returns the error for an unknown task. It is also the error for a task of another principal, so that callers cannot distinguish
// them (A2A 1.0 §13.1).
func NoSuchTask(id string) *Error {
	id = interact.Clip(id, 64)
	return Errorf(TaskNotFound, "task %q not found", id).With(map[string]string{"taskId": id})
}

// Status returns the HTTP status of the REST binding.
func (e *Error) Status() int { return kindOf(e.Code).http }

// REST returns the body of the REST binding (A2A 1.0 §11.6; AIP-193).
func (e *Error) REST() []byte {
	k := kindOf(e.Code)
	b := fmt.Appendf(nil, `{"error":{"code":%d,"status":%s,"message":%s`, k.http, Encode(k.status), Encode(e.Message))
	switch {
	case len(e.Data) > 0 && e.Data[0] == '[':
		b = append(append(b, `,"details":`...), e.Data...)
	case len(e.Data) > 0:
		b = append(append(append(b, `,"details":[`...), e.Data...), ']')
	}
	return append(b, "}}"...)
}

// FromREST decodes the error of a REST response: that of 1.0, or a problem document of older servers.
func FromREST(status int, body []byte) *Error {
	var answer struct {
		Error struct {
			Status, Message string
			Details         json.RawMessage
		}
		Type, Title, Detail string
	}
	_ = json.Unmarshal(body, &answer) // the body may be anything
	e := &Error{Code: InternalError, Message: strings.TrimSpace(answer.Error.Message), Data: answer.Error.Details}
	if e.Message == "" {
		e.Message = strings.TrimSpace(answer.Title + " " + answer.Detail)
	}
	if e.Message == "" {
		e.Message = "the agent responded with " + http.StatusText(status)
	}
	reason := reasonOf(answer.Error.Details)
	if reason == "" { // https://a2a-protocol.org/errors/task-not-found
		reason = strings.ToUpper(strings.ReplaceAll(answer.Type[strings.LastIndex(answer.Type, "/")+1:], "-", "_"))
	}
	e.Code = codeOf(status, answer.Error.Status, reason)
	return e
}

func reasonOf(details json.RawMessage) string {
	var infos []struct {
		Reason string `json:"reason"`
	}
	_ = json.Unmarshal(details, &infos)
	for _, i := range infos {
		if i.Reason != "" {
			return i.Reason
		}
	}
	return ""
}

// codeOf returns the code of an error by its reason, or else by its HTTP status.
func codeOf(status int, rpc, reason string) int {
	for _, k := range kinds {
		if k.reason == reason {
			return k.code
		}
	}
	switch {
	case status == http.StatusUnauthorized:
		return Unauthenticated
	case status == http.StatusForbidden:
		return Forbidden
	case status == http.StatusNotFound || rpc == "NOT_FOUND":
		return TaskNotFound
	case status == http.StatusNotImplemented || rpc == "UNIMPLEMENTED" || status == http.StatusMethodNotAllowed:
		return UnknownMethod
	case status == http.StatusConflict:
		return TaskNotCancelable
	case status == http.StatusUnsupportedMediaType:
		return ContentTypeUnsupported
	case status == http.StatusBadGateway:
		return InvalidAgentResponse
	case status >= 400 && status < 500:
		return InvalidParams
	}
	return InternalError
}

// codes are the A2A codes of lmosd errors; others are InternalError.
var codes = map[interact.Code]int{
	interact.Invalid: InvalidParams, interact.NotJSON: InvalidParams, interact.TooLarge: InvalidParams,
	interact.NoTask:     TaskNotFound,
	interact.NotAllowed: UnsupportedOperation, interact.UnsupportedType: ContentTypeUnsupported,
	interact.AgentFailed:     InvalidAgentResponse,
	interact.Unauthenticated: Unauthenticated, interact.TokenRejected: Unauthenticated, interact.Forbidden: Forbidden,
}

// AsError returns err as an [*Error]. The metadata have the hint and code of an *interact.Error, and whether it is retryable.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	failure := interact.AsError(err)
	code, ok := codes[failure.Code]
	if !ok {
		code = InternalError
	}
	return FromInteract(code, failure)
}

// steps are hints for A2A clients, in place of hints that are commands.
var steps = map[interact.Code]string{
	interact.Invalid:         "compare the input with the skill in the agent card",
	interact.Unauthenticated: "the operator of the agent's host has to log in to it first",
	interact.Forbidden:       "only the operator of the agent's host can allow it",
	interact.NotFound:        "check the address: it contains the name of the agent",
	interact.Ambiguous:       "several agents have this name: use the exact reference",
	interact.NoAffordance:    "fetch the card again: its skills may have changed",
	interact.NotAllowed:      "check the card: the agent does not support this",
	interact.Withdrawn:       "its owner withdrew it: use another agent",
	interact.Unreachable:     "its host is unreachable: try again later",
	interact.RelayLimited:    "the connection to its host is relayed and limited: try again later, or send and request less",
	interact.Timeout:         "it timed out: try again later",
	interact.AgentFailed:     "the agent itself failed",
	interact.TooLarge:        "send or request less at once",
}

// Hint returns the hint of an error for A2A clients: without commands, because agents read it.
func Hint(e *interact.Error) string { return e.HintFor(steps) }

// FromInteract returns an lmosd error as an A2A error with a code.
func FromInteract(code int, e *interact.Error) *Error {
	title := cmp.Or(e.Title, e.Code.Title())
	meta := map[string]string{"lmosCode": e.Code.String(), "retryable": fmt.Sprint(e.Code.Retryable())}
	if hint := Hint(e); hint != "" {
		meta["hint"] = hint
	}
	return (&Error{Code: code, Message: title}).With(meta)
}

// ToInteract returns e as an error of the interaction model, marked as remote.
func (e *Error) ToInteract() *interact.Error {
	return &interact.Error{Code: kindOf(e.Code).interactCode, Title: e.Message, Remote: true, Hint: "the agent returned this A2A error"}
}
