package interop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/eclipse/paho.golang/paho"
	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/messaging"
	"github.com/lmosd/lmosd/internal/liveheap"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/interop/testmesh"
)

// A villain is an HTTP agent that violates most of its description.
type villain struct {
	calls  atomic.Int64 // running endless calls
	alarms chan string  // the alarms that it sends
	over   chan struct{}
}

const villainTD = `{"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "Villain",
	"securityDefinitions": {"n": {"scheme": "nosec"}}, "security": "n",
	"properties": {
		"fine": {"type": "integer", "readOnly": true, "forms": [{"href": "URL/fine"}]},
		"odd":  {"type": "integer", "readOnly": true, "forms": [{"href": "URL/odd"}]}},
	"actions": {
		"add":     {"synchronous": true, "safe": true, "output": {"type": "integer"}, "forms": [{"href": "URL/fine"}],
			"input": {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}},
		"lie":     {"synchronous": true, "output": {"type": "integer"}, "forms": [{"href": "URL/odd"}]},
		"mute":    {"synchronous": true, "forms": [{"href": "URL/mute"}]},
		"half":    {"synchronous": true, "output": {}, "forms": [{"href": "URL/half"}]},
		"forever": {"synchronous": true, "forms": [{"href": "URL/forever", "contentType": "text/plain"}]},
		"soon":    {"synchronous": false, "output": {"type": "integer"}, "forms": [{"href": "URL/fine"}]}},
	"events": {"alarm": {"data": {"type": "string"},
		"forms": [{"href": "URL/alarm", "subprotocol": "sse", "op": ["subscribeevent", "unsubscribeevent"]}]}}}`

// newVillain starts one at the host of m, and waits until the consumer's node knows it.
func newVillain(t *testing.T, m *testmesh.Mesh) *villain {
	t.Helper()
	v := &villain{alarms: make(chan string), over: make(chan struct{})}
	mux := http.NewServeMux()
	says := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, text)
		}
	}
	mux.HandleFunc("/fine", says("42"))
	mux.HandleFunc("/odd", says(`"forty-two"`))
	mux.HandleFunc("/mute", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	mux.HandleFunc("/half", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		says(`"half`)(w, nil)
	})
	mux.HandleFunc("/forever", v.forever)
	mux.HandleFunc("/alarm", v.alarm)
	server := httptest.NewServer(mux)
	t.Cleanup(func() { close(v.over); server.Close() })
	m.Offer(t, []byte(strings.ReplaceAll(villainTD, "URL", server.URL)), nil)
	m.Known(t, "villain")
	return v
}

// forever writes until the client disconnects.
func (v *villain) forever(w http.ResponseWriter, r *http.Request) {
	v.calls.Add(1)
	defer v.calls.Add(-1)
	w.Header().Set("Content-Type", "text/plain")
	part := []byte(strings.Repeat("x", 32<<10))
	for r.Context().Err() == nil {
		if _, err := w.Write(part); err != nil {
			return
		}
		http.NewResponseController(w).Flush()
	}
}

// alarm sends the alarms of the channel.
func (v *villain) alarm(w http.ResponseWriter, r *http.Request) {
	v.calls.Add(1)
	defer v.calls.Add(-1)
	w.Header().Set("Content-Type", "text/event-stream")
	http.NewResponseController(w).Flush()
	for {
		select {
		case text := <-v.alarms:
			fmt.Fprintf(w, "event: alarm\ndata: %s\n\n", text)
			http.NewResponseController(w).Flush()
		case <-r.Context().Done():
			return
		case <-v.over:
			return
		}
	}
}

// left waits until no interaction of the agent runs.
func (v *villain) left(t *testing.T, who string) {
	t.Helper()
	eventually(t, who+" has left the agent", func() bool { return v.calls.Load() == 0 })
}

var eventually = poll.Until

// A measure has the resources that a flood must not leak.
type measure struct {
	goroutines int
	heap       int64
}

func take() measure {
	return measure{runtime.NumGoroutine(), liveheap.Bytes()}
}

// returns waits until the usage is as before, except caches of the runtime and the libraries.
func (before measure) returns(t *testing.T) {
	t.Helper()
	const more, bytes = 20, 6 << 20
	var now measure
	for end := time.Now().Add(stepTimeout); ; time.Sleep(20 * time.Millisecond) {
		if now = take(); now.goroutines <= before.goroutines+more && now.heap <= before.heap+bytes {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d goroutines more, %d KiB more in the heap", now.goroutines-before.goroutines,
				(int64(now.heap)-int64(before.heap))>>10)
		}
	}
}

// query is a request with JSON.
func query(t interact.Type, name, data string) *interact.Message {
	return &interact.Message{Type: t, Name: name, Data: []byte(data)}
}

// outcome sends a request, and returns the last state, or the error.
func outcome(thing interact.Thing, m *interact.Message) (last *interact.Message, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	for r, err := range thing.Do(ctx, m) {
		if err != nil {
			return nil, err
		}
		if last = r; m.Type.Long() && len(r.Data) > 0 { // CoAP confirms with an empty payload
			break
		}
	}
	return last, nil
}

// coded reports whether err has the code, as a number or, in Go, as an error.
func coded(err error, c interact.Code) bool {
	var e *interact.Error
	return err != nil && (strings.Contains(err.Error(), c.String()) || errors.As(err, &e) && e.Code == c)
}

// Invalid requests of each protocol to an agent at another node get errors, and the consumer is served afterwards.
func TestHostileRequests(t *testing.T) {
	m := testmesh.Start(t)
	v := newVillain(t, m)
	for _, c := range consumerBindings {
		t.Run(c.name, func(t *testing.T) {
			k, nobody := c.open(t, m, "villain"), c.open(t, m, "nobody")
			defer k.hangUp()
			defer nobody.hangUp()
			for _, r := range []struct {
				name  string
				thing interact.Thing
				m     *interact.Message
				code  interact.Code
			}{
				{"a thing that does not exist", nobody, query(interact.ReadProperty, "fine", ""), interact.NotFound},
				{"a property that does not exist", k, query(interact.ReadProperty, "none", ""), interact.NoAffordance},
				{"an action that does not exist", k, query(interact.InvokeAction, "none", "1"), interact.NoAffordance},
				{"a write that is not allowed", k, query(interact.WriteProperty, "fine", "1"), interact.NotAllowed},
				{"a subscription to what does not exist", k, query(interact.SubscribeEvent, "none", ""), interact.NoAffordance},
				{"a subscription to an unknown thing", nobody, query(interact.SubscribeEvent, "alarm", ""), interact.NotFound},
				{"an observation of what does not exist", k, query(interact.ObserveProperty, "none", ""), interact.NoAffordance},
				{"an observation of what cannot be", k, query(interact.ObserveProperty, "fine", ""), interact.NotAllowed},
				{"input of another type", k, query(interact.InvokeAction, "add", `{"a":"x"}`), interact.Invalid},
				{"input without a member", k, query(interact.InvokeAction, "add", `{}`), interact.Invalid},
				{"input with a member twice", k, query(interact.InvokeAction, "add", `{"a":1,"a":2}`), interact.Invalid},
				{"a value that breaks its schema", k, query(interact.ReadProperty, "odd", ""), interact.AgentFailed},
				{"output that breaks its schema", k, query(interact.InvokeAction, "lie", ""), interact.AgentFailed},
				{"an agent that hangs up", k, query(interact.InvokeAction, "mute", ""), interact.Unreachable},
				{"an agent that dies in the middle", k, query(interact.InvokeAction, "half", ""), interact.AgentFailed},
			} {
				_, err := outcome(r.thing, r.m)
				switch long := r.m.Type.Long(); {
				case errors.Is(err, errNot), coded(err, r.code):
				case c.name == "MQTT" && long && err != nil: // a reason code, without room for a text
				case c.name == "CoAP" && long && err != nil && strings.Contains(err.Error(), "NotFound"): // 4.04; go-coap drops the text
				case c.name == "CoAP" && r.code == interact.NotAllowed && long: // only the value (RFC 7641 §4.1)
				default:
					t.Errorf("%s: got %v, want %s", r.name, err, r.code)
				}
			}
			cancelEnded(t, k)
			served(t, k)
		})
	}
	v.left(t, "everybody")
}

// served checks that a consumer is still served.
func served(t *testing.T, k interact.Thing) {
	t.Helper()
	r, err := outcome(k, query(interact.ReadProperty, "fine", ""))
	if !errors.Is(err, errNot) && (err != nil || string(r.Data) != "42") {
		t.Errorf("after all that: %v, %v", r, err)
	}
}

// cancelEnded cancels an ended run.
func cancelEnded(t *testing.T, k interact.Thing) {
	t.Helper()
	begun, err := outcome(k, &interact.Message{Type: interact.InvokeAction, Name: "soon", Detach: true})
	if errors.Is(err, errNot) {
		return
	}
	if err != nil || begun.ActionID == "" {
		return // a protocol without run ids
	}
	eventually(t, "the run has ended", func() bool {
		r, err := outcome(k, &interact.Message{Type: interact.QueryAction, Name: "soon", ActionID: begun.ActionID})
		return errors.Is(err, errNot) || err == nil && r.Status.Final()
	})
	_, err = outcome(k, &interact.Message{Type: interact.CancelAction, Name: "soon", ActionID: begun.ActionID})
	if !errors.Is(err, errNot) && !coded(err, interact.NoTask) {
		t.Errorf("a cancel of what has ended: %v, want %s", err, interact.NoTask)
	}
}

// Invalid frames of each dialect get errors of the dialect, and the connection survives.
func TestHostileFrames(t *testing.T) {
	m := testmesh.Start(t)
	newVillain(t, m)
	long := strings.Repeat("x", 300)
	ids := map[string]string{doc: `"thingID":"villain","messageID":"m"`, kotlin: `"thingId":"villain","messageId":"m"`}
	ids[wtp] = ids[doc]
	for _, d := range []struct {
		dialect string
		alive   string      // a request with the response 42
		member  [2]string   // of an error
		frames  [][2]string // a frame, and the code of its error; "" without a response
	}{
		{doc, `{"messageType":"readProperty","thingID":"villain","messageID":"ok","name":"fine"}`,
			[2]string{`"messageType":"error"`, `"correlationID":"m"`}, [][2]string{
				{`{"messageType":"dance",IDS}`, "unsupported-message-type"},
				{`{IDS,"name":"fine"}`, "LMOS-1400"},
				{`{"messageType":"readProperty","messageID":"m","name":"fine"}`, "LMOS-140"},
				{`{"messageType":"readProperty",IDS}`, "LMOS-140"},
				{`{"messageType":"invokeAction",IDS}`, "LMOS-140"},
				{`{"messageType":"subscribeEvent",IDS}`, "LMOS-140"},
				{`{"messageType":"readProperty","thing_id":"villain","messageID":"m","name":"fine"}`, "LMOS-140"},
				{`{"messageType":"readProperty","thingID":7,"messageID":"m","name":"fine"}`, "LMOS-1400"},
				{`{"messageType":"readProperty","thingID":"villain","messageID":"` + long + `","name":"fine"}`, "LMOS-1400"},
				{`{"messageType":"cancelAction",IDS,"action":"soon","actionID":"none"}`, "LMOS-1410"},
			}},
		{kotlin, `{"messageType":"readProperty","thingId":"villain","messageId":"ok","property":"fine"}`,
			[2]string{`"messageType":"error"`, `"correlationId":"m"`}, [][2]string{
				{`{"messageType":"dance",IDS}`, "unsupported-message-type"},
				{`{"messageType":"readProperty","messageId":"m","property":"fine"}`, "LMOS-140"},
				{`{"messageType":"readProperty",IDS}`, "LMOS-140"},
				{`{"messageType":"readProperty","thingid":"villain","messageId":"m","property":"fine"}`, "LMOS-140"},
				{`{"messageType":"readProperty","thingId":["villain"],"messageId":"m","property":"fine"}`, "LMOS-1400"},
				{`{"messageType":"subscribeevent",IDS,"event":"none"}`, "LMOS-1405"},
				{`{"messageType":"invokeAction",IDS,"action":"lie"}`, "LMOS-1502"},
			}},
		{wtp, `{"messageType":"request","operation":"readproperty","thingID":"villain","messageID":"ok","name":"fine"}`,
			[2]string{`"error":{`, `"correlationID":"m"`}, [][2]string{
				{`{"messageType":"request","operation":"dance",IDS}`, "LMOS-1406"},
				{`{"messageType":"request",IDS}`, "LMOS-1400"},
				{`{"messageType":"request","operation":"readproperty","messageID":"m","name":"fine"}`, "LMOS-140"},
				{`{"messageType":"request","operation":"readproperty",IDS}`, "LMOS-140"},
				{`{"messageType":"request","operation":"readproperty","ThingID":"villain","messageID":"m","name":"fine"}`, "LMOS-140"},
				{`{"messageType":"request","operation":"cancelaction",IDS,"name":"soon","actionID":"none"}`, "LMOS-1410"},
				{`{"messageType":"request","operation":"subscribeevent",IDS,"name":"none"}`, "LMOS-1405"},
			}},
	} {
		t.Run(d.dialect, func(t *testing.T) {
			c := dialSocket(t, m, d.dialect)
			ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
			defer cancel()
			say := func(kind websocket.MessageType, frame string) {
				t.Helper()
				if err := c.Write(ctx, kind, []byte(frame)); err != nil {
					t.Fatalf("%.100s: %v", frame, err)
				}
			}
			hear := func() string {
				t.Helper()
				_, raw, err := c.Read(ctx)
				if err != nil {
					t.Fatalf("no frame came: %v", err)
				}
				return string(raw)
			}
			for _, f := range d.frames {
				say(websocket.MessageText, strings.ReplaceAll(f[0], "IDS", ids[d.dialect]))
				got := hear()
				named := strings.Contains(got, d.member[1]) || strings.Contains(f[0], long)
				if !named || !strings.Contains(got, d.member[0]) || !strings.Contains(got, f[1]) {
					t.Errorf("%.150s\nis answered %s\nwant %s and %s, %s", f[0], got, d.member[0], d.member[1], f[1])
				}
			}
			twice := strings.Replace(d.alive, `"fine"`, `"fine","thingId":"nobody"`, 1)
			for _, text := range []string{"", "{", "[]", "null", twice} { // which are invalid
				say(websocket.MessageText, text)
				if got := hear(); !strings.Contains(got, "LMOS-1400") || !strings.Contains(got, d.member[0]) {
					t.Errorf("%q is answered %s", text, got)
				}
			}
			say(websocket.MessageBinary, d.alive) // of no dialect: it is ignored
			say(websocket.MessageBinary, "")
			say(websocket.MessageText, d.alive)
			if got := hear(); !strings.Contains(got, `:42`) || !strings.Contains(got, `"ok"`) {
				t.Errorf("after all that the answer is %s", got)
			}
			say(websocket.MessageText, strings.Replace(d.alive, `"fine"`, `"`+strings.Repeat("x", 5<<20)+`"`, 1))
			if _, _, err := c.Read(ctx); websocket.CloseStatus(err) != websocket.StatusMessageTooBig {
				t.Errorf("a frame of 5 MiB: %v, want 1009", err)
			}
		})
	}
}

func dialSocket(t *testing.T, m *testmesh.Mesh, dialect string) *websocket.Conn {
	t.Helper()
	c, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(m.API, "http")+"/ws",
		&websocket.DialOptions{Subprotocols: protocols[dialect]})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.CloseNow() })
	c.SetReadLimit(8 << 20)
	return c
}

// Invalid HTTP requests get errors, and the connection survives if HTTP permits.
func TestHostileBodies(t *testing.T) {
	m := testmesh.Start(t)
	newVillain(t, m)
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	defer client.CloseIdleConnections()
	add := "/things/villain/actions/add"
	for _, r := range []struct {
		name, method, path, media, body, accept string
		status                                  int
		code                                    interact.Code
	}{
		{"no JSON", "POST", add, interact.JSON, "{", "", 400, interact.Invalid},
		{"a member twice", "POST", add, interact.JSON, `{"a":1,"a":1}`, "", 400, interact.Invalid},
		{"no UTF-8", "POST", add, interact.JSON, "{\"a\":\"\xff\"}", "", 400, interact.Invalid},
		{"no CBOR", "POST", add, interact.CBOR, "\xa1", "", 400, interact.Invalid},
		{"another media type", "POST", add, "image/png", "x", "", 415, interact.UnsupportedType},
		{"no media type", "POST", add, "", `{"a":1}`, "", 415, interact.UnsupportedType},
		{"5 MiB", "POST", add, interact.JSON, `{"a":"` + strings.Repeat("x", 5<<20) + `"}`, "", 413, interact.TooLarge},
		{"another method", "PATCH", add, interact.JSON, "1", "", 405, interact.NotAllowed},
		{"a path below", "GET", "/things/villain/dances/1", "", "", "", 404, interact.NotFound},
		{"events that do not exist", "GET", "/things/villain/events/none", "", "", "text/event-stream", 404, interact.NoAffordance},
		{"events of an unknown thing", "GET", "/things/nobody/events/none", "", "", "text/event-stream", 404, interact.NotFound},
		{"a long poll of what does not exist", "GET", "/things/villain/events/none", "", "", "", 404, interact.NoAffordance},
		{"a webhook without address", "POST", "/things/villain/events/alarm", interact.JSON, "{}", "", 400, interact.Invalid},
		{"a cancel of nothing", "DELETE", "/things/villain/actions/soon/none", "", "", "", 404, interact.NoTask},
	} {
		req, err := http.NewRequestWithContext(t.Context(), r.method, m.API+r.path, strings.NewReader(r.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", r.accept)
		if r.media != "" {
			req.Header.Set("Content-Type", r.media)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Errorf("%s: %v", r.name, err)
			continue
		}
		raw, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != r.status || !strings.Contains(string(raw), r.code.String()) ||
			resp.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: got %s %s, %v, want %d %s", r.name, resp.Status, raw, err, r.status, r.code)
		}
	}
}

// Consumers invoke an action 10,000 times without waiting: each call gets the output, or Overloaded or RateLimited, the connection
// survives, and no resource leaks.
func TestTenThousandAtOnce(t *testing.T) {
	m := testmesh.Start(t)
	newVillain(t, m)
	const n = 10_000
	message := func() *interact.Message {
		return &interact.Message{Type: interact.InvokeAction, Name: "add", Data: []byte(`{"a":1}`), ContentType: interact.JSON}
	}
	for _, c := range []struct {
		name  string
		flood func(t *testing.T, n int) (done, refused int)
	}{
		{"ws doc", func(t *testing.T, n int) (int, int) {
			return floodSocket(t, m, doc, n,
				`{"messageType":"invokeAction","thingID":"villain","messageID":"m","action":"add","input":{"a":1}}`, `"status":"completed"`)
		}},
		{"ws kotlin", func(t *testing.T, n int) (int, int) {
			return floodSocket(t, m, kotlin, n,
				`{"messageType":"invokeAction","thingId":"villain","messageId":"m","action":"add","input":{"a":1}}`, `"status":"completed"`)
		}},
		{"ws wtp", func(t *testing.T, n int) (int, int) {
			return floodSocket(t, m, wtp, n,
				`{"messageType":"request","operation":"invokeaction","thingID":"villain","messageID":"m","name":"add","input":{"a":1}}`,
				`"output":42`)
		}},
		{"HTTP", func(t *testing.T, n int) (int, int) {
			client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 256, MaxIdleConnsPerHost: 256}}
			defer client.CloseIdleConnections()
			h := &httpTalk{m.API, "/things/villain", client}
			return floodThing(t, interact.Func(func(ctx context.Context, q *interact.Message) iter.Seq2[*interact.Message, error] {
				return speaker{t, h.ask}.Do(ctx, q)
			}), n, message)
		}},
		{"between nodes", func(t *testing.T, n int) (int, int) {
			return floodThing(t, openGo(t, m, "villain"), n, message)
		}},
		{"MQTT", func(t *testing.T, n int) (int, int) { return floodMQTT(t, m, n/2, 1) }},
		{"MQTT, QoS 0", func(t *testing.T, n int) (int, int) { return floodMQTT(t, m, n, 0) }},
		{"CoAP", func(t *testing.T, n int) (int, int) { return floodCoAP(t, m, n/2) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := n
			began := time.Now()
			c.flood(t, n/10)                                   // fills pools and caches
			if slow := time.Since(began).Seconds(); slow > 1 { // a busy machine, with the race detector: limit it to about 10 s
				n = max(n/10, int(float64(n)/slow))
			}
			before := take()
			done, refused := c.flood(t, n)
			if done == 0 {
				t.Errorf("of %d none was carried out", n)
			}
			before.returns(t)
			t.Logf("of %d, %d were carried out, %d refused", n, done, refused)
		})
	}
}

// floodSocket sends n requests over one socket and counts the responses.
func floodSocket(t *testing.T, m *testmesh.Mesh, dialect string, n int, frame, good string) (done, refused int) {
	t.Helper()
	c := dialSocket(t, m, dialect)
	defer c.CloseNow()
	ctx, cancel := context.WithTimeout(t.Context(), 3*stepTimeout)
	defer cancel()
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() {
		for range n {
			if c.Write(ctx, websocket.MessageText, []byte(frame)) != nil {
				return
			}
		}
	})
	hear := func() {
		_, raw, err := c.Read(ctx)
		switch text := string(raw); {
		case err != nil:
			t.Fatalf("after %d answers and %d refusals: %v", done, refused, err)
		case strings.Contains(text, good):
			done++
		case strings.Contains(text, "LMOS-1529"), strings.Contains(text, "LMOS-1429"):
			refused++
		default:
			t.Fatalf("an answer is %s", text)
		}
	}
	for done+refused < n {
		hear()
	}
	before := done
	if err := c.Write(ctx, websocket.MessageText, []byte(frame)); err != nil {
		t.Fatal(err)
	}
	if hear(); done != before+1 {
		t.Error("afterwards the connection does not serve")
	}
	return done - 1, refused
}

// floodThing starts n interactions concurrently.
func floodThing(t *testing.T, thing interact.Thing, n int, message func() *interact.Message) (done, refused int) {
	t.Helper()
	var good, bad atomic.Int64
	var odd atomic.Value
	var work sync.WaitGroup
	for range n {
		work.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 3*stepTimeout)
			defer cancel()
			r, err := interact.Call(ctx, thing, message())
			switch {
			case err == nil && string(r.Data) == "42":
				good.Add(1)
			case coded(err, interact.Overloaded), coded(err, interact.RateLimited):
				bad.Add(1)
			default:
				odd.Store(fmt.Sprint(r, err))
			}
		})
	}
	work.Wait()
	if v := odd.Load(); v != nil {
		t.Errorf("of %d, %d were done, %d refused, and another got %v", n, good.Load(), bad.Load(), v)
	}
	if r, err := interact.Call(t.Context(), thing, message()); err != nil || string(r.Data) != "42" {
		t.Errorf("afterwards: %v, %v", r, err)
	}
	return int(good.Load()), int(bad.Load())
}

// floodMQTT publishes n requests with one response topic. With QoS 1 each gets a response, or its acknowledgement is a rejection (MQTT 5
// §3.4.2.1: quota exceeded); with QoS 0 some are lost.
func floodMQTT(t *testing.T, m *testmesh.Mesh, n int, qos byte) (done, refused int) {
	t.Helper()
	limit, cancel := context.WithTimeout(t.Context(), 3*stepTimeout)
	defer cancel()
	ctx, lost := context.WithCancelCause(limit)
	defer lost(nil)
	conn, err := net.Dial("tcp", m.MQTT)
	if err != nil {
		t.Fatal(err)
	}
	came := make(chan *paho.Publish, n+1)
	client := paho.NewClient(paho.ClientConfig{Conn: conn, PacketTimeout: 3 * stepTimeout, OnPublishReceived: []func(paho.PublishReceived) (bool, error){
		func(p paho.PublishReceived) (bool, error) { came <- p.Packet; return true, nil }},
		OnClientError:      func(err error) { lost(fmt.Errorf("the client ended: %w", err)) },
		OnServerDisconnect: func(d *paho.Disconnect) { lost(fmt.Errorf("the broker ended the connection: %#x", d.ReasonCode)) }})
	if _, err := client.Connect(ctx, &paho.Connect{ClientID: "flood", CleanStart: true, KeepAlive: 30}); err != nil {
		t.Fatal(err)
	}
	defer func() { client.Disconnect(&paho.Disconnect{}); <-client.Done() }()
	const topic, last = "villain/actions/add", "villain/actions/add/reply/last"
	for _, answers := range []string{topic + "/reply/all", last} {
		filter := []paho.SubscribeOptions{{Topic: answers, QoS: qos}}
		if _, err := client.Subscribe(ctx, &paho.Subscribe{Subscriptions: filter}); err != nil {
			t.Fatal(err)
		}
	}
	var turnedDown atomic.Int64
	ask := func(qos byte, answerTo string) {
		_, err := client.Publish(ctx, &paho.Publish{Topic: topic, QoS: qos, Payload: []byte(`{"a":1}`),
			Properties: &paho.PublishProperties{ResponseTopic: answerTo, ContentType: interact.JSON}})
		switch {
		case err == nil:
		case strings.Contains(err.Error(), "limit has been exceeded"):
			turnedDown.Add(1)
			came <- nil
		default:
			lost(err)
		}
	}
	var work sync.WaitGroup
	for range n {
		work.Go(func() { ask(qos, topic+"/reply/all") })
	}
	work.Wait()
	for heard := 0; ; { // one that is repeated until it succeeds ends it
		if heard == n || qos == 0 && len(came) == 0 {
			ask(1, last)
		}
		p, err := next(ctx, came)
		heard++
		switch {
		case err != nil:
			t.Fatalf("after %d answers, %d refusals and %d turned down: %v", done, refused, turnedDown.Load(), context.Cause(ctx))
		case p == nil:
		case p.Properties.User.Get("lmos-code") == "LMOS-1529", p.Properties.User.Get("lmos-code") == "LMOS-1429":
			if refused++; p.Topic == last {
				ask(1, last)
			}
		case string(p.Payload) != "42":
			t.Fatalf("an answer is %s", p.Payload)
		case p.Topic == last:
			return done, refused + int(turnedDown.Load())
		default:
			done++
		}
	}
}

// floodCoAP sends n non-confirmable messages, and counts the responses; some are lost.
func floodCoAP(t *testing.T, m *testmesh.Mesh, n int) (done, refused int) {
	t.Helper()
	c, err := net.Dial("udp", m.CoAP)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var work sync.WaitGroup
	over := make(chan struct{})
	work.Go(func() {
		defer close(over)
		b := make([]byte, 2048)
		for {
			k, err := c.Read(b)
			if err != nil {
				return
			}
			switch p, err := messaging.ParseDatagram(b[:k]); {
			case err != nil:
				t.Error(err)
			case p.Code == codes.Content:
				done++
			case p.Code == codes.TooManyRequests || p.Code == codes.ServiceUnavailable || p.Kind == message.Reset:
				refused++
			default:
				t.Errorf("an answer is %v %q", p.Code, p.Payload)
			}
		}
	})
	for i := range n {
		p := &messaging.Packet{Kind: message.NonConfirmable, Mid: uint16(i), Code: codes.POST, Token: fmt.Sprint("t", i),
			Payload: []byte(`{"a":1}`)}
		for _, s := range []string{"things", "villain", "actions", "add"} {
			p.Add(message.URIPath, []byte(s))
		}
		p.AddUint(message.ContentFormat, uint32(message.AppJSON))
		b, err := p.Datagram()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	k := openCoAP(t, m, "villain") // the same host, with a confirmable message
	defer k.hangUp()
	eventually(t, "it is served again", func() bool {
		r, err := outcome(k, query(interact.ReadProperty, "fine", ""))
		return err == nil && string(r.Data) == "42"
	})
	c.Close()
	work.Wait()
	return done, refused
}

// A consumer invokes an action with an endless output. With partial outputs it takes a few and leaves; for a whole output it gets TooLarge.
// Both end the run at the agent, behind two nodes, and memory is released.
func TestStreamWithoutEnd(t *testing.T) {
	m := testmesh.Start(t)
	v := newVillain(t, m)
	for _, c := range consumerBindings {
		t.Run(c.name, func(t *testing.T) {
			before := take()
			k := c.open(t, m, "villain")
			hangUp := sync.OnceFunc(k.hangUp)
			defer hangUp()
			ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
			defer cancel()
			parts := 0
			for r, err := range k.Do(ctx, query(interact.InvokeAction, "forever", "")) {
				if errors.Is(err, errNot) {
					return
				}
				if err != nil {
					if !coded(err, interact.TooLarge) {
						t.Errorf("after %d parts: %.200v", parts, err)
					}
					break
				}
				if parts++; r.Status.Final() {
					t.Errorf("it ended, with %d bytes", len(r.Data))
				}
				if parts == 3 {
					break
				}
			}
			if c.name != "ws doc" { // which has no message for it
				v.left(t, c.name)
			}
			served(t, k)
			hangUp()
			v.left(t, c.name)
			before.returns(t)
		})
	}
}

// An MQTT client with a keep-alive of 1 s that stays silent is disconnected within seconds (MQTT 3.1.1 §3.1.2.10).
func TestSilentMQTTClient(t *testing.T) {
	t.Parallel()
	m := testmesh.Start(t)
	v := newVillain(t, m)
	c, err := net.Dial("tcp", m.MQTT)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(helloMQTT("silent", 1, "villain/events/alarm")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it listens", func() bool { return v.calls.Load() == 1 })
	began := time.Now()
	if err := c.SetReadDeadline(began.Add(stepTimeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("it is not missed")
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it was missed after %v", took)
	}
}

// helloMQTT connects with 3.1.1, and subscribes, without waiting for a response.
func helloMQTT(id string, keepAlive byte, topic string) []byte {
	text := func(s string) string { return "\x00" + string(rune(len(s))) + s }
	packet := func(head, body string) string { return head + string(rune(len(body))) + body }
	hello := packet("\x10", text("MQTT")+"\x04\x02\x00"+string(rune(keepAlive))+text(id))
	return []byte(hello + packet("\x82", "\x00\x01"+text(topic)+"\x01"))
}

// Subscribers that do not read, while an agent at another node sends 32 MiB, need little memory, and another consumer receives all of it.
func TestConsumersThatNeverRead(t *testing.T) {
	m := testmesh.Start(t)
	v := newVillain(t, m)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	good := openGo(t, m, "villain")
	heard := make(chan int)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	work.Go(func() {
		for r, err := range good.Do(ctx, query(interact.SubscribeEvent, "alarm", "")) {
			if err != nil {
				return
			}
			select {
			case heard <- len(r.Data):
			case <-ctx.Done():
				return
			}
		}
	})
	eventually(t, "it listens", func() bool { return v.calls.Load() == 1 })
	deaf := map[string]string{
		"SSE": "GET /things/villain/events/alarm HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n",
	}
	for i := range 5 {
		for name, hello := range deaf {
			c, err := net.Dial("tcp", strings.TrimPrefix(m.API, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, hello); err != nil {
				t.Fatal(name, err)
			}
		}
		for dialect, frame := range map[string]string{
			doc:    `{"messageType":"subscribeEvent","thingID":"villain","messageID":"m","event":"alarm"}`,
			kotlin: `{"messageType":"subscribeevent","thingId":"villain","messageId":"m","event":"alarm"}`,
			wtp:    `{"messageType":"request","operation":"subscribeevent","thingID":"villain","messageID":"m","name":"alarm"}`,
		} {
			c := dialSocket(t, m, dialect)
			if err := c.Write(ctx, websocket.MessageText, []byte(frame)); err != nil {
				t.Fatal(err)
			}
			if dialect == doc {
				continue // there is no acknowledgement
			}
			if _, _, err := c.Read(ctx); err != nil {
				t.Fatal(err)
			}
		}
		c, err := net.Dial("tcp", m.MQTT)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write(helloMQTT(fmt.Sprint("deaf", i), 60, "villain/events/alarm")); err != nil {
			t.Fatal(err)
		}
	}
	before := take()
	text := `"` + strings.Repeat("x", 32<<10) + `"`
	peak := int64(0)
	for i := range 1024 {
		select {
		case v.alarms <- text:
		case <-time.After(stepTimeout):
			t.Fatalf("the agent cannot tell event %d", i)
		}
		select {
		case size := <-heard:
			if size != len(text) {
				t.Fatalf("event %d has %d bytes", i, size)
			}
		case <-time.After(stepTimeout):
			t.Fatalf("the reader did not receive event %d", i)
		}
		if i%64 == 63 {
			peak = max(peak, liveheap.Bytes())
		}
	}
	// The window of the hub, shared, and the queued frames of 15 sockets.
	if more := (peak - before.heap) >> 20; more > 48 {
		t.Errorf("%d MiB are kept for a client that does not read", more)
	} else {
		t.Logf("%d MiB are kept for 25 clients that do not read", more)
	}
}
