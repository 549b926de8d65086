package interop

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/lmosd/lmosd/interop/testmesh"
)

// An agent that answers a write with 204 and no body is written to in each dialect, over two nodes. kotlin-wot cannot read a
// propertyReading without data, and its client would wait for 100 s.
func TestWritesToAnHTTPAgentAreAnswered(t *testing.T) {
	t.Parallel()
	m := testmesh.Start(t)
	startHTTP(t, m, "lamp")
	id := m.Known(t, "lamp").ID
	for dialect, c := range map[string]struct{ asked, want string }{
		kotlin: {`{"messageType":"writeProperty","thingId":"` + id + `","messageId":"m1","property":"level","data":7}`,
			`{"messageType":"propertyReading","correlationId":"m1","property":"level","data":7}`},
		doc: {`{"messageType":"writeProperty","thingID":"` + id + `","messageID":"m1","name":"level","data":8}`,
			`{"messageType":"propertyReadings","correlationID":"m1","data":{"level":8}}`},
		wtp: {`{"messageType":"request","operation":"writeproperty","thingID":"` + id + `","messageID":"m1","name":"level","value":9}`,
			`{"messageType":"response","operation":"writeproperty","name":"level"}`},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
		defer cancel()
		at := "ws" + strings.TrimPrefix(m.API, "http") + "/ws"
		ws, _, err := websocket.Dial(ctx, at, &websocket.DialOptions{Subprotocols: protocols[dialect]})
		if err != nil {
			t.Fatal(err)
		}
		defer ws.CloseNow()
		if err := ws.Write(ctx, websocket.MessageText, []byte(c.asked)); err != nil {
			t.Fatal(err)
		}
		_, raw, err := ws.Read(ctx)
		var got, want fields
		if err != nil || json.Unmarshal(raw, &got) != nil || json.Unmarshal([]byte(c.want), &want) != nil {
			t.Fatalf("%s: %s, %v", dialect, raw, err)
		}
		for member, value := range want {
			if !reflect.DeepEqual(got[member], value) {
				t.Errorf("%s: %s is %v in %s", dialect, member, got[member], raw)
			}
		}
	}
}
