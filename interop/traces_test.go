package interop

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interop/testmesh"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/telemetry"
)

// A listener is an HTTP agent that records the headers of the last request.
type listener struct {
	mu   sync.Mutex
	last http.Header // owned by mu
}

func (l *listener) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = r.Header.Clone()
	w.Header().Set("Content-Type", interact.JSON)
	io.WriteString(w, "42")
}

// heard returns a header of the last request.
func (l *listener) heard(name string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last.Get(name)
}

// newListener publishes one at the host of m, as "ear" with the action "hear".
func newListener(t *testing.T, m *testmesh.Mesh) *listener {
	t.Helper()
	l := &listener{}
	server := httptest.NewServer(l)
	t.Cleanup(server.Close)
	m.Offer(t, simple("ear", "hear", server.URL+"/hear", ""), nil)
	m.Known(t, "ear")
	return l
}

// simple returns the TD of an agent with one action with one form; more are further members of the form.
func simple(title, action, href, more string) []byte {
	return fmt.Appendf(nil, `{"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": %q, "id": "urn:example:%s",
		"securityDefinitions": {"n": {"scheme": "nosec"}}, "security": "n",
		"actions": {%q: {"synchronous": true, "output": {}, "forms": [{"href": %q%s}]}}}`, title, title, action, href, more)
}

const (
	traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	spanID  = "00f067aa0ba902b7"
	parent  = "00-" + traceID + "-" + spanID + "-01"
	stated  = "rojo=" + spanID
)

// A trace context that a listener of a node receives is in the headers of the request to an HTTP agent of another node (W3C Trace Context).
// CoAP has no option for it: there a trace starts.
func TestTraceReachesTheAgent(t *testing.T) {
	t.Parallel()
	m := testmesh.Start(t)
	l := newListener(t, m)
	heard := func(door string) {
		t.Helper()
		got, more := l.heard("Traceparent"), l.heard("Tracestate")
		of, _, ok := strings.Cut(strings.TrimPrefix(got, "00-"), "-")
		switch {
		case door != "CoAP" && (of != traceID || more != stated), !ok || len(of) != len(traceID), door == "CoAP" && of == traceID:
			t.Errorf("%s: the agent receives the trace %q, state %q", door, got, more)
		}
	}
	for _, c := range consumerBindings {
		k := c.open(t, m, "ear")
		_, err := send(k, &interact.Message{Type: interact.InvokeAction, Name: "hear", TraceParent: parent, TraceState: stated})
		if k.hangUp(); errors.Is(err, errNot) {
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		heard(c.name)
	}
	// Browsers cannot set it in the upgrade of a socket; other clients can only set it there.
	c, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(m.API, "http")+"/ws", &websocket.DialOptions{
		Subprotocols: protocols[doc], HTTPHeader: http.Header{"Traceparent": {parent}, "Tracestate": {stated}}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	ask := []byte(`{"messageType":"invokeAction","thingID":"ear","messageID":"m","action":"hear"}`)
	if err := c.Write(t.Context(), websocket.MessageText, ask); err != nil {
		t.Fatal(err)
	}
	for done := false; !done; {
		_, raw, err := c.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		done = strings.Contains(string(raw), `"output":42`)
	}
	heard("ws, at the upgrade")
}

// A collector receives spans over OTLP/HTTP.
type collector struct {
	mu    sync.Mutex
	spans map[string]*otlp.Span // by stage; owned by mu
	nodes map[string]string     // the sender of each; owned by mu
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	var batch otlp.TracesData
	if err == nil {
		err = proto.Unmarshal(raw, &batch)
	}
	if err != nil || r.URL.Path != "/v1/traces" {
		http.Error(w, "no spans", http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, from := range batch.ResourceSpans {
		for _, scope := range from.ScopeSpans {
			for _, s := range scope.Spans {
				stage := text(s.Attributes, "lmos.stage")
				c.spans[stage], c.nodes[stage] = s, text(from.Resource.Attributes, "service.instance.id")
			}
		}
	}
}

// text returns an attribute.
func text(all []*common.KeyValue, key string) string {
	for _, a := range all {
		if a.Key == key {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

// Two nodes send their spans to one collector: each is the child of the one before, the first that of the consumer's own, and the agent is
// called as the child of the last.
func TestSpansOfBothNodesMakeOneTrace(t *testing.T) {
	t.Parallel()
	c := &collector{spans: map[string]*otlp.Span{}, nodes: map[string]string{}}
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	m := testmesh.Start(t, func(o *node.Options) { o.Telemetry = telemetry.Options{Endpoint: server.URL} })
	l := newListener(t, m)
	h := newHTTPTalk(m, "ear")
	defer h.client.CloseIdleConnections()
	if _, err := send(h.consumer(t, h.ask), &interact.Message{Type: interact.InvokeAction, Name: "hear", TraceParent: parent}); err != nil {
		t.Fatal(err)
	}
	consumer, host := string(m.Consumer.DID()), string(m.Host.DID())
	h.client.CloseIdleConnections()
	m.Stop() // sends the remaining spans
	c.mu.Lock()
	defer c.mu.Unlock()
	before := spanID
	for _, stage := range []struct{ name, node string }{{"mesh", consumer}, {"stream", host}, {"agent", host}} {
		s := c.spans[stage.name]
		if s == nil {
			t.Fatalf("no span %q came: %v", stage.name, slices.Collect(maps.Keys(c.spans)))
		}
		if fmt.Sprintf("%x", s.TraceId) != traceID || fmt.Sprintf("%x", s.ParentSpanId) != before || c.nodes[stage.name] != stage.node {
			t.Errorf("%s of %s: the child of %x in the trace %x, want of %s", stage.name, c.nodes[stage.name], s.ParentSpanId, s.TraceId,
				before)
		}
		before = fmt.Sprintf("%x", s.SpanId)
	}
	if got, want := l.heard("Traceparent"), "00-"+traceID+"-"+before+"-01"; got != want {
		t.Errorf("the agent receives %q, want %q", got, want)
	}
}

// Agents whose form leads back to the other node, over each protocol with both a client and a server in the node: after eight nodes the
// call fails, at all callers.
func TestLoop(t *testing.T) {
	t.Parallel()
	m := testmesh.Start(t)
	for scheme, c := range map[string]struct{ href, more string }{
		"http": {m.API + "/things/urn:example:loop-http/actions/again", ""},
		"ws":   {"ws" + strings.TrimPrefix(m.API, "http") + "/ws", `, "subprotocol": "lmosprotocol"`},
		"mqtt": {"mqtt://" + m.MQTT + "/urn:example:loop-mqtt/actions/again", ""},
		"coap": {"coap://" + m.CoAP + "/things/urn:example:loop-coap/actions/again", ""},
	} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			name := "loop-" + scheme
			m.Offer(t, simple(name, "again", c.href, c.more), nil)
			m.Known(t, name)
			began := time.Now()
			_, err := send(openGo(t, m, name), &interact.Message{Type: interact.InvokeAction, Name: "again"})
			if interact.AsError(err).Code != interact.Loop || time.Since(began) > refusalTimeout {
				t.Errorf("got %v after %v, want %v", err, time.Since(began), interact.Loop)
			}
			h := newHTTPTalk(m, name)
			defer h.client.CloseIdleConnections()
			if _, _, err := h.do(t.Context(), "POST", h.thing+"/actions/again", strings.NewReader("")); err == nil ||
				!strings.Contains(err.Error(), "508") || !coded(err, interact.Loop) {
				t.Errorf("over HTTP: %v", err)
			}
			for _, hops := range []string{"9", "-1", "many"} {
				if _, _, err := h.do(t.Context(), "POST", h.thing+"/actions/again", strings.NewReader(""), "Lmos-Hops", hops); err == nil ||
					!coded(err, interact.Loop) {
					t.Errorf("over HTTP after %s nodes: %v", hops, err)
				}
			}
		})
	}
}
