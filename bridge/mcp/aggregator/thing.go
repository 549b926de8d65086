package aggregator

import (
	"cmp"
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/features"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/opaque"
)

const (
	// pageSize is the number of items per page of a list.
	pageSize = 1000
	// callTimeout bounds a call. Clients may disconnect earlier.
	callTimeout = time.Hour
	// readTimeout bounds the reading of a resource.
	readTimeout = time.Minute
)

// A thing is the MCP server of a Thing that is not an MCP server itself. It handles requests of 2026-07-28.
type thing struct {
	h     *Handler
	ref   string
	runs  *runs
	feeds *feeds
	work  sync.WaitGroup
	// The owners of the tasks and conversations.
	tasks, contexts bridge.AgentOwners

	mu     sync.Mutex
	latest *features.Features // features of the last description
}

func newThing(h *Handler, ref string) *thing {
	t := &thing{h: h, ref: ref, tasks: h.tasks.OfAgent(ref), contexts: h.contexts.OfAgent(ref)}
	t.runs, t.feeds = newRuns(t), newFeeds(t)
	return t
}

// close ends all runs and subscriptions and waits for them.
func (t *thing) close() {
	t.runs.close()
	t.feeds.close()
	t.work.Wait()
}

// features returns the current features of the Thing.
func (t *thing) features(ctx context.Context) (*features.Features, error) {
	d, err := t.h.o.Mesh.Get(ctx, t.ref)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.latest = t.latest.Renewed(d)
	return t.latest, nil
}

// Call implements [statelessServer].
func (t *thing) Call(ctx context.Context, m *protocol.Message, notify protocol.Notify) (*protocol.Message, error) {
	f, err := t.features(ctx)
	if err != nil {
		return protocol.RespondError(m.ID(), targetError(err)), nil
	}
	switch m.Method() {
	case protocol.Discover:
		return discovered(m, selfOf(f, t.h.o.Version), f.Desc.Thing.Description), nil
	case protocol.ListTools:
		return paged(ctx, t.h.sealer, m, "tools", f.Tools, func(t *features.Tool) string { return t.Name }), nil
	case protocol.ListPrompts:
		return paged(ctx, t.h.sealer, m, "prompts", f.Prompts, func(p *features.Prompt) string { return p.Name }), nil
	case protocol.ListResources:
		return paged(ctx, t.h.sealer, m, "resources", f.Resources, func(r *features.Resource) string { return r.URI }), nil
	case protocol.ListTemplates:
		return paged(ctx, t.h.sealer, m, "resourceTemplates", f.Templates, func(r *features.Resource) string { return r.Template }), nil
	case protocol.CallTool:
		return t.callTool(ctx, f, m, notify)
	case protocol.GetPrompt:
		return t.getPrompt(ctx, f, m, notify)
	case protocol.ReadResource:
		return t.readResource(ctx, f, m), nil
	case protocol.Listen:
		return t.listen(ctx, f, m, notify)
	case protocol.Complete:
		return f.Complete(m), nil
	case protocol.GetTask, protocol.UpdateTask, protocol.CancelTask:
		return t.task(ctx, m), nil
	}
	return protocol.RespondError(m.ID(), protocol.Errorf(protocol.UnknownMethod, "unknown method %s", m.Method())), nil
}

// selfOf returns the Implementation of a Thing. A Thing without a version gets that of lmosd.
func selfOf(f *features.Features, version string) protocol.Implementation {
	return protocol.Implementation{Name: f.Alias, Title: f.Desc.Thing.Title, Version: cmp.Or(f.Desc.Thing.Version, protocol.Self(version).Version)}
}

// discovered responds to server/discover.
func discovered(m *protocol.Message, s protocol.Implementation, instructions string) *protocol.Message {
	type changes struct {
		ListChanged bool `json:"listChanged"`
		Subscribe   bool `json:"subscribe,omitempty"`
	}
	out := map[string]any{"resultType": "complete", "supportedVersions": []string{protocol.Modern}, "ttlMs": 0, "cacheScope": "private",
		"_meta": map[string]any{protocol.MetaServer: s},
		"capabilities": map[string]any{"tools": changes{ListChanged: true}, "prompts": changes{ListChanged: true},
			"resources": changes{ListChanged: true, Subscribe: true}, "completions": struct{}{},
			"extensions": map[string]any{protocol.Tasks: struct{}{}}}}
	if instructions != "" {
		out["instructions"] = instructions
	}
	return protocol.Respond(m.ID(), out)
}

// paged responds with the page of a list that the cursor of m selects. Items are sorted by name, and a cursor contains the name of the
// last one, so that it stays valid while the list changes.
func paged[T any](ctx context.Context, s *opaque.Sealer, m *protocol.Message, member string, all []T, name func(T) string) *protocol.Message {
	of := opaque.For{Purpose: "cursor " + m.Method(), Caller: protocol.CallerOf(ctx)}
	rest, e := after(s, of, m, all, name)
	if e != nil {
		return protocol.RespondError(m.ID(), e)
	}
	page := rest[:min(len(rest), pageSize)]
	out := map[string]any{"resultType": "complete", member: append([]T{}, page...), "ttlMs": 0, "cacheScope": "private"}
	if len(rest) > len(page) {
		out["nextCursor"] = s.Seal(of, 0, name(page[len(page)-1]))
	}
	return protocol.Respond(m.ID(), out)
}

// after returns the items after the cursor of m.
func after[T any](s *opaque.Sealer, of opaque.For, m *protocol.Message, all []T, name func(T) string) ([]T, *protocol.Error) {
	bad := protocol.Errorf(protocol.InvalidParams, "invalid cursor")
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

// address sets the destination and the trace context of a message to the Thing.
func (t *thing) address(msg *interact.Message, m *protocol.Message, timeout time.Duration) {
	msg.Thing, msg.ID, msg.Deadline = t.ref, interact.NewID(), time.Now().Add(timeout)
	msg.TraceParent, msg.TraceState = interact.TraceContext(m.Text("_meta", "traceparent"), m.Text("_meta", "tracestate"))
}

// readResource reads a property, or the stored events.
func (t *thing) readResource(ctx context.Context, f *features.Features, m *protocol.Message) *protocol.Message {
	uri := m.Text("uri")
	r := f.Resource(uri)
	switch {
	case r == nil:
		return protocol.RespondError(m.ID(), noResource(uri))
	case r.Event:
		return protocol.Respond(m.ID(), features.Contents(t.feeds.latest(r.Key), interact.JSON, uri))
	}
	msg := r.Message(uri)
	t.address(msg, m, readTimeout)
	msg.From = did.PrincipalOf(ctx)
	reading, err := interact.Call(ctx, t.h.o.Mesh, msg)
	if err != nil {
		return protocol.RespondError(m.ID(), features.ReadError(err, uri))
	}
	return protocol.Respond(m.ID(), features.Contents(reading.Data, reading.Media(), uri))
}
