package gateway

import (
	"context"
	"net/http"

	"github.com/lmosd/lmosd/publication"
)

// socketRoute is the path of the WebSocket endpoint.
const socketRoute = "/ws"

// serveSocket serves one WebSocket. Callers with the right to call may consume; those with the right to administer may attach agents. A
// drain does not wait for it, because it is mostly idle.
func (g *Gateway) serveSocket(w http.ResponseWriter, r *http.Request) error {
	if err := g.guard.authorize(r, call); err != nil {
		return err
	}
	if g.gate.Closed() {
		return errShuttingDown()
	}
	// The callers of the agents that the peer attaches. None given replaces those of an earlier connection, too.
	callers := append([]string{}, r.URL.Query()["for"]...)
	ctx, cancel := context.WithCancel(publication.WithRoles(publication.WithCallers(context.WithoutCancel(r.Context()), callers), r.URL.Query()["role"]))
	defer cancel()
	defer context.AfterFunc(g.lifeCtx, cancel)()
	if n := sessionOf(r); n != nil {
		defer context.AfterFunc(n.Context(), cancel)()
	}
	if grant := grantOf(r); grant != nil {
		defer context.AfterFunc(grant.Context(), cancel)()
	}
	g.o.WS.Serve(w, r.WithContext(ctx), g.guard.authorize(r, admin) == nil)
	return nil
}
