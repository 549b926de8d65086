package wire

import (
	"bytes"
	"encoding/json"
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
	var in struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Method  json.RawMessage `json:"method"`
		Params  json.RawMessage `json:"params"`
	}
	r := &Request{}
	if !json.Valid(body) {
		return r, Errorf(ParseError, "the body is not JSON")
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return r, Errorf(InvalidRequest, "the body is no JSON-RPC request: one object is needed")
	}
	if len(in.ID) > 0 {
		if c := in.ID[0]; c != '"' && c != '-' && (c < '0' || c > '9') {
			return r, Errorf(InvalidRequest, "the id is neither a string nor a number")
		}
		r.ID = in.ID
	}
	if json.Unmarshal(in.Method, &r.Method) != nil || r.Method == "" {
		return r, Errorf(InvalidRequest, "there is no method")
	}
	if in.Version != "2.0" {
		return r, Errorf(InvalidRequest, `"jsonrpc" is not "2.0"`)
	}
	if r.ID == nil {
		return r, Errorf(InvalidRequest, "there is no id: A2A has no notifications")
	}
	if r.Params = in.Params; len(r.Params) > 0 && r.Params[0] != '{' && string(r.Params) != "null" {
		return r, Errorf(InvalidParams, "the params are no object")
	}
	return r, nil
}

// Bytes writes r. Params stay as they are.
func (r *Request) Bytes() []byte {
	b := append([]byte(`{"jsonrpc":"2.0","id":`), r.ID...)
	b = append(append(b, `,"method":`...), Encode(r.Method)...)
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
	b := append([]byte(`{"jsonrpc":"2.0","id":`), id...)
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
	var in struct {
		ID     json.RawMessage `json:"id"`
		Result json.RawMessage `json:"result"`
		Error  *Error          `json:"error"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, Errorf(InvalidAgentResponse, "the agent answers with what is no JSON-RPC")
	}
	switch {
	case in.Error != nil: // of an unreadable request the id is null
		return nil, in.Error
	case in.Result == nil:
		return nil, Errorf(InvalidAgentResponse, "the agent answers with neither a result nor an error")
	case !bytes.Equal(bytes.TrimSpace(in.ID), id):
		return nil, Errorf(InvalidAgentResponse, "the agent answers another request than this one")
	}
	return in.Result, nil
}
