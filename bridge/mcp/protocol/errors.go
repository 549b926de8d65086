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
	// HeaderMismatch: a header is missing, malformed or different from the body.
	HeaderMismatch = -32020
	// MissingCapability: the client lacks a capability, which the data names: {"requiredCapabilities":{…}}.
	MissingCapability = -32021
	// UnsupportedVersion: the server does not support the revision; the data lists those it supports: {"supported":[…],"requested":"…"}.
	UnsupportedVersion = -32022
	// ResourceNotFound: the code of servers before 2026-07-28 for an unknown resource.
	ResourceNotFound = -32002
)

// An Error is the error object of a response.
type Error struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Error returns the message and the code.
func (e *Error) Error() string { return fmt.Sprintf("%s (%d)", e.Message, e.Code) }

// Status returns the HTTP status of a response with e to a client of 2026-07-28 ("Streamable HTTP", "Sending messages").
func (e *Error) Status() int {
	switch e.Code {
	case ParseError, InvalidRequest, HeaderMismatch, MissingCapability, UnsupportedVersion:
		return http.StatusBadRequest
	case UnknownMethod:
		return http.StatusNotFound
	}
	return http.StatusOK
}

// Errorf returns an error with a formatted message.
func Errorf(code int, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// DuplicateID returns the error for a request with the id of a pending request.
func DuplicateID(id ID) *Error { return Errorf(InvalidRequest, "request id %s is already in use", id) }

// UnknownTask returns the error for a task that does not exist, has expired, or belongs to another caller.
func UnknownTask() *Error { return Errorf(InvalidParams, "unknown or expired task") }

// With returns a copy of e with data, which must be encodable as JSON.
func (e *Error) With(data any) *Error {
	c := *e
	c.Data = Encode(data)
	return &c
}
