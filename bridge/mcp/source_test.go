package mcp

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// Concurrent callers need a connection each; later callers reuse them.
func TestConnectionsAreReused(t *testing.T) {
	t.Parallel()
	const callers, rounds = 8, 4
	var here, all sync.WaitGroup
	server := newServer([]string{protocol.Modern}, func(s *sdk.Server) {
		meet := func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			here.Done()
			here.Wait()
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "hello"}}}, nil
		}
		s.AddTool(&sdk.Tool{Name: "meet", InputSchema: object}, meet)
	})
	var begun atomic.Int32
	web := httptest.NewUnstartedServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server },
		&sdk.StreamableHTTPOptions{Stateless: true, JSONResponse: true}))
	web.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			begun.Add(1)
		}
	}
	web.Start()
	defer web.Close()
	a, err := New(Options{}).Import(t.Context(), web.URL, bridge.Import{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	begun.Store(0)
	for range rounds {
		here.Add(callers)
		for range callers {
			all.Go(func() {
				if _, err := interact.Call(t.Context(), a.Thing, invoke("meet", "{}")); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	if n := begun.Load(); n > callers {
		t.Errorf("%d connections for %d callers at once", n, callers)
	}
}
