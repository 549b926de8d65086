package aggregator

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/features"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
)

// A remoteServer passes messages to an MCP server at another host unchanged. While the host is unreachable, the signed TD replaces it:
// lists come from the TD, and calls fail until the host is back. A client that requests the lists only at its start can therefore start
// in the meantime.
type remoteServer struct {
	h         *Handler
	back      *backend.Backend // the connection to the host
	described *thing           // the server as described by the TD
	sessions  protocol.Server  // sessions while the host is unreachable, made of Call
}

func (p *remoteServer) close() { p.back.Close() }

// Call implements [statelessServer].
func (p *remoteServer) Call(ctx context.Context, m *protocol.Message, notify protocol.Notify) (*protocol.Message, error) {
	if m.Method() == protocol.Listen {
		return p.listen(ctx, m, notify, false)
	}
	r, err := p.back.Call(ctx, m, notify)
	why := unavailable(r, err)
	if why == nil || ctx.Err() != nil {
		return r, err
	}
	switch m.Method() {
	case protocol.Discover, protocol.ListTools, protocol.ListPrompts, protocol.ListResources, protocol.ListTemplates:
		f, gone := p.described.features(ctx)
		if gone != nil {
			return r, err
		}
		return p.fromTD(ctx, f, m, why), nil
	case protocol.CallTool:
		if !why.Started {
			return protocol.Respond(m.ID(), features.Failed(why)), nil
		}
	}
	return r, err
}

// An offlineServer serves sessions that begin while the host is unreachable. It responds to server/discover from the TD.
type offlineServer struct{ *remoteServer }

// Call implements [statelessServer].
func (s offlineServer) Call(ctx context.Context, m *protocol.Message, notify protocol.Notify) (*protocol.Message, error) {
	switch m.Method() {
	case protocol.Listen:
		return s.listen(ctx, m, notify, true)
	case protocol.Discover:
	default:
		return s.remoteServer.Call(ctx, m, notify)
	}
	f, err := s.described.features(ctx)
	if err != nil {
		return nil, err
	}
	return discovered(m, selfOf(f, s.h.o.Version), f.Desc.Thing.Description), nil
}

// unavailable returns the reason of a failed request if it is retryable; otherwise nil.
func unavailable(r *protocol.Message, err error) *interact.Error {
	if err == nil {
		if e := r.Error(); e != nil {
			return retryable(protocol.InteractError(e))
		}
		return nil
	}
	return retryable(interact.AsError(err))
}

func retryable(e *interact.Error) *interact.Error {
	if e == nil || !e.Code.Retryable() {
		return nil
	}
	return e
}

// metaStale is the member of _meta with the reason why a list comes from the TD only.
const metaStale = "dev.lmosd/away"

// fromTD responds from the TD instead of an unreachable server.
func (p *remoteServer) fromTD(ctx context.Context, f *features.Features, m *protocol.Message, why *interact.Error) *protocol.Message {
	var r *protocol.Message
	switch m.Method() {
	case protocol.Discover:
		r = discovered(m, selfOf(f, p.h.o.Version), f.Desc.Thing.Description)
	case protocol.ListPrompts:
		r = paged(ctx, p.h.sealer, m, "prompts", f.Prompts, func(p *features.Prompt) string { return p.Name })
	case protocol.ListResources:
		resources, _ := f.Own()
		r = paged(ctx, p.h.sealer, m, "resources", resources, func(r features.Resource) string { return r.URI })
	case protocol.ListTemplates:
		_, templates := f.Own()
		r = paged(ctx, p.h.sealer, m, "resourceTemplates", templates, func(r features.Resource) string { return r.Template })
	default:
		r = paged(ctx, p.h.sealer, m, "tools", f.Tools, func(t *features.Tool) string { return t.Name })
	}
	return r.WithResult(protocol.Encode(protocol.ErrorData(why)), "_meta", metaStale)
}

const (
	// retryDelay is the first delay before a subscription at an unreachable host is retried. It doubles up to maxRetryDelay.
	retryDelay    = time.Second
	maxRetryDelay = 30 * time.Second
)

// listen handles subscriptions/listen. While the host is unreachable, it sends no notifications; then it reports everything as changed. With
// stale, the client has lists of the TD, and everything is reported as changed at once if the host is back already.
func (p *remoteServer) listen(ctx context.Context, m *protocol.Message, notify protocol.Notify, stale bool) (*protocol.Message, error) {
	acknowledged := false
	want, bad := filterOf(m)
	r, err := p.back.Call(ctx, m, func(n *protocol.Message) error {
		acknowledged = true
		if err := notify(n); err != nil || !stale || n.Method() != protocol.Acknowledged {
			return err
		}
		return allChanged(want, m, notify)
	})
	if acknowledged || unavailable(r, err) == nil || ctx.Err() != nil || bad != nil {
		return r, err
	}
	if err := notify(m.Acknowledgment(want)); err != nil {
		return nil, err
	}
	for pauses := (backoff.Backoff{First: retryDelay, Max: maxRetryDelay}); !acknowledged && unavailable(r, err) != nil; {
		select {
		case <-time.After(pauses.Next()):
		case <-p.h.ctx.Done():
			return r, err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		r, err = p.back.Call(ctx, m, func(n *protocol.Message) error {
			if acknowledged = true; n.Method() != protocol.Acknowledged {
				return notify(n)
			}
			return allChanged(want, m, notify)
		})
	}
	return r, err
}

// allChanged reports everything in the filter of the listen request m as changed.
func allChanged(f protocol.Filter, m *protocol.Message, notify protocol.Notify) (err error) {
	for method, wanted := range map[string]bool{protocol.ToolsChanged: f.Tools, protocol.PromptsChanged: f.Prompts,
		protocol.ResourcesChanged: f.Resources} {
		if wanted && err == nil {
			err = notify(m.Notification(method, map[string]any{}))
		}
	}
	for _, uri := range f.URIs {
		if err == nil {
			err = notify(m.Notification(protocol.ResourceUpdated, map[string]any{"uri": uri}))
		}
	}
	return err
}

// Session implements [protocol.Server].
func (p *remoteServer) Session(ctx context.Context) (protocol.Conn, error) {
	s := &startingSession{p: p, first: make(chan *protocol.Message, 1), ready: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(ctx)
	return protocol.EnsureResponses(s, func(error) error { return protocol.SessionEnd(ctx) }), nil
}

// A startingSession is a session at the server itself, or with its replacement if the host is unreachable at the start.
type startingSession struct {
	p       *remoteServer
	ctx     context.Context
	cancel  context.CancelFunc
	started atomic.Bool            // first was sent
	first   chan *protocol.Message // the initialize request
	ready   chan struct{}          // closed when conn is set

	mu       sync.Mutex
	conn     protocol.Conn
	received []*protocol.Message // messages before the response to initialize; used by Read only
}

func (s *startingSession) Write(ctx context.Context, m *protocol.Message) error {
	if m.Method() == protocol.Initialize && s.started.CompareAndSwap(false, true) { // the server responds to a second one
		s.first <- m
		return nil
	}
	select {
	case <-s.ready:
		return s.conn.Write(ctx, m)
	case <-s.ctx.Done():
		return io.ErrClosedPipe
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Read implements [protocol.Conn]. The first call starts the session.
func (s *startingSession) Read(ctx context.Context) (*protocol.Message, error) {
	select {
	case <-s.ready:
	default:
		if err := s.start(ctx); err != nil {
			return nil, err
		}
	}
	if len(s.received) > 0 {
		m := s.received[0]
		s.received = s.received[1:]
		return m, nil
	}
	return s.conn.Read(ctx)
}

func (s *startingSession) start(ctx context.Context) error {
	var m *protocol.Message
	select {
	case m = <-s.first:
	case <-s.ctx.Done():
		return io.EOF
	case <-ctx.Done():
		return ctx.Err()
	}
	conn, received, err := s.open(ctx, m)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		conn.Close()
		return io.EOF
	}
	s.conn, s.received = conn, received
	close(s.ready)
	return nil
}

// open returns a connection that responds to m, and the messages up to the response.
func (s *startingSession) open(ctx context.Context, m *protocol.Message) (conn protocol.Conn, received []*protocol.Message, err error) {
	for _, server := range []protocol.Server{s.p.back, s.p.sessions} {
		if conn, err = server.Session(s.ctx); err != nil {
			continue
		}
		stop := context.AfterFunc(s.ctx, func() { conn.Close() })
		if received, err = readUntilResponse(ctx, conn, m); err == nil && (server != s.p.back || unavailable(received[len(received)-1], nil) == nil) {
			stop()
			return conn, received, nil
		}
		stop()
		conn.Close()
		if s.ctx.Err() != nil {
			return nil, nil, io.EOF
		}
	}
	return nil, nil, err
}

// maxBefore and maxBeforeBytes bound the messages before the response to initialize.
const (
	maxBefore      = 1000
	maxBeforeBytes = protocol.MaxMessage
)

// readUntilResponse sends m and returns the messages up to its response.
func readUntilResponse(ctx context.Context, conn protocol.Conn, m *protocol.Message) (received []*protocol.Message, err error) {
	if err := conn.Write(ctx, m); err != nil {
		return nil, err
	}
	for n, size := 0, 0; n < maxBefore && size < maxBeforeBytes; n++ {
		r, err := conn.Read(ctx)
		if bad, ok := err.(*protocol.Error); ok {
			if r == nil {
				continue
			}
			r, err = protocol.RespondError(r.ID(), bad), nil
		}
		if err != nil {
			return nil, err
		}
		size += len(r.Bytes())
		if received = append(received, r); r.IsResponse() && r.ID() == m.ID() {
			return received, nil
		}
	}
	return nil, interact.Errorf(interact.AgentFailed, "the server is at fault",
		"the server sent too many messages before the response to initialize")
}

func (s *startingSession) Close() error {
	s.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return nil
	}
	return s.conn.Close()
}
