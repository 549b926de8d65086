//lint:file-ignore SA1019 logs, sampling and roots are deprecated, and carried all the same

package backend_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// A fixture is an MCP program with the go-sdk: each connection is a separate process. The test sends its notifications.
type fixture struct {
	versions []string
	ended    sync.WaitGroup

	mu         sync.Mutex
	running    map[*mcp.Server]net.Conn
	started    int
	hangEvents chan struct{} // receives a value when the tool hang starts, and when it ends
}

func newFixture(t *testing.T, versions ...string) *fixture {
	f := &fixture{versions: versions, running: map[*mcp.Server]net.Conn{}, hangEvents: make(chan struct{}, 16)}
	t.Cleanup(f.ended.Wait)
	return f
}

// dial starts a process.
func (f *fixture) dial(context.Context) (protocol.Conn, error) {
	here, there := net.Pipe()
	s := mcp.NewServer(&mcp.Implementation{Name: "fixture", Version: "1"}, &mcp.ServerOptions{
		SupportedProtocolVersions: f.versions,
		SubscribeHandler:          func(context.Context, *mcp.SubscribeRequest) error { return nil },
		UnsubscribeHandler:        func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
	})
	f.addFeatures(s)
	f.mu.Lock()
	f.running[s] = there
	f.started++
	f.mu.Unlock()
	session, err := s.Connect(context.Background(), &mcp.IOTransport{Reader: there, Writer: there}, nil)
	if err != nil {
		return nil, err
	}
	f.ended.Go(func() {
		_ = session.Wait()
		there.Close()
		f.mu.Lock()
		delete(f.running, s)
		f.mu.Unlock()
	})
	return protocol.Lines(here), nil
}

// crash ends all processes.
func (f *fixture) crash() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.running {
		c.Close()
	}
}

func (f *fixture) each(do func(*mcp.Server)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.running {
		if do != nil {
			do(s)
		}
	}
}

func text(format string, args ...any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}
}

const watched = "test://watched"

func (f *fixture) addFeatures(s *mcp.Server) {
	tool := func(name string, h mcp.ToolHandler) {
		s.AddTool(&mcp.Tool{Name: name, InputSchema: map[string]any{"type": "object"}}, h)
	}
	tool("echo", func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return text("%s", r.Params.Arguments), nil
	})
	tool("ask", ask)
	tool("elicit", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{RequestState: "state", InputRequests: mcp.InputRequestMap{"name": &mcp.ElicitParams{Message: "Name?"}}}, nil
	})
	tool("progress", func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		for i := range 3 {
			_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: float64(i + 1)})
		}
		return text("done"), nil
	})
	tool("log", func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return text("done"), r.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Data: "hello"})
	})
	tool("change", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		f.each(func(s *mcp.Server) {
			s.AddTool(&mcp.Tool{Name: "new", InputSchema: map[string]any{"type": "object"}}, ask)
		})
		return text("done"), nil
	})
	tool("touch", func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		f.each(func(s *mcp.Server) { _ = s.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: watched}) })
		return text("done"), nil
	})
	tool("hang", func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		f.hangEvents <- struct{}{}
		<-ctx.Done()
		f.hangEvents <- struct{}{}
		return nil, ctx.Err()
	})
	tool("crash", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		f.crash()
		return text("too late"), nil
	})
	s.AddResource(&mcp.Resource{URI: watched, Name: "watched"}, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: watched, Text: "it"}}}, nil
	})
}

// ask requires three inputs of the client at once, and returns them.
func ask(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	got := r.Params.InputResponses
	name, _ := got["name"].(*mcp.ElicitResult)
	model, _ := got["model"].(*mcp.CreateMessageWithToolsResult)
	roots, _ := got["roots"].(*mcp.ListRootsResult)
	if name != nil && model != nil && roots != nil {
		return text("%s %v %s %s", name.Action, name.Content["name"], model.Model, roots.Roots[0].URI), nil
	}
	return &mcp.CallToolResult{RequestState: "state", InputRequests: mcp.InputRequestMap{
		"name": &mcp.ElicitParams{Message: "Who?", RequestedSchema: &jsonschema.Schema{Type: "object",
			Properties: map[string]*jsonschema.Schema{"name": {Type: "string"}}}},
		"model": &mcp.CreateMessageParams{MaxTokens: 9, Messages: []*mcp.SamplingMessage{{Role: "user", Content: &mcp.TextContent{Text: "?"}}}},
		"roots": &mcp.ListRootsParams{},
	}}, nil
}

// notifications receive a value for each notification of a client, by kind.
type notifications struct{ progress, logs, tools, resources chan struct{} }

func (h notifications) options() *mcp.ClientOptions {
	tell := func(c chan struct{}) { c <- struct{}{} }
	return &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ada"}}, nil
		},
		CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			return &mcp.CreateMessageResult{Model: "m", Role: "assistant", Content: &mcp.TextContent{Text: "!"}}, nil
		},
		ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { tell(h.progress) },
		LoggingMessageHandler:       func(context.Context, *mcp.LoggingMessageRequest) { tell(h.logs) },
		ToolListChangedHandler:      func(context.Context, *mcp.ToolListChangedRequest) { tell(h.tools) },
		ResourceUpdatedHandler:      func(context.Context, *mcp.ResourceUpdatedNotificationRequest) { tell(h.resources) },
	}
}

// connect connects a client of the go-sdk to a backend.
func connect(t *testing.T, b protocol.Server, version string) (*mcp.ClientSession, notifications) {
	t.Helper()
	h := notifications{make(chan struct{}, 64), make(chan struct{}, 64), make(chan struct{}, 64), make(chan struct{}, 64)}
	client := mcp.NewClient(&mcp.Implementation{Name: "client", Version: "1"}, h.options())
	client.AddRoots(&mcp.Root{URI: "file:///work"})
	here, there := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- backend.Serve(context.Background(), b, protocol.Lines(there), nil) }()
	t.Cleanup(func() {
		here.Close()
		<-served
	})
	s, err := client.Connect(t.Context(), &mcp.IOTransport{Reader: here, Writer: here}, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, h
}

func call(t *testing.T, s *mcp.ClientSession, p *mcp.CallToolParams) string {
	t.Helper()
	r, err := s.CallTool(t.Context(), p)
	if err != nil {
		t.Fatalf("%s: %v", p.Name, err)
	}
	var all []string
	for _, c := range r.Content {
		if text, ok := c.(*mcp.TextContent); ok {
			all = append(all, text.Text)
		}
	}
	return strings.Join(all, " ")
}

func open(t *testing.T, o backend.Options) *backend.Backend {
	b := backend.New(o)
	t.Cleanup(b.Close)
	return b
}
