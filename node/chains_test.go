package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/td"
)

// A counter is an agent that counts the messages that it receives, by Thing.
type counter struct {
	mu    sync.Mutex
	calls map[string][]string // owned by mu
}

func (c *counter) thing(id string) interact.Thing {
	return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		c.mu.Lock()
		c.calls[id] = append(c.calls[id], m.Type.Op())
		c.mu.Unlock()
		r := m.Reply(interact.PropertyReading, interact.JSON, []byte(`"on"`))
		switch {
		case m.Type == interact.InvokeAction:
			r = m.ReplyStatus(interact.StatusCompleted, interact.JSON, []byte(`"x"`))
		case m.Type == interact.WriteProperty:
			r = m.Reply(interact.Acknowledgement, "", nil)
		case m.Type == interact.SubscribeEvent:
			r = m.Reply(interact.Event, interact.JSON, []byte(`"now"`))
		}
		return func(yield func(*interact.Message, error) bool) {
			again := time.NewTicker(10 * time.Millisecond) // a subscription is shared, and each subscriber waits for its first event
			defer again.Stop()
			for yield(r, nil) && m.Type.Long() {
				select {
				case <-again.C:
				case <-ctx.Done():
					return
				}
			}
		}
	})
}

func (c *counter) of(id string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls[id])
}

// guarded is the TD of an agent with one affordance of each kind. base is that of its forms.
func guarded(id, base string) []byte {
	form := func(path, more string, ops ...string) string {
		href := base + "/" + path
		if strings.HasPrefix(base, "ws") {
			href, more = base, "lmosprotocol"
		}
		text, _ := json.Marshal(map[string]any{"href": href, "op": ops, "contentType": interact.JSON, "subprotocol": more})
		return strings.ReplaceAll(string(text), `,"subprotocol":""`, "")
	}
	stream, observable := "", ""
	switch scheme, _, _ := strings.Cut(base, ":"); scheme {
	case "http":
		stream = "sse"
	case "mqtt":
		observable = "/observable"
	}
	return fmt.Appendf(nil, `{"@context":["https://www.w3.org/2019/wot/td/v1","https://www.w3.org/2022/wot/td/v1.1",{"lmos":"https://eclipse.dev/lmos/protocol/v1"}],
"@type":"lmos:Agent","id":%q,"title":%q,"securityDefinitions":{"n":{"scheme":"nosec"}},"security":["n"],
"properties":{"state":{"type":"string","observable":true,"forms":[%s,%s]}},
"actions":{"echo":{"synchronous":false,"input":{"type":"string"},"output":{"type":"string"},"forms":[%s]}},
"events":{"rang":{"data":{"type":"string"},"forms":[%s]}}}`, id, strings.TrimPrefix(id, "urn:x:"), form("properties/state", "", "readproperty", "writeproperty"),
		form("properties/state"+observable, stream, "observeproperty"), form("actions/echo", "", "invokeaction"), form("events/rang", stream, "subscribeevent"))
}

// messages are one request of each kind to a Thing.
func messages(thing string) map[string]*interact.Message {
	all := map[string]*interact.Message{}
	for _, one := range []interact.Message{
		{Type: interact.ReadProperty, Name: "state"}, {Type: interact.WriteProperty, Name: "state", Data: []byte(`"off"`)},
		{Type: interact.ReadAllProperties}, {Type: interact.ReadMultipleProperties, Data: []byte(`["state"]`)},
		{Type: interact.WriteAllProperties, Data: []byte(`{"state":"off"}`)}, {Type: interact.WriteMultipleProperties, Data: []byte(`{"state":"off"}`)},
		{Type: interact.ObserveProperty, Name: "state"}, {Type: interact.ObserveAllProperties},
		{Type: interact.InvokeAction, Name: "echo", Data: []byte(`"x"`)}, {Type: interact.QueryAction, Name: "echo"},
		{Type: interact.CancelAction, Name: "echo"}, {Type: interact.ContinueAction, Name: "echo", ActionID: "1", Data: []byte(`"x"`)},
		{Type: interact.QueryAllActions}, {Type: interact.SubscribeEvent, Name: "rang"}, {Type: interact.SubscribeAllEvents},
	} {
		one.Thing, one.From = thing, did.Consumer(did.Process, "")
		all[one.Type.Op()] = &one
	}
	streamed := *all["invokeaction"]
	streamed.Data, streamed.Chunks = nil, func(yield func([]byte, error) bool) { yield([]byte(`"x"`), nil) }
	all["invokeaction with a stream"] = &streamed
	return all
}

// first returns the error of the first reply.
func first(ctx context.Context, t interact.Thing, m *interact.Message) error {
	for _, err := range t.Do(ctx, m) {
		return err
	}
	return nil
}

var basics = []string{"invokeaction", "observeproperty", "readproperty", "subscribeevent", "writeproperty"}

// No way to a Thing escapes the access rules: each request by each carrier is refused with code Forbidden if the caller may find the Thing,
// and otherwise with that of a Thing that does not exist, and the agent receives nothing. The same requests to a Thing without rules are
// not refused. (Webhook callbacks carry replies, not requests.)
func TestNoChainEscapesTheGate(t *testing.T) {
	t.Parallel()
	o := everything(t)
	o.Policy = withRules("", access.Rule{Deny: []string{"anyone"}, To: []string{"call"}, On: []string{"urn:x:denied"}},
		access.Rule{Deny: []string{"anyone"}, To: []string{"find", "call"}, On: []string{"urn:x:hidden"}})
	host, consumer := start(t, o), start(t, quiet())
	connect(t, consumer, host)
	agent := &counter{calls: map[string][]string{}}
	for _, id := range []string{"urn:x:open", "urn:x:denied", "urn:x:hidden"} {
		if _, err := host.Offer(t.Context(), guarded(id, "http://127.0.0.1:1"), agent.thing(id)); err != nil {
			t.Fatal(err)
		}
	}
	all := slices.Sorted(func(yield func(string) bool) {
		for name := range messages("") {
			if !yield(name) {
				return
			}
		}
	})
	over := func(base string) func(id string) interact.Thing {
		return func(id string) interact.Thing {
			return clientOf(t, consumer, host, id, strings.ReplaceAll(base, "ID", id))
		}
	}
	for name, c := range map[string]struct {
		to  func(id string) interact.Thing
		ops []string
	}{
		"in this process": {func(string) interact.Thing { return asConsumer(host) }, all},
		"libp2p":          {func(string) interact.Thing { return consumer.mesh.streams.Thing(hosted(host.network.records())) }, all},
		"HTTP":            {over(host.API() + "/things/ID"), basics},
		"WebSocket":       {over("ws" + strings.TrimPrefix(host.API(), "http") + "/ws"), basics},
		"MQTT":            {over("mqtt://" + host.MQTT() + "/ID"), []string{"invokeaction", "readproperty", "writeproperty"}},
		"CoAP":            {over("coap://" + host.CoAP() + "/things/ID"), basics},
	} {
		t.Run(name, func(t *testing.T) {
			for _, op := range c.ops {
				for id, want := range map[string]interact.Code{"urn:x:open": 0, "urn:x:denied": interact.Forbidden, "urn:x:hidden": interact.NotFound} {
					err := first(t.Context(), c.to(id), messages(id)[op])
					if want != 0 && !refusedWith(err, want) || want == 0 && (refusedWith(err, interact.Forbidden) || slices.Contains(basics, op) && err != nil) {
						t.Errorf("%s of %s: %v, want %v", op, id, err, want)
					}
				}
			}
			if name != "MQTT" {
				return
			}
			// A broker grants the subscription to a topic that the client may find, and sends nothing (MQTT 5 has no later error).
			for _, op := range []string{"observeproperty", "subscribeevent"} {
				ctx, cancel := context.WithCancel(t.Context())
				refused := make(chan error, 2)
				for _, id := range []string{"urn:x:denied", "urn:x:hidden"} {
					go func() { refused <- first(ctx, c.to(id), messages(id)[op]) }()
				}
				if err := first(t.Context(), c.to("urn:x:open"), messages("urn:x:open")[op]); err != nil {
					t.Error(err)
				}
				cancel()
				for range 2 {
					if err := <-refused; err == nil {
						t.Errorf("%s was answered", op)
					}
				}
			}
		})
	}
	for name, r := range rawRequests {
		for id, want := range map[string]string{"urn:x:open": "", "urn:x:denied": "LMOS-1403", "urn:x:hidden": "LMOS-1404"} {
			got := r.send(t, host.API(), id)
			if want == "" && (strings.Contains(got, "LMOS-1403") || strings.Contains(got, "LMOS-1404")) || !strings.Contains(got, want) {
				t.Errorf("%s of %s: got %s, want %q", name, id, got, want)
			}
		}
	}
	if got := agent.of("urn:x:open"); !slices.Contains(got, "invokeaction") || !slices.Contains(got, "subscribeevent") {
		t.Errorf("the agent without rules received %q", got)
	}
	for _, id := range []string{"urn:x:denied", "urn:x:hidden"} {
		if got := agent.of(id); len(got) > 0 {
			t.Errorf("the agent %s received %q", id, got)
		}
	}
}

// refusedWith reports whether a request was refused with a code, also as a client of HTTP reports the answer of an agent.
func refusedWith(err error, want interact.Code) bool {
	status := map[interact.Code]string{interact.Forbidden: "answered 403", interact.NotFound: "answered 404"}[want]
	return codeOf(err) == want || codeOf(err) == interact.AgentFailed && strings.Contains(err.Error(), status)
}

// clientOf returns a Thing of a host as a client of one of its listeners calls it.
func clientOf(t *testing.T, consumer, host *running, id, base string) interact.Thing {
	t.Helper()
	known := host.mesh.index.Get(id).Description
	far := *known
	var err error
	if far.Thing, err = td.Parse(guarded(id, base)); err != nil {
		t.Fatal(err)
	}
	clients := consumer.servient.Connect(new(net.Dialer).DialContext, false)
	t.Cleanup(func() { _ = clients.Close() })
	return clients.Agent(&far)
}

// A rawRequest is a request to the API. ID is replaced by the id of a Thing.
type rawRequest struct{ method, path, body, mcp, tool string }

const mcpMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`

func mcpCall(tool, arguments string) rawRequest {
	return rawRequest{"POST", "/mcp", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":{%s},%s}}`, tool, arguments, mcpMeta),
		"tools/call", tool}
}

var rawRequests = map[string]rawRequest{
	"HTTP read all":            {method: "GET", path: "/things/ID/properties"},
	"HTTP write several":       {method: "PUT", path: "/things/ID/properties", body: `{"state":"off"}`},
	"HTTP query all":           {method: "GET", path: "/things/ID/actions"},
	"HTTP query":               {method: "GET", path: "/things/ID/actions/echo"},
	"HTTP detached invocation": {method: "POST", path: "/things/ID/actions/echo?detach=true", body: `"x"`},
	"MCP call":                 mcpCall("mesh_call", `"thing":"ID","tool":"echo","arguments":{"input":"x"}`),
	"MCP read":                 mcpCall("mesh_read", `"thing":"ID","uri":"state"`),
	"A2A message": {method: "POST", path: "/a2a/ID", body: `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m1","role":"ROLE_USER",
"parts":[{"text":"hello"}]}}}`},
}

func (r rawRequest) send(t *testing.T, api, id string) string {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), r.method, api+strings.ReplaceAll(r.path, "ID", id), strings.NewReader(strings.ReplaceAll(r.body, "ID", id)))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("A2A-Version", "1.0")
	if r.mcp != "" {
		q.Header.Set("Accept", "application/json, text/event-stream")
		q.Header.Set("Mcp-Protocol-Version", "2026-07-28")
		q.Header.Set("Mcp-Method", r.mcp)
		q.Header.Set("Mcp-Name", r.tool)
	}
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(resp.StatusCode, " ", string(raw))
}
