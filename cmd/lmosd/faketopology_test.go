package main

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/td"
)

// topologyRoutes adds the index, in pages of three, and a map.
func (n *fakeNode) topologyRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/agents", n.index)
	mux.HandleFunc("GET /v1/topology", n.topology)
}

func (n *fakeNode) index(w http.ResponseWriter, r *http.Request) {
	list := api.AgentList{APIVersion: api.APIVersion, Kind: "AgentList", Items: []api.Agent{}, Coverage: td.Coverage{Asked: 1, Answered: 1}}
	names := []string{"away", "failing", "liar", "refusing", "slow", "weather"}
	if n.bare || r.URL.Query().Get("q") == "name:nobody" {
		names = nil
	}
	total := len(names)
	list.Total = &total
	from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	for _, name := range names[from:min(from+3, total)] {
		list.Items = append(list.Items, n.agents[name].Agent)
	}
	if from+3 < total {
		list.Next, list.Coverage.More = strconv.Itoa(from+3), true
	}
	answer(w, list)
}

func (n *fakeNode) topology(w http.ResponseWriter, r *http.Request) {
	scope := api.TopologyScope(r.URL.Query().Get("scope"))
	m := api.Topology{APIVersion: api.APIVersion, Kind: "Topology", At: time.Now(), Scope: scope, Links: []api.TopologyLink{},
		Nodes: []api.TopologyNode{{DID: n.owner, Name: "alpha", Version: "0.0.9", Roles: []string{"index"}, Agents: 3, Reachable: true, Self: true, Source: api.SourceSelf}}}
	if !n.bare {
		m.Nodes = append(m.Nodes, api.TopologyNode{DID: "did:key:" + twin1, Name: `be"ta`, Organization: "acme", Agents: 1, Reachable: true, Source: api.SourceConnection})
		m.Links = append(m.Links, api.TopologyLink{From: n.owner, To: "did:key:" + twin1, Transport: "quic-v1", RTT: 1.24, SeenBy: n.owner})
	}
	if scope != api.TopologyMine {
		m.Nodes = append(m.Nodes, api.TopologyNode{DID: "did:key:" + twin2, Source: api.SourceRecord})
		m.Links = append(m.Links, api.TopologyLink{From: "did:key:" + twin1, To: "did:key:" + twin2, Transport: "tcp", Relay: n.owner, SeenBy: "did:key:" + twin1})
		m.Coverage = api.TopologyCoverage{Asked: 3, Answered: 2, Unreachable: 1, Truncated: r.URL.Query().Get("limit") == "3"}
	}
	answer(w, m)
}

// ran runs a command line in this process.
func ran(t *testing.T, env []string, args ...string) (code int, out, talk string) {
	t.Helper()
	r := lmosd(t.Context(), env, "", args...)
	return r.code, r.out, r.errors
}

func TestFindAll(t *testing.T) {
	t.Parallel()
	env := home(t, "LMOSD_NODE="+newFakeNode(t))
	code, out, stderr := ran(t, env, "find", "--all", "-o", "name")
	if lines := strings.Fields(out); code != 0 || len(lines) != 6 || !strings.Contains(lines[5], "weather") {
		t.Errorf("exit %d: %s%s", code, out, stderr)
	}
	if code, out, _ = ran(t, env, "find", "--all", "-o", "json", "--jq", ".total"); code != 0 || strings.TrimSpace(out) != "6" {
		t.Errorf("exit %d: %s", code, out)
	}
	for _, flag := range []string{"--limit=3", "--watch", "--explain", "--strategy=highest", "--timeout=1s", "--version-range=^1", "--page=x"} {
		if code, _, stderr = ran(t, env, "find", "--all", flag); code != 2 || !strings.Contains(stderr, "expected --") {
			t.Errorf("with %s: exit %d: %s", flag, code, stderr)
		}
	}
}

func TestPeersMap(t *testing.T) {
	t.Parallel()
	env := home(t, "LMOSD_NODE="+newFakeNode(t))
	code, out, stderr := ran(t, env, "peers", "map", "--scope", "mesh", "--limit", "3")
	for _, want := range []string{"NODE", "alpha", "this node", "not reached", "FROM", "1.2 ms", "via "} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("exit %d, no %q in\n%s%s", code, want, out, stderr)
		}
	}
	if want := "3 nodes, 2 connections; 2 of 3 members answered, 1 not reached; there are more"; !strings.Contains(stderr, want) {
		t.Errorf("no %q in %s", want, stderr)
	}
	code, out, stderr = ran(t, env, "peers", "map", "--scope", "organization", "--dot")
	if want := `"did:key:` + twin1 + `" [label="be\"ta"];`; code != 0 || !strings.HasPrefix(out, "graph mesh {\n") || !strings.Contains(out, want) || !strings.Contains(out, "[style=dashed];") {
		t.Errorf("exit %d, no %s in\n%s%s", code, want, out, stderr)
	}
	if code, out, _ = ran(t, env, "peers", "map", "-o", "json", "--jq", ".links | length"); code != 0 || strings.TrimSpace(out) != "1" {
		t.Errorf("exit %d: %s", code, out)
	}
	if code, _, stderr = ran(t, env, "peers", "map", "--scope", "world"); code != 2 || !strings.Contains(stderr, "--scope world") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}
