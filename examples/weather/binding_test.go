package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/examples/weather/agent"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/rest"
	"github.com/lmosd/lmosd/interact/rest/server"
	"github.com/lmosd/lmosd/td"
)

// serveAgent starts the agent in this process and returns its thing.
func serveAgent(t *testing.T) *td.Thing {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	handler, raw := agent.New("http://" + server.Listener.Addr().String())
	server.Config.Handler = handler
	server.Start()
	t.Cleanup(server.Close)
	thing, err := td.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return thing
}

// TestConsumerAsksThroughANode goes the way of a local consumer: HTTP, the mesh, and HTTP again to the agent.
func TestConsumerAsksThroughANode(t *testing.T) {
	t.Parallel()
	thing := serveAgent(t)
	client := rest.NewClient(rest.Options{})
	t.Cleanup(client.Close)
	d := &td.Description{Thing: thing,
		Record: &td.Record{Owner: "did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH", Thing: "urn:x:weather"}}
	mesh := interact.Router(finder{client.Thing(thing)})
	server := server.New(server.Options{Mesh: mesh, Find: func(context.Context, string) (*td.Description, error) { return d, nil }})
	t.Cleanup(server.Close)
	node := httptest.NewServer(server)
	t.Cleanup(node.Close)

	const bonn = `{"question":"Rain in Bonn?","interactionMode":"text"}`
	for _, tt := range []struct {
		name, method, path, body string
		status                   int
		want                     string
	}{
		{"call", "POST", "actions/getWeather", bonn, 200, `"Light rain, 12 °C, until 16:00."`},
		{"read", "GET", "properties/modelConfiguration", "", 200,
			`{"maxTokens":64,"modelName":"a-table","temperature":0.2}`},
		{"write", "PUT", "properties/units", `"fahrenheit"`, 204, ``},
		{"read what was written", "GET", "properties/units", "", 200, `"fahrenheit"`},
		{"call in other units", "POST", "actions/getWeather", bonn, 200, `"Light rain, 54 °F, until 16:00."`},
		{"read all", "GET", "properties", "", 200,
			`{"modelConfiguration":{"maxTokens":64,"modelName":"a-table","temperature":0.2},"units":"fahrenheit"}`},
		{"an action without output", "POST", "actions/giveFeedback", `{"rating":5}`, 204, ``},
		{"a unit that is none", "PUT", "properties/units", `"kelvin"`, 400, `LMOS-1400`},
		{"write what is read only", "PUT", "properties/modelConfiguration", `{}`, 405, `LMOS-1406`},
		{"no question", "POST", "actions/getWeather", `{"interactionMode":"text"}`, 400, `question`},
		{"no such action", "POST", "actions/getWether", `{}`, 404, `did you mean getWeather?`},
	} {
		status, body := send(t, tt.method, node.URL+"/things/weather/"+tt.path, tt.body)
		if status != tt.status || tt.status < 400 && body != tt.want || !strings.Contains(body, tt.want) {
			t.Errorf("%s: got %d %s, want %d %s", tt.name, status, body, tt.status, tt.want)
		}
	}
}

type finder struct{ thing interact.Thing }

func (f finder) Locate(context.Context, string) (interact.Thing, error) { return f.thing, nil }

// TestDescriptionIsForEveryClient holds the rules without which one known client or another fails.
func TestDescriptionIsForEveryClient(t *testing.T) {
	t.Parallel()
	thing := serveAgent(t)
	var doc struct {
		Context    []json.RawMessage `json:"@context"`
		Base       *string
		Security   []string
		Properties map[string]struct{ Type string }
		Actions    map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal(thing.Raw, &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Context) != 4 || string(doc.Context[0]) != `"`+td.Context10+`"` ||
		string(doc.Context[1]) != `"`+td.Context11+`"` {
		t.Errorf("contexts %s", doc.Context)
	}
	if doc.Base != nil || len(doc.Security) != 1 {
		t.Error("there is a base, or not one security scheme")
	}
	for name, p := range doc.Properties {
		if p.Type == "" {
			t.Errorf("property %s has no type", name)
		}
	}
	known := "title description synchronous safe idempotent input output forms"
	for name, a := range doc.Actions {
		if a["synchronous"] == nil {
			t.Errorf("action %s does not say whether it is synchronous", name)
		}
		for member := range a {
			if !strings.Contains(known, member) {
				t.Errorf("action %s has the member %s", name, member)
			}
		}
	}
	for name, e := range thing.Events {
		if e.Forms[0].Subprotocol != "longpoll" {
			t.Errorf("event %s has no longpoll form first", name)
		}
	}
}

func TestLongPollIsHeldAndEndsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	base, end := start(t, "-listen", "127.0.0.1:0")
	done := make(chan error, 1)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/events/userFeedbackReceived", nil)
	if err != nil {
		t.Fatal(err)
	}
	wrote := make(chan bool)
	go func() {
		resp, err := (&http.Client{Transport: noting{wrote}}).Do(req)
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		done <- err
	}()
	<-wrote
	if status, _ := send(t, http.MethodHead, base+"/events/userFeedbackReceived", ""); status != http.StatusOK {
		t.Errorf("HEAD: got %d", status)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
	if err := <-done; err == nil {
		t.Error("the poll was answered without an event")
	}
}

// noting tells when a request is under way.
type noting struct{ wrote chan bool }

func (n noting) RoundTrip(r *http.Request) (*http.Response, error) {
	close(n.wrote)
	return http.DefaultTransport.RoundTrip(r)
}
