package aggregator

import (
	"context"
	"errors"
	"mime"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/features"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/bridge/mcp/server"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A front is one server, and the HTTP at which it is served.
type front struct {
	server protocol.Server
	*server.Handler
	close func() // ends what stands behind the HTTP

	tunnel string                                      // the action that it is passed through; empty: it is not
	offer  atomic.Pointer[features.Offer]              // as it was described last
	listed atomic.Pointer[listed]                      // where the description has no room for all
	params atomic.Pointer[map[string][]protocol.Param] // the arguments of its tools that headers repeat
	busy   int                                         // owned by Handler.mu
	used   time.Time                                   // owned by Handler.mu
}

// front makes the front of a thing.
func (h *Handler) front(d *td.Description, ref, tunnel string) *front {
	var f *front
	if tunnel != "" {
		here := h.o.Mesh.Signer().DID()
		// A record that names another host, too, may lead there.
		near := len(d.Record.Hosts) > 0 && !slices.ContainsFunc(d.Record.Hosts, func(host td.Host) bool { return host.Node != here })
		back := backend.New(backend.Options{Name: d.Thing.Name(), Relay: true, Near: near, Version: h.o.Version, Log: h.o.Log,
			Dial: func(ctx context.Context) (protocol.Conn, error) {
				from := did.PrincipalOf(ctx) // of a session of its own
				if from == nil {
					from = did.PrincipalOf(h.ctx)
				}
				return protocol.Lines(bridge.Dial(ctx, h.o.Mesh, &interact.Message{Type: interact.InvokeAction, Thing: ref, Name: tunnel,
					From: from, ID: interact.NewID(), Deadline: time.Now().Add(tunnelFor)})), nil
			}})
		p := &passed{h: h, back: back, known: &thing{h: h, ref: ref}}
		f = h.both(d.Thing.Name(), standIn{p})
		p.sessions, f.server, f.tunnel = f.server, p, tunnel
	} else {
		f = h.both(d.Thing.Name(), newThing(h, ref))
	}
	f.Handler = h.serve(f.server, func(tool string) []protocol.Param { return (*f.params.Load())[tool] })
	return f
}

// both gives a modern server sessions of the old era.
func (h *Handler) both(name string, m modern) *front {
	var work sync.WaitGroup
	back := backend.New(backend.Options{Name: name, Own: true, Log: h.o.Log, Dial: func(ctx context.Context) (protocol.Conn, error) {
		here, there := net.Pipe()
		work.Go(func() { _ = backend.Serve(ctx, lone{m}, protocol.Lines(there), nil) })
		return protocol.Lines(here), nil
	}})
	return &front{server: &dual{m, back}, close: func() {
		back.Close()
		m.close()
		work.Wait()
	}}
}

// A modern server answers requests of 2026-07-28.
type modern interface {
	Call(ctx context.Context, m *protocol.Message, notify func(*protocol.Message) error) (*protocol.Message, error)
	close()
}

// A dual server has sessions of the old era, too.
type dual struct {
	modern
	back *backend.Backend
}

func (d *dual) Session(ctx context.Context) (protocol.Conn, error) { return d.back.Session(ctx) }

// lone is a modern server as package backend sees one: it has no sessions of the old era. Whoever has one there is its caller.
type lone struct{ modern }

func (l lone) Call(ctx context.Context, m *protocol.Message, notify func(*protocol.Message) error) (*protocol.Message, error) {
	user := protocol.UserOf(ctx)
	return l.modern.Call(did.WithPrincipal(protocol.WithCaller(ctx, user), principalOf(user)), m, notify)
}

func (lone) Session(context.Context) (protocol.Conn, error) { return nil, errors.ErrUnsupported }

// describes reports whether d is what it was described by last.
func (f *front) describes(d *td.Description) bool {
	o := f.offer.Load()
	return o != nil && o.Desc.Record.Hash == d.Record.Hash
}

// describe takes over a description.
func (f *front) describe(d *td.Description) {
	old := f.offer.Load()
	if now := old.Renewed(d); now != old {
		params := now.Params()
		f.offer.Store(now)
		f.params.Store(&params)
	}
}

// serve answers a request, or a body of lines.
func (f *front) serve(h *Handler, w http.ResponseWriter, r *http.Request) {
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media == LinesType && r.Method == http.MethodPost {
		h.lines(f.server, w, r)
		return
	}
	f.ServeHTTP(w, r)
}

// end ends the sessions of a front, and then what stands behind them.
func (f *front) end() {
	f.Handler.Close()
	f.close()
}
