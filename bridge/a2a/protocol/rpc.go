package protocol

import (
	"bytes"
	"encoding/json"
	"io"

	"github.com/lmosd/lmosd/internal/jsonedit"
)

// A Request is one of the JSON-RPC binding.
type Request struct {
	// ID is a string or a number, as it was written; nil if the request had none that could be read.
	ID     json.RawMessage
	Method string
	Params json.RawMessage
}

// ParseRequest reads a request. On error it returns what could be read, for the answer.
func ParseRequest(body []byte) (*Request, *Error) {
	r := &Request{}
	var room envelopeRoom
	in, ok := envelopeOf(room[:0], body)
	switch {
	case !ok && !jsonedit.Valid(body):
		return r, Errorf(ParseError, "the body is not JSON")
	case !ok:
		return r, Errorf(InvalidRequest, "the body is no JSON-RPC request: one object is needed, whose members are there once")
	}
	if id := in.of("id"); len(id) > 0 {
		if c := id[0]; c != '"' && c != '-' && (c < '0' || c > '9') {
			return r, Errorf(InvalidRequest, "the id is neither a string nor a number")
		}
		r.ID = id
	}
	if r.Method, ok = jsonedit.String(in.of("method")); !ok || r.Method == "" {
		return r, Errorf(InvalidRequest, "there is no method")
	}
	if version, _ := jsonedit.String(in.of("jsonrpc")); version != "2.0" {
		return r, Errorf(InvalidRequest, `"jsonrpc" is not "2.0"`)
	}
	if r.ID == nil {
		return r, Errorf(InvalidRequest, "there is no id: A2A has no notifications")
	}
	if r.Params = in.of("params"); len(r.Params) > 0 && r.Params[0] != '{' && string(r.Params) != "null" {
		return r, Errorf(InvalidParams, "the params are no object")
	}
	return r, nil
}

// An envelope is an object around what is passed on: its members are read, and their texts stay.
type envelope struct {
	text    []byte
	members jsonedit.Object
}

// An envelopeRoom is as many members as an envelope has, and some that it need not have.
type envelopeRoom [8]jsonedit.Member

// envelopeOf reads text. It is not ok if that is no JSON, or no object, or has a member twice.
func envelopeOf(room jsonedit.Object, text []byte) (o envelope, ok bool) {
	i := jsonedit.SkipSpace(text, 0)
	if i >= len(text) || text[i] != '{' || !jsonedit.Valid(text) {
		return envelope{}, false
	}
	all, err := jsonedit.Members(room, text[i:])
	return envelope{text[i:], all}, err == nil
}

// of returns the value of a member; nil if there is none.
func (o envelope) of(name string) json.RawMessage {
	at := o.members.Of(name)
	if at == (jsonedit.Span{}) {
		return nil
	}
	return o.text[at.From:at.To]
}

// outcome returns the result; nil if there is none. The error is the [*Error] in its place.
func (o envelope) outcome() (json.RawMessage, error) {
	raw := o.of("error")
	if raw == nil || string(raw) == "null" {
		return o.of("result"), nil
	}
	e := &Error{}
	if json.Unmarshal(raw, e) != nil {
		return nil, Errorf(InvalidAgentResponse, "the agent answers with an error that cannot be read")
	}
	return nil, e
}

// Bytes writes r. Params stay as they are.
func (r *Request) Bytes() []byte {
	b := make([]byte, 0, 64+len(r.ID)+len(r.Method)+len(r.Params))
	b = append(append(b, `{"jsonrpc":"2.0","id":`...), r.ID...)
	b = appendText(append(b, `,"method":`...), r.Method)
	if len(r.Params) > 0 {
		b = append(append(b, `,"params":`...), r.Params...)
	}
	return append(b, '}')
}

// Response writes the answer to the request id: a result as it is, or an error.
func Response(id, result json.RawMessage, e *Error) []byte {
	if len(id) == 0 {
		id = json.RawMessage("null")
	}
	b := make([]byte, 0, 64+len(id)+len(result))
	b = append(append(b, `{"jsonrpc":"2.0","id":`...), id...)
	if e != nil {
		return append(append(append(b, `,"error":`...), e.bytes()...), '}')
	}
	if len(result) == 0 {
		result = json.RawMessage("null")
	}
	return append(append(append(b, `,"result":`...), result...), '}')
}

// ParseResponse reads an answer to the request id: its result, or its error, which is an [*Error].
func ParseResponse(body []byte, id json.RawMessage) (json.RawMessage, error) {
	var room envelopeRoom
	in, ok := envelopeOf(room[:0], body)
	if !ok {
		return nil, Errorf(InvalidAgentResponse, "the agent answers with what is no JSON-RPC")
	}
	result, err := in.outcome()
	switch {
	case err != nil: // of an unreadable request the id is null
		return nil, err
	case result == nil:
		return nil, Errorf(InvalidAgentResponse, "the agent answers with neither a result nor an error")
	case !bytes.Equal(in.of("id"), id):
		return nil, Errorf(InvalidAgentResponse, "the agent answers another request than this one")
	}
	return result, nil
}

// trusted is how much memory a body gets that only says how long it is.
const trusted = 64 << 10

// ReadBody reads a body to its end. length is what it says to have, which may be wrong; -1 if it does not say.
func ReadBody(r io.Reader, length int64) ([]byte, error) {
	var b bytes.Buffer
	b.Grow(int(min(max(length, 0), trusted)) + bytes.MinRead) // where there is no room for MinRead at the end, it would grow again
	_, err := b.ReadFrom(r)
	return b.Bytes(), err
}
