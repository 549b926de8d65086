package node

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/directory/route"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// teller is the TD of an agent that is known by an example.
func teller(title, example string) []byte {
	raw := strings.Replace(string(tool(title, "urn:x:"+strings.ToLower(title))), `"lmos:Tool"`, `"lmos:Agent"`, 1)
	return []byte(strings.Replace(raw, `"description":"Says it again."`, fmt.Sprintf(`"description":"Says it again.","examples":[%q]`, example), 1))
}

// models is an endpoint for embeddings, in which a text that speaks of money or of rain points there, and for a model that
// chooses the first agent that it is offered.
func models(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Input    []string
			Messages []struct{ Content string }
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || r.Header.Get("Authorization") != "Bearer sesame" {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		if len(q.Messages) > 0 {
			_, id, _ := strings.Cut(q.Messages[0].Content, `"agentId":"`)
			id, _, _ = strings.Cut(id, `"`)
			messages, _ := json.Marshal(fmt.Sprintf(`{"reason":"it is the first","agentId":%q}`, id))
			fmt.Fprintf(w, `{"choices":[{"message":{"role":"assistant","content":%s}}]}`, messages)
			return
		}
		var data []string
		for i, text := range q.Input {
			money, rain := 0.01, 0.01
			if strings.Contains(text, "invoice") || strings.Contains(text, "owe") {
				money = 1
			}
			if strings.Contains(text, "forecast") || strings.Contains(text, "umbrella") {
				rain = 1
			}
			data = append(data, fmt.Sprintf(`{"index":%d,"embedding":[%g,%g]}`, i, money, rain))
		}
		fmt.Fprintf(w, `{"data":[%s]}`, strings.Join(data, ","))
	}))
	t.Cleanup(s.Close)
	return s.URL + "/v1"
}

func TestRoutesATask(t *testing.T) {
	t.Parallel()
	o := quiet()
	url := models(t)
	o.Search = route.Search{Embeddings: route.Endpoint{URL: url, Model: "m", Key: "sesame"}, Model: route.Endpoint{URL: url, Model: "m", Key: "sesame"}}
	n := start(t, o)
	publish(t, n, teller("Billing", "why is my invoice so high"))
	publish(t, n, teller("Weather", "a forecast for the week"))
	for _, c := range []struct {
		method        route.Method
		message, want string
	}{
		{"", "is my invoice right", "billing"},
		{"", "sing me a song", ""},
		{route.LLM, "sing me a song", "billing"},
		{route.Vector, "do I need an umbrella", ""}, // of the platform's thresholds: one example is too little
	} {
		d, err := n.Client().Route(t.Context(), api.RouteRequest{Message: c.message, Method: string(c.method)})
		got := ""
		if err == nil && d.Agent != nil {
			got = d.Agent.Name
		}
		if err != nil || got != c.want || d.Reason == "" {
			t.Errorf("%q by %q: got %q, %+v, %v", c.message, c.method, got, d, err)
		}
	}
}

// The router prefers the agent of its own node among equal ones, and selects another if that one does not answer.
func TestRoutesToReachableAgents(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 2)
	here, far := nodes[0], nodes[1]
	example := `"lmos:capabilities":[{"id":"urn:x:bill","name":"bill","version":"1","description":"Bills.","examples":["show my bill"]}]`
	server := newAgent(t)
	billing := func(base string) []byte {
		raw := string(toolAt("Billing", "urn:x:billing", base))
		return []byte(strings.Replace(raw, `"lmos:capabilities":[{"id":"urn:example:tool:echo","name":"echo","version":"1.0.0","description":"Says it again."}]`, example, 1))
	}
	own, other := publish(t, here, billing(server.url)), publish(t, far, billing(newAgent(t).url))
	knows(t, here, other)
	route := func() *api.RouteAnswer {
		t.Helper()
		d, err := here.Client().Route(t.Context(), api.RouteRequest{Message: "show my bill", Among: api.AmongAll})
		if err != nil || d.Agent == nil {
			t.Fatalf("got %+v, %v", d, err)
		}
		return d
	}
	if d := route(); d.Agent.ID != own || d.TieBreak != "local" || len(d.Candidates) != 2 {
		t.Errorf("got %+v", d)
	}
	server.close()
	wantCode(t, ask(t, here, own), interact.Unreachable)
	if d := route(); d.Agent.ID != other || d.TieBreak != "" {
		t.Errorf("its own does not answer: got %+v", d)
	}
}

// A query finds agents with none of its words, by embedding.
func TestFindsByEmbedding(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Search.Embeddings = route.Endpoint{URL: models(t), Model: "m", Key: "sesame"}
	n := start(t, o)
	publish(t, n, teller("Billing", "why is my invoice so high"))
	publish(t, n, teller("Weather", "a forecast for the week"))
	until(t, "what things mean is known", func() bool {
		list, err := n.Client().Explain(t.Context(), td.Query{Text: "what do I owe you", Type: "agent"}, 0)
		return err == nil && len(list.Items) > 0 && list.Items[0].Name == "billing" && list.Items[0].ScoreFactors[0].Signal == string(directory.SignalMeaning)
	})
}

func TestInvalidEndpoints(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]route.Search{
		"no URL":                {Embeddings: route.Endpoint{URL: "localhost", Model: "m"}},
		"no model":              {Model: route.Endpoint{URL: "http://127.0.0.1:1"}},
		"a method without them": {Method: route.Hybrid},
		"no method":             {Method: "magic"},
	} {
		o := quiet()
		o.Search = s
		n, err := New(o)
		if err == nil {
			t.Errorf("%s: it is opened", name)
			_ = n.Close()
		} else if e := interact.AsError(err); e.Hint == "" && e.Next == nil || e.Code != interact.ConfigInvalid && e.Code != interact.Usage {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A host that was down is found to be up again without anybody asking it.
func TestProbesAHost(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 2)
	ref := publish(t, nodes[1], tool("Echo", ""))
	knows(t, nodes[0], ref)
	if err := nodes[0].mesh.monitor.Dial(t.Context(), nodes[1].DID()); err != nil {
		t.Errorf("a host that is there: %v", err)
	}
	if nodes[0].network.peers.Latency(nodes[1].DID()) < 0 || nodes[0].network.peers.Latency("did:web:x") != 0 {
		t.Error("latencies")
	}
	if err := nodes[0].mesh.monitor.Dial(t.Context(), did.DID("did:web:nobody")); err == nil {
		t.Error("a DID that is no node's is reached")
	}
}

// TestTrustRanks: of equal matches, Things of this node come first, then those of owners that the operator allows.
func TestTrustRanks(t *testing.T) {
	t.Parallel()
	friend, untrusted := didtest.NewKey(), didtest.NewKey()
	o := quiet()
	o.Policy.Principal = members(friend.DID())
	n := start(t, o)
	own := publish(t, n, toolAt("Echo", "urn:x:echo", newAgent(t).url))
	refs := []string{own}
	for _, key := range []*keystore.Key{friend, untrusted} {
		ref := td.ExactRef("urn:x:echo", key.DID())
		n.mesh.directory.Enqueue(signed(t, key, tool("Echo", "urn:x:echo"), td.Lease{Hosts: []td.Host{{Node: key.DID(), Addrs: []string{"/ip4/192.0.2.1/tcp/4667"}}}}))
		knows(t, n, ref)
		refs = append(refs, ref)
	}
	list, err := n.Client().Explain(t.Context(), td.Query{Text: "echo"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	var got, why []string
	for _, g := range list.Items {
		got = append(got, g.Ref)
		for _, w := range g.ScoreFactors {
			if w.Signal == string(directory.SignalTrust) {
				why = append(why, fmt.Sprintf("%s %.3f", w.Found, w.Amount))
			}
		}
	}
	if !slices.Equal(got, refs) || strings.Join(why, ", ") != "this node 0.070, own organization 0.070, untrusted 0.035" {
		t.Errorf("got %q for %q, want %q", got, why, refs)
	}
}
