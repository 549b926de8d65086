package backend

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/ratelimit"
)

// maxUser bounds the name of a relay's user, in bytes.
const maxUser = 64

// maxCalls bounds the pending requests on one tunnel. A relay opens another for more.
const maxCalls = 256

// An Authorizer decides whether a request may be sent to the server. Nil allows all.
type Authorizer func(ctx context.Context, m *protocol.Message) error

// Serve handles the messages on conn, whose other end is a relay, until conn or ctx ends: concurrent stateless requests, or one session
// if initialize comes first. It closes conn.
func Serve(ctx context.Context, s protocol.Server, conn protocol.Conn, authorizer Authorizer) error {
	ctx, cancel := context.WithCancel(ctx)
	t := &tunnel{server: s, conn: conn, authorizer: authorizer, calls: newPendingCalls(maxCalls)}
	defer conn.Close()
	defer t.work.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	for {
		m, err := conn.Read(ctx)
		if bad, ok := err.(*protocol.Error); ok {
			if err := conn.Write(ctx, protocol.RespondError(protocol.IDOfInvalid(m), bad)); err != nil {
				return err
			}
			continue
		}
		switch {
		case err != nil && (errors.Is(err, io.EOF) || ctx.Err() != nil):
			return ctx.Err()
		case err != nil:
			return err
		case m.Method() == protocol.Initialize && !m.IsModern():
			return t.session(ctx, m)
		}
		t.take(ctx, m)
	}
}

// A tunnel is the host's end of a tunnel.
type tunnel struct {
	server     protocol.Server
	conn       protocol.Conn
	authorizer Authorizer
	work       sync.WaitGroup
	calls      *pendingCalls
}

// take handles a stateless request in its own goroutine.
func (t *tunnel) take(ctx context.Context, m *protocol.Message) {
	if !m.IsRequest() {
		if m.Method() == protocol.Cancelled {
			t.calls.cancel(m)
		}
		return
	}
	callCtx, bad := t.calls.enter(ctx, m.ID())
	if bad != nil {
		_ = t.conn.Write(ctx, protocol.RespondError(m.ID(), bad))
		return
	}
	t.work.Go(func() {
		defer t.calls.release()
		r := t.call(callCtx, m)
		if !t.calls.complete(callCtx, m.ID()) {
			_ = t.conn.Write(ctx, r)
		}
	})
}

func (t *tunnel) call(ctx context.Context, m *protocol.Message) *protocol.Message {
	if bad := m.CheckMeta(); bad != nil {
		return protocol.RespondError(m.ID(), bad)
	}
	if err := t.authorize(ctx, m); err != nil {
		return protocol.RespondError(m.ID(), protocol.FromError(err))
	}
	ctx = did.WithPrincipal(ctx, PrincipalOf(did.PrincipalOf(ctx), m))
	if raw, _ := m.Param("_meta", protocol.MetaUser); raw != nil {
		user := m.Text("_meta", protocol.MetaUser)
		ctx = protocol.WithUser(ctx, user[:min(len(user), maxUser)])
		m = m.WithParam(nil, "_meta", protocol.MetaUser)
	}
	r, err := t.server.Call(ctx, m, func(n *protocol.Message) error { return t.conn.Write(ctx, n) })
	if err != nil {
		return protocol.RespondError(m.ID(), protocol.FromError(err))
	}
	return rewriteError(r)
}

func (t *tunnel) authorize(ctx context.Context, m *protocol.Message) error {
	if t.authorizer == nil {
		return nil
	}
	return t.authorizer(ctx, m)
}

// rewriteError replaces a transport error ([Relayed]) by the error of lmosd for clients.
func rewriteError(m *protocol.Message) *protocol.Message {
	if !m.IsResponse() {
		return m
	}
	if e := m.Error(); e != nil {
		if ours := Relayed(e); ours != nil {
			return protocol.RespondError(m.ID(), protocol.FromError(ours))
		}
	}
	return m
}

// session passes the messages of a session in both directions until one end closes it. The error is that of the server's end.
func (t *tunnel) session(ctx context.Context, first *protocol.Message) error {
	up, err := t.server.Session(ctx)
	if err != nil {
		return errors.Join(err, t.conn.Write(ctx, protocol.RespondError(first.ID(), protocol.FromError(err))))
	}
	defer up.Close()
	if err := up.Write(ctx, first); err != nil {
		return errors.Join(err, t.conn.Write(ctx, protocol.RespondError(first.ID(), protocol.FromError(err))))
	}
	ended := make(chan error, 1)
	t.work.Go(func() {
		var rate ratelimit.Bucket
		ended <- copyAll(ctx, t.conn, up, t.malformed(ctx), func(m *protocol.Message) (*protocol.Message, error) {
			if m.Droppable() && !rate.Take(protocol.ProgressLimit, 1, time.Now()) {
				return nil, nil
			}
			return rewriteError(m), nil
		})
		t.conn.Close() // ends the loop below
	})
	err = copyAll(ctx, up, t.conn,
		func(m *protocol.Message, bad *protocol.Error) error {
			return t.conn.Write(ctx, protocol.RespondError(protocol.IDOfInvalid(m), bad))
		},
		func(m *protocol.Message) (*protocol.Message, error) {
			err := t.authorize(ctx, m)
			if !m.IsRequest() {
				return m, nil
			}
			if err == nil {
				err = up.Write(ctx, m)
			}
			if err != nil { // it was not sent
				err = t.conn.Write(ctx, protocol.RespondError(m.ID(), protocol.FromError(err)))
			}
			return nil, err
		})
	select {
	case err = <-ended:
	default:
	}
	return err
}

// malformed returns a handler of malformed messages of the server: it responds with an error if the message has an id, and fails after
// maxInvalid messages.
func (t *tunnel) malformed(ctx context.Context) func(*protocol.Message, *protocol.Error) error {
	invalid := 0
	return func(m *protocol.Message, bad *protocol.Error) error {
		if invalid++; invalid > maxInvalid {
			return errNotMCP
		}
		if m == nil {
			return nil
		}
		return t.conn.Write(ctx, protocol.RespondMalformed(m.ID(), bad))
	}
}

// copyAll passes the messages of one connection to another until it ends. Malformed messages go to malformed. The filter may handle a
// message itself and return nil.
func copyAll(ctx context.Context, to, from protocol.Conn, malformed func(*protocol.Message, *protocol.Error) error,
	filter func(*protocol.Message) (*protocol.Message, error)) error {
	for {
		m, err := from.Read(ctx)
		if bad, ok := err.(*protocol.Error); ok {
			if err := malformed(m, bad); err != nil {
				return err
			}
			continue
		}
		if err == nil {
			m, err = filter(m)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case m == nil:
			continue
		}
		if err := to.Write(ctx, m); err != nil {
			return err
		}
	}
}
