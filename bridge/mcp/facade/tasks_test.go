package facade

import (
	"context"
	"encoding/json"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/wire"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// workerTD has an action for each end that a task may have.
const workerTD = `{"title":"Worker","actions":{
 "done":{"synchronous":false,"output":{"type":"object","properties":{"n":{"type":"integer"}}}},
 "says":{"synchronous":false,"output":{"type":"string"}},
 "fails":{"synchronous":false},"breaks":{"synchronous":false},"asks":{"synchronous":false},"waits":{"synchronous":false}}}`

// A worker answers as workerTD says.
type worker struct{ park interact.Parking }

func (w *worker) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		done := func(data string) {
			r := m.Reply(interact.ActionStatus, "", []byte(data))
			r.Status = interact.StatusCompleted
			yield(r, nil)
		}
		switch {
		case m.Type == interact.ContinueAction:
			yield(w.park.Continue(m))
		case m.Name == "done":
			done(`{"n":7}`)
		case m.Name == "says":
			done(`"seven"`)
		case m.Name == "fails":
			yield(nil, &interact.Error{Code: interact.AgentFailed, Title: "the drill broke", Hint: "buy another", Remote: true})
		case m.Name == "breaks":
			yield(nil, interact.Errorf(interact.Overloaded, "try again later", "too many drills"))
		case m.Name == "asks":
			answers, left, err := w.park.Ask(ctx, m, interact.Inputs{"a": {Kind: interact.InputForm, Message: "How deep?",
				Schema: json.RawMessage(`{"type":"object","properties":{"m":{"type":"integer"}}}`)}}, yield)
			if left || err != nil {
				return
			}
			done(string(answers["a"].Content))
		default:
			<-ctx.Done()
			yield(nil, ctx.Err())
		}
	}
}

const knowsTasks = `{"extensions":{"io.modelcontextprotocol/tasks":{}},"elicitation":{}}`

// The states of actions are those of tasks (spec: the state table), at a thing and at the mesh.
func TestStatesOfTasks(t *testing.T) {
	t.Parallel()
	m := newHamlet(t)
	m.settle(t, "urn:w", workerTD, &worker{})
	url := at(t, m, "", "worker")
	for _, place := range []struct{ path, prefix string }{{"/mcp/things/worker", ""}, {"/mcp", "worker__"}} {
		ask := func(method, params string) *wire.Message {
			return post(t, url+place.path, "", method, params, knowsTasks)
		}
		begin := func(tool string) string {
			return `{"taskId":"` + member(t, ask(wire.CallTool, `{"name":"`+place.prefix+tool+`"}`), "taskId") + `"`
		}
		// until asks until the task has a state.
		until := func(id, status string) string {
			for end := time.Now().Add(20 * time.Second); ; {
				got := string(ask("tasks/get", id+"}").Bytes())
				if strings.Contains(got, `"status":"`+status+`"`) || time.Now().After(end) {
					return got
				}
			}
		}
		for _, c := range []struct {
			tool, status string
			want         []string
			not          string
		}{
			{"done", "completed", []string{`"structuredContent":{"n":7}`, `"resultType":"complete"`}, `"isError"`},
			{"says", "completed", []string{`"text":"seven"`, `"structuredContent":{"value":"seven"}`}, `"isError"`},
			{"fails", "completed", []string{`"isError":true`, "the drill broke", "buy another"}, `"error":`},
			{"breaks", "failed", []string{`"error":{"code":-32603`, "too many drills"}, `"result":{"content"`},
			{"waits", "working", []string{`"pollIntervalMs":1000`, `"ttlMs":null`}, `"inputRequests"`},
			{"asks", "input_required", []string{`"inputRequests":{"a":{"method":"elicitation/create"`, "How deep?"}, `"requestState"`},
		} {
			id := begin(c.tool)
			got := until(id, c.status)
			for _, want := range append(c.want, `"status":"`+c.status+`"`) {
				if !strings.Contains(got, want) {
					t.Errorf("%s %s: %s has no %s", place.path, c.tool, got, want)
				}
			}
			if strings.Contains(got, c.not) {
				t.Errorf("%s %s: %s has %s", place.path, c.tool, got, c.not)
			}
			if r := ask("tasks/update", id+`,"inputResponses":{"b":{"action":"accept"}}}`); r.Error() != nil {
				t.Errorf("%s %s: an answer that nobody wants: %s", place.path, c.tool, r.Bytes())
			}
			switch c.tool {
			case "asks":
				if r := ask("tasks/update", id+`,"inputResponses":{"a":7}}`); r.Error() == nil || r.Error().Code != wire.InvalidParams {
					t.Errorf("an answer that is none: %s", r.Bytes())
				}
				if r := ask("tasks/update", id+`,"inputResponses":{"a":{"action":"accept","content":{"m":3}}}}`); string(r.Result()) != `{"resultType":"complete"}` {
					t.Errorf("the answer: %s", r.Bytes())
				}
				if got := until(id, "completed"); !strings.Contains(got, `{\"m\":3}`) {
					t.Errorf("answered: %s", got)
				}
			case "waits":
				for range 2 { // it is idempotent
					if r := ask("tasks/cancel", id+"}"); r.Error() != nil {
						t.Errorf("cancelled: %s", r.Bytes())
					}
					until(id, "cancelled")
				}
			default:
				if r := ask("tasks/cancel", id+"}"); r.Error() != nil || until(id, c.status) == "" {
					t.Errorf("%s cancelled when it was over: %s", c.tool, r.Bytes())
				}
			}
		}
	}
}

// Who listens to a task hears each state that it has, and who cannot be asked what it wants to know hears nothing of that.
func TestListensToTasks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testListensToTasks)
}

func testListensToTasks(t *testing.T) {
	m := newHamlet(t)
	m.settle(t, "urn:w", workerTD, &worker{})
	h := New(Options{Mesh: m, Pins: []string{"worker"}})
	defer h.Close()
	f := frontOf(t, h, "worker")
	for name, s := range map[string]wire.Server{"": f.server, "worker__": h.mesh.server} {
		request := func(method string, params map[string]any) *wire.Message {
			params["_meta"] = map[string]any{wire.MetaVersion: wire.Modern, wire.MetaCapabilities: json.RawMessage(knowsTasks)}
			return wire.Request("1", method, params)
		}
		r, err := s.Call(t.Context(), request(wire.CallTool, map[string]any{"name": name + "asks"}), nil)
		if err != nil {
			t.Fatal(err)
		}
		id := member(t, r, "taskId")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		var states []string
		_, _ = s.Call(ctx, request(wire.Listen, map[string]any{"notifications": map[string]any{"taskIds": []string{id, "made up"}}}), func(n *wire.Message) error {
			if n.Method() == wire.Acknowledged {
				if raw, _ := n.Param("notifications", "taskIds"); string(raw) != `["`+id+`"]` {
					t.Errorf("%q honours %s", name, raw)
				}
				return nil
			}
			states = append(states, n.Text("status"))
			switch {
			case n.Text("taskId") != id:
				t.Errorf("%q heard of %s", name, n.Bytes())
			case n.Text("status") == "input_required":
				update := request("tasks/update", map[string]any{"taskId": id, "inputResponses": json.RawMessage(`{"a":{"action":"accept","content":{"m":1}}}`)})
				if r, err := s.Call(ctx, update, nil); err != nil || r.Error() != nil {
					t.Errorf("%q: %v, %v", name, r, err)
				}
			case n.Text("status") == "completed":
				cancel()
			}
			return nil
		})
		cancel()
		if got := strings.Join(states, " "); !strings.HasSuffix(got, "completed") || !strings.Contains(got, "input_required") {
			t.Errorf("%q heard %q", name, got)
		}
	}
	bare := wire.Request("1", wire.Listen, map[string]any{"notifications": map[string]any{"taskIds": []string{"x"}},
		"_meta": map[string]any{wire.MetaVersion: wire.Modern, wire.MetaCapabilities: struct{}{}}})
	if r, err := f.server.Call(t.Context(), bare, nil); err != nil || r.Error() == nil || r.Error().Code != wire.MissingCapability {
		t.Errorf("a client that knows no tasks: %v, %v", r, err)
	}
}

// What things want to know becomes what clients can be asked, and the answers what things wait for.
func TestWhatClientsAreAsked(t *testing.T) {
	t.Parallel()
	const all = `{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{}}`
	nested := json.RawMessage(`{"type":"object","properties":{"a":{"type":"object"}}}`)
	flat := json.RawMessage(`{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"array","items":{"enum":["x"]}}}}`)
	for name, c := range map[string]struct {
		in      interact.Input
		caps    string
		asks    string // in the request; empty: MissingCapability
		said    string
		content string // of the answer; "-": it is refused
	}{
		"a form":                {interact.Input{Kind: interact.InputForm, Message: "?", Schema: flat}, all, `"requestedSchema":{"type":"object"`, `{"action":"accept","content":{"a":"x"}}`, `{"a":"x"}`},
		"a form, verbatim":      {interact.Input{Kind: interact.InputForm, Params: json.RawMessage(`{"message":"own","requestedSchema":{}}`)}, all, `"own"`, `{"action":"accept","content":{"a":1}}`, `{"a":1}`},
		"a form, declined":      {interact.Input{Kind: interact.InputForm, Schema: flat}, all, `"form"`, `{"action":"decline","content":{"a":"x"}}`, ``},
		"a form without fields": {interact.Input{Kind: interact.InputForm}, all, `"properties":{}`, `{"action":"accept","content":{}}`, `{}`},
		"a deep form":           {interact.Input{Kind: interact.InputForm, Schema: nested}, all, `"json":{`, `{"action":"accept","content":{"json":"{\"a\":{}}"}}`, `{"a":{}}`},
		"a deep form, no JSON":  {interact.Input{Kind: interact.InputForm, Schema: nested}, all, `"json":{`, `{"action":"accept","content":{"json":"{"}}`, `-`},
		"words":                 {interact.Input{Kind: interact.InputMessage, Message: "More?"}, all, `"More?"`, `{"action":"accept","content":{"message":"yes"}}`, `"yes"`},
		"an address":            {interact.Input{Kind: interact.InputURL, URL: "https://x.example/"}, all, `"url":"https://x.example/"`, `{"action":"accept","content":{"a":1}}`, ``},
		"a model":               {interact.Input{Kind: interact.InputModel, Params: json.RawMessage(`{"maxTokens":1}`)}, all, `"sampling/createMessage"`, `{"model":"m"}`, `{"model":"m"}`},
		"a model, bare":         {interact.Input{Kind: interact.InputModel}, all, `"params":{}`, `{"model":"m"}`, `{"model":"m"}`},
		"folders":               {interact.Input{Kind: interact.InputRoots}, all, `"roots/list"`, `{"roots":[]}`, `{"roots":[]}`},
		"a form by default":     {interact.Input{Kind: interact.InputForm}, `{"elicitation":{}}`, `"form"`, `{"action":"cancel"}`, ``},
		"no action":             {interact.Input{Kind: interact.InputForm}, all, `"form"`, `{"content":{}}`, `-`},
		"no object":             {interact.Input{Kind: interact.InputForm}, all, `"form"`, `{"action":"accept","content":[1]}`, `-`},
		"an odd action":         {interact.Input{Kind: interact.InputForm}, all, `"form"`, `{"action":"obey"}`, `-`},
		"no forms":              {in: interact.Input{Kind: interact.InputForm}, caps: `{"elicitation":{"url":{}}}`},
		"no addresses":          {in: interact.Input{Kind: interact.InputURL}, caps: `{"elicitation":{}}`},
		"no models":             {in: interact.Input{Kind: interact.InputModel}, caps: `{"roots":{}}`},
		"no folders":            {in: interact.Input{Kind: interact.InputRoots}, caps: `{"sampling":{}}`},
	} {
		request := wire.Request("1", wire.CallTool, map[string]any{"_meta": map[string]any{wire.MetaCapabilities: json.RawMessage(c.caps)}})
		asks, bad := requestsFor(interact.Inputs{"k": c.in}, capabilitiesOf(request))
		if c.asks == "" {
			if bad == nil || bad.Code != wire.MissingCapability || !strings.Contains(string(bad.Data), "requiredCapabilities") {
				t.Errorf("%s: asked %v, %v", name, asks, bad)
			}
			continue
		}
		if bad != nil || !strings.Contains(string(written(asks)), c.asks) {
			t.Errorf("%s: asked %s, %v", name, written(asks), bad)
		}
		answers, open, bad := answered(interact.Inputs{"k": c.in, "more": {}}, json.RawMessage(`{"k":`+c.said+`,"other":{}}`))
		if (bad != nil) != (c.content == "-") {
			t.Errorf("%s: got %v", name, bad)
		}
		if bad == nil && (string(answers["k"].Content) != c.content || len(answers) != 1 || len(open) != 1) {
			t.Errorf("%s: answered %s, open %v", name, written(answers), open)
		}
	}
}

// Data schemas become schemas that a model can be given: of objects, without what leads elsewhere.
func TestSchemas(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ action, input, output string }{
		"nothing":                    {`{}`, `{"additionalProperties":false,"type":"object"}`, ``},
		"a value":                    {`{"input":{"type":"integer","minimum":1}}`, `"properties":{"value":{"minimum":1,"type":"integer"}},"required":["value"]`, ``},
		"an object":                  {`{"input":{"type":"object","properties":{"a":{"type":"string"}}},"output":{"type":"object","properties":{}}}`, `{"properties":{"a":{"type":"string"}},"type":"object"}`, `{"properties":{},"type":"object"}`},
		"a tuple":                    {`{"input":{"type":"array","items":[{"type":"string"},{"type":"null"}]}}`, `"prefixItems":[{"type":"string"},{"type":"null"}]`, ``},
		"choices":                    {`{"input":{"oneOf":[{"type":"string"},{"const":1}]}}`, `"oneOf":[{"type":"string"},{"const":1}]`, ``},
		"a reference":                {`{"input":{"type":"object","properties":{"a":{"$ref":"#/properties/b"},"b":{},"c":{"$ref":"http://evil.example/s"},"d":{"$ref":"file:///etc/passwd"}}}}`, `{"properties":{"a":{"$ref":"#/properties/b"},"b":{},"c":{},"d":{}},"type":"object"}`, ``},
		"one inside":                 {`{"input":{"type":"array","items":{"$ref":"#/$defs/x"},"$defs":{"x":{"type":"string"}}}}`, `"$ref":"#/properties/value/$defs/x"`, ``},
		"variables":                  {`{"uriVariables":{"v/1":{"type":"integer"}},"input":{"type":"string"}}`, `"v/1":{"type":"integer"}`, ``},
		"both":                       {`{"uriVariables":{"v":{"type":"integer"},"a":{"type":"string"}},"input":{"type":"object","properties":{"a":{"type":"boolean"}}}}`, `"a":{"type":"boolean"},"v":{"type":"integer"}`, ``},
		"terms":                      {`{"input":{"type":"object","properties":{"a":{"titles":{"de":"x"},"@type":"y","x:z":1,"type":"string"}}}}`, `"a":{"type":"string"}`, ``},
		"a list out":                 {`{"output":{"type":"array","items":{"type":"string"}}}`, ``, `{"additionalProperties":false,"properties":{"value":{"items":{"type":"string"},"type":"array"}},"required":["value"],"type":"object"}`},
		"verbatim, but of no server": {`{"mcp:name":"x","mcp:inputSchema":{"type":"object","properties":{"own":{}}}}`, `"own":{}`, ``},
		"verbatim, of no object":     {`{"mcp:inputSchema":{"type":"string"},"mcp:outputSchema":"x"}`, `{"additionalProperties":false,"type":"object"}`, ``},
	} {
		d := verified(t, []byte(`{"title":"X","@context":["`+td.Context11+`",{"mcp":"https://lmosd.dev/ns/mcp#"}],"actions":{"do":`+c.action+`}}`))
		if d == nil {
			t.Fatalf("%s: no description", name)
		}
		tool := offersOf(d).byTool["do"]
		if tool == nil {
			t.Fatalf("%s: no tool", name)
		}
		for what, pair := range map[string][2]string{"input": {sorted(t, tool.Input), c.input}, "output": {sorted(t, tool.Output), c.output}} {
			if !strings.Contains(pair[0], pair[1]) || pair[1] == "" && what == "output" && pair[0] != "" {
				t.Errorf("%s: the %s is %s, want %s", name, what, pair[0], pair[1])
			}
		}
	}
}

// sorted is a JSON document with its members in order.
func sorted(t *testing.T, raw json.RawMessage) string {
	t.Helper()
	if raw == nil {
		return ""
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	return string(written(v))
}
