package facade

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/wire"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/task"
	"github.com/lmosd/lmosd/td"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A town is a mesh in memory.
type town struct {
	runner *task.Runner

	mu     sync.Mutex
	seq    uint64
	next   chan struct{} // closed by the next change
	descs  map[string]*td.Description
	things map[string]interact.Thing
}

const owner = did.DID("did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH")

func newTown(t testing.TB) *town {
	m := &town{runner: task.New(task.Options{}), seq: 1, next: make(chan struct{}), descs: map[string]*td.Description{},
		things: map[string]interact.Thing{}}
	t.Cleanup(m.runner.Close)
	return m
}

// add describes a thing, or describes it anew.
func (m *town) add(t testing.TB, id, doc string, thing interact.Thing) *td.Description {
	t.Helper()
	var draft map[string]any
	if err := json.Unmarshal([]byte(doc), &draft); err != nil {
		t.Fatal(err)
	}
	draft["id"] = id
	raw, err := td.Draft(written(draft))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := td.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seq++
	d := &td.Description{Thing: parsed, Record: &td.Record{Owner: owner, Thing: id, Title: parsed.Title, Hash: [32]byte{byte(m.seq), byte(m.seq >> 8)}}}
	m.descs[d.Ref()] = d
	m.things[d.Ref()] = m.runner.Wrap(parsed)(thing)
	close(m.next)
	m.next = make(chan struct{})
	return d
}

func (m *town) remove(ref string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seq++
	delete(m.descs, ref)
	close(m.next)
	m.next = make(chan struct{})
}

func (m *town) Do(ctx context.Context, msg *interact.Message) iter.Seq2[*interact.Message, error] {
	m.mu.Lock()
	thing := m.things[msg.Thing]
	m.mu.Unlock()
	if thing == nil {
		return interact.Fail(interact.Errorf(interact.Unreachable, "wait for it", "%s is away", msg.Thing))
	}
	return thing.Do(ctx, msg)
}

func (m *town) Get(_ context.Context, ref string) (*td.Description, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := td.ParseRef(ref)
	for _, d := range m.descs {
		if d.Ref() == ref || r.Match(d) {
			return d, nil
		}
	}
	return nil, interact.Errorf(interact.NotFound, "lmosd find", "no agent matches %q", ref)
}

func (m *town) Find(_ context.Context, q td.Query) iter.Seq2[*td.Description, error] {
	return func(yield func(*td.Description, error) bool) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, d := range m.descs {
			if q.Match(d) && !yield(d, nil) {
				return
			}
		}
	}
}

func (m *town) Rank(_ context.Context, _ td.Query, found []*td.Description) (all []directory.Ranked) {
	for _, d := range found {
		all = append(all, directory.Ranked{Description: d})
	}
	return all
}

func (m *town) Latest() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seq
}

func (m *town) Watch(ctx context.Context, _ td.Query, after uint64) iter.Seq2[directory.Change, error] {
	return func(yield func(directory.Change, error) bool) {
		for {
			m.mu.Lock()
			seq, next := m.seq, m.next
			m.mu.Unlock()
			if seq > after {
				after = seq
				if !yield(directory.Change{Seq: seq}, nil) {
					return
				}
				continue
			}
			select {
			case <-next:
			case <-ctx.Done():
				yield(directory.Change{}, ctx.Err())
				return
			}
		}
	}
}

// serve serves a town, and returns the address.
func serveTown(t testing.TB, m *town, pins ...string) (*Handler, string) {
	t.Helper()
	h := New(Options{Mesh: m, Pins: pins})
	mux := http.NewServeMux()
	for _, path := range h.Paths() {
		mux.Handle(path, h)
	}
	s := httptest.NewServer(mux)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
		h.Close()
	})
	return h, s.URL
}

// connect is a client of the go-sdk, of one revision.
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

// eras runs a test as a client of each revision.
func eras(t *testing.T, f func(t *testing.T, version string)) {
	for _, version := range []string{wire.Modern, wire.Legacy} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			f(t, version)
		})
	}
}

const deskTD = `{"title":"Desk","description":"A desk with a bell.","@type":["lmos:Agent"],
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
   "description":"what"}},"required":["about"]}}},
 "properties":{
  "level":{"type":"integer","observable":true},
  "motto":{"type":"string","readOnly":true},
  "note":{"type":"string","readOnly":true,"uriVariables":{"page":{"type":"integer"}}}},
 "events":{"rang":{"data":{"type":"string"}}}}`

// A desk answers as deskTD says.
type desk struct {
	park interact.Parking
	dig  chan struct{} // dig goes on when it is closed
	left chan string   // gets the name of what was cancelled

	mu    sync.Mutex
	level json.RawMessage
	news  chan struct{}
	bell  chan string
}

func newDesk() *desk {
	return &desk{dig: make(chan struct{}), left: make(chan string, 8), level: json.RawMessage("3"), news: make(chan struct{}, 8), bell: make(chan string, 8)}
}

func (d *desk) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
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
				d.left <- m.Name
				return
			}
			done(string(written(answers["sure"].Action + " " + string(answers["sure"].Content))))
		case "invokeaction dig":
			select {
			case <-d.dig:
				done(`"deep"`)
			case <-ctx.Done():
				d.left <- m.Name
				yield(nil, ctx.Err())
			}
		case "invokeaction break":
			yield(nil, &interact.Error{Code: interact.AgentFailed, Title: "the drawer is stuck", Hint: "pull harder", Remote: true})
		case "invokeaction brief":
			done(`{"messages":[{"role":"user","content":{"type":"text","text":` + string(written(string(m.Data))) + `}}]}`)
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
					if !yield(m.Reply(interact.Event, "", written(who)), nil) {
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

// newShop is a server of the go-sdk behind a tunnel.
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
	back := backend.New(backend.Options{Name: "shop", Dial: func(context.Context) (wire.Conn, error) {
		here, there := net.Pipe()
		work.Go(func() { _ = s.Run(ctx, &mcp.IOTransport{Reader: there, Writer: there}) })
		return wire.Lines(here), nil
	}})
	t.Cleanup(func() {
		back.Close()
		cancel()
		work.Wait()
	})
	return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return bridge.Accept(ctx, m, func(ctx context.Context, stream io.ReadWriteCloser) error {
			return backend.Serve(ctx, back, wire.Lines(stream), nil)
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

// eventually waits for something that another goroutine does.
func eventually(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		t.Fatal("waited in vain for", what)
	}
}
