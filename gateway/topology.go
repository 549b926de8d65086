package gateway

import (
	"cmp"
	"context"
	"net/http"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
)

// Limits of GET /v1/topology, of nodes and of connections.
const (
	defaultTopology = 2000
	maxTopology     = 10_000
)

// A Topology maps the mesh as the node knows it (topology.Map).
type Topology interface {
	// Topology returns the nodes and connections of a scope as the caller of ctx may see them, at most limit of each. The result is complete for
	// the API. The error is that of ctx.
	Topology(ctx context.Context, scope api.TopologyScope, limit int) (*api.Topology, error)
	// Names returns the names that nodes report, as the caller of ctx may see them. With ask, connected nodes whose names are not known yet are asked.
	Names(ctx context.Context, ask bool) map[did.DID]string
}

// topologyRoutes returns the routes of the map; none without one.
func (g *Gateway) topologyRoutes() map[string]http.Handler {
	if g.o.Topology == nil {
		return nil
	}
	return map[string]http.Handler{"GET /v1/topology": g.protect(read, g.topology)}
}

func (g *Gateway) topology(w http.ResponseWriter, r *http.Request) error {
	v, err := tdd.Params(r, "scope", "limit")
	if err != nil {
		return err
	}
	limit, err := tdd.Integer(v, "limit", 1, maxTopology, defaultTopology)
	if err != nil {
		return err
	}
	scope := api.TopologyScope(cmp.Or(v.Get("scope"), string(api.TopologyMine)))
	switch scope {
	case api.TopologyMine, api.TopologyOrganization, api.TopologyMesh:
	default:
		return interact.Errorf(interact.Usage, "scope=mine, scope=organization or scope=mesh", "unknown scope %q", tdd.Clip(string(scope)))
	}
	t, err := g.o.Topology.Topology(r.Context(), scope, limit)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, t)
}
