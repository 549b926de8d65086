package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	a2asdk "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a"
	"github.com/lmosd/lmosd/bridge/mcp"
	"github.com/lmosd/lmosd/expose"
	"github.com/lmosd/lmosd/internal/a2atest"
	"github.com/lmosd/lmosd/internal/testprogram"
	"github.com/lmosd/lmosd/interop/testmesh"
	"github.com/lmosd/lmosd/node"
)

// A crossing has Things without a protocol, and agents of one protocol, at one node, for clients of the other protocol at a second node.
type crossing struct {
	*testmesh.Mesh
	gates goAgent // the words that agents wait for
	left  chan string
}

// crossed are the agents for each kind of client.
var crossed = map[string][]string{"mcp": {"goa2a", "jsa2a", "lamp", "upper", "broken", "slow"},
	"a2a": {"gomcp", "everything", "lamp", "upper", "broken", "slow"}}

func newCrossing(t *testing.T) *crossing {
	bridges := []bridge.Bridge{a2a.New(a2a.Options{Log: testmesh.Logger()}), mcp.New(mcp.Options{Pins: crossed["mcp"], Log: testmesh.Logger()})}
	c := &crossing{testmesh.Start(t, func(o *node.Options) { o.Bridges = bridges }), goAgent{}, make(chan string, 64)}
	startHTTP(t, c.Mesh, "lamp")
	logins := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { close(c.gates.gate(r.URL.Path)) }))
	t.Cleanup(logins.Close)
	importA2A(t, c.Mesh, serveA2A(t, &crossAgent{c: c, logins: logins.URL}), "goa2a")
	importA2A(t, c.Mesh, nodeServer(t, "a2a-server.mjs", "JSONRPC", "1.0"), "jsa2a")
	dir := t.TempDir()
	program := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return "exec:" + file
	}
	for name, target := range map[string]string{"upper": "exec:tr a-z A-Z", "broken": program("broken.sh", "echo no ink >&2; exit 3"),
		"slow": program("slow.sh", `read x; for n in one two; do echo $n; sleep 0.2; done; test "$x" = go || exec sleep 60`), "gomcp": "mcp:" + c.serveMCP(t),
		"everything": "mcp:node node_modules/@modelcontextprotocol/server-everything/dist/index.js"} {
		s := expose.Spec{Target: target, Name: name}
		if strings.HasPrefix(target, "exec:") {
			s.Actions, s.Delimiter = []string{"shout"}, map[string]string{"slow": `\n`}[name]
		}
		x, err := expose.Open(t.Context(), s, bridges, testmesh.Logger())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Cleanup(x.Close)
		c.Offer(t, x.TD, x.Thing)
	}
	for _, all := range crossed {
		for _, name := range all {
			c.Known(t, name)
		}
	}
	return c
}

// serveA2A serves an agent of the official Go library.
func serveA2A(t *testing.T, agent a2asrv.AgentExecutor) string {
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	mux.Handle("/.well-known/agent-card.json", a2asrv.NewStaticAgentCardHandler(&a2asdk.AgentCard{Name: "Go", Description: "Does what it is asked.", Version: "1",
		DefaultInputModes: []string{"text/plain"}, DefaultOutputModes: []string{"text/plain"}, Capabilities: a2asdk.AgentCapabilities{Streaming: true},
		SupportedInterfaces: []*a2asdk.AgentInterface{a2asdk.NewAgentInterface(server.URL+"/rpc", a2asdk.TransportProtocolJSONRPC)},
		Skills:              []a2asdk.AgentSkill{{ID: "talk", Name: "Talk", Description: "Talks.", Tags: []string{"words"}}}}))
	mux.Handle("/rpc", a2asrv.NewJSONRPCHandler(a2asrv.NewHandler(agent, a2asrv.WithEventQueueManager(a2atest.Queues()))))
	return server.URL
}

// The first word of a message selects the behavior of a crossAgent.
type crossAgent struct {
	c      *crossing
	logins string // URL of the pages that open the gates of tasks
	mu     sync.Mutex
	known  map[string]string // remembered words, by context
}

func (k *crossAgent) Execute(ctx context.Context, x *a2asrv.ExecutorContext) iter.Seq2[a2asdk.Event, error] {
	return func(yield func(a2asdk.Event, error) bool) {
		verb, rest, _ := strings.Cut(x.Message.Parts[0].Text(), " ")
		if verb == "hello" {
			yield(a2asdk.NewMessage(a2asdk.MessageRoleAgent, a2asdk.NewTextPart("hi "+rest)), nil)
			return
		}
		status := func(s a2asdk.TaskState, parts ...*a2asdk.Part) bool {
			var m *a2asdk.Message
			if len(parts) > 0 {
				m = a2asdk.NewMessageForTask(a2asdk.MessageRoleAgent, x, parts...)
			}
			return yield(a2asdk.NewStatusUpdateEvent(x, s, m), nil)
		}
		give := func(parts ...*a2asdk.Part) bool {
			e := a2asdk.NewArtifactEvent(x, parts...)
			e.Artifact.Name, e.Artifact.Description, e.Artifact.Metadata = "Paper", "What was asked for.", map[string]any{"pages": 2}
			return yield(e, nil)
		}
		if x.StoredTask == nil && !yield(a2asdk.NewSubmittedTask(x, x.Message), nil) {
			return
		}
		if k.do(ctx, x, verb, rest, status, give) {
			status(a2asdk.TaskStateCompleted)
		}
	}
}

// do performs one act, and reports whether it is complete.
func (k *crossAgent) do(ctx context.Context, x *a2asrv.ExecutorContext, verb, rest string, status func(a2asdk.TaskState, ...*a2asdk.Part) bool,
	give func(...*a2asdk.Part) bool) bool {
	words := a2asdk.NewTextPart
	k.mu.Lock()
	if k.known == nil {
		k.known = map[string]string{}
	}
	was := k.known[x.ContextID]
	if verb == "remember" {
		k.known[x.ContextID] = rest
	}
	k.mu.Unlock()
	switch verb {
	case "sheet":
		data, _ := x.Message.Parts[1].Data().(map[string]any)
		return give(words("a sheet"), a2asdk.NewDataPart(map[string]any{"n": data["n"], "skill": x.Message.Metadata["skillId"]}))
	case "kinds":
		image, audio, file := a2asdk.NewRawPart([]byte("png")), a2asdk.NewRawPart([]byte("wav")), a2asdk.NewRawPart([]byte("%PDF"))
		image.MediaType, audio.MediaType, file.MediaType = "image/png", "audio/wav", "application/pdf"
		image.Filename, file.Filename, image.Metadata = "a.png", "b.pdf", map[string]any{"dpi": 300}
		link := a2asdk.NewFileURLPart("https://x.example/c.txt", "text/plain")
		link.Filename = "c.txt"
		return give(image, audio, file, link)
	case "fail", "reject":
		status(map[string]a2asdk.TaskState{"fail": a2asdk.TaskStateFailed, "reject": a2asdk.TaskStateRejected}[verb], words("no "+verb))
		return false
	case "steps":
		for _, word := range []string{"one", "two", "three"} {
			if !status(a2asdk.TaskStateWorking, words("step "+word)) {
				return false
			}
		}
		return give(words("there"))
	case "wait":
		if !status(a2asdk.TaskStateWorking, words("waiting for "+rest)) {
			return false
		}
		select {
		case <-k.c.gates.gate(rest):
			return give(words("waited for " + rest))
		case <-ctx.Done():
			return false
		}
	case "ask":
		status(a2asdk.TaskStateInputRequired, words("which city?"))
		return false
	case "login":
		page := "/login/" + string(x.TaskID)
		if !status(a2asdk.TaskStateAuthRequired, words("log in"), a2asdk.NewFileURLPart(a2asdk.URL(k.logins+page), "text/html")) {
			return false
		}
		select {
		case <-k.c.gates.gate(page): // the user has opened the page
			return give(words("welcome"))
		case <-ctx.Done():
			return false
		}
	case "remember":
		return give(words("noted"))
	case "recall":
		return give(words("it was " + was))
	case "refer":
		return give(words(fmt.Sprintf("refers to %d task, in %t", len(x.Message.ReferenceTasks), was != "")))
	}
	return give(words(fmt.Sprintf("in %s, %t", verb, x.StoredTask != nil))) // an answer
}

func (k *crossAgent) Cancel(_ context.Context, x *a2asrv.ExecutorContext) iter.Seq2[a2asdk.Event, error] {
	return func(yield func(a2asdk.Event, error) bool) {
		k.c.left <- "goa2a"
		yield(a2asdk.NewStatusUpdateEvent(x, a2asdk.TaskStateCanceled, nil), nil)
	}
}

// areaSchema is not expressible as a data schema.
const areaSchema = `{"type":"object","$defs":{"round":{"type":"object","properties":{"r":{"type":"number"}},"required":["r"],"additionalProperties":false}},` +
	`"properties":{"shape":{"$ref":"#/$defs/round"}},"required":["shape"],"additionalProperties":false}`

// serveMCP serves tools of the official Go library over HTTP.
func (c *crossing) serveMCP(t *testing.T) string {
	s := mcpsdk.NewServer(&mcpsdk.Implementation{Name: "cross", Version: "1"}, nil)
	add := func(name, schema string, f func(context.Context, *mcpsdk.CallToolRequest) (*mcpsdk.CallToolResult, error)) {
		s.AddTool(&mcpsdk.Tool{Name: name, Description: "Does " + name + ".", InputSchema: json.RawMessage(schema)}, f)
	}
	say := func(text string) *mcpsdk.CallToolResult {
		return &mcpsdk.CallToolResult{Content: []mcpsdk.Content{&mcpsdk.TextContent{Text: text}}}
	}
	const none = `{"type":"object","additionalProperties":false}`
	add("sum", `{"type":"object","properties":{"a":{"type":"number"},"b":{"type":"number"}},"required":["a","b"],"additionalProperties":false}`,
		func(_ context.Context, r *mcpsdk.CallToolRequest) (*mcpsdk.CallToolResult, error) {
			var in struct{ A, B float64 }
			err := json.Unmarshal(r.Params.Arguments, &in)
			return &mcpsdk.CallToolResult{StructuredContent: map[string]any{"sum": in.A + in.B}}, err
		})
	add("echo", `{"type":"object","properties":{"text":{"type":"string"}},"required":["text"],"additionalProperties":false}`,
		func(_ context.Context, r *mcpsdk.CallToolRequest) (*mcpsdk.CallToolResult, error) {
			var in struct{ Text string }
			err := json.Unmarshal(r.Params.Arguments, &in)
			return say(in.Text), err
		})
	add("area", areaSchema, func(context.Context, *mcpsdk.CallToolRequest) (*mcpsdk.CallToolResult, error) {
		return say("round"), nil
	})
	add("kinds", none, func(context.Context, *mcpsdk.CallToolRequest) (*mcpsdk.CallToolResult, error) {
		priority := &mcpsdk.Annotations{Audience: []mcpsdk.Role{"user"}, Priority: 0.5}
		return &mcpsdk.CallToolResult{Meta: mcpsdk.Meta{"x/receipt": "7"}, Content: []mcpsdk.Content{
			&mcpsdk.TextContent{Text: "here", Annotations: priority, Meta: mcpsdk.Meta{"x/n": 1.0}},
			&mcpsdk.ImageContent{Data: []byte("png"), MIMEType: "image/png"}, &mcpsdk.AudioContent{Data: []byte("wav"), MIMEType: "audio/wav"},
			&mcpsdk.EmbeddedResource{Resource: &mcpsdk.ResourceContents{URI: "file:///d/a.csv", MIMEType: "text/csv", Text: "1,2"}},
			&mcpsdk.EmbeddedResource{Resource: &mcpsdk.ResourceContents{URI: "file:///d/b.pdf", MIMEType: "application/pdf", Blob: []byte("%PDF")}},
			&mcpsdk.ResourceLink{URI: "https://x.example/c", Name: "c.txt", MIMEType: "text/plain", Description: "a link"}}}, nil
	})
	add("fail", none, func(context.Context, *mcpsdk.CallToolRequest) (*mcpsdk.CallToolResult, error) {
		r := say("no paper")
		r.IsError = true
		return r, nil
	})
	add("steps", none, func(ctx context.Context, r *mcpsdk.CallToolRequest) (*mcpsdk.CallToolResult, error) {
		for i := range 3 {
			_ = r.Session.NotifyProgress(ctx, &mcpsdk.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: float64(i + 1), Total: 3,
				Message: fmt.Sprintf("step %d", i+1)})
		}
		return say("there"), nil
	})
	add("hang", none, func(ctx context.Context, r *mcpsdk.CallToolRequest) (*mcpsdk.CallToolResult, error) {
		_ = r.Session.NotifyProgress(ctx, &mcpsdk.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: 1, Message: "hangs"})
		<-ctx.Done()
		c.left <- "gomcp"
		return nil, ctx.Err()
	})
	asks := func(p *mcpsdk.ElicitParams) func(context.Context, *mcpsdk.CallToolRequest) (*mcpsdk.CallToolResult, error) {
		return func(_ context.Context, r *mcpsdk.CallToolRequest) (*mcpsdk.CallToolResult, error) {
			answer, _ := r.Params.InputResponses["k"].(*mcpsdk.ElicitResult)
			if answer == nil {
				return &mcpsdk.CallToolResult{InputRequests: mcpsdk.InputRequestMap{"k": p}}, nil
			}
			return say(fmt.Sprint(answer.Action, " ", answer.Content["eur"])), nil
		}
	}
	add("price", none, asks(&mcpsdk.ElicitParams{Mode: "form", Message: "How much?",
		RequestedSchema: json.RawMessage(`{"type":"object","properties":{"eur":{"type":"number"}},"required":["eur"]}`)}))
	add("consent", none, asks(&mcpsdk.ElicitParams{Mode: "url", Message: "Agree.", URL: "https://id.example/terms"}))
	server := httptest.NewServer(mcpsdk.NewStreamableHTTPHandler(func(*http.Request) *mcpsdk.Server { return s },
		&mcpsdk.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

// A cell is a test of an agent, with one call or several.
type cell struct {
	agent, what string
	calls       []map[string]any
	want        []string // contained in the last result, as JSON
	left        bool     // the agent receives the cancellation
}

// A seen is the result of a call. Members of other protocols are empty.
type seen struct {
	Result, Task, Message any    `json:",omitempty"`
	Error                 string `json:"error,omitempty"`
	Asked                 []question
	Progress              []string
	States, Words         []string
}

type question struct {
	Mode, Message, URL string
	Fields             []string
}

type call = map[string]any

// askTool returns a call of ask_NAME with further members.
func askTool(name, message string, more call) call {
	out := call{"tool": "ask_" + name, "args": map[string]any{"message": message}}
	for k, v := range more {
		out[k] = v
	}
	return out
}

// mcpCells are the calls of MCP clients to agents that are not MCP servers.
func mcpCells() (all []cell) {
	one := func(agent, what string, c call, want ...string) {
		all = append(all, cell{agent: agent, what: what, calls: []call{c}, want: want})
	}
	then := func(agent, what string, calls []call, want ...string) {
		all = append(all, cell{agent: agent, what: what, calls: calls, want: want})
	}
	g := func(message string) call { return askTool("goa2a", message, nil) }
	goes := func(message, id string) call {
		return call{"tool": "ask_goa2a", "args": map[string]any{"message": message, id: "$" + id}}
	}
	one("goa2a", "call", g("hello Ann"), `"text":"hi Ann"`, `"state":"completed"`)
	one("goa2a", "skill with data, structured result", call{"tool": "talk", "args": map[string]any{"message": "sheet", "data": map[string]any{"n": 2}}},
		`"data":{"n":2,"skill":"talk"}`, `"text":"a sheet"`, `"taskId":"`, `"contextId":"`)
	one("goa2a", "image, audio, file, link", g("kinds"), `"data":"cG5n","mimeType":"image/png","type":"image"`, `"data":"d2F2","mimeType":"audio/wav","type":"audio"`,
		`"blob":"JVBERg==","mimeType":"application/pdf"`, `/output/b.pdf"`, `"mimeType":"text/plain","name":"c.txt","type":"resource_link","uri":"https://x.example/c.txt"`)
	one("goa2a", "names and metadata", g("kinds"), `"dev.lmosd/artifact":{"artifactId":"`, `"description":"What was asked for.","metadata":{"pages":2},"name":"Paper"`,
		`"dev.lmosd/part":{"filename":"a.png","metadata":{"dpi":300}}`)
	one("goa2a", "FAILED", g("fail"), `"isError":true`, `no fail`)
	one("goa2a", "REJECTED", g("reject"), `"isError":true`, `no reject`)
	one("goa2a", "progress", g("steps"), `"Progress":["step one","step two","step three"`, `"text":"there"`)
	one("goa2a", "cancel", askTool("goa2a", "wait for ever", call{"leave": true}), `"error":"`)
	all[len(all)-1].left = true
	one("goa2a", "INPUT_REQUIRED, answered", askTool("goa2a", "ask", call{"content": map[string]any{"message": "Bonn"}}), `"text":"in Bonn, true"`,
		`"Asked":[{"Fields":["message"],"Message":"which city?","Mode":"form","URL":""}]`)
	one("goa2a", "INPUT_REQUIRED, declined", askTool("goa2a", "ask", call{"answer": "decline"}), `"isError":true`, `declined to provide`)
	all[len(all)-1].left = true
	then("goa2a", "INPUT_REQUIRED, of who cannot be asked", []call{askTool("goa2a", "ask", call{"answer": "none"}),
		{"tool": "ask_goa2a", "answer": "none", "args": map[string]any{"message": "Bonn", "taskId": "$taskId"}}}, `"text":"in Bonn, true"`)
	one("goa2a", "the question, to who cannot be asked", askTool("goa2a", "ask", call{"answer": "none"}), `"state":"input-required"`, `"text":"which city?"`)
	one("goa2a", "AUTH_REQUIRED", g("login"), `"text":"welcome"`, `"Asked":[{"Fields":[],"Message":"log in","Mode":"url","URL":"http://127.0.0.1:`, `/login/`)
	then("goa2a", "context kept", []call{g("remember tea"), goes("recall", "contextId")}, `"text":"it was tea"`)
	then("goa2a", "an ended task is referred to", []call{g("remember tea"), goes("refer", "taskId")}, `"text":"refers to 1 task, in true"`)
	j := func(message string) call { return askTool("jsa2a", message, nil) }
	one("jsa2a", "call", j("hi"), `"text":"you said hi"`)
	one("jsa2a", "image, data, link", j("kinds"), `"data":"cG5n","mimeType":"image/png","type":"image"`, `"data":{"rows":[1,2]}`, `"uri":"https://x.example/b.pdf"`, `"metadata":{"unit":"m"}`)
	one("jsa2a", "FAILED", j("fail"), `"isError":true`, `no fail`)
	one("jsa2a", "REJECTED", j("reject"), `"isError":true`, `no reject`)
	one("jsa2a", "INPUT_REQUIRED, answered", askTool("jsa2a", "ask", call{"content": map[string]any{"message": "Bonn"}}), `"text":"you said Bonn"`)
	one("lamp", "call, structured result", call{"tool": "add", "args": map[string]any{"a": 1, "b": 2}}, `"structuredContent":{"value":3}`)
	one("lamp", "property", call{"tool": "get_units"}, `celsius`)
	one("lamp", "error", call{"tool": "fail"}, `"isError":true`)
	one("lamp", "action that goes on by itself", call{"tool": "wait", "args": map[string]any{"value": 1}}, `"structuredContent":{"value":"done"}`)
	one("upper", "call", call{"tool": "shout", "args": map[string]any{"value": "louder"}}, `LOUDER`)
	one("broken", "error", call{"tool": "shout", "args": map[string]any{"value": "x"}}, `"isError":true`, `no ink`)
	one("slow", "progress", call{"tool": "shout", "args": map[string]any{"value": "go"}}, `"Progress":["one`, `"two`)
	one("slow", "cancel", call{"tool": "shout", "leave": true, "args": map[string]any{"value": "for ever"}}, `"error":"`)
	return all
}

func textPart(text string) []any { return []any{map[string]any{"text": text}} }
func dataPart(data any) []any    { return []any{map[string]any{"data": data}} }

// a2aCells are the calls of A2A clients to Things that are not A2A agents.
func a2aCells() (all []cell) {
	add := func(agent, what string, calls []call, want ...string) {
		all = append(all, cell{agent: agent, what: what, calls: calls, want: want})
	}
	skill := func(name string, parts []any, more ...string) call {
		c := call{"skill": name, "parts": parts}
		for _, m := range more {
			c[m] = true
		}
		return c
	}
	next := func(parts []any, metadata map[string]any) call {
		return call{"next": true, "parts": parts, "metadata": metadata}
	}
	args := func(v any) []any { return dataPart(map[string]any{"arguments": v}) }
	const completed, asks = `"state":"TASK_STATE_COMPLETED"`, `"state":"TASK_STATE_INPUT_REQUIRED"`
	add("gomcp", "call, structured result", []call{skill("sum", args(map[string]any{"a": 1, "b": 2}))}, completed, `"data":{"sum":3}`)
	add("gomcp", "words", []call{skill("echo", textPart("hi"))}, completed, `"text":"hi"`)
	add("gomcp", "no input", []call{skill("kinds", textPart("go"))}, completed, `"text":"here"`)
	add("gomcp", "matched by its own schema", []call{{"parts": dataPart(map[string]any{"shape": map[string]any{"r": 2}})}}, completed, `"text":"round"`)
	add("gomcp", "which skill is meant", []call{{"parts": textPart("what?")}}, asks, `"$ref":"#/$defs/round"`, `- area: Does area.`)
	add("gomcp", "image, audio, resources, link", []call{skill("kinds", args(map[string]any{}))}, completed, `"mediaType":"image/png"`, `"raw":"cG5n"`, `"raw":"d2F2"`,
		`"filename":"a.csv","mediaType":"text/csv"`, `"filename":"b.pdf","mediaType":"application/pdf"`, `"url":"https://x.example/c"`, `"filename":"c.txt"`)
	add("gomcp", "annotations and _meta", []call{skill("kinds", args(map[string]any{}))}, `"mcp:annotations":{"audience":["user"],"priority":0.5}`, `"mcp:meta":{"x/n":1}`,
		`"mcp:meta":{"x/receipt":"7"}`, `"description":"a link"`, `"uri":"file:///d/a.csv"`)
	add("gomcp", "isError", []call{skill("fail", textPart(""))}, `"state":"TASK_STATE_FAILED"`, `no paper`)
	add("gomcp", "progress", []call{skill("steps", textPart("go"), "stream")}, completed, `"step 2"`, `"text":"there"`)
	add("gomcp", "cancel", []call{skill("hang", textPart("go"), "cancel")}, `"state":"TASK_STATE_CANCELED"`)
	all[len(all)-1].left = true
	add("gomcp", "elicitation", []call{skill("price", textPart("go"))}, asks, `"text":"How much?"`, `"schema":{"properties":{"eur":{"type":"number"}}`)
	add("gomcp", "elicitation, answered", []call{skill("price", textPart("go")), next(dataPart(map[string]any{"eur": 5}), nil)}, completed, `"text":"accept 5"`)
	add("gomcp", "elicitation, declined", []call{skill("price", textPart("go")), next(textPart("no"), map[string]any{"action": "decline"})}, completed,
		`"text":"decline `)
	add("gomcp", "URL elicitation", []call{skill("consent", textPart("go"))}, `"state":"TASK_STATE_AUTH_REQUIRED"`, `"url":"https://id.example/terms"`)
	add("gomcp", "URL elicitation, done", []call{skill("consent", textPart("go")), next(textPart("done"), nil)}, completed, `"text":"accept `)
	add("gomcp", "context kept", []call{skill("echo", textPart("one")), skill("echo", textPart("two"), "context")}, completed, `"text":"two"`)
	add("everything", "call", []call{skill("get-sum", args(map[string]any{"a": 1, "b": 2}))}, completed, `The sum of 1 and 2 is 3.`)
	add("everything", "structured result", []call{skill("get-structured-content", args(map[string]any{"location": "New York"}))}, completed, `"data":{"conditions":"Cloudy"`)
	add("everything", "image", []call{skill("get-tiny-image", args(map[string]any{}))}, completed, `"mediaType":"image/png"`, `"raw":"iVBOR`)
	add("everything", "links", []call{skill("get-resource-links", args(map[string]any{"count": 2}))}, completed, `"url":"demo://resource/dynamic/`)
	add("everything", "resource", []call{skill("get-resource-reference", args(map[string]any{"resourceType": "Text", "resourceId": 1}))}, completed, `"mediaType":"text/plain"`, `demo://resource/dynamic/text/1`)
	add("everything", "annotations", []call{skill("get-annotated-message", args(map[string]any{"messageType": "error", "includeImage": false}))}, `"mcp:annotations":{"audience":["user","assistant"],"priority":1}`)
	add("everything", "error", []call{skill("get-sum", args(map[string]any{"a": "x"}))}, `a expected number, got string`)
	add("everything", "progress", []call{skill("trigger-long-running-operation", args(map[string]any{"duration": 0.3, "steps": 3}), "stream")}, completed, `"Words":["1 of 3","2 of 3"`)
	add("lamp", "call", []call{skill("add", dataPart(map[string]any{"a": 1, "b": 2}))}, completed, `"data":3`)
	add("lamp", "matched by its schema", []call{{"parts": dataPart(map[string]any{"a": 1, "b": 2})}}, completed, `"data":3`)
	add("lamp", "which skill is meant", []call{{"parts": textPart("what?")}}, asks, `- add`)
	add("lamp", "error", []call{skill("fail", textPart(""))}, `"state":"TASK_STATE_FAILED"`)
	add("lamp", "action that goes on by itself", []call{skill("wait", dataPart(1))}, completed, `"text":"done"`)
	add("lamp", "cancel", []call{skill("wait", dataPart(0), "cancel")}, `"state":"TASK_STATE_CANCELED"`)
	add("upper", "call", []call{{"parts": textPart("louder")}}, completed, `LOUDER`)
	add("broken", "error", []call{{"parts": textPart("x")}}, `"state":"TASK_STATE_FAILED"`, `no ink`)
	add("slow", "parts as they come", []call{{"parts": textPart("go"), "stream": true}}, completed, `one`, `two`)
	add("slow", "cancel", []call{{"parts": textPart("for ever"), "cancel": true}}, `"state":"TASK_STATE_CANCELED"`)
	return all
}

// A plan has the calls of one client to one agent.
type plan struct {
	URL   string `json:"url"`
	Calls []call `json:"calls"`
}

// Clients of one protocol call agents of another, and of none, through two nodes. docs/interop.md has the results; -update writes them.
func TestCrossing(t *testing.T) {
	t.Parallel()
	testprogram.Modules(t, ".")
	c := newCrossing(t)
	columns := []string{"go-sdk, 2026-07-28", "go-sdk, 2025-11-25", "sdk (npm)", "client (npm)", "client (npm), 2026-07-28"}
	clients := []func(*testing.T, []plan) []seen{c.goMCP("2026-07-28"), c.goMCP("2025-11-25"), c.npm("cross-mcp.mjs", "v1"), c.npm("cross-mcp.mjs", "v2"),
		c.npm("cross-mcp.mjs", "v2-modern")}
	ofMCP := c.table(t, "MCP", mcpCells(), columns, clients, [2]string{"/mcp/things/", ""}, [2]string{"/mcp", "__"})
	columns = []string{"a2a-go, JSON-RPC", "a2a-go, REST", "a2a-js, JSON-RPC", "a2a-js, REST"}
	clients = []func(*testing.T, []plan) []seen{c.goA2A(a2asdk.TransportProtocolJSONRPC), c.goA2A(a2asdk.TransportProtocolHTTPJSON), c.npm("cross-a2a.mjs", "JSONRPC"),
		c.npm("cross-a2a.mjs", "HTTP+JSON")}
	ofA2A := c.table(t, "A2A", a2aCells(), columns, clients, [2]string{"/a2a/", ""})
	var asTasks []string
	t.Run("tasks", func(t *testing.T) { asTasks = c.asTask(t) })
	if !t.Failed() {
		table := header("agent", []string{"what", "raw, 2026-07-28 with tasks"})
		for _, what := range asTasks {
			table += "| a2a-go | " + what + " | ✓ |\n"
		}
		testmesh.Section(t, "../docs/interop.md", "crossing", *update, "MCP clients, each at `/mcp/things/NAME` and at `/mcp`:\n\n"+ofMCP+
			"\nAn MCP client that knows the extension \"Tasks\", which neither library does:\n\n"+table+"\nA2A clients:\n\n"+ofA2A)
	}
}

// table fills the cells of a table: the clients of a protocol call at each place, at the same time. A place with a prefix has all agents.
func (c *crossing) table(t *testing.T, protocol string, cells []cell, columns []string, clients []func(*testing.T, []plan) []seen, places ...[2]string) string {
	passed := map[[2]int]int{} // places at which a cell of a client passed
	var mu sync.Mutex          // owns passed
	t.Run(protocol, func(t *testing.T) {
		for i, client := range clients {
			for _, place := range places {
				t.Run(columns[i]+place[0], func(t *testing.T) {
					t.Parallel()
					c.fill(t, cells, c.plans(cells, place), client, func(cell int) {
						mu.Lock()
						defer mu.Unlock()
						passed[[2]int{i, cell}]++
					})
				})
			}
		}
	})
	var b strings.Builder
	b.WriteString(header("agent", append([]string{"what"}, columns...)))
	for n, one := range cells {
		fmt.Fprintf(&b, "| %s | %s |", agentNames[one.agent], one.what)
		for i := range columns {
			b.WriteString(map[bool]string{true: " ✓ |", false: " |"}[passed[[2]int{i, n}] == len(places)])
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// plans returns the calls of the cells at a place.
func (c *crossing) plans(cells []cell, place [2]string) (all []plan) {
	for _, one := range cells {
		p := plan{URL: c.API + place[0] + one.agent}
		prefix := ""
		if place[1] != "" {
			p.URL, prefix = c.API+place[0], one.agent+place[1]
		}
		for _, each := range one.calls {
			copied := maps.Clone(each)
			if name, is := each["tool"].(string); is && !strings.HasPrefix(name, "ask_") { // which is the same everywhere
				copied["tool"] = prefix + name
			}
			p.Calls = append(p.Calls, copied)
		}
		all = append(all, p)
	}
	return all
}

// agentNames returns the agents in the table.
var agentNames = map[string]string{"goa2a": "a2a-go", "jsa2a": "@a2a-js/sdk", "lamp": "WoT thing, HTTP", "upper": "`exec:`", "broken": "`exec:`", "slow": "`exec:`",
	"gomcp": "MCP go-sdk, HTTP", "everything": "server-everything, stdio"}

// fill makes the calls, checks each cell, and returns the passed ones.
func (c *crossing) fill(t *testing.T, cells []cell, plans []plan, client func(*testing.T, []plan) []seen, passed func(cell int)) {
	all := client(t, plans)
	n := 0
	for i, one := range cells {
		wrong := 0
		fail := func(format string, args ...any) {
			t.Errorf("%s: %s: "+format, append([]any{one.agent, one.what}, args...)...)
			wrong++
		}
		if n += len(one.calls); n > len(all) {
			t.Fatalf("%d calls gave %d results", n, len(all))
		}
		got := string(canonical(all[n-1]))
		for _, want := range one.want {
			if !strings.Contains(got, want) {
				fail("%s is not in %.4000s", want, got)
			}
		}
		if one.what == "context kept" && all[n-1].Task != nil && contextOf(all[n-1]) != contextOf(all[n-2]) {
			fail("the context is another: %s", got)
		}
		if one.left {
			select {
			case <-c.left:
			case <-time.After(2 * time.Minute):
				fail("the agent was not told")
			}
		}
		if wrong == 0 {
			passed(i)
		}
	}
}

func contextOf(s seen) any { return s.Task.(map[string]any)["contextId"] }

// canonical returns JSON with sorted members.
func canonical(v any) []byte {
	var generic any
	if err := json.Unmarshal(asJSON(v), &generic); err != nil {
		panic(err)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(generic); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// npm runs a script of this folder.
func (c *crossing) npm(script, flavour string) func(*testing.T, []plan) []seen {
	return func(t *testing.T, plans []plan) (all []seen) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "node", script, flavour, string(asJSON(plans)))
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err == nil {
			err = json.Unmarshal(out, &all)
		}
		if err != nil {
			t.Fatalf("%v: %s\n%.2000s", err, stderr.String(), out)
		}
		return all
	}
}

// goMCP is a client of the go-sdk.
func (c *crossing) goMCP(version string) func(*testing.T, []plan) []seen {
	return func(t *testing.T, plans []plan) (all []seen) {
		for _, p := range plans {
			before := map[string]any{}
			for _, one := range p.Calls {
				s := c.callMCP(t, p.URL, version, one, before)
				if r, ok := s.Result.(map[string]any); ok {
					before, _ = r["structuredContent"].(map[string]any)
				}
				all = append(all, s)
			}
		}
		return all
	}
}

func (c *crossing) callMCP(t *testing.T, url, version string, one call, before map[string]any) (s seen) {
	ctx, leave := context.WithTimeout(t.Context(), time.Minute)
	defer leave()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	var mu sync.Mutex
	o := &mcpsdk.ClientOptions{Capabilities: &mcpsdk.ClientCapabilities{},
		ProgressNotificationHandler: func(_ context.Context, r *mcpsdk.ProgressNotificationClientRequest) {
			mu.Lock()
			defer mu.Unlock()
			if s.Progress = append(s.Progress, r.Params.Message); one["leave"] != nil {
				leave()
			}
		}}
	if one["answer"] != "none" {
		o.Capabilities.Elicitation = &mcpsdk.ElicitationCapabilities{Form: &mcpsdk.FormElicitationCapabilities{}, URL: &mcpsdk.URLElicitationCapabilities{}}
		o.ElicitationHandler = func(_ context.Context, r *mcpsdk.ElicitRequest) (*mcpsdk.ElicitResult, error) {
			var schema struct{ Properties map[string]any }
			_ = json.Unmarshal(asJSON(r.Params.RequestedSchema), &schema)
			a := question{Mode: r.Params.Mode, Message: r.Params.Message, URL: r.Params.URL, Fields: []string{}}
			for name := range schema.Properties {
				a.Fields = append(a.Fields, name)
			}
			s.Asked = append(s.Asked, a)
			if one["answer"] == "decline" {
				return &mcpsdk.ElicitResult{Action: "decline"}, nil
			}
			if a.Mode == "url" {
				resp, err := (&http.Client{Transport: transport}).Get(a.URL)
				if err != nil {
					return nil, err
				}
				_ = resp.Body.Close()
			}
			content, _ := one["content"].(map[string]any)
			return &mcpsdk.ElicitResult{Action: "accept", Content: content}, nil
		}
	}
	session, err := mcpsdk.NewClient(&mcpsdk.Implementation{Name: "test", Version: "1"}, o).Connect(t.Context(),
		&mcpsdk.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: transport}}, &mcpsdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	args := map[string]any{}
	given, _ := one["args"].(map[string]any)
	for k, v := range given {
		if text, _ := v.(string); strings.HasPrefix(text, "$") {
			v = before[text[1:]]
		}
		args[k] = v
	}
	params := &mcpsdk.CallToolParams{Name: one["tool"].(string), Arguments: args}
	params.SetProgressToken("p")
	r, err := session.CallTool(ctx, params)
	mu.Lock()
	defer mu.Unlock()
	if err != nil {
		s.Error = err.Error()
		return s
	}
	_ = json.Unmarshal(asJSON(r), &s.Result)
	return s
}

// goA2A is a client of a2a-go.
func (c *crossing) goA2A(binding a2asdk.TransportProtocol) func(*testing.T, []plan) []seen {
	return func(t *testing.T, plans []plan) (all []seen) {
		for _, p := range plans {
			client := goClient(t, c.Mesh, p.URL[strings.LastIndexByte(p.URL, '/')+1:], binding)
			before := &a2asdk.Task{}
			for _, one := range p.Calls {
				var m a2asdk.Message
				if err := json.Unmarshal(asJSON(map[string]any{"messageId": a2asdk.NewMessageID(), "role": "ROLE_USER", "parts": one["parts"]}), &m); err != nil {
					t.Fatal(err)
				}
				m.Metadata, _ = one["metadata"].(map[string]any)
				if name, named := one["skill"]; named {
					m.Metadata = map[string]any{"skillId": name}
				}
				if one["next"] != nil {
					m.TaskID = before.ID
				}
				if one["next"] != nil || one["context"] != nil {
					m.ContextID = before.ContextID
				}
				q := &a2asdk.SendMessageRequest{Message: &m, Config: &a2asdk.SendMessageConfig{ReturnImmediately: one["cancel"] != nil}}
				var s seen
				s.Error = errorText(func() error {
					if one["stream"] != nil {
						for e, err := range client.SendStreamingMessage(t.Context(), q) {
							if err != nil {
								return err
							}
							before.ID = e.TaskInfo().TaskID
							if u, is := e.(*a2asdk.TaskStatusUpdateEvent); is {
								s.States, s.Words = append(s.States, string(u.Status.State)), append(s.Words, a2aWords(u.Status.Message))
							}
						}
						task, err := client.GetTask(t.Context(), &a2asdk.GetTaskRequest{ID: before.ID})
						before = task
						return err
					}
					r, err := client.SendMessage(t.Context(), q)
					if err != nil {
						return err
					}
					before, _ = r.(*a2asdk.Task)
					if one["cancel"] != nil {
						for range 50 { // it works, unless it does not report so
							if now, err := client.GetTask(t.Context(), &a2asdk.GetTaskRequest{ID: before.ID}); err != nil || now.Status.State != a2asdk.TaskStateSubmitted {
								break
							}
							time.Sleep(20 * time.Millisecond)
						}
						before, err = client.CancelTask(t.Context(), &a2asdk.CancelTaskRequest{ID: before.ID})
					}
					return err
				}())
				if s.Error == "" {
					_ = json.Unmarshal(asJSON(before), &s.Task)
				}
				all = append(all, s)
			}
		}
		return all
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func a2aWords(m *a2asdk.Message) string {
	if m == nil || len(m.Parts) == 0 {
		return ""
	}
	return m.Parts[0].Text()
}

// asTask calls a long A2A action with a client of the tasks extension, which no library supports, by raw messages.
func (c *crossing) asTask(t *testing.T) (passed []string) {
	ask := func(method, name, params, more string) string {
		body := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{` + params + `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
			`"io.modelcontextprotocol/clientCapabilities":{` + more + `"extensions":{"io.modelcontextprotocol/tasks":{}}}}}}`
		q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.API+"/mcp/things/goa2a", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		q.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, "Mcp-Protocol-Version": {"2026-07-28"},
			"Mcp-Method": {method}, "Mcp-Name": {name}}
		r, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		raw, _ := io.ReadAll(r.Body)
		return string(raw)
	}
	begin := func(message, more string) string {
		return ask("tools/call", "ask_goa2a", `"name":"ask_goa2a","arguments":{"message":"`+message+`"}`, more)
	}
	if got := begin("hello Ann", ""); !strings.Contains(got, `"resultType":"complete"`) || !strings.Contains(got, "hi Ann") {
		t.Errorf("what is soon done gives %s", got)
	}
	passed = append(passed, "what is soon done is no task")
	for _, test := range []struct {
		name, message, more string
		then                func(get, do func(method, more string) string) []string
	}{
		{"completed", "wait a task", "", func(get, _ func(string, string) string) []string {
			close(c.gates.gate("a task"))
			return []string{`"status":"completed"`, "waited for a task"}
		}},
		{"cancelled", "wait for nobody", "", func(_, do func(string, string) string) []string {
			do("tasks/cancel", "")
			<-c.left
			return []string{`"status":"cancelled"`}
		}},
	} {
		var begun struct {
			Result struct{ ResultType, TaskID, Status string }
		}
		got := begin(test.message, test.more)
		if err := json.Unmarshal([]byte(got), &begun); err != nil || begun.Result.ResultType != "task" || begun.Result.Status != "working" {
			t.Fatalf("%s: %s", test.name, got)
		}
		id := begun.Result.TaskID
		do := func(method, more string) string { return ask(method, id, `"taskId":"`+id+`"`, more) }
		get := func(more, _ string) string { return do("tasks/get", more) }
		want := test.then(get, do)
		for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			got := get("", "")
			if !slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(got, w) }) {
				passed = append(passed, "what takes long is a task, "+test.name)
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %s has not %q", test.name, got, want)
			}
		}
	}
	return passed
}
