package mcp

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/td"
)

// fill adds one feature of each kind to a server.
func fill(s *sdk.Server) {
	no := false
	s.AddTool(&sdk.Tool{Name: "say", Title: "Say", Description: "Says it.", InputSchema: &jsonschema.Schema{Type: "object",
		Properties: map[string]*jsonschema.Schema{"text": {Type: "string"}}, Required: []string{"text"}},
		Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true, DestructiveHint: &no}}, echo)
	s.AddResource(&sdk.Resource{Name: "Note No 1", URI: "test://note", MIMEType: "text/markdown"}, note)
	s.AddResourceTemplate(&sdk.ResourceTemplate{Name: "page", URITemplate: "test://pages/{n}", MIMEType: "application/json"}, note)
	s.AddPrompt(&sdk.Prompt{Name: "greet", Arguments: []*sdk.PromptArgument{{Name: "who", Required: true}}},
		func(_ context.Context, r *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
			return &sdk.GetPromptResult{Description: "d", Messages: []*sdk.PromptMessage{{Role: "user",
				Content: &sdk.TextContent{Text: "Hello " + r.Params.Arguments["who"]}}}}, nil
		})
}

func echo(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	var in struct{ Text string }
	_ = json.Unmarshal(r.Params.Arguments, &in)
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: in.Text}}}, nil
}

func note(_ context.Context, r *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: r.Params.URI, MIMEType: "text/markdown", Text: "# " + r.Params.URI}}}, nil
}

// The features of servers of all revisions are described: names, schemas and hints.
func TestDescribe(t *testing.T) {
	t.Parallel()
	for revision, versions := range revisions {
		a := join(t, piped(t, newServer(versions, fill)), bridge.Import{Capabilities: []string{"urn:x:say"}})
		thing := described(t, a.TD)
		if thing.Title != "Probe" || thing.Description != "Says what it is told." || len(thing.Capabilities) != 1 || len(a.Warnings) > 0 {
			t.Errorf("%s: %s, %q", revision, thing.Raw, a.Warnings)
		}
		say := thing.Actions["say"]
		if say == nil || !say.Safe || !say.Idempotent || say.Title != "Say" || say.Input.Property("text").Type() != "string" {
			t.Fatalf("%s: the tool is %+v", revision, say)
		}
		if greet := thing.Actions["greet"]; greet == nil || strings.Join(greet.Input.Required(), " ") != "who" {
			t.Errorf("%s: the prompt is %+v", revision, greet)
		}
		if p := thing.Properties["Note_No_1"]; p == nil || !p.ReadOnly || !p.Observable || p.Forms[0].ContentType != "text/markdown" {
			t.Errorf("%s: the resource is %+v", revision, p)
		}
		if p := thing.Properties["page"]; p == nil || p.URIVariables["n"] == nil {
			t.Errorf("%s: the template is %+v", revision, p)
		}
		for _, want := range []string{`"mcp:inputSchema":{"type":"object"`, `"mcp:uri":"test://note"`, `"mcp:uriTemplate":"test://pages/{n}"`,
			`"version":{"instance":"1.2"}`, `"mcp:destructive":false`, `"mcp:capabilities":{`, `"mcp:protocolVersions":[`} {
			if !strings.Contains(string(a.TD), want) {
				t.Errorf("%s: no %s in %s", revision, want, a.TD)
			}
		}
	}
}

// catalogueOf reads lists as a server may send them.
func catalogueOf(t testing.TB, tools, resources, templates, prompts string) *serverFeatures {
	c := &serverFeatures{info: &backend.Info{Discovered: json.RawMessage(`{"capabilities":{"resources":{}}}`)}}
	c.caps = capabilitiesOf(c.info)
	c.tools, c.resources = readAll[tool](c, "tools", []byte(tools)), readAll[resource](c, "resources", []byte(resources))
	c.templates, c.prompts = readAll[resource](c, "templates", []byte(templates)), readAll[prompt](c, "prompts", []byte(prompts))
	return c
}

// One bad tool does not hide others.
func TestBadTools(t *testing.T) {
	t.Parallel()
	const good = `{"name":"good","inputSchema":{"type":"object"}}`
	deep := strings.Repeat(`{"properties":{"a":`, 3000) + "{}" + strings.Repeat("}}", 3000)
	for name, test := range map[string]struct {
		tool string
		kept string // its name; empty: it is left out
	}{
		"no name":                          {`{"inputSchema":{"type":"object"}}`, ""},
		"a name of another type":           {`{"name":7}`, ""},
		"no object":                        {`[]`, ""},
		"no schema":                        {`{"name":"a"}`, "a"},
		"a null schema":                    {`{"name":"a","inputSchema":null}`, "a"},
		"a schema that is none":            {`{"name":"a","inputSchema":[1]}`, ""},
		"the tunnel's name":                {`{"name":"mcp","inputSchema":{}}`, "mcp_73600eff"},
		"the name of what is more":         {`{"name":"mcp-more","inputSchema":{}}`, "mcp-more_5525b8f2"},
		"another's name":                   {`{"name":"good","description":"impostor"}`, ""},
		"a name that looks like another's": {`{"name":"g\u043e\u043ed","inputSchema":{}}`, "g__d"},
		"a name with a slash":              {`{"name":"a/b c","inputSchema":{}}`, "a_b_c"},
		"a long name":                      {`{"name":"` + strings.Repeat("n", 500) + `","inputSchema":{}}`, strings.Repeat("n", 55) + "_"},
		"a schema too deep":                {`{"name":"a","inputSchema":` + deep + `}`, ""},
		"a number too large":               {`{"name":"a","inputSchema":{"type":"object","maxProperties":1e999}}`, ""},
		"a member twice":                   {`{"name":"a","inputSchema":{"type":"object","type":"string"}}`, ""},
		"a bad header":                     {`{"name":"a","inputSchema":{"properties":{"p":{"type":"string","x-mcp-header":"a b"}}}}`, ""},
		"a pattern that is none":           {`{"name":"a","inputSchema":{"properties":{"p":{"type":"string","pattern":"(("}}}}`, "a"},
		"half a character":                 {`{"name":"a","description":"\ud800","inputSchema":{"x":"\ud800"}}`, ""},
		"a reference elsewhere":            {`{"name":"a","inputSchema":{"properties":{"p":{"$ref":"http://127.0.0.1:1/x"}}}}`, "a"},
		"a loop":                           {`{"name":"a","inputSchema":{"$ref":"#"}}`, "a"},
		"too large":                        {`{"name":"a","inputSchema":{"x":"` + strings.Repeat("x", maxAffordance) + `"}}`, ""},
		"many words":                       {`{"name":"a","description":"` + strings.Repeat("é", 9000) + `"}`, "a"},
	} {
		c := catalogueOf(t, "["+good+","+test.tool+"]", "[]", "[]", "[]")
		doc, index, err := c.describe("x", bridge.Import{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		thing := described(t, doc)
		if thing.Actions["good"] == nil || index.actions["good"].name != "good" || len(doc) > td.MaxTD {
			t.Errorf("%s: the valid tool is missing: %.500s", name, doc)
		}
		kept := ""
		for key := range thing.Actions {
			if key != "good" && key != tunnelAction && key != moreTools {
				kept = key
			}
		}
		if more := thing.Actions[moreTools] != nil && strings.Contains(string(doc), `"mcp:omitted":1`); more != (name == "too large") {
			t.Errorf("%s: a warning about omitted members: %t", name, more)
		}
		if kept != test.kept && !(strings.HasSuffix(test.kept, "n_") && strings.HasPrefix(kept, test.kept)) || (kept == "") != (len(c.warnings) > 0) {
			t.Errorf("%s: kept as %q, want %q; warnings %q", name, kept, test.kept, c.warnings)
		}
	}
}

// More tools than a description can hold are first shortened, then left out, deterministically.
func TestManyTools(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]struct {
		left  bool
		words bool
	}{20: {false, true}, 100: {false, false}, 2000: {true, false}} {
		var all []string
		for i := range n {
			all = append(all, `{"name":"tool`+strings.Repeat("x", i%7)+string(raw(i))+`","description":"`+strings.Repeat("word ", 400)+
				`","inputSchema":{"type":"object","properties":{"a":{"type":"string"}}}}`)
		}
		c := catalogueOf(t, "["+strings.Join(all, ",")+"]", "[]", "[]", "[]")
		doc, _, err := c.describe("x", bridge.Import{})
		if err != nil {
			t.Fatal(err)
		}
		thing := described(t, doc)
		if left := thing.Actions[moreTools] != nil; left != want.left || len(doc) > td.MaxTD-2<<10 || strings.Contains(string(doc), strings.Repeat("word ", 300)) != want.words {
			t.Errorf("%d: %d actions, %d bytes, %q", n, len(thing.Actions), len(doc), c.warnings)
		}
	}
}

// The names of affordances do not depend on the order in which a server lists them.
func TestNames(t *testing.T) {
	t.Parallel()
	all := []entry{{"tool", "a b", "a b"}, {"tool", "a_b", "a_b"}, {"prompt", "a_b", "a_b"}, {"prompt", "p q", "p q"}, {"prompt", "p/q", "p/q"},
		{"tool", "", ""}, {"tool", "..", ".."}, {"tool", "a_b", "a_b"}}
	first := keys(all)
	if first[1] != "a_b" || first[7] != "" || first[0] == "a_b" || first[2] == "a_b" || first[3] == first[4] {
		t.Errorf("got %q", first)
	}
	turned := make([]entry, 0, len(all))
	for i := len(all) - 1; i >= 0; i-- {
		turned = append(turned, all[i])
	}
	byEntry := map[entry]string{}
	for i, key := range keys(turned) {
		if key != "" {
			byEntry[turned[i]] = key
		}
	}
	for i, e := range all {
		if first[i] != "" && byEntry[e] != first[i] {
			t.Errorf("%v is %q and %q", e, first[i], byEntry[e])
		}
	}
}

// A data schema accepts all that its JSON schema accepts.
func TestDataSchema(t *testing.T) {
	t.Parallel()
	for schema, values := range map[string][]string{
		`{"type":"object","properties":{"a":{"type":["string","null"]}},"additionalProperties":false}`:                                {`{"a":null}`, `{"a":"x"}`, `!{"b":1}`, `!{"a":1}`},
		`{"type":"object","patternProperties":{"^x":{}},"additionalProperties":false}`:                                                {`{"x1":1}`},
		`{"$defs":{"n":{"type":"integer","minimum":3}},"properties":{"a":{"$ref":"#/$defs/n"}}}`:                                      {`{"a":3}`, `!{"a":2}`},
		`{"oneOf":[{"type":"integer","if":{},"then":{"minimum":5}},{"type":"integer","maximum":2}]}`:                                  {`1`},
		`{"not":{"type":"string","contains":{}}}`:                                                                                     {`"x"`},
		`{"properties":{"a":{"$id":"http://x/y","$ref":"#/$defs/z","$defs":{"z":{}}}},"$defs":{"z":{"type":"string"}}}`:               {`{"a":7}`},
		`{"$schema":"http://example.com/mine","type":"whatever"}`:                                                                     {`7`},
		`{"exclusiveMinimum":true,"minimum":3}`:                                                                                       {`4`},
		`{"properties":{"a":true,"b":false},"required":["a"],"items":[{"type":"string"}]}`:                                            {`{"a":1}`, `!{"b":1}`, `!{"a":1,"b":1}`},
		`{"enum":[],"type":"nonsense","required":"a","minLength":"x","uniqueItems":1,"anyOf":[],"allOf":7,"properties":[],"enum2":1}`: {`"x"`, `{}`},
	} {
		s := td.ParseSchema(decode(t, raw(dataSchema(json.RawMessage(schema)))))
		for _, v := range values {
			text, refused := strings.CutPrefix(v, "!")
			if issues := s.Check(decode(t, []byte(text))); (len(issues) > 0) != refused {
				t.Errorf("%s of %s: %v", schema, v, issues)
			}
		}
	}
	for _, none := range []string{`7`, `[]`, `null`, ``, `{`} {
		if got := dataSchema(json.RawMessage(none)); got != nil {
			t.Errorf("%s gives %v", none, got)
		}
	}
}

func decode(t testing.TB, text []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

// For all lists of a server the description can be parsed, and contains the tunnel.
func FuzzDescribe(f *testing.F) {
	f.Add(`[{"name":"a","inputSchema":{"type":"object","properties":{"a":{"oneOf":[{"type":["string","null"]}]}}},"annotations":{"readOnlyHint":true}}]`,
		`[{"uri":"test://a","name":"A b"}]`, `[{"uriTemplate":"test://{x}/{y*}","name":"t"}]`, `[{"name":"p","arguments":[{"name":"a","required":true}]}]`)
	f.Add(`[{"name":"mcp"},{"name":"a\u0000b","title":"\u202e"}]`, `[{}]`, `[{"uriTemplate":"{{"}]`, `[{"name":""},{"name":"a","arguments":[{}]}]`)
	f.Fuzz(func(t *testing.T, tools, resources, templates, prompts string) {
		c := catalogueOf(t, tools, resources, templates, prompts)
		doc, index, err := c.describe("x", bridge.Import{})
		if err != nil {
			t.Fatal(err)
		}
		thing := described(t, doc)
		own := 1 // the tunnel
		if thing.Actions[moreTools] != nil {
			own++
		}
		if len(doc) > td.MaxTD || thing.Actions[tunnelAction] == nil || len(thing.Actions) != len(index.actions)+own || len(thing.Properties) != len(index.properties) {
			t.Fatalf("%d bytes: %s", len(doc), doc)
		}
	})
}
