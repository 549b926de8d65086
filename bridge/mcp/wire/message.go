// Package wire is the wire of MCP: JSON-RPC 2.0 messages that are passed on as they came, their framing, the two eras of the
// protocol, its error codes and its HTTP headers.
//
// A [Message] keeps the text that it was read from. What a relay must change, an id or a token, is changed in the text, and all
// else stays byte by byte what the other end wrote: members that this version does not know, the order of members, the spelling
// of numbers.
//
// Sources: MCP 2026-07-28 and 2025-11-25, "Base protocol", "Transports"; JSON-RPC 2.0.
package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// MaxMessage is the most bytes of a message.
const MaxMessage = 16 << 20

// An ID is that of a request, as JSON: 7 or "a". Empty means none.
type ID string

// A Message is a request, a notification or a response. It is immutable.
type Message struct {
	text   []byte // compact JSON
	id     ID
	method string // empty for a response
	params span   // none: zero
	result span
	fault  span
}

// Parse reads one message; it keeps line. What is no message gives an [*Error] of code [ParseError] or [InvalidRequest]; with
// InvalidRequest the message is not nil if it has an id to answer to, and nothing else of it is known.
func Parse(line []byte) (*Message, error) {
	if len(line) > MaxMessage {
		return nil, tooLong()
	}
	return parse(line)
}

func tooLong() *Error { return Errorf(InvalidRequest, "a message has more than %d bytes", MaxMessage) }

// parse is Parse without a limit: what a relay adds to a message makes it longer than its first reader allowed.
func parse(line []byte) (*Message, error) {
	if !json.Valid(line) || !utf8.Valid(line) {
		return nil, Errorf(ParseError, "this is not JSON in UTF-8")
	}
	var text bytes.Buffer
	if needsCompacting(line) {
		_ = json.Compact(&text, line) // it is valid
		line = text.Bytes()
	}
	m := &Message{text: line}
	if line[0] != '{' {
		return nil, Errorf(InvalidRequest, "a message is one object; batches are not part of MCP")
	}
	all, err := members(line)
	if err != nil {
		return nil, Errorf(InvalidRequest, "%v", err)
	}
	switch err := m.read(all); {
	case err == nil:
		return m, nil
	case m.id == "":
		return nil, err
	default:
		return &Message{id: m.id}, err
	}
}

// needsCompacting reports whether a text may have a line end in it.
func needsCompacting(line []byte) bool {
	return bytes.IndexByte(line, '\n') >= 0 || bytes.IndexByte(line, '\r') >= 0 || line[0] == ' ' || line[0] == '\t'
}

func (m *Message) read(all map[string]span) error {
	invalid := func(what string) error { return Errorf(InvalidRequest, "%s", what) }
	if at, ok := all["id"]; ok {
		switch id := m.at(at); {
		case validID(id):
			m.id = ID(id)
		case string(id) != "null" || all["error"] == (span{}): // an error of a request whose id could not be read
			return invalid(fmt.Sprintf("an id is an integer, or a string of at most %d bytes", maxID))
		}
	}
	if v := m.at(all["jsonrpc"]); string(v) != `"2.0"` {
		return invalid(`jsonrpc must be "2.0"`)
	}
	if at, ok := all["method"]; ok {
		if json.Unmarshal(m.at(at), &m.method) != nil || m.method == "" {
			return invalid("a method is a string")
		}
	}
	m.params, m.result, m.fault = all["params"], all["result"], all["error"]
	if m.params != (span{}) && m.text[m.params.from] != '{' {
		return invalid("params are an object")
	}
	answers := m.result != (span{}) || m.fault != (span{})
	for _, at := range []span{m.params, m.result} {
		if at != (span{}) && m.text[at.from] == '{' {
			if _, _, err := find(m.at(at), "_meta", ""); err != nil { // looks into both
				return invalid(err.Error())
			}
		}
	}
	switch {
	case m.method == "" && !answers:
		return invalid("there is neither a method nor a result nor an error")
	case m.method != "" && answers:
		return invalid("a message with a method has no result and no error")
	case m.result != (span{}) && m.fault != (span{}):
		return invalid("a response has a result or an error, not both")
	case m.method == "" && m.id == "" && m.fault == (span{}):
		return invalid("a response has an id")
	}
	return nil
}

// maxID bounds an id, in bytes.
const maxID = 1 << 10

// validID reports whether raw is a string or an integer.
func validID(raw []byte) bool {
	if raw[0] == '"' {
		return len(raw) <= maxID
	}
	_, err := strconv.ParseInt(string(raw), 10, 64)
	return err == nil
}

func (m *Message) at(s span) json.RawMessage { return json.RawMessage(m.text[s.from:s.to]) }

// Bytes returns the message as JSON on one line, without a line end. The caller does not change it.
func (m *Message) Bytes() []byte { return m.text }

// ID returns that of a request or response.
func (m *Message) ID() ID { return m.id }

// Method returns that of a request or notification; empty for a response.
func (m *Message) Method() string { return m.method }

// IsRequest, IsNotification and IsResponse tell the three kinds apart.
func (m *Message) IsRequest() bool { return m.method != "" && m.id != "" }

// IsNotification reports whether nobody answers m.
func (m *Message) IsNotification() bool { return m.method != "" && m.id == "" }

// IsResponse reports whether m answers a request.
func (m *Message) IsResponse() bool { return m.method == "" }

// Result returns that of a response; nil if it is an error.
func (m *Message) Result() json.RawMessage {
	if m.result == (span{}) {
		return nil
	}
	return m.at(m.result)
}

// Error returns that of a response; nil if it is a result.
func (m *Message) Error() *Error {
	if m.fault == (span{}) {
		return nil
	}
	e := new(Error)
	if json.Unmarshal(m.at(m.fault), e) != nil {
		return &Error{Code: InternalError, Message: "the error of the response cannot be read"}
	}
	return e
}

// Params returns those of a request or notification; nil if there are none.
func (m *Message) Params() json.RawMessage {
	if m.params == (span{}) {
		return nil
	}
	return m.at(m.params)
}

// Param returns the value that path leads to in the params. It is nil if there is none. The error is an [*Error] of code
// [InvalidParams]: an object on the way names a member twice.
func (m *Message) Param(path ...string) (json.RawMessage, error) {
	if m.params == (span{}) {
		return nil, nil
	}
	return value(m.at(m.params), path)
}

// InResult is [Message.Param] for the result of a response.
func (m *Message) InResult(path ...string) (json.RawMessage, error) {
	if m.result == (span{}) {
		return nil, nil
	}
	return value(m.at(m.result), path)
}

func value(text []byte, path []string) (json.RawMessage, error) {
	at, ok, err := find(text, path...)
	switch {
	case err != nil:
		return nil, &Error{Code: InvalidParams, Message: err.Error()}
	case !ok:
		return nil, nil
	}
	return json.RawMessage(text[at.from:at.to]), nil
}

// Text returns the string that path leads to in the params; empty if there is none, or if it is no string.
func (m *Message) Text(path ...string) string {
	var text string
	if raw, err := m.Param(path...); err == nil && raw != nil {
		_ = json.Unmarshal(raw, &text)
	}
	return text
}

// WithID returns m under another id.
func (m *Message) WithID(id ID) *Message {
	return m.with([]byte(id), "id")
}

// WithParam returns m with value at path in the params, or without what is there if value is nil.
func (m *Message) WithParam(value json.RawMessage, path ...string) *Message {
	return m.with(value, append([]string{"params"}, path...)...)
}

// WithResult is [Message.WithParam] for the result of a response; an error has none, and stays as it is.
func (m *Message) WithResult(value json.RawMessage, path ...string) *Message {
	if m.result == (span{}) {
		return m
	}
	return m.with(value, append([]string{"result"}, path...)...)
}

// with changes the text. Paths lead to members of the message, of its params or result, and of their _meta, which are sound since
// the message was read: an error is a mistake of this package.
func (m *Message) with(value json.RawMessage, path ...string) *Message {
	text, err := set(m.text, value, path...)
	if err != nil {
		panic(err)
	}
	return reread(text)
}

// reread reads a text that this package made.
func reread(text []byte) *Message {
	m := &Message{text: text}
	all, err := members(text)
	if err == nil {
		err = m.read(all)
	}
	if err != nil {
		panic(err)
	}
	return m
}

// Request makes a request, or a notification if id is empty. Params that JSON cannot hold are a mistake of the caller's, and panic.
func Request(id ID, method string, params any) *Message {
	var m struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id,omitempty"`
		Method  string          `json:"method"`
		Params  any             `json:"params,omitempty"`
	}
	m.Version, m.ID, m.Method, m.Params = "2.0", json.RawMessage(id), method, params
	return made(m)
}

// Respond makes the response to a request.
func Respond(id ID, result any) *Message {
	return made(struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Result  any             `json:"result"`
	}{"2.0", json.RawMessage(id), result})
}

// Refuse makes the response to a request that fails. An empty id is null: the request's could not be read.
func Refuse(id ID, e *Error) *Message {
	if id == "" {
		id = "null"
	}
	return made(struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   *Error          `json:"error"`
	}{"2.0", json.RawMessage(id), e})
}

func made(v any) *Message {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return reread(text)
}
