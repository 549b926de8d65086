package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

const shopYAML = `openapi: 3.0.3
info: {title: Shop, version: '1'}
servers: [{url: 'http://ADDRESS/v1'}]
paths:
  /pets/{petId}:
    parameters: [{name: petId, in: path, required: true, schema: {type: integer}}]
    get:
      operationId: getPet
      summary: One pet
      parameters:
      - {name: limit, in: query, required: true, schema: {type: integer, minimum: 1, maximum: 100}}
      - {name: deep, in: query, schema: {type: boolean}}
      - {name: status, in: query, schema: {type: string, enum: [available, sold]}}
      - {name: tags, in: query, schema: {type: array, items: {type: string}}}
      - {name: ids, in: query, explode: false, schema: {type: array, items: {type: integer}}}
      - {name: weight, in: query, schema: {type: number}}
      responses: {'200': {description: ok, content: {application/json: {schema: {type: string}}}}}
    put:
      operationId: rename
      requestBody: {required: true, content: {application/json: {schema: {type: string}}}}
      responses: {'200': {description: ok, content: {application/json: {schema: {type: string}}}}}
`

// TestOpenAPIParameters calls a web server that an OpenAPI document describes: it answers with the line that it was asked.
func TestOpenAPIParameters(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	x = x.at(x.node("n"))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`"` + r.Method + " " + r.URL.RequestURI() + `"`))
	}))
	t.Cleanup(server.Close)
	x.file("shop.yaml", strings.ReplaceAll(shopYAML, "ADDRESS", strings.TrimPrefix(server.URL, "http://")))
	contains(t, x.ok("expose", "openapi:shop.yaml"), "exposed shop@")
	contains(t, x.ok("show", "shop"), "action\tgetPet limit=INTEGER petId=INTEGER [deep=BOOLEAN] [ids=INTEGER,…] [status=available|sold] [tags=…,…] [weight=NUMBER]",
		"action\trename value=… petId=INTEGER")
	for line, want := range map[string]string{
		"getPet petId=7 limit=10":                                   "GET /v1/pets/7?limit=10",
		"getPet petId=7 limit=10 deep=true status=sold weight=1.50": "GET /v1/pets/7?limit=10&deep=true&status=sold&weight=1.50",
		"getPet petId=7 limit=10 tags=a tags='b c' ids=1 ids=2":     "GET /v1/pets/7?limit=10&tags=a&tags=b%20c&ids=1,2",
		`getPet petId=7 limit=10 tags:='["a"]' ids=1`:               "GET /v1/pets/7?limit=10&tags=a&ids=1",
		`getPet ':={"petId": 8, "limit": 1}'`:                       "GET /v1/pets/8?limit=1",
		"rename petId=7 value=Rex":                                  "PUT /v1/pets/7",
	} {
		if r := x.typed("lmosd call shop " + line); r.code != 0 || r.out != want+"\n" {
			t.Errorf("%s: exit code %d: %s%s, want %s", line, r.code, r.out, r.errors, want)
		}
	}
	for line, want := range map[string]string{
		"getPet":                             "lmosd call shop getPet limit=1 petId=3",
		"getPet petId=7":                     "/limit: is required",
		"getPet limit=7":                     "/petId: is required",
		"getPet petId=x limit=1":             "petId is an integer, and \"x\" is none",
		"getPet petId=7 limit=0":             "/limit: must be at least 1",
		"getPet petId=7 limit=1 status=lost": "/status",
		"getPet petId=7 limit=1 ids=a":       "ids expected",
		"rename petId=7":                     "expected an input",
	} {
		if r := x.typed("lmosd call shop " + line); r.code == 0 || !strings.Contains(r.errors, want) {
			t.Errorf("%s: exit code %d: %s%s, want %s", line, r.code, r.out, r.errors, want)
		}
	}
}
