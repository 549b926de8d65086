package features

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/td"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// owner owns all Things of these tests.
const owner = did.DID("did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH")

// described returns a description of a TD; nil if it is invalid.
func described(raw []byte) *td.Description {
	raw, err := td.Draft(raw)
	if err != nil {
		return nil
	}
	parsed, err := td.Parse(raw)
	if err != nil {
		return nil
	}
	return &td.Description{Thing: parsed, Record: &td.Record{Owner: owner, Thing: parsed.ID, Title: parsed.Title}}
}

// featuresOf returns the features of a Thing with the given TD.
func featuresOf(t *testing.T, doc string) *Features {
	t.Helper()
	d := described([]byte(doc))
	if d == nil {
		t.Fatalf("%s is not a description", doc)
		return nil
	}
	return Of(d)
}

const (
	// allAffordancesTD has an affordance of each kind.
	allAffordancesTD = `{"id":"urn:lamp","title":"Lamp","version":{"instance":"2"},
 "actions":{
  "blink":{"safe":true,"idempotent":true,"input":{"type":"integer"},"output":{"type":"integer"}},
  "glow":{"synchronous":false},
  "odd name/ü":{},
  "recite":{"@type":"mcp:Prompt","description":"Recites.","input":{"type":"object","properties":{"what":{"title":"What"}},"required":["what"]}}},
 "properties":{
  "on":{"type":"boolean","observable":true},
  "key":{"type":"string","writeOnly":true},
  "log":{"readOnly":true,"uriVariables":{"page":{"type":"integer"},"day":{"enum":["Mon","Tue"]}}}},
 "events":{"broke":{}}}`
	// shopTD describes an MCP server.
	shopTD = `{"id":"urn:shop","title":"Shop","@context":["https://www.w3.org/2022/wot/td/v1.1",{"mcp":"https://lmosd.dev/ns/mcp#"}],
 "actions":{"mcp":{"@type":"mcp:Session"},
  "buy":{"mcp:name":"buy.it","mcp:inputSchema":{"type":"object","properties":{"what":{"type":"string","x-mcp-header":"What"}}}},
  "welcome":{"mcp:name":"welcome you","@type":"mcp:Prompt"}},
 "properties":{"menu":{"mcp:uri":"shop://menu","readOnly":true,"observable":true},"page":{"mcp:uriTemplate":"shop://pages/{n}"}}}`
	// conversationalTD describes an A2A agent.
	conversationalTD = `{"id":"urn:talker","title":"Talker","@type":"lmos:Agent","@context":["https://www.w3.org/2022/wot/td/v1.1",{"a2a":"https://lmosd.dev/ns/a2a#"}],
 "actions":{"a2a":{"@type":"a2a:Operation"},"sendMessage":{"@type":"a2a:Turn","synchronous":true,"input":{},"output":{}},
  "sum":{"@type":"a2a:Turn","a2a:skill":"sum","input":{},"output":{}}},"properties":{"tasks":{"readOnly":true}}}`
	// freeInputTD describes a conversational agent that accepts any input.
	freeInputTD = `{"id":"urn:parrot","title":"Parrot","@type":"lmos:Agent","actions":{"ask":{"input":{},"output":{}}}}`
)

// Calls, gets and reads become messages to the Thing, if they are valid.
func TestMessages(t *testing.T) {
	t.Parallel()
	const tasks = `{"extensions":{"` + protocol.Tasks + `":{}}}`
	for name, c := range map[string]struct {
		doc, tool, args, caps string
		want                  interact.Message
		task                  string
		bad                   bool
	}{
		"a value":               {allAffordancesTD, "blink", `{"value":3}`, `{}`, interact.Message{Type: interact.InvokeAction, Name: "blink", Data: []byte(`3`)}, "", false},
		"no value":              {allAffordancesTD, "blink", `{}`, `{}`, interact.Message{Type: interact.InvokeAction, Name: "blink"}, "", false},
		"null":                  {allAffordancesTD, "blink", `null`, `{}`, interact.Message{Type: interact.InvokeAction, Name: "blink"}, "", false},
		"one twice":             {allAffordancesTD, "blink", `{"value":3,"value":4}`, `{}`, interact.Message{}, "", true},
		"no object":             {allAffordancesTD, "glow", `[1]`, `{}`, interact.Message{}, "", true},
		"arguments of nothing":  {allAffordancesTD, "glow", `{"a":1}`, `{}`, interact.Message{Type: interact.InvokeAction, Name: "glow"}, "", false},
		"a task":                {allAffordancesTD, "glow", `{}`, tasks, interact.Message{Type: interact.InvokeAction, Name: "glow", Detach: true}, "", false},
		"what is none":          {allAffordancesTD, "blink", `{"value":3}`, tasks, interact.Message{Type: interact.InvokeAction, Name: "blink", Data: []byte(`3`)}, "", false},
		"a property is read":    {allAffordancesTD, "get_on", `{}`, `{}`, interact.Message{Type: interact.ReadProperty, Name: "on"}, "", false},
		"one with variables":    {allAffordancesTD, "get_log", `{"page":2}`, `{}`, interact.Message{Type: interact.ReadProperty, Name: "log", Data: []byte(`{"page":2}`)}, "", false},
		"a property is written": {allAffordancesTD, "set_on", `{"value":true}`, `{}`, interact.Message{Type: interact.WriteProperty, Name: "on", Data: []byte(`true`)}, "", false},
		"of a server":           {shopTD, "buy.it", `{"what":"tea"}`, `{}`, interact.Message{Type: interact.InvokeAction, Name: "buy", Data: []byte(`{"what":"tea"}`)}, "", false},
		"words":                 {freeInputTD, "ask_parrot", `{"message":"hi"}`, `{}`, interact.Message{Type: interact.InvokeAction, Name: "ask", Data: []byte(`"hi"`)}, "", false},
		"a turn": {conversationalTD, "ask_talker", `{"message":"hi","TaskID":"t"}`, tasks, interact.Message{Type: interact.InvokeAction, Name: "sendMessage", Detach: true,
			ContentType: "application/vnd.lmosd.turn+json", Data: []byte(`{"message":"hi","taskId":"t","kinds":[]}`)}, "t", false},
		"a turn of no text": {conversationalTD, "sum", `{"taskId":7}`, `{}`, interact.Message{}, "", true},
	} {
		tool := featuresOf(t, c.doc).Tool(c.tool)
		if tool == nil {
			t.Errorf("%s: missing tool %s", name, c.tool)
			continue
		}
		msg, said, e := tool.Message(protocol.Request("1", protocol.CallTool, json.RawMessage(`{"name":"x","arguments":`+c.args+`,"_meta":{"`+protocol.MetaCapabilities+`":`+c.caps+`}}`)))
		if (e != nil) != c.bad || e != nil && e.Code != protocol.InvalidParams {
			t.Errorf("%s: got %v", name, e)
		}
		if e == nil && (msg.Type != c.want.Type || msg.Name != c.want.Name || string(msg.Data) != string(c.want.Data) || msg.ContentType != c.want.ContentType ||
			msg.Detach != c.want.Detach || (said != nil) != (c.task != "") || said != nil && said.Task != c.task) {
			t.Errorf("%s: got %+v %s, said is %+v", name, msg, msg.Data, said)
		}
	}
	p := featuresOf(t, allAffordancesTD).Prompt("recite")
	for args, want := range map[string]string{`{}`: `{}`, `null`: `{}`, `{"what":"a poem"}`: `{"what":"a poem"}`} {
		msg, e := p.Message(protocol.Request("1", protocol.GetPrompt, json.RawMessage(`{"name":"x","arguments":`+args+`}`)))
		if e != nil || msg.Type != interact.InvokeAction || msg.Name != "recite" || string(msg.Data) != want {
			t.Errorf("a prompt with %s: %+v, %v", args, msg, e)
		}
	}
}

// A reply is a valid result: content as text, and structured data that matches the schema.
func TestResults(t *testing.T) {
	t.Parallel()
	lamp := featuresOf(t, allAffordancesTD)
	part := func(media, data string) []interact.Part {
		return []interact.Part{{Data: []byte(data), ContentType: media}}
	}
	const of = `{"resultType":"complete","content":[`
	for name, c := range map[string]struct {
		got  any
		want string
	}{
		"a value":               {lamp.Tool("blink").Result(part("", `3`)), of + `{"type":"text","text":"3"}],"structuredContent":{"value":3}}`},
		"nothing":               {lamp.Tool("blink").Result(nil), of + `]}`},
		"an object":             {lamp.Tool("glow").Result(part("", `{"a": 1}`)), of + `{"type":"text","text":"{\"a\":1}"}],"structuredContent":{"a":1}}`},
		"no object":             {lamp.Tool("glow").Result(part("", `[1]`)), of + `{"type":"text","text":"[1]"}]}`},
		"parts of one kind":     {lamp.Tool("glow").Result(append(part("text/plain", "a"), part("text/plain", "b")...)), of + `{"type":"text","text":"ab"}]}`},
		"parts of two":          {lamp.Tool("glow").Result(append(part("text/plain", "a"), part("image/png", "b")...)), of + `{"type":"text","text":"a"},{"type":"image","data":"Yg==","mimeType":"image/png"}]}`},
		"bytes":                 {lamp.Tool("glow").Result(part("a/b", "\x00")), of + `{"type":"resource","resource":{"uri":"` + scheme + lamp.Alias + `/actions/glow/output","mimeType":"a/b","blob":"AA=="}}]}`},
		"bytes of a task":       {(*Tool)(nil).TaskResult(part("a/b", "\x00")), of + `{"type":"resource","resource":{"uri":"lmos://task/output","mimeType":"a/b","blob":"AA=="}}]}`},
		"words for a prompt":    {lamp.Prompt("recite").Result(part("", `"O moon"`)), `{"description":"Recites.","messages":[{"content":{"type":"text","text":"O moon"},"role":"user"}],"resultType":"complete"}`},
		"messages":              {lamp.Prompt("recite").Result(part("", `{"description":"d","messages":[1]}`)), `{"description":"d","messages":[1],"resultType":"complete"}`},
		"a list of messages":    {lamp.Prompt("recite").Result(part("", `[1]`)), `{"description":"Recites.","messages":[1],"resultType":"complete"}`},
		"contents in CBOR":      {Contents([]byte{0xf5}, "application/cbor", "u"), `{"cacheScope":"private","contents":[{"uri":"u","mimeType":"application/json","text":"true"}],"resultType":"complete","ttlMs":0}`},
		"contents that lie":     {Contents([]byte{0xff}, "application/cbor", "u"), `{"cacheScope":"private","contents":[{"uri":"u","mimeType":"application/cbor","blob":"/w=="}],"resultType":"complete","ttlMs":0}`},
		"a document":            {Document(map[string]string{"a": "<b>"}), of + `{"type":"text","text":"{\"a\":\"\u003cb\u003e\"}"}],"structuredContent":{"a":"\u003cb\u003e"}}`},
		"an error":              {Failed(&interact.Error{Code: interact.Overloaded, Title: "no room", Hint: "wait"}), of + `{"type":"text","text":"no room\nwait"}],"isError":true,"_meta":{"dev.lmosd/error":{"code":"LMOS-1529","hint":"wait","retryable":true}}}`},
		"an error of a request": {Error(&interact.Error{Code: interact.Invalid, Title: "no number"}), `{"code":-32602,"message":"no number","data":{"code":"LMOS-1400","hint":"","retryable":false}}`},
		"one of a resource":     {ReadError(&interact.Error{Code: interact.Unreachable, Title: "away"}, "u"), `{"code":-32603,"message":"away","data":{"code":"LMOS-1503","hint":"","retryable":true,"uri":"u"}}`},
	} {
		if got := string(protocol.Encode(c.got)); got != c.want {
			t.Errorf("%s: got  %s\nwant %s", name, got, c.want)
		}
	}
}

// A resource has a URI of the mesh, and one of its server.
func TestResourceURIs(t *testing.T) {
	t.Parallel()
	lamp, shop := featuresOf(t, allAffordancesTD), featuresOf(t, shopTD)
	at := scheme + lamp.Alias
	for uri, want := range map[string]string{
		at + "/properties/on": "on ", at + "/events/broke": "broke ", at + "/properties/log?page=2": `log {"page":2}`, at + "/properties/log": "log ",
		at + "/properties/log?%": "", at + "/properties/key": "", at + "/properties/none": "", "": "", "shop://menu": "",
	} {
		got := ""
		if r := lamp.Resource(uri); r != nil {
			got = r.Key + " " + string(r.Message(uri).Data)
		}
		if got != want {
			t.Errorf("%s is %q, want %q", uri, got, want)
		}
	}
	for uri, want := range map[string][2]string{
		at + "/properties/on":                    {lamp.Alias, at + "/properties/on"},
		scheme + shop.Alias + "/mcp/shop://menu": {shop.Alias, "shop://menu"},
		"shop://menu":                            {"", "shop://menu"}, "lmos://": {"", "lmos://"}, "lmos:///mcp/x": {"", "x"},
	} {
		if alias, inner := Split(uri); alias != want[0] || inner != want[1] {
			t.Errorf("%s is %q of %q", uri, inner, alias)
		}
	}
	for name, want := range map[string]string{"menu": "shop://menu", scheme + shop.Alias + "/mcp/shop://menu": "shop://menu", "shop://menu": "shop://menu", "page": "page"} {
		if got := shop.OwnURI(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if got := lamp.OwnURI("on"); got != at+"/properties/on" {
		t.Errorf("on is %s", got)
	}
	if own, templates := shop.Own(); len(own) != 1 || own[0].URI != "shop://menu" || len(templates) != 1 ||
		templates[0].Template != "shop://pages/{n}" || shop.Resources[0].URI == "shop://menu" {
		t.Errorf("the resources with URIs at the server are %+v, %+v", own, templates)
	}
}

// Names depend only on the pin and the name, are valid for models, and are unique.
func TestNames(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ pin, action, want string }{
		{"weather", "getForecast", "weather__getForecast"},
		{"weather", "_x", "weather___x"},
		{"we", "a b", "we__a_b-1f2ae6d0"},
		{"we", "a_b", "we__a_b"},
		{"My Lamp", "on", "my-lamp-6c9a9f6c__on"},
		{"a__b", "c", "a-b-63e5c1c4__c"},
	} {
		got := joined(AliasOfPin(test.pin), test.action)
		if i := strings.LastIndex(test.want, "-"); i > 0 && len(test.want)-i > hashLen { // the tables have no hashes
			if got[:i] != test.want[:i] || len(got) != len(test.want) {
				t.Errorf("%s/%s: got %s, want one like %s", test.pin, test.action, got, test.want)
			}
		} else if got != test.want {
			t.Errorf("%s/%s: got %s, want %s", test.pin, test.action, got, test.want)
		}
	}
	seen := map[string]string{}
	for _, pin := range []string{"a", "a_", "_a", "a__b", "A", "ä", "a-b", "a b", "urn:x:a", "urn:y:a", "a@z6Mkx", strings.Repeat("a", 200)} {
		for _, action := range []string{"x", "_x", "__x", "x y", "x_y", "x/y", "ü", "", strings.Repeat("x", 100), strings.Repeat("x", 101), "b__x"} {
			name := joined(AliasOfPin(pin), action)
			if other, there := seen[name]; there || len(name) > MaxName || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
				t.Errorf("%s of %q %q, and of %s", name, pin, action, other)
			}
			seen[name] = pin + "/" + action
		}
	}
}

// Data schemas become schemas for models: objects without external references.
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
		d := described([]byte(`{"title":"X","@context":["` + td.Context11 + `",{"mcp":"https://lmosd.dev/ns/mcp#"}],"actions":{"do":` + c.action + `}}`))
		if d == nil {
			t.Fatalf("%s: no description", name)
		}
		tool := Of(d).Tool("do")
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

// sorted returns a JSON document with its members in order.
func sorted(t *testing.T, raw json.RawMessage) string {
	t.Helper()
	if raw == nil {
		return ""
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	return string(protocol.Encode(v))
}

// For every description the features are valid MCP, have valid names, and are found by name.
func FuzzOf(f *testing.F) {
	for _, doc := range []string{allAffordancesTD, shopTD, conversationalTD, freeInputTD, `{"title":"x","actions":{"a":{"uriVariables":{"v":{"type":"integer"}},"input":{"type":"array"}}}}`,
		`{"title":"x","properties":{"p":{"type":"object","properties":{"q":{"$ref":"#/properties/q"}},"writeOnly":true}}}`,
		`{"title":"x","actions":{"mcp":{"@type":"mcp:Session"},"b":{"mcp:name":"\u202e","mcp:inputSchema":{"type":"object","x-mcp-header":"a"}}},"properties":{"p":{"mcp:uri":"a:b"},"q":{"mcp:uriTemplate":"{?x}"}}}`} {
		f.Add([]byte(doc), "alias", "name")
	}
	f.Fuzz(func(t *testing.T, doc []byte, pin, action string) {
		if name := joined(AliasOfPin(pin), action); len(name) > MaxName || !isPlain(name) || !others.MatchString(name) {
			t.Errorf("%q of %q has the name %q", action, pin, name)
		}
		d := described(doc)
		if d == nil {
			return
		}
		o := Of(d)
		server := Tunnel(d.Thing) != ""
		for _, one := range o.Tools {
			if !usable(one.Input) || !json.Valid(protocol.Encode(one)) || o.Tool(one.Name) != one {
				t.Errorf("the tool %q cannot be used: %s", one.Name, protocol.Encode(one))
			}
			if !server && (len(one.Name) > MaxName || !isPlain(one.Name)) {
				t.Errorf("a tool has the name %q", one.Name)
			}
			_, _ = protocol.Params(one.Input)
		}
		for _, one := range o.Prompts {
			if o.Prompt(one.Name) != one {
				t.Errorf("the prompt %q is not found", one.Name)
			}
		}
		for _, r := range o.Resources {
			if alias, _ := Split(r.URI); o.Resource(r.URI) == nil || alias != o.Alias {
				t.Errorf("%q is not found", r.URI)
			}
		}
		o.Params()
		own, templates := o.Own()
		_ = protocol.Encode([]any{o.Resources, o.Templates, own, templates})
	})
}

// others are names under an alias. No feature of the mesh itself has one of them.
var others = regexp.MustCompile("__|-[0-9a-f]{8}$")

func isPlain(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-')
	})
}
