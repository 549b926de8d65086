package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"slices"
	"sync"

	"github.com/yosida95/uritemplate/v3"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Guard implements [bridge.TunnelGuard]: the policy applies to requests in the tunnel of d as to messages. Calling a tool or a prompt is
// the invocation of its action, reading a resource is the reading of its property, and subscribing is its observation. Features that d
// does not describe have their name at the server.
func (b *Bridge) Guard(d *td.Thing, check bridge.PolicyCheck) interact.Middleware {
	a := d.Actions[tunnelAction]
	if a == nil || !slices.Contains(a.Types, bridge.MCPSession) {
		return nil
	}
	g := newTunnelPolicy(d, check)
	return func(t interact.Thing) interact.Thing {
		return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			if m.Type == interact.InvokeAction && m.Name == moreTools {
				if err := g.checkMore(ctx, m); err != nil {
					return interact.Fail(err)
				}
			}
			if m.Type != interact.InvokeAction || m.Name != tunnelAction || m.Chunks == nil {
				return t.Do(ctx, m)
			}
			return bridge.Accept(ctx, m, func(ctx context.Context, stream io.ReadWriteCloser) error {
				return g.relay(ctx, m, protocol.Lines(stream), protocol.Lines(bridge.Dial(ctx, t, m)))
			})
		})
	}
}

// checkMore checks the policy for the tool that m names.
func (g *tunnelPolicy) checkMore(ctx context.Context, m *interact.Message) error {
	w, err := moreInputOf(m)
	if err != nil || w.Tool == "" {
		return err
	}
	one := *m
	one.Name, one.Data, one.ContentType = or(g.tools, w.Tool), w.Arguments, ""
	return g.check(ctx, &one)
}

// A tunnelPolicy maps the names of MCP to those of a description and checks the policy.
type tunnelPolicy struct {
	check     bridge.PolicyCheck
	tools     map[string]string // actions by tool name
	prompts   map[string]string
	uris      map[string]string // properties by URI
	templates []template
}

type template struct {
	*uritemplate.Template
	key string
}

func newTunnelPolicy(d *td.Thing, check bridge.PolicyCheck) *tunnelPolicy {
	g := &tunnelPolicy{check: check, tools: map[string]string{}, prompts: map[string]string{}, uris: map[string]string{}}
	var doc struct {
		Actions map[string]struct {
			Type any    `json:"@type"`
			Name string `json:"mcp:name"`
		} `json:"actions"`
		Properties map[string]struct {
			URI      string `json:"mcp:uri"`
			Template string `json:"mcp:uriTemplate"`
		} `json:"properties"`
	}
	_ = json.Unmarshal(d.Raw, &doc) // malformed terms have no name
	for key, a := range doc.Actions {
		if a.Type == promptType {
			g.prompts[a.Name] = key
		} else {
			g.tools[a.Name] = key
		}
	}
	for key, p := range doc.Properties {
		if t, err := uritemplate.New(p.Template); p.Template != "" && err == nil {
			g.templates = append(g.templates, template{t, key})
		} else {
			g.uris[p.URI] = key
		}
	}
	slices.SortFunc(g.templates, func(a, b template) int { return len(b.Raw()) - len(a.Raw()) })
	return g
}

// maxInvalid bounds the malformed messages of a server in a row.
const maxInvalid = 1000

// relay passes the messages between a client and the server, except for denied requests. It closes both connections.
func (g *tunnelPolicy) relay(ctx context.Context, m *interact.Message, client, server protocol.Conn) error {
	var work sync.WaitGroup
	defer work.Wait()
	defer server.Close()
	defer context.AfterFunc(ctx, func() { client.Close() })()
	work.Go(func() {
		defer client.Close()
		for invalid := 0; ; {
			r, err := server.Read(ctx)
			if bad, ok := err.(*protocol.Error); ok {
				if invalid++; invalid > maxInvalid {
					return
				}
				if r == nil {
					continue
				}
				r, err = protocol.RespondMalformed(r.ID(), bad), nil
			}
			if err != nil || client.Write(ctx, r) != nil {
				return
			}
		}
	})
	for {
		q, err := client.Read(ctx)
		bad := (*protocol.Error)(nil)
		switch {
		case errors.As(err, &bad):
			err = client.Write(ctx, protocol.RespondError(protocol.IDOfInvalid(q), bad))
		case err == nil:
			err = g.pass(ctx, m, q, client, server)
		}
		if err != nil {
			return ctx.Err() // one end has closed
		}
	}
}

// pass sends q to the server, or an error to the client.
func (g *tunnelPolicy) pass(ctx context.Context, m *interact.Message, q *protocol.Message, client, server protocol.Conn) error {
	all, bad := g.messagesOf(q)
	if bad != nil {
		return client.Write(ctx, protocol.RespondError(q.ID(), bad))
	}
	for _, one := range all {
		one.Thing, one.From, one.ID, one.TraceParent, one.TraceState = m.Thing, backend.PrincipalOf(m.From, q), m.ID, m.TraceParent, m.TraceState
		if err := g.check(ctx, one); err != nil {
			return client.Write(ctx, protocol.RespondError(q.ID(), protocol.FromError(err)))
		}
	}
	return server.Write(ctx, q)
}

// maxObserved bounds the resources of one subscription.
const maxObserved = 1024

// messagesOf returns the messages that a request corresponds to; none for requests that every caller of the tunnel may send. Ambiguous
// requests are rejected: some servers accept ["x"] for "x".
func (g *tunnelPolicy) messagesOf(q *protocol.Message) ([]*interact.Message, *protocol.Error) {
	if !q.IsRequest() {
		return nil, nil
	}
	if subject, named := q.TargetName(); subject == "" && (named || q.Method() == protocol.Subscribe && q.Text("uri") == "") {
		return nil, protocol.Errorf(protocol.InvalidParams, "missing name in %s", q.Method())
	}
	switch q.Method() {
	case protocol.CallTool:
		return []*interact.Message{{Type: interact.InvokeAction, Name: or(g.tools, q.Text("name"))}}, nil
	case protocol.GetPrompt:
		return []*interact.Message{{Type: interact.InvokeAction, Name: or(g.prompts, q.Text("name"))}}, nil
	case protocol.ReadResource:
		return []*interact.Message{{Type: interact.ReadProperty, Name: g.property(q.Text("uri"))}}, nil
	case protocol.Subscribe:
		return []*interact.Message{{Type: interact.ObserveProperty, Name: g.property(q.Text("uri"))}}, nil
	case protocol.Listen:
		raw, _ := q.Param("notifications", "resourceSubscriptions")
		var uris []string
		if raw != nil && json.Unmarshal(raw, &uris) != nil || len(uris) > maxObserved {
			return nil, protocol.Errorf(protocol.InvalidParams, "expected at most %d URIs as resourceSubscriptions", maxObserved)
		}
		var all []*interact.Message
		for _, uri := range uris {
			all = append(all, &interact.Message{Type: interact.ObserveProperty, Name: g.property(uri)})
		}
		return all, nil
	}
	return nil, nil
}

// or returns the name in the description for a name at the server, or that name if the description has none.
func or(names map[string]string, name string) string {
	if key, ok := names[name]; ok {
		return key
	}
	return name
}

// property returns the property of a URI.
func (g *tunnelPolicy) property(uri string) string {
	if key, ok := g.uris[uri]; ok {
		return key
	}
	for _, t := range g.templates {
		if len(uri) <= maxText && t.Match(uri) != nil {
			return t.key
		}
	}
	return uri
}
