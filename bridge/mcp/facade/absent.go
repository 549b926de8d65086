package facade

import (
	"context"
	"io"
	"net/http"

	"github.com/lmosd/lmosd/bridge/mcp/offer"
	"github.com/lmosd/lmosd/bridge/mcp/wire"
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
func unknown(err error) *wire.Error {
	e := offer.Fault(err)
	switch interact.AsError(err).Code {
	case interact.NotFound, interact.Ambiguous, interact.Withdrawn, interact.Expired, interact.Invalid:
		e.Code = wire.InvalidParams
	}
	return e
}

// A refusing server refuses all that it is asked.
type refusing struct{ why *wire.Error }

func (s refusing) Call(_ context.Context, m *wire.Message, _ func(*wire.Message) error) (*wire.Message, error) {
	return wire.Refuse(m.ID(), s.why), nil
}

func (s refusing) Session(ctx context.Context) (wire.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	return &refusal{s.why, ctx, cancel, make(chan *wire.Message)}, nil
}

// A refusal is a session with a refusing server.
type refusal struct {
	why    *wire.Error
	ctx    context.Context
	cancel context.CancelFunc
	said   chan *wire.Message
}

func (c *refusal) Read(context.Context) (*wire.Message, error) {
	select {
	case m := <-c.said:
		return m, nil
	case <-c.ctx.Done():
		return nil, io.EOF
	}
}

func (c *refusal) Write(ctx context.Context, m *wire.Message) error {
	if !m.IsRequest() {
		return nil
	}
	select {
	case c.said <- wire.Refuse(m.ID(), c.why):
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
func none(what, name string) *wire.Error {
	return wire.Errorf(wire.InvalidParams, "there is no %s %q", what, interact.Clip(name, offer.MaxName))
}

// noResource is the error of a URI that leads to nothing.
func noResource(uri string) *wire.Error {
	return wire.Errorf(wire.InvalidParams, "there is no resource %s", interact.Clip(uri, 256)).With(map[string]any{"uri": uri})
}
