package gateway

import (
	"context"
	"iter"
	"net/http"
	"strings"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact/rest/server"
	"github.com/lmosd/lmosd/publication"
	"github.com/lmosd/lmosd/td"
)

// tdTypes are the accepted media types of a TD (WoT Discovery §7.3.2.1).
var tdTypes = []string{tdJSON, "application/json", "application/ld+json"}

// newDirectory creates the server of the directory (WoT Discovery §7). It needs g.things.
func (g *Gateway) newDirectory() *tdd.Server {
	needs := map[tdd.Access]access{tdd.Open: open, tdd.Read: g.directoryAccess(), tdd.Change: admin}
	return tdd.New(tdd.Options{
		Things: meshOnly{g.o.Directory}, Publisher: registrar{g}, Describe: g.Self, Resembles: g.o.Directory.Resembles, Affiliation: g.o.Directory.Affiliation,
		RewriteForms: g.things.Describe, MaxTD: g.o.MaxTD, Log: g.log,
		Guard: func(a tdd.Access, h tdd.Handler) http.Handler { return g.protect(needs[a], handler(h)) },
	})
}

// meshOnly removes changes of discovered Things from the events of the directory, whose lists do not include them.
type meshOnly struct{ tdd.Things }

// Watch implements [tdd.Things].
func (m meshOnly) Watch(ctx context.Context, q td.Query, after uint64) iter.Seq2[directory.Change, error] {
	return func(yield func(directory.Change, error) bool) {
		for c, err := range m.Things.Watch(ctx, q, after) {
			if c.Reason != directory.Discovered && c.Reason != directory.Vanished && !yield(c, err) {
				return
			}
		}
	}
}

// A registrar publishes the TDs that the directory receives.
type registrar struct{ *Gateway }

// Registered implements [tdd.Publisher].
func (r registrar) Registered(record *td.Record) (publication.Registration, bool) {
	return r.o.Publisher.Registered(record)
}

// Enter implements [tdd.Publisher].
func (r registrar) Enter(ctx context.Context, raw []byte, reg publication.Registration) (id string, created bool, err error) {
	p, err := r.publish(ctx, raw, reg)
	if err != nil {
		return "", false, err
	}
	return p.ID, p.Created, nil
}

// Register implements [tdd.Publisher].
func (r registrar) Register(ctx context.Context, id string, reg publication.Registration) error {
	return r.o.Publisher.Extend(ctx, id, reg)
}

// Withdraw implements [tdd.Publisher].
func (r registrar) Withdraw(ctx context.Context, id string) error {
	_, err := r.o.Publisher.Unpublish(ctx, id)
	return err
}

// newThings creates the server of the paths below /things/{id}.
func (g *Gateway) newThings() *server.Server {
	o := server.Options{Mesh: g.o.Mesh, Find: g.o.Directory.Get, Log: g.log, Base: g.baseURL, Count: g.metrics.event,
		Bearer: g.tcp != nil && !g.guard.loopback, PrivateCallbacks: g.o.PrivateCallbacks}
	if g.o.WS != nil {
		o.Socket = socketRoute
	}
	return server.New(o)
}

// baseURL returns the URL of the API for the caller of r. Callers of the unix socket get the TCP one, if there is one.
func (g *Gateway) baseURL(r *http.Request) string {
	switch url := g.URL(); {
	case g.o.PublicURL != "":
		return strings.TrimSuffix(g.o.PublicURL, "/")
	case isTrusted(r) && url != "":
		return url
	}
	return g.o.scheme() + "://" + r.Host
}

// interactions serves the affordances of Things, and their TDs with forms of this node, to callers with access a.
func (g *Gateway) interactions(a access) http.Handler {
	return g.protect(a, func(w http.ResponseWriter, r *http.Request) error {
		g.things.ServeHTTP(w, r)
		return nil
	})
}

func (g *Gateway) publish(ctx context.Context, raw []byte, reg publication.Registration) (*api.Publication, error) {
	p, err := g.o.Publisher.Enter(ctx, raw, reg)
	g.metrics.published(p, err)
	return p, err
}
