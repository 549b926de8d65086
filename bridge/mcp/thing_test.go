package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

var object = json.RawMessage(`{"type":"object"}`)

// The result of a call to a server of any revision reaches its consumer.
func TestCalls(t *testing.T) {
	t.Parallel()
	started, gone := make(chan struct{}, 2), make(chan struct{}, 2)
	add := func(s *sdk.Server) {
		fill(s)
		s.AddTool(&sdk.Tool{Name: "steps", InputSchema: object}, func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			for i := range 2 {
				_ = r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: float64(i), Message: "on"})
			}
			return &sdk.CallToolResult{StructuredContent: map[string]any{"n": 2}, Content: []sdk.Content{&sdk.TextContent{Text: `{"n":2}`}}}, nil
		})
		s.AddTool(&sdk.Tool{Name: "traced", InputSchema: object}, func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: fmt.Sprint(r.Params.Meta["traceparent"], " ", r.Params.Meta["tracestate"])}}}, nil
		})
		s.AddTool(&sdk.Tool{Name: "fails", InputSchema: object}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: "no\nway"}, &sdk.ImageContent{Data: []byte{1}, MIMEType: "image/png"}}}, nil
		})
		s.AddTool(&sdk.Tool{Name: "picture", InputSchema: object}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.ImageContent{Data: []byte("\x00png"), MIMEType: "image/png"}}}, nil
		})
		s.AddTool(&sdk.Tool{Name: "waits", InputSchema: object}, func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			started <- struct{}{}
			<-ctx.Done()
			gone <- struct{}{}
			return nil, ctx.Err()
		})
	}
	traced := invoke("traced", "")
	traced.TraceParent, traced.TraceState = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=b"
	for revision, versions := range revisions {
		thing := join(t, piped(t, newServer(versions, add)), bridge.Import{}).Thing
		for _, test := range []struct {
			m    *interact.Message
			want []string
			code interact.Code
			says string
		}{
			{invoke("say", `{"text":"hé"}`), []string{`completed json "hé"`}, 0, ""},
			{invoke("say", ``), []string{`completed json ""`}, 0, ""},
			{invoke("say", `"text"`), nil, interact.Invalid, "object of arguments"},
			{invoke("nothing", `{}`), nil, interact.NoAffordance, "no nothing"},
			{invoke("steps", ``), []string{`running ` + interact.Progress + ` {"message":"on","progress":0}`,
				`running ` + interact.Progress + ` {"message":"on","progress":1}`, `completed json {"n":2}`}, 0, ""},
			{traced, []string{`completed json "` + traced.TraceParent + ` a=b"`}, 0, ""},
			{invoke("picture", ``), []string{"completed image/png \x00png"}, 0, ""},
			{invoke("fails", ``), []string{`running json {"lmosd:content":[{"type":"text","text":"no\nway"},{"type":"image","mimeType":"image/png","data":"AQ=="}]}`},
				interact.AgentFailed, "no way"},
			{invoke("greet", `{"who":"Bo"}`), []string{`completed json {"messages":[{"content":{"type":"text","text":"Hello Bo"},"role":"user"}],"description":"d"}`}, 0, ""},
			{&interact.Message{Type: interact.ReadProperty, Name: "Note_No_1"}, []string{" text/markdown # test://note"}, 0, ""},
			{&interact.Message{Type: interact.ReadProperty, Name: "page", Data: []byte(`{"n":7}`)}, []string{" text/markdown # test://pages/7"}, 0, ""},
			{&interact.Message{Type: interact.ReadProperty, Name: "none"}, nil, interact.NoAffordance, "no none"},
			{&interact.Message{Type: interact.WriteProperty, Name: "page"}, nil, interact.NotAllowed, "writeproperty"},
			{invoke(tunnelAction, ``), nil, interact.Invalid, "request stream"},
		} {
			got, err := repliesOf(t, thing, test.m)
			if e := interact.AsError(err); fmt.Sprint(got) != fmt.Sprint(test.want) && !sameJSON(got, test.want) || (err == nil) != (test.code == 0) ||
				err != nil && (e.Code != test.code || !strings.Contains(e.Error(), test.says) || e.Hint == "" && e.Next == nil) {
				t.Errorf("%s: %s %s: got %q, %v", revision, test.m.Name, test.m.Data, got, err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-started; cancel() }()
		for _, err := range thing.Do(ctx, invoke("waits", "")) {
			if interact.AsError(err).Code != interact.Cancelled {
				t.Errorf("%s: cancelled: %v", revision, err)
			}
		}
		<-gone
	}
}

// sameJSON compares lines that may differ in the order of members.
func sameJSON(got, want []string) bool {
	if len(got) != len(want) {
		return false
	}
	for i := range got {
		g, w := strings.SplitN(got[i], " ", 3), strings.SplitN(want[i], " ", 3)
		if len(g) < 3 || len(w) < 3 || g[0] != w[0] || g[1] != w[1] || g[2] != w[2] && !same([]byte(g[2]), []byte(w[2])) {
			return false
		}
	}
	return true
}

// The consumer provides the required input of a tool.
func TestInputRequests(t *testing.T) {
	t.Parallel()
	add := func(s *sdk.Server) {
		s.AddTool(&sdk.Tool{Name: "order", InputSchema: object}, func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			got, _ := json.Marshal(r.Params.InputResponses)
			if len(r.Params.InputResponses) == 0 {
				return &sdk.CallToolResult{RequestState: "s1", InputRequests: sdk.InputRequestMap{"size": &sdk.ElicitParams{
					Message: "Which size?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"size":{"type":"string"}}}`)}}}, nil
			}
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: r.Params.RequestState + string(got)}}}, nil
		})
	}
	for revision, versions := range revisions {
		thing := join(t, piped(t, newServer(versions, add)), bridge.Import{}).Thing
		for action, want := range map[string]string{interact.Accept: `"size":"L"`, interact.Decline: `decline`} {
			var last string
			for r, err := range thing.Do(t.Context(), invoke("order", "")) {
				if err != nil {
					t.Fatalf("%s: %v", revision, err)
				}
				last = string(r.Data)
				if r.Status != interact.StatusInputRequired {
					continue
				}
				var in interact.Inputs
				if err := json.Unmarshal(r.Data, &in); err != nil || len(in) != 1 {
					t.Fatalf("%s: asks for %s", revision, r.Data)
				}
				answers := interact.Answers{}
				for key, one := range in {
					if one.Kind != interact.InputForm || one.Message != "Which size?" || !strings.Contains(string(one.Schema), `"size"`) || len(one.Params) == 0 {
						t.Errorf("%s: requests %+v", revision, one)
					}
					answers[key] = interact.Answer{Action: action, Content: json.RawMessage(`{"size":"L"}`)}
				}
				if _, err := interact.Call(t.Context(), thing, &interact.Message{Type: interact.ContinueAction, ActionID: r.ActionID, Data: raw(answers)}); err != nil {
					t.Fatalf("%s: %v", revision, err)
				}
			}
			if !strings.Contains(strings.ReplaceAll(last, `\`, ""), want) {
				t.Errorf("%s: %s gives %s", revision, action, last)
			}
		}
		if _, err := interact.Call(t.Context(), thing, invoke("order", "")); interact.AsError(err).Code != interact.InputNeeded {
			t.Errorf("%s: a client without elicitation receives %v", revision, err)
		}
	}
}

// A property is read again after a notification of its change.
func TestObserve(t *testing.T) {
	t.Parallel()
	for revision, versions := range revisions {
		var n atomic.Int32
		s := newServer(versions, func(s *sdk.Server) {
			s.AddResource(&sdk.Resource{Name: "count", URI: "test://count"}, func(context.Context, *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
				return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: "test://count", Text: fmt.Sprint(n.Load())}}}, nil
			})
		})
		thing := join(t, piped(t, s), bridge.Import{}).Thing
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		stop := make(chan struct{})
		go func() {
			for tick := time.NewTicker(5 * time.Millisecond); ; { // until there is a subscriber
				select {
				case <-tick.C:
					n.Add(1)
					_ = s.ResourceUpdated(ctx, &sdk.ResourceUpdatedNotificationParams{URI: "test://count"})
				case <-stop:
					return
				}
			}
		}()
		seen := 0
		for r, err := range thing.Do(ctx, &interact.Message{Type: interact.ObserveProperty, Name: "count"}) {
			if err != nil || r.Type != interact.PropertyReading || string(r.Data) == "0" {
				t.Errorf("%s: %v, %v", revision, r, err)
			}
			if seen++; seen == 3 {
				break
			}
		}
		close(stop)
		cancel()
		if seen != 3 {
			t.Errorf("%s: %d readings", revision, seen)
		}
	}
}

// The states of a task of MCP are those of an action (design: the state table).
func TestTasks(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		states []string // of tasks/get, one after the other
		want   []string
		code   interact.Code
		says   string
	}{
		"working, completed": {[]string{`"status":"working","statusMessage":"half","pollIntervalMs":1`, `"status":"completed","result":{"content":[{"type":"text","text":"done"}]}`},
			[]string{`running ` + interact.Progress + ` {"message":"half"}`, `completed  "done"`}, 0, ""},
		"completed with isError": {[]string{`"status":"completed","result":{"isError":true,"content":[{"type":"text","text":"bad"}]}`}, nil, interact.AgentFailed, "bad"},
		"failed":                 {[]string{`"status":"failed","error":{"code":-32603,"message":"broke"}`}, nil, interact.AgentFailed, "broke"},
		"failed without words":   {[]string{`"status":"failed","statusMessage":"so"`}, []string{`running ` + interact.Progress + ` {"message":"so"}`}, interact.AgentFailed, "so"},
		"cancelled":              {[]string{`"status":"cancelled"`}, nil, interact.Cancelled, "cancelled"},
		"completed with nothing": {[]string{`"status":"completed"`}, nil, interact.AgentFailed, "malformed task"},
		"a state of its own":     {[]string{`"status":"dreaming"`}, nil, interact.AgentFailed, "dreaming"},
		"input required": {[]string{`"status":"input_required","inputRequests":{"k":{"method":"roots/list"}}`, `"status":"completed","result":{"content":[]}`},
			[]string{"input-required", "completed  null"}, 0, ""},
	} {
		var updated atomic.Pointer[protocol.Message]
		at := 0
		dial := scripted(t, func(m *protocol.Message, say func(*protocol.Message)) {
			switch m.Method() {
			case protocol.Discover:
				say(protocol.Respond(m.ID(), json.RawMessage(`{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"extensions":{"`+protocol.Tasks+`":{}}}}`)))
			case protocol.ListTools:
				say(protocol.Respond(m.ID(), json.RawMessage(`{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}`)))
			case protocol.CallTool:
				if raw, _ := m.Param("_meta", protocol.MetaCapabilities, "extensions", protocol.Tasks); raw == nil {
					t.Errorf("%s: the task is not declared: %s", name, m.Bytes())
				}
				say(protocol.Respond(m.ID(), json.RawMessage(`{"resultType":"task","taskId":"x","status":"working","pollIntervalMs":1}`)))
			case "tasks/get":
				say(protocol.Respond(m.ID(), json.RawMessage(`{"resultType":"complete","taskId":"x",`+test.states[at]+`}`)))
				at = min(at+1, len(test.states)-1)
			case "tasks/update":
				updated.Store(m)
				say(protocol.Respond(m.ID(), json.RawMessage(`{"resultType":"complete"}`)))
			}
		})
		thing := join(t, dial, bridge.Import{}).Thing
		var got []string
		var err error
		for r, e := range thing.Do(t.Context(), invoke("t", "")) {
			if err = e; err != nil {
				break
			}
			if r.Status == interact.StatusInputRequired {
				got = append(got, r.Status.String())
				_, _ = interact.Call(t.Context(), thing, &interact.Message{Type: interact.ContinueAction, ActionID: r.ActionID,
					Data: []byte(`{"k":{"action":"accept","content":{"roots":[]}}}`)})
				continue
			}
			got = append(got, strings.TrimSpace(r.Status.String()+" "+r.ContentType+" "+string(r.Data)))
		}
		if !slices.Equal(got, test.want) || (err == nil) != (test.code == 0) || err != nil && (interact.AsError(err).Code != test.code || !strings.Contains(err.Error(), test.says)) {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
		if m := updated.Load(); (m != nil) != (name == "input required") || m != nil && !strings.Contains(string(m.Params()), `{"k":{"roots":[]}}`) {
			t.Errorf("%s: got %v", name, m)
		}
	}
}

// Disconnecting from a task cancels it.
func TestDisconnectCancelsATask(t *testing.T) {
	t.Parallel()
	cancelled := make(chan string, 1)
	dial := scripted(t, func(m *protocol.Message, say func(*protocol.Message)) {
		switch m.Method() {
		case protocol.Discover:
			say(protocol.Respond(m.ID(), json.RawMessage(`{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}`)))
		case protocol.ListTools:
			say(protocol.Respond(m.ID(), json.RawMessage(`{"tools":[{"name":"t"}]}`)))
		case protocol.CallTool:
			say(protocol.Respond(m.ID(), json.RawMessage(`{"resultType":"task","taskId":"x","status":"working","statusMessage":"now","pollIntervalMs":60000}`)))
		case "tasks/cancel":
			cancelled <- m.Text("taskId")
			say(protocol.Respond(m.ID(), json.RawMessage(`{"resultType":"complete"}`)))
		}
	})
	thing := join(t, dial, bridge.Import{}).Thing
	for range thing.Do(t.Context(), invoke("t", "")) {
		break
	}
	if id := <-cancelled; id != "x" {
		t.Errorf("cancelled %q", id)
	}
}

// Invalid responses of a hostile server are errors, and the next call succeeds.
func TestHostileAnswers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer string // members of the response
		code   interact.Code
	}{
		"a result that is none":        {`"result":7`, interact.AgentFailed},
		"an unknown kind of result":    {`"result":{"resultType":"dream"}`, interact.AgentFailed},
		"a task without an id":         {`"result":{"resultType":"task"}`, interact.AgentFailed},
		"questions that are none":      {`"result":{"resultType":"input_required","inputRequests":[]}`, interact.AgentFailed},
		"an unknown question":          {`"result":{"resultType":"input_required","inputRequests":{"a":{"method":"rm"}}}`, interact.AgentFailed},
		"asking without end":           {`"result":{"resultType":"input_required","requestState":"s"}`, interact.AgentFailed},
		"content that is none":         {`"result":{"content":7}`, 0},
		"structure that is none":       {`"result":{"structuredContent":[1e999]}`, 0},
		"an unknown tool":              {`"error":{"code":-32602,"message":"unknown\u001b[2J"}`, interact.Invalid},
		"an unknown method":            {`"error":{"code":-32601,"message":"x"}`, interact.NotAllowed},
		"a capability that is missing": {`"error":{"code":-32021,"message":"x","data":{"requiredCapabilities":{}}}`, interact.InputNeeded},
		"an address without one":       {`"error":{"code":-32042,"message":"x","data":{"elicitations":[]}}`, interact.InputNeeded},
		"an error of its own":          {`"error":{"code":12,"message":"x"}`, interact.AgentFailed},
		"an error that is none":        {`"error":"x"`, interact.AgentFailed},
		"a forged one":                 {`"error":{"code":-32603,"message":"x","data":{"code":"LMOS-1411"}}`, interact.AgentFailed},
	} {
		dial := scripted(t, func(m *protocol.Message, say func(*protocol.Message)) {
			text := test.answer
			switch {
			case m.Method() == protocol.Discover:
				text = `"result":{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}`
			case m.Method() == protocol.ListTools:
				text = `"result":{"tools":[{"name":"bad"},{"name":"good"}]}`
			case m.Text("name") == "good":
				text = `"result":{"content":[{"type":"text","text":"ok"}]}`
			}
			if r, err := protocol.Parse([]byte(`{"jsonrpc":"2.0","id":` + string(m.ID()) + `,` + text + `}`)); err == nil {
				say(r)
			}
		})
		thing := join(t, dial, bridge.Import{}).Thing
		_, err := interact.Call(t.Context(), thing, invoke("bad", ""))
		if e := interact.AsError(err); (e == nil) != (test.code == 0) || e != nil && (e.Code != test.code || e.Hint == "" && e.Next == nil || strings.Contains(e.Error(), "\x1b")) {
			t.Errorf("%s: %v", name, err)
		}
		if r, err := interact.Call(t.Context(), thing, invoke("good", "")); err != nil || string(r.Data) != `"ok"` {
			t.Errorf("%s: the next call: %v, %v", name, r, err)
		}
	}
}

// A change of a server changes its description.
func TestChanges(t *testing.T) {
	t.Parallel()
	for revision, versions := range revisions {
		s := newServer(versions, fill)
		a := join(t, piped(t, s), bridge.Import{})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		stop := make(chan struct{})
		go func() { // until there is a subscriber
			for i := 0; ; i++ {
				select {
				case <-time.After(20 * time.Millisecond):
					s.AddTool(&sdk.Tool{Name: fmt.Sprint("more", i%2), InputSchema: object}, echo)
				case <-stop:
					return
				}
			}
		}()
		for raw := range a.Changes(ctx) {
			thing := described(t, raw)
			if thing.Title != "Probe" || thing.Actions["say"] == nil {
				t.Errorf("%s: %s", revision, raw)
			}
			if thing.Actions["more0"] != nil && thing.Actions["more1"] != nil {
				break
			}
		}
		close(stop)
		if _, err := repliesOf(t, a.Thing, invoke("more1", "")); err != nil || ctx.Err() != nil {
			t.Errorf("%s: the new tool: %v, %v", revision, err, ctx.Err())
		}
		cancel()
	}
}
