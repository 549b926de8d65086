package protocol

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// Codes of errors (JSON-RPC 2.0 §5.1; MCP 2026-07-28, "Error codes").
const (
	ParseError     = -32700
	InvalidRequest = -32600
	UnknownMethod  = -32601
	InvalidParams  = -32602
	InternalError  = -32603
	// HeaderMismatch is said of a header that is absent, malformed or different from the body.
	HeaderMismatch = -32020
	// MissingCapability is said to a client that lacks a capability; the data names it: {"requiredCapabilities":{…}}.
	MissingCapability = -32021
	// UnsupportedVersion is said of a revision that is not served; the data has those that are: {"supported":[…],"requested":"…"}.
	UnsupportedVersion = -32022
	// ResourceNotFound was said by servers before 2026-07-28 of a resource that is not there.
	ResourceNotFound = -32002
)

// An Error is that of a response.
type Error struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

func (e *Error) Error() string { return fmt.Sprintf("%s (%d)", e.Message, e.Code) }

// Status is the HTTP status under which e is said to a client of 2026-07-28 ("Streamable HTTP", "Sending messages").
func (e *Error) Status() int {
	switch e.Code {
	case ParseError, InvalidRequest, HeaderMismatch, MissingCapability, UnsupportedVersion:
		return http.StatusBadRequest
	case UnknownMethod:
		return http.StatusNotFound
	}
	return http.StatusOK
}

// Errorf makes an error.
func Errorf(code int, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// With returns e with data, which JSON can hold.
func (e *Error) With(data any) *Error {
	c := *e
	c.Data, _ = json.Marshal(data)
	return &c
}
