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
)

// A tablesAgent is written by one spelling of the LMOS documents: it accepts ids only in that spelling, and closes the
// connection on a message without one of its members. It ignores unknown members, as in the documents.
type tablesAgent struct {
	thing, message, correlation string // the members of ids
	property                    string // the member of a property's name
	agrees                      bool   // to the subprotocol
	mu                          sync.Mutex
	level                       json.RawMessage
}

func (a *tablesAgent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var o websocket.AcceptOptions
	if a.agrees {
		o.Subprotocols = []string{"lmosprotocol"}
	}
	ws, err := websocket.Accept(w, r, &o)
	if err != nil {
		return
	}
	defer func() { _ = ws.CloseNow() }()
	for {
		_, data, err := ws.Read(context.Background())
		if err != nil {
			return
		}
		answer := a.answer(data)
		if answer == "" {
			_ = ws.Close(websocket.StatusUnsupportedData, "not in my tables: "+string(data[:min(len(data), 80)]))
			return
		}
		if ws.Write(context.Background(), websocket.MessageText, []byte(answer)) != nil {
			return
		}
	}
}

// answer returns the answer to a frame; it is empty for one that lacks something.
func (a *tablesAgent) answer(data []byte) string {
	var m map[string]json.RawMessage
	if json.Unmarshal(data, &m) != nil || m[a.thing] == nil || m[a.message] == nil {
		return ""
	}
	var typ string
	_ = json.Unmarshal(m["messageType"], &typ)
	say := func(typ, members string) string {
		return fmt.Sprintf(`{"messageType":%q,%q:%s,%q:"r1",%q:%s,%s}`, typ, a.thing, m[a.thing], a.message, a.correlation, m[a.message], members)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch typ {
	case "writeProperty":
		if m["data"] == nil || m[a.property] == nil {
			return ""
		}
		a.level = m["data"]
		fallthrough
	case "readProperty":
		if m[a.property] == nil {
			return ""
		}
		return say("propertyReading", fmt.Sprintf(`%q:%s,"value":%s,"data":%s,"timestamp":"2026-01-01T00:00:00Z"`, a.property, m[a.property], a.level, a.level))
	case "invokeAction":
		if m["action"] == nil {
			return ""
		}
		return say("actionStatus", fmt.Sprintf(`"action":%s,"status":"completed","output":%s`, m["action"], m["input"]))
	}
	return ""
}

// TestAgentsWrittenByTheTables calls agents of each spelling, with and without the subprotocol.
func TestAgentsWrittenByTheTables(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]*tablesAgent{
		"the tables of the documents": {thing: "thingID", message: "messageID", correlation: "correlationID", property: "name"},
		"their later examples":        {thing: "thingId", message: "messageId", correlation: "correlationId", property: "name"},
		"Kotlin's classes":            {thing: "thingId", message: "messageId", correlation: "correlationId", property: "property"},
	} {
		for _, agrees := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " ", agrees), func(t *testing.T) {
				t.Parallel()
				b := &tablesAgent{thing: a.thing, message: a.message, correlation: a.correlation, property: a.property, agrees: agrees,
					level: json.RawMessage("42")}
				h := httptest.NewServer(b)
				t.Cleanup(h.Close)
				thing := newClient(t, Options{}).Thing(describe(t, formOf("ws"+strings.TrimPrefix(h.URL, "http"), "lmosprotocol")).Thing)
				for _, c := range []struct {
					typ              interact.Type
					name, data, want string
				}{
					{interact.ReadProperty, "level", "", "propertyReading 42"},
					{interact.WriteProperty, "level", "7", "propertyReading 7"},
					{interact.ReadProperty, "level", "", "propertyReading 7"},
					{interact.InvokeAction, "chat", `{"q":1}`, `actionStatus completed {"q":1}`},
				} {
					replies, err := ask(t, thing, message(c.typ, c.name, c.data))
					if got := texts(replies); err != nil || got != c.want {
						t.Fatalf("%s: got %q, %v, want %q", c.typ.Op(), got, err, c.want)
					}
				}
			})
		}
	}
}
