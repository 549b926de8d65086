package gateway

import (
	"context"
	"net/http"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/gateway/tdd"
)

const (
	maxPings = 100
	pingTime = time.Minute // for all pings of a request
)

// paths returns the paths to an agent.
func (g *Gateway) paths(w http.ResponseWriter, r *http.Request) error {
	ref := r.PathValue("ref")
	paths, err := g.o.Presence.Paths(r.Context(), ref)
	if err != nil {
		return err
	}
	list := api.PathList{APIVersion: api.APIVersion, Kind: "PathList", Ref: ref, Items: paths}
	if list.Items == nil {
		list.Items = []api.Path{}
	}
	return writeJSON(w, http.StatusOK, list)
}

// ping measures the round trip to the host of an agent.
func (g *Gateway) ping(w http.ResponseWriter, r *http.Request) error {
	q, err := tdd.Params(r, "n", "timeout")
	if err != nil {
		return err
	}
	n, err := tdd.Integer(q, "n", 1, maxPings, 1)
	if err != nil {
		return err
	}
	wait, err := duration(q, "timeout", pingTime, pingTime)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	found, err := g.o.Presence.Ping(ctx, r.PathValue("ref"), n)
	if err != nil {
		return err
	}
	shown := *found
	shown.APIVersion, shown.Kind = api.APIVersion, "Ping"
	if shown.RTT == nil {
		shown.RTT = []float64{}
	}
	return writeJSON(w, http.StatusOK, shown)
}
