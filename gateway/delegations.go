package gateway

import (
	"context"
	"net/http"

	"github.com/lmosd/lmosd/api"
)

// Delegations are the rights that consumers of the node lend to other nodes. Errors are those of [interact.Error].
type Delegations interface {
	// Delegate lets another node use a right of the caller of ctx.
	Delegate(ctx context.Context, q api.DelegationRequest) (*api.Delegation, error)
	// List returns what consumers of this node gave away, and Issued what this host permits others to give away.
	List() []api.Delegation
	Issued() []api.Delegation
	Revoke(ctx context.Context, id string) (*api.Delegation, error)
}

// delegationRoutes returns the routes of delegations, by pattern of the mux.
func (g *Gateway) delegationRoutes() map[string]http.Handler {
	return map[string]http.Handler{
		"GET /v1/delegations":         g.delegated(admin, g.listDelegations, "issued"),
		"POST /v1/delegations":        g.delegated(admin, g.delegate),
		"DELETE /v1/delegations/{id}": g.delegated(admin, g.revokeDelegation),
	}
}

// delegated returns a protected handler.
func (g *Gateway) delegated(a access, h func(d Delegations, w http.ResponseWriter, r *http.Request) error, params ...string) http.Handler {
	return kept(g, a, g.o.Delegations, "this node delegates nothing", h, params...)
}

func (g *Gateway) listDelegations(d Delegations, w http.ResponseWriter, r *http.Request) error {
	list := d.List
	if r.URL.Query().Get("issued") == "true" {
		list = d.Issued
	}
	return writeJSON(w, http.StatusOK, api.DelegationList{APIVersion: api.APIVersion, Kind: "DelegationList", Items: list()})
}

func (g *Gateway) delegate(d Delegations, w http.ResponseWriter, r *http.Request) error {
	var q api.DelegationRequest
	if err := readBody(w, r, &q, `{"agent":"payout","name":"pay","to":"did:key:…","life":"10m"}`); err != nil {
		return err
	}
	one, err := d.Delegate(r.Context(), q)
	return writeDelegation(w, http.StatusCreated, one, err)
}

func writeDelegation(w http.ResponseWriter, status int, d *api.Delegation, err error) error {
	if err != nil {
		return err
	}
	d.APIVersion, d.Kind = api.APIVersion, "Delegation"
	return writeJSON(w, status, d)
}

func (g *Gateway) revokeDelegation(d Delegations, w http.ResponseWriter, r *http.Request) error {
	one, err := d.Revoke(r.Context(), r.PathValue("id"))
	return writeDelegation(w, http.StatusOK, one, err)
}
