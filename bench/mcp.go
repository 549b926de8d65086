package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/bridge"
	bridgemcp "github.com/lmosd/lmosd/bridge/mcp"
	"github.com/lmosd/lmosd/expose"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/td"
)

var mcpSystems = []system{
	{"go-sdk, direct over HTTP", func(ctx context.Context) (func() (caller, error), func(), error) {
		url, stop, err := child(ctx, "mcp-http")
		return mcpCaller(ctx, url), stop, err
	}},
	{"two lmosd before stdio (TCP)", func(ctx context.Context) (func() (caller, error), func(), error) { return startMCP(ctx, "tcp") }},
	{"two lmosd before stdio (QUIC)", func(ctx context.Context) (func() (caller, error), func(), error) { return startMCP(ctx, "quic") }},
	{"mcp-proxy before stdio", startMCPProxy},
}

// mcpCallers are how many call at once.
var mcpCallers = []int{1, 8}

// mcpTable compares a call of a tool over MCP: to a server that speaks HTTP itself, and to the same one on stdio behind two nodes, or
// behind mcp-proxy. Client, nodes, proxy and server are processes of their own.
func mcpTable(ctx context.Context, p plan) error {
	all, err := compareAt(ctx, p, mcpSystems, mcpCallers)
	if err != nil {
		return err
	}
	direct := all.of(mcpSystems[0].name, 1)
	fmt.Println("| way | 1 caller p50 | p99 | p50 / direct | 8 callers calls/s |")
	fmt.Println("|---|---|---|---|---|")
	for _, s := range mcpSystems {
		if all[s.name] == nil {
			continue
		}
		one, many := all.of(s.name, 1), all.of(s.name, 8)
		fmt.Printf("| %s | %.0f µs | %.0f µs | %.2f | %.0f |\n", s.name, us(one.p50), us(one.p99), us(one.p50)/us(direct.p50), many.rate)
	}
	return nil
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

// mcpTarget is the program, as it is exposed.
func mcpTarget() (string, error) {
	self, err := os.Executable()
	return "mcp:exec " + self + " -role mcp-stdio", err
}

// serveMCPHost is a node that offers the program.
func serveMCPHost(ctx context.Context, kind string) error {
	n, stop, err := start(ctx, options(kind))
	if err != nil {
		return err
	}
	defer stop()
	target, err := mcpTarget()
	if err != nil {
		return err
	}
	x, err := expose.Open(ctx, expose.Spec{Target: target, Name: "bench-mcp"}, []bridge.Bridge{bridgemcp.New(bridgemcp.Options{})}, nil)
	if err != nil {
		return err
	}
	defer x.Close()
	draft, err := td.Draft(x.TD)
	if err != nil {
		return err
	}
	p, err := n.Offer(ctx, draft, x.Thing)
	if err != nil {
		return err
	}
	fmt.Printf("%s %s\n", n.Addrs()[0], p.Ref)
	<-ctx.Done()
	return nil
}

// serveMCPConsumer is a node that serves the things of another to MCP clients. arg is as of serveConsumer.
func serveMCPConsumer(ctx context.Context, arg string) error {
	part := strings.SplitN(arg, ",", 3)
	o := options(part[0])
	o.HTTP = &node.HTTP{Listen: "127.0.0.1:0", Explicit: true, NoAuth: true}
	o.Bridges = []bridge.Bridge{bridgemcp.New(bridgemcp.Options{})}
	n, stop, err := start(ctx, o)
	if err != nil {
		return err
	}
	defer stop()
	if err := meet(ctx, n, part[1], part[2]); err != nil {
		return err
	}
	fmt.Println(n.API())
	<-ctx.Done()
	return nil
}

// startMCP runs the program's node and the consumer's.
func startMCP(ctx context.Context, kind string) (func() (caller, error), func(), error) {
	line, stopHost, err := child(ctx, "mcp-host="+kind)
	if err != nil {
		return nil, nil, err
	}
	addr, ref, _ := strings.Cut(line, " ")
	api, stopConsumer, err := child(ctx, "mcp-consumer="+kind+","+addr+","+ref)
	if err != nil {
		stopHost()
		return nil, nil, err
	}
	return mcpCaller(ctx, api+"/mcp/things/bench-mcp"), func() { stopConsumer(); stopHost() }, nil
}

// startMCPProxy runs mcp-proxy before the program.
func startMCPProxy(ctx context.Context) (func() (caller, error), func(), error) {
	if _, err := exec.LookPath("mcp-proxy"); err != nil {
		return nil, nil, skip("mcp-proxy is not installed (npm install -g mcp-proxy@6.7.19)")
	}
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	cmd := exec.CommandContext(ctx, "mcp-proxy", "--host", "127.0.0.1", "--port", port, "--server", "stream", "--", self, "-role", "mcp-stdio")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	stop := func() { _ = cmd.Process.Signal(os.Interrupt); _ = cmd.Wait() }
	url := "http://127.0.0.1:" + port + "/mcp"
	dial := mcpCaller(ctx, url)
	for begun := time.Now(); time.Since(begun) < 20*time.Second; time.Sleep(100 * time.Millisecond) {
		if c, err := dial(); err == nil {
			c.close()
			return dial, stop, nil
		}
	}
	stop()
	return nil, nil, errors.New("it does not answer")
}

// mcpCaller makes callers with a session of the go-sdk's client each.
func mcpCaller(ctx context.Context, url string) func() (caller, error) {
	web := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}}
	client := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	return func() (caller, error) {
		s, err := client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: web, DisableStandaloneSSE: true}, nil)
		if err != nil {
			return caller{}, err
		}
		return caller{close: func() { s.Close(); web.CloseIdleConnections() }, call: func(ctx context.Context) error {
			r, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"text": string(payload)}})
			if err == nil && (r.IsError || len(r.Content) != 1) {
				err = errors.New("it answers something else")
			}
			return err
		}}, nil
	}
}
