package interop

import (
	"bufio"
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/directory/route"
	"github.com/lmosd/lmosd/internal/testprogram"
	"github.com/lmosd/lmosd/interop/testmesh"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/td"
)

// A node with an endpoint for embeddings, another process with OpenAI's protocol, finds a Thing without any word of the query; when the
// process has ended, lexical search decides, and the result reports it.
func TestEmbeddingsOfAnotherProcess(t *testing.T) {
	t.Parallel()
	stub := exec.CommandContext(t.Context(), testprogram.Path(t, "node"), "embeddings.mjs")
	in, err := stub.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := stub.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := stub.Start(); err != nil {
		t.Fatal(err)
	}
	port := bufio.NewScanner(out)
	if !port.Scan() {
		t.Fatal("the endpoint does not say its port")
	}
	m := testmesh.Start(t, func(o *node.Options) {
		o.Search.Embeddings = route.Endpoint{URL: "http://127.0.0.1:" + port.Text() + "/v1", Model: "stub"}
	})
	for title, example := range map[string]string{"Billing": "Why is my invoice so high?", "Weather": "Will it rain?"} {
		m.Offer(t, fmt.Appendf(nil, `{"@context":["https://www.w3.org/2022/wot/td/v1.1",{"lmos":"https://eclipse.dev/lmos/protocol/v1"}],
"@type":"lmos:Agent","title":%q,"securityDefinitions":{"n":{"scheme":"nosec"}},"security":["n"],
"lmos:capabilities":[{"id":"urn:x:%[1]s","name":%[1]q,"version":"1.0.0","description":"One thing.","examples":[%q]}],
"actions":{"ask":{"synchronous":true,"forms":[{"href":"http://127.0.0.1:9/ask"}]}}}`, title, example), nil)
	}
	// until repeats the query until the first result is an agent, for a reason of a kind.
	until := func(question, name, signal string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
			list, err := m.Client.Explain(t.Context(), td.Query{Text: question}, 0)
			if err == nil && len(list.Items) > 0 && list.Items[0].Name == name &&
				slices.ContainsFunc(list.Items[0].ScoreFactors, func(w api.ScoreFactor) bool { return w.Signal == signal }) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%q: got %+v, %v; want %s for its %s", question, list, err, name, signal)
			}
		}
	}
	until("what do I owe you", "billing", "meaning")
	until("should I take an umbrella", "weather", "meaning")
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := stub.Wait(); err != nil {
		t.Fatal(err)
	}
	until("weather", "weather", "fallback")
}
