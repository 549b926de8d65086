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

var mcpSystems = []system{
	{"go-sdk, direct over HTTP", func(ctx context.Context) (func() (caller, error), func(), error) {
		url, stop, err := child(ctx, "mcp-http")
		return mcpCaller(ctx, url, "echo", "text"), stop, err
	}},
	{"two lmosd before stdio (TCP)", func(ctx context.Context) (func() (caller, error), func(), error) { return startMCP(ctx, "tcp") }},
	{"two lmosd before stdio (QUIC)", func(ctx context.Context) (func() (caller, error), func(), error) { return startMCP(ctx, "quic") }},
	{"mcp-proxy before stdio", startMCPProxy},
}

// mcpTable compares a call of a tool over MCP: to a server that speaks HTTP itself, and to the same one on stdio behind two nodes, or
// behind mcp-proxy. Client, nodes, proxy and server are processes of their own.
func mcpTable(ctx context.Context, p plan) error {
	return against(ctx, p, mcpSystems, []int{1, 8})
}

// mcpServer has one tool, which says what it is told.
func mcpServer() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	s.AddTool(&mcp.Tool{Name: "echo", InputSchema: map[string]any{"type": "object"}},
		func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(r.Params.Arguments)}}}, nil
		})
	return s
}

// serveMCPStdio is the server as a program on its standard input and output.
func serveMCPStdio(ctx context.Context) error { return mcpServer().Run(ctx, &mcp.StdioTransport{}) }

// serveMCPHTTP is the server over HTTP, both eras' way: stateless, as 2026-07-28 wants it.
func serveMCPHTTP(ctx context.Context) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := mcpServer()
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: true})
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: h}
	go func() { <-ctx.Done(); _ = s.Close() }()
	fmt.Printf("http://%s\n", l.Addr())
	_ = s.Serve(l)
	return nil
}

// startMCP runs two nodes, of which one has the program as a child.
func startMCP(ctx context.Context, kind string) (func() (caller, error), func(), error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	api, _, stop, err := between(ctx, kind, "import="+kind+",mcp:exec "+self+" -role mcp-stdio")
	return mcpCaller(ctx, api+"/mcp/things/bench", "echo", "text"), stop, err
}

// mcpProxyPackage is what is compared with, of npm.
const mcpProxyPackage = "mcp-proxy@6.7.19"

// mcpProxy returns the program: one that is installed, or one that npm puts into a folder of its own, which remove deletes.
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

// startMCPProxy runs mcp-proxy before the program.
func startMCPProxy(ctx context.Context) (func() (caller, error), func(), error) {
	program, remove, err := mcpProxy(ctx)
	if err != nil {
		return nil, nil, err
	}
	self, err := os.Executable()
	if err != nil {
		remove()
		return nil, nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		remove()
		return nil, nil, err
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
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
	url := "http://127.0.0.1:" + port + "/mcp"
	dial := mcpCaller(ctx, url, "echo", "text")
	for start := time.Now(); time.Since(start) < 20*time.Second; time.Sleep(100 * time.Millisecond) {
		if c, err := dial(); err == nil {
			c.close()
			return dial, stop, nil
		}
	}
	stop()
	return nil, nil, errors.New("it does not answer")
}

// mcpSession is a session of the go-sdk's client.
func mcpSession(ctx context.Context, url string) (*mcp.ClientSession, func(), error) {
	web := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}}
	s, err := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil).Connect(ctx,
		&mcp.StreamableClientTransport{Endpoint: url, HTTPClient: web, DisableStandaloneSSE: true}, nil)
	return s, func() { s.Close(); web.CloseIdleConnections() }, err
}

// mcpCaller makes callers of a tool, with a session each. argument is what takes the payload.
func mcpCaller(ctx context.Context, url, name, argument string) func() (caller, error) {
	return func() (caller, error) {
		s, end, err := mcpSession(ctx, url)
		return caller{close: end, call: func(ctx context.Context) error {
			r, err := s.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: map[string]any{argument: string(payload)}})
			if err == nil && (r.IsError || len(r.Content) == 0) {
				err = errors.New("it answers something else")
			}
			return err
		}}, err
	}
}
