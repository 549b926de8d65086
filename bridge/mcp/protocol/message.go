package protocol

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lmosd/lmosd/internal/jsonedit"
)

// MaxMessage bounds a message, in bytes.
const MaxMessage = 16 << 20

// An ID is the id of a request in canonical JSON: 7 or "a". Empty means none.
type ID string

// IDOf returns the canonical form of raw, so that "a" and "\\u0061" are equal; empty if raw is not a valid id.
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
	_ = json.Unmarshal(raw, &text) // validID checked that raw is a string
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
	text      []byte // compact JSON
	id        ID
	method    string        // empty for a response
	params    jsonedit.Span // zero if absent
	result    jsonedit.Span
	errorSpan jsonedit.Span
	idSpan    jsonedit.Span
	// The members of the params or the result, if that is an object, and of its _meta. Spans are relative to the containing object.
	members, meta jsonedit.Object
}

// Parse parses one message and keeps line. The error is an [*Error] with the code [ParseError] or [InvalidRequest]. With InvalidRequest,
// the message is non-nil if it has an id, and has only the id.
func Parse(line []byte) (*Message, error) {
	if len(line) > MaxMessage {
		return nil, tooLong()
	}
	return parse(line)
}

// IDOfInvalid returns the id of an invalid message, which [Parse] returned with an error; empty if m is nil.
func IDOfInvalid(m *Message) ID {
	if m == nil {
		return ""
	}
	return m.id
}

func tooLong() *Error { return Errorf(InvalidRequest, "message exceeds %d bytes", MaxMessage) }

// parse is [Parse] without the size limit: the additions of a relay may exceed it.
func parse(line []byte) (*Message, error) {
	if !jsonedit.Valid(line) || !utf8.Valid(line) {
		return nil, Errorf(ParseError, "invalid JSON, invalid UTF-8, or nesting too deep")
	}
	var text bytes.Buffer
	if needsCompacting(line) {
		_ = json.Compact(&text, line) // cannot fail: the text is valid
		line = text.Bytes()
	}
	m := &Message{text: line}
	if line[0] != '{' {
		return nil, Errorf(InvalidRequest, "expected one object: MCP does not support batches")
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

// needsCompacting reports whether a text may contain line ends.
func needsCompacting(line []byte) bool {
	return bytes.IndexByte(line, '\n') >= 0 || bytes.IndexByte(line, '\r') >= 0 || line[0] == ' ' || line[0] == '\t'
}

func (m *Message) read(all jsonedit.Object) error {
	invalid := func(what string) error { return Errorf(InvalidRequest, "%s", what) }
	if err := checkCase(all, topNames); err != nil {
		return invalid(err.Error())
	}
	if at := all.Of("id"); at != (jsonedit.Span{}) {
		switch id := m.at(at); {
		case validID(id):
			m.id, m.idSpan = IDOf(id), at
		case string(id) != "null" || all.Of("error") == (jsonedit.Span{}): // null is allowed in an error response to an unreadable request
			return invalid(fmt.Sprintf("expected an id that is an integer, or a string of at most %d bytes", maxID))
		}
	}
	if v := m.at(all.Of("jsonrpc")); string(v) != `"2.0"` {
		return invalid(`jsonrpc must be "2.0"`)
	}
	if at := all.Of("method"); at != (jsonedit.Span{}) {
		if m.method, _ = jsonedit.String(m.at(at)); m.method == "" {
			return invalid("expected a method that is a non-empty string")
		}
	}
	m.params, m.result, m.errorSpan = all.Of("params"), all.Of("result"), all.Of("error")
	if m.params != (jsonedit.Span{}) && m.text[m.params.From] != '{' {
		return invalid("expected params that are an object")
	}
	answers := m.result != (jsonedit.Span{}) || m.errorSpan != (jsonedit.Span{})
	switch {
	case m.method == "" && !answers:
		return invalid("expected a method, a result or an error")
	case m.method != "" && answers:
		return invalid("unexpected result or error in a message with a method")
	case m.result != (jsonedit.Span{}) && m.errorSpan != (jsonedit.Span{}):
		return invalid("expected either a result or an error, got both")
	case m.method == "" && m.id == "" && m.errorSpan == (jsonedit.Span{}):
		return invalid("expected an id in a response")
	}
	if err := m.indexMembers(); err != nil {
		return invalid(err.Error())
	}
	return nil
}

// Members that the checks and the routing of lmosd depend on.
var (
	topNames   = []string{"jsonrpc", "id", "method", "params", "result", "error"}
	paramNames = []string{"name", "uri", "taskId", "notifications", "arguments", "_meta", "cursor", "requestState", "inputResponses", "ref"}
)

// checkCase returns an error for a member that differs from one of names only in case. Case-insensitive servers, for example those with
// encoding/json, would read a value that lmosd did not check.
func checkCase(all jsonedit.Object, names []string) error {
	for _, m := range all {
		for _, one := range names {
			n := len(m.Name)
			if n >= len(one) && n <= 2*len(one) && string(m.Name) != one && strings.EqualFold(string(m.Name), one) {
				return fmt.Errorf("expected member %q, got %q", one, m.Name)
			}
		}
	}
	return nil
}

// indexMembers indexes the members of the params or the result, and of its _meta, for repeated access.
func (m *Message) indexMembers() error {
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
		err = checkCase(all, paramNames)
	}
	n := len(all)
	if meta := all.Of(metaMember); err == nil && meta != (jsonedit.Span{}) && text[meta.From] == '{' {
		all, err = jsonedit.Members(all, text[meta.From:])
	}
	if err != nil {
		return err
	}
	m.members, m.meta = all[:n:n], all[n:]
	return nil
}

// metaMember holds the metadata of params and results.
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

// Bytes returns the message as JSON on one line, without a line end. The caller must not modify it.
func (m *Message) Bytes() []byte { return m.text }

// ID returns the id of a request or response.
func (m *Message) ID() ID { return m.id }

// Method returns the method of a request or notification; empty for a response.
func (m *Message) Method() string { return m.method }

// IsRequest reports whether m is a request.
func (m *Message) IsRequest() bool { return m.method != "" && m.id != "" }

// IsNotification reports whether m is a notification, which has no response.
func (m *Message) IsNotification() bool { return m.method != "" && m.id == "" }

// IsResponse reports whether m is a response.
func (m *Message) IsResponse() bool { return m.method == "" }

// Result returns the result of a response; nil if it has an error.
func (m *Message) Result() json.RawMessage {
	if m.result == (jsonedit.Span{}) {
		return nil
	}
	return m.at(m.result)
}

// Error returns the error of a response; nil if it has a result.
func (m *Message) Error() *Error {
	if m.errorSpan == (jsonedit.Span{}) {
		return nil
	}
	e := new(Error)
	if json.Unmarshal(m.at(m.errorSpan), e) != nil {
		return &Error{Code: InternalError, Message: "malformed error object in the response"}
	}
	return e
}

// Params returns the params of a request or notification; nil if there are none.
func (m *Message) Params() json.RawMessage {
	if m.params == (jsonedit.Span{}) {
		return nil
	}
	return m.at(m.params)
}

// Param returns the value at path in the params; nil if there is none. The error is an [*Error] with the code [InvalidParams]: an object
// on the path has a duplicate member.
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

// ResultType returns the resultType of a response; empty if it has none, as in earlier revisions.
func (m *Message) ResultType() (kind string) {
	raw, _ := m.InResult("resultType")
	_ = json.Unmarshal(raw, &kind) // other types count as missing
	return kind
}

// value returns the value at path in text, which is the params or the result.
func (m *Message) value(text []byte, path []string) (json.RawMessage, error) {
	if len(path) > 0 {
		var ok bool
		if text, ok = of(m.members, text, path[0]); ok && path[0] == metaMember && len(path) > 1 {
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

// of returns the text of an indexed member.
func of(all jsonedit.Object, text []byte, name string) ([]byte, bool) {
	at := all.Of(name)
	return text[at.From:at.To], at != (jsonedit.Span{})
}

// Text returns the string at path in the params; empty if it is missing or not a string.
func (m *Message) Text(path ...string) string {
	raw, _ := m.Param(path...)
	text, _ := jsonedit.String(raw)
	return text
}

// WithID returns a copy of m with another id.
func (m *Message) WithID(id ID) *Message {
	if m.idSpan == (jsonedit.Span{}) || !validID([]byte(id)) {
		return m.with([]byte(id), "id")
	}
	c := *m // only the offsets change
	c.text, c.id = jsonedit.Splice(m.text, m.idSpan, []byte(id)), id
	longer := len(c.text) - len(m.text)
	c.idSpan.To += longer
	for _, at := range []*jsonedit.Span{&c.params, &c.result, &c.errorSpan} {
		if at.From > m.idSpan.From {
			at.From, at.To = at.From+longer, at.To+longer
		}
	}
	return &c
}

// WithParam returns a copy of m with value at path in the params. A nil value removes the member.
func (m *Message) WithParam(value json.RawMessage, path ...string) *Message {
	return m.with(value, append([]string{"params"}, path...)...)
}

// WithResult is [Message.WithParam] for the result of a response. An error response stays unchanged.
func (m *Message) WithResult(value json.RawMessage, path ...string) *Message {
	if m.result == (jsonedit.Span{}) {
		return m
	}
	return m.with(value, append([]string{"result"}, path...)...)
}

// with edits the text. The members on the paths were validated when the message was parsed, so an error is a bug in this package.
func (m *Message) with(value json.RawMessage, path ...string) *Message {
	text, err := jsonedit.Set(m.text, value, path...)
	if err != nil {
		panic(err)
	}
	return mustParse(text)
}

// mustParse parses a text that this package generated.
func mustParse(text []byte) *Message {
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

// Request returns a request, or a notification if id is empty. It panics if JSON cannot encode params.
func Request(id ID, method string, params any) *Message {
	var m struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id,omitempty"`
		Method  string          `json:"method"`
		Params  any             `json:"params,omitempty"`
	}
	m.Version, m.ID, m.Method, m.Params = "2.0", json.RawMessage(id), method, params
	return encode(m)
}

// Respond returns a response with a result.
func Respond(id ID, result any) *Message {
	return encode(struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Result  any             `json:"result"`
	}{"2.0", json.RawMessage(id), result})
}

// RespondError returns a response with an error. An empty id becomes null.
func RespondError(id ID, e *Error) *Message {
	id = cmp.Or(id, "null")
	return encode(struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   *Error          `json:"error"`
	}{"2.0", json.RawMessage(id), e})
}

// RespondMalformed returns the response for a client whose server sent an invalid response.
func RespondMalformed(id ID, bad *Error) *Message {
	return RespondError(id, Errorf(InternalError, "malformed response of the server: %s", bad.Message))
}

func encode(v any) *Message { return mustParse(Encode(v)) }

// Encode returns the JSON of v. It panics if v has no JSON form.
func Encode(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}
