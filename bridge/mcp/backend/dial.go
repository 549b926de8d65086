package backend

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

const (
	// steady is how long a connection must last for its end to be no crash.
	steady = 10 * time.Second
	// A server that crashed once is started again at once; then it is waited, twice as long each time.
	firstPause = 500 * time.Millisecond
	maxPause   = 30 * time.Second
)

// health says how often a server ended by itself right after its start, one time after the other. It is owned by Backend.mu.
type health struct {
	crashes int
	until   time.Time // it is not started before
	err     error     // of the last
}

// crashed notes the end of a connection.
func (h *health) crashed(now time.Time, lasted time.Duration, err error) {
	if lasted >= steady {
		h.crashes = 0
	}
	if h.crashes++; h.crashes == 1 {
		return
	}
	pause := maxPause
	if n := h.crashes - 2; n < 6 {
		pause = firstPause << n
	}
	h.until, h.err = now.Add(pause-time.Duration(rand.Int64N(int64(pause/4)))), err
}

// dial opens a connection, if there may be one more.
func (b *Backend) dial(ctx context.Context) (protocol.Conn, error) {
	now := time.Now()
	b.mu.Lock()
	full, h := b.conns >= b.o.MaxConns, b.health
	if !full && !now.Before(h.until) {
		b.conns++
	}
	b.mu.Unlock()
	switch {
	case full:
		return nil, interact.Errorf(interact.Overloaded, "try again later", "%s has %d connections already", b.o.Name, b.o.MaxConns)
	case now.Before(h.until):
		return nil, &interact.Error{Code: interact.Unreachable, Err: h.err, Hint: "try again in " + h.until.Sub(now).Round(time.Millisecond).String(),
			Title: b.o.Name + " ends right after its start, again and again"}
	}
	conn, err := b.o.Dial(ctx)
	if err != nil {
		b.gone()
		return nil, err
	}
	return &counted{Conn: conn, b: b, begun: now, ctx: ctx, gone: sync.OnceFunc(b.gone)}, nil
}

func (b *Backend) gone() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns--
}

// A counted connection is one of a backend's.
type counted struct {
	protocol.Conn
	b     *Backend
	begun time.Time
	ctx   context.Context // of the connection
	gone  func()

	once sync.Once // of ended
}

// Read implements [protocol.Conn].
func (c *counted) Read(ctx context.Context) (*protocol.Message, error) {
	m, err := c.Conn.Read(ctx)
	if _, bad := err.(*protocol.Error); err != nil && !bad {
		c.ended(err)
	}
	return m, err
}

// Write implements [protocol.Conn].
func (c *counted) Write(ctx context.Context, m *protocol.Message) error {
	err := c.Conn.Write(ctx, m)
	if err != nil && ctx.Err() == nil {
		c.ended(err)
	}
	return err
}

// ended notes an end that the server made by itself. That of a tunnel may have many reasons, and those are said as they are.
func (c *counted) ended(err error) {
	c.once.Do(func() {
		if c.ctx.Err() == nil && !c.b.o.Relay {
			c.b.mu.Lock()
			defer c.b.mu.Unlock()
			c.b.health.crashed(time.Now(), time.Since(c.begun), err)
		}
	})
}

func (c *counted) Close() error {
	c.once.Do(func() {}) // what ends now was ended by us
	defer c.gone()
	return c.Conn.Close()
}

// Relayed is an error of lmosd's own that came as one of JSON-RPC: of a carrier, which has no other way to say why there is no answer. It
// is nil for all others. A server that forges one fools nobody but its own callers.
func Relayed(e *protocol.Error) *interact.Error {
	if e.Code != protocol.InternalError {
		return nil
	}
	ours := protocol.InteractError(e)
	if ours == nil || !slices.Contains(relayed, ours.Code) {
		return nil
	}
	return ours
}

var relayed = []interact.Code{interact.Unreachable, interact.Unauthenticated, interact.Forbidden, interact.Overloaded, interact.Timeout,
	interact.RateLimited, interact.TooLarge}
