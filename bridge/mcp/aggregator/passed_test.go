package aggregator

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/bridge/bridgetest"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A client that connects while the host of a server is offline gets the server from its description and errors with the reason, and
// continues with the server once the host is back.
func TestServerAtUnreachableHost(t *testing.T) {
	t.Parallel()
	eachRevision(t, func(t *testing.T, version string) {
		m := bridgetest.NewMesh(t)
		add(t, m, "urn:shop", shopTD, nil)
		url := serveMesh(t, m)
		changed := make(chan struct{}, 8)
		s := connect(t, url+"/mcp/things/shop", version, &mcp.ClientOptions{
			ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} }})
		tools, err := s.ListTools(t.Context(), nil)
		if err != nil || len(tools.Tools) != 1 || tools.Tools[0].Name != "buy.it" || tools.Meta[metaStale] == nil {
			t.Fatal(tools, err)
		}
		if list, err := s.ListResources(t.Context(), nil); err != nil || len(list.Resources) != 1 || list.Resources[0].URI != "shop://menu" {
			t.Error(list, err)
		}
		if list, err := s.ListPrompts(t.Context(), nil); err != nil || len(list.Prompts) != 1 {
			t.Error(list, err)
		}
		buy := &mcp.CallToolParams{Name: "buy.it", Arguments: map[string]string{"what": "tea"}}
		r, err := s.CallTool(t.Context(), buy)
		if err != nil || !r.IsError || !strings.Contains(textOf(r), "try again later") || strings.Contains(textOf(r), "lmosd ") {
			t.Error(r, err)
		}
		if _, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "shop://menu"}); err == nil || strings.Contains(err.Error(), "lmosd ") {
			t.Errorf("reading from an offline host: %v", err)
		}
		thing, _ := newShop(t)
		add(t, m, "urn:shop", shopTD, thing)
		if r, err := s.CallTool(t.Context(), buy); err != nil || r.IsError || !strings.Contains(textOf(r), "bought tea") {
			t.Error(r, err)
		}
		if version == protocol.Legacy { // the go-sdk subscribes in 2026-07-28 only on request
			eventually(t, "that the tools may be others", changed)
		}
	})
}

// The error of mesh_call contains the reason and the remedy: an offline host is neither a crashed nor a held-back tool.
func TestReasonsOfMeshCall(t *testing.T) {
	t.Parallel()
	m := bridgetest.NewMesh(t)
	back := func(f func(q *protocol.Message) (*protocol.Message, error)) interact.Thing {
		return remoteFunc(func(_ context.Context, q *protocol.Message, _ func(*protocol.Message) error) (*protocol.Message, error) {
			return f(q)
		}).thing()
	}
	fails := func(err error) interact.Thing {
		return back(func(*protocol.Message) (*protocol.Message, error) { return nil, err })
	}
	says := map[string]struct {
		thing      interact.Thing
		code, hint string
	}{
		"away": {nil, "LMOS-1503", "its host is unreachable"},
		"crashed": {fails(&interact.Error{Code: interact.AgentFailed, Title: "it ended before it answered", Hint: "try again: it is started anew", Started: true}),
			"LMOS-1502", "started anew"},
		"held": {fails(interact.Errorf(interact.Forbidden, "the operator of its host approves it", "it was changed by its server").Then(interact.StepExpose, "TARGET", "approve")),
			"LMOS-1403", "only an operator can change that"},
		"wrong": {back(func(q *protocol.Message) (*protocol.Message, error) {
			return protocol.RespondError(q.ID(), protocol.Errorf(protocol.InvalidParams, "unknown tool")), nil
		}), "LMOS-1502", "mesh_describe shows its tools"},
	}
	for name, c := range says {
		add(t, m, "urn:"+name, strings.Replace(shopTD, "Shop", name, 1), c.thing)
	}
	url := serveMesh(t, m)
	for name, c := range says {
		r := post(t, url+"/mcp", "", protocol.CallTool, fmt.Sprintf(`{"name":"mesh_call","arguments":{"thing":%q,"tool":"buy.it"}}`, name), `{}`)
		var result struct {
			IsError bool
			Content []struct{ Text string }
			Meta    map[string]struct{ Code, Hint string } `json:"_meta"`
		}
		if err := json.Unmarshal(r.Result(), &result); err != nil || !result.IsError || len(result.Content) != 1 {
			t.Fatalf("%s: %s", name, r.Bytes())
		}
		if meta := result.Meta["dev.lmosd/error"]; meta.Code != c.code || !strings.Contains(meta.Hint, c.hint) || !strings.Contains(result.Content[0].Text, c.hint) {
			t.Errorf("%s: got %s", name, r.Bytes())
		}
	}
}

// A server whose list exceeds its description and that is offline is never reported as complete.
func TestOmittedTools(t *testing.T) {
	t.Parallel()
	m := bridgetest.NewMesh(t)
	add(t, m, "urn:shop", strings.Replace(shopTD, `"actions":{`, `"mcp:omitted":5,"actions":{"mcp-more":{"@type":"mcp:More"},`, 1), nil)
	url := serveMesh(t, m, "shop")
	for call, want := range map[string]string{
		`{"name":"mesh_describe","arguments":{"thing":"shop"}}`:                 "5 more tools, prompts or resources are not in its description",
		`{"name":"mesh_describe","arguments":{"thing":"shop","tool":"sell"}}`:   "LMOS-1503",
		`{"name":"mesh_describe","arguments":{"thing":"shop","tool":"buy.it"}}`: "inputSchema",
		`{"name":"mesh_search","arguments":{"query":"buys something"}}`:         `"moreTools":5`,
	} {
		if r := post(t, url+"/mcp", "", protocol.CallTool, call, `{}`); !strings.Contains(string(r.Bytes()), want) {
			t.Errorf("%s: got %s", call, r.Bytes())
		}
	}
	if r := post(t, url+"/mcp", "", "tools/list", `{}`, `{}`); !strings.Contains(string(r.Bytes()), metaPartly) || strings.Contains(string(r.Bytes()), "mcp-more") {
		t.Errorf("the mesh lists %s", r.Bytes())
	}
	thing := remoteFunc(func(_ context.Context, q *protocol.Message, _ func(*protocol.Message) error) (*protocol.Message, error) {
		return protocol.Respond(q.ID(), json.RawMessage(`{"resultType":"complete","ttlMs":0,"cacheScope":"public","tools":[
			{"name":"buy.it","description":"Buys a lot.","inputSchema":{"type":"object"}},{"name":"sell","inputSchema":{"type":"object"}},
			{"name":"odd","inputSchema":7},{"name":"turned\u202e","inputSchema":{"type":"object"}}]}`)), nil
	}).thing()
	add(t, m, "urn:shop", strings.Replace(shopTD, `"actions":{`, `"mcp:omitted":2,"actions":{"mcp-more":{"@type":"mcp:More"},`, 1), thing)
	r := post(t, url+"/mcp", "", protocol.CallTool, `{"name":"mesh_describe","arguments":{"thing":"shop"}}`, `{}`)
	if text := string(r.Bytes()); !strings.Contains(text, "sell") || !strings.Contains(text, "Buys a lot") || strings.Contains(text, "odd") ||
		strings.Contains(text, "turned") || strings.Contains(text, "not in its description") {
		t.Errorf("got %s", text)
	}
	if all := toolNames(t, url); !strings.Contains(strings.Join(all, " "), "shop__sell") {
		t.Errorf("the mesh lists %q", all)
	}
}

// A repeated initialize gets the response of the server.
func TestInitializeTwice(t *testing.T) {
	t.Parallel()
	m := bridgetest.NewMesh(t)
	thing, _ := newShop(t)
	add(t, m, "urn:shop", shopTD, thing)
	h := New(Options{Mesh: m})
	t.Cleanup(h.Close)
	c, err := enterEndpoint(t, h, "shop").server.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	for _, id := range []protocol.ID{"1", "2", "3"} {
		if err := c.Write(t.Context(), protocol.Request(id, protocol.Initialize, map[string]any{"protocolVersion": protocol.Legacy,
			"capabilities": struct{}{}, "clientInfo": map[string]string{"name": "x", "version": "1"}})); err != nil {
			t.Fatal(err)
		}
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			if r, err := c.Read(t.Context()); err != nil || r.ID() != id {
				t.Errorf("%s: %v, %v", id, r, err)
			}
		}()
		eventually(t, "the answer to initialize "+string(id), answered)
	}
}

// A floodingConn sends messages before its response, and counts their bytes.
type floodingConn struct{ sent int }

func (c *floodingConn) Read(context.Context) (*protocol.Message, error) {
	m := protocol.Request("", "notifications/message", map[string]string{"data": strings.Repeat("x", 1<<20)})
	c.sent += len(m.Bytes())
	return m, nil
}

func (*floodingConn) Write(context.Context, *protocol.Message) error { return nil }
func (*floodingConn) Close() error                                   { return nil }

// Messages of a server before its first response are kept, up to a limit of bytes.
func TestMessagesBeforeInitializeResponseAreBounded(t *testing.T) {
	t.Parallel()
	c := new(floodingConn)
	_, err := readUntilResponse(t.Context(), c, protocol.Request("1", protocol.Initialize, nil))
	if interact.AsError(err).Code != interact.AgentFailed || c.sent > 2*maxBeforeBytes {
		t.Errorf("%d bytes were kept: %v", c.sent, err)
	}
}

// A list for all callers is requested by the node, not by the first caller: servers may have tools for some callers only.
func TestSharedListsHaveTheNodeAsCaller(t *testing.T) {
	t.Parallel()
	m := bridgetest.NewMesh(t)
	callers := make(chan string, 1)
	thing := remoteFunc(func(_ context.Context, q *protocol.Message, _ func(*protocol.Message) error) (*protocol.Message, error) {
		callers <- q.Text("_meta", protocol.MetaCaller, "via") + " " + q.Text("_meta", protocol.MetaCaller, "name")
		return protocol.Respond(q.ID(), json.RawMessage(`{"resultType":"complete","tools":[{"name":"sell","inputSchema":{"type":"object"}}]}`)), nil
	}).thing()
	d := add(t, m, "urn:shop", strings.Replace(shopTD, `"actions":{`, `"mcp:omitted":2,"actions":{"mcp-more":{"@type":"mcp:More"},`, 1), thing)
	here := td.Host{Node: m.Signer().DID()}
	ada := did.WithPrincipal(t.Context(), did.Consumer(did.Token, "ada"))
	for name, c := range map[string]struct {
		hosts       []td.Host
		list, calls string
	}{
		"here":                  {[]td.Host{here}, "process ", "token ada"},
		"elsewhere":             {[]td.Host{{Node: "did:key:z6Mkfar"}}, " ", " "},
		"elsewhere, and forged": {[]td.Host{{Node: "did:key:z6Mkfar"}, here}, " ", " "},
	} {
		h := New(Options{Mesh: m})
		t.Cleanup(h.Close)
		of, record := *d, *d.Record
		record.Hosts, of.Record = c.hosts, &record
		o, err := h.allFeatures(ada, &of)
		if err != nil || o.ToolOf("sell") == nil && o.Tool("sell") == nil {
			t.Fatalf("%s: %+v, %v", name, o, err)
		}
		if from := <-callers; from != c.list {
			t.Errorf("%s: the list was requested by %q", name, from)
		}
		f, leave, err := h.use(&of)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.server.Call(ada, modernRequest(protocol.CallTool, map[string]any{"name": "sell"}), nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		leave()
		if from := <-callers; from != c.calls {
			t.Errorf("%s: the tool was called by %q", name, from)
		}
	}
}

// A session that began while the host of a server was offline is notified that its lists may have changed, also if the host returns before
// it subscribes.
func TestLateSubscriptionOfStaleSession(t *testing.T) {
	t.Parallel()
	m := bridgetest.NewMesh(t)
	thing, _ := newShop(t)
	d := add(t, m, "urn:shop", shopTD, thing)
	h := New(Options{Mesh: m})
	defer h.Close()
	f := h.newEndpoint(d, d.Ref(), "mcp")
	defer f.server.(*remoteServer).close()
	for _, stale := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		q := protocol.Request(`1`, protocol.Listen, map[string]any{"notifications": map[string]any{"toolsListChanged": true},
			"_meta": map[string]any{protocol.MetaVersion: protocol.Modern, protocol.MetaCapabilities: struct{}{}}})
		var received []string
		_, _ = f.server.(*remoteServer).listen(ctx, q, func(n *protocol.Message) error {
			if received = append(received, n.Method()); !stale || n.Method() == protocol.ToolsChanged {
				cancel()
			}
			return nil
		}, stale)
		cancel()
		if want := map[bool]string{true: protocol.Acknowledged + " " + protocol.ToolsChanged, false: protocol.Acknowledged}[stale]; strings.Join(received, " ") != want {
			t.Errorf("stale %v: it receives %q", stale, received)
		}
	}
}
