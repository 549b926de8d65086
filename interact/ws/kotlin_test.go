package ws

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/ws/frame"
	"github.com/lmosd/lmosd/td"
)

// A kotlinServer behaves like the server of kotlin-wot, by its sources: it accepts no subprotocol, knows its own classes of
// messages only and closes the connection (1003) on others, handles one frame after another, writes times as numbers, and
// correlates the first reading of an observation only.
type kotlinServer struct {
	mu     sync.Mutex
	frames []string // as they came
	hung   chan bool
	closed chan error
}

// A kotlinMessage has the members of its classes. Present members are required.
type kotlinMessage struct {
	MessageType string  `json:"messageType"`
	ThingID     *string `json:"thingId"`
	MessageID   *string `json:"messageId"`
	Property    *string `json:"property"`
	Action      *string `json:"action"`
	Event       *string `json:"event"`
	Data        any     `json:"data"`
	Input       any     `json:"input"`
}

func (s *kotlinServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ws, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer func() { _ = ws.CloseNow() }()
	for {
		_, data, err := ws.Read(context.Background())
		if err != nil {
			s.closed <- err
			return
		}
		s.mu.Lock()
		s.frames = append(s.frames, string(data))
		s.mu.Unlock()
		answer, ok := s.answer(data)
		if !ok {
			_ = ws.Close(websocket.StatusUnsupportedData, "Failed to read message")
			s.closed <- fmt.Errorf("failed to read %s", data)
			return
		}
		for _, text := range answer {
			if ws.Write(context.Background(), websocket.MessageText, []byte(text)) != nil {
				return
			}
		}
	}
}

// answer returns the responses to a frame; ok is false for a frame that no class reads.
func (s *kotlinServer) answer(data []byte) (frames []string, ok bool) {
	var m kotlinMessage
	if json.Unmarshal(data, &m) != nil || m.ThingID == nil || m.MessageID == nil {
		return nil, false
	}
	say := func(typ, members string) string {
		return fmt.Sprintf(`{"messageType":%q,"thingId":%q,"messageId":"k1","correlationId":%q,%s}`, typ, *m.ThingID, *m.MessageID, members)
	}
	reading := `"property":"level","data":42,"timestamp":1767225600.123456789`
	switch m.MessageType {
	case "readAllProperties":
		return []string{say("propertyReadings", `"data":{"level":42},"timestamp":1767225600.1`)}, true
	case "readProperty":
		if *m.Property != "level" {
			return []string{say("error", `"type":"https://eclipse.dev/lmos/protocol/v1/errors#not-found","title":"Property Not Found","status":"404",`+
				`"detail":"Property 'x' not found.","instance":"https://eclipse.dev/lmos/protocol/v1/errors/1"`)}, true
		}
		return []string{say("propertyReading", reading)}, m.Property != nil
	case "writeProperty":
		return []string{say("propertyReading", fmt.Sprintf(`"property":"level","data":%v,"timestamp":1767225600`, m.Data))}, m.Property != nil && m.Data != nil
	case "observeProperty":
		later := fmt.Sprintf(`{"messageType":"propertyReading","thingId":%q,"messageId":"k2","property":%q,"data":43,"timestamp":1767225601}`, *m.ThingID, *m.Property)
		return []string{say("propertyReading", reading), later}, m.Property != nil
	case "unobserveProperty", "unsubscribeEvent":
		return []string{say("acknowledgement", `"message":"`+m.MessageType+`"`)}, m.Property != nil || m.Event != nil
	case "subscribeevent":
		return []string{say("acknowledgement", `"message":"subscribeevent"`),
			say("event", `"event":"alarm","data":{"type":"x","payload":"{}"},"timestamp":1767225600.5`)}, m.Event != nil
	case "invokeAction":
		switch *m.Action {
		case "hang":
			s.hung <- true
			return nil, true // its coroutine waits without limit
		case "fail":
			return []string{say("error", `"type":"https://eclipse.dev/lmos/protocol/v1/errors#internal-server-error","title":"Internal Server Error",`+
				`"status":"500","detail":"java.lang.NullPointerException","instance":"https://eclipse.dev/lmos/protocol/v1/errors/1"`)}, true
		}
		out, _ := json.Marshal(m.Input)
		return []string{say("actionStatus", `"action":"chat","status":"completed","output":`+string(out))}, true
	case "readMultipleProperties", "writeMultipleProperties", "writeAllProperties": // classes without a handler
		return []string{say("error", `"type":"https://eclipse.dev/lmos/protocol/v1/errors#unsupported-message-type","title":"Unsupported Message Type",`+
			`"status":"400","detail":"?","instance":"https://eclipse.dev/lmos/protocol/v1/errors/1"`)}, true
	}
	return nil, false
}

// TestKotlinServer calls a Kotlin server: its operations, and some that it lacks. It never receives a message without a class.
func TestKotlinServer(t *testing.T) {
	t.Parallel()
	s := &kotlinServer{hung: make(chan bool, 1), closed: make(chan error, 10)}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	url := "ws" + strings.TrimPrefix(h.URL, "http") + "/ws"
	client := NewClient(Options{})
	defer client.Close()
	desc, err := td.Parse([]byte(strings.ReplaceAll(labText, "FORM",
		formOf(url, "lmosprotocol")+`, "lmosd:thingId": "chatagent", "optionalProperties": {"htv:methodName": "GET"}`)))
	if err != nil {
		t.Fatal(err)
	}
	thing := client.Thing(desc)
	for _, c := range []struct {
		typ              interact.Type
		name, data, want string
		code             interact.Code
	}{
		{interact.ReadProperty, "level", "", "propertyReading 42", 0},
		{interact.WriteProperty, "level", "7", "propertyReading 7", 0},
		{interact.ReadAllProperties, "", "", `propertyReadings {"level":42}`, 0},
		{interact.InvokeAction, "chat", `{"messages":[]}`, `actionStatus completed {"messages":[]}`, 0},
		{interact.InvokeAction, "fail", "", "", interact.AgentFailed},
		{interact.ReadProperty, "serial", "", "", interact.NoAffordance},
		{interact.ReadMultipleProperties, "", `["level"]`, "", interact.NotAllowed},
		{interact.SubscribeAllEvents, "", "", "", interact.NotAllowed},
		{interact.QueryAction, "work", "", "", interact.NotAllowed},
		{interact.CancelAction, "work", "", "", interact.NotAllowed},
		{interact.ObserveAllProperties, "", "", "", interact.NotAllowed},
	} {
		replies, err := ask(t, thing, message(c.typ, c.name, c.data))
		if c.code != 0 {
			wantError(t, err, c.code)
		} else if got := texts(replies); err != nil || got != c.want {
			t.Errorf("%s: got %q, %v, want %q", c.typ.Op(), got, err, c.want)
		}
	}
	observing := newReader(t, thing, message(interact.ObserveProperty, "level", ""))
	for _, want := range []string{"42", "43"} { // the second is not correlated
		if m := observing.next(t); string(m.Data) != want || m.Type != interact.PropertyReading || m.Time.IsZero() {
			t.Errorf("got %+v, want %s", m, want)
		}
	}
	observing.leave()
	subscribed := newReader(t, thing, message(interact.SubscribeEvent, "alarm", ""))
	if m := subscribed.next(t); string(m.Data) != `{"type":"x","payload":"{}"}` {
		t.Errorf("got %+v", m)
	}
	subscribed.leave()
	hanging := newReader(t, thing, message(interact.InvokeAction, "hang", ""))
	<-s.hung
	hanging.leave()
	if _, err := ask(t, thing, message(interact.ReadProperty, "level", "")); err != nil {
		t.Error(err)
	}
	client.Close()
	if err := <-s.closed; websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("the connection ended with %v", err)
	}
	for _, f := range s.frames {
		if !strings.Contains(f, `"thingId":"chatagent"`) {
			t.Errorf("it was sent %s", f)
		}
	}
}

// TestDialectOfAnAgent decides how an agent is spoken to.
func TestDialectOfAnAgent(t *testing.T) {
	t.Parallel()
	secure := map[string]*td.SecurityScheme{"nosec_sc": {Scheme: "nosec"}}
	for _, c := range []struct {
		name, id, sub, echo, raw string
		secure                   bool
		want                     frame.Dialect
	}{
		{"nothing is known", "urn:x", "", "", `{}`, true, frame.Kotlin},
		{"it agrees to the subprotocol", "urn:x", "lmosprotocol", "lmosprotocol", `{}`, true, frame.Doc},
		{"it does not", "urn:x", "lmosprotocol", "", `{}`, true, frame.Kotlin},
		{"an id that is not a URI", "chatagent", "lmos", "lmos", `{}`, true, frame.Kotlin},
		{"no security", "urn:x", "lmos", "lmos", `{}`, false, frame.Kotlin},
		{"Kotlin's form", "urn:x", "lmos", "lmos", `{"optionalProperties":{}}`, true, frame.Kotlin},
		{"the Web Thing Protocol", "urn:x", "webthingprotocol", "", `{}`, true, frame.WTP},
	} {
		thing := &td.Thing{ID: c.id}
		if c.secure {
			thing.SecurityDefs = secure
		}
		if got := dialectOf(thing, &td.Form{Subprotocol: c.sub, Raw: []byte(c.raw)}, c.echo); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}
