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
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Guard implements [bridge.TunnelGuard]: what MCP clients ask over the tunnel of d is judged like what others ask. A call of a tool or a prompt
// is the invocation of its action, to read a resource is to read its property, to listen to one is to observe it. What d does not
// describe goes by the server's own name for it.
func (b *Bridge) Guard(d *td.Thing, judge bridge.PolicyCheck) interact.Middleware {
	a := d.Actions[Tunnel]
	if a == nil || !slices.Contains(a.Types, bridge.MCPSession) {
		return nil
	}
	g := newGate(d, judge)
	return func(t interact.Thing) interact.Thing {
		return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			if m.Type == interact.InvokeAction && m.Name == More {
				if err := g.judgeMore(ctx, m); err != nil {
					return interact.Fail(err)
				}
			}
			if m.Type != interact.InvokeAction || m.Name != Tunnel || m.Chunks == nil {
				return t.Do(ctx, m)
			}
			return bridge.Accept(ctx, m, func(ctx context.Context, stream io.ReadWriteCloser) error {
				return g.relay(ctx, m, protocol.Lines(stream), protocol.Lines(bridge.Dial(ctx, t, m)))
			})
		})
	}
}

// judgeMore asks whether the tool that m names may be called.
func (g *gate) judgeMore(ctx context.Context, m *interact.Message) error {
	w, err := wishesOf(m)
	if err != nil || w.Tool == "" {
		return err
	}
	one := *m
	one.Name, one.Data, one.ContentType = or(g.tools, w.Tool), w.Arguments, ""
	return g.judge(ctx, &one)
}

// A gate knows what a description calls what MCP names.
type gate struct {
	judge     bridge.PolicyCheck
	tools     map[string]string // actions by the name of a tool
	prompts   map[string]string
	uris      map[string]string // properties by URI
	templates []template
}

type template struct {
	*uritemplate.Template
	key string
}

func newGate(d *td.Thing, judge bridge.PolicyCheck) *gate {
	g := &gate{judge: judge, tools: map[string]string{}, prompts: map[string]string{}, uris: map[string]string{}}
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
	_ = json.Unmarshal(d.Raw, &doc) // what is not as it should be has no name here
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

// maxRubbish bounds what a server may say on a tunnel that is no message.
const maxRubbish = 1000

// relay passes on what goes between a client and the server, but for what is refused. It closes both.
func (g *gate) relay(ctx context.Context, m *interact.Message, client, server protocol.Conn) error {
	var work sync.WaitGroup
	defer work.Wait()
	defer server.Close()
	defer context.AfterFunc(ctx, func() { client.Close() })()
	work.Go(func() {
		defer client.Close()
		for rubbish := 0; ; {
			r, err := server.Read(ctx)
			if bad, ok := err.(*protocol.Error); ok {
				if rubbish++; rubbish > maxRubbish {
					return
				}
				if r == nil {
					continue
				}
				r, err = protocol.RespondError(r.ID(), protocol.Errorf(protocol.InternalError, "the server's response cannot be read: %s", bad.Message)), nil
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
		case errors.As(err, &bad) && q != nil:
			err = client.Write(ctx, protocol.RespondError(q.ID(), bad))
		case errors.As(err, &bad):
			err = client.Write(ctx, protocol.RespondError("", bad))
		case err == nil:
			err = g.pass(ctx, m, q, client, server)
		}
		if err != nil {
			return ctx.Err() // either end has closed
		}
	}
}

// pass gives q to the server, or the client an error.
func (g *gate) pass(ctx context.Context, m *interact.Message, q *protocol.Message, client, server protocol.Conn) error {
	asks, bad := g.asks(q)
	if bad != nil {
		return client.Write(ctx, protocol.RespondError(q.ID(), bad))
	}
	for _, one := range asks {
		one.Thing, one.From, one.ID, one.TraceParent, one.TraceState = m.Thing, userOf(m, q), m.ID, m.TraceParent, m.TraceState
		if err := g.judge(ctx, one); err != nil {
			return client.Write(ctx, protocol.RespondError(q.ID(), protocol.FromError(err)))
		}
	}
	return server.Write(ctx, q)
}

// userOf returns the caller of q in the tunnel m: the user that a relay of another node names, or the caller that opened the tunnel.
func userOf(m *interact.Message, q *protocol.Message) *did.Principal {
	if user := q.Text("_meta", protocol.MetaUser); m.From != nil && m.From.Node != "" && did.ValidPrincipalName(user) {
		return did.NodePrincipal(m.From.Node, user)
	}
	return m.From
}

// maxObserved bounds the resources that one message may listen to.
const maxObserved = 1024

// asks says what a request asks for in lmosd's words; nothing for what anybody may ask who may use the tunnel. What cannot be told
// exactly is refused: a server might take ["x"] for "x".
func (g *gate) asks(q *protocol.Message) ([]*interact.Message, *protocol.Error) {
	if !q.IsRequest() {
		return nil, nil
	}
	if subject, named := q.TargetName(); subject == "" && (named || q.Method() == subscribe && q.Text("uri") == "") {
		return nil, protocol.Errorf(protocol.InvalidParams, "%s names nothing", q.Method())
	}
	switch q.Method() {
	case protocol.CallTool:
		return []*interact.Message{{Type: interact.InvokeAction, Name: or(g.tools, q.Text("name"))}}, nil
	case protocol.GetPrompt:
		return []*interact.Message{{Type: interact.InvokeAction, Name: or(g.prompts, q.Text("name"))}}, nil
	case protocol.ReadRes:
		return []*interact.Message{{Type: interact.ReadProperty, Name: g.property(q.Text("uri"))}}, nil
	case subscribe:
		return []*interact.Message{{Type: interact.ObserveProperty, Name: g.property(q.Text("uri"))}}, nil
	case protocol.Listen:
		raw, _ := q.Param("notifications", "resourceSubscriptions")
		var uris []string
		if raw != nil && json.Unmarshal(raw, &uris) != nil || len(uris) > maxObserved {
			return nil, protocol.Errorf(protocol.InvalidParams, "resourceSubscriptions are at most %d URIs", maxObserved)
		}
		var all []*interact.Message
		for _, uri := range uris {
			all = append(all, &interact.Message{Type: interact.ObserveProperty, Name: g.property(uri)})
		}
		return all, nil
	}
	return nil, nil
}

const subscribe = "resources/subscribe"

func or(names map[string]string, name string) string {
	if key, ok := names[name]; ok {
		return key
	}
	return name
}

// property is what the description calls the resource of a URI.
func (g *gate) property(uri string) string {
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
