package aggregator

import (
	"context"
	"io"
	"net/http"

	"github.com/lmosd/lmosd/bridge/mcp/features"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// absent tells the client of a thing that is not there so in its own words: a session that it had is over, and a new one is refused
// with the reason.
func (h *Handler) absent(w http.ResponseWriter, r *http.Request, err error) {
	s := refusing{unknown(err)}
	f := &front{server: s, Handler: h.serve(s, nil)}
	defer f.Handler.Close()
	f.serve(h, w, r)
}

// unknown is the error of a request to a thing that is not there, or cannot be told from another.
func unknown(err error) *protocol.Error {
	e := features.Fault(err)
	switch interact.AsError(err).Code {
	case interact.NotFound, interact.Ambiguous, interact.Withdrawn, interact.Expired, interact.Invalid:
		e.Code = protocol.InvalidParams
	}
	return e
}

// A refusing server refuses all that it is asked.
type refusing struct{ why *protocol.Error }

func (s refusing) Call(_ context.Context, m *protocol.Message, _ func(*protocol.Message) error) (*protocol.Message, error) {
	return protocol.RespondError(m.ID(), s.why), nil
}

func (s refusing) Session(ctx context.Context) (protocol.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	return &refusal{s.why, ctx, cancel, make(chan *protocol.Message)}, nil
}

// A refusal is a session with a refusing server.
type refusal struct {
	why    *protocol.Error
	ctx    context.Context
	cancel context.CancelFunc
	said   chan *protocol.Message
}

func (c *refusal) Read(context.Context) (*protocol.Message, error) {
	select {
	case m := <-c.said:
		return m, nil
	case <-c.ctx.Done():
		return nil, io.EOF
	}
}

func (c *refusal) Write(ctx context.Context, m *protocol.Message) error {
	if !m.IsRequest() {
		return nil
	}
	select {
	case c.said <- protocol.RespondError(m.ID(), c.why):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ctx.Done():
		return io.ErrClosedPipe
	}
}

func (c *refusal) Close() error {
	c.cancel()
	return nil
}

// none is the error of a tool or a prompt that is not there.
func none(what, name string) *protocol.Error {
	return protocol.Errorf(protocol.InvalidParams, "there is no %s %q", what, interact.Clip(name, features.MaxName))
}

// noResource is the error of a URI that leads to nothing.
func noResource(uri string) *protocol.Error {
	return protocol.Errorf(protocol.InvalidParams, "there is no resource %s", interact.Clip(uri, 256)).With(map[string]any{"uri": uri})
}
