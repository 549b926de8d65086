package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The systems of mcpTable.
const (
	mcpDirect = "go-sdk, direct over HTTP"
	mcpNpm    = "mcp-proxy before stdio"
)

var mcpSystems = []system{
	{mcpDirect, func(ctx context.Context) (dialer, func(), error) {
		url, stop, err := child(ctx, "mcp-http")
		return mcpCaller(ctx, url, "echo", "text"), stop, err
	}},
	{"two lmosd before stdio (TCP)", over("tcp", startMCP)},
	{"two lmosd before stdio (QUIC)", over("quic", startMCP)},
	{mcpNpm, startMCPProxy},
}

// mcpTable compares calls of an MCP tool: to a server with HTTP, and to the same one on stdio behind two nodes, or behind mcp-proxy.
// Client, nodes, proxy and server are separate processes.
func mcpTable(ctx context.Context, p plan) error {
	all, err := against(ctx, p, mcpSystems, mcpDirect, "direct", 8)
	if err != nil {
		return err
	}
	for _, s := range mcpSystems[1:3] {
		p.atMost("p50 of 1 caller, "+s.name+" / direct", all.time(s.name, mcpDirect), 2, "")
		p.atLeast("calls/s of 8 callers, "+s.name+" / direct", all.rate(s.name, mcpDirect, 8), 1, "")
		if all[mcpNpm] != nil {
			p.atMost("p50 of 1 caller, "+s.name+" / mcp-proxy", all.time(s.name, mcpNpm), 1, "")
		}
	}
	return nil
}

// mcpServer has one tool, which returns its input.
func mcpServer() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	s.AddTool(&mcp.Tool{Name: "echo", InputSchema: map[string]any{"type": "object"}},
		func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(r.Params.Arguments)}}}, nil
		})
	return s
}

// serveMCPStdio runs the server on standard input and output.
func serveMCPStdio(ctx context.Context) error { return mcpServer().Run(ctx, &mcp.StdioTransport{}) }

// serveMCPHTTP runs the server over stateless HTTP, as of 2026-07-28.
func serveMCPHTTP(ctx context.Context, _ string) error {
	server := mcpServer()
	return serveHTTP(ctx, func(string) http.Handler {
		return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: true})
	})
}

// startMCP runs two nodes, one of which has the program as a child.
func startMCP(ctx context.Context, kind string) (dialer, func(), error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	api, _, stop, err := between(ctx, kind, "import="+kind+",mcp:exec "+self+" -role mcp-stdio")
	return mcpCaller(ctx, api+"/mcp/things/bench", "echo", "text"), stop, err
}

// mcpProxyPackage is the compared npm package.
const mcpProxyPackage = "mcp-proxy@6.7.19"

// mcpProxy returns the program: an installed one, or one that npm installs into a folder, which remove deletes.
func mcpProxy(ctx context.Context) (program string, remove func(), err error) {
	if program, err = exec.LookPath("mcp-proxy"); err == nil {
		return program, func() {}, nil
	}
	dir, err := os.MkdirTemp("", "mcp-proxy")
	if err != nil {
		return "", nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	npm := exec.CommandContext(ctx, "npm", "install", "--no-audit", "--no-fund", "--prefix", dir, mcpProxyPackage)
	output, err := npm.CombinedOutput()
	if err != nil {
		remove()
		return "", nil, skip(fmt.Sprintf("%s cannot be installed: %v %.200s", mcpProxyPackage, err, output))
	}
	return filepath.Join(dir, "node_modules", ".bin", "mcp-proxy"), remove, nil
}

// startMCPProxy runs mcp-proxy in front of the program.
func startMCPProxy(ctx context.Context) (dialer, func(), error) {
	program, remove, err := mcpProxy(ctx)
	if err != nil {
		return nil, nil, err
	}
	self, err := os.Executable()
	if err != nil {
		remove()
		return nil, nil, err
	}
	at, err := freePort()
	if err != nil {
		remove()
		return nil, nil, err
	}
	_, port, _ := net.SplitHostPort(at)
	cmd := exec.CommandContext(ctx, program, "--host", "127.0.0.1", "--port", port, "--server", "stream", "--", self, "-role", "mcp-stdio")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		remove()
		return nil, nil, err
	}
	stop := func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		remove()
	}
	dial := mcpCaller(ctx, "http://"+at+"/mcp", "echo", "text")
	err = until(ctx, 20*time.Second, func(context.Context) error {
		c, err := dial()
		if err == nil {
			c.close()
		}
		return err
	})
	if err != nil {
		stop()
		return nil, nil, fmt.Errorf("mcp-proxy does not answer: %w", err)
	}
	return dial, stop, nil
}

// mcpSession returns a session of the go-sdk's client.
func mcpSession(ctx context.Context, url string) (*mcp.ClientSession, func(), error) {
	web := webClient()
	s, err := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil).Connect(ctx,
		&mcp.StreamableClientTransport{Endpoint: url, HTTPClient: web, DisableStandaloneSSE: true}, nil)
	return s, func() { s.Close(); web.CloseIdleConnections() }, err
}

// mcpCaller makes callers of a tool, each with its own session. argument is the name of the payload.
func mcpCaller(ctx context.Context, url, name, argument string) dialer {
	return func() (caller, error) {
		s, end, err := mcpSession(ctx, url)
		return caller{close: end, call: func(ctx context.Context) error {
			r, err := s.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: map[string]any{argument: string(payload)}})
			if err == nil && (r.IsError || len(r.Content) == 0) {
				err = errors.New("the response differs from the input")
			}
			return err
		}}, err
	}
}
