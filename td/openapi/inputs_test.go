package openapi

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/td"
)

const loose = `openapi: 3.0.3
info: {title: Shop, version: '1'}
servers: [{url: 'http://a.example'}]
paths:
  /pets/{petId}/{kind}:
    get:
      operationId: getPet
      parameters:
      - {name: kind, in: path, required: true, schema: {type: string, enum: [cat, dog]}}
      - {name: limit, in: query}
      - {name: page, in: query, required: true, schema: {type: integer}}
      - {name: weight, in: query, schema: {type: number, minimum: 1}}
      - {name: 'f[a]', in: query, schema: {}}
      - {name: tags, in: query, schema: {type: array, items: {type: string}}}
      - {name: maybe, in: query, schema: {type: string, nullable: true}}
      - {name: X-Trace, in: header, schema: {type: string}}
      responses: {'200': {description: ok}}
  /orders:
    get:
      operationId: orders
      parameters: [{name: limit, in: query, schema: {type: string}}]
      responses: {'200': {description: ok}}
    post:
      operationId: order
      requestBody: {content: {application/json: {schema: {type: object, required: [pet], properties: {pet: {type: string}, count: {}, size: {type: number}}}}}}
      responses: {'200': {description: ok}}
  /open: {post: {operationId: open, requestBody: {content: {application/json: {}}}, responses: {'200': {description: ok}}}}
  /texts:
    post:
      operationId: texts
      requestBody: {content: {application/json: {schema: {type: object, additionalProperties: {type: string, maxLength: 3}}}}}
      responses: {'200': {description: ok}}
  /closed:
    post:
      operationId: closed
      requestBody: {content: {application/json: {schema: {type: object, properties: {a: {type: string}}, additionalProperties: false}}}}
      responses: {'200': {description: ok}}
  /either:
    post:
      operationId: either
      requestBody: {content: {application/json: {schema: {oneOf: [{type: object, properties: {a: {type: string}}}, {type: object, properties: {b: {type: string}}}]}}}}
      responses: {'200': {description: ok}}
  /word: {post: {operationId: word, requestBody: {content: {text/plain: {}}}, responses: {'200': {description: ok}}}}
`

// A declared input refines what the document has, or completes a body that allows it; anything else is an error with the reason.
func TestDeclaredInputs(t *testing.T) {
	t.Parallel()
	in := func(action, name, kind string) Input {
		return Input{Action: action, Name: name, Type: kind, Required: true}
	}
	optional := func(i Input) Input { i.Required = false; return i }
	for name, c := range map[string]struct {
		in    Input
		where string // action and member whose schema is wanted
		want  string // the schema, or the reason
		known string // of an error
		kind  string
	}{
		"an untyped parameter":       {in("getPet", "limit", "integer"), "getPet limit", `{"lmosd:required":true,"type":"integer"} required`, "", ""},
		"optional":                   {optional(in("getPet", "limit", "integer")), "getPet limit", `{"type":"integer"}`, "", ""},
		"with a default":             {Input{Action: "getPet", Name: "limit", Type: "integer", Default: 3.0}, "getPet limit", `{"default":3,"type":"integer"}`, "", ""},
		"undeclared in the path":     {in("getPet", "petId", "integer"), "getPet petId", `{"type":"integer"} required`, "", ""},
		"a schema without type":      {optional(in("getPet", "f[a]", "boolean")), "getPet f%5Ba%5D", `{"title":"f[a]","type":"boolean"}`, "", ""},
		"by its name in the Thing":   {optional(in("getPet", "f%5Ba%5D", "boolean")), "getPet f%5Ba%5D", `{"title":"f[a]","type":"boolean"}`, "", ""},
		"narrower":                   {optional(in("getPet", "weight", "integer")), "getPet weight", `{"minimum":1,"type":"integer"}`, "", ""},
		"not null":                   {optional(in("getPet", "maybe", "string")), "getPet maybe", `{"oneOf":[{"type":"string"},{"type":"null"}],"type":"string"}`, "", ""},
		"a list":                     {optional(in("getPet", "tags", "array")), "getPet tags", `{"oneOf":[{"type":"string"},{"items":{"type":"string"},"type":"array"}]}`, "", ""},
		"the same":                   {in("getPet", "kind", "string"), "getPet kind", `{"enum":["cat","dog"],"type":"string"} required`, "", ""},
		"another type":               {in("getPet", "page", "string"), "", "the document has page as integer, and not as string", "", "integer"},
		"a wider type":               {in("getPet", "page", "number"), "", "the document has page as integer, and not as number", "", "integer"},
		"of several types":           {in("getPet", "tags", "boolean"), "", "the document has tags as array or string, and not as boolean", "", ""},
		"the document requires it":   {optional(in("getPet", "page", "integer")), "", "the document requires page", "", "integer"},
		"the path requires it":       {optional(in("getPet", "petId", "integer")), "", "the document requires petId", "", "integer"},
		"a parameter as object":      {in("getPet", "limit", "object"), "", "limit is a parameter with a single value", "", ""},
		"a header":                   {in("getPet", "X-Trace", "string"), "", "X-Trace is a header parameter that is not sent", "", ""},
		"unknown, and no body":       {in("getPet", "limt", "integer"), "", "the action has no parameter limt and no JSON body", "f%5Ba%5D kind limit maybe page petId tags weight", ""},
		"an untyped member":          {in("order", "count", "integer"), "order count", `{"type":"integer"} required`, "", ""},
		"a member as object":         {optional(in("order", "count", "object")), "order count", `{"type":"object"}`, "", ""},
		"a required member":          {in("order", "pet", "string"), "order pet", `{"type":"string"} required`, "", ""},
		"a member of another type":   {in("order", "size", "string"), "", "the document has size as number, and not as string", "count first pet size", "number"},
		"a new member":               {in("order", "note", "string"), "order note", `{"type":"string"} required`, "", ""},
		"a body without a schema":    {in("open", "note", "array"), "open note", `{"type":"array"} required`, "", ""},
		"of a type that is allowed":  {in("texts", "note", "string"), "texts note", `{"maxLength":3,"type":"string"} required`, "", ""},
		"of one that is not allowed": {in("texts", "note", "integer"), "", "the document has note as string, and not as integer", "", "string"},
		"a closed body":              {in("closed", "b", "string"), "", "the body allows no other members than those in the document", "a", ""},
		"alternatives":               {in("either", "c", "string"), "", "the body has alternatives or parts, to which no member can be added", "", ""},
		"a text":                     {in("word", "c", "string"), "", "the body is of type string, which has no members", "", ""},
		"all: one fits":              {optional(in("", "limit", "integer")), "getPet limit", `{"type":"integer"}`, "", ""},
		"all: those with the name":   {optional(in("", "limit", "string")), "orders limit", `{"type":"string"}`, "", ""},
		"all: no other body":         {in("", "pet", "string"), "open pet", "no member", "", ""},
		"all: bodies":                {in("", "note", "string"), "open note", `{"type":"string"} required`, "", ""},
		"all: another body":          {in("", "note", "string"), "order note", `{"type":"string"} required`, "", ""},
		"all: none of the type":      {in("", "limit", "array"), "", "the document has limit as string, and not as array", "", "string"},
	} {
		out, warnings, err := Convert([]byte(loose), Options{Inputs: []Input{{Action: "order", Name: "first", Type: "string"}, c.in}})
		if c.where == "" {
			var e *InputError
			if !errors.As(err, &e) || e.Index != 1 || e.Reason != c.want || e.Type != c.kind || c.known != "" && !strings.Contains(strings.Join(e.Known, " "), c.known) {
				t.Errorf("%s: %+v, %v", name, e, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		thing, err := td.Parse(out)
		if err != nil {
			t.Fatal(err)
		}
		action, member, _ := strings.Cut(c.where, " ")
		all := thing.Actions[action].InputWithVariables()
		got := "no member"
		if s := all.Property(member); s != nil {
			raw, _ := json.Marshal(s.Value())
			if got = string(raw); strings.Contains(" "+strings.Join(all.Required(), " ")+" ", " "+member+" ") {
				got += " required"
			}
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if warned := strings.Contains(strings.Join(warnings, "\n"), "GET /orders: the input limit does not apply: the document has limit as string"); warned != (name == "all: one fits") {
			t.Errorf("%s: %q", name, warnings)
		}
	}
	_, _, err := Convert([]byte(strings.Split(loose, "  /orders:")[0]), Options{Inputs: []Input{in("", "note", "string")}})
	if e := (*InputError)(nil); !errors.As(err, &e) || e.Reason != "no action has a parameter note, or a JSON body that allows it" {
		t.Errorf("without a body: %v", err)
	}
}
