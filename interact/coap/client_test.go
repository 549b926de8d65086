package coap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
	"github.com/plgd-dev/go-coap/v3/mux"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/messaging"
)

// agents are go-coap's servers, by transport.
var agents = map[string]func(t testing.TB, handle func(w mux.ResponseWriter, r *mux.Message)) string{"udp": udpAgent,
	"tcp": tcpAgent}

// received is a request that an agent of go-coap received.
func received(r *mux.Message) string {
	path, _ := r.Path()
	queries, _ := r.Queries()
	said := []string{messaging.Dotted(r.Code()), path}
	if len(queries) > 0 {
		said = append(said, "?"+strings.Join(queries, "&"))
	}
	for _, id := range []message.OptionID{message.ContentFormat, message.Accept, messaging.HopLimit, message.Observe} {
		if n, err := r.GetOptionUint32(id); err == nil && (id != messaging.HopLimit || n != interact.MaxHops) { // which all have
			said = append(said, fmt.Sprintf("%d=%d", id, n))
		}
	}
	if b := bodyOf(r.Message); b != "" {
		said = append(said, b)
	}
	return strings.Join(said, " ")
}

func TestOperationsBecomeRequests(t *testing.T) {
	t.Parallel()
	const members = `"properties": {
		"p": {"type": "string", "forms": [{"href": "BASE/p?unit=C&x=%26"}]},
		"hops": {"readOnly": true, "forms": [{"href": "BASE/a%2Fb//c/", "cov:method": "FETCH", "cov:accept": 60, "cov:hopLimit": 3}]},
		"non": {"readOnly": true, "forms": [{"href": "BASE/non", "cov:confirmable": false}]},
		"cbor": {"forms": [{"href": "BASE/cbor", "contentType": "application/cbor"}]},
		"text": {"forms": [{"href": "BASE/text", "contentType": "text/plain;charset=utf-8"}]},
		"own": {"forms": [{"href": "BASE/own", "cov:method": "PATCH", "contentType": "application/vnd.x",
			"cov:contentFormat": 65000, "op": "writeproperty"}]},
		"room": {"type": "integer", "uriVariables": {"room": {"type": "string"}, "day": {"type": "integer"}},
			"forms": [{"href": "BASE/rooms/{room}{?day}"}]}},
		"actions": {
			"go": {"input": {}, "forms": [{"href": "BASE/go"}]},
			"fly": {"input": {"type": "object", "properties": {"to": {"type": "string"}}}, "uriVariables": {"id": {"type": "integer"}},
				"forms": [{"href": "BASE/fly/{id}", "cov:method": "PUT"}]}},
		"forms": [{"href": "BASE/all", "op": ["readallproperties", "writemultipleproperties"]},
			{"href": "BASE/some", "op": "readmultipleproperties", "cov:method": "FETCH"}]`
	tests := []struct {
		name string
		m    *interact.Message
		want string
	}{
		{"read", read("p"), "0.01 /p ?unit=C&x=&"},
		{"write", write("p", `"x"`), `0.03 /p ?unit=C&x=& 12=50 "x"`},
		{"method, accept, hop limit, odd path", read("hops"), "0.05 /a/b//c/ 17=60 16=3"},
		{"not confirmable", read("non"), "0.01 /non"},
		{"JSON to an agent of CBOR", write("cbor", `{"a":1}`), "0.03 /cbor 12=60 \xa1aa\x01"},
		{"JSON to an agent of text", write("text", `"hi"`), "0.03 /text 12=0 hi"},
		{"a number to an agent of text", write("text", `21.5`), "0.03 /text 12=0 21.5"},
		{"a content format of its own", with(write("own", "x"), "application/vnd.x"), "0.06 /own 12=65000 x"},
		{"invoke", invoke("go", `[1]`), "0.02 /go 12=50 [1]"},
		{"invoke without input", invoke("go", ``), "0.02 /go"},
		{"variables of a reading", with(withData(read("room"), `{"room":"a/b c","day":3}`), ""), "0.01 /rooms/a/b c ?day=3"},
		{"a variable that may be left out", withData(read("room"), `{"room":"x"}`), "0.01 /rooms/x"},
		{"variables and a value", write("room", `{"room":"x","value":21}`), "0.03 /rooms/x 12=50 21"},
		{"variables and an input", invoke("fly", `{"id":7,"to":"moon"}`), `0.03 /fly/7 12=50 {"to":"moon"}`},
		{"read all", &interact.Message{Type: interact.ReadAllProperties}, "0.01 /all"},
		{"read several", withData(&interact.Message{Type: interact.ReadMultipleProperties}, `["p"]`), `0.05 /some 12=50 ["p"]`},
		{"write several", withData(&interact.Message{Type: interact.WriteMultipleProperties}, `{"p":"x"}`),
			`0.03 /all 12=50 {"p":"x"}`},
	}
	for transport, start := range agents {
		var mu sync.Mutex
		var last string
		base := start(t, func(w mux.ResponseWriter, r *mux.Message) {
			mu.Lock()
			defer mu.Unlock()
			last = received(r)
			says(w, codes.Content, message.AppJSON, `{}`)
		})
		thing := newClient(t, Options{}).Thing(describe(t, base, members))
		for _, tt := range tests {
			must(t, thing, tt.m)
			mu.Lock()
			// go-coap joins path segments as they are, and puts one slash between.
			if last != tt.want && strings.ReplaceAll(last, "//", "/") != strings.ReplaceAll(tt.want, "//", "/") {
				t.Errorf("%s: %s: the agent received %q, want %q", transport, tt.name, last, tt.want)
			}
			mu.Unlock()
		}
	}
}

func with(m *interact.Message, contentType string) *interact.Message {
	m.ContentType = contentType
	return m
}

func withData(m *interact.Message, data string) *interact.Message {
	m.Data = []byte(data)
	return m
}

func TestAnswersBecomeReplies(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name        string
		format      any // message.MediaType or nil
		code        codes.Code
		body        string
		m           *interact.Message
		media, data string
		t           interact.Type
	}{
		{"JSON", message.AppJSON, codes.Content, `21`, read("p"), "application/json", "21", interact.PropertyReading},
		{"CBOR", message.AppCBOR, codes.Content, "\x15", read("p"), "application/cbor", "\x15", interact.PropertyReading},
		{"JSON called text", message.TextPlain, codes.Content, `21`, read("p"), "application/json", "21", interact.PropertyReading},
		{"text", message.TextPlain, codes.Content, `warm`, read("p"), "text/plain", "warm", interact.PropertyReading},
		{"nothing said", nil, codes.Content, `{"a":1}`, read("p"), "application/json", `{"a":1}`, interact.PropertyReading},
		{"the format of the form's response", message.MediaType(65001), codes.Content, `x`, read("own"), "application/vnd.own", `x`,
			interact.PropertyReading},
		{"an unknown format", message.MediaType(65002), codes.Content, `x`, read("own"), "application/octet-stream", `x`,
			interact.PropertyReading},
		{"written", nil, codes.Changed, ``, write("p", "1"), "application/json", ``, interact.Acknowledgement},
		{"written, and said what", message.TextPlain, codes.Changed, `OK!`, write("p", "1"), "application/json", ``,
			interact.Acknowledgement},
		{"output", message.AppJSON, codes.Changed, `7`, invoke("go", ""), "application/json", `7`, interact.ActionStatus},
		{"output of POST", message.AppJSON, codes.Content, `7`, invoke("go", ""), "application/json", `7`, interact.ActionStatus},
		{"no output", nil, codes.Changed, ``, invoke("go", ""), "application/json", ``, interact.ActionStatus},
		{"created, with an output", message.AppJSON, codes.Created, `{"id":1}`, invoke("go", ""), "application/json", `{"id":1}`,
			interact.ActionStatus},
	}
	for transport, start := range agents {
		var now atomic.Int32
		base := start(t, func(w mux.ResponseWriter, _ *mux.Message) {
			tt := tests[now.Load()]
			if f, ok := tt.format.(message.MediaType); ok {
				says(w, tt.code, f, tt.body)
				return
			}
			_ = w.SetResponse(tt.code, 0, nil)
			w.Message().SetBody(strings.NewReader(tt.body))
		})
		thing := newClient(t, Options{}).Thing(describe(t, base, `"properties": {"p": {"forms": [{"href": "BASE/p"}]},
			"own": {"forms": [{"href": "BASE/own", "response": {"contentType": "application/vnd.own", "cov:contentFormat": 65001}}]}},
			"actions": {"go": {"forms": [{"href": "BASE/go"}]}}`))
		for i, tt := range tests {
			now.Store(int32(i))
			r := must(t, thing, tt.m)
			if r.Type != tt.t || r.Media() != tt.media || string(r.Data) != tt.data || r.Correlation != "1" || r.Name != tt.m.Name {
				t.Errorf("%s: %s: got %d %s %q, want %d %s %q", transport, tt.name, r.Type, r.Media(), r.Data, tt.t, tt.media, tt.data)
			}
			if r.Type == interact.ActionStatus && r.Status != interact.StatusCompleted || r.Type == interact.PropertyReading &&
				r.Time.IsZero() {
				t.Errorf("%s: %s: status %v, time %v", transport, tt.name, r.Status, r.Time)
			}
		}
	}
}

func TestRefusalsBecomeErrors(t *testing.T) {
	t.Parallel()
	for code, meaning := range meanings {
		base := udpAgent(t, func(w mux.ResponseWriter, _ *mux.Message) {
			_ = w.SetResponse(code, 0, nil)
			w.Message().SetBody(strings.NewReader("not\x1b[2J today"))
		})
		thing := newClient(t, Options{}).Thing(describe(t, base, `"properties": {"p": {"forms": [{"href": "BASE/p"}]}}`))
		_, err := ask(t, thing, read("p"))
		e := wantError(t, err, meaning.code)
		if !e.Remote || e.Started || e.Title != fmt.Sprintf("p of Thing: the agent answered %s: not [2J today", messaging.Dotted(code)) {
			t.Errorf("%s: remote %v, begun %v, %q", messaging.Dotted(code), e.Remote, e.Started, e.Title)
		}
	}
}

func TestTextsOfErrorResponses(t *testing.T) {
	t.Parallel()
	format := func(n uint32, body string) *messaging.Packet {
		p := &messaging.Packet{Code: codes.NotFound, Payload: []byte(body)}
		p.AddUint(message.ContentFormat, n)
		return p
	}
	tests := []struct {
		name  string
		p     *messaging.Packet
		code  interact.Code
		title string
	}{
		{"another lmosd", &messaging.Packet{Code: codes.NotFound, Payload: []byte("LMOS-1410 no such task")}, interact.NoTask,
			"x: the agent answered 4.04: LMOS-1410 no such task"},
		{"a code that does not fit the response", &messaging.Packet{Code: codes.NotFound, Payload: []byte("LMOS-1400 x")},
			interact.NoAffordance, "x: the agent answered 4.04: LMOS-1400 x"},
		{"a code that does not exist", &messaging.Packet{Code: codes.InternalServerError, Payload: []byte("LMOS-9999 x")}, interact.AgentFailed,
			"x: the agent answered 5.00: LMOS-9999 x"},
		{"no code", &messaging.Packet{Code: codes.NotFound, Payload: []byte("LMOS-x")}, interact.NoAffordance,
			"x: the agent answered 4.04: LMOS-x"},
		{"problem details", format(257, "\xa2\x20\x62no\x21\x64gone"), interact.NoAffordance, "x: the agent answered 4.04: no: gone"},
		{"problem details, broken", format(257, "\xa2\x20"), interact.NoAffordance, "x: the agent answered 4.04"},
		{"octets", format(42, "\x00\x01"), interact.NoAffordance, "x: the agent answered 4.04"},
		{"JSON", format(50, `{"e":1}`), interact.NoAffordance, `x: the agent answered 4.04: {"e":1}`},
		{"an unknown code", &messaging.Packet{Code: 4<<5 | 31}, interact.AgentFailed, "x: the agent answered 4.31"},
	}
	for _, tt := range tests {
		if e := refused("x", tt.p); e.Code != tt.code || e.Title != tt.title {
			t.Errorf("%s: got %s %q, want %s %q", tt.name, e.Code, e.Title, tt.code, tt.title)
		}
	}
	long := refused("x", &messaging.Packet{Code: codes.BadRequest, Payload: []byte(strings.Repeat("ü", 5000))})
	if len(long.Title) > maxText+50 {
		t.Errorf("a title of %d bytes", len(long.Title))
	}
}

func TestBlocksBothWays(t *testing.T) {
	t.Parallel()
	text := big(100 << 10)
	for transport, start := range agents {
		base := start(t, func(w mux.ResponseWriter, r *mux.Message) {
			says(w, codes.Content, message.AppJSON, bodyOf(r.Message))
		})
		for terms, text := range map[string]string{``: text,
			`, "cov:blockwise": {"cov:block1Size": 64, "cov:block2Size": 128}`: big(5000)} {
			thing := newClient(t, Options{}).Thing(describe(t, base,
				`"actions": {"echo": {"input": {}, "forms": [{"href": "BASE/echo"`+terms+`}]}}`))
			if r := must(t, thing, invoke("echo", text)); string(r.Data) != text {
				t.Errorf("%s %s: %d bytes came back of %d", transport, terms, len(r.Data), len(text))
			}
		}
	}
}

func TestBodiesAreLimited(t *testing.T) {
	t.Parallel()
	for transport, start := range agents {
		base := start(t, func(w mux.ResponseWriter, _ *mux.Message) { says(w, codes.Content, message.AppJSON, big(20<<10)) })
		thing := newClient(t, Options{MaxBody: 10 << 10}).Thing(describe(t, base, `"properties": {"p": {"forms": [{"href": "BASE/p"}]}},
			"actions": {"go": {"forms": [{"href": "BASE/go"}]}}`))
		_, err := ask(t, thing, read("p"))
		var e *interact.Error
		// Over a stream the message itself exceeds the announced limit of this side.
		if !errors.As(err, &e) || e.Code != interact.TooLarge && transport == "udp" {
			t.Errorf("%s: got %v", transport, err)
		}
		m := invoke("go", "")
		m.Chunks = func(yield func([]byte, error) bool) {
			for yield(make([]byte, 4<<10), nil) {
			}
		}
		_, err = ask(t, thing, m)
		wantError(t, err, interact.TooLarge)
	}
}

func TestChunksAreGathered(t *testing.T) {
	t.Parallel()
	base := udpAgent(t, func(w mux.ResponseWriter, r *mux.Message) { says(w, codes.Content, message.AppJSON, bodyOf(r.Message)) })
	thing := newClient(t, Options{}).Thing(describe(t, base, `"actions": {"go": {"input": {}, "forms": [{"href": "BASE/go"}]}}`))
	m := invoke("go", "[1,")
	m.Chunks = func(yield func([]byte, error) bool) { _ = yield([]byte("2,"), nil) && yield([]byte("3]"), nil) }
	if r := must(t, thing, m); string(r.Data) != "[1,2,3]" {
		t.Errorf("got %s", r.Data)
	}
	m.Chunks = func(yield func([]byte, error) bool) { yield(nil, io.ErrUnexpectedEOF) }
	_, err := ask(t, thing, m)
	wantError(t, err, interact.Invalid)
}

func TestFormsThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	const members = `"properties": {"p": {"type": "integer", "forms": [FORM], "uriVariables": {"v": {"type": "string"}}}},
		"actions": {"go": {"input": {}, "forms": [{"href": "coap://h/x", "contentType": "image/png"}]},
			"get": {"input": {}, "forms": [{"href": "coap://h/x", "cov:method": "GET"}]}},
		"securityDefinitions": {"nosec_sc": {"scheme": "nosec"}, "key": {"scheme": "psk"}, "basic": {"scheme": "basic"},
			"both": {"scheme": "combo", "allOf": ["key", "basic"]}, "any": {"scheme": "combo", "oneOf": ["basic", "key"]}},
		"security": ["nosec_sc"]`
	tests := []struct {
		name, form string
		m          *interact.Message
		code       interact.Code
	}{
		{"another scheme", `{"href": "http://h/x"}`, read("p"), interact.NotAllowed},
		{"a subprotocol", `{"href": "coap://h/x", "subprotocol": "x"}`, read("p"), interact.NotAllowed},
		{"a prefix of no characters", `{"href": "coap://h/{v:0}"}`, withData(read("p"), `{"v":"x"}`), interact.BadTD},
		{"a variable in the host", `{"href": "coap://{v}/x"}`, withData(read("p"), `{"v":"x"}`), interact.BadTD},
		{"a variable behind the host", `{"href": "coap://h{v}/x"}`, withData(read("p"), `{"v":"x"}`), interact.BadTD},
		{"a variable behind the port", `{"href": "coap://h:5{v}"}`, withData(read("p"), `{"v":"x"}`), interact.BadTD},
		{"a variable is missing", `{"href": "coap://h/{v}"}`, read("p"), interact.Invalid},
		{"a variable that is a dot segment", `{"href": "coap://h/{v}"}`, withData(read("p"), `{"v":".."}`), interact.Invalid},
		{"a variable of another type", `{"href": "coap://h/{v}"}`, withData(read("p"), `{"v":7}`), interact.Invalid},
		{"a variable that is an object", `{"href": "coap://h/{v}"}`, withData(read("p"), `{"v":{}}`), interact.Invalid},
		{"a value outside its schema", `{"href": "coap://h/{v}"}`, write("p", `{"v":"x","value":"y"}`), interact.Invalid},
		{"no value", `{"href": "coap://h/{v}"}`, write("p", `{"v":"x"}`), interact.Invalid},
		{"a user", `{"href": "coap://me@h/x"}`, read("p"), interact.BadTD},
		{"a fragment", `{"href": "coap://h/x#y"}`, read("p"), interact.BadTD},
		{"no host", `{"href": "coap:x"}`, read("p"), interact.BadTD},
		{"a segment too long", `{"href": "coap://h/` + strings.Repeat("x", 256) + `"}`, read("p"), interact.BadTD},
		{"no credentials", `{"href": "coaps://h/x", "security": "key"}`, read("p"), interact.Unauthenticated},
		{"a key in the clear", `{"href": "coap://h/x", "security": "key"}`, read("p"), interact.Unauthenticated},
		{"a scheme that CoAP has not", `{"href": "coap://h/x", "security": "basic"}`, read("p"), interact.Unauthenticated},
		{"all of two schemes", `{"href": "coaps://h/x", "security": "both"}`, read("p"), interact.Unauthenticated},
		{"one of two schemes", `{"href": "coaps://h/x", "security": "any"}`, read("p"), interact.Unauthenticated},
		{"an input of another type", `{"href": "coap://h/x"}`, invoke("go", `{}`), interact.UnsupportedType},
		{"an input and no body", `{"href": "coap://h/x"}`, invoke("get", `{"a":1}`), interact.NotAllowed},
		{"an operation that CoAP has not", `{"href": "coap://h/x"}`, &interact.Message{Type: interact.QueryAction, Name: "go"},
			interact.NotAllowed},
	}
	dialled := errors.New("dialled")
	client := newClient(t, Options{Dial: func(context.Context, string, string) (net.Conn, error) { return nil, dialled }})
	for _, tt := range tests {
		thing := client.Thing(describe(t, "", strings.ReplaceAll(members, "FORM", tt.form)))
		_, err := ask(t, thing, tt.m)
		if e := interact.AsError(err); e.Code != tt.code || e.Started || e.Remote || e.Hint == "" && e.Next == nil {
			t.Errorf("%s: got %s %v (hint %q), want %s", tt.name, e.Code, e, e.Hint, tt.code)
		}
	}
}

func TestBestFormIsChosen(t *testing.T) {
	t.Parallel()
	base := udpAgent(t, func(w mux.ResponseWriter, r *mux.Message) {
		path, _ := r.Path()
		if strings.HasPrefix(path, "/cbor") {
			says(w, codes.Content, message.AppCBOR, "\x07")
			return
		}
		says(w, codes.Content, message.AppJSON, "7")
	})
	thing := newClient(t, Options{}).Thing(describe(t, base, `"properties": {"p": {"forms": [
		{"href": "http://127.0.0.1/p"}, {"href": "coap://me@h/x"}, {"href": "BASE/json"},
		{"href": "BASE/cbor", "contentType": "application/cbor"}]}}`))
	m := read("p")
	for accept, want := range map[string]string{"": "7", "application/json": "7", "application/cbor": "\x07"} {
		if m.Accept = accept; string(must(t, thing, m).Data) != want {
			t.Errorf("accept %q: got %q", accept, must(t, thing, m).Data)
		}
	}
}

func TestPropertiesAreReadSeparatelyWithoutAThingForm(t *testing.T) {
	t.Parallel()
	var seen sync.Map
	base := udpAgent(t, func(w mux.ResponseWriter, r *mux.Message) {
		path, _ := r.Path()
		seen.Store(messaging.Dotted(r.Code())+path+bodyOf(r.Message), true)
		says(w, codes.Content, message.AppJSON, `"`+path+`"`)
	})
	thing := newClient(t, Options{}).Thing(describe(t, base,
		`"properties": {"a": {"forms": [{"href": "BASE/a"}]}, "b": {"forms": [{"href": "BASE/b"}]}},
		"forms": [{"href": "BASE/some", "op": "readmultipleproperties"}, {"href": "http://127.0.0.1/all", "op": "readallproperties"}]`))
	r := must(t, thing, &interact.Message{Type: interact.ReadAllProperties})
	if string(r.Data) != `{"a":"/a","b":"/b"}` {
		t.Errorf("all: %s", r.Data)
	}
	r = must(t, thing, withData(&interact.Message{Type: interact.ReadMultipleProperties}, `["b"]`))
	if string(r.Data) != `{"b":"/b"}` {
		t.Errorf("several: %s", r.Data)
	}
	must(t, thing, withData(&interact.Message{Type: interact.WriteMultipleProperties}, `{"a":1,"b":2}`))
	for _, want := range []string{"0.03/a1", "0.03/b2"} {
		if _, ok := seen.Load(want); !ok {
			t.Errorf("%s was not asked", want)
		}
	}
}

func TestEveryConnectionGoesThroughDial(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var dialled []string
	refuse := errors.New("not there")
	client := newClient(t, Options{Dial: func(_ context.Context, network, addr string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		dialled = append(dialled, network+" "+addr)
		return nil, refuse
	}})
	for _, base := range []string{"coap://Host", "coaps://host:1", "coap+tcp://[::1]", "coaps+tcp://10.0.0.1"} {
		_, err := ask(t, client.Thing(describe(t, base, `"properties": {"p": {"forms": [{"href": "BASE/p"}]}}`)), read("p"))
		if e := wantError(t, err, interact.Unreachable); e.Started || e.Remote || !strings.Contains(e.Title, "not there") {
			t.Errorf("%s: %v %+v", base, e, e)
		}
	}
	want := []string{"udp host:5683", "udp host:1", "tcp [::1]:5683", "tcp 10.0.0.1:5684"}
	if !slices.Equal(dialled, want) {
		t.Errorf("dialled %q, want %q", dialled, want)
	}
}

func TestConnectionsAreShared(t *testing.T) {
	t.Parallel()
	base := udpAgent(t, func(w mux.ResponseWriter, _ *mux.Message) { says(w, codes.Content, message.AppJSON, "1") })
	var dials atomic.Int32
	client := newClient(t, Options{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials.Add(1)
		return new(net.Dialer).DialContext(ctx, network, addr)
	}})
	thing := client.Thing(describe(t, base, `"properties": {"p": {"forms": [{"href": "BASE/p"}]}}`))
	var work sync.WaitGroup
	for range 50 {
		work.Go(func() { must(t, thing, read("p")) })
	}
	if work.Wait(); dials.Load() != 1 {
		t.Errorf("%d connections to one agent", dials.Load())
	}
}

func TestAClosedClientRefuses(t *testing.T) {
	t.Parallel()
	client := NewClient(Options{})
	client.Close()
	_, err := ask(t, client.Thing(describe(t, "coap://127.0.0.1:1", `"properties": {"p": {"forms": [{"href": "BASE/p"}]}}`)),
		read("p"))
	wantError(t, err, interact.ShuttingDown)
}

func TestCloseEndsRunningCalls(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 1)
	p := newPuppet(t, func(p *puppet, q *messaging.Packet, from net.Addr) {
		_, _ = p.WriteTo(messaging.Bare(message.Acknowledgement, q.Mid), from)
		asked <- struct{}{}
	})
	client := NewClient(Options{})
	thing := client.Thing(describe(t, p.base, `"properties": {"p": {"forms": [{"href": "BASE/p"}]}}`))
	done := make(chan error, 1)
	go func() {
		_, err := interact.Call(context.Background(), thing, read("p"))
		done <- err
	}()
	<-asked
	client.Close()
	if e := wantError(t, <-done, interact.Unreachable); !e.Started {
		t.Errorf("not begun: %v", e)
	}
}

func TestNoListener(t *testing.T) {
	t.Parallel()
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	base := "coap://" + l.LocalAddr().String()
	_ = l.Close()
	thing := newClient(t, Options{}).Thing(describe(t, base, `"actions": {"go": {"forms": [{"href": "BASE/go"}]}}`))
	for range 3 {
		begun := time.Now()
		_, err = ask(t, thing, invoke("go", ""))
		if e := wantError(t, err, interact.Unreachable); e.Started || time.Since(begun) > 5*time.Second {
			t.Errorf("after %v: begun %v, %v", time.Since(begun), e.Started, e)
		}
	}
}

func TestAgentsOfManyAreRefused(t *testing.T) {
	t.Parallel()
	client := newClient(t, Options{})
	for _, host := range []string{"224.0.1.187", "[ff02::fd%25lo]", "255.255.255.255"} {
		_, err := ask(t, client.Thing(describe(t, "coap://"+host, `"properties": {"p": {"forms": [{"href": "BASE/p"}]}}`)), read("p"))
		var e *interact.Error
		if !errors.As(err, &e) || e.Code != interact.NotAllowed && e.Code != interact.Unreachable || e.Started {
			t.Errorf("%s: %v", host, err)
		}
	}
}
