package interop

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interop/testmesh"
)

// The dialects of the WebSocket subprotocol: that of the LMOS documents, of the Kotlin SDK, and the Web Thing Protocol.
const (
	doc    = "doc"
	kotlin = "kotlin"
	wtp    = "wtp"
)

// protocols are the subprotocols that clients of a dialect request.
var protocols = map[string][]string{doc: {"lmosprotocol"}, wtp: {"webthingprotocol"}}

type byDialect = map[string]string

// A spelling is the form of a request: its type, the member for the affordance, and that for the data in each dialect.
type spelling struct {
	word, about string
	data        byDialect
}

var spellings = map[interact.Type]spelling{
	interact.ReadProperty:            {"readProperty", "property", nil},
	interact.WriteProperty:           {"writeProperty", "property", byDialect{doc: "data", kotlin: "data", wtp: "value"}},
	interact.ReadAllProperties:       {"readAllProperties", "", nil},
	interact.ReadMultipleProperties:  {"readMultipleProperties", "", byDialect{doc: "data", kotlin: "properties", wtp: "names"}},
	interact.WriteMultipleProperties: {"writeMultipleProperties", "", byDialect{doc: "data", kotlin: "data", wtp: "values"}},
	interact.WriteAllProperties:      {"writeAllProperties", "", byDialect{doc: "data", kotlin: "data", wtp: "values"}},
	interact.InvokeAction:            {"invokeAction", "action", byDialect{doc: "input", kotlin: "input", wtp: "input"}},
	interact.QueryAction:             {"queryAction", "action", nil},
	interact.CancelAction:            {"cancelAction", "action", nil},
	interact.QueryAllActions:         {"queryAllActions", "", nil},
	interact.ObserveProperty:         {"observeProperty", "property", nil},
	interact.UnobserveProperty:       {"unobserveProperty", "property", nil},
	interact.ObserveAllProperties:    {"observeAllProperties", "", nil},
	interact.UnobserveAllProperties:  {"unobserveAllProperties", "", nil},
	interact.SubscribeEvent:          {"subscribeEvent", "event", nil},
	interact.UnsubscribeEvent:        {"unsubscribeEvent", "event", nil},
	interact.SubscribeAllEvents:      {"subscribeAllEvents", "", nil},
	interact.UnsubscribeAllEvents:    {"unsubscribeAllEvents", "", nil},
}

// foreign are the messages for which the Kotlin SDK has no class.
var foreign = map[interact.Type]bool{interact.QueryAction: true, interact.CancelAction: true, interact.QueryAllActions: true,
	interact.ObserveAllProperties: true, interact.SubscribeAllEvents: true}

// ends are the messages that end interactions.
var ends = map[interact.Type]interact.Type{interact.ObserveProperty: interact.UnobserveProperty,
	interact.ObserveAllProperties: interact.UnobserveAllProperties, interact.SubscribeEvent: interact.UnsubscribeEvent,
	interact.SubscribeAllEvents: interact.UnsubscribeAllEvents}

// fields is one frame.
type fields map[string]any

// text returns the first of the members that is a string.
func (f fields) text(names ...string) string {
	for _, name := range names {
		if v, ok := f[name].(string); ok {
			return v
		}
	}
	return ""
}

// data returns the first existing member, as JSON or as the bytes that it encodes.
func (f fields) data(names ...string) []byte {
	for _, name := range names {
		v, ok := f[name]
		if f["base64"] == true && ok {
			raw, _ := base64.StdEncoding.DecodeString(f.text(name)) // invalid base64 is not the expected data
			return raw
		}
		if ok && v != nil {
			return asJSON(v)
		}
	}
	return nil
}

// A socketTalk is a client of one dialect of the WebSocket subprotocol.
type socketTalk struct {
	c       *websocket.Conn
	dialect string
	thing   string
	board[fields]
	packets board[[]byte] // binary frames
	n       atomic.Int64  // last id
}

func openSocket(t *testing.T, m *testmesh.Mesh, thing, dialect string) *consumer {
	at := "ws" + strings.TrimPrefix(m.API, "http") + "/ws"
	c, _, err := websocket.Dial(t.Context(), at, &websocket.DialOptions{Subprotocols: protocols[dialect]})
	if err != nil {
		t.Fatal(err)
	}
	c.SetReadLimit(8 << 20)
	s := &socketTalk{c: c, dialect: dialect, thing: thing}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			kind, raw, err := c.Read(context.Background())
			if err != nil {
				return
			}
			if kind == websocket.MessageBinary {
				s.packets.put(raw)
				continue
			}
			var f fields
			if err := json.Unmarshal(raw, &f); err != nil {
				t.Errorf("%s: %v", raw, err)
				return
			}
			s.put(f)
		}
	})
	return &consumer{speaker{t, s.ask}, func() { c.CloseNow(); work.Wait() }}
}

// send writes m in the dialect.
func (s *socketTalk) send(ctx context.Context, m *interact.Message) (id string, err error) {
	how := spellings[m.Type]
	id = fmt.Sprintf("%s-%d", s.dialect, s.n.Add(1))
	f := fields{"messageType": how.word, "thingID": s.thing, "messageID": id, "correlationID": id}
	switch {
	case s.dialect == kotlin:
		f = fields{"messageType": how.word, "thingId": s.thing, "messageId": id}
		if m.Type == interact.SubscribeEvent {
			f["messageType"] = "subscribeevent"
		}
	case s.dialect == wtp:
		f["messageType"], f["operation"], how.about = "request", m.Type.Op(), "name"
	case how.about == "property":
		how.about = "name"
	}
	more := fields{how.about: m.Name, "actionID": m.ActionID, "lastNotificationID": m.After, "contentType": m.ContentType,
		"traceparent": m.TraceParent, "tracestate": m.TraceState}
	maps.DeleteFunc(more, func(_ string, v any) bool { return v == "" })
	maps.Copy(f, more)
	if m.Chunks != nil {
		number := uint32(s.n.Load())
		f["stream"] = number
		came, leave := s.packets.read()
		go func() { // it ends with ctx, or with the next chunk
			defer leave()
			s.feed(ctx, number, came, m.Chunks)
		}()
	}
	if member := how.data[s.dialect]; member != "" && len(m.Data) > 0 {
		f[member] = json.RawMessage(m.Data)
	}
	return id, s.c.Write(ctx, websocket.MessageText, asJSON(f))
}

// feed sends a request stream in binary frames, within the credit: a byte for the kind, four for the stream's number, and the chunk
// (interact/ws, packet.go).
func (s *socketTalk) feed(ctx context.Context, number uint32, came chan []byte, all iter.Seq2[[]byte, error]) {
	const chunk, end, credit = 1, 2, 4
	send := func(kind byte, body []byte) error {
		// The end of a context during a write closes the connection.
		p := append(binary.BigEndian.AppendUint32([]byte{kind}, number), body...)
		return s.c.Write(context.WithoutCancel(ctx), websocket.MessageBinary, p)
	}
	left := 0
	for body, err := range all {
		for left <= 0 && err == nil {
			var p []byte
			if p, err = next(ctx, came); err == nil && len(p) == 9 && p[0] == credit && binary.BigEndian.Uint32(p[1:]) == number {
				left += int(binary.BigEndian.Uint32(p[5:]))
			}
		}
		if err != nil || send(chunk, body) != nil {
			return
		}
		left -= 5 + len(body)
	}
	_ = send(end, nil) // the waiting client detects a failure
}

// ask sends a request, and yields the replies.
func (s *socketTalk) ask(ctx context.Context, m *interact.Message, tell func(*interact.Message) bool) error {
	if s.dialect != doc && m.Chunks != nil || s.dialect == kotlin && foreign[m.Type] {
		return errNot
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	came, leave := s.read()
	defer leave()
	id, err := s.send(ctx, m)
	if err != nil {
		return err
	}
	for {
		f, err := next(ctx, came)
		if err == nil && f.text("correlationID", "correlationId") == id && (f["messageType"] == "error" || f["error"] != nil) {
			err = fmt.Errorf("%s", asJSON(f))
		}
		if err != nil {
			return err
		}
		r, last := s.read1(m, id, f)
		if r != nil && !tell(r) {
			return s.end(context.WithoutCancel(ctx), came, m)
		}
		if last {
			return nil
		}
	}
}

// read1 converts a frame to a reply; nil if it is not for m. It reports whether it is the last.
func (s *socketTalk) read1(m *interact.Message, id string, f fields) (r *interact.Message, last bool) {
	mine := f.text("correlationID", "correlationId") == id
	switch {
	case m.Type.Long():
		kind := f.text("messageType")
		name := f.text("event", "name", "property")
		if kind != "event" && kind != "propertyReading" && kind != "notification" || m.Name != "" && m.Name != name {
			return nil, false
		}
		r = m.Reply(interact.Event, "", f.data("value", "data"))
		r.ID = f.text("messageID", "messageId")
		return r, false
	case !mine:
		return nil, false
	case kindOf(m.Type) == "actions":
		return s.state(m, f)
	}
	return m.Reply(interact.PropertyReadings, "", f.data("value", "values", "data")), true
}

// state reads the state of an action.
func (s *socketTalk) state(m *interact.Message, f fields) (r *interact.Message, last bool) {
	r = m.Reply(interact.ActionStatus, "", f.data("output", "statuses"))
	r.ContentType, r.ActionID = f.text("contentType"), cmp.Or(f.text("actionID", "actionId"), m.ActionID)
	word := cmp.Or(f.text("state", "status"), "completed") // wtp has only an output
	if inner, ok := f["status"].(map[string]any); ok {
		of := fields(inner)
		word, r.ActionID, r.Data = of.text("state"), of.text("actionID"), of.data("output")
	}
	r.Status = interact.StatusOf(word)
	last = m.Type != interact.InvokeAction || r.Status.Final() || s.dialect == wtp
	if !last && len(r.Data) > 0 {
		r.Status = interact.StatusRunning // the documents have one word for both
	}
	return r, last
}

// end ends an interaction. The documents define no response.
func (s *socketTalk) end(ctx context.Context, came chan fields, m *interact.Message) error {
	what := *m
	if what.Type = ends[m.Type]; what.Type == 0 {
		return nil
	}
	id, err := s.send(ctx, &what)
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	for err == nil && s.dialect != doc {
		f, lost := next(ctx, came)
		if err = lost; f.text("correlationID", "correlationId") != id {
			continue
		}
		if f["messageType"] == "error" || f["error"] != nil {
			return errors.New(string(asJSON(f)))
		}
		return nil
	}
	return err
}
