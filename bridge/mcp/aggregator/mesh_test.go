package aggregator

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/bridgetest"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func TestMeshFeatures(t *testing.T) {
	t.Parallel()
	m, _ := newScriptedMesh(t)
	shop, _ := newShop(t)
	add(t, m, "urn:shop", shopTD, shop)
	add(t, m, "urn:away", strings.Replace(scriptedTD, "Desk", "Away", 1), nil)
	url := serveMesh(t, m, "desk/greet", "shop", "away/greet", "never/seen")
	_, at := featuresOf(t, m, "shop")
	menu := at + "/mcp/shop://menu"
	eachRevision(t, func(t *testing.T, version string) {
		s := connect(t, url+"/mcp", version, acceptInput())
		list, err := s.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, tool := range list.Tools {
			names = append(names, tool.Name)
		}
		bought := under("shop", "buy.it")
		want := []string{"away__greet", "desk__greet", "mesh_call", "mesh_describe", "mesh_read", "mesh_search", bought}
		slices.Sort(want)
		if !slices.Equal(names, want) {
			t.Errorf("got %q, want %q", names, want)
		}
		for _, test := range []struct {
			tool, args, want string
			isError          bool
		}{
			{"desk__greet", `{"value":"Ann"}`, "hello Ann", false},
			{bought, `{"what":"tea"}`, `bought tea|{"type":"image","mimeType":"image/png","data":"cG5n"}`, false},
			{bought, `{"what":"a car"}`, "car accept", false},
			{"away__greet", `{"value":"Ann"}`, "no binding of this node reaches", true},
			{"mesh_call", `{"thing":"desk","tool":"add","arguments":{"a":2,"b":5}}`, `{"sum":7}`, false},
			{"mesh_call", `{"thing":"desk","tool":"confirm","arguments":{"value":"x"}}`, `accept {"yes":true}`, false},
			{"mesh_call", `{"thing":"shop","tool":"buy.it","arguments":{"what":"a car"}}`, "car accept", false},
			{"mesh_call", `{"thing":"desk","tool":"fly"}`, "unknown tool", true},
			{"mesh_call", `{"thing":"nobody","tool":"fly"}`, "no agent matches", true},
			{"mesh_read", `{"thing":"desk","uri":"motto"}`, "work", false},
			{"mesh_read", `{"thing":"shop","uri":"menu"}`, "soup", false},
			{"mesh_read", `{"thing":"shop","uri":"shop://menu"}`, "soup", false},
			{"mesh_search", `{"query":"buy something"}`, `"name":"buy"`, false},
			{"mesh_search", `{"query":"buy something"}`, `"total":1`, false},
			{"mesh_search", `{"cursor":"made up"}`, "the page does not exist", true},
			{"mesh_search", `{}`, "missing argument query", true},
			{"mesh_describe", `{"thing":"shop"}`, `"name":"buy.it"`, false},
			{"mesh_describe", `{"thing":"desk","tool":"add"}`, `"required":["a","b"]`, false},
			{"mesh_describe", `{}`, "missing argument thing", true},
		} {
			r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: test.tool, Arguments: json.RawMessage(test.args)})
			if err != nil {
				t.Errorf("%s %s: %v", test.tool, test.args, err)
				continue
			}
			if !strings.Contains(textOf(r), test.want) || r.IsError != test.isError {
				t.Errorf("%s %s: got %q (error %v), want %q", test.tool, test.args, textOf(r), r.IsError, test.want)
			}
			if test.want[:3] == "bou" && r.Meta["shop/receipt"] != "7" {
				t.Errorf("the _meta of a server is %v", r.Meta)
			}
		}
		if r, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: menu}); err != nil || r.Contents[0].Text != "soup" || r.Contents[0].URI != menu {
			t.Errorf("got %+v, %v", r, err)
		}
		if p, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "shop__welcome"}); err != nil || len(p.Messages) != 1 {
			t.Errorf("got %+v, %v", p, err)
		}
	})
}

// A search has one page per Thing here, and each Thing is on one page.
func TestSearchHasPages(t *testing.T) {
	t.Parallel()
	eachRevision(t, func(t *testing.T, version string) {
		m, _ := newScriptedMesh(t)
		for i := range 5 {
			add(t, m, fmt.Sprintf("urn:kiosk:%d", i), strings.Replace(shopTD, `"title":"Shop"`, fmt.Sprintf(`"title":"Kiosk %d sells newspapers"`, i), 1), nil)
		}
		s := connect(t, serveMesh(t, m, "desk")+"/mcp", version, nil)
		seen, args := map[string]int{}, `{"query":"newspapers","limit":2}`
		for page := range 4 {
			r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "mesh_search", Arguments: json.RawMessage(args)})
			if err != nil || r.IsError {
				t.Fatal(textOf(r), err)
			}
			var doc struct {
				Results []struct{ Thing string }
				Total   int
				Next    string `json:"nextCursor"`
			}
			if err := json.Unmarshal([]byte(textOf(r)), &doc); err != nil || doc.Total != 5 || (doc.Next == "") != (page == 2) {
				t.Fatalf("page %d: %s, %v", page, textOf(r), err)
			}
			for _, hit := range doc.Results {
				seen[hit.Thing]++
			}
			if args = fmt.Sprintf(`{"cursor":%q}`, doc.Next); doc.Next == "" {
				break
			}
		}
		if len(seen) != 5 {
			t.Errorf("got %v, want five things once each", seen)
		}
	})
}

func TestMeshChangeNotifications(t *testing.T) {
	t.Parallel()
	eachRevision(t, func(t *testing.T, version string) {
		m, d := newScriptedMesh(t)
		shop, server := newShop(t)
		add(t, m, "urn:shop", shopTD, shop)
		url := serveMesh(t, m, "desk", "shop/menu")
		updated, changed := make(chan string, 8), make(chan struct{}, 8)
		s := connect(t, url+"/mcp", version, &mcp.ClientOptions{
			ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
			ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) { updated <- r.Params.URI }})
		for _, name := range []string{"desk", "shop"} {
			_, at := featuresOf(t, m, name)
			uri := at + map[string]string{"desk": "/properties/level", "shop": "/mcp/shop://menu"}[name]
			if err := s.Subscribe(t.Context(), &mcp.SubscribeParams{URI: uri}); err != nil {
				t.Fatal(err)
			}
			if name == "desk" {
				d.news <- struct{}{}
			} else if err := server.ResourceUpdated(t.Context(), &mcp.ResourceUpdatedNotificationParams{URI: "shop://menu"}); err != nil {
				t.Fatal(err)
			}
			if got := <-updated; got != uri {
				t.Errorf("got %s, want %s", got, uri)
			}
		}
		add(t, m, "urn:other", strings.Replace(scriptedTD, "Desk", "Other", 1), d) // not pinned
		add(t, m, "urn:desk", strings.Replace(scriptedTD, `"greet"`, `"salute"`, 1), d)
		eventually(t, "the change of the list", changed)
	})
}

func TestPages(t *testing.T) {
	t.Parallel()
	m := bridgetest.NewMesh(t)
	add(t, m, "urn:big", bigTD(t, 3*pageSize/2), newScriptedThing())
	url := serveMesh(t, m, "big")
	s := connect(t, url+"/mcp", protocol.Modern, nil)
	n, last := 0, ""
	for tool, err := range s.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; tool.Name <= last {
			t.Fatalf("%s comes after %s", tool.Name, last)
		}
		last = tool.Name
	}
	if n != 3*pageSize/2+len(ownTools) {
		t.Errorf("got %d tools", n)
	}
	for _, cursor := range []string{`"x"`, `""`, `"after:%"`, `7`} {
		if r := post(t, url+"/mcp", "", "tools/list", `{"cursor":`+cursor+`}`, `{}`); r.Error() == nil || r.Error().Code != protocol.InvalidParams {
			t.Errorf("cursor %s: %s", cursor, interact.Clip(string(r.Bytes()), 200))
		}
	}
}

func bigTD(t testing.TB, n int) string {
	actions := map[string]any{}
	for i := range n {
		actions[fmt.Sprintf("do%d", i)] = map[string]any{}
	}
	raw, err := json.Marshal(map[string]any{"title": "Big", "actions": actions})
	if err != nil || len(raw) > td.MaxTD {
		t.Fatal(len(raw), err)
	}
	return string(raw)
}

// Messages on stdio get responses line by line, in all revisions.
func TestLines(t *testing.T) {
	t.Parallel()
	m, _ := newScriptedMesh(t)
	url := serveMesh(t, m)
	eachRevision(t, func(t *testing.T, version string) {
		in, out := io.Pipe()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/mcp", in)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", LinesType)
		transport := &http.Transport{}
		defer transport.CloseIdleConnections()
		resp, err := (&http.Client{Transport: transport}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, acceptInput())
		s, err := c.Connect(t.Context(), &mcp.IOTransport{Reader: resp.Body, Writer: out}, &mcp.ClientSessionOptions{ProtocolVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "mesh_call",
			Arguments: json.RawMessage(`{"thing":"desk","tool":"confirm","arguments":{"value":"x"}}`)})
		if err != nil || textOf(got) != `accept {"yes":true}` {
			t.Errorf("got %+v, %v", got, err)
		}
		out.Close()
		resp.Body.Close()
		s.Close()
	})
}

// Unused endpoints make room for others.
func TestEndpointsAreBounded(t *testing.T) {
	t.Parallel()
	m := bridgetest.NewMesh(t)
	h := New(Options{Mesh: m})
	defer h.Close()
	var first string
	for i := range maxEndpoints + 10 {
		d := add(t, m, fmt.Sprintf("urn:n%d", i), `{"title":"n"}`, newScriptedThing())
		_, leave, err := h.use(d)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = d.Ref() // which remains in use
		} else {
			leave()
		}
	}
	if len(h.endpoints) != maxEndpoints || h.endpoints[first] == nil {
		t.Errorf("there are %d endpoints, and the one in use is closed: %v", len(h.endpoints), h.endpoints[first] == nil)
	}
}

func BenchmarkLists(b *testing.B) {
	m := bridgetest.NewMesh(b)
	var pins []string
	for i := range 100 {
		actions := map[string]any{}
		for k := range 20 {
			actions[fmt.Sprintf("tool%d", k)] = map[string]any{"mcp:name": fmt.Sprintf("tool%d", k),
				"description": "Looks something up in the warehouse of the shop, by name, size and colour.",
				"mcp:inputSchema": map[string]any{"type": "object", "properties": map[string]any{
					"name": map[string]any{"type": "string", "description": "what it is called"}, "size": map[string]any{"type": "integer"}}}}
		}
		actions["mcp"] = map[string]any{"@type": bridge.MCPSession}
		raw, _ := json.Marshal(map[string]any{"title": fmt.Sprintf("Server %d", i), "actions": actions})
		add(b, m, fmt.Sprintf("urn:server:%d", i), string(raw), newScriptedThing())
		pins = append(pins, fmt.Sprintf("urn:server:%d", i))
	}
	h := New(Options{Mesh: m, Pins: pins})
	defer h.Close()
	ask := func(method string, params any) {
		r, err := h.mesh.server.Call(b.Context(), protocol.Request(`1`, method, params), nil)
		if err != nil || r.Error() != nil {
			b.Fatal(err, r)
		}
	}
	b.Run("page", func(b *testing.B) {
		for b.Loop() {
			ask("tools/list", map[string]any{})
		}
	})
	b.Run("after-a-change", func(b *testing.B) {
		last, err := m.Get(b.Context(), "urn:server:99")
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			m.Notify(directory.Changed, directory.Reachable, last, nil)
			ask("tools/list", map[string]any{})
		}
	})
	b.Run("search", func(b *testing.B) {
		for b.Loop() {
			ask("tools/call", map[string]any{"name": "mesh_search", "arguments": map[string]any{"query": "look up something in the warehouse"}})
		}
	})
}
