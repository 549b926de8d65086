package conformance

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/agent"
	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp"
	"github.com/lmosd/lmosd/expose"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testprogram"
	"github.com/lmosd/lmosd/interop/testmesh"
	"github.com/lmosd/lmosd/node"
)

// Third-party MCP servers from npm are Things of the mesh: their tools, resources and prompts are called and read over HTTP at another node
// than the one to which `lmosd expose mcp:…` attaches them.
func TestMCPServers(t *testing.T) {
	testprogram.Modules(t, "..")
	t.Parallel()
	m := testmesh.Start(t)
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "note.txt"), []byte("Hello from a file."), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		args  string
		env   []string
		least int // actions
		asks  [][3]string
	}{
		"everything": {"", nil, 18, [][3]string{ // path, input or "", part of the response
			{"actions/get-sum", `{"a":1,"b":2}`, `The sum of 1 and 2 is 3.`},
			{"actions/get-structured-content", `{"location":"New York"}`, `{"temperature":33,"conditions":"Cloudy","humidity":82}`},
			{"actions/get-tiny-image", `{}`, `"mimeType":"image/png"`},
			{"actions/trigger-long-running-operation", `{"duration":0.1,"steps":2}`, `completed`},
			{"actions/args-prompt", `{"city":"Bonn"}`, `{"messages":[{"role":"user"`},
			{"properties/features.md", ``, `# Everything Server - Features`},
			{"properties/Dynamic_Text_Resource?resourceId=3", ``, `Resource 3`},
			{"actions/get-sum", `{"a":"x","b":2}`, `LMOS-1400`},
		}},
		"filesystem": {folder, nil, 10, [][3]string{
			{"actions/read_text_file", `{"path":"` + folder + `/note.txt"}`, `Hello from a file.`},
			{"actions/read_text_file", `{"path":"/etc/passwd"}`, `Access denied`},
			{"actions/list_directory", `{"path":"` + folder + `"}`, `note.txt`},
		}},
		"memory": {"", []string{"MEMORY_FILE_PATH=" + filepath.Join(t.TempDir(), "m.jsonl")}, 9, [][3]string{
			{"actions/create_entities", `{"entities":[{"name":"Bo","entityType":"person","observations":["tall"]}]}`, `Bo`},
			{"actions/read_graph", `{}`, `tall`},
		}},
	} {
		line := "mcp:node ../node_modules/@modelcontextprotocol/server-" + name + "/dist/index.js " + test.args
		x, err := expose.Open(t.Context(), expose.Spec{Target: line, Name: name, Env: test.env}, []bridge.Bridge{mcp.New(mcp.Options{Log: testmesh.Logger()})}, testmesh.Logger())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- agent.AttachChanging(ctx, agent.Node{Addr: m.Socket, Token: m.Token}, func() ([]byte, <-chan struct{}) { return x.TD, nil }, x.Thing, nil, testmesh.Logger())
		}()
		d := m.Known(t, name)
		if len(d.Thing.Actions) < test.least {
			t.Errorf("%s: %d actions", name, len(d.Thing.Actions))
		}
		for _, ask := range test.asks {
			if got := askHTTP(t, m.API+"/things/"+name+"/"+ask[0], ask[1]); !strings.Contains(got, ask[2]) {
				t.Errorf("%s: %s %s: %s", name, ask[0], ask[1], interact.Clip(got, 500))
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		x.Close()
	}
}

// askHTTP reads, or posts an input.
func askHTTP(t *testing.T, at, input string) string {
	t.Helper()
	method := http.MethodGet
	if input != "" {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(t.Context(), method, at, strings.NewReader(input))
	if err != nil {
		t.Fatal(err)
	}
	if input != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// A new tool of a server reaches clients of the other node: they are notified, and the description changes there.
func TestMCPListChanges(t *testing.T) {
	t.Parallel()
	imports := []bridge.Bridge{mcp.New(mcp.Options{Log: testmesh.Logger()})}
	m := testmesh.Start(t, func(o *node.Options) { o.Bridges = []bridge.Bridge{mcp.New(mcp.Options{Log: o.Log})} })
	server := sdk.NewServer(&sdk.Implementation{Name: "changing", Version: "1"}, nil)
	add := func(name string) {
		server.AddTool(&sdk.Tool{Name: name, InputSchema: map[string]any{"type": "object"}},
			func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: name}}}, nil
			})
	}
	add("first")
	site := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil))
	t.Cleanup(func() {
		site.CloseClientConnections()
		for one := range server.Sessions() { // those of legacy clients
			one.Close()
		}
		site.Close()
	})
	x, err := expose.Open(t.Context(), expose.Spec{Target: "mcp:" + site.URL, Name: "changing"}, imports, testmesh.Logger())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	defer x.Close()
	defer work.Wait()
	defer cancel()
	var mu sync.Mutex
	latest, next := x.TD, make(chan struct{})
	work.Go(func() {
		for raw := range x.Changes(ctx) {
			mu.Lock()
			close(next)
			latest, next = raw, make(chan struct{})
			mu.Unlock()
		}
	})
	work.Go(func() {
		now := func() ([]byte, <-chan struct{}) {
			mu.Lock()
			defer mu.Unlock()
			return latest, next
		}
		if err := agent.AttachChanging(ctx, agent.Node{Addr: m.Socket, Token: m.Token}, now, x.Thing, nil, testmesh.Logger()); err != nil {
			t.Error(err)
		}
	})
	before := m.Known(t, "changing")

	told := make(chan struct{}, 16)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	client := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, &sdk.ClientOptions{
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) { told <- struct{}{} }})
	s, err := client.Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: m.API + "/mcp/things/changing",
		HTTPClient: &http.Client{Transport: transport}}, &sdk.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	begun, late := time.Now(), time.After(2*time.Minute)
	again := time.NewTicker(200 * time.Millisecond) // the client and the node may subscribe after they are connected
	defer again.Stop()
	add("second")
	for has := false; !has; {
		select {
		case <-told:
		case <-again.C:
			add("second")
			continue
		case <-late:
			t.Fatal("the client is not told")
		}
		list, err := s.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		has = slices.ContainsFunc(list.Tools, func(tool *sdk.Tool) bool { return tool.Name == "second" })
	}
	t.Logf("the client had the list after %v", time.Since(begun))
	for has := false; !has; {
		d := m.Known(t, "changing")
		if _, has = d.Thing.Actions["second"]; has && (d.Record.Hash == before.Record.Hash || d.Ref() != before.Ref()) {
			t.Errorf("the description is %+v, it was %+v", d.Record, before.Record)
		}
		select {
		case <-late:
			t.Fatal("the description stays as it was")
		case <-again.C:
			add("second")
		case <-time.After(time.Millisecond):
		}
	}
	t.Logf("the description was there after %v", time.Since(begun))
	r, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "second"})
	if err != nil || len(r.Content) != 1 {
		t.Errorf("a call of it: %+v, %v", r, err)
	}
}
