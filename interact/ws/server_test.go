package ws

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// TestConversations plays the frames of consumers of each dialect.
func TestConversations(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, offer, script string
	}{
		{"kotlin reads and writes", "", `
			> {"messageType":"readProperty","thingId":"chatagent","messageId":"m1","property":"level"}
			< {"messageType":"propertyReading","thingId":"chatagent","correlationId":"m1","property":"level","name":"level","data":42,"value":42,"thingID":null}
			> {"messageType":"writeProperty","thingId":"chatagent","messageId":"m2","property":"level","data":7}
			< {"messageType":"propertyReading","thingId":"chatagent","correlationId":"m2","property":"level","data":7}
			> {"messageType":"readAllProperties","thingId":"chatagent","messageId":"m3"}
			< {"messageType":"propertyReadings","thingId":"chatagent","correlationId":"m3","data":{"level":7,"on":true}}
			> {"messageType":"readMultipleProperties","thingId":"chatagent","messageId":"m4","properties":["level"]}
			< {"messageType":"propertyReadings","correlationId":"m4","data":{"level":7,"on":true}}
			> {"messageType":"writeMultipleProperties","thingId":"chatagent","messageId":"m5","data":{"level":8}}
			< {"messageType":"propertyReadings","correlationId":"m5","data":{"level":8}}`},
		{"doc reads and writes", "lmosprotocol", `
			> {"messageType":"readProperty","thingID":"urn:x","messageID":"m1","correlationID":"c1","name":"level"}
			< {"messageType":"propertyReading","thingID":"urn:x","correlationID":"c1","property":"level","name":"level","data":42,"value":42,"thingId":null}
			> {"messageType":"writeProperty","thingID":"urn:x","messageID":"m2","name":"level","data":7}
			< {"messageType":"propertyReadings","thingID":"urn:x","correlationID":"m2","data":{"level":7}}
			> {"messageType":"writeProperty","thingId":"lab","messageId":"m3","name":"level","value":9}
			< {"messageType":"propertyReadings","thingId":"lab","correlationId":"m3","data":{"level":9}}
			> {"messageType":"writeAllProperties","thingID":"urn:x","messageID":"m4","data":{"level":8}}
			< {"messageType":"propertyReadings","correlationID":"m4","data":{"level":8}}`},
		{"wtp reads and writes", "webthingprotocol", `
			> {"messageType":"request","operation":"readproperty","thingID":"urn:x","messageID":"m1","correlationID":"c1","name":"level"}
			< {"messageType":"response","operation":"readproperty","thingID":"urn:x","correlationID":"c1","name":"level","value":42,"data":null}
			> {"messageType":"request","operation":"writeproperty","thingID":"urn:x","messageID":"m2","name":"level","value":7}
			< {"messageType":"response","operation":"writeproperty","correlationID":"m2","name":"level","value":null}
			> {"messageType":"response","operation":"readproperty","thingID":"urn:x","messageID":"m3","name":"level"}
			< {"messageType":"response","operation":"readproperty","correlationID":"m3","value":7}
			> {"messageType":"request","operation":"readmultipleproperties","thingID":"urn:x","messageID":"m4","names":["level"]}
			< {"messageType":"response","operation":"readmultipleproperties","values":{"level":7,"on":true}}
			> {"messageType":"request","operation":"writemultipleproperties","thingID":"urn:x","messageID":"m5","values":{"level":8}}
			< {"messageType":"response","operation":"writemultipleproperties","values":{"level":8}}`},
		{"kotlin gets the final state only", "", `
			> {"messageType":"invokeAction","thingId":"chatagent","messageId":"m1","action":"work","input":{}}
			< {"messageType":"actionStatus","thingId":"chatagent","correlationId":"m1","action":"work","status":"completed","output":"done"}
			> {"messageType":"invokeAction","thingId":"chatagent","messageId":"m2","action":"speak"}
			< {"messageType":"actionStatus","correlationId":"m2","status":"completed","output":"sunny","contentType":"text/plain"}
			> {"messageType":"invokeAction","thingId":"chatagent","messageId":"m3","action":"fail"}
			< {"messageType":"error","correlationId":"m3","status":"500","detail":"the model is out of memory","code":"LMOS-1502"}
			> {"messageType":"invokeAction","thingId":"chatagent","messageId":"m4","action":"panic"}
			< {"messageType":"error","correlationId":"m4","status":"500","title":"Internal Server Error"}`},
		{"doc gets every state", "lmosprotocol", `
			> {"messageType":"invokeAction","thingID":"urn:x","messageID":"m1","correlationID":"c1","action":"work"}
			< {"messageType":"actionStatus","correlationID":"c1","action":"work","status":"pending","actionID":"a-work"}
			< {"messageType":"actionStatus","correlationID":"c1","status":"pending","state":"running","actionID":"a-work"}
			< {"messageType":"actionStatus","correlationID":"c1","status":"completed","actionID":"a-work","output":"done"}
			> {"messageType":"invokeAction","thingID":"urn:x","messageID":"m2","action":"speak"}
			< {"messageType":"actionStatus","correlationID":"m2","state":"running","output":"sun","contentType":"text/plain"}
			< {"messageType":"actionStatus","correlationID":"m2","state":"running","output":"ny"}
			< {"messageType":"actionStatus","correlationID":"m2","status":"completed","output":null}
			> {"messageType":"invokeAction","thingID":"urn:x","messageID":"m3","action":"break"}
			< {"messageType":"actionStatus","correlationID":"m3","status":"pending","actionID":"a-break"}
			< {"messageType":"actionStatus","correlationID":"m3","status":"failed","actionID":"a-break","error":{"detail":"it broke","status":500,"code":"LMOS-1502"}}
			> {"messageType":"invokeAction","thingID":"urn:x","messageID":"m4","action":"fail"}
			< {"messageType":"error","correlationID":"m4","status":"500"}`},
		{"a subprotocol of LMOS alone means doc", "v1.lmos", `
			> {"messageType":"invokeAction","thingId":"urn:x","messageId":"m1","action":"work"}
			< {"messageType":"actionStatus","correlationId":"m1","status":"pending","actionID":"a-work"}
			< {"messageType":"actionStatus","state":"running"}
			< {"messageType":"actionStatus","status":"completed"}`},
		{"a Kotlin frame gets a Kotlin response", "lmosprotocol", `
			> {"messageType":"readProperty","thingId":"urn:x","messageId":"m1","property":"level"}
			< {"messageType":"propertyReading","correlationId":"m1"}
			> {"messageType":"invokeAction","thingId":"urn:x","messageId":"m2","action":"work"}
			< {"messageType":"actionStatus","correlationId":"m2","status":"completed"}`},
		{"wtp gets one answer", "webthingprotocol", `
			> {"messageType":"request","operation":"invokeaction","thingID":"urn:x","messageID":"m1","name":"chat","input":{"q":1}}
			< {"messageType":"response","operation":"invokeaction","name":"chat","output":{"q":1},"status":null}
			> {"messageType":"request","operation":"invokeaction","thingID":"urn:x","messageID":"m2","name":"speak"}
			< {"messageType":"response","operation":"invokeaction","output":"sunny","contentType":"text/plain"}
			> {"messageType":"request","operation":"invokeaction","thingID":"urn:x","messageID":"m3","name":"fail"}
			< {"messageType":"response","operation":"invokeaction","error":{"status":500,"type":"https://w3c.github.io/web-thing-protocol/errors#500"}}
			> {"messageType":"request","operation":"queryallactions","thingID":"urn:x","messageID":"m4"}
			< {"messageType":"response","operation":"queryallactions","statuses":{"work":[{"actionID":"a1","state":"running"}]}}`},
		{"invalid JSON data", "", `
			> {"messageType":"readProperty","thingId":"urn:x","messageId":"m1","property":"serial"}
			< {"messageType":"propertyReading","data":"abc","contentType":null}
			> {"messageType":"invokeAction","thingId":"urn:x","messageId":"m2","action":"chat","input":"iVBORw==","base64":true,"contentType":"image/png"}
			< {"messageType":"actionStatus","output":"iVBORw==","base64":true,"contentType":"image/png"}`},
		{"errors of lmos", "", `
			> {"messageType":"readProperty","thingId":"urn:unknown","messageId":"m1","property":"level"}
			< {"messageType":"error","thingId":"urn:unknown","correlationId":"m1","type":"https://eclipse.dev/lmos/protocol/v1/errors#not-found","title":"Thing Not Found","status":"404","code":"LMOS-1404","hint":"list the agents","next":[{"kind":"find"}]}
			> {"messageType":"readProperty","thingId":"urn:x","messageId":"m2","property":"nothing"}
			< {"messageType":"error","correlationId":"m2","title":"Property Not Found","status":"404","detail":"no property \"nothing\""}
			> {"messageType":"writeProperty","thingId":"urn:x","messageId":"m3","property":"serial","data":1}
			< {"messageType":"error","correlationId":"m3","type":"https://eclipse.dev/lmos/protocol/v1/errors#operation-not-allowed","title":"Property Read-Only","status":"405"}
			> {"messageType":"readProperty","thingId":"urn:x","messageId":"m4","property":"secret"}
			< {"messageType":"error","correlationId":"m4","title":"Property is write-only","status":"405"}
			> {"messageType":"dance","thingId":"urn:x","messageId":"m5"}
			< {"messageType":"error","correlationId":"m5","type":"https://eclipse.dev/lmos/protocol/v1/errors#unsupported-message-type","title":"Unsupported Message Type","status":"400"}
			> {"messageType":"registerThing","messageId":"m6","data":{"title":"weather"}}
			< {"messageType":"error","correlationId":"m6","type":"https://eclipse.dev/lmos/protocol/v1/errors#forbidden","status":"403"}
			> {"messageType":"readProperty","thingId":"urn:x","messageId":"m7","property":"level","hops":9}
			< {"messageType":"error","correlationId":"m7","type":"https://eclipse.dev/lmos/protocol/v1/errors#loop-detected","status":"508"}
			> {"messageType":"error","thingId":"urn:x","messageId":"m8","title":"?","status":"500"}
			> not JSON
			< {"messageType":"error","thingId":"","correlationId":null,"type":"https://eclipse.dev/lmos/protocol/v1/errors#bad-request","status":"400"}
			> {"messageType":"readProperty","thingId":"urn:x","messageId":"m9","property":"level","property":"on"}
			< {"messageType":"error","thingId":"urn:x","correlationId":"m9","status":"400","detail":"invalid frame: it has a member twice, with different values"}
			> {"messageType":"readProperty","messageId":"m10","property":"level"}
			< {"messageType":"error","thingId":"","correlationId":"m10","status":"400","code":"LMOS-1400","detail":"the request has no thingID"}
			> {"messageType":"readProperty","thingId":"urn:x","messageId":"m11"}
			< {"messageType":"error","correlationId":"m11","status":"400","detail":"the request has no property"}
			> {"messageType":"subscribeEvent","thingId":"urn:x","messageId":"m12","event":""}
			< {"messageType":"error","correlationId":"m12","status":"400","detail":"the request has no event"}
			> {"messageType":"unregisterThing","messageId":"m13"}
			< {"messageType":"error","correlationId":"m13","status":"400"}`},
		{"errors of doc", "lmosprotocol", `
			> {"messageType":"readProperty","thingID":"urn:x","messageID":"m1","name":"level"}
			< {"messageType":"propertyReading"}
			> not JSON
			< {"messageType":"error","thingID":"","thingId":null,"status":"400"}
			> {"messageType":"invokeAction","messageID":"m2","action":"chat"}
			< {"messageType":"error","thingID":"","correlationID":"m2","status":"400","detail":"the request has no thingID"}
			> {"messageType":"invokeAction","thingID":"urn:x","messageID":"m3","action":null}
			< {"messageType":"error","correlationID":"m3","status":"400","detail":"the request has no action"}
			> {"messageType":"queryAction","thingID":"urn:x","messageID":"m4","correlationID":"m3"}
			< {"messageType":"error","correlationID":"m3","code":"LMOS-1410"}`},
		{"errors of wtp", "webthingprotocol", `
			> {"messageType":"request","operation":"readproperty","thingID":"urn:x","messageID":"m1","correlationID":"c1","name":"nothing"}
			< {"messageType":"response","operation":"readproperty","correlationID":"c1","name":"nothing","error":{"status":404,"type":"https://w3c.github.io/web-thing-protocol/errors#404","title":"Property Not Found"}}
			> {"messageType":"request","operation":"dance","thingID":"urn:x","messageID":"m2"}
			< {"messageType":"response","correlationID":"m2","error":{"status":400}}
			> {"messageType":"request","operation":"cancelaction","thingID":"urn:x","messageID":"m3","actionID":"gone"}
			< {"messageType":"response","operation":"cancelaction","error":{"status":404,"code":"LMOS-1410"}}
			> {"messageType":"request","operation":"readproperty","messageID":"m4","name":"level"}
			< {"messageType":"response","operation":"readproperty","correlationID":"m4","error":{"status":400,"detail":"the request has no thingID"}}
			> {"messageType":"request","operation":"invokeaction","thingID":"urn:x","messageID":"m5"}
			< {"messageType":"response","operation":"invokeaction","correlationID":"m5","error":{"status":400,"detail":"the request has no name"}}
			> {"messageType":"request","operation":"readproperty","thingID":"urn:x","messageID":"m6","name":"level","name":"on"}
			< {"messageType":"response","operation":"readproperty","thingID":"urn:x","correlationID":"m6","error":{"status":400}}
			> {"messageType":"request","operation":"readproperty","operation":"invokeaction","thingID":"urn:x","messageID":"m7"}
			< {"messageType":"response","correlationID":"m7","error":{"status":400}}
			> {"messageType":"request"
			< {"messageType":"response","thingID":"","error":{"status":400}}`},
		{"errors of wtp without its subprotocol", "", `
			> {"messageType":"request","operation":"readproperty","thingID":"urn:x","messageID":"m1","name":"level"}
			< {"messageType":"response","value":42}
			> [
			< {"messageType":"response","thingID":"","error":{"status":400}}`},
		{"dialects may be mixed", "", `
			> {"messageType":"request","operation":"readproperty","thingID":"urn:x","messageID":"m1","name":"level"}
			< {"messageType":"response","value":42}
			> {"messageType":"READPROPERTY","thingId":"urn:x","messageId":"m2","property":"level"}
			< {"messageType":"propertyReading","thingId":"urn:x","data":42}
			> {"messageType":"invokeAction","thingId":"urn:x","messageId":"m3","action":"chat","input":5}
			< {"messageType":"actionStatus","status":"completed","output":5}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, url := serve(t, newLab(), ServerOptions{})
			var offer []string
			if c.offer != "" {
				offer = []string{c.offer}
			}
			w := dial(t, url, offer...)
			if got := w.ws.Subprotocol(); got != c.offer {
				t.Errorf("the server agreed to %q, want %q", got, c.offer)
			}
			w.talk(c.script)
		})
	}
}

// TestMessageHasTheMembersOfTheFrame checks the messages to the mesh.
func TestMessageHasTheMembersOfTheFrame(t *testing.T) {
	t.Parallel()
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	const other = "00-11111111111111111111111111111111-2222222222222222-00"
	l := newLab()
	_, url := serve(t, l, ServerOptions{})
	ws, _, err := websocket.Dial(t.Context(), url, &websocket.DialOptions{HTTPHeader: http.Header{"Traceparent": {other},
		"Authorization": {"null"}}})
	if err != nil {
		t.Fatal(err)
	}
	w := newWire(t, ws)
	w.talk(`
		> {"messageType":"invokeAction","thingId":"lab","messageId":"m1","action":"chat","input":1,"idempotencyKey":"k1","hops":3,"caller":{"id":"local","via":"process"},"traceparent":"` + parent + `","tracestate":"a=b"}
		< {"messageType":"actionStatus","thingId":"lab","correlationId":"m1"}`)
	m := l.saw(t, interact.InvokeAction)
	if m.Thing != "urn:x@"+owner || m.ID != "m1" || m.Key != "k1" || m.Hops != 3 || m.TraceParent != parent || m.TraceState != "a=b" ||
		m.Accept != interact.JSON || m.From.ID() != "" || m.Detach {
		t.Errorf("the mesh received %+v", m)
	}
	w.talk(`
		> {"messageType":"readProperty","thingId":"lab","correlationId":"c2","property":"level","traceparent":"nonsense"}
		< {"messageType":"propertyReading","correlationId":"c2"}`)
	if m := l.saw(t, interact.ReadProperty); m.TraceParent != other || m.ID != "c2" || m.Correlation != "c2" {
		t.Errorf("the mesh received %+v, want the trace of the upgrade", m)
	}
}

// The delegation of a request is in its message, and in no other one. An invalid one, and one that a node does not accept, is refused.
func TestDelegationOfARequest(t *testing.T) {
	t.Parallel()
	l := newLab()
	_, url := serve(t, l, ServerOptions{Capability: func(_ *did.Principal, text string) (*interact.Capability, error) {
		if text != "Ctoken" {
			return nil, interact.Errorf(interact.DelegationInvalid, "copy it", "no delegation")
		}
		return &interact.Capability{Tokens: []byte(text)}, nil
	}})
	w := dial(t, url)
	w.talk(`
		> {"messageType":"invokeAction","thingId":"lab","messageId":"m1","action":"chat","input":1,"delegation":"Ctoken"}
		< {"messageType":"actionStatus","correlationId":"m1"}`)
	if m := l.saw(t, interact.InvokeAction); m.With == nil || string(m.With.Tokens) != "Ctoken" {
		t.Errorf("the mesh received %+v", m)
	}
	w.talk(`
		> {"messageType":"readProperty","thingId":"lab","messageId":"m2","property":"level"}
		< {"messageType":"propertyReading","correlationId":"m2"}`)
	if m := l.saw(t, interact.ReadProperty); m.With != nil {
		t.Errorf("the mesh received %+v", m)
	}
	w.talk(`
		> {"messageType":"subscribeEvent","thingId":"lab","messageId":"m3","event":"alarm","delegation":"Ctoken"}
		< {"messageType":"acknowledgement","correlationId":"m3"}`)
	if m := l.saw(t, interact.SubscribeEvent); m.With == nil {
		t.Errorf("the mesh received %+v", m)
	}
	_, url = serve(t, l, ServerOptions{})
	for to, c := range map[*wire]struct{ delegation, code string }{w: {"other", "LMOS-1425"}, dial(t, url): {"Ctoken", "LMOS-1406"}} {
		to.talk(`
			> {"messageType":"readProperty","thingId":"lab","messageId":"m4","property":"on","delegation":"` + c.delegation + `"}
			< {"correlationId":"m4","code":"` + c.code + `"}
			> {"messageType":"subscribeEvent","thingId":"lab","messageId":"m5","event":"other","delegation":"` + c.delegation + `"}
			< {"correlationId":"m5","code":"` + c.code + `"}`)
	}
}

// TestBinaryFramesAreIgnored as the Kotlin server does.
func TestBinaryFramesAreIgnored(t *testing.T) {
	t.Parallel()
	_, url := serve(t, newLab(), ServerOptions{})
	w := dial(t, url)
	if err := w.ws.Write(t.Context(), websocket.MessageBinary, []byte(`{"messageType":"dance"}`)); err != nil {
		t.Fatal(err)
	}
	w.quiet()
}

// TestBadFramesDoNotClose: each is answered with an error, and the connection lives on.
func TestBadFramesDoNotClose(t *testing.T) {
	t.Parallel()
	_, url := serve(t, newLab(), ServerOptions{})
	w := dial(t, url)
	long := strings.Repeat("x", 257)
	for _, frame := range []string{
		`{`, ``, `[]`, `7`, `{}`, `{"messageType":""}`, `{"messageType":"dance"}`, `{"messageType":"request"}`,
		`{"messageType":"readProperty","thingId":"urn:x","messageId":"` + long + `","property":"level"}`,
		`{"messageType":"queryAction","thingId":"urn:x","messageId":"m","actionID":"` + long + `"}`,
		`{"messageType":"readProperty","thingId":7,"messageId":"m"}`, `{"messageType":"registerThing","messageId":"m"}`,
	} {
		w.say(frame)
		m := w.hear()
		e, isWTP := m["error"].(map[string]any)
		if !isWTP && m["messageType"] == "error" && m["thingId"] != nil {
			e = m
		}
		if e["hint"] == nil || e["instance"] == nil || e["status"] == nil {
			t.Errorf("%s was answered %v", frame, m)
		}
	}
	w.say(`{"messageType":"actionStatus","status":7}`) // an invalid response without a request
	w.quiet()
}

// TestLargeFrames tests both directions: a frame over the limit closes the connection that sent it; an answer over it is an
// error.
func TestLargeFrames(t *testing.T) {
	t.Parallel()
	l := newLab()
	_, url := serve(t, l, ServerOptions{MaxMessage: 4 << 10})
	w := dial(t, url)
	big := strings.Repeat("x", 4<<10)
	l.mu.Lock()
	l.level = `"` + big + `"`
	l.mu.Unlock()
	w.talk(`
		> {"messageType":"readProperty","thingId":"urn:x","messageId":"m1","property":"level"}
		< {"messageType":"error","correlationId":"m1","code":"LMOS-1413","status":"400"}`)
	w.say(`{"messageType":"invokeAction","thingId":"urn:x","messageId":"m2","action":"chat","input":"` + big + `"}`)
	if _, err := w.read(); websocket.CloseStatus(err) != websocket.StatusMessageTooBig {
		t.Errorf("got %v, want the connection closed with 1009", err)
	}
	// Frames above the limit of waiting bytes are sent separately, with the small ones between them.
	_, url = serve(t, newLab(), ServerOptions{})
	w = dial(t, url)
	for i, size := range []int{maxWait + 1, maxWait * 3, 1, maxWait} {
		w.say(fmt.Sprintf(`{"messageType":"invokeAction","thingId":"urn:x","messageId":"%d","action":"chat","input":"%s"}`, i, strings.Repeat("x", size)))
	}
	got := 0
	for range 4 {
		got += len(w.hear()["output"].(string))
	}
	if got != 5*maxWait+2 {
		t.Errorf("%d bytes came", got)
	}
}

// TestWritesKeepTheirOrder sends many writes without waiting.
func TestWritesKeepTheirOrder(t *testing.T) {
	t.Parallel()
	l := newLab()
	_, url := serve(t, l, ServerOptions{})
	w := dial(t, url)
	for range 100 {
		w.say(`{"messageType":"writeProperty","thingId":"urn:x","messageId":"m","property":"level","data":1}`)
	}
	w.say(`{"messageType":"writeProperty","thingId":"urn:x","messageId":"last","property":"level","data":2}`)
	for range 101 {
		w.hear()
	}
	w.talk(`
		> {"messageType":"readProperty","thingId":"urn:x","messageId":"m1","property":"level"}
		< {"messageType":"propertyReading","correlationId":"m1","data":2}`)
}

// TestRequestFlood floods a server with requests that take their time: some are served, the others refused, and the connection
// lives.
func TestRequestFlood(t *testing.T) {
	t.Parallel()
	const n = 10_000
	l := newLab()
	_, url := serve(t, l, ServerOptions{MaxPending: 64, Rate: n / 10})
	w := dial(t, url)
	go func() {
		for range n {
			if w.ws.Write(context.Background(), websocket.MessageText, []byte(
				`{"messageType":"invokeAction","thingId":"urn:x","messageId":"m","action":"hang"}`)) != nil {
				return
			}
		}
	}()
	count := map[string]int{}
	for range n - 64 {
		count[w.hear()["code"].(string)]++
	}
	if count["LMOS-1429"]+count["LMOS-1529"] != n-64 || count["LMOS-1529"] == 0 {
		t.Errorf("got %v", count)
	}
	l.unblock.Do(func() { close(l.release) })
	for range 64 {
		if m := w.hear(); m["status"] != "completed" {
			t.Errorf("got %v", m)
		}
	}
	w.quiet()
}

// TestConnectionEndsItsCalls closes a connection in the middle of everything.
func TestConnectionEndsItsCalls(t *testing.T) {
	t.Parallel()
	l := newLab()
	_, url := serve(t, l, ServerOptions{})
	w := dial(t, url)
	w.say(`{"messageType":"invokeAction","thingId":"urn:x","messageId":"m1","action":"hang"}`)
	w.say(`{"messageType":"subscribeevent","thingId":"urn:x","messageId":"m2","event":"alarm"}`)
	l.watched(t, 1)
	l.saw(t, interact.InvokeAction)
	_ = w.ws.CloseNow()
	l.watched(t, 0)
	l.until(t, "the action was left", func() bool { return l.state["left hang"] != 0 })
}

// TestCloseEndsAllConnections and refuses new ones.
func TestCloseEndsAllConnections(t *testing.T) {
	t.Parallel()
	l := newLab()
	s, url := serve(t, l, ServerOptions{})
	w := dial(t, url)
	w.say(`{"messageType":"subscribeevent","thingId":"urn:x","messageId":"m2","event":"alarm"}`)
	l.watched(t, 1)
	w.hear()
	done := make(chan struct{})
	go func() { s.Close(); close(done) }()
	if _, err := w.read(); websocket.CloseStatus(err) != websocket.StatusGoingAway {
		t.Errorf("got %v, want 1001", err)
	}
	<-done
	l.watched(t, 0)
	late := dial(t, url)
	if _, err := late.read(); websocket.CloseStatus(err) != websocket.StatusGoingAway {
		t.Errorf("got %v, want 1001", err)
	}
}

func TestNoUpgradeIsRefused(t *testing.T) {
	t.Parallel()
	_, url := serve(t, newLab(), ServerOptions{})
	resp, err := http.Get("http" + strings.TrimPrefix(url, "ws"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusUpgradeRequired {
		t.Errorf("got %d, want 426", resp.StatusCode)
	}
	http.DefaultClient.CloseIdleConnections()
}
