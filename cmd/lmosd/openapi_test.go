package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
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

const looseYAML = `openapi: 3.0.3
info: {title: Kiosk, version: '1'}
servers: [{url: 'http://ADDRESS/v1'}]
paths:
  /papers/{id}:
    get:
      operationId: getPaper
      parameters: [{name: limit, in: query}, {name: lang, in: query, schema: {type: string}}]
      responses: {'200': {description: ok, content: {application/json: {schema: {type: string}}}}}
  /orders:
    post:
      operationId: order
      requestBody: {required: true, content: {application/json: {schema: {type: object, properties: {paper: {}}}}}}
      responses: {'200': {description: ok, content: {application/json: {schema: {type: string}}}}}
`

// The declared inputs of an OpenAPI document are shown and checked, and reach the server in the address or in the body.
func TestOpenAPIInputs(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	x = x.at(x.node("n"))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(strings.TrimSpace(r.Method + " " + r.URL.RequestURI() + " " + string(body)))
	}))
	t.Cleanup(server.Close)
	x.file("kiosk.yaml", strings.ReplaceAll(looseYAML, "ADDRESS", strings.TrimPrefix(server.URL, "http://")))
	inputs := func(all ...string) (args []string) {
		for _, in := range all {
			args = append(args, "--input", in)
		}
		return append(args, "openapi:kiosk.yaml")
	}
	x.ok(append([]string{"expose"}, inputs("getPaper.limit:integer=10", "id:integer", "paper:string", "order.copies:integer", "note:string?")...)...)
	contains(t, x.ok("show", "kiosk"), "action\tgetPaper id=INTEGER [lang=…] [limit=INTEGER]\n", "input\tgetPaper id · integer · required\n",
		"input\tgetPaper limit · integer · default 10\n", "action\torder paper=… copies=INTEGER [note=…]\n", "input\torder copies · integer · required\n")
	for line, want := range map[string]string{
		"getPaper id=7 limit=3":                       "GET /v1/papers/7?limit=3",
		"getPaper id=7":                               "GET /v1/papers/7",
		"order paper=times copies=2":                  `POST /v1/orders {"paper":"times","copies":2}`,
		"order paper=times copies=2 note='at 7, too'": `POST /v1/orders {"paper":"times","copies":2,"note":"at 7, too"}`,
	} {
		if r := x.typed("lmosd call kiosk " + line); r.code != 0 || r.out != want+"\n" {
			t.Errorf("%s: exit code %d: %s%s, want %s", line, r.code, r.out, r.errors, want)
		}
	}
	for line, want := range map[string]string{
		"getPaper id=seven":                `id is an integer, and "seven" is none`,
		"getPaper id=7 limit=many":         `limit is an integer, and "many" is none`,
		"order paper=times copies=two":     `copies is an integer, and "two" is none`,
		"order paper=times":                `"copies" is missing`,
		`order ':={"paper":1,"copies":2}'`: "/paper: ",
	} {
		if r := x.typed("lmosd call kiosk " + line); r.code == 0 || !strings.Contains(r.errors, want) {
			t.Errorf("%s: exit code %d: %s%s, want %s", line, r.code, r.out, r.errors, want)
		}
	}
	for in, want := range map[string][]string{
		"getPaper.limt:integer": {"the action has no parameter limt and no JSON body", `did you mean "getPaper.limit:integer"?`},
		"getPaper.lang:integer": {"the document has lang as string, and not as integer", `did you mean "getPaper.lang:string"?`},
		"getPaper.id:integer?":  {"the document requires id", `did you mean "getPaper.id:integer"?`},
		"getPapers.id:integer":  {"no action is called getPapers: the actions are getPaper, order", `did you mean "getPaper.id:integer"?`},
		"limit:object":          {"limit is a parameter with a single value", "lmosd help expose"},
		"getPaper.other:string": {"no JSON body", "its parameters and members are id, lang, limit", "lmosd help expose"},
		"x:float":               {"expected NAME:TYPE with one of the types"},
	} {
		said := x.fails(cli.ExitUsage, append([]string{"expose", "--name", "kiosk"}, inputs("paper:string", in)...)...)
		contains(t, said, want...)
		if hint := hinted.FindStringSubmatch(said); hint != nil {
			if r := x.typed(hint[1]); r.code != 0 {
				t.Errorf("%s: the hint %s has exit code %d: %s", in, hint[1], r.code, r.errors)
			}
		} else if in != "x:float" {
			t.Errorf("%s: no hint with a command: %s", in, said)
		}
	}
	// The configuration has the same inputs.
	said := x.fails(cli.ExitUsage, "run", "--profile", "test", "--data-dir", x.home+"/m", "-c", x.file("lmosd.yaml",
		"agents: [\"openapi:kiosk.yaml --input getPaper.limt:integer\"]\n"))
	contains(t, said, "agents[0]", "the action has no parameter limt", `did you mean "getPaper.limit:integer"?`)
}
