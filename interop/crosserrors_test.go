package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	a2asdk "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a"
	"github.com/lmosd/lmosd/bridge/mcp"
	"github.com/lmosd/lmosd/expose"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/interop/testmesh"
	"github.com/lmosd/lmosd/node"
)

// refusingA2A serves an A2A agent that answers each request over a binding with a status and a body. In the body %s is the id of the
// request.
func refusingA2A(t *testing.T, binding string, status int, body string) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, ".json") {
			fmt.Fprintf(w, `{"name":"Far","description":"d","version":"1","supportedInterfaces":[{"url":"http://%s/rpc","protocolBinding":%q,"protocolVersion":"1.0"}],
				"capabilities":{"streaming":true},"defaultInputModes":["text/plain"],"defaultOutputModes":["text/plain"],
				"skills":[{"id":"x","name":"x","description":"x","tags":["t"]}]}`, r.Host, binding)
			return
		}
		var q struct{ ID json.RawMessage }
		_ = json.NewDecoder(r.Body).Decode(&q)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, strings.Replace(body, "%s", string(q.ID), 1))
	}))
	t.Cleanup(server.Close)
	return server
}

// The code, the message and the data of an agent's error arrive unchanged at a client of another node, in responses and before the first
// event of a stream.
func TestErrorsOfA2AAgentsThroughTwoNodes(t *testing.T) {
	t.Parallel()
	m := a2aMesh(t)
	const data = `{"shelf":12345678901234567890,"why":["<&>"]}`
	const details = `[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"TASK_NOT_CANCELABLE","domain":"a2a-protocol.org","metadata":{"k":"v"}}]`
	for name, c := range map[string]struct {
		binding       string
		status        int
		body          string
		code          int
		message, data string
	}{
		"rpc": {"JSONRPC", 200, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32050,"message":"there is no such shelf","data":` + data + `}}`, -32050,
			"there is no such shelf", data},
		"rest": {"HTTP+JSON", 400, `{"error":{"code":400,"status":"FAILED_PRECONDITION","message":"it is too late","details":` + details + `}}`, -32002,
			"it is too late", details},
	} {
		importA2A(t, m, refusingA2A(t, c.binding, c.status, c.body).URL, name)
		const params = `{"message":{"messageId":"q","role":"ROLE_USER","parts":[{"text":"hello"}]}}`
		for _, method := range []string{"SendMessage", "SendStreamingMessage"} {
			_, got := postA2A(t, m.API+"/a2a/"+name+"/", `{"jsonrpc":"2.0","id":"q","method":"`+method+`","params":`+params+`}`)
			var answer struct {
				Error struct {
					Code    int
					Message string
					Data    json.RawMessage
				}
			}
			_, event, isEvent := strings.Cut(got, "data:")
			if !isEvent {
				event = got
			}
			if err := json.Unmarshal([]byte(event), &answer); err != nil || answer.Error.Code != c.code || answer.Error.Message != c.message ||
				string(answer.Error.Data) != c.data {
				t.Errorf("agent of %s, %s over JSON-RPC: got %s, %v", c.binding, method, got, err)
			}
		}
		for _, path := range []string{"/message:send", "/message:stream"} {
			status, got := postA2A(t, m.API+"/a2a/"+name+path, params)
			if status < 400 || !strings.Contains(got, `"message":"`+c.message+`"`) || !strings.Contains(got, strings.Trim(c.data, "[]")) {
				t.Errorf("agent of %s, %s over REST: got %d with %s", c.binding, path, status, got)
			}
		}
	}
}

// postA2A posts a request of A2A 1.0 and returns the status and the body of the response.
func postA2A(t *testing.T, at, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("A2A-Version", "1.0")
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(got)
}

// mortal is the variable by which a process of this test is an MCP server that ends when its tool is called.
const mortal = "LMOSD_TEST_MORTAL"

func serveMortal(t *testing.T) {
	s := mcpsdk.NewServer(&mcpsdk.Implementation{Name: "mortal", Version: "1"}, nil)
	s.AddTool(&mcpsdk.Tool{Name: "die", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(context.Context, *mcpsdk.CallToolRequest) (*mcpsdk.CallToolResult, error) {
			os.Exit(3)
			return nil, nil
		})
	if err := s.Run(t.Context(), &mcpsdk.StdioTransport{}); err != nil {
		t.Error(err)
	}
}

// An A2A client calls MCP servers, and an MCP client calls A2A agents, through two nodes: the client sees errors of the agent, of an agent
// whose server has ended, and of a host that has stopped.
func TestErrorsCross(t *testing.T) {
	if os.Getenv(mortal) != "" {
		serveMortal(t)
		return
	}
	t.Parallel()
	bridges := []bridge.Bridge{a2a.New(a2a.Options{Log: testmesh.Logger()}), mcp.New(mcp.Options{Log: testmesh.Logger()})}
	c := &crossing{Mesh: testmesh.Start(t, func(o *node.Options) { o.Bridges = bridges })}

	server := mcpsdk.NewServer(&mcpsdk.Implementation{Name: "tools", Version: "1"}, nil)
	add := func(name string, result *mcpsdk.CallToolResult, err error) {
		server.AddTool(&mcpsdk.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)},
			func(context.Context, *mcpsdk.CallToolRequest) (*mcpsdk.CallToolResult, error) { return result, err })
	}
	add("fail", &mcpsdk.CallToolResult{IsError: true, Content: []mcpsdk.Content{&mcpsdk.TextContent{Text: "no paper"}}}, nil)
	add("refuse", nil, &jsonrpc.Error{Code: -32050, Message: "no ink", Data: json.RawMessage(`{"color":"cyan"}`)})
	site := httptest.NewServer(mcpsdk.NewStreamableHTTPHandler(func(*http.Request) *mcpsdk.Server { return server }, &mcpsdk.StreamableHTTPOptions{Stateless: true}))
	t.Cleanup(site.Close)
	for name, target := range map[string]string{"tools": site.URL, "mortal": os.Args[0] + " -test.run=^TestErrorsCross$"} {
		x, err := expose.Open(t.Context(), expose.Spec{Target: "mcp:" + target, Name: name, Env: []string{mortal + "=1"}}, bridges, testmesh.Logger())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(x.Close)
		c.Offer(t, x.TD, x.Thing)
		c.Known(t, name)
	}
	agent := refusingA2A(t, "JSONRPC", 200, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32050,"message":"there is no such shelf","data":{"shelf":7}}}`)
	importA2A(t, c.Mesh, agent.URL, "far")

	overA2A := c.goA2A(a2asdk.TransportProtocolJSONRPC)
	wants := func(when string, s seen, want ...string) {
		t.Helper()
		got := string(canonical(s))
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%s: %q is not in %s", when, w, got)
			}
		}
	}
	tool := func(when, server, name string, want ...string) {
		t.Helper()
		wants(when, overA2A(t, []plan{{URL: c.API + "/a2a/" + server, Calls: []call{{"skill": name, "parts": textPart("")}}}})[0], want...)
	}
	ask := func(when string, want ...string) {
		t.Helper()
		for _, version := range []string{"2025-11-25", "2026-07-28"} {
			wants(when+", "+version, c.callMCP(t, c.API+"/mcp/things/far", version, askTool("far", "hello", nil), nil), want...)
		}
	}
	const failed = `"state":"TASK_STATE_FAILED"`
	tool("a tool that fails", "tools", "fail", failed, `{"metadata":{"lmosCode":"LMOS-1502","retryable":false},"text":"no paper\n`)
	tool("an error of JSON-RPC", "tools", "refuse", failed, `{"metadata":{"lmosCode":"LMOS-1502","retryable":false},"text":"no ink (-32050)\n`)
	tool("a server that ends", "mortal", "die", failed, `{"metadata":{"lmosCode":"LMOS-1502","retryable":false},"text":"`)
	ask("an error of an A2A agent", `"isError":true`, `"code":"LMOS-1502"`, `"retryable":false`, `"text":"there is no such shelf\n`)
	site.CloseClientConnections()
	site.Close()
	agent.CloseClientConnections()
	agent.Close()
	tool("a server that is not there", "tools", "fail", failed, `{"metadata":{"lmosCode":"LMOS-1503","retryable":true},"text":"MCP server unreachable: `)
	ask("an A2A agent that is not there", `"isError":true`, `"code":"LMOS-1503"`, `"retryable":true`, ` does not respond\n`)
	c.StopHost()
	// A request on a connection that is not closed yet may have started, and its error is that the host is shutting down.
	poll.Until(t, "the end of the host", func() bool { return c.Consumer.Status().Peers.Total == 0 })
	tool("an MCP server whose host has stopped", "tools", "fail", failed, `{"metadata":{"lmosCode":"LMOS-1503","retryable":true},"text":"`)
	ask("an A2A agent whose host has stopped", `"isError":true`, `"code":"LMOS-1503"`, `"retryable":true`)
}
