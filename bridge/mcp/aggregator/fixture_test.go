package aggregator

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/bridgetest"
	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/features"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/td"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// add publishes a Thing under an id, or publishes it again with changes.
func add(t testing.TB, m *bridgetest.Mesh, id, doc string, thing interact.Thing) *td.Description {
	t.Helper()
	return m.Publish(t, []byte(strings.Replace(doc, "{", `{"id":"`+id+`",`, 1)), thing)
}

// serveMesh serves a mesh, and returns the address.
func serveMesh(t testing.TB, m bridge.Mesh, pins ...string) string {
	return bridgetest.Serve(t, New(Options{Mesh: m, Pins: pins}))
}

// connect returns a client of the go-sdk, of one revision.
func connect(t testing.TB, url, version string, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, o)
	transport := &http.Transport{}
	s, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: transport}},
		&mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		transport.CloseIdleConnections()
	})
	return s
}

// eachRevision runs a test for clients of each revision.
func eachRevision(t *testing.T, f func(t *testing.T, version string)) {
	for _, version := range []string{protocol.Modern, protocol.Legacy} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			f(t, version)
		})
	}
}

const scriptedTD = `{"title":"Desk","description":"A desk with a bell.","@type":["lmos:Agent"],
 "actions":{
  "greet":{"title":"Greet","safe":true,"idempotent":true,"input":{"type":"string"},"output":{"type":"string"}},
  "add":{"input":{"type":"object","properties":{"a":{"type":"number"},"b":{"type":"number"}},"required":["a","b"]},
   "output":{"type":"object","properties":{"sum":{"type":"number"}},"required":["sum"]}},
  "count":{"description":"Counts to three."},
  "picture":{"output":{}},
  "ask":{"input":{},"output":{}},
  "confirm":{"input":{"type":"string"},"output":{"type":"string"}},
  "dig":{"synchronous":false,"output":{"type":"string"}},
  "break":{},
  "odd name/ü":{},
  "brief":{"@type":"mcp:Prompt","description":"Writes a brief.","input":{"type":"object","properties":{"about":{"type":"string",
   "description":"what","enum":["x","year"]}},"required":["about"]}}},
 "properties":{
  "level":{"type":"integer","observable":true},
  "motto":{"type":"string","readOnly":true},
  "note":{"readOnly":true,"uriVariables":{"page":{"type":"integer"}}}},
 "events":{"rang":{"data":{"type":"string"}}}}`

// A scriptedThing implements scriptedTD.
type scriptedThing struct {
	park interact.InputWaiter
	dig  chan struct{} // dig continues when it is closed
	left chan string   // receives the name of a cancelled action, unless it is full

	mu    sync.Mutex
	trace string // of the last call that has one
	level json.RawMessage
	news  chan struct{}
	bell  chan string
}

func newScriptedThing() *scriptedThing {
	return &scriptedThing{dig: make(chan struct{}), left: make(chan string, 8), level: json.RawMessage("3"), news: make(chan struct{}, 8), bell: make(chan string, 8)}
}

func (d *scriptedThing) leave(name string) {
	select {
	case d.left <- name:
	default:
	}
}

func (d *scriptedThing) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		if m.TraceParent != "" {
			d.mu.Lock()
			d.trace = m.TraceParent + " " + m.TraceState
			d.mu.Unlock()
		}
		status := func(s interact.Status, media, data string) *interact.Message {
			r := m.Reply(interact.ActionStatus, media, []byte(data))
			r.Status = s
			return r
		}
		done := func(data string) { yield(status(interact.StatusCompleted, "", data), nil) }
		switch m.Type.Op() + " " + m.Name {
		case "continueaction ", "continueaction confirm", "continueaction dig":
			yield(d.park.Continue(m))
		case "invokeaction greet", "invokeaction ask":
			done(`"hello ` + string(m.Data[1:len(m.Data)-1]) + `"`)
		case "invokeaction add":
			var in struct{ A, B float64 }
			_ = json.Unmarshal(m.Data, &in)
			done(fmt.Sprintf(`{"sum":%v}`, in.A+in.B))
		case "invokeaction count":
			for i := range 3 {
				if !yield(status(interact.StatusRunning, "text/plain", fmt.Sprintf("%d ", i+1)), nil) {
					return
				}
			}
			yield(status(interact.StatusCompleted, "", ""), nil)
		case "invokeaction picture":
			yield(status(interact.StatusCompleted, "image/png", "png"), nil)
		case "invokeaction confirm":
			answers, left, err := d.park.Ask(ctx, m, interact.Inputs{"sure": {Kind: interact.InputForm, Message: "Are you sure?",
				Schema: json.RawMessage(`{"type":"object","properties":{"yes":{"type":"boolean"}},"required":["yes"]}`)}}, yield)
			if left || err != nil {
				d.leave(m.Name)
				return
			}
			done(string(protocol.Encode(answers["sure"].Action + " " + string(answers["sure"].Content))))
		case "invokeaction dig":
			select {
			case <-d.dig:
				done(`"deep"`)
			case <-ctx.Done():
				d.leave(m.Name)
				yield(nil, ctx.Err())
			}
		case "invokeaction break":
			yield(nil, &interact.Error{Code: interact.AgentFailed, Title: "the drawer is stuck", Hint: "pull harder", Remote: true})
		case "invokeaction brief":
			done(`{"messages":[{"role":"user","content":{"type":"text","text":` + string(protocol.Encode(string(m.Data))) + `}}]}`)
		case "readproperty level":
			d.mu.Lock()
			defer d.mu.Unlock()
			yield(m.Reply(interact.PropertyReading, "", d.level), nil)
		case "writeproperty level":
			d.mu.Lock()
			d.level = append(json.RawMessage{}, m.Data...)
			d.mu.Unlock()
			yield(m.Reply(interact.Acknowledgement, "", nil), nil)
		case "readproperty motto":
			yield(m.Reply(interact.PropertyReading, "text/plain", []byte("work")), nil)
		case "readproperty note":
			yield(m.Reply(interact.PropertyReading, "", m.Data), nil)
		case "observeproperty level":
			for {
				select {
				case <-d.news:
					if !yield(m.Reply(interact.PropertyReading, "", []byte("4")), nil) {
						return
					}
				case <-ctx.Done():
					return
				}
			}
		case "subscribeevent rang":
			for {
				select {
				case who := <-d.bell:
					if !yield(m.Reply(interact.Event, "", protocol.Encode(who)), nil) {
						return
					}
				case <-ctx.Done():
					return
				}
			}
		default:
			yield(nil, interact.Errorf(interact.NoAffordance, "lmosd show desk", "the desk has no %s", m.Name))
		}
	}
}

// shopTD is an MCP server's thing.
const shopTD = `{"title":"Shop","@type":"lmos:Tool","@context":["https://www.w3.org/2022/wot/td/v1.1",{"mcp":"https://lmosd.dev/ns/mcp#"}],
 "actions":{"mcp":{"@type":"mcp:Session"},
  "buy":{"mcp:name":"buy.it","description":"Buys something.","mcp:inputSchema":{"type":"object","properties":{"what":{"type":"string"}},"required":["what"]}},
  "welcome":{"mcp:name":"welcome","@type":"mcp:Prompt"}},
 "properties":{"menu":{"mcp:uri":"shop://menu","readOnly":true,"observable":true}}}`

// newShop returns a server of the go-sdk behind a tunnel.
func newShop(t testing.TB) (interact.Thing, *mcp.Server) {
	s := mcp.NewServer(&mcp.Implementation{Name: "shop", Version: "1"}, &mcp.ServerOptions{
		SubscribeHandler:   func(context.Context, *mcp.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil }})
	type in struct {
		What string `json:"what"`
	}
	mcp.AddTool(s, &mcp.Tool{Name: "buy.it"}, func(ctx context.Context, r *mcp.CallToolRequest, args in) (*mcp.CallToolResult, any, error) {
		if args.What == "a car" {
			return askPrice(ctx, r)
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "bought " + args.What},
			&mcp.ImageContent{Data: []byte("png"), MIMEType: "image/png"}}, Meta: mcp.Meta{"shop/receipt": "7"}}, map[string]any{"paid": 1}, nil
	})
	s.AddResource(&mcp.Resource{URI: "shop://menu", Name: "menu"}, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: "shop://menu", Text: "soup"}}}, nil
	})
	s.AddPrompt(&mcp.Prompt{Name: "welcome"}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: "hi"}}}}, nil
	})
	var work sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	back := backend.New(backend.Options{Name: "shop", Dial: func(context.Context) (protocol.Conn, error) {
		here, there := net.Pipe()
		work.Go(func() { _ = s.Run(ctx, &mcp.IOTransport{Reader: there, Writer: there}) })
		return protocol.Lines(here), nil
	}})
	t.Cleanup(func() {
		back.Close()
		cancel()
		work.Wait()
	})
	return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return bridge.Accept(ctx, m, func(ctx context.Context, stream io.ReadWriteCloser) error {
			return backend.Serve(ctx, back, protocol.Lines(stream), nil)
		})
	}), s
}

func askPrice(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, any, error) {
	answer := r.Params.InputResponses["price"]
	if answer == nil {
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"price": &mcp.ElicitParams{Mode: "form", Message: "How much?",
			RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{"yes": map[string]any{"type": "boolean"}}}}},
			RequestState: "car"}, nil, nil
	}
	said, _ := answer.(*mcp.ElicitResult)
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "car " + said.Action}}}, nil, nil
}

// eventually waits for an effect of another goroutine.
func eventually(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		t.Fatal("timed out waiting for", what)
	}
}

// member returns a text member of a result.
func member(t *testing.T, r *protocol.Message, name string) (text string) {
	t.Helper()
	raw, _ := r.InResult(name)
	if raw == nil || json.Unmarshal(raw, &text) != nil || text == "" {
		t.Fatalf("%.300s has no %s", r.Bytes(), name)
	}
	return text
}

// replies returns a Thing with a fixed reply.
func replies(status interact.Status, media, data string) interact.Thing {
	return interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
		r := m.Reply(interact.ActionStatus, media, []byte(data))
		r.Status = status
		return r, nil
	})
}

// featuresOf returns the features of a Thing, and the prefix of its URIs.
func featuresOf(t *testing.T, m bridge.Mesh, name string) (*features.Features, string) {
	t.Helper()
	d, err := m.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	o := features.Of(d)
	return o, "lmos://" + o.Alias
}

// under returns the name of a tool or prompt of a pinned Thing.
func under(alias, name string) string { return (&features.Prompt{Name: name}).Under(alias) }
