package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a"
	"github.com/lmosd/lmosd/bridge/mcp"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interop/testmesh"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/td"
)

// A reading is a request that reads descriptions. REF is replaced by a reference of a Thing; header names the method of MCP.
type reading struct {
	name, method, path, body string
	mcp, tool                string
	each                     bool // it names one Thing
}

// mcpBody is a request of MCP.
func mcpBody(method, params string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{` + params + `"_meta":{` +
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
}

func mcpTool(tool, arguments string) string {
	return mcpBody("tools/call", `"name":"`+tool+`","arguments":{`+arguments+`},`)
}

// sendMessage is an A2A message to the agent of the node or of a Thing.
func sendMessage(text string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m1","role":"ROLE_USER","parts":[` + text + `]}}}`
}

var readings = []reading{
	{name: "list", method: "GET", path: "/things"},
	{name: "list of own Things", method: "GET", path: "/things?scope=local"},
	{name: "collection", method: "GET", path: "/things?format=collection&limit=50"},
	{name: "links", method: "GET", path: "/.well-known/core?rt=wot.thing"},
	{name: "JSONPath", method: "GET", path: "/search/jsonpath?query=" + url.QueryEscape("$[*]")},
	{name: "XPath", method: "GET", path: "/search/xpath?query=" + url.QueryEscape("//*[title]")},
	{name: "find", method: "GET", path: "/v1/find"},
	{name: "find by words", method: "GET", path: "/v1/find?q=REF"},
	{name: "find by name", method: "GET", path: "/v1/find?name=REF"},
	{name: "did you mean", method: "GET", path: "/v1/agents/REFx", each: true},
	{name: "route", method: "POST", path: "/v1/route", body: `{"message":"REF","among":"all"}`},
	{name: "description", method: "GET", path: "/things/REF", each: true},
	{name: "description with forms of the node", method: "GET", path: "/things/REF/td", each: true},
	{name: "show", method: "GET", path: "/v1/agents/REF", each: true},
	{name: "paths", method: "GET", path: "/v1/paths/REF", each: true},
	{name: "ping", method: "POST", path: "/v1/ping/REF", body: "{}", each: true},
	{name: "read", method: "GET", path: "/things/REF/properties/state", each: true},
	{name: "invoke", method: "POST", path: "/things/REF/actions/boil", body: `"now"`, each: true},
	{name: "A2A card", method: "GET", path: "/a2a/REF/.well-known/agent-card.json", each: true},
	{name: "A2A message", method: "POST", path: "/a2a/REF", body: sendMessage(`{"text":"hello"}`), each: true},
	{name: "A2A search", method: "POST", path: "/a2a", body: sendMessage(`{"data":{"query":"kettle"}}`)},
	{name: "MCP search", method: "POST", path: "/mcp", body: mcpTool("mesh_search", `"query":"kettle"`), mcp: "tools/call", tool: "mesh_search"},
	{name: "MCP describe", method: "POST", path: "/mcp", body: mcpTool("mesh_describe", `"thing":"REF"`), mcp: "tools/call", tool: "mesh_describe", each: true},
	{name: "MCP call", method: "POST", path: "/mcp", body: mcpTool("mesh_call", `"thing":"REF","tool":"boil"`), mcp: "tools/call", tool: "mesh_call", each: true},
	{name: "MCP read", method: "POST", path: "/mcp", body: mcpTool("mesh_read", `"thing":"REF","uri":"state"`), mcp: "tools/call", tool: "mesh_read", each: true},
	{name: "MCP tools", method: "POST", path: "/mcp", body: mcpBody("tools/list", ""), mcp: "tools/list"},
	{name: "MCP resources", method: "POST", path: "/mcp", body: mcpBody("resources/list", ""), mcp: "resources/list"},
	{name: "MCP server of a Thing", method: "POST", path: "/mcp/things/REF", body: mcpBody("tools/list", ""), mcp: "tools/list", each: true},
}

// kettle is the TD of a Thing whose visibility is restricted unless members is empty.
func kettle(name, members string) []byte {
	return []byte(`{"@context":["https://www.w3.org/2019/wot/td/v1","https://www.w3.org/2022/wot/td/v1.1",{"lmos":"` + td.ContextLMOS + `"}],` + members +
		`"@type":"lmos:Agent","id":"urn:x:` + name + `","title":"` + name + `","description":"A kettle of ` + name + `.",
		"securityDefinitions":{"n":{"scheme":"nosec"}},"security":["n"],
		"lmos:capabilities":[{"id":"urn:example:kettle","name":"kettle","description":"Boils ` + name + ` in a kettle.","examples":["` + name + `"]}],
		"properties":{"state":{"type":"string","forms":[{"href":"http://127.0.0.1:1/state"}]}},
		"actions":{"boil":{"input":{"type":"string"},"forms":[{"href":"http://127.0.0.1:1/boil"}]}}}`)
}

// An audience is a caller of a node: unproven (a request that a proxy forwarded), or local.
type audience struct {
	t        *testing.T
	api      string
	unproven bool
}

func (a audience) request(method, path, body string) *http.Request {
	q, err := http.NewRequestWithContext(a.t.Context(), method, a.api+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	if a.unproven {
		q.Header.Set("X-Forwarded-For", "203.0.113.7")
	}
	if body != "" {
		q.Header.Set("Content-Type", "application/json")
	}
	return q
}

func (a audience) read(r reading, ref string) string {
	q := a.request(r.method, strings.ReplaceAll(r.path, "REF", url.PathEscape(ref)), strings.ReplaceAll(r.body, "REF", ref))
	switch {
	case strings.HasPrefix(r.path, "/a2a"):
		q.Header.Set("A2A-Version", "1.0")
	case r.mcp != "":
		q.Header.Set("Accept", "application/json, text/event-stream")
		q.Header.Set("Mcp-Protocol-Version", "2026-07-28")
		q.Header.Set("Mcp-Method", r.mcp)
		q.Header.Set("Mcp-Name", r.tool)
	}
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return fmt.Sprint(resp.StatusCode, " ", string(raw))
}

// socket returns the answer to a reading over WebSocket.
func (a audience) socket(ref string) string {
	h := http.Header{}
	if a.unproven {
		h.Set("X-Forwarded-For", "203.0.113.7")
	}
	c, _, err := websocket.Dial(a.t.Context(), "ws"+strings.TrimPrefix(a.api, "http")+"/ws", &websocket.DialOptions{Subprotocols: protocols[doc], HTTPHeader: h})
	if err != nil {
		a.t.Fatal(err)
	}
	defer c.CloseNow()
	text, _ := json.Marshal(fields{"messageType": "readProperty", "thingID": ref, "messageID": "1", "correlationID": "1", "property": "state"})
	if err := c.Write(a.t.Context(), websocket.MessageText, text); err != nil {
		a.t.Fatal(err)
	}
	_, raw, err := c.Read(a.t.Context())
	if err != nil {
		a.t.Fatal(err)
	}
	return string(raw)
}

// events returns the first events of a stream, until it is idle.
func (a audience) events(path string, header ...string) string {
	ctx, cancel := context.WithTimeout(a.t.Context(), time.Second)
	defer cancel()
	q := a.request("GET", path, "").WithContext(ctx)
	q.Header.Set("Accept", "text/event-stream")
	for i := 0; i+1 < len(header); i += 2 {
		q.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(resp.Body) // ends with ctx
	return string(raw)
}

// varying are the parts of answers that differ between requests.
var varying = regexp.MustCompile(`"(?:took|traceparent|trace|timestamp|messageID|instance|retrieved|taskId|id|contextId)":\s*("[^"]*"|[0-9.]+)|[0-9a-f]{32}|\d{4}-\d\d-\d\dT[0-9:.]+Z|[0-9a-f-]{36}`)

func normalize(answer, ref string) string {
	return varying.ReplaceAllString(strings.ReplaceAll(strings.ReplaceAll(answer, url.PathEscape(ref), "REF"), ref, "REF"), "*")
}

// TestWhoSeesADescription reads a node in all ways: consumers of the node see its private Thing, an untrusted caller sees no trace of it, and
// gets for its id and name what it gets for a Thing that does not exist.
func TestWhoSeesADescription(t *testing.T) {
	const hidden, absent, public = "quartz", "grovel", "common"
	m := testmesh.Start(t, func(o *node.Options) {
		o.Bridges = []bridge.Bridge{mcp.New(mcp.Options{Pins: []string{hidden, public}}), a2a.New(a2a.Options{})}
	})
	m.Offer(t, kettle(public, ""), nil)
	before := tagOf(audience{t, m.Host.API(), true})
	m.Offer(t, kettle(hidden, `"lmosd:visibility":"private",`), nil)
	untrusted, local := audience{t, m.Host.API(), true}, audience{t, m.Host.API(), false}
	if after := tagOf(untrusted); after != before || tagOf(local) == before {
		t.Errorf("the tag of the list is %s, was %s; that of consumers is %s", after, before, tagOf(local))
	}
	owner := m.Host.Status().DID
	for _, r := range readings {
		if got := untrusted.read(r, public); strings.Contains(got, hidden) || strings.Contains(got, "Internal") {
			t.Errorf("%s: an untrusted caller gets %s", r.name, got)
		}
		if got := local.read(r, hidden); !r.each && !strings.Contains(got, hidden) || r.each && strings.Contains(got, "1404") && r.name != "did you mean" {
			t.Errorf("%s: a consumer of the node gets %s", r.name, got)
		}
		if !r.each {
			continue
		}
		for _, form := range []string{"%s", "urn:x:%s", "urn:x:%s@" + owner.Multibase()} {
			one, other := fmt.Sprintf(form, hidden), fmt.Sprintf(form, absent)
			got, want := normalize(untrusted.read(r, one), one), normalize(untrusted.read(r, other), other)
			if got != want {
				t.Errorf("%s of %s: got\n%s, for an unknown Thing\n%s", r.name, one, got, want)
			}
		}
	}
	if got := local.read(reading{method: "GET", path: "/v1/agents/" + hidden + "x"}, ""); !strings.Contains(got, hidden) {
		t.Errorf("no suggestion: %s", got)
	}
	for _, one := range []string{"%s", "urn:x:%s"} {
		got, want := untrusted.socket(fmt.Sprintf(one, hidden)), untrusted.socket(fmt.Sprintf(one, absent))
		if normalize(got, fmt.Sprintf(one, hidden)) != normalize(want, fmt.Sprintf(one, absent)) {
			t.Errorf("WebSocket: got %s, for an unknown Thing %s", got, want)
		}
		if got := local.socket(fmt.Sprintf(one, hidden)); strings.Contains(got, "1404") {
			t.Errorf("WebSocket: a consumer of the node gets %s", got)
		}
	}
	for path, header := range map[string][]string{"/events?diff=true": {"Last-Event-Id", "1"}, "/v1/find": nil} {
		if got := untrusted.events(path, header...); strings.Contains(got, hidden) || !strings.Contains(got, public) {
			t.Errorf("events of %s: an untrusted caller gets %s", path, got)
		}
		if got := local.events(path, header...); !strings.Contains(got, hidden) {
			t.Errorf("events of %s: a consumer of the node gets %s", path, got)
		}
	}
	countsOf(t, untrusted, local)
	peersOf(t, m, hidden, public)
}

// tagOf returns the tag of the first page of the list.
func tagOf(a audience) string {
	resp, err := http.DefaultClient.Do(a.request("GET", "/things?limit=5", ""))
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	return strings.Join(resp.Header.Values("Link"), " ")
}

// countsOf checks that status and metrics count no hidden Things.
func countsOf(t *testing.T, untrusted, local audience) {
	t.Helper()
	count := func(a audience) (n int) {
		var s struct{ Agents struct{ Local int } }
		_, body, _ := strings.Cut(a.read(reading{method: "GET", path: "/v1/status"}, ""), " ")
		if err := json.Unmarshal([]byte(body), &s); err != nil {
			t.Fatal(err)
		}
		return s.Agents.Local
	}
	if one, both := count(untrusted), count(local); one != 1 || both != 2 {
		t.Errorf("the status counts %d and %d Things, want 1 and 2", one, both)
	}
	metrics := reading{method: "GET", path: "/metrics"}
	if got := untrusted.read(metrics, ""); !strings.HasPrefix(got, "401") {
		t.Errorf("metrics: an untrusted caller gets %.200s", got)
	}
	if got := local.read(metrics, ""); !strings.HasPrefix(got, "200") {
		t.Errorf("metrics: a consumer of the node gets %.200s", got)
	}
}

// peersOf checks that another node, and a call without a principal, find nothing of the hidden Thing.
func peersOf(t *testing.T, m *testmesh.Mesh, hidden, public string) {
	t.Helper()
	m.Known(t, public)
	ids := func(all iter.Seq2[*td.Description, error]) (ids []string) {
		for d, err := range all {
			if err == nil {
				ids = append(ids, d.ID)
			}
		}
		return ids
	}
	for name, ctx := range map[string]context.Context{"no principal": t.Context(), "a peer": did.WithPrincipal(t.Context(), did.NodePrincipal(m.Consumer.Status().DID, "")),
		"an unproven caller": did.WithPrincipal(t.Context(), did.Consumer(did.Unproven, ""))} {
		if got := ids(m.Host.Mesh().Find(ctx, td.Query{})); len(got) != 1 {
			t.Errorf("%s finds %q", name, got)
		}
	}
	if got := ids(m.Consumer.Mesh().Find(did.AsProcess(t.Context()), td.Query{Text: hidden})); len(got) != 0 {
		t.Errorf("the other node finds %q", got)
	}
	if got := ids(m.Host.Mesh().Find(did.WithPrincipal(t.Context(), did.Consumer(did.Loopback, "")), td.Query{})); len(got) != 2 {
		t.Errorf("a consumer of the node finds %q", got)
	}
}
