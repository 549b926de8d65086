package aggregator

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/bridgetest"
	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// A remoteFunc is an MCP server behind a tunnel that responds by a function.
type remoteFunc func(ctx context.Context, m *protocol.Message, notify func(*protocol.Message) error) (*protocol.Message, error)

func (f remoteFunc) Call(ctx context.Context, m *protocol.Message, notify func(*protocol.Message) error) (*protocol.Message, error) {
	return f(ctx, m, notify)
}

func (remoteFunc) Session(context.Context) (protocol.Conn, error) { return nil, errors.ErrUnsupported }

// thing returns the server as a Thing.
func (f remoteFunc) thing() interact.Thing {
	return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return bridge.Accept(ctx, m, func(ctx context.Context, stream io.ReadWriteCloser) error {
			return backend.Serve(ctx, f, protocol.Lines(stream), nil)
		})
	})
}

const remoteTD = `{"title":"Far","@context":["https://www.w3.org/2022/wot/td/v1.1",{"mcp":"https://lmosd.dev/ns/mcp#"}],
 "actions":{"mcp":{"@type":"mcp:Session"},"do":{"mcp:name":"do.it"},"brief":{"@type":"mcp:Prompt","mcp:name":"brief it"}},
 "properties":{"menu":{"mcp:uri":"shop://menu","readOnly":true,"observable":true},"page":{"mcp:uriTemplate":"shop://pages/{n}","readOnly":true}}}`

// modernRequest returns a request of 2026-07-28.
func modernRequest(method string, params map[string]any) *protocol.Message {
	params["_meta"] = map[string]any{protocol.MetaVersion: protocol.Modern, protocol.MetaCapabilities: json.RawMessage(taskCapabilities)}
	return protocol.Request("1", method, params)
}

// Requests to the mesh are converted for the server, and its responses for the client. Invalid ones pass unchanged or are errors, and the
// connection continues.
func TestMeshMessages(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var got, answer string
	server := remoteFunc(func(_ context.Context, m *protocol.Message, _ func(*protocol.Message) error) (*protocol.Message, error) {
		mu.Lock()
		defer mu.Unlock()
		got = string(m.WithParam(nil, "_meta").Params())
		if answer == "" {
			return nil, interact.Errorf(interact.AgentFailed, "see its log", "it broke")
		}
		return protocol.Respond(m.ID(), json.RawMessage(answer)), nil
	})
	m := bridgetest.NewMesh(t)
	add(t, m, "urn:far", remoteTD, server.thing())
	h := New(Options{Mesh: m, Pins: []string{"far"}})
	defer h.Close()
	r, _ := h.mesh.server.Call(t.Context(), modernRequest("resources/list", map[string]any{}), nil)
	var list struct{ Resources []struct{ URI string } }
	if json.Unmarshal(r.Result(), &list) != nil || len(list.Resources) != 1 || !strings.HasSuffix(list.Resources[0].URI, "/mcp/shop://menu") {
		t.Fatalf("the resources are %s", r.Bytes())
	}
	outer := list.Resources[0].URI
	before := strings.TrimSuffix(outer, "shop://menu")
	for name, c := range map[string]struct {
		method         string
		params         map[string]any
		answer         string
		server, client string // the messages that both see; empty server: it gets no request
	}{
		"a prompt is completed": {"completion/complete", map[string]any{"ref": map[string]any{"type": "ref/prompt", "name": under("far", "brief it")}},
			`{"completion":{"values":["x"]}}`, `"name":"brief it"`, `"values":["x"]`},
		"a template is completed": {"completion/complete", map[string]any{"ref": map[string]any{"type": "ref/resource", "uri": before + "shop://pages/{n}"}},
			`{"completion":{"values":["y"]}}`, `"uri":"shop://pages/{n}"`, `"values":["y"]`},
		"nothing is completed":           {"completion/complete", map[string]any{"ref": map[string]any{"name": "x"}}, `{}`, ``, "-32602"},
		"a resource":                     {protocol.ReadResource, map[string]any{"uri": outer}, `{"contents":[{"uri":"shop://menu","text":"soup","x":1}]}`, `"uri":"shop://menu"`, `"uri":"` + outer + `"`},
		"one of a template":              {protocol.ReadResource, map[string]any{"uri": before + "shop://pages/7"}, `{"contents":[{"uri":"shop://pages/7","text":"p"}]}`, `"uri":"shop://pages/7"`, before + "shop://pages/7"},
		"contents that are none":         {protocol.ReadResource, map[string]any{"uri": outer}, `{"contents":{"uri":"a"}}`, `shop://menu`, `"contents":{"uri":"a"}`},
		"a URI that is none":             {protocol.ReadResource, map[string]any{"uri": outer}, `{"contents":[{"uri":7}]}`, `shop://menu`, `"uri":7`},
		"a resource of an unknown Thing": {protocol.ReadResource, map[string]any{"uri": "lmos://unknown-00000000/mcp/shop://menu"}, `{}`, ``, "-32602"},
		"a resource elsewhere":           {protocol.ReadResource, map[string]any{"uri": "https://x.example/"}, `{}`, ``, "-32602"},
		"a tool":                         {protocol.CallTool, map[string]any{"name": under("far", "do.it")}, `{"content":[],"resultType":"complete"}`, `"name":"do.it"`, `"content":[]`},
		"a task without an id":           {protocol.CallTool, map[string]any{"name": under("far", "do.it")}, `{"resultType":"task","taskId":7}`, `do.it`, `"taskId":7`},
		"a server that breaks":           {protocol.CallTool, map[string]any{"name": under("far", "do.it")}, ``, `do.it`, `it broke`},
		"a prompt of it":                 {protocol.GetPrompt, map[string]any{"name": under("far", "brief it")}, ``, `"name":"brief it"`, `it broke`},
		"a prompt without an agent":      {protocol.GetPrompt, map[string]any{"name": "brief it"}, `{}`, ``, "-32602"},
		"read as a tool":                 {protocol.CallTool, map[string]any{"name": "mesh_read", "arguments": map[string]any{"thing": "far", "uri": "menu"}}, `{"contents":[{"uri":"shop://menu","text":"soup"}]}`, `shop://menu`, `"text":"soup"`},
		"odd, as a tool":                 {protocol.CallTool, map[string]any{"name": "mesh_read", "arguments": map[string]any{"thing": "far", "uri": "menu"}}, `{"contents":[{"blob":"AA=="},7]}`, `shop://menu`, `"blob":"AA=="`},
		"another tool":                   {protocol.CallTool, map[string]any{"name": "mesh_describe", "arguments": map[string]any{"thing": "far", "tool": "none"}}, `{}`, ``, `has no tool`},
		"arguments that are none":        {protocol.CallTool, map[string]any{"name": "mesh_call", "arguments": map[string]any{"thing": "far", "tool": "do.it", "arguments": 7}}, `{}`, ``, `expected an object`},
		"no thing":                       {protocol.CallTool, map[string]any{"name": "mesh_call", "arguments": map[string]any{}}, `{}`, ``, `missing argument thing`},
	} {
		mu.Lock()
		got, answer = "", c.answer
		mu.Unlock()
		r, err := h.mesh.server.Call(t.Context(), modernRequest(c.method, c.params), func(*protocol.Message) error { return nil })
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		mu.Lock()
		if !strings.Contains(got, c.server) || (c.server == "") != (got == "") {
			t.Errorf("%s: the server received %s", name, got)
		}
		mu.Unlock()
		if !strings.Contains(string(r.Bytes()), c.client) {
			t.Errorf("%s: the client gets %s", name, r.Bytes())
		}
	}
}

// A subscriber of resources of a Thing receives changes with the URIs of the mesh. After the server ends the subscription, it continues and
// reports possible changes. Other changes are not reported.
func TestEndedSubscriptions(t *testing.T) {
	t.Parallel()
	m := bridgetest.NewMesh(t)
	add(t, m, "urn:far", remoteTD, nil)
	synctest.Test(t, func(t *testing.T) {
		begun := 0
		server := remoteFunc(func(ctx context.Context, m *protocol.Message, notify func(*protocol.Message) error) (*protocol.Message, error) {
			begun++
			tag := map[string]any{protocol.MetaSubscription: json.RawMessage(m.ID())}
			say := func(method string, params map[string]any) {
				params["_meta"] = tag
				_ = notify(protocol.Request("", method, params))
			}
			honoured := map[string]any{"resourceSubscriptions": []string{"shop://menu", "shop://not-asked-for"}, "taskIds": []string{"x"}}
			say(protocol.Acknowledged, map[string]any{"notifications": honoured})
			say(protocol.ResourceUpdated, map[string]any{"uri": "shop://menu"})
			say(protocol.ResourceUpdated, map[string]any{"uri": "shop://menu/today"})
			say(protocol.ResourceUpdated, map[string]any{"uri": "other://menu"})
			say(protocol.ResourceUpdated, map[string]any{"uri": 7})
			say("notifications/tasks", map[string]any{"taskId": "x"})
			say(protocol.ToolsChanged, map[string]any{})
			say("notifications/evil", map[string]any{})
			if begun < 3 {
				return protocol.Respond(m.ID(), map[string]any{"resultType": "complete", "_meta": tag}), nil
			}
			<-ctx.Done()
			return nil, ctx.Err()
		})
		h := New(Options{Mesh: bare{m, server.thing()}, Pins: []string{"far"}})
		defer h.Close()
		r, _ := h.mesh.server.Call(t.Context(), modernRequest("resources/list", map[string]any{}), nil)
		var list struct{ Resources []struct{ URI string } }
		if json.Unmarshal(r.Result(), &list) != nil || len(list.Resources) != 1 {
			t.Fatalf("the resources are %s", r.Bytes())
		}
		outer := list.Resources[0].URI
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var ack string
		received := map[string]int{}
		_, _ = h.mesh.server.Call(ctx, modernRequest(protocol.Listen, map[string]any{"notifications": map[string]any{"resourceSubscriptions": []string{outer, "lmos://unknown/x"}}}),
			func(n *protocol.Message) error {
				if n.Method() == protocol.Acknowledged {
					raw, _ := n.Param("notifications")
					ack = string(raw)
					return nil
				}
				received[n.Method()+" "+n.Text("uri")]++
				if raw, _ := n.Param("_meta", protocol.MetaSubscription); string(raw) != "1" {
					t.Errorf("it is tagged %s", raw)
				}
				return nil
			})
		if ack != `{"resourceSubscriptions":["`+outer+`"]}` {
			t.Errorf("acknowledged: %s", ack)
		}
		var what []string
		for one := range received {
			what = append(what, one)
		}
		slices.Sort(what)
		if want := []string{protocol.ResourceUpdated + " " + outer, protocol.ResourceUpdated + " " + outer + "/today"}; !slices.Equal(what, want) {
			t.Errorf("received %q", what)
		}
		if begun != 3 || received[what[0]] < 5 { // three subscriptions, and possible changes after two renewals
			t.Errorf("the server got %d requests; received %v", begun, received)
		}
	})
}
