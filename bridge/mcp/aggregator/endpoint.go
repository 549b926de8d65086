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

// An endpoint is one MCP server and its HTTP handler.
type front struct {
	server protocol.Server
	*server.Handler
	close func() // closes the server behind the handler

	tunnel string                                      // the action that tunnels MCP messages; empty for other Things
	offer  atomic.Pointer[features.Offer]              // of the last description
	listed atomic.Pointer[listed]                      // the live tools, if the TD omits some
	params atomic.Pointer[map[string][]protocol.Param] // the arguments of the tools that headers repeat
	busy   int                                         // guarded by Handler.mu
	used   time.Time                                   // guarded by Handler.mu
}

// newEndpoint creates the endpoint of a Thing.
func (h *Handler) front(d *td.Description, ref, tunnel string) *front {
	var f *front
	if tunnel != "" {
		here := h.o.Mesh.Signer().DID()
		// A record with another host may lead to that host.
		near := len(d.Record.Hosts) > 0 && !slices.ContainsFunc(d.Record.Hosts, func(host td.Host) bool { return host.Node != here })
		back := backend.New(backend.Options{Name: d.Thing.Name(), Relay: true, Near: near, Version: h.o.Version, Log: h.o.Log,
			Dial: func(ctx context.Context) (protocol.Conn, error) {
				from := did.PrincipalOf(ctx) // the principal of a caller with a session of its own
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

// withSessions adds sessions of earlier revisions to a stateless server.
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

// A statelessServer handles requests of 2026-07-28.
type modern interface {
	Call(ctx context.Context, m *protocol.Message, notify func(*protocol.Message) error) (*protocol.Message, error)
	close()
}

// A sessionServer is a stateless server with sessions.
type dual struct {
	modern
	back *backend.Backend
}

func (d *dual) Session(ctx context.Context) (protocol.Conn, error) { return d.back.Session(ctx) }

// statelessOnly adapts a stateless server to [protocol.Server], for package backend. The user of a session is its caller.
type lone struct{ modern }

func (l lone) Call(ctx context.Context, m *protocol.Message, notify func(*protocol.Message) error) (*protocol.Message, error) {
	user := protocol.UserOf(ctx)
	return l.modern.Call(did.WithPrincipal(protocol.WithCaller(ctx, user), principalOf(user)), m, notify)
}

func (lone) Session(context.Context) (protocol.Conn, error) { return nil, errors.ErrUnsupported }

// describes reports whether the features of the endpoint are those of d.
func (f *front) describes(d *td.Description) bool {
	o := f.offer.Load()
	return o != nil && o.Desc.Record.Hash == d.Record.Hash
}

// describe updates the features.
func (f *front) describe(d *td.Description) {
	old := f.offer.Load()
	if now := old.Renewed(d); now != old {
		params := now.Params()
		f.offer.Store(now)
		f.params.Store(&params)
	}
}

// serve handles a request, or a body of lines.
func (f *front) serve(h *Handler, w http.ResponseWriter, r *http.Request) {
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media == LinesType && r.Method == http.MethodPost {
		h.lines(f.server, w, r)
		return
	}
	f.ServeHTTP(w, r)
}

// end closes the sessions, and then the server.
func (f *front) end() {
	f.Handler.Close()
	f.close()
}
