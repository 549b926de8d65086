package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		id     ID
		method string
		text   string // empty: unchanged
	}{
		`{"jsonrpc":"2.0","id":7,"method":"tools/list"}`:                           {id: "7", method: "tools/list"},
		`{"method":"ping","id":"a","jsonrpc":"2.0"}`:                               {id: `"a"`, method: "ping"},
		`{"jsonrpc":"2.0","method":"notifications/x","params":{"a" : 1.50}}`:       {method: "notifications/x"},
		`{"jsonrpc":"2.0","id":1,"result":[1]}`:                                    {id: "1"},
		`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}`:        {},
		`{"jsonrpc":"2.0","\u0069d":1,"method":"m\u0065"}`:                         {id: "1", method: "me"},
		" \t{\"jsonrpc\":\"2.0\",\n\"id\":1, \"method\":\"x\",\"unknown\":{}}\r\n": {"1", "x", `{"jsonrpc":"2.0","id":1,"method":"x","unknown":{}}`},
	} {
		m, err := Parse([]byte(text))
		if err != nil || m.ID() != want.id || m.Method() != want.method {
			t.Errorf("%s: got %+v, %v", text, m, err)
			continue
		}
		if want.text == "" {
			want.text = text
		}
		if got := string(m.Bytes()); got != want.text {
			t.Errorf("got %s, want %s", got, want.text)
		}
	}
}

func TestInvalidMessages(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		code int
		id   ID // of the error response
	}{
		``:                 {code: ParseError},
		`Hello`:            {code: ParseError},
		"{\"a\":\"\xff\"}": {code: ParseError},
		strings.Repeat("[", 20000) + strings.Repeat("]", 20000): {code: ParseError},
		`[{"jsonrpc":"2.0","id":1,"method":"x"}]`:               {code: InvalidRequest},
		`"x"`:                                   {code: InvalidRequest},
		`{"jsonrpc":"1.0","id":1,"method":"x"}`: {InvalidRequest, "1"},
		`{"jsonrpc":"2.0","id":null,"method":"x"}`:                                                       {code: InvalidRequest},
		`{"jsonrpc":"2.0","id":1.5,"method":"x"}`:                                                        {code: InvalidRequest},
		`{"jsonrpc":"2.0","id":{},"method":"x"}`:                                                         {code: InvalidRequest},
		`{"jsonrpc":"2.0","id":"` + strings.Repeat("x", maxID) + `","method":"x"}`:                       {code: InvalidRequest},
		`{"jsonrpc":"2.0","id":1,"method":7}`:                                                            {InvalidRequest, "1"},
		`{"jsonrpc":"2.0","id":1,"method":""}`:                                                           {InvalidRequest, "1"},
		`{"jsonrpc":"2.0","id":1,"method":"x","params":[1]}`:                                             {InvalidRequest, "1"},
		`{"jsonrpc":"2.0","id":1}`:                                                                       {InvalidRequest, "1"},
		`{"jsonrpc":"2.0","result":{}}`:                                                                  {code: InvalidRequest},
		`{"jsonrpc":"2.0","id":1,"method":"x","result":{}}`:                                              {InvalidRequest, "1"},
		`{"jsonrpc":"2.0","id":1,"result":{},"error":{}}`:                                                {InvalidRequest, "1"},
		`{"jsonrpc":"2.0","id":1,"id":2,"method":"x"}`:                                                   {code: InvalidRequest},
		`{"jsonrpc":"2.0","id":1,"method":"x","m\u0065thod":"y"}`:                                        {code: InvalidRequest},
		`{"jsonrpc":"2.0","id":1,"method":"x","params":{"name":"a","name":"b"}}`:                         {InvalidRequest, "1"},
		`{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"a":1,"\u0061":2}}}`:                    {InvalidRequest, "1"},
		`{"jsonrpc":"2.0","id":1,"result":{"_meta":{"a":1,"a":2}}}`:                                      {InvalidRequest, "1"},
		`{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"` + strings.Repeat("x", MaxMessage) + `"}}`: {code: InvalidRequest},
	} {
		m, err := Parse([]byte(text))
		e := new(Error)
		if !errors.As(err, &e) || e.Code != want.code {
			t.Errorf("%.80s: got %v, want %d", text, err, want.code)
		}
		if got := m != nil; got != (want.id != "") || got && m.ID() != want.id {
			t.Errorf("%.80s: the id is %v", text, m)
		}
	}
}

// Changes keep the position of members; all other bytes are unchanged.
func TestEditsKeepOtherBytes(t *testing.T) {
	t.Parallel()
	const request = `{"id":1, "x":[ 1.0 ],"method":"m","params":{"n":1e2,"_meta":{"a":"\u00e9","b":2}},"jsonrpc":"2.0"}`
	const bare = `{"jsonrpc":"2.0","id":"q","method":"m"}`
	const response = `{"jsonrpc":"2.0","id":1,"result":{"_meta": {} ,"z":{"resultType":"x"}}}`
	value := json.RawMessage(`{"v":1}`)
	for name, c := range map[string]struct {
		from, want string
		edit       func(*Message) *Message
	}{
		"an id": {request, strings.Replace(request, `"id":1,`, `"id":"long",`, 1), func(m *Message) *Message { return m.WithID(`"long"`) }},
		"a member of _meta": {request, strings.Replace(request, `"\u00e9"`, `{"v":1}`, 1),
			func(m *Message) *Message { return m.WithParam(value, "_meta", "a") }},
		"one more": {request, strings.Replace(request, `{"a":`, `{"c":{"v":1},"a":`, 1),
			func(m *Message) *Message { return m.WithParam(value, "_meta", "c") }},
		"one less": {request, strings.Replace(request, `"a":"\u00e9",`, ``, 1),
			func(m *Message) *Message { return m.WithParam(nil, "_meta", "a") }},
		"one less that is not there": {request, request, func(m *Message) *Message { return m.WithParam(nil, "_meta", "z") }},
		"all of _meta": {request, strings.Replace(request, `,"_meta":{"a":"\u00e9","b":2}`, ``, 1),
			func(m *Message) *Message { return m.WithParam(nil, "_meta") }},
		"objects that are not there": {bare, `{"params":{"_meta":{"a":{"v":1}}},"jsonrpc":"2.0","id":"q","method":"m"}`,
			func(m *Message) *Message { return m.WithParam(value, "_meta", "a") }},
		"_meta that is no object": {`{"jsonrpc":"2.0","method":"m","params":{"_meta":5}}`, `{"jsonrpc":"2.0","method":"m","params":{"_meta":{"a":{"v":1}}}}`,
			func(m *Message) *Message { return m.WithParam(value, "_meta", "a") }},
		"a result": {response, strings.Replace(response, `{"_meta"`, `{"resultType":{"v":1},"_meta"`, 1),
			func(m *Message) *Message { return m.WithResult(value, "resultType") }},
		"an empty object": {response, strings.Replace(response, `{} ,`, `{"a":{"v":1}} ,`, 1),
			func(m *Message) *Message { return m.WithResult(value, "_meta", "a") }},
	} {
		m, err := Parse([]byte(c.from))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(c.edit(m).Bytes()); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
		if string(m.Bytes()) != c.from {
			t.Errorf("%s: the message itself was changed", name)
		}
	}
}

// A message of the maximum size can be given a longer id.
func TestEditMayExceedTheLimit(t *testing.T) {
	t.Parallel()
	text := []byte(`{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"`)
	text = append(append(text, bytes.Repeat([]byte("x"), MaxMessage-len(text)-3)...), `"}}`...)
	m, err := Parse(text)
	if err != nil || len(m.Bytes()) != MaxMessage {
		t.Fatal(err, len(text))
	}
	if m = m.WithID("123456789"); len(m.Bytes()) != MaxMessage+8 {
		t.Error("the new id is missing")
	}
}

func TestParams(t *testing.T) {
	t.Parallel()
	m, err := Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"m","params":{"arguments":{"a":{"b":[1]},"c":1,"c":2},"name":"\u0078"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Text("name"); got != "x" {
		t.Errorf("got %q", got)
	}
	if got, _ := m.Param("name", "b"); got != nil || m.Text("arguments") != "" {
		t.Errorf("got %s of a string", got)
	}
	e := new(Error)
	if _, err := m.Param("arguments", "a"); !errors.As(err, &e) || e.Code != InvalidParams {
		t.Errorf("got %v for a duplicate member", err)
	}
}

func TestMeta(t *testing.T) {
	t.Parallel()
	for meta, want := range map[string]int{
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}`: 0,
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28"`:                                                 InvalidParams,
		`"io.modelcontextprotocol/protocolVersion":7,"io.modelcontextprotocol/clientCapabilities":{}`:            InvalidParams,
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":[]`: InvalidParams,
		`"io.modelcontextprotocol/clientCapabilities":{}`:                                                        InvalidParams,
	} {
		m, err := Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{` + meta + `}}}`))
		if err != nil {
			t.Fatal(err)
		}
		code := 0
		if e := m.CheckMeta(); e != nil {
			code = e.Code
		}
		if code != want {
			t.Errorf("%s: got %d, want %d", meta, code, want)
		}
	}
	m := Request("1", "x", map[string]any{"_meta": map[string]any{MetaVersion: "2027-01-01"}})
	if e := m.CheckVersion(); e == nil || e.Code != UnsupportedVersion || !strings.Contains(string(e.Data), "2027-01-01") || !m.IsModern() {
		t.Errorf("got %v for a later revision", e)
	}
}

func TestTargetName(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`"method":"tools/call","params":{"name":"a"}`: "a", `"method":"prompts/get","params":{"name":"b"}`: "b",
		`"method":"resources/read","params":{"uri":"c:"}`: "c:", `"method":"tasks/get","params":{"taskId":"d"}`: "d",
		`"method":"tasks/cancel"`: "", `"method":"tools/list"`: "none",
	} {
		m, err := Parse([]byte(`{"jsonrpc":"2.0","id":1,` + text + `}`))
		if err != nil {
			t.Fatal(err)
		}
		got, named := m.TargetName()
		if !named {
			got = "none"
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for code, status := range map[int]int{ParseError: 400, InvalidRequest: 400, HeaderMismatch: 400, MissingCapability: 400,
		UnsupportedVersion: 400, UnknownMethod: 404, InvalidParams: 200, InternalError: 200, 7: 200} {
		m := RespondError(`"a"`, Errorf(code, "no %d", code).With(map[string]int{"n": code}))
		e := m.Error()
		if e == nil || e.Code != code || e.Status() != status || m.ID() != `"a"` || !m.IsResponse() || m.Result() != nil {
			t.Errorf("got %s with status %d, want %d", m.Bytes(), e.Status(), status)
		}
	}
	if m := RespondError("", Errorf(ParseError, "no")); !strings.Contains(string(m.Bytes()), `"id":null`) || m.ID() != "" {
		t.Errorf("got %s", m.Bytes())
	}
	m, err := Parse([]byte(`{"jsonrpc":"2.0","id":1,"error":7}`))
	if err != nil || m.Error().Code != InternalError {
		t.Errorf("got %v, %v", m, err)
	}
}

// For every message, an edit changes one member and nothing else.
func FuzzEdits(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"progressToken":"a","\u0062":[{}]},"a":1.0}}`), `"z"`)
	f.Add([]byte("{\"jsonrpc\":\"2.0\",\n\"id\":\"a\",\"result\":{\"_meta\":7}}"), `[1, 2]`)
	f.Add([]byte(`{"jsonrpc":"2.0","id":null,"error":{}}`), `{}`)
	f.Fuzz(func(t *testing.T, text []byte, value string) {
		m, err := Parse(bytes.Clone(text))
		if err != nil || !json.Valid([]byte(value)) || !utf8.ValidString(value) || strings.ContainsAny(value, "\r\n") {
			return
		}
		if bytes.ContainsAny(m.Bytes(), "\r\n") {
			t.Fatalf("%q is more than one line", m.Bytes())
		}
		if m.ID() != "" {
			sameBut(t, m, m.WithID("424242"), "424242", "id")
		}
		in, edited := "params", m
		if m.IsResponse() {
			in, edited = "result", m.WithResult(json.RawMessage(value), "_meta", "k")
			if m.Error() != nil {
				return // it was not changed
			}
		} else {
			edited = m.WithParam(json.RawMessage(value), "_meta", "k")
		}
		sameBut(t, m, edited, value, in, "_meta", "k")
	})
}

// sameBut compares two messages as other decoders read them.
func sameBut(t *testing.T, before, after *Message, value string, path ...string) {
	t.Helper()
	again, err := parse(bytes.Clone(after.Bytes()))
	if err != nil {
		t.Fatalf("%s is no message: %v", after.Bytes(), err)
	}
	token, _ := after.Param("_meta", "k")
	if sameToken, _ := again.Param("_meta", "k"); again.ID() != after.ID() || again.Method() != after.Method() || !bytes.Equal(again.Params(), after.Params()) ||
		!bytes.Equal(again.Result(), after.Result()) || !bytes.Equal(token, sameToken) {
		t.Fatalf("%s is not taken for what it is: %+v", after.Bytes(), after)
	}
	got, want := decoded(t, again.Bytes()), decoded(t, before.Bytes())
	at := want
	for _, name := range path[:len(path)-1] {
		next, ok := at[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			at[name] = next
		}
		at = next
	}
	at[path[len(path)-1]] = decoded(t, []byte(`{"v":`+value+`}`))["v"]
	a, _ := json.Marshal(got)
	b, _ := json.Marshal(want)
	if !bytes.Equal(a, b) {
		t.Fatalf("%s became %s", before.Bytes(), after.Bytes())
	}
}

func decoded(t *testing.T, text []byte) (v map[string]any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

// A message remains a message after all accessors, and ids are equal in all spellings.
func FuzzMessages(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":"\u0061\/\ud83d\ude00<","method":"tools/call","params":{"name":"x","_meta":{"progressToken":1}}}`))
	f.Add([]byte(`{"jsonrpc":"2.0","id":-0,"result":{"_meta":{}}}`))
	f.Add([]byte(`{"jsonrpc":"2.0","id":"\n\u2028\u0000","error":{"code":1,"message":"x"}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := Parse(line)
		if err != nil {
			if e := err.(*Error); e.Code != ParseError && e.Code != InvalidRequest {
				t.Errorf("%q: %v", line, err)
			}
			return
		}
		kinds := 0
		for _, is := range []bool{m.IsRequest(), m.IsNotification(), m.IsResponse()} {
			if is {
				kinds++
			}
		}
		if kinds != 1 {
			t.Errorf("%q is of %d kinds", line, kinds)
		}
		_, _ = m.TargetName()
		_, _, _, _, _ = m.CheckMeta(), m.CheckVersion(), m.ProgressToken(), m.Error(), m.Droppable()
		again, err := Parse(m.Bytes())
		if err != nil || again.ID() != m.ID() || IDOf(json.RawMessage(m.ID())) != m.ID() {
			t.Errorf("%q: again %v with the id %q, before %q", line, err, again.ID(), m.ID())
		}
		if m.ID() == "" {
			return
		}
		var before, after struct{ ID any }
		_ = json.Unmarshal(m.Bytes(), &before)
		_ = json.Unmarshal(m.WithID(m.ID()).Bytes(), &after)
		if before.ID != after.ID {
			t.Errorf("%q: the id %v became %v", line, before.ID, after.ID)
		}
	})
}
