package openapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/td"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) { testmain.Run(m) }

// convert converts a document and parses the result.
func convert(t *testing.T, doc string, o Options) (*td.Thing, []string) {
	t.Helper()
	raw, warnings, err := Convert([]byte(doc), o)
	if err != nil {
		t.Fatal(err)
	}
	thing, err := td.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return thing, warnings
}

// TestGolden converts the documents in testdata; the golden files end with the warnings.
func TestGolden(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"nursery.yaml", "weather.json"} {
		doc, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		raw, warnings, err := Convert(doc, Options{})
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if err := json.Indent(&got, raw, "", "  "); err != nil {
			t.Fatal(err)
		}
		got.WriteString("\n\n" + strings.Join(warnings, "\n") + "\n")
		golden := filepath.Join("testdata", strings.TrimSuffix(name, filepath.Ext(name))+".golden")
		if *update {
			if err := os.WriteFile(golden, got.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got.String()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// doc returns a document with one operation at path; members are those of the operation, in YAML.
func doc(method, path, members string) string {
	return "openapi: 3.0.3\ninfo: {title: X, version: '1'}\nservers: [{url: 'https://api.example/v1/'}]\npaths:\n" +
		"  '" + path + "':\n    " + method +
		":\n      operationId: do\n" + indent(members, 6) + "      responses: {'204': {description: done}}\n"
}

func indent(text string, n int) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.Repeat(" ", n) + line)
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		b.WriteByte('\n')
	}
	return b.String()
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	const base = "https://api.example/v1"
	for name, c := range map[string]struct{ path, parameters, href, vars string }{
		"plain":                    {"/a/b", "", "/a/b", ""},
		"without its slash":        {"a", "", "/a", ""},
		"a slash at the end stays": {"/a/", "", "/a/", ""},
		"signs":                    {"/a b/ü/%2F/%zz/^", "", "/a%20b/%C3%BC/%2F/%25zz/%5E", ""},
		"a fragment is a sign":     {"/a#b", "", "/a%23b", ""},
		"a variable": {"/a/{id}/b", "{name: id, in: path, required: true, schema: {type: integer}}", "/a/{id}/b",
			"id integer"},
		"two in a segment": {"/{a}.{b}",
			"{name: a, in: path, schema: {type: string}}, {name: b, in: path, schema: {type: string}}", "/{a}.{b}", "a string, b string"},
		"a name with a space":    {"/{the id}", "{name: the id, in: path, schema: {type: string}}", "/{the_id}", "the_id string"},
		"an undeclared variable": {"/{id}", "", "/{id}", "id string"},
		"a list in the path": {"/{ids}", "{name: ids, in: path, schema: {type: array, items: {type: integer}}}",
			"/{ids}", "ids of integer"},
		"a list in matrix style": {"/{ids}",
			"{name: ids, in: path, style: matrix, explode: true, schema: {type: array, items: {type: integer}}}",
			"/{;ids*}", "ids of integer"},
		"a list in the query": {"/a", "{name: n, in: query, schema: {type: array, items: {type: string, enum: [a, b]}}}",
			"/a{?n*}", "n of string"},
		"a list with commas": {"/a", "{name: n, in: query, explode: false, schema: {type: array, items: {type: number}}}",
			"/a{?n}", "n of number"},
		"a list with pipes": {"/a",
			"{name: n, in: query, style: pipeDelimited, explode: false, schema: {type: array, items: {type: number}}}", "/a{?n}", "n number"},
		"a list of anything":    {"/a", "{name: n, in: query, schema: {type: array}}", "/a{?n*}", "n of string"},
		"a list of objects":     {"/a", "{name: n, in: query, schema: {type: array, items: {type: object}}}", "/a", ""},
		"required in the query": {"/a", "{name: n, in: query, required: true, schema: {type: boolean}}", "/a{?n}", "n boolean!"},
		"an object in the path": {"/{o}", "{name: o, in: path, schema: {type: object}}", "/{o}", "o string"},
		"matrix style":          {"/{id}", "{name: id, in: path, style: matrix, schema: {type: string}}", "/{;id}", "id string"},
		"a query": {"/a",
			"{name: q, in: query, schema: {type: string}}, {name: n, in: query, schema: {type: number}}",
			"/a{?q,n}", "n number, q string"},
		"a path with a query": {"/a?op=x", "{name: q, in: query, schema: {type: string}}", "/a?op=x{&q}", "q string"},
		"signs in a query's name": {"/a", "{name: 'a[b c]', in: query, schema: {type: string}}", "/a{?a%5Bb%20c%5D}",
			"a%5Bb%20c%5D string"},
		"one name twice": {"/{a}",
			"{name: a, in: path, schema: {type: string}}, {name: a, in: query, schema: {type: integer}}", "/{a}", "a string"},
		"JSON in the query": {"/a", "{name: f, in: query, content: {application/json: {schema: {type: object}}}}",
			"/a{?f}", "f string"},
		"an object in the query":     {"/a", "{name: f, in: query, schema: {type: object}}", "/a", ""},
		"alternatives with an array": {"/a", "{name: f, in: query, schema: {oneOf: [{type: string}, {type: array}]}}", "/a", ""},
		"a parameter without schema": {"/a", "{name: f, in: query}", "/a{?f}", "f string"},
		"a header":                   {"/a", "{name: H, in: header, schema: {type: string}}", "/a", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			thing, _ := convert(t, doc("get", c.path, "parameters: ["+c.parameters+"]"), Options{})
			a := thing.Actions["do"]
			var vars []string
			for _, name := range slices.Sorted(maps.Keys(a.URIVariables)) {
				v := a.URIVariables[name]
				text := name + " " + v.Type()
				if e := v.Elements(); e != nil {
					text = name + " of " + e.Type()
				}
				if slices.Contains(a.RequiredVariables(), name) && !strings.Contains(c.path, "{") {
					text += "!"
				}
				vars = append(vars, text)
			}
			if got := a.Forms[0].Href; got != base+c.href || strings.Join(vars, ", ") != c.vars {
				t.Errorf("got %s with %v, want %s with %s", got, vars, base+c.href, c.vars)
			}
		})
	}
}

func TestInvalidPaths(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/{a", "/a}", "/{a{b}}", "/{}", "/" + strings.Repeat("x", 9000)} {
		text := `{"openapi":"3.0.0","servers":[{"url":"http://a"}],"paths":{"` + path + `":{"get":{}}}}`
		_, warnings, err := Convert([]byte(text), Options{})
		var v *td.ValidationError
		if !errors.As(err, &v) || v.Issues[0].Pointer != "/paths" || !strings.Contains(v.Issues[0].Reason, "left out") ||
			warnings != nil {
			t.Errorf("%.20s: got %v", path, err)
		}
	}
}

func TestMethods(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]string{"get": "safe idempotent", "head": "safe idempotent", "put": "idempotent",
		"delete": "idempotent", "post": "", "patch": ""} {
		thing, warnings := convert(t, doc(method, "/", ""), Options{Name: "Other"})
		a := thing.Actions["do"]
		var got []string
		if a.Safe {
			got = append(got, "safe")
		}
		if a.Idempotent {
			got = append(got, "idempotent")
		}
		if strings.Join(got, " ") != want || a.Forms[0].HTTPMethod != strings.ToUpper(method) || a.Synchronous == nil ||
			!*a.Synchronous {
			t.Errorf("%s: got %v, %s", method, got, a.Forms[0].HTTPMethod)
		}
		if len(warnings) > 0 || thing.Title != "Other" || thing.ID != "" || thing.Version != "1" || !thing.HasType("Tool") {
			t.Errorf("got %s, %q, version %s, warnings %q", thing.Title, thing.ID, thing.Version, warnings)
		}
	}
	_, _, err := Convert([]byte(doc("trace", "/", "")), Options{})
	if err == nil || !strings.Contains(err.Error(), "TRACE /") {
		t.Errorf("got %v", err)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for words, want := range map[string]string{"GET /pets/{petId}": "getPetsPetId", "POST /": "post",
		"DELETE /v2/user_accounts/{a-b}.json": "deleteV2UserAccountsABJson",
		"GET /über/ñ":                         "getÜberÑ"} {
		if got := camel(words); got != want {
			t.Errorf("%s: got %s, want %s", words, got, want)
		}
	}
	paths := ""
	for i := range 4 {
		paths += fmt.Sprintf("  /%d: {get: {operationId: \" a\\u0007 \", responses: {}}}\n", i)
	}
	thing, warnings := convert(t, "openapi: 3.0.0\ninfo: {}\npaths:\n"+paths, Options{Server: "http://127.0.0.1:1"})
	if got := slices.Sorted(maps.Keys(thing.Actions)); !slices.Equal(got, []string{"a_", "a_2", "a_3", "a_4"}) ||
		len(warnings) != 3 || thing.Title != "API" {
		t.Errorf("got %q, %q", got, warnings)
	}
}

// schemaOf converts one schema, in YAML flow style, as the body of a request, or of a response.
func schemaOf(t *testing.T, schema string, input bool) (string, []string) {
	t.Helper()
	members := "requestBody: {content: {application/json: {schema: " + schema + "}}}"
	text := doc("post", "/", members)
	if !input {
		text = strings.Replace(doc("post", "/", ""), "{description: done}",
			"{description: done, content: {application/json: {schema: "+schema+"}}}", 1)
	}
	thing, warnings := convert(t, text+"components: {schemas: {Text: {type: string}, Maybe: {type: string, nullable: true}, "+
		"A: {type: object, properties: {a: {type: string}}}, "+
		"Loop: {type: object, properties: {next: {$ref: '#/components/schemas/Loop'}}}}}\n", Options{})
	value := thing.Actions["do"].Output
	if input {
		value = thing.Actions["do"].Input
	}
	b, err := json.Marshal(value.Value())
	if err != nil {
		t.Fatal(err)
	}
	return string(b), warnings
}

func TestSchemas(t *testing.T) {
	t.Parallel()
	const ref = "{$ref: '#/components/schemas/"
	for _, c := range []struct{ in, want string }{
		{`{}`, `{}`},
		{`{type: integer, format: int64, minimum: 1}`, `{"minimum":1,"type":"integer"}`},
		{`{type: string, format: date-time, maxLength: 5}`, `{"format":"date-time","maxLength":5,"type":"string"}`},
		{`{type: string, format: byte}`, `{"contentEncoding":"base64","type":"string"}`},
		{`{type: number, maximum: 2, exclusiveMaximum: true}`, `{"exclusiveMaximum":2,"type":"number"}`},
		{`{type: number, exclusiveMaximum: 2}`, `{"exclusiveMaximum":2,"type":"number"}`},
		{`{type: number, exclusiveMaximum: 2, maximum: 1}`, `{"maximum":1,"type":"number"}`},
		{`{type: number, exclusiveMinimum: 2, minimum: 1}`, `{"exclusiveMinimum":2,"type":"number"}`},
		{`{type: number, exclusiveMinimum: 1, minimum: 1}`, `{"exclusiveMinimum":1,"type":"number"}`},
		{`{type: number, exclusiveMinimum: 1, minimum: 2}`, `{"minimum":2,"type":"number"}`},
		{`{type: number, exclusiveMinimum: true, minimum: 1}`, `{"exclusiveMinimum":1,"type":"number"}`},
		{`{type: number, exclusiveMinimum: true}`, `{"type":"number"}`},
		{`{properties: {exclusiveMinimum: {type: number}, x-a: {type: string}}}`,
			`{"properties":{"exclusiveMinimum":{"type":"number"},"x-a":{"type":"string"}}}`},
		{`{properties: {default: true, enum: false}}`, `{"properties":{"default":{},"enum":{"not":{}}}}`},
		{`{default: {$ref: x, items: true}}`, `{"default":{"$ref":"x","items":true}}`},
		{`{anyOf: [true, {not: false}], items: false}`, `{"anyOf":[{},{"not":{"not":{}}}],"items":{"not":{}}}`},
		{`{type: number, multipleOf: 0}`, `{"type":"number"}`},
		{`{type: string, nullable: true}`, `{"oneOf":[{"type":"string"},{"type":"null"}]}`},
		{`{type: string, nullable: true, title: T}`, `{"oneOf":[{"type":"string"},{"type":"null"}],"title":"T"}`},
		{`{nullable: true}`, `{}`},
		{`{nullable: true, enum: [a, null]}`, `{"enum":["a",null]}`},
		{`{type: string, nullable: true, enum: [a, null]}`, `{"oneOf":[{"enum":["a"],"type":"string"},{"type":"null"}]}`},
		{`{nullable: true, allOf: [` + ref + `Text'}]}`, `{"oneOf":[{"allOf":[{"type":"string"}]},{"type":"null"}]}`},
		{`{nullable: true, allOf: [` + ref + `Maybe'}]}`, `{"allOf":[{"oneOf":[{"type":"string"},{"type":"null"}]}]}`},
		{`{nullable: true, oneOf: [{type: string}]}`, `{"oneOf":[{"type":"string"},{"type":"null"}]}`},
		{`{nullable: true, not: {type: string}}`, `{"oneOf":[{"not":{"type":"string"}},{"type":"null"}]}`},
		{`{type: ["string", "null"]}`, `{"oneOf":[{"type":"string"},{"type":"null"}]}`},
		{`{type: ["null"]}`, `{"type":"null"}`},
		{`{type: [string, integer]}`, `{"oneOf":[{"type":"string"},{"type":"integer"}]}`},
		{`{type: [integer, number]}`, `{"type":"number"}`},
		{`{anyOf: [{type: string}, {type: "null"}]}`, `{"oneOf":[{"type":"string"},{"type":"null"}]}`},
		{`{anyOf: [{}, {type: "null"}]}`, `{"anyOf":[{},{"type":"null"}]}`},
		{`{anyOf: [{type: string}, {type: number}]}`, `{"anyOf":[{"type":"string"},{"type":"number"}]}`},
		{`{allOf: [` + ref + `A'}, {required: [a, a]}]}`, `{"properties":{"a":{"type":"string"}},"required":["a"],"type":"object"}`},
		{`{allOf: [` + ref + `A'}, ` + ref + `A'}]}`,
			`{"allOf":[{"properties":{"a":{"type":"string"}},"type":"object"},{"properties":{"a":{"type":"string"}},"type":"object"}]}`},
		{`{type: object, additionalProperties: false}`, `{"additionalProperties":false,"type":"object"}`},
		{`{type: object, additionalProperties: true}`, `{"type":"object"}`},
		{`{type: object, additionalProperties: {type: "null"}}`, `{"additionalProperties":{"type":"null"},"type":"object"}`},
		{`{properties: {a: true, b: false, default: {exclusiveMinimum: 1}}}`,
			`{"properties":{"a":{},"b":{"not":{}},"default":{"exclusiveMinimum":1}}}`},
		{`{items: true, oneOf: [true, false]}`, `{"items":{},"oneOf":[{},{"not":{}}]}`},
		{`{enum: [1, a, {b: [2]}]}`, `{"enum":[1,"a",{"b":[2]}]}`},
		{`{enum: []}`, `{}`},
		{`{const: null}`, `{"const":null}`},
		{`{default: {properties: {a: true}}}`, `{"default":{"properties":{"a":true}}}`},
		{`{default: [[[[[[[[[[1]]]]]]]]]]}`, `{}`},
		{ref + `Loop'}`, `{"properties":{"next":{}},"type":"object"}`},
		{`{type: [string, null], required: [a, null]}`, `{"oneOf":[{"required":["a"],"type":"string"},{"type":"null"}]}`},
		{`{type: object, required: [a, b], properties: {a: {readOnly: true}, b: {writeOnly: true}}}`,
			`{"properties":{"b":{}},"required":["b"],"type":"object"}`},
	} {
		if got, _ := schemaOf(t, c.in, true); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.in, got, c.want)
		}
	}
	for _, c := range []struct{ in, want string }{
		{`{type: object, additionalProperties: false}`, `{"type":"object"}`},
		{`{oneOf: [{type: object, additionalProperties: false}]}`, `{"oneOf":[{"additionalProperties":false,"type":"object"}]}`},
		{`{type: object, required: [a, b], properties: {a: {readOnly: true}, b: {writeOnly: true}}}`,
			`{"properties":{"a":{}},"required":["a"],"type":"object"}`},
	} {
		if got, _ := schemaOf(t, c.in, false); got != c.want {
			t.Errorf("output %s:\n got %s\nwant %s", c.in, got, c.want)
		}
	}
	for _, c := range []struct{ in, want string }{
		{ref + `Loop'}`, `schemas: Loop contains itself: its second occurrence accepts all values`},
		{`{type: file}`, `schemas: the type "file" is not a JSON type`},
		{`{if: {type: string}}`, `POST /: if in a schema is left out`},
		{`{x-mine: 1, $comment: 'no'}`, ``},
	} {
		if _, warnings := schemaOf(t, c.in, true); strings.Join(warnings, "") != c.want {
			t.Errorf("%s: got %q, want %q", c.in, warnings, c.want)
		}
	}
}

// TestNullableMeansNull validates values with the schemas.
func TestNullableMeansNull(t *testing.T) {
	t.Parallel()
	for _, in := range []string{`{type: string, nullable: true}`, `{type: [string, 'null']}`,
		`{type: [string, number, 'null'], title: T}`, `{nullable: true, oneOf: [{type: string}]}`,
		`{nullable: true, allOf: [{$ref: '#/components/schemas/Maybe'}]}`, `{anyOf: [{type: string}, {type: 'null'}]}`,
		`{nullable: true}`, `{type: string, enum: [x, null], nullable: true}`,
		`{oneOf: [{type: string, nullable: true}, {type: number}], nullable: true}`} {
		text, _ := schemaOf(t, in, true)
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		for _, value := range []any{nil, "x"} {
			if issues := td.ParseSchema(v).Check(value); len(issues) > 0 {
				t.Errorf("%s became %s, which rejects %v: %v", in, text, value, issues)
			}
		}
	}
}

func TestBodies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ method, body, form, input, warning string }{
		"JSON first": {"post",
			"content: {text/plain: {}, application/json: {schema: {type: number}}, application/xml: {}}", "application/json",
			`{"type":"number"}`, ""},
		"any type is JSON": {"post", "content: {'*/*': {schema: {type: number}}}", "application/json", `{"type":"number"}`, ""},
		"a type with the suffix +json": {"post", "content: {application/vnd.x+json: {schema: {type: number}}}",
			"application/vnd.x+json", `{"type":"number"}`, ""},
		"no schema": {"post", "content: {application/json: {}}", "application/json", `{}`, ""},
		"text":      {"post", "content: {text/csv: {}}", "text/csv", `{"type":"string"}`, ""},
		"octets":    {"post", "content: {audio/wav: {}}", "audio/wav", `null`, ""},
		"a form":    {"post", "content: {multipart/form-data: {}}", "application/json", `null`, "its body is left out"},
		"a form that is required": {"post", "{required: true, content: {application/x-www-form-urlencoded: {}}}", "", "",
			"left out: the media type"},
		"a body of GET": {"get", "content: {application/json: {}}", "application/json", `null`, "GET requests have none"},
		"no content":    {"post", "content: {}", "application/json", `null`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body := c.body
			if !strings.HasPrefix(body, "{") {
				body = "{" + body + "}"
			}
			raw, warnings, err := Convert([]byte(doc(c.method, "/", "requestBody: "+body)), Options{})
			if c.form == "" {
				if err == nil || !strings.Contains(err.Error(), c.warning) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			thing, _ := td.Parse(raw)
			a := thing.Actions["do"]
			input, _ := json.Marshal(a.Input.Value())
			if a.Forms[0].ContentType != c.form || string(input) != c.input || !strings.Contains(strings.Join(warnings, "\n"),
				c.warning) || c.warning == "" && len(warnings) > 0 {
				t.Errorf("got %s, %s, %q", a.Forms[0].ContentType, input, warnings)
			}
		})
	}
}

func TestResponses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ responses, want string }{
		{`{'200': {content: {application/json: {schema: {type: number}}}}}`, `application/json {"type":"number"}`},
		{`{'204': {}, '201': {content: {application/json: {schema: {type: number}}}}}`, `application/json {"type":"number"}`},
		{`{'2XX': {content: {application/json: {schema: {type: number}}}}}`, `application/json {"type":"number"}`},
		{`{'400': {content: {application/json: {schema: {type: number}}}}}`, `application/json null`},
		{`{default: {content: {application/json: {schema: {type: number, exclusiveMinimum: 0}}}}}`, `application/json null`},
		{`{'200': {content: {text/html: {}}}}`, `text/html {"type":"string"}`},
		{`{'200': {content: {image/png: {}}}}`, `image/png null`},
		{`{'200': {content: {application/xml: {}, application/problem+json: {schema: {type: number}}}}}`,
			`application/problem+json {"type":"number"}`},
		{`{'200': {content: {application/json: {}}}}`, `application/json null`},
	} {
		thing, _ := convert(t, strings.Replace(doc("get", "/", ""), "{'204': {description: done}}", c.responses, 1), Options{})
		a := thing.Actions["do"]
		output, _ := json.Marshal(a.Output.Value())
		if got := a.Forms[0].ResponseType + " " + string(output); got != c.want {
			t.Errorf("%s: got %s, want %s", c.responses, got, c.want)
		}
	}
}

func TestSecurity(t *testing.T) {
	t.Parallel()
	const schemes = `components: {securitySchemes: {
  basic: {type: http, scheme: Basic}, bearer: {type: http, scheme: bearer}, digest: {type: http, scheme: digest},
  mtls: {type: mutualTLS}, nosec_sc: {type: http, scheme: basic},
  key: {type: apiKey, in: query, name: k}, cookie: {type: apiKey, in: cookie, name: c}, nameless: {type: apiKey, in: header},
  oauth: {type: oauth2, flows: {}}, oidc: {type: openIdConnect, openIdConnectUrl: 'https://x'}}}
`
	for in, c := range map[string]struct{ names, scheme, warning string }{
		`[]`:                          {"nosec_sc", "nosec", ""},
		`[{basic: []}]`:               {"basic", "basic", ""},
		`[{bearer: []}]`:              {"bearer", "bearer", ""},
		`[{key: []}]`:                 {"key", "apikey query k", ""},
		`[{cookie: []}]`:              {"cookie", "apikey cookie c", ""},
		`[{basic: [], key: []}]`:      {"basic key", "basic", ""},
		`[{oauth: [a]}]`:              {"oauth", "bearer", "obtain one"},
		`[{oidc: []}]`:                {"oidc", "bearer", "obtain one"},
		`[{oauth: []}, {key: []}]`:    {"key", "apikey query k", ""},
		`[{digest: []}, {oauth: []}]`: {"oauth", "bearer", "obtain one"},
		`[{key: []}, {}]`:             {"nosec_sc", "nosec", ""},
		`[{digest: []}]`:              {"nosec_sc", "nosec", "lmosd does not support"},
		`[{mtls: [], basic: []}]`:     {"nosec_sc", "nosec", "basic and mtls"},
		`[{nameless: []}]`:            {"nosec_sc", "nosec", "does not support"},
		`[{absent: []}]`:              {"nosec_sc", "nosec", "does not support"},
		`[{nosec_sc: []}]`:            {"nosec_sc", "nosec", "does not support"},
	} {
		for _, general := range []bool{true, false} {
			text := doc("get", "/", "security: "+in) + schemes
			if general {
				text = doc("get", "/", "") + "security: " + in + "\n" + schemes
			}
			thing, warnings := convert(t, text, Options{})
			form := thing.Actions["do"].Forms[0]
			names := strings.Fields(c.names)
			s := thing.SecurityDefs[names[0]]
			where := s.In + " " + s.Name
			if s.Scheme != "apikey" {
				where = ""
			}
			if got := strings.TrimSpace(s.Scheme + " " + where); !slices.Equal(form.Security, names) || got != c.scheme {
				t.Errorf("%s: got %v, %s; want %s, %s", in, form.Security, got, c.names, c.scheme)
			}
			if got := strings.Join(warnings, "\n"); !strings.Contains(got, c.warning) || c.warning == "" && got != "" {
				t.Errorf("%s: got %q, want %q", in, got, c.warning)
			}
		}
	}
}

func TestServers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ servers, given, want string }{
		"the first":          {`[{url: 'https://a.example/x/'}, {url: 'https://b.example'}]`, "", "https://a.example/x/do"},
		"an explicit server": {`[{url: 'https://a.example'}]`, "http://[::1]:80/y/", "http://[::1]:80/y/do"},
		"variables": {`[{url: 'https://{h}.example/{v}', variables: {h: {default: a}, v: {default: ''}}}]`, "",
			"https://a.example/do"},
		"an explicit address": {`[{url: /v1}]`, "http://a.example/v1", "http://a.example/v1/do"},
		"a path":              {`[{url: /v1}]`, "", ""},
		"none":                {`[]`, "", ""},
		"a variable too many": {`[{url: 'https://{h}.example'}]`, "", ""},
		"another scheme":      {`[{url: 'ftp://a.example'}]`, "", ""},
		"a secret":            {`[{url: 'https://u:hunter2@a.example'}]`, "", ""},
		"a query":             {`[{url: 'https://a.example?x'}]`, "", ""},
		"an invalid address":  {`[{url: 'https://a.example'}]`, "::", ""},
		"an expanding variable": {`[{url: 'https://a.example/` + strings.Repeat("{v}", 600) + `', variables: {v: {default: ` +
			strings.Repeat("x", 2000) + `}}}]`, "", ""},
	} {
		raw, _, err := Convert([]byte(strings.Replace(doc("get", "/do", ""), "[{url: 'https://api.example/v1/'}]", c.servers, 1)),
			Options{Server: c.given})
		if c.want == "" {
			var v *td.ValidationError
			if !errors.As(err, &v) || !strings.HasPrefix(v.Issues[0].Pointer, "/servers") || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: got %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		thing, _ := td.Parse(raw)
		if got := thing.Actions["do"].Forms[0].Href; got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
	own := "servers: [{url: 'https://own.example'}]"
	for given, want := range map[string]string{"": "https://own.example/do", "https://given.example": "https://given.example/do"} {
		thing, _ := convert(t, doc("get", "/do", own), Options{Server: given})
		if got := thing.Actions["do"].Forms[0].Href; got != want {
			t.Errorf("an operation's own server: got %s, want %s", got, want)
		}
	}
}

func TestInvalidDocuments(t *testing.T) {
	t.Parallel()
	head := "openapi: 3.0.0\ninfo: {title: x}\nservers: [{url: 'http://a'}]\n"
	for name, c := range map[string]struct {
		doc, want         string
		notJSON, tooLarge bool
	}{
		"nothing":         {"", "openapi", false, false},
		"no YAML":         {"a: [", "neither", true, false},
		"no object":       {"[1]", "openapi", false, false},
		"incomplete JSON": {`{"openapi": `, "neither", true, false},

		"Swagger 2":             {`{"swagger": "2.0"}`, "OpenAPI 3", false, false},
		"no version":            {`{"info": {}}`, "/openapi", false, false},
		"version 4":             {`{"openapi": "4.0"}`, "/openapi", false, false},
		"a number as version":   {`openapi: 3.0`, "/openapi", false, false},
		"no operations":         {head + "paths: {}", "no operation", false, false},
		"no paths":              {head, "no operation", false, false},
		"an external reference": {head + "paths: {/a: {$ref: 'other.yaml'}}", "bundle", false, false},
		"a remote reference": {head + "paths: {/a: {get: {responses: {'200': {$ref: 'http://127.0.0.1:1/x'}}}}}", "bundle",
			false, false},
		"a file": {head + "components: {schemas: {A: {$ref: 'file:///etc/passwd'}}}", "bundle", false, false},
		"an unresolvable reference": {head + "components: {schemas: {A: {$ref: '#/components/schemas/B'}}}", "cannot be read", false,
			false},
		"a wrong kind": {head + "paths: 3", "/paths: cannot be read: expected an object, got a number", false, false},
		"a null operation": {head + "paths: {/a: {get: {parameters: [null], responses: {'200': null}}}}", "cannot be read",
			false, false},
		"too large": {strings.Repeat(" ", MaxDocument+1), "4194304", false, true},
		"too deep": {`{"openapi":"3.0.0","x":` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + "}",
			"too deep", false, true},
		"too deep for YAML":  {"openapi: 3.0.0\nx: " + strings.Repeat("[", 500) + strings.Repeat("]", 500), "values", true, false},
		"an infinite number": {head + "x: .inf", "cannot be read", false, false},
		"an alias of itself": {"openapi: &a\n  b: *a", "neither", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw, warnings, err := Convert([]byte(c.doc), Options{})
			var v *td.ValidationError
			if !errors.As(err, &v) || raw != nil || warnings != nil {
				t.Fatalf("got %s, %v, want a *td.ValidationError", raw, err)
			}
			if !strings.Contains(err.Error(), c.want) || v.NotJSON != c.notJSON || v.TooLarge != c.tooLarge || len(err.Error()) > 600 {
				t.Errorf("got %+v, want %q", v, c.want)
			}
		})
	}
}

// TestExpansionIsLimited rejects small documents whose expansion is large.
func TestExpansionIsLimited(t *testing.T) {
	t.Parallel()
	var laughs strings.Builder
	laughs.WriteString("openapi: 3.0.0\na0: &a0 [1,1,1,1,1,1,1,1,1,1]\n")
	for i := range 12 {
		fmt.Fprintf(&laughs, "a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i), 10), ","))
	}
	wide := `{"openapi":"3.0.0","x":` + strings.Repeat(`{"a":`, 90) + `"` + strings.Repeat("y",
		3<<20) + `"` + strings.Repeat("}", 91)
	for name, doc := range map[string]string{"aliases": laughs.String(), "deep and wide": wide} {
		_, _, err := Convert([]byte(doc), Options{})
		var v *td.ValidationError
		if !errors.As(err, &v) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	// Each schema has ten references to the next: the expansion has 10^9 schemas.
	var refs strings.Builder
	for i := range 9 {
		fmt.Fprintf(&refs, "    s%d: {type: object, properties: {", i)
		for j := range 10 {
			fmt.Fprintf(&refs, "p%d: {$ref: '#/components/schemas/s%d'},", j, i+1)
		}
		refs.WriteString("}}\n")
	}
	doc := doc("post", "/", "requestBody: {content: {application/json: {schema: {$ref: '#/components/schemas/s0'}}}}") +
		"components:\n  schemas:\n    s9: {type: string}\n" + refs.String()
	thing, warnings := convert(t, doc, Options{})
	if got := thing.Actions["do"].Input; got.Type() != "object" || len(got.Properties()) != 10 ||
		!strings.Contains(warnings[0], "level 3") {
		t.Errorf("got %d bytes, %q", len(thing.Raw), warnings)
	}
}

// large returns a document of n operations with schemas and descriptions.
func large(n int) string {
	var b strings.Builder
	b.WriteString(`{"openapi":"3.0.0","info":{"title":"Large","version":"1"},"servers":[{"url":"https://large.example"}],"paths":{`)
	for i := range n {
		fmt.Fprintf(&b, `"/r%d/{id}":{"post":{"operationId":"op%d","summary":"Operation %d","description":"%s",`+
			`"parameters":[{"name":"id","in":"path","required":true,"schema":{"type":"string"}}],`+
			`"requestBody":{"content":{"application/json":{"schema":{"$ref":"#/components/schemas/S"}}}},"responses":{}}},`,
			i, i, i, strings.Repeat("words ", 20))
	}
	b.WriteString(`"/":{}},"components":{"schemas":{"S":{"type":"object","properties":{`)
	for i := range 10 {
		fmt.Fprintf(&b, `"m%d":{"type":"object","description":"%s","properties":{"a":{"type":"string","description":"text"},`+
			`"b":{"type":"array","items":{"type":"object","properties":{"c":{"type":"integer"}}}}}},`, i, strings.Repeat("more ", 30))
	}
	return b.String() + `"last":{}}}}}}`
}

func TestLargeAPIIsTruncated(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{3: "", 72: "level 3", 400: "left out, except for their types"} {
		raw, warnings, err := Convert([]byte(large(n)), Options{})
		if err != nil {
			t.Fatalf("%d operations: %v", n, err)
		}
		thing, err := td.Parse(raw)
		if err != nil || len(thing.Actions) != n {
			t.Fatalf("%d operations: %v", n, err)
		}
		if got := strings.Join(warnings, "\n"); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%d operations: got %q, want %q", n, got, want)
		}
		if thing.Actions["op0"].Input.Type() != "object" {
			t.Errorf("%d operations: the type of the input is lost", n)
		}
	}
	for _, n := range []int{600, maxOperations + 1} {
		var v *td.ValidationError
		if _, _, err := Convert([]byte(large(n)), Options{}); !errors.As(err, &v) || !v.TooLarge || !strings.Contains(err.Error(),
			fmt.Sprint(n)) {
			t.Errorf("%d operations: got %v", n, err)
		}
	}
}

func TestManyWarnings(t *testing.T) {
	t.Parallel()
	var parameters []string
	for i := range maxParameters + 1 {
		parameters = append(parameters, fmt.Sprintf("{name: h%d, in: header}", i))
	}
	parameters = append(parameters, "{name: "+strings.Repeat("q", maxName+1)+", in: query}")
	_, warnings := convert(t, doc("get", "/", "parameters: ["+strings.Join(parameters, ",")+"]"), Options{})
	if len(warnings) != maxWarnings+1 || warnings[maxWarnings] != "and 101 more" || !strings.Contains(warnings[0], "more than 200") {
		t.Errorf("got %d warnings, the last %q", len(warnings), warnings[len(warnings)-1])
	}
	var queries []string
	for i := range maxVariables + 5 {
		queries = append(queries, fmt.Sprintf("{name: q%d, in: query}", i))
	}
	thing, _ := convert(t, doc("get", "/", "parameters: ["+strings.Join(queries, ",")+"]"), Options{})
	if n := len(thing.Actions["do"].URIVariables); n != maxVariables {
		t.Errorf("got %d variables", n)
	}
}

func TestYAMLIsParsed(t *testing.T) {
	t.Parallel()
	thing, _ := convert(t, "\ufeff"+`
x-common: &common {type: string, maxLength: 3}
openapi: 3.0.0
info: {title: On, version: 1.0}
servers: [{url: 'http://a.example'}]
paths:
  /a:
    get:
      operationId: yes
      parameters:
        - {name: n, in: query, schema: {<<: *common, default: 2024-01-02}}
        - {name: o, in: query, schema: {type: string, default: 2024-01-02T03:04:05Z}}
      responses:
        200:
          description: ok
          content: {application/json: {schema: *common}}
`, Options{})
	a := thing.Actions["yes"]
	if a == nil {
		t.Fatalf("got %v", slices.Collect(maps.Keys(thing.Actions)))
	}
	n, _ := json.Marshal(a.URIVariables["n"].Value())
	o, _ := json.Marshal(a.URIVariables["o"].Value())
	if string(n) != `{"default":"2024-01-02","maxLength":3,"type":"string"}` || !bytes.Contains(o,
		[]byte("2024-01-02T03:04:05Z")) || a.Output.Type() != "string" || thing.Version != "1" {
		t.Errorf("got %s, %s, %s, version %q", n, o, a.Output.Type(), thing.Version)
	}
}

func TestFixedHeaders(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"{name: V, in: header, required: true, schema: {enum: ['2']}}":            "V: 2",
		"{name: V, in: header, required: true, schema: {default: '3'}}":           "V: 3",
		"{name: V, in: header, required: true, schema: {enum: ['2', '3']}}":       "",
		"{name: V, in: header, schema: {enum: ['2']}}":                            "",
		"{name: V, in: header, required: true, schema: {default: 3}}":             "",
		"{name: V, in: header, required: true, schema: {default: \"a\\r\\nb\"}}":  "",
		"{name: Content-Type, in: header, required: true, schema: {enum: ['2']}}": "",
	} {
		thing, warnings := convert(t, doc("get", "/", "parameters: ["+in+"]"), Options{})
		got := ""
		for _, h := range thing.Actions["do"].Forms[0].HTTPHeaders {
			got += h.Name + ": " + h.Value
		}
		if got != want || (len(warnings) == 0) != (want != "" || strings.Contains(in, "Content-Type")) {
			t.Errorf("%s: got %q, %q", in, got, warnings)
		}
	}
}

func TestReferencesWithoutEnd(t *testing.T) {
	t.Parallel()
	for name, doc := range map[string]string{
		"callbacks without end": `{"openapi":"3.0.0","components":{"callbacks":{"c":{"$ref":"#/components/callbacks/c"}}}}`,
		"pointers into values":  `{"openapi":"3.0.0","components":{"schemas":{"a":{"$ref":"#/info/title"}}},"info":{"title":"x"}}`,
		"an empty reference":    `{"openapi":"3.0.0","components":{"schemas":{"a":{"$ref":""},"b":{"$ref":"#"},"c":{"$ref":"#/"}}}}`,
	} {
		var v *td.ValidationError
		if _, _, err := Convert([]byte(doc), Options{}); !errors.As(err, &v) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func FuzzConvert(f *testing.F) {
	for _, name := range []string{"nursery.yaml", "weather.json"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, "")
	}
	f.Add([]byte(doc("post", "/{a}",
		"parameters: [{name: a, in: path, schema: {type: [string, 'null']}}]\n"+
			"requestBody: {content: {'*/*': {schema: {nullable: true, allOf: [{type: object}]}}}}")), "http://a")
	f.Add([]byte(`{"openapi":"3.1.0","components":{"schemas":{"a":{"$ref":"#/components/schemas/a"}}}}`), "https://b/{x}")
	f.Fuzz(func(t *testing.T, doc []byte, server string) {
		raw, warnings, err := Convert(doc, Options{Server: server})
		if err != nil {
			var v *td.ValidationError
			if !errors.As(err, &v) || errors.Is(err, errInvalidResult) || len(v.Issues) == 0 {
				t.Fatalf("got %v", err)
			}
			return
		}
		thing, err := td.Parse(raw)
		if err != nil || len(thing.Actions) == 0 || thing.Title == "" {
			t.Fatalf("%v: %s", err, raw)
		}
		if len(warnings) > maxWarnings+2 {
			t.Fatalf("%d warnings", len(warnings))
		}
		for name, a := range thing.Actions {
			if scheme := a.Forms[0].Scheme(); scheme != "http" && scheme != "https" || a.Synchronous == nil {
				t.Fatalf("%s: %s", name, a.Forms[0].Href)
			}
		}
		name := slices.Min(slices.Collect(maps.Keys(thing.Actions)))
		members := append([]string{"a"}, thing.Actions[name].InputWithVariables().Properties()...)
		for i, member := range members[:min(3, len(members))] {
			in := Input{Action: name, Name: member, Type: jsonTypes[i%len(jsonTypes)], Required: i%2 == 0}
			out, _, err := Convert(doc, Options{Server: server, Inputs: []Input{in}})
			if err == nil {
				_, err = td.Parse(out)
			} else if errors.As(err, new(*InputError)) {
				err = nil
			}
			if v := new(td.ValidationError); err != nil && (errors.Is(err, errInvalidResult) || !errors.As(err, &v) || !v.TooLarge) {
				t.Fatalf("%+v: %v", in, err)
			}
		}
	})
}

func BenchmarkConvert(b *testing.B) {
	doc, err := os.ReadFile(filepath.Join("testdata", "nursery.yaml"))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := Convert(doc, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
