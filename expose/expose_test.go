package expose

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/openapi"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// write puts a file into a folder of the test and returns its path.
func write(t *testing.T, name, content string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t *testing.T, s Spec) *Agent {
	t.Helper()
	a, err := Open(t.Context(), s, nil, nil)
	if err != nil {
		t.Fatalf("%s: %v", s.Target, err)
	}
	t.Cleanup(a.Close)
	return a
}

// openError returns the error of an invalid spec.
func openError(t *testing.T, s Spec) *interact.Error {
	t.Helper()
	a, err := Open(t.Context(), s, nil, nil)
	var e *interact.Error
	if !errors.As(err, &e) || e.Hint == "" && e.Next == nil {
		t.Fatalf("%+v gives %v, %v; want an *interact.Error with a hint", s, a, err)
	}
	return e
}

// complete returns the TD of an agent as a node publishes it.
func complete(t *testing.T, a *Agent) *td.Thing {
	t.Helper()
	raw := a.TD
	if a.Thing != nil {
		var err error
		if raw, err = td.Draft(raw); err != nil {
			t.Fatal(err)
		}
	}
	key := didtest.Key(1)
	thing, err := td.Complete(raw, key.DID())
	if err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	return thing
}

func capabilities(thing *td.Thing) (ids []string) {
	for _, c := range thing.Capabilities {
		ids = append(ids, c.ID)
	}
	return ids
}

func TestCommand(t *testing.T) {
	t.Parallel()
	a := open(t, Spec{Target: `exec:printf '%s %s %s' "$LMOSD_AGENT" "$LMOSD_ACTION" "$(cat)"`, Name: "Weather", Description: "Reports <it>.",
		Capabilities: []string{"urn:x:weather", "urn:x:geo"}, Actions: []string{"ask", "report"}})
	thing := complete(t, a)
	if thing.Title != "Weather" || thing.Name() != "weather" || thing.Description != "Reports <it>." || len(thing.Actions) != 2 {
		t.Errorf("the description is %s", thing.Raw)
	}
	if got := capabilities(thing); !slices.Equal(got, []string{"urn:x:weather", "urn:x:geo"}) {
		t.Errorf("capabilities %v", got)
	}
	r, err := interact.Call(t.Context(), a.Thing, &interact.Message{Type: interact.InvokeAction, Thing: thing.ID, Name: "report",
		Data: []byte(`"Bonn"`)})
	if err != nil || string(r.Data) != `"Weather report Bonn"` {
		t.Errorf("got %v, %v", r, err)
	}
}

func TestCommandWithoutSettings(t *testing.T) {
	t.Parallel()
	script := write(t, "weather.sh", "#!/bin/sh\nprintf one; printf '\\0'; printf two\n", 0o700)
	a := open(t, Spec{Target: "exec:./weather.sh --fast", Dir: filepath.Dir(script), Delimiter: `\0`})
	thing := complete(t, a)
	if thing.Title != "weather" || thing.Actions["run"] == nil || thing.Actions["run"].Forms[0].Href != "lmos:/actions/run" {
		t.Errorf("the description is %s", thing.Raw)
	}
	var parts []string
	for r, err := range a.Thing.Do(t.Context(), &interact.Message{Type: interact.InvokeAction, Thing: thing.ID, Name: "run"}) {
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, r.Status.String()+" "+string(r.Data))
	}
	if want := []string{`running "one\u0000"`, `running "two"`, "completed "}; !slices.Equal(parts, want) {
		t.Errorf("the parts are %q, want %q", parts, want)
	}
}

func TestClosedCommand(t *testing.T) {
	t.Parallel()
	a, err := Open(t.Context(), Spec{Target: "exec:cat"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	_, err = interact.Call(t.Context(), a.Thing, &interact.Message{Type: interact.InvokeAction, Name: "run"})
	if interact.AsError(err).Code != interact.Unreachable {
		t.Errorf("a closed agent returned %v", err)
	}
	new(Agent).Close() // without a program
}

const petsDocument = `{"openapi": "3.1.0", "info": {"title": "Pets", "version": "1"},
	"servers": [{"url": "SERVER"}],
	"paths": {"/pets/{id}": {"get": {"operationId": "getPet",
		"parameters": [{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}],
		"responses": {"200": {"description": "ok", "content": {"application/json": {"schema": {"type": "object"}}}}}}}}}`

func pets(server string) string { return strings.Replace(petsDocument, "SERVER", server, 1) }

// petsWithoutServer is petsDocument without a server.
var petsWithoutServer = strings.Replace(petsDocument, `"servers": [{"url": "SERVER"}],`, "", 1)

func TestOpenAPI(t *testing.T) {
	t.Parallel()
	file := write(t, "pets.json", pets("http://127.0.0.1:9/v1"), 0o600)
	thing := complete(t, open(t, Spec{Target: "openapi:" + file, Name: "Zoo", Description: "Animals.", Capabilities: []string{"urn:x:pets"}}))
	if thing.Title != "Zoo" || thing.Description != "Animals." || !slices.Equal(capabilities(thing), []string{"urn:x:pets"}) {
		t.Errorf("the description is %s", thing.Raw)
	}
	if href := thing.Actions["getPet"].Forms[0].Href; href != "http://127.0.0.1:9/v1/pets/{id}" {
		t.Errorf("the form is %s", href)
	}
	thing = complete(t, open(t, Spec{Target: "openapi:" + file, Server: "http://127.0.0.1:8/v2"}))
	if href := thing.Actions["getPet"].Forms[0].Href; thing.Title != "Pets" || href != "http://127.0.0.1:8/v2/pets/{id}" {
		t.Errorf("%s has the form %s", thing.Title, href)
	}
}

// site serves documents by path.
func site(t *testing.T, documents map[string]string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := documents[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(strings.ReplaceAll(text, "HERE", "http://"+r.Host)))
	}))
	t.Cleanup(s.Close)
	return s.URL
}

const lamp = `{"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "Lamp", "securityDefinitions": {"n": {"scheme": "nosec"}},
	"security": "n", "actions": {"toggle": {"forms": [{"href": "HERE/toggle"}]}}}`

func TestWebServer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		documents   map[string]string
		path        string
		title, href string // of the first form, below the site
	}{
		"a TD at the URL":                {map[string]string{"/td": lamp, "/.well-known/wot": "{}"}, "/td", "Lamp", "/toggle"},
		"a TD at its well-known path":    {map[string]string{"/": "<html>", "/.well-known/wot": lamp}, "/some/page", "Lamp", "/toggle"},
		"OpenAPI at the URL":             {map[string]string{"/api": pets("https://pets.example/v1")}, "/api", "Pets", ""},
		"OpenAPI at a common path":       {map[string]string{"/openapi.json": pets("HERE/v1")}, "", "Pets", "/v1/pets/{id}"},
		"a server without a host":        {map[string]string{"/docs/openapi.json": pets("/v3")}, "/docs/openapi.json", "Pets", "/v3/pets/{id}"},
		"a server relative to its place": {map[string]string{"/docs/openapi.json": pets("v3")}, "/docs/openapi.json", "Pets", "/docs/v3/pets/{id}"},
		"no server at all":               {map[string]string{"/openapi.json": petsWithoutServer}, "/", "Pets", "/pets/{id}"},
		"OpenAPI in YAML": {map[string]string{"/openapi.yaml": "openapi: 3.0.3\ninfo: {title: Pets, version: '1'}\npaths:\n" +
			"  /pets/{id}: {get: {operationId: getPet, responses: {'200': {description: ok}}}}\n"}, "/", "Pets", "/pets/{id}"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := site(t, test.documents)
			a := open(t, Spec{Target: url + test.path})
			thing := complete(t, a)
			if a.Thing != nil || thing.Title != test.title {
				t.Errorf("the description is %s", thing.Raw)
			}
			for _, action := range thing.Actions {
				if want := url + test.href; test.href != "" && action.Forms[0].Href != want {
					t.Errorf("the form is %s, want %s", action.Forms[0].Href, want)
				}
			}
		})
	}
}

func TestFile(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"lamp.td.json", "odd:name.json"} {
		a := open(t, Spec{Target: write(t, name, lamp, 0o600)})
		if string(a.TD) != lamp || a.Thing != nil {
			t.Errorf("the description is %s", a.TD)
		}
	}
}

func TestInvalidTargets(t *testing.T) {
	t.Parallel()
	url := site(t, map[string]string{"/": "hello", "/td": lamp, "/big": strings.Repeat(" ", openapi.MaxDocument+1)})
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte("{"))
	}))
	t.Cleanup(broken.Close)
	script := write(t, "agent.py", "#!/usr/bin/python3\n", 0o600)
	file := write(t, "lamp.td.json", lamp, 0o600)
	noTD := write(t, "no.json", `{"title": 1}`, 0o600)
	yaml := site(t, map[string]string{"/openapi.yaml": "openapi: 3.0.3\ninfo: {title: Pets, version: '1'}\nservers: [{url: /v1}]\n" +
		"paths: {/x: {get: {responses: {}}}}\n"})
	for name, test := range map[string]struct {
		spec Spec
		code interact.Code
		text string
	}{
		"no target":                        {Spec{}, interact.Usage, "the target is missing"},
		"no command":                       {Spec{Target: "exec: "}, interact.Usage, "requires a command"},
		"a missing script":                 {Spec{Target: "exec:./weather.sh", Dir: t.TempDir()}, interact.ConfigInvalid, "does not exist"},
		"a script without an execute bit":  {Spec{Target: "exec:" + script + " --fast"}, interact.ConfigInvalid, "is not executable"},
		"a folder that is a file":          {Spec{Target: "exec:cat", Dir: file}, interact.ConfigInvalid, "expected a directory"},
		"unknown bridge":                   {Spec{Target: "mcp:./server"}, interact.Usage, "mcp: is not supported"},
		"approval of a command":            {Spec{Target: "exec:cat", Approve: true}, interact.Usage, "--approve is for mcp"},
		"missing file":                     {Spec{Target: "nothing.td.json"}, interact.Usage, "cannot be read"},
		"a folder":                         {Spec{Target: t.TempDir()}, interact.Usage, "cannot be read"},
		"invalid TD":                       {Spec{Target: noTD}, interact.BadTD, ""},
		"a TD with another name":           {Spec{Target: file, Name: "x"}, interact.Usage, "has its own name"},
		"a server of a TD":                 {Spec{Target: file, Server: "http://x"}, interact.Usage, "--server is for openapi: only"},
		"an action of a TD":                {Spec{Target: url + "/td", Actions: []string{"x"}}, interact.Usage, "--action is for exec: only"},
		"chunks of OpenAPI":                {Spec{Target: "openapi:" + file, Delimiter: "x"}, interact.Usage, "--delimiter is for exec: only"},
		"a found TD with another name":     {Spec{Target: url + "/td", Name: "x"}, interact.Usage, "has its own name"},
		"not OpenAPI":                      {Spec{Target: "openapi:" + file}, interact.BadTD, "is not an OpenAPI document that can be exposed"},
		"missing OpenAPI file":             {Spec{Target: "openapi:nothing.yaml"}, interact.Usage, "cannot be read"},
		"a YAML document without a server": {Spec{Target: "openapi:" + yaml + "/openapi.yaml"}, interact.BadTD, "is not an OpenAPI document"},
		"a site without a description":     {Spec{Target: url}, interact.BadTD, "has no Thing Description"},
		"too large":                        {Spec{Target: "openapi:" + url + "/big"}, interact.TooLarge, "has more than"},
		"a missing page":                   {Spec{Target: "openapi:" + url + "/none"}, interact.AgentFailed, "responded with 404"},
		"a connection that breaks":         {Spec{Target: "openapi:" + broken.URL}, interact.AgentFailed, "is incomplete"},
		"no server":                        {Spec{Target: "http://127.0.0.1:1"}, interact.Unreachable, "no server responds at"},
		"no host":                          {Spec{Target: "http://"}, interact.Usage, "expected the URL"},
		"malformed address":                {Spec{Target: "openapi:http://127.0.0.1:1/%zz"}, interact.Usage, "is not a URL"},
	} {
		if e := openError(t, test.spec); e.Code != test.code || !strings.Contains(e.Title, test.text) {
			t.Errorf("%s: %v %q, want %v with %q", name, e.Code, e.Title, test.code, test.text)
		}
	}
}

func TestOpenIsCancelled(t *testing.T) {
	t.Parallel()
	started := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(started)
		<-r.Context().Done()
	}))
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-started
		cancel()
	}()
	if _, err := Open(ctx, Spec{Target: s.URL}, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// Capabilities of the user are added to those of the document.
func TestDescribeAdds(t *testing.T) {
	t.Parallel()
	raw, err := Spec{}.describe([]byte(`{"title":"x","lmos:capabilities":[{"id":"urn:x:a"}]}`), []string{"urn:x:b"})
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	const want = `{"lmos:capabilities":[{"id":"urn:x:a"},{"id":"urn:x:b","name":"urn:x:b"}],"title":"x"}`
	if err := json.Compact(&got, raw); err != nil || got.String() != want {
		t.Errorf("%v in %s, want %s", err, raw, want)
	}
	if _, err := (Spec{Description: "x"}).describe([]byte("["), nil); err == nil {
		t.Error("text that is not JSON was accepted")
	}
}
