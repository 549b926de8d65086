package facade

import (
	"context"
	"encoding/json"
	"net/url"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/wire"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/rest"
	"github.com/lmosd/lmosd/internal/seal"
	"github.com/lmosd/lmosd/td"
)

const (
	// pageSize is how many items a page of a list has.
	pageSize = 1000
	// callFor is how long a call may take. Who waits for less leaves.
	callFor = time.Hour
	// readFor is how long reading a resource may take.
	readFor = time.Minute
)

// A thing that is no MCP server, as one. It answers requests of 2026-07-28.
type thing struct {
	h     *Handler
	ref   string
	runs  *runs
	feeds *feeds
	tasks owners // of the tasks of turns
	work  sync.WaitGroup

	mu     sync.Mutex
	latest *offers // as the thing was described last
}

func newThing(h *Handler, ref string) *thing {
	t := &thing{h: h, ref: ref}
	t.runs, t.feeds = newRuns(t), newFeeds(t)
	return t
}

// close ends what goes on, and waits for it.
func (t *thing) close() {
	t.runs.close()
	t.feeds.close()
	t.work.Wait()
}

// offers are those of the thing as it is described now.
func (t *thing) offers(ctx context.Context) (*offers, error) {
	d, err := t.h.o.Mesh.Get(ctx, t.ref)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.latest == nil || t.latest.hash != d.Record.Hash {
		t.latest = offersOf(d)
	}
	return t.latest, nil
}

// Call implements [modern].
func (t *thing) Call(ctx context.Context, m *wire.Message, notify func(*wire.Message) error) (*wire.Message, error) {
	o, err := t.offers(ctx)
	if err != nil {
		return wire.Refuse(m.ID(), unknown(err)), nil
	}
	switch m.Method() {
	case wire.Discover:
		return discovered(m, o.self(), o.desc.Description), nil
	case "tools/list":
		return paged(ctx, t.h.sealer, m, "tools", o.tools, func(t *tool) string { return t.Name }), nil
	case "prompts/list":
		return paged(ctx, t.h.sealer, m, "prompts", o.prompts, func(p *prompt) string { return p.Name }), nil
	case "resources/list":
		return paged(ctx, t.h.sealer, m, "resources", o.resources, func(r *resource) string { return r.URI }), nil
	case "resources/templates/list":
		return paged(ctx, t.h.sealer, m, "resourceTemplates", o.templates, func(r *resource) string { return r.Template }), nil
	case wire.CallTool:
		return t.callTool(ctx, o, m, notify)
	case wire.GetPrompt:
		return t.getPrompt(ctx, o, m, notify)
	case wire.ReadRes:
		return t.readResource(ctx, o, m), nil
	case wire.Listen:
		return t.listen(ctx, o, m, notify)
	case "completion/complete":
		return o.complete(m), nil
	case "tasks/get", "tasks/update", "tasks/cancel":
		return t.task(ctx, m), nil
	}
	return wire.Refuse(m.ID(), wire.Errorf(wire.UnknownMethod, "%s is no method of this server", m.Method())), nil
}

// A self is what a server calls itself.
type self struct {
	Name    string `json:"name"`
	Title   string `json:"title,omitempty"`
	Version string `json:"version"`
}

func (o *offers) self() self {
	version := o.desc.Version
	if version == "" {
		version = "1"
	}
	return self{o.alias, o.desc.Title, version}
}

// discovered answers server/discover.
func discovered(m *wire.Message, s self, instructions string) *wire.Message {
	type changes struct {
		ListChanged bool `json:"listChanged"`
		Subscribe   bool `json:"subscribe,omitempty"`
	}
	out := map[string]any{"resultType": "complete", "supportedVersions": []string{wire.Modern}, "ttlMs": 0, "cacheScope": "private",
		"_meta": map[string]any{wire.MetaServer: s},
		"capabilities": map[string]any{"tools": changes{ListChanged: true}, "prompts": changes{ListChanged: true},
			"resources": changes{ListChanged: true, Subscribe: true}, "completions": struct{}{},
			"extensions": map[string]any{tasksExtension: struct{}{}}}}
	if instructions != "" {
		out["instructions"] = instructions
	}
	return wire.Respond(m.ID(), out)
}

// paged answers a list with the page that the cursor of m asks for. The items are in the order of their names, and a cursor says which
// was the last, so that it holds while the list changes.
func paged[T any](ctx context.Context, s *seal.Sealer, m *wire.Message, member string, all []T, name func(T) string) *wire.Message {
	of := seal.For{Purpose: "cursor " + m.Method(), Caller: wire.CallerOf(ctx)}
	rest, e := after(s, of, m, all, name)
	if e != nil {
		return wire.Refuse(m.ID(), e)
	}
	page := rest[:min(len(rest), pageSize)]
	out := map[string]any{"resultType": "complete", member: append([]T{}, page...), "ttlMs": 0, "cacheScope": "private"}
	if len(rest) > len(page) {
		out["nextCursor"] = s.Seal(of, 0, name(page[len(page)-1]))
	}
	return wire.Respond(m.ID(), out)
}

// after returns what comes after the cursor of m.
func after[T any](s *seal.Sealer, of seal.For, m *wire.Message, all []T, name func(T) string) ([]T, *wire.Error) {
	bad := wire.Errorf(wire.InvalidParams, "this is no cursor of this list")
	raw, err := m.Param("cursor")
	if err != nil {
		return nil, bad
	}
	if raw == nil || string(raw) == "null" {
		return all, nil
	}
	var cursor, last string
	if json.Unmarshal(raw, &cursor) != nil || s.Open(of, cursor, &last) != nil {
		return nil, bad
	}
	for i, one := range all {
		if name(one) > last {
			return all[i:], nil
		}
	}
	return nil, nil
}

// message is a message to the thing.
func (t *thing) message(m *wire.Message, kind interact.Type, key string, data []byte, patience time.Duration) *interact.Message {
	out := &interact.Message{Type: kind, Thing: t.ref, Name: key, ID: interact.NewID(), Data: data, Deadline: time.Now().Add(patience)}
	out.TraceParent, out.TraceState = interact.TraceContext(m.Text("_meta", "traceparent"), m.Text("_meta", "tracestate"))
	return out
}

// readResource reads a property, or the latest events.
func (t *thing) readResource(ctx context.Context, o *offers, m *wire.Message) *wire.Message {
	uri := m.Text("uri")
	r, vars := o.find(uri)
	if r == nil {
		return wire.Refuse(m.ID(), noResource(uri))
	}
	var c *contents
	if r.event {
		c = contentsOf(t.feeds.latest(r.key), interact.JSON, uri)
	} else {
		msg := t.message(m, interact.ReadProperty, r.key, variables(vars, r.vars), readFor)
		reading, err := interact.Ask(ctx, t.h.o.Mesh, msg)
		if err != nil {
			return wire.Refuse(m.ID(), fault(err).With(withURI(err, uri)))
		}
		data, media, err := interact.Transcode(reading.Data, reading.Media(), interact.JSON)
		if err != nil {
			data, media = reading.Data, reading.Media()
		}
		c = contentsOf(data, interact.MediaType(media), uri)
	}
	return wire.Respond(m.ID(), map[string]any{"resultType": "complete", "contents": []*contents{c}, "ttlMs": 0, "cacheScope": "private"})
}

func withURI(err error, uri string) map[string]any {
	out := about(interact.AsError(err))
	out["uri"] = uri
	return out
}

// noResource is the error of a URI that leads to nothing.
func noResource(uri string) *wire.Error {
	return wire.Errorf(wire.InvalidParams, "there is no resource %s", interact.Clip(uri, 256)).With(map[string]any{"uri": uri})
}

// variables are those of an address, as the input that a thing takes.
func variables(values url.Values, schemas map[string]*td.Schema) []byte {
	if len(values) == 0 {
		return nil
	}
	return rest.AddVariables(nil, values, schemas, nil)
}

// input is what the arguments of a call are to the thing. The error is why they are none.
func (s *shape) input(m *wire.Message) ([]byte, *wire.Error) {
	raw, err := m.Param("arguments")
	switch {
	case err != nil:
		return nil, wire.Errorf(wire.InvalidParams, "the arguments name a member twice")
	case raw != nil && raw[0] != '{' && string(raw) != "null":
		return nil, wire.Errorf(wire.InvalidParams, "the arguments are an object")
	case s.none || raw == nil || string(raw) == "null":
		return nil, nil
	case s.member == "":
		return raw, nil
	}
	value, err := m.Param("arguments", s.member)
	if err != nil {
		return nil, wire.Errorf(wire.InvalidParams, "the arguments name a member twice")
	}
	return value, nil
}
