package protocol

import (
	"bytes"
	"encoding/json"

	"github.com/lmosd/lmosd/internal/jsonedit"
)

// A Request is a request of the JSON-RPC binding.
type Request struct {
	// ID is a string or a number, unchanged; nil if it is missing or invalid.
	ID     json.RawMessage
	Method string
	Params json.RawMessage
}

// ParseRequest decodes a request. On error it returns the fields that it could decode, for the response.
func ParseRequest(body []byte) (*Request, *Error) {
	r := &Request{}
	var room envelopeRoom
	in, ok := envelopeOf(room[:0], body)
	switch {
	case !ok && !jsonedit.Valid(body):
		return r, Errorf(ParseError, "the body is not JSON")
	case !ok:
		return r, Errorf(InvalidRequest, "the body is not a JSON-RPC request: expected one object without duplicate members")
	}
	if id := in.of("id"); len(id) > 0 {
		if c := id[0]; c != '"' && c != '-' && (c < '0' || c > '9') {
			return r, Errorf(InvalidRequest, "the id is neither a string nor a number")
		}
		r.ID = id
	}
	if r.Method, ok = jsonedit.String(in.of("method")); !ok || r.Method == "" {
		return r, Errorf(InvalidRequest, "the method is missing")
	}
	if version, _ := jsonedit.String(in.of("jsonrpc")); version != "2.0" {
		return r, Errorf(InvalidRequest, `"jsonrpc" is not "2.0"`)
	}
	if r.ID == nil {
		return r, Errorf(InvalidRequest, "the id is missing: A2A has no notifications")
	}
	if r.Params = in.of("params"); len(r.Params) > 0 && r.Params[0] != '{' && string(r.Params) != "null" {
		return r, Errorf(InvalidParams, "the params are not an object")
	}
	return r, nil
}

// An envelope is a JSON object whose member values are passed on unchanged.
type envelope struct {
	text    []byte
	members jsonedit.Object
}

// An envelopeRoom has room for the members of an envelope and a few unknown ones.
type envelopeRoom [8]jsonedit.Member

// envelopeOf decodes text. ok is false if text is not a JSON object, or has duplicate members.
func envelopeOf(room jsonedit.Object, text []byte) (o envelope, ok bool) {
	i := jsonedit.SkipSpace(text, 0)
	if i >= len(text) || text[i] != '{' || !jsonedit.Valid(text) {
		return envelope{}, false
	}
	all, err := jsonedit.Members(room, text[i:])
	return envelope{text[i:], all}, err == nil
}

// of returns the value of a member; nil if it is missing.
func (o envelope) of(name string) json.RawMessage {
	at := o.members.Of(name)
	if at == (jsonedit.Span{}) {
		return nil
	}
	return o.text[at.From:at.To]
}

// outcome returns the result, nil if it is missing, or the [*Error] in its place.
func (o envelope) outcome() (json.RawMessage, error) {
	raw := o.of("error")
	if raw == nil || string(raw) == "null" {
		return o.of("result"), nil
	}
	e := &Error{}
	if json.Unmarshal(raw, e) != nil {
		return nil, Errorf(InvalidAgentResponse, "the agent returned an invalid error object")
	}
	return nil, e
}

// Bytes encodes r. Params stay unchanged.
func (r *Request) Bytes() []byte {
	b := make([]byte, 0, 64+len(r.ID)+len(r.Method)+len(r.Params))
	b = append(append(b, `{"jsonrpc":"2.0","id":`...), r.ID...)
	b = appendText(append(b, `,"method":`...), r.Method)
	if len(r.Params) > 0 {
		b = append(append(b, `,"params":`...), r.Params...)
	}
	return append(b, '}')
}

// Response encodes the response to the request id: a result, unchanged, or an error.
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

// ParseResponse decodes the response to the request id: its result, or its error, an [*Error].
func ParseResponse(body []byte, id json.RawMessage) (json.RawMessage, error) {
	var room envelopeRoom
	in, ok := envelopeOf(room[:0], body)
	if !ok {
		return nil, Errorf(InvalidAgentResponse, "the agent's response is not JSON-RPC")
	}
	result, err := in.outcome()
	switch {
	case err != nil: // the id is null if the agent could not read the request
		return nil, err
	case result == nil:
		return nil, Errorf(InvalidAgentResponse, "the agent's response has neither a result nor an error")
	case !bytes.Equal(in.of("id"), id):
		return nil, Errorf(InvalidAgentResponse, "the agent's response has the id of another request")
	}
	return result, nil
}
