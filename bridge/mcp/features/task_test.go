package features

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// Required input becomes requests to clients, and their responses become answers.
func TestInputRequests(t *testing.T) {
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
		request := protocol.Request("1", protocol.CallTool, map[string]any{"_meta": map[string]any{protocol.MetaCapabilities: json.RawMessage(c.caps)}})
		asks, bad := Requests(interact.Inputs{"k": c.in}, request)
		if c.asks == "" {
			if bad == nil || bad.Code != protocol.MissingCapability || !strings.Contains(string(bad.Data), "requiredCapabilities") {
				t.Errorf("%s: requests %v, %v", name, asks, bad)
			}
			continue
		}
		if bad != nil || !strings.Contains(string(protocol.Encode(asks)), c.asks) {
			t.Errorf("%s: requests %s, %v", name, protocol.Encode(asks), bad)
		}
		answers, open, bad := Answers(interact.Inputs{"k": c.in, "more": {}},
			request.WithParam(json.RawMessage(`{"k":`+c.said+`,"other":{}}`), "inputResponses"))
		if (bad != nil) != (c.content == "-") {
			t.Errorf("%s: got %v", name, bad)
		}
		if bad == nil && (string(answers["k"].Content) != c.content || len(answers) != 1 || len(open) != 1) {
			t.Errorf("%s: answers %s, open %v", name, protocol.Encode(answers), open)
		}
	}
}

// TestStates checks each row of the table of states (docs/interop.md): of tasks, of runs, and back.
func TestStates(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		task   string
		failed bool
		status interact.Status
		back   string // the task state of the status
	}{
		{"working", false, interact.StatusRunning, "working"},
		{"working", false, interact.StatusRunning, "working"},
		{"input_required", false, interact.StatusInputRequired, "input_required"},
		{"completed", false, interact.StatusCompleted, "completed"},
		{"completed", true, interact.StatusFailed, "completed"},
		{"failed", false, interact.StatusFailed, "failed"},
		{"cancelled", false, interact.StatusCancelled, "cancelled"},
		{"canceled", false, interact.StatusNone, ""},
		{"paused", false, interact.StatusNone, ""}, // of a later revision
		{"", false, interact.StatusNone, ""},
	} {
		if got := StatusOf(row.task, row.failed); got != row.status {
			t.Errorf("%s (%v) is %v, want %v", row.task, row.failed, got, row.status)
		}
		if got := StateOf(row.status, row.failed); got != row.back {
			t.Errorf("%v (%v) is %s, want %s", row.status, row.failed, got, row.back)
		}
	}
	if StateOf(interact.StatusPending, false) != "working" || StateOf(99, false) != "" {
		t.Error("the state of pending or of an unknown status is wrong")
	}
}
