package rest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
)

const cborType = "application/cbor"

// both takes JSON and CBOR, each at its own address.
const both = `
	"properties": {"p": {"type": "object", "forms": [{"href": "BASE/json"}, {"href": "BASE/cbor",
		"contentType": "application/cbor"}]},
		"c": {"type": "object", "forms": [{"href": "BASE/cbor", "contentType": "application/cbor"}]}},
	"actions": {
		"both": {"input": {"type": "object"}, "output": {}, "forms": [{"href": "BASE/json"}, {"href": "BASE/cbor",
			"contentType": "application/cbor"}]},
		"cbor": {"input": {}, "output": {}, "forms": [{"href": "BASE/cbor", "contentType": "application/cbor"}]},
		"json": {"input": {}, "output": {}, "forms": [{"href": "BASE/json"}]},
		"room": {"input": {"type": "object", "properties": {"n": {"type": "integer"}}}, "output": {},
			"uriVariables": {"room": {"type": "string"}},
			"forms": [{"href": "BASE/cbor/{room}", "contentType": "application/cbor"}]},
		"draw": {"output": {}, "forms": [{"href": "BASE/json"}, {"href": "BASE/png", "response": {"contentType": "image/png"}}]},
		"empty": {"input": {"type": "object"}, "output": {}, "forms": [{"href": "BASE/cbor", "contentType": "application/cbor"}]}
	}`

// mirrors responds with the body that it received, or with an object without a body, by the path.
func mirrors(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	cbor := strings.HasPrefix(r.URL.Path, "/cbor")
	switch {
	case len(body) == 0 && cbor:
		body = []byte("\xa1\x61a\x01")
	case len(body) == 0:
		body = []byte(`{"a":1}`)
	}
	w.Header().Set("Content-Type", map[bool]string{true: cborType, false: interact.JSON}[cbor])
	if r.URL.Path == "/png" {
		w.Header().Set("Content-Type", "image/png")
	}
	_, _ = w.Write(body)
}

func TestTypesOfInputAndAnswer(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, mirrors)
	c, thing := newClient(t, Options{}), describe(t, agent.URL, both)
	const object = "\xa1\x61n\x01" // {"n": 1}
	typed := func(m *interact.Message, contentType, accept string) *interact.Message {
		m.ContentType, m.Accept = contentType, accept
		return m
	}
	tests := []struct {
		name        string
		m           *interact.Message
		path        string
		contentType string
		body        string
		media       string
	}{
		{"JSON goes as JSON", invoke("both", `{"n":1}`), "/json", interact.JSON, `{"n":1}`, interact.JSON},
		{"CBOR as CBOR", typed(invoke("both", object), cborType, ""), "/cbor", cborType, object, cborType},
		{"the answer that is wanted counts more", typed(invoke("both", `{"n":1}`), "", cborType), "/cbor", cborType, object, cborType},
		{"and the other way", typed(invoke("both", object), cborType, interact.JSON), "/json", interact.JSON, `{"n":1}`, interact.JSON},
		{"JSON becomes CBOR where that is all", invoke("cbor", `{"n":1}`), "/cbor", cborType, object, cborType},
		{"CBOR becomes JSON where that is all", typed(invoke("json", object), cborType, ""), "/json", interact.JSON, `{"n":1}`,
			interact.JSON},
		{"a picture is wanted", typed(invoke("draw", ""), "", "image/png"), "/png", "", "", "image/png"},
		{"anything is wanted", typed(invoke("draw", ""), "", "*/*"), "/json", "", "", interact.JSON},
		{"an unsupported type is wanted", typed(invoke("draw", ""), "", "video/mp4"), "/json", "", "", interact.JSON},
		{"a property in CBOR", typed(read("p"), "", cborType), "/cbor", "", "", cborType},
		{"a property in the first type", read("p"), "/json", "", "", interact.JSON},
		{"variables in CBOR", typed(invoke("room", "\xa2\x61n\x01\x64room\x61x"), cborType, ""), "/cbor/x", cborType, object, cborType},
		{"variables in JSON for CBOR", invoke("room", `{"room":"x","n":1}`), "/cbor/x", cborType, object, cborType},
		{"no input is an empty object", invoke("empty", ""), "/cbor", cborType, "\xa0", cborType},
	}
	for _, tt := range tests {
		got, err := ask(t, c, thing, tt.m)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		req := agent.last(t)
		if req.path != tt.path || req.body != tt.body || req.header.Get("Content-Type") != tt.contentType || got.Media() != tt.media {
			t.Errorf("%s: received %s with %q of type %q, got %s", tt.name, req.path, req.body, req.header.Get("Content-Type"), got.Media())
		}
	}
}

func TestInvalidCBORInput(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, mirrors)
	m := invoke("room", "\xff")
	m.ContentType = cborType
	_, err := interact.Call(t.Context(), newClient(t, Options{}).Thing(describe(t, agent.URL, both)), m)
	wantError(t, err, interact.Invalid)
	for data, pointer := range map[string]string{"\xa2\x61n\x61x\x64room\x61x": "/n", "\xa1\x64room\x80": "/room"} {
		m.Data = []byte(data)
		_, err = interact.Call(t.Context(), newClient(t, Options{}).Thing(describe(t, agent.URL, both)), m)
		if e := wantError(t, err, interact.Invalid); len(e.Issues) == 0 || e.Issues[0].Pointer != pointer {
			t.Errorf("got %s", everything(e))
		}
	}
	if len(agent.requests()) != 0 {
		t.Error("the agent received a request")
	}
}

func TestSecretInABodyOfCBOR(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, mirrors)
	thing := describe(t, agent.URL, `"securityDefinitions": {"sc": {"scheme": "apikey", "in": "body", "name": "k"}},
		"security": ["sc"],
		"actions": {"cbor": {"input": {"type": "object"}, "output": {}, "forms": [{"href": "BASE/cbor",
			"contentType": "application/cbor"}]}}`)
	c := withSecrets(t, Options{}, "urn:example:thing", "sc", fmt.Sprintf(`{"origin": %q, "key": "x"}`, agent.URL))
	for contentType, data := range map[string]string{"": `{"n":1}`, cborType: "\xa1\x61n\x01"} {
		m := invoke("cbor", data)
		m.ContentType = contentType
		if _, err := ask(t, c, thing, m); err != nil {
			t.Fatal(err)
		}
		if got := agent.last(t).body; got != "\xa2\x61k\x61x\x61n\x01" {
			t.Errorf("%q: sent %q", data, got)
		}
	}
}

// A client without the check before it does not send invalid messages, and does not panic.
func TestUnknownAffordancesWithoutTheCheckBefore(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`1`))
	thing := newClient(t, Options{}).Thing(describe(t, agent.URL, sensor))
	for ty := range interact.Type(64) {
		_, err := interact.Call(t.Context(), thing, &interact.Message{Type: ty, Name: "nothing", Data: []byte(`["nothing"]`)})
		switch ty {
		case interact.ReadAllProperties, interact.ObserveAllProperties, interact.SubscribeAllEvents: // these have no name
		default:
			if e := interact.AsError(err); e == nil || e.Code != interact.NoAffordance && e.Code != interact.NotAllowed &&
				e.Code != interact.Invalid {
				t.Errorf("type %d: got %v", ty, err)
			}
		}
	}
}

func TestDialIsTheOnlyWay(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") == eventsType {
			w.Header().Set("Content-Type", eventsType)
			_, _ = io.WriteString(w, "data: 1\n\n")
			return
		}
		responds(`5`)(w, r)
	})
	var dialled []string
	c := newClient(t, Options{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("a connection has no time limit")
		}
		dialled = append(dialled, network+" "+addr)
		var d net.Dialer
		return d.DialContext(ctx, network, strings.TrimPrefix(agent.URL, "http://"))
	}})
	thing := describe(t, "http://agent.example:99", sensor)
	if _, err := ask(t, c, thing, read("level")); err != nil {
		t.Fatal(err)
	}
	if _, err := follow(t, c, thing, observe("level"), 1); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(dialled, ","); got != "tcp agent.example:99,tcp agent.example:99" {
		t.Errorf("dialled %s", got)
	}
}

func TestRefusalOfDialIsTheError(t *testing.T) {
	t.Parallel()
	c := newClient(t, Options{Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, interact.Errorf(interact.Forbidden, "allow it: policy", "this address is not allowed")
	}})
	thing := describe(t, "http://10.0.0.1", sensor)
	for _, m := range []*interact.Message{read("level"), observe("level")} {
		_, err := ask(t, c, thing, m)
		if e := wantError(t, err, interact.Forbidden); e.Started || e.Error() != "this address is not allowed" {
			t.Errorf("got %+v", e)
		}
	}
}

// closedAddress is an address at which nothing listens. That of a server that was closed may be another test's by now.
const closedAddress = "http://127.0.0.1:1"

// Started reports whether the agent may have started: another path is tried only if it has not.
func TestErrorIsStarted(t *testing.T) {
	t.Parallel()
	hold := make(chan bool)
	defer close(hold)
	wait := func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hold:
		case <-r.Context().Done():
		}
	}
	silent := listenRaw(t, "")
	for name, tt := range map[string]struct {
		base  string
		o     Options
		code  interact.Code
		begun bool
	}{
		"nothing listens":           {closedAddress, Options{}, interact.Unreachable, false},
		"no answer":                 {newRecorder(t, wait).URL, Options{}, interact.Timeout, true},
		"closed without a response": {silent, Options{}, interact.Unreachable, true},
		"half an answer": {newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `"`)
			_ = http.NewResponseController(w).Flush()
			wait(w, r)
		}).URL, Options{}, interact.Timeout, true},
		"the connection comes up": {"http://a.example", Options{Dial: func(ctx context.Context, _, _ string) (net.Conn,
			error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}, interact.Timeout, false},
	} {
		m := invoke("quiet", "")
		m.Deadline = time.Now().Add(150 * time.Millisecond)
		_, err := interact.Call(t.Context(), newClient(t, tt.o).Thing(describe(t, tt.base, plainActions)), m)
		if e := wantError(t, err, tt.code); e.Started != tt.begun {
			t.Errorf("%s: Started is %t", name, e.Started)
		}
	}
}

func TestLostBackgroundActionHasStarted(t *testing.T) {
	t.Parallel()
	_, agent := newWorker(t, `{"status":"running"}`, "down", "down", "down")
	_, _, err := replies(t, quick(t, Options{}).Thing(describe(t, agent.URL, background)), invoke("fade", ""))
	if e := wantError(t, err, interact.Unreachable); !e.Started {
		t.Error("the action runs")
	}
}

func TestAnotherPathIsTriedOnlyBeforeTheStart(t *testing.T) {
	t.Parallel()
	broken := newRecorder(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	good := newRecorder(t, responds(`"done"`))
	c := newClient(t, Options{})
	for base, other := range map[string]bool{broken.URL: false, closedAddress: true} {
		d := describe(t, base, plainActions)
		p := interact.NewPaths(d, interact.Path{Name: "http", Thing: c.Thing(d)}, interact.Path{Name: "other",
			Thing: c.Thing(describe(t, good.URL, plainActions)), Rank: 1})
		_, err := interact.Call(t.Context(), p, invoke("quiet", ""))
		if (err == nil) != other {
			t.Errorf("got %v", err)
		}
	}
}

func TestThingIsIdleBeforeDo(t *testing.T) {
	t.Parallel()
	c := NewClient(Options{Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("not yet") }})
	thing := c.Thing(describe(t, "http://a.example", sensor))
	_ = thing.Do(t.Context(), observe("level"))
	c.Close()
}
