// Package protocol defines MCP messages (JSON-RPC 2.0), their framing, revisions, error codes and HTTP headers.
//
// A [Message] keeps the text that it was read from. What a relay must change, an id or a token, is changed in the text, and all
// else stays byte by byte what the other end wrote: members that this version does not know, the order of members, the spelling
// of numbers.
//
// Sources: MCP 2026-07-28 and 2025-11-25, "Base protocol", "Transports"; JSON-RPC 2.0.
package protocol

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lmosd/lmosd/internal/jsonedit"
)

// MaxMessage is the most bytes of a message.
const MaxMessage = 16 << 20

// An ID is that of a request, as JSON: 7 or "a", always spelled alike. Empty means none.
type ID string

// IDOf returns the id that raw is; empty if it is none. Two that are the same to a reader of JSON are the same: "a" and "\u0061".
func IDOf(raw json.RawMessage) ID {
	switch {
	case len(raw) == 0 || !validID(raw):
		return ""
	case string(raw) == "-0":
		return "0"
	case bytes.IndexByte(raw, '\\') < 0:
		return ID(raw)
	}
	var text string
	_ = json.Unmarshal(raw, &text) // it is a string
	out := []byte{'"'}
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			out = append(out, '\\', byte(r))
		case r < ' ':
			out = fmt.Appendf(out, "\\u%04x", r)
		default:
			out = utf8.AppendRune(out, r)
		}
	}
	return ID(append(out, '"'))
}

// A Message is a request, a notification or a response. It is immutable.
type Message struct {
	text   []byte // compact JSON
	id     ID
	method string        // empty for a response
	params jsonedit.Span // none: zero
	result jsonedit.Span
	fault  jsonedit.Span
	idAt   jsonedit.Span
	// The members of the params or the result, if that is an object, and of its _meta, each in its own text.
	inside, meta jsonedit.Object
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
	if !jsonedit.Valid(line) || !utf8.Valid(line) {
		return nil, Errorf(ParseError, "this is not JSON in UTF-8, or is too deep")
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
	var room [8]jsonedit.Member
	all, err := jsonedit.Members(room[:0], line)
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

func (m *Message) read(all jsonedit.Object) error {
	invalid := func(what string) error { return Errorf(InvalidRequest, "%s", what) }
	if err := looksAlike(all, topNames); err != nil {
		return invalid(err.Error())
	}
	if at := all.Of("id"); at != (jsonedit.Span{}) {
		switch id := m.at(at); {
		case validID(id):
			m.id, m.idAt = IDOf(id), at
		case string(id) != "null" || all.Of("error") == (jsonedit.Span{}): // an error of a request whose id could not be read
			return invalid(fmt.Sprintf("an id is an integer, or a string of at most %d bytes", maxID))
		}
	}
	if v := m.at(all.Of("jsonrpc")); string(v) != `"2.0"` {
		return invalid(`jsonrpc must be "2.0"`)
	}
	if at := all.Of("method"); at != (jsonedit.Span{}) {
		if m.method, _ = jsonedit.String(m.at(at)); m.method == "" {
			return invalid("a method is a string")
		}
	}
	m.params, m.result, m.fault = all.Of("params"), all.Of("result"), all.Of("error")
	if m.params != (jsonedit.Span{}) && m.text[m.params.From] != '{' {
		return invalid("params are an object")
	}
	answers := m.result != (jsonedit.Span{}) || m.fault != (jsonedit.Span{})
	switch {
	case m.method == "" && !answers:
		return invalid("there is neither a method nor a result nor an error")
	case m.method != "" && answers:
		return invalid("a message with a method has no result and no error")
	case m.result != (jsonedit.Span{}) && m.fault != (jsonedit.Span{}):
		return invalid("a response has a result or an error, not both")
	case m.method == "" && m.id == "" && m.fault == (jsonedit.Span{}):
		return invalid("a response has an id")
	}
	if err := m.lookInside(); err != nil {
		return invalid(err.Error())
	}
	return nil
}

// Names of members by which requests are judged and routed.
var (
	topNames   = []string{"jsonrpc", "id", "method", "params", "result", "error"}
	paramNames = []string{"name", "uri", "taskId", "notifications", "arguments", "_meta", "cursor", "requestState", "inputResponses", "ref"}
)

// looksAlike reports a member that is spelled like one of names but for case. There are servers that take it for that (encoding/json
// does), so that they would do something else than what was judged here.
func looksAlike(all jsonedit.Object, names []string) error {
	for _, m := range all {
		for _, one := range names {
			n := len(m.Name)
			if n >= len(one) && n <= 2*len(one) && string(m.Name) != one && strings.EqualFold(string(m.Name), one) {
				return fmt.Errorf("the member %q is spelled %q", one, m.Name)
			}
		}
	}
	return nil
}

// lookInside reads the members of the params or the result, and of its _meta: they are asked for again and again.
func (m *Message) lookInside() error {
	at := m.params
	if at == (jsonedit.Span{}) {
		at = m.result
	}
	if at == (jsonedit.Span{}) || m.text[at.From] != '{' {
		return nil
	}
	text := m.at(at)
	all, err := jsonedit.Members(make(jsonedit.Object, 0, 12), text)
	if err == nil && at == m.params {
		err = looksAlike(all, paramNames)
	}
	n := len(all)
	if meta := all.Of(metaMember); err == nil && meta != (jsonedit.Span{}) && text[meta.From] == '{' {
		all, err = jsonedit.Members(all, text[meta.From:])
	}
	if err != nil {
		return err
	}
	m.inside, m.meta = all[:n:n], all[n:]
	return nil
}

// metaMember is what params and results have for those who carry them.
const metaMember = "_meta"

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

func (m *Message) at(s jsonedit.Span) json.RawMessage { return json.RawMessage(m.text[s.From:s.To]) }

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
	if m.result == (jsonedit.Span{}) {
		return nil
	}
	return m.at(m.result)
}

// Error returns that of a response; nil if it is a result.
func (m *Message) Error() *Error {
	if m.fault == (jsonedit.Span{}) {
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
	if m.params == (jsonedit.Span{}) {
		return nil
	}
	return m.at(m.params)
}

// Param returns the value that path leads to in the params. It is nil if there is none. The error is an [*Error] of code
// [InvalidParams]: an object on the way names a member twice.
func (m *Message) Param(path ...string) (json.RawMessage, error) {
	if m.params == (jsonedit.Span{}) {
		return nil, nil
	}
	return m.value(m.at(m.params), path)
}

// InResult is [Message.Param] for the result of a response.
func (m *Message) InResult(path ...string) (json.RawMessage, error) {
	if m.result == (jsonedit.Span{}) {
		return nil, nil
	}
	return m.value(m.at(m.result), path)
}

// value returns what path leads to in text, the params or the result.
func (m *Message) value(text []byte, path []string) (json.RawMessage, error) {
	if len(path) > 0 {
		var ok bool
		if text, ok = of(m.inside, text, path[0]); ok && path[0] == metaMember && len(path) > 1 {
			path = path[1:]
			text, ok = of(m.meta, text, path[0])
		}
		if !ok {
			return nil, nil
		}
		path = path[1:]
	}
	at, err := jsonedit.Find(text, path...)
	switch {
	case err != nil:
		return nil, &Error{Code: InvalidParams, Message: err.Error()}
	case at == (jsonedit.Span{}):
		return nil, nil
	}
	return json.RawMessage(text[at.From:at.To]), nil
}

// of returns the text of a member that was read before.
func of(all jsonedit.Object, text []byte, name string) ([]byte, bool) {
	at := all.Of(name)
	return text[at.From:at.To], at != (jsonedit.Span{})
}

// Text returns the string that path leads to in the params; empty if there is none, or if it is no string.
func (m *Message) Text(path ...string) string {
	raw, _ := m.Param(path...)
	text, _ := jsonedit.String(raw)
	return text
}

// WithID returns m under another id.
func (m *Message) WithID(id ID) *Message {
	if m.idAt == (jsonedit.Span{}) || !validID([]byte(id)) {
		return m.with([]byte(id), "id")
	}
	c := *m // all that was read of it still holds, only elsewhere
	c.text, c.id = jsonedit.Splice(m.text, m.idAt, []byte(id)), id
	longer := len(c.text) - len(m.text)
	c.idAt.To += longer
	for _, at := range []*jsonedit.Span{&c.params, &c.result, &c.fault} {
		if at.From > m.idAt.From {
			at.From, at.To = at.From+longer, at.To+longer
		}
	}
	return &c
}

// WithParam returns m with value at path in the params, or without what is there if value is nil.
func (m *Message) WithParam(value json.RawMessage, path ...string) *Message {
	return m.with(value, append([]string{"params"}, path...)...)
}

// WithResult is [Message.WithParam] for the result of a response; an error has none, and stays as it is.
func (m *Message) WithResult(value json.RawMessage, path ...string) *Message {
	if m.result == (jsonedit.Span{}) {
		return m
	}
	return m.with(value, append([]string{"result"}, path...)...)
}

// with changes the text. Paths lead to members of the message, of its params or result, and of their _meta, which are sound since
// the message was read: an error is a mistake of this package.
func (m *Message) with(value json.RawMessage, path ...string) *Message {
	text, err := jsonedit.Set(m.text, value, path...)
	if err != nil {
		panic(err)
	}
	return reread(text)
}

// reread reads a text that this package made.
func reread(text []byte) *Message {
	m := &Message{text: text}
	var room [8]jsonedit.Member
	all, err := jsonedit.Members(room[:0], text)
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
