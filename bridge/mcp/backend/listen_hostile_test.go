package backend_test

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
)

// A subscription holds the received messages of a subscriber.
type subscription struct {
	ack      string // the acknowledged filter
	received []string
	r        *protocol.Message
	err      error
	took     time.Duration
}

// listenTo subscribes for some time, in a bubble.
func listenTo(t *testing.T, b *backend.Backend, wants string, long time.Duration) (got subscription) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	begun := time.Now()
	got.r, got.err = b.Call(ctx, request(`"mine"`, protocol.Listen, "{}", map[string]any{"notifications": json.RawMessage(wants)}), func(n *protocol.Message) error {
		if raw, _ := n.Param("_meta", protocol.MetaSubscription); string(raw) != `"mine"` {
			t.Errorf("%s is not tagged", n.Bytes())
		}
		if n.Method() == protocol.Acknowledged {
			raw, _ := n.Param("notifications")
			got.ack = string(raw)
			return nil
		}
		got.received = append(got.received, n.Method()+" "+n.Text("uri"))
		return nil
	})
	got.took = time.Since(begun)
	return got
}

// Servers of 2026-07-28 with unusual acknowledgements: callers get an acknowledgment with the notifications that they will receive.
func TestInvalidListenResponses(t *testing.T) {
	t.Parallel()
	const both = `{"toolsListChanged":true,"resourceSubscriptions":["x:1"]}`
	sub := `"_meta":{"io.modelcontextprotocol/subscriptionId":$ID}`
	ack := func(of string) string {
		return `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":` + of + `,` + sub + `}}`
	}
	changed := `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{` + sub + `}}`
	for name, c := range map[string]struct {
		wants string
		lines []string // for each subscription of the backend
		ack   string   // empty: it is refused
		heard int
		error int
		over  bool // the server ends it
	}{
		"all":                       {wants: both, lines: []string{ack(both), changed}, ack: both, heard: 1},
		"a part":                    {wants: both, lines: []string{ack(`{"toolsListChanged":true}`)}, ack: `{"toolsListChanged":true}`},
		"more than asked":           {wants: `{"toolsListChanged":true}`, lines: []string{ack(`{"toolsListChanged":true,"promptsListChanged":true,"resourceSubscriptions":["y:"]}`)}, ack: `{"toolsListChanged":true}`},
		"nothing":                   {wants: both, lines: []string{ack(`{}`)}, ack: `{}`},
		"nonsense":                  {wants: both, lines: []string{ack(`7`)}, ack: `{}`},
		"twice":                     {wants: both, lines: []string{ack(both), ack(`{}`), changed, changed}, ack: both, heard: 2},
		"before the acknowledgment": {wants: both, lines: []string{changed, ack(both)}, ack: both, heard: 1},
		"with an error":             {wants: both, lines: []string{`{"jsonrpc":"2.0","id":$ID,"error":{"code":-32601,"message":"no"}}`}, error: protocol.UnknownMethod},
		"with a result at once":     {wants: both, lines: []string{`{"jsonrpc":"2.0","id":$ID,"result":{}}`}, error: protocol.InternalError},
		"with silence":              {wants: both, error: protocol.InternalError},
		"and ends it":               {wants: both, lines: []string{ack(both), `{"jsonrpc":"2.0","id":$ID,"result":{"resultType":"complete"}}`}, ack: both, over: true},
		"for what it cannot know":   {wants: `{"taskIds":["x"]}`, lines: []string{ack(`{"taskIds":["x"]}`)}, ack: `{"taskIds":["x"]}`},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := backend.New(backend.Options{Name: "odd", Dial: scripted(func(m *protocol.Message) []string {
				switch m.Method() {
				case protocol.Discover:
					return []string{discovery}
				case protocol.Listen:
					return c.lines
				}
				return nil
			})})
			defer b.Close()
			got := listenTo(t, b, c.wants, time.Minute)
			switch {
			case c.error != 0:
				if got.err != nil || got.r.Error() == nil || got.r.Error().Code != c.error || got.took > 20*time.Second {
					t.Errorf("%s: got %v, %v after %v", name, got.r, got.err, got.took)
				}
			case got.ack != c.ack || len(got.received) > 2*c.heard || c.heard > 0 && len(got.received) == 0:
				t.Errorf("%s: acknowledged %s; received %q", name, got.ack, got.received)
			case c.over != (got.err == nil):
				t.Errorf("%s: ended with %v, %v", name, got.r, got.err)
			}
		})
	}
}

// Legacy servers: unsupported subscriptions are not acknowledged, and only acknowledged notifications are sent.
func TestInvalidSubscribeResponses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		caps, subscribe string // the response to resources/subscribe; empty: none
		ack             string
		heard           []string
	}{
		"all":                  {`{"tools":{"listChanged":true},"resources":{"subscribe":true}}`, `"result":{}`, `{"toolsListChanged":true,"resourceSubscriptions":["x:1"]}`, []string{protocol.ToolsChanged + " ", protocol.ResourceUpdated + " x:1"}},
		"no subscriptions":     {`{"tools":{"listChanged":true},"resources":{}}`, `"result":{}`, `{"toolsListChanged":true}`, []string{protocol.ToolsChanged + " "}},
		"refused":              {`{"resources":{"subscribe":true}}`, `"error":{"code":-32602,"message":"no"}`, `{}`, nil},
		"silent":               {`{"resources":{"subscribe":true}}`, ``, `{}`, nil},
		"capabilities of none": {`7`, `"result":{}`, `{}`, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := backend.New(backend.Options{Name: "old", Dial: scripted(func(m *protocol.Message) []string {
				switch m.Method() {
				case protocol.Discover:
					return []string{`{"jsonrpc":"2.0","id":$ID,"error":{"code":-32601,"message":"no"}}`}
				case protocol.Initialize:
					return []string{`{"jsonrpc":"2.0","id":$ID,"result":{"protocolVersion":"2025-11-25","capabilities":` + c.caps + `}}`}
				case "resources/subscribe":
					if c.subscribe == "" {
						return nil
					}
					return []string{`{"jsonrpc":"2.0","id":$ID,` + c.subscribe + `}`}
				case "tools/list": // a request of another caller, and many notifications
					return []string{`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`, `{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`,
						`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x:1"}}`,
						`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x:2"}}`,
						`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":7}`,
						`{"jsonrpc":"2.0","id":$ID,"result":{"tools":[]}}`}
				}
				return nil
			})})
			defer b.Close()
			go func() {
				time.Sleep(30 * time.Second)
				_, _ = b.Call(t.Context(), request("9", "tools/list", "{}", nil), ignoreMessage)
			}()
			got := listenTo(t, b, `{"toolsListChanged":true,"resourceSubscriptions":["x:1","x:1"]}`, time.Minute)
			if got.ack != c.ack || strings.Join(got.received, "|") != strings.Join(c.heard, "|") {
				t.Errorf("%s: acknowledged %s; received %q", name, got.ack, got.received)
			}
		})
	}
}

// A legacy client that requests too much of a 2026-07-28 server gets errors for the excess, and its session continues.
func TestInvalidLegacyClient(t *testing.T) {
	t.Parallel()
	b := open(t, backend.Options{Name: "new", Dial: scripted(func(m *protocol.Message) []string {
		switch m.Method() {
		case protocol.Discover:
			return []string{discovery}
		case "fine":
			return []string{`{"jsonrpc":"2.0","id":$ID,"result":{"resultType":"complete","ttlMs":5,"cacheScope":"public"}}`}
		case "asks":
			return []string{`{"jsonrpc":"2.0","id":$ID,"result":{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create"}}}}`}
		case "asks nonsense":
			return []string{`{"jsonrpc":"2.0","id":$ID,"result":{"resultType":"input_required","inputRequests":7}}`}
		}
		return nil // no response
	})})
	c, err := b.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	said := make(chan *protocol.Message, 1024)
	go func() {
		for {
			m, err := c.Read(t.Context())
			if err != nil {
				close(said)
				return
			}
			said <- m
		}
	}()
	ask := func(line string) {
		m, err := protocol.Parse([]byte(line))
		if err == nil {
			err = c.Write(t.Context(), m)
		}
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	reply := func(line, want string) {
		t.Helper()
		ask(line)
		if got := string(wait(t, "an answer", said).Bytes()); !strings.Contains(got, want) {
			t.Errorf("%s gives %s", line, got)
		}
	}
	reply(`{"jsonrpc":"2.0","id":0,"method":"fine"}`, "must be initialize")
	reply(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"1999-01-01","capabilities":7}}`, `"protocolVersion":"2025-11-25"`)
	reply(`{"jsonrpc":"2.0","id":2,"method":"ping"}`, `"result":{}`)
	reply(`{"jsonrpc":"2.0","id":3,"method":"logging/setLevel","params":{"level":"loud"}}`, "-32602")
	reply(`{"jsonrpc":"2.0","id":4,"method":"subscriptions/listen"}`, "-32601")
	reply(`{"jsonrpc":"2.0","id":5,"method":"fine"}`, `"id":5,"result":{}`)
	reply(`{"jsonrpc":"2.0","id":6,"method":"asks nonsense"}`, "malformed input request")
	ask(`{"jsonrpc":"2.0","id":"nobody asked","result":{}}`)
	ask(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[7]}}`)
	reply(`{"jsonrpc":"2.0","id":7,"method":"asks"}`, `"method":"elicitation/create"`)
	if err := c.Write(t.Context(), protocol.Request("7", "fine", nil)); err == nil || !strings.Contains(err.Error(), "is already in use") {
		t.Errorf("a duplicate id: %v", err)
	}
	for i := range 127 {
		ask(`{"jsonrpc":"2.0","id":"h` + string(rune('a'+i%26)) + strings.Repeat("x", i) + `","method":"hang"}`)
	}
	reply(`{"jsonrpc":"2.0","id":8,"method":"fine"}`, "128 requests are pending")
	ask(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"\u0068a"}}`) // "ha", escaped
	for {                                                                                        // until there is room
		ask(`{"jsonrpc":"2.0","id":9,"method":"ping"}`)
		if got := string(wait(t, "an answer", said).Bytes()); strings.Contains(got, `"result":{}`) {
			break
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	for range said { // to its end
	}
	if err := c.Write(t.Context(), protocol.Request("9", "fine", nil)); err != io.ErrClosedPipe {
		t.Errorf("after its end: %v", err)
	}
}
