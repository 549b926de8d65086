package server

import (
	"bufio"
	"context"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/tdtest"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// house has something of every kind.
const house = `
	"properties": {
		"temperature": {"type": "number", "readOnly": true, "observable": true, "forms": [{"href": "http://a.example/t",
			"op": ["readproperty", "observeproperty"]}]},
		"units": {"type": "string", "enum": ["celsius", "fahrenheit"], "observable": true, "forms": [{"href": "lmos:/properties/units"}]},
		"serial": {"type": "string", "readOnly": true, "forms": [{"href": "http://a.example/s"}]},
		"secret": {"type": "string", "writeOnly": true, "forms": [{"href": "http://a.example/x"}]},
		"room": {"type": "number", "observable": true, "uriVariables": {"via": {"type": "string"}, "n": {"type": "integer"}},
			"forms": [{"href": "http://a.example/r{?via,n}", "op": ["readproperty", "writeproperty", "observeproperty"]}]},
		"a,b": {"type": "number", "forms": [{"href": "http://a.example/ab"}]}
	},
	"actions": {
		"fade": {"input": {"type": "object", "required": ["to"], "properties": {"to": {"type": "integer"}}},
			"forms": [{"href": "http://a.example/fade"}]},
		"toggle": {"forms": [{"href": "http://a.example/toggle"}]},
		"clean": {"synchronous": false, "forms": [{"href": "http://a.example/clean"}]},
		"listen": {"forms": [{"href": "http://a.example/listen", "contentType": "audio/wav"}]},
		"talk": {"forms": [{"href": "lmos:/actions/talk"}]}
	},
	"events": {
		"bid": {"subscription": {"type": "object", "required": ["item"], "properties": {"item": {"type": "string"}}},
			"forms": [{"href": "http://a.example/bid", "subprotocol": "longpoll"}]},
		"hot": {"data": {"type": "number"}, "forms": [{"href": "http://a.example/hot", "subprotocol": "longpoll"}]},
		"sold": {"subscription": {"type": "object", "required": ["item"], "properties": {"item": {"type": "string"}}},
			"uriVariables": {"shop": {"type": "string"}},
			"forms": [{"href": "http://a.example/sold{?shop}", "subprotocol": "longpoll"}]}
	}`

// A world is a server over a mesh with one Thing, "house". The test writes its replies.
type world struct {
	*Server
	t     *testing.T
	url   string
	asked chan *interact.Message // messages to the mesh
	left  chan error             // how the context was when an interaction was left
}

// newWorld starts a server that calls do. The thing is also known by the names.
func newWorld(t *testing.T, o Options, do func(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool),
	names ...string) *world {
	t.Helper()
	w := &world{t: t, asked: make(chan *interact.Message, 1000), left: make(chan error, 1000)}
	o.Mesh = interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			note(w.asked, m)
			do(ctx, m, yield)
			note(w.left, ctx.Err())
		}
	})
	if o.Find == nil {
		o.Find = finds(t, append(names, "house")...)
	}
	w.Server = New(o)
	server := httptest.NewServer(w.Server)
	w.url = server.URL + "/things/house"
	t.Cleanup(func() {
		w.Close()
		server.Close()
	})
	return w
}

// note sends v, unless the channel is full.
func note[T any](c chan T, v T) {
	select {
	case c <- v:
	default:
	}
}

func describe(t testing.TB, members string) *td.Thing { return tdtest.Thing(t, "", members) }

// finds returns a finder of one Thing with these names.
func finds(t testing.TB, names ...string) func(context.Context, string) (*td.Description, error) {
	t.Helper()
	thing := describe(t, house)
	d := &td.Description{Thing: thing, Record: &td.Record{Owner: "did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH",
		Thing: "urn:example:house", Title: "House"}}
	return func(_ context.Context, ref string) (*td.Description, error) {
		for _, n := range names {
			if ref == n {
				return d, nil
			}
		}
		return nil, interact.Errorf(interact.NotFound, "list the agents", "no agent matches %q", ref).Then(interact.StepFind)
	}
}

// answers is a mesh that answers every request with one reply.
func answers(typ interact.Type, media, data string) func(context.Context, *interact.Message, func(*interact.Message, error) bool) {
	return func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		r := m.Reply(typ, media, []byte(data))
		if typ == interact.ActionStatus {
			r.Status = interact.StatusCompleted
		}
		yield(r, nil)
	}
}

// fails is a mesh that answers every request with an error.
func fails(err error) func(context.Context, *interact.Message, func(*interact.Message, error) bool) {
	return func(_ context.Context, _ *interact.Message, yield func(*interact.Message, error) bool) {
		yield(nil, err)
	}
}

// happens makes an event of the interaction m.
func happens(m *interact.Message, name, id, data string) *interact.Message {
	t := interact.Event
	if m.Type == interact.ObserveProperty || m.Type == interact.ObserveAllProperties {
		t = interact.PropertyReading
	}
	r := m.Reply(t, "", []byte(data))
	r.ID = id
	if name != "" {
		r.Name = name
	}
	return r
}

// An incoming answer is read while it comes.
type incoming struct {
	t     *testing.T
	resp  *http.Response
	lines *bufio.Reader
}

// open sends a request and returns its answer as soon as that begins. The connection is closed with the test.
func (w *world) open(ctx context.Context, method, path, body string, headers ...string) *incoming {
	w.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	tr := &http.Transport{}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		resp.Body.Close()
		tr.CloseIdleConnections()
	})
	return &incoming{t: w.t, resp: resp, lines: bufio.NewReader(resp.Body)}
}

// events opens a stream of events.
func (w *world) events(path string, headers ...string) *incoming {
	w.t.Helper()
	in := w.open(w.t.Context(), "GET", path, "", append([]string{"Accept", "text/event-stream"}, headers...)...)
	if in.resp.StatusCode != 200 || in.resp.Header.Get("Content-Type") != "text/event-stream" {
		body, _ := io.ReadAll(in.resp.Body)
		w.t.Fatalf("%s: got %d %v %s", path, in.resp.StatusCode, in.resp.Header, body)
	}
	return in
}

// next returns the next block of lines, without the empty line behind it; "EOF" at the end, "broken" where the connection broke.
func (in *incoming) next() string {
	in.t.Helper()
	var block strings.Builder
	for {
		line, err := in.lines.ReadString('\n')
		switch {
		case err == io.EOF:
			return block.String() + line + "EOF"
		case err != nil:
			return block.String() + line + "broken"
		case line == "\n":
			return strings.TrimSuffix(block.String(), "\n")
		}
		block.WriteString(line)
	}
}

// nextEvent returns the next block that is not a comment.
func (in *incoming) nextEvent() string {
	in.t.Helper()
	for {
		if block := in.next(); !strings.HasPrefix(block, ":") {
			return block
		}
	}
}

// receive takes from a channel, within a time that no test needs.
func receive[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came")
		panic("not reached")
	}
}
