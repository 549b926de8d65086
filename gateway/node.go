package gateway

import (
	"encoding/json"
	"net/http"
	"runtime"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/interact/rest/server"
	"github.com/lmosd/lmosd/internal/buildinfo"
)

func (g *Gateway) status(w http.ResponseWriter, r *http.Request) error {
	s := g.o.Status.Status(r.Context())
	s.APIVersion, s.Kind, s.API = api.APIVersion, "Status", g.URL()
	if g.gate.Closed() {
		s.State = "draining"
	}
	if s.Warnings == nil {
		s.Warnings = []api.Warning{}
	}
	return writeJSON(w, http.StatusOK, s)
}

func (g *Gateway) identity(w http.ResponseWriter, r *http.Request) error {
	s := g.o.Status.Status(r.Context())
	id := api.Identity{APIVersion: api.APIVersion, Kind: "Identity", DID: s.DID, PeerID: s.PeerID, Name: s.Name}
	doc, err := did.Keys().Resolve(r.Context(), s.DID)
	if err != nil {
		return err
	}
	id.Document = doc.Raw
	return writeJSON(w, http.StatusOK, id)
}

func (g *Gateway) peers(w http.ResponseWriter, r *http.Request) error {
	list := api.PeerList{APIVersion: api.APIVersion, Kind: "PeerList", Items: g.o.Peers.List()}
	if len(list.Items) > 0 && g.o.Topology != nil {
		names := g.o.Topology.Names(r.Context(), true)
		for i := range list.Items {
			list.Items[i].Name = names[list.Items[i].DID]
		}
	}
	if list.Items == nil {
		list.Items = []api.Peer{}
	}
	return writeJSON(w, http.StatusOK, list)
}

// net answers how others reach the node. Who is reached through it, and by whom, is for the process and the owner of the node only.
func (g *Gateway) net(w http.ResponseWriter, r *http.Request) error {
	n := g.o.Peers.Net()
	n.APIVersion, n.Kind = api.APIVersion, "Net"
	if p := did.PrincipalOf(r.Context()); p == nil || p.Relation != did.Local {
		if n.Bootstrap = nil; n.Serving != nil {
			n.Serving.Reservations, n.Serving.Circuits = []api.Reservation{}, []api.Circuit{}
		}
	}
	return writeJSON(w, http.StatusOK, n)
}

func (g *Gateway) connect(w http.ResponseWriter, r *http.Request) error {
	if err := server.CheckContentType(r, interact.JSON); err != nil {
		return err
	}
	body, err := problem.ReadBody(w, r, 4<<10)
	if err != nil {
		return err
	}
	var req api.ConnectRequest
	if json.Unmarshal(body, &req) != nil || req.Addr == "" {
		return interact.Errorf(interact.Invalid, `send {"addr":"/ip4/192.0.2.1/tcp/4667/p2p/12D3Koo…"}`,
			"expected a JSON object with the addr of a peer")
	}
	if err := g.o.Peers.Connect(r.Context(), req.Addr); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// healthy succeeds while the process serves, and fails when it begins to stop.
func (g *Gateway) healthy(w http.ResponseWriter, _ *http.Request) error {
	if g.gate.Closed() {
		return errShuttingDown()
	}
	return writeJSON(w, http.StatusOK, map[string]string{"status": "pass"})
}

// A check is one entry of GET /readyz?verbose.
type check struct {
	Name    string  `json:"name"`
	Status  string  `json:"status"` // pass, warn or fail
	Message string  `json:"message,omitempty"`
	Elapsed float64 `json:"elapsed_ms"`
}

func (g *Gateway) ready(w http.ResponseWriter, r *http.Request) error {
	q, err := tdd.Params(r, "verbose")
	if err != nil {
		return err
	}
	start := time.Now()
	err = g.o.Status.Ready()
	elapsed := api.Milliseconds(time.Since(start))
	if g.gate.Closed() {
		err = errShuttingDown()
	}
	if q.Has("verbose") {
		return writeChecks(w, check{Name: "node", Elapsed: elapsed}, err, g.o.Status.Status(r.Context()).Warnings)
	}
	if err != nil {
		return interact.Errorf(interact.NotReady, "", "the node is not ready: %v", err).Then(interact.StepStatus)
	}
	return writeJSON(w, http.StatusOK, map[string]string{"status": "pass"})
}

// writeChecks reports whether the node serves, whether its loops run, and its warnings.
func writeChecks(w http.ResponseWriter, c check, err error, warnings []api.Warning) error {
	status := http.StatusOK
	c.Status = "pass"
	if err != nil {
		status, c.Status, c.Message = http.StatusServiceUnavailable, "fail", err.Error()
	}
	loops := check{Name: "loops", Status: "pass"}
	checks := []check{c, loops}
	for _, one := range warnings {
		if one.Code == api.LoopHangs.Code {
			checks[1] = check{Name: loops.Name, Status: "warn", Message: one.Code + ": " + one.Text}
			continue
		}
		checks = append(checks, check{Name: one.Title, Status: "warn", Message: one.Code + ": " + one.Text})
	}
	return writeJSON(w, status, map[string]any{"status": c.Status, "checks": checks})
}

func (g *Gateway) version(w http.ResponseWriter, r *http.Request) error {
	return writeJSON(w, http.StatusOK, api.Version{APIVersion: api.APIVersion, Kind: "Version",
		Version: g.o.Status.Status(r.Context()).Version,
		Commit:  buildinfo.Commit(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH})
}
