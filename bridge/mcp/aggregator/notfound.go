package aggregator

import (
	"context"
	"io"
	"net/http"

	"github.com/lmosd/lmosd/bridge/mcp/features"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// serveNotFound responds for an unknown Thing in the protocol of the client: an existing session is not found, and a new one fails with
// the reason.
func (h *Handler) serveNotFound(w http.ResponseWriter, r *http.Request, err error) {
	s := failingServer{targetError(err)}
	e := &endpoint{server: s, Handler: h.serve(s, nil)}
	defer e.Handler.Close()
	e.serve(h, w, r)
}

// targetError returns the error of a request to an unknown or ambiguous Thing.
func targetError(err error) *protocol.Error {
	e := features.Error(err)
	switch interact.AsError(err).Code {
	case interact.NotFound, interact.Ambiguous, interact.Withdrawn, interact.Expired, interact.Invalid:
		e.Code = protocol.InvalidParams
	}
	return e
}

// A failingServer responds to each request with an error.
type failingServer struct{ err *protocol.Error }

func (s failingServer) Call(_ context.Context, m *protocol.Message, _ protocol.Notify) (*protocol.Message, error) {
	return protocol.RespondError(m.ID(), s.err), nil
}

func (s failingServer) Session(ctx context.Context) (protocol.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	return &failingSession{s.err, ctx, cancel, make(chan *protocol.Message)}, nil
}

// A failingSession is a session of a failingServer.
type failingSession struct {
	err    *protocol.Error
	ctx    context.Context
	cancel context.CancelFunc
	out    chan *protocol.Message
}

func (c *failingSession) Read(ctx context.Context) (*protocol.Message, error) {
	return protocol.Receive(ctx, c.out, c.ctx)
}

func (c *failingSession) Write(ctx context.Context, m *protocol.Message) error {
	if !m.IsRequest() {
		return nil
	}
	select {
	case c.out <- protocol.RespondError(m.ID(), c.err):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ctx.Done():
		return io.ErrClosedPipe
	}
}

func (c *failingSession) Close() error {
	c.cancel()
	return nil
}

// notFound returns the error for an unknown tool or prompt.
func notFound(what, name string) *protocol.Error {
	return protocol.Errorf(protocol.InvalidParams, "unknown %s %q", what, interact.Clip(name, features.MaxName))
}

// noResource returns the error for an unknown resource.
func noResource(uri string) *protocol.Error {
	return protocol.Errorf(protocol.InvalidParams, "unknown resource %s", interact.Clip(uri, 256)).With(map[string]any{"uri": uri})
}
