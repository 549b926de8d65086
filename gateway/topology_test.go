package gateway

import (
	"context"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
)

// A drawn map has two nodes; the caller of the socket sees a third one.
type drawn struct{ limits chan int }

// Names implements [Topology].
func (d drawn) Names(context.Context, bool) map[did.DID]string { return nil }

func (d drawn) Topology(ctx context.Context, scope api.TopologyScope, limit int) (*api.Topology, error) {
	d.limits <- limit
	at := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	t := &api.Topology{APIVersion: api.APIVersion, Kind: "Topology", At: at, Scope: scope,
		Nodes: []api.TopologyNode{{DID: owner1, Name: "node-1", Organization: "acme.example", Roles: []string{"index", "relay"}, Version: "0.4.0", Agents: 3, Reachable: true, Self: true, Source: api.SourceSelf},
			{DID: owner2, Reachable: false, Source: api.SourceRecord, Seen: at}},
		Links:    []api.TopologyLink{{From: owner1, To: owner2, Transport: "quic-v1", Relay: owner2, RTT: 1.8, Since: at, SeenBy: owner1}},
		Coverage: api.TopologyCoverage{Asked: 12, Answered: 11, Unreachable: 1}}
	if did.PrincipalOf(ctx).Via == did.Socket {
		t.Nodes = append(t.Nodes, api.TopologyNode{DID: "did:key:z6MkThird", Source: api.SourceReport})
	}
	return t, nil
}

func TestTopology(t *testing.T) {
	t.Parallel()
	d := drawn{make(chan int, 10)}
	r := start(t, serving(newFake(), Options{Topology: d}))
	_, body := r.do(t, exchange{path: "/v1/topology?scope=organization"})
	golden(t, "topology", []byte(body), r.url)
	r.check(t, exchange{path: "/v1/topology?limit=7", status: 200, contain: `"scope":"mine"`})
	r.check(t, exchange{path: "/v1/topology", status: 200, socket: true, contain: "did:key:z6MkThird"})
	r.check(t, exchange{method: "HEAD", path: "/v1/topology", status: 200, want: map[string]string{"Content-Type": "application/json"}})
	for i, want := range []int{defaultTopology, 7, defaultTopology, defaultTopology} {
		if got := <-d.limits; got != want {
			t.Errorf("request %d: limit %d, want %d", i, got, want)
		}
	}
	for _, query := range []string{"scope=x", "limit=0", "limit=10001", "limit=x", "cursor=x", "scope=mine&scope=mesh"} {
		r.check(t, exchange{path: "/v1/topology?" + query, status: 400})
	}
	r.check(t, exchange{method: "POST", path: "/v1/topology", status: 405})
	without := start(t, Options{})
	without.check(t, exchange{path: "/v1/topology", status: 404})
}
