package api_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A program finds an agent by a capability and invokes an action of it.
func ExampleClient() {
	node := httptest.NewServer(answers{
		"/v1/find": `{"apiVersion":"lmosd/v1","kind":"AgentList","items":[{"ref":"urn:x:weather","title":"Weather"}],` +
			`"coverage":{"asked":3,"answered":3}}`,
		"/things/urn:x:weather/actions/getWeather": `{"answer":"It rains in Bonn."}`,
	})
	defer node.Close()

	client, err := api.Dial(node.URL, "")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	found, err := client.Find(ctx, td.Query{Capability: []string{"urn:example:weather"}}, time.Second)
	if err != nil {
		log.Fatal(err)
	}
	for _, agent := range found.Items {
		answer, _, err := client.Call(ctx, agent.Ref, "getWeather", interact.JSON, []byte(`{"question":"Rain in Bonn?"}`))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s says %s; complete: %v\n", agent.Title, answer, found.Coverage.Complete())
	}
	// Output: Weather says {"answer":"It rains in Bonn."}; complete: true
}

// An error of the node keeps its code and hint.
func ExampleClient_Agent() {
	node := httptest.NewServer(answers{})
	defer node.Close()
	client, err := api.Dial(node.URL, "")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	_, err = client.Agent(context.Background(), "weathr")
	e := interact.AsError(err)
	fmt.Println(e.Code, e, "-", e.Hint)
	// Output: LMOS-1404 no agent matches "weathr" - lmosd find weather
}

// Watch yields the events of a Thing.
func ExampleClient_Watch() {
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "event: storm\nid: 1\ndata: 12\n\n")
	}))
	defer node.Close()
	client, err := api.Dial(node.URL, "")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	for e, err := range client.Watch(context.Background(), "urn:x:station", "events", "storm", "") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s\n", e.Name, e.Data)
	}
	// Output: storm: 12
}

// answers is a node with fixed responses by path.
type answers map[string]string

func (a answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if body, ok := a[r.URL.Path]; ok {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, body)
		return
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(http.StatusNotFound)
	fmt.Fprint(w, `{"type":"urn:lmosd:error:agent-not-found","code":"LMOS-1404","title":"Agent not found","status":404,`+
		`"detail":"no agent matches \"weathr\"","hint":"lmosd find weather"}`)
}
