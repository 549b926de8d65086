package aggregator

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/bridge/bridgetest"
	"github.com/lmosd/lmosd/bridge/mcp/features"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
)

// textOf returns the text content of a result.
func textOf(r *mcp.CallToolResult) string {
	var all []string
	for _, c := range r.Content {
		switch c := c.(type) {
		case *mcp.TextContent:
			all = append(all, c.Text)
		default:
			raw, _ := json.Marshal(c)
			all = append(all, string(raw))
		}
	}
	return strings.Join(all, "|")
}

// acceptInput configures a client whose user accepts all requests.
func acceptInput() *mcp.ClientOptions {
	return &mcp.ClientOptions{ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"yes": true}}, nil
	}}
}

func newScriptedMesh(t testing.TB) (*bridgetest.Mesh, *scriptedThing) {
	m, d := bridgetest.NewMesh(t), newScriptedThing()
	add(t, m, "urn:desk", scriptedTD, d)
	return m, d
}

func TestCallsOfThing(t *testing.T) {
	t.Parallel()
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	eachRevision(t, func(t *testing.T, version string) {
		m, d := newScriptedMesh(t) // records the last trace
		url := serveMesh(t, m)
		s := connect(t, url+"/mcp/things/desk", version, acceptInput())
		for _, test := range []struct {
			tool, args, want, structured string
			isError                      bool
		}{
			{"greet", `{"value":"Ann"}`, "hello Ann", `{"value":"hello Ann"}`, false},
			{"add", `{"a":1,"b":2}`, `{"sum":3}`, `{"sum":3}`, false},
			{"count", `{}`, "1 2 3 ", ``, false},
			{"picture", `{}`, `{"type":"image","mimeType":"image/png","data":"cG5n"}`, ``, false},
			{"ask_desk", `{"message":"Bob"}`, "hello Bob", ``, false},
			{"confirm", `{"value":"all"}`, `accept {"yes":true}`, `{"value":"accept {\"yes\":true}"}`, false},
			{"break", `{}`, "the drawer is stuck\npull harder", ``, true},
			{"get_level", `{}`, "3", `{"value":3}`, false},
			{"get_note", `{"page":7}`, `{"page":7}`, `{"page":7}`, false},
			{"set_level", `{"value":3}`, "", ``, false},
		} {
			r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: test.tool, Arguments: json.RawMessage(test.args)})
			if err != nil {
				t.Errorf("%s: %v", test.tool, err)
				continue
			}
			structured, _ := json.Marshal(r.StructuredContent)
			if r.StructuredContent == nil {
				structured = nil
			}
			if textOf(r) != test.want || r.IsError != test.isError || string(structured) != test.structured {
				t.Errorf("%s: got %q %s (error %v), want %q %s", test.tool, textOf(r), structured, r.IsError, test.want, test.structured)
			}
		}
		traced := &mcp.CallToolParams{Name: "count", Meta: mcp.Meta{"traceparent": parent, "tracestate": "revision=" + version}}
		if _, err := s.CallTool(t.Context(), traced); err != nil {
			t.Error(err)
		}
		d.mu.Lock()
		if d.trace != parent+" revision="+version {
			t.Errorf("the Thing received the trace %q", d.trace)
		}
		d.mu.Unlock()
		if _, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "nothing"}); err == nil || !strings.Contains(err.Error(), "unknown tool") {
			t.Errorf("an unknown tool: %v", err)
		}
	})
}

func TestListsOfThing(t *testing.T) {
	t.Parallel()
	m, _ := newScriptedMesh(t)
	url := serveMesh(t, m)
	eachRevision(t, func(t *testing.T, version string) {
		s := connect(t, url+"/mcp/things/desk", version, nil)
		var tools, prompts, resources []string
		for tool, err := range s.Tools(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			tools = append(tools, tool.Name)
			if tool.Name == "greet" && (!tool.Annotations.ReadOnlyHint || !tool.Annotations.IdempotentHint) {
				t.Errorf("the hints of greet are %+v", tool.Annotations)
			}
			if raw, _ := json.Marshal(tool.InputSchema); tool.Name == "count" && string(raw) != `{"additionalProperties":false,"type":"object"}` {
				t.Errorf("the schema of no input is %s", raw)
			}
		}
		for p, err := range s.Prompts(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			prompts = append(prompts, fmt.Sprintf("%s(%s %v)", p.Name, p.Arguments[0].Name, p.Arguments[0].Required))
		}
		for r, err := range s.Resources(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			resources = append(resources, r.URI)
		}
		for r, err := range s.ResourceTemplates(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			resources = append(resources, r.URITemplate)
		}
		o, at := featuresOf(t, m, "desk")
		want := [][]string{
			{"add", "ask_desk", "break", "confirm", "count", "dig", "get_level", "get_motto", "get_note", "greet", o.ToolOf("odd name/ü").Name, "picture", "set_level"},
			{"brief(about true)"},
			{at + "/events/rang", at + "/properties/level", at + "/properties/motto", at + "/properties/note{?page}"}}
		for i, got := range [][]string{tools, prompts, resources} {
			if !slices.Equal(got, want[i]) {
				t.Errorf("got %q, want %q", got, want[i])
			}
		}
		p, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "brief", Arguments: map[string]string{"about": "x"}})
		if err != nil || p.Messages[0].Content.(*mcp.TextContent).Text != `{"about":"x"}` {
			t.Errorf("the prompt is %+v, %v", p, err)
		}
		about := &mcp.CompleteParams{Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: "brief"}, Argument: mcp.CompleteParamsArgument{Name: "about", Value: "Y"}}
		if c, err := s.Complete(t.Context(), about); err != nil || !slices.Equal(c.Completion.Values, []string{"year"}) || s.InitializeResult().Capabilities.Completions == nil {
			t.Errorf("the argument is completed as %+v, %v", c, err)
		}
		for uri, want := range map[string]string{at + "/properties/motto": "work", at + "/properties/note?page=4": `{"page":4}`,
			at + "/events/rang": "[]", at + "/properties/level": "3"} {
			r, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
			if err != nil || r.Contents[0].Text != want || r.Contents[0].URI != uri {
				t.Errorf("%s: %+v, %v", uri, r, err)
			}
		}
		if _, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: at + "/properties/none"}); err == nil {
			t.Error("reading an unknown resource succeeded")
		}
	})
}

func TestProgressAndCancel(t *testing.T) {
	t.Parallel()
	eachRevision(t, func(t *testing.T, version string) {
		m, d := newScriptedMesh(t)
		url := serveMesh(t, m)
		progressed := make(chan struct{}, 8)
		s := connect(t, url+"/mcp/things/desk", version, &mcp.ClientOptions{
			ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
				if r.Params.Message == "1 " {
					progressed <- struct{}{}
				}
			}})
		p := &mcp.CallToolParams{Name: "count"}
		p.SetProgressToken("t")
		if _, err := s.CallTool(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		eventually(t, "progress", progressed)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "dig"})
			ended <- err
		}()
		for m.Running() == 0 { // wait for the start
			select {
			case err := <-ended:
				t.Fatal(err)
			default:
			}
		}
		cancel()
		if err := <-ended; err == nil {
			t.Error("a cancelled call has a result")
		}
		left := make(chan struct{})
		go func() {
			<-d.left
			close(left)
		}()
		eventually(t, "the agent to be told", left)
	})
}

func TestSubscriptionsAndChanges(t *testing.T) {
	t.Parallel()
	eachRevision(t, func(t *testing.T, version string) {
		m, d := newScriptedMesh(t)
		url := serveMesh(t, m)
		updated, changed := make(chan string, 8), make(chan struct{}, 8)
		s := connect(t, url+"/mcp/things/desk", version, &mcp.ClientOptions{
			ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
			ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) { updated <- r.Params.URI }})
		_, at := featuresOf(t, m, "desk")
		level, rang := at+"/properties/level", at+"/events/rang"
		for _, uri := range []string{level, rang} {
			if err := s.Subscribe(t.Context(), &mcp.SubscribeParams{URI: uri}); err != nil {
				t.Fatal(err)
			}
		}
		d.news <- struct{}{}
		if got := <-updated; got != level {
			t.Errorf("got %s, want %s", got, level)
		}
		d.bell <- "Ann"
		if got := <-updated; got != rang {
			t.Errorf("got %s, want %s", got, rang)
		}
		r, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: rang})
		if err != nil || !strings.Contains(r.Contents[0].Text, `"data":"Ann"`) {
			t.Errorf("the events are %+v, %v", r, err)
		}
		add(t, m, "urn:desk", strings.Replace(scriptedTD, `"greet"`, `"salute"`, 1), d)
		eventually(t, "the change of the list", changed)
	})
}

// A changingMesh changes right before Latest is read.
type changingMesh struct {
	*bridgetest.Mesh
	change atomic.Pointer[func()]
}

func (h *changingMesh) Latest() uint64 {
	if change := h.change.Swap(nil); change != nil {
		(*change)()
	}
	return h.Mesh.Latest()
}

// A change of a list during a subscription is notified.
func TestChangeDuringSubscription(t *testing.T) {
	t.Parallel()
	eachRevision(t, func(t *testing.T, version string) {
		m, d := newScriptedMesh(t)
		h := &changingMesh{Mesh: m}
		url := serveMesh(t, h)
		change := func() { add(t, m, "urn:desk", strings.Replace(scriptedTD, `"greet"`, `"salute"`, 1), d) }
		h.change.Store(&change)
		changed := make(chan struct{}, 8)
		s := connect(t, url+"/mcp/things/desk", version, &mcp.ClientOptions{
			ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} }})
		_, at := featuresOf(t, m, "desk")
		if err := s.Subscribe(t.Context(), &mcp.SubscribeParams{URI: at + "/properties/level"}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the change of the list", changed)
	})
}

func TestTasks(t *testing.T) {
	t.Parallel()
	m, d := newScriptedMesh(t)
	url := serveMesh(t, m, "desk")
	for _, test := range []struct{ path, tool string }{{"/mcp/things/desk", "dig"}, {"/mcp", "desk__dig"}} {
		ask := func(method, params, caps string) *protocol.Message {
			return post(t, url+test.path, "", method, params, caps)
		}
		caps := `{"extensions":{"io.modelcontextprotocol/tasks":{}}}`
		r := ask("tools/call", `{"name":"`+test.tool+`","arguments":{}}`, caps)
		var begun features.Task
		if err := json.Unmarshal(r.Result(), &begun); err != nil || begun.Type != "task" || begun.Status != "working" {
			t.Fatalf("%s: %s", test.path, r.Bytes())
		}
		params := `{"taskId":"` + begun.ID + `"}`
		if r = ask("tasks/get", params, caps); !strings.Contains(string(r.Bytes()), `"status":"working"`) || !strings.Contains(string(r.Bytes()), begun.ID) {
			t.Errorf("%s: %s", test.path, r.Bytes())
		}
		for name, r := range map[string]*protocol.Message{"undeclared": ask("tasks/get", params, `{}`),
			"unknown": ask("tasks/get", `{"taskId":"x"}`, caps), "another's": post(t, url+test.path, "Bearer other", "tasks/get", params, caps)} {
			if e := r.Error(); e == nil || e.Code != protocol.InvalidParams && (name != "undeclared" || e.Code != protocol.MissingCapability) {
				t.Errorf("%s %s: %s", test.path, name, r.Bytes())
			}
		}
		if test.path == "/mcp" {
			if r = ask("tasks/cancel", params, caps); r.Error() != nil {
				t.Errorf("cancel: %s", r.Bytes())
			}
			if <-d.left; !strings.Contains(string(ask("tasks/get", params, caps).Bytes()), `"status":"cancelled"`) {
				t.Error("the action was not cancelled")
			}
			continue
		}
		// The other call is canceled; this one must not be affected.
		r = ask("tasks/cancel", params, caps)
		<-d.left
		if r.Error() != nil {
			t.Errorf("%s", r.Bytes())
		}
	}
	close(d.dig)
	// A client without tasks waits.
	r := post(t, url+"/mcp/things/desk", "", "tools/call", `{"name":"dig","arguments":{}}`, `{}`)
	if !strings.Contains(string(r.Bytes()), `"deep"`) {
		t.Errorf("%s", r.Bytes())
	}
}

// post sends one stateless request.
func post(t *testing.T, url, auth, method, params, caps string) *protocol.Message {
	t.Helper()
	m := protocol.Request(`1`, method, json.RawMessage(params))
	m = m.WithParam(protocol.Encode(protocol.Modern), "_meta", protocol.MetaVersion).WithParam(json.RawMessage(caps), "_meta", protocol.MetaCapabilities)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(string(m.Bytes())))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
		"Mcp-Protocol-Version": {protocol.Modern}, "Mcp-Method": {method}}
	if name, named := m.TargetName(); named {
		r.Header.Set("Mcp-Name", name)
	}
	if auth != "" {
		r.Header.Set("Authorization", auth)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	out, err := protocol.Parse(body)
	if err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return out
}

// A request for input is bound to its caller and its request, and its state is valid once.
func TestForgedStates(t *testing.T) {
	t.Parallel()
	m, d := newScriptedMesh(t)
	url := serveMesh(t, m)
	url += "/mcp/things/desk"
	caps, args := `{"elicitation":{}}`, `"name":"confirm","arguments":{"value":"x"}`
	ask := func(auth, params string) *protocol.Message {
		return post(t, url, auth, "tools/call", "{"+params+"}", caps)
	}
	stateOf := func(r *protocol.Message) string {
		raw, _ := r.InResult("requestState")
		if raw == nil {
			t.Fatalf("nothing was asked: %s", r.Bytes())
		}
		return string(raw)
	}
	if r := post(t, url, "", "tools/call", "{"+args+"}", `{}`); r.Error() == nil || r.Error().Code != protocol.MissingCapability {
		t.Errorf("a client without elicitation got %s", r.Bytes())
	}
	<-d.left
	state := stateOf(ask("", args))
	answers := `,"inputResponses":{"sure":{"action":"accept","content":{"yes":false}},"more":{"action":"accept"}},"requestState":`
	for name, r := range map[string]*protocol.Message{
		"another caller":   ask("Bearer other", args+answers+state),
		"another request":  ask("", strings.Replace(args, `"x"`, `"y"`, 1)+answers+state),
		"an invented word": ask("", args+answers+`"x"`),
	} {
		if r.Error() == nil || r.Error().Code != protocol.InvalidParams {
			t.Errorf("%s got %s", name, r.Bytes())
		}
	}
	next := stateOf(ask("", args+`,"inputResponses":{},"requestState":`+state)) // no response to the input request
	if next == state {
		t.Error("a state is accepted twice")
	}
	if r := ask("", args+answers+next); !strings.Contains(string(r.Bytes()), `accept {\"yes\":false}`) {
		t.Errorf("the answer gave %s", r.Bytes())
	}
	if r := ask("", args+answers+next); r.Error() == nil {
		t.Errorf("a used state gave %s", r.Bytes())
	}
}

func TestUnknownThings(t *testing.T) {
	t.Parallel()
	m, _ := newScriptedMesh(t)
	url := serveMesh(t, m)
	if r := post(t, url+"/mcp/things/nobody", "", "tools/list", `{}`, `{}`); r.Error() == nil || r.Error().Code != protocol.InvalidParams ||
		!strings.Contains(string(r.Error().Data), "LMOS-1404") {
		t.Errorf("got %s", r.Bytes())
	}
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	if _, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url + "/mcp/things/nobody"},
		&mcp.ClientSessionOptions{ProtocolVersion: protocol.Legacy}); err == nil || !strings.Contains(err.Error(), "no agent matches") {
		t.Errorf("a legacy client got %v", err)
	}
	s := connect(t, url+"/mcp/things/desk", protocol.Modern, nil)
	desk, _ := m.Get(t.Context(), "desk")
	m.Withdraw(t, desk)
	if _, err := s.ListTools(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "was withdrawn by its owner") {
		t.Errorf("a withdrawn thing: %v", err)
	}
}
