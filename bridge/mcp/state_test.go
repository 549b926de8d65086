package mcp

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// counter is the variable that makes the test program a counting server of the revision in it.
const counter = "LMOSD_TEST_COUNTER"

// serveCount serves a program that counts its requests in memory.
func serveCount(version string) {
	var n atomic.Int64
	said := func() string { return fmt.Sprint(n.Add(1)) }
	s := newServer([]string{version}, func(s *sdk.Server) {
		tool := func(name string, answer func(*sdk.CallToolRequest) (*sdk.CallToolResult, error)) {
			s.AddTool(&sdk.Tool{Name: name, InputSchema: map[string]any{"type": "object"}},
				func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) { return answer(r) })
		}
		tool("count", func(*sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: said()}}}, nil
		})
		tool("ask", func(r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			if r.Params.InputResponses["q"] == nil {
				return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{"q": &sdk.ElicitParams{Message: "More?",
					RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{}}}}}, nil
			}
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: said()}}}, nil
		})
		tool("exit", func(*sdk.CallToolRequest) (*sdk.CallToolResult, error) { os.Exit(3); return nil, nil })
		s.AddPrompt(&sdk.Prompt{Name: "say"}, func(context.Context, *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
			return &sdk.GetPromptResult{Messages: []*sdk.PromptMessage{{Role: "user", Content: &sdk.TextContent{Text: said()}}}}, nil
		})
		s.AddResource(&sdk.Resource{URI: "test://n", Name: "n", MIMEType: "text/plain"},
			func(context.Context, *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
				return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: "test://n", MIMEType: "text/plain", Text: said()}}}, nil
			})
	})
	_ = s.Run(context.Background(), &sdk.StdioTransport{}) // it ends with its input
}

// importCounter imports serveCount as a separate program.
func importCounter(t *testing.T, version string) *bridge.Agent {
	t.Helper()
	a, err := New(Options{}).Import(t.Context(), interact.Quote(os.Args[0]), bridge.Import{Name: "counter", Env: []string{counter + "=" + version}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

// tunnelled connects a client of the Go SDK to an agent through its tunnel.
func tunnelled(t *testing.T, a *bridge.Agent, version string, o *sdk.ClientOptions) *sdk.ClientSession {
	t.Helper()
	relay := backend.New(backend.Options{Relay: true, Name: "relay", Dial: func(ctx context.Context) (protocol.Conn, error) {
		return protocol.Lines(bridge.Dial(ctx, a.Thing, &interact.Message{Name: tunnelAction, ID: interact.NewID()})), nil
	}})
	here, there := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = backend.Serve(context.Background(), relay, protocol.Lines(there), nil)
	}()
	t.Cleanup(func() {
		here.Close()
		<-served
		relay.Close()
	})
	s, err := sdk.NewClient(&sdk.Implementation{Name: "client", Version: "1"}, o).Connect(t.Context(),
		&sdk.IOTransport{Reader: here, Writer: here}, &sdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// One process of a program with state serves the mesh and all modern clients with equal capabilities; each legacy session has its own.
func TestStateOfAProgram(t *testing.T) {
	t.Parallel()
	asks := &sdk.ClientOptions{ElicitationHandler: func(context.Context, *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
		return &sdk.ElicitResult{Action: "accept"}, nil
	}}
	tool := func(s *sdk.ClientSession, name string) string {
		r, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: name})
		if err != nil || r.IsError || len(r.Content) != 1 {
			return fmt.Sprint(r, err)
		}
		return r.Content[0].(*sdk.TextContent).Text
	}
	// all calls over each path, and returns the results.
	all := func(s *sdk.ClientSession) string {
		said := []string{tool(s, "count"), tool(s, "ask")}
		if r, err := s.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "test://n"}); err == nil {
			said = append(said, r.Contents[0].Text)
		}
		if r, err := s.GetPrompt(t.Context(), &sdk.GetPromptParams{Name: "say"}); err == nil {
			said = append(said, r.Messages[0].Content.(*sdk.TextContent).Text)
		}
		_, _ = s.ListTools(t.Context(), nil)
		return strings.Join(append(said, tool(s, "count")), " ")
	}
	for _, version := range []string{protocol.Modern, protocol.Legacy} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			a := importCounter(t, version)
			first, second := tunnelled(t, a, protocol.Modern, asks), tunnelled(t, a, protocol.Modern, asks)
			if got := all(first); got != "1 2 3 4 5" {
				t.Errorf("a stateless client: %s", got)
			}
			if got := all(second); got != "6 7 8 9 10" {
				t.Errorf("another stateless client: %s", got)
			}
			if version == protocol.Modern {
				return // it has one process for all callers
			}
			for range 2 {
				if got := all(tunnelled(t, a, protocol.Legacy, asks)); got != "1 2 3 4 5" {
					t.Errorf("a legacy session: %s", got)
				}
			}
			if got, err := countOverMesh(t, a.Thing); err != nil || got != "1 2 3" {
				t.Errorf("the mesh: %s, %v", got, err)
			}
			if got := tool(first, "count"); got != "11" {
				t.Errorf("the first client again: %s", got)
			}
			_, _ = first.CallTool(t.Context(), &sdk.CallToolParams{Name: "exit"})
			if got := all(first); got != "1 2 3 4 5" {
				t.Errorf("after a restart of the program: %s", got)
			}
		})
	}
}

// countOverMesh returns counts of an action, by one that requires input, and by a property.
func countOverMesh(t *testing.T, thing interact.Thing) (string, error) {
	var said []string
	for _, m := range []*interact.Message{invoke("count", ""), invoke("ask", ""), {Type: interact.ReadProperty, ID: interact.NewID(), Name: "n"}} {
		for r, err := range thing.Do(t.Context(), m) {
			switch {
			case err != nil:
				return strings.Join(said, " "), err
			case r.Status == interact.StatusInputRequired:
				answer := m.Reply(interact.ContinueAction, interact.JSON, []byte(`{"r1":{"action":"accept","content":{}}}`))
				answer.ActionID = r.ActionID
				go func() { _, _ = interact.Call(t.Context(), thing, answer) }() // the loop continues only then
			default:
				said = append(said, strings.Trim(string(r.Data), `"`))
			}
		}
	}
	return strings.Join(said, " "), nil
}
