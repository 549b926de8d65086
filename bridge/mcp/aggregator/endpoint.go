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
type endpoint struct {
	server protocol.Server
	*server.Handler
	close func() // closes the server behind the handler

	tunnel   string                                      // the action that tunnels MCP messages; empty for other Things
	features atomic.Pointer[features.Features]           // of the last description
	live     atomic.Pointer[liveFeatures]                // the live tools, if the TD omits some
	params   atomic.Pointer[map[string][]protocol.Param] // the arguments of the tools that headers repeat
	busy     int                                         // guarded by Handler.mu
	used     time.Time                                   // guarded by Handler.mu
}

// newEndpoint creates the endpoint of a Thing.
func (h *Handler) newEndpoint(d *td.Description, ref, tunnel string) *endpoint {
	var e *endpoint
	if tunnel != "" {
		here := h.o.Mesh.Signer().DID()
		// A record with another host may lead to that host.
		near := len(d.Record.Hosts) > 0 && !slices.ContainsFunc(d.Record.Hosts, func(host td.Host) bool { return host.Node != here })
		back := backend.New(backend.Options{Name: d.Thing.Name(), Relay: true, Near: near, Version: h.o.Version, Log: h.o.Log,
			Dial: func(ctx context.Context) (protocol.Conn, error) {
				return protocol.Lines(bridge.Dial(ctx, h.o.Mesh, &interact.Message{Type: interact.InvokeAction, Thing: ref, Name: tunnel,
					From: did.PrincipalOf(ctx), ID: interact.NewID(), Deadline: time.Now().Add(tunnelTimeout)})), nil
			}})
		p := &remoteServer{h: h, back: back, described: &thing{h: h, ref: ref}}
		e = h.withSessions(d.Thing.Name(), offlineServer{p})
		p.sessions, e.server, e.tunnel = e.server, p, tunnel
	} else {
		e = h.withSessions(d.Thing.Name(), newThing(h, ref))
	}
	e.Handler = h.serve(e.server, func(_ context.Context, tool string) []protocol.Param { return (*e.params.Load())[tool] })
	return e
}

// withSessions adds sessions of earlier revisions to a stateless server.
func (h *Handler) withSessions(name string, m statelessServer) *endpoint {
	var work sync.WaitGroup
	back := backend.New(backend.Options{Name: name, Own: true, Log: h.o.Log, Dial: func(ctx context.Context) (protocol.Conn, error) {
		here, there := net.Pipe()
		work.Go(func() { _ = backend.Serve(did.AsProcess(ctx), statelessOnly{m}, protocol.Lines(there), nil) })
		return protocol.Lines(here), nil
	}})
	return &endpoint{server: &sessionServer{m, back}, close: func() {
		back.Close()
		m.close()
		work.Wait()
	}}
}

// A statelessServer handles requests of 2026-07-28.
type statelessServer interface {
	Call(ctx context.Context, m *protocol.Message, notify protocol.Notify) (*protocol.Message, error)
	close()
}

// A sessionServer is a stateless server with sessions.
type sessionServer struct {
	statelessServer
	back *backend.Backend
}

func (d *sessionServer) Session(ctx context.Context) (protocol.Conn, error) {
	return d.back.Session(ctx)
}

// statelessOnly adapts a stateless server to [protocol.Server], for package backend. The user of a session is its caller.
type statelessOnly struct{ statelessServer }

func (l statelessOnly) Call(ctx context.Context, m *protocol.Message, notify protocol.Notify) (*protocol.Message, error) {
	return l.statelessServer.Call(protocol.WithCaller(ctx, protocol.UserOf(ctx)), m, notify)
}

func (statelessOnly) Session(context.Context) (protocol.Conn, error) {
	return nil, errors.ErrUnsupported
}

// describes reports whether the features of the endpoint are those of d.
func (e *endpoint) describes(d *td.Description) bool {
	f := e.features.Load()
	return f != nil && f.Desc.Record.Hash == d.Record.Hash
}

// describe updates the features.
func (e *endpoint) describe(d *td.Description) {
	old := e.features.Load()
	if now := old.Renewed(d); now != old {
		params := now.Params()
		e.features.Store(now)
		e.params.Store(&params)
	}
}

// serve handles a request, or a body of lines.
func (e *endpoint) serve(h *Handler, w http.ResponseWriter, r *http.Request) {
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media == LinesType && r.Method == http.MethodPost {
		h.lines(e.server, w, r)
		return
	}
	e.ServeHTTP(w, r)
}

// end closes the sessions, and then the server.
func (e *endpoint) end() {
	e.Handler.Close()
	e.close()
}
