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
	// minUptime is the life of a connection after which its end is not counted as a crash.
	minUptime = 10 * time.Second
	// The first restart is immediate. The second waits firstPause; then the delay doubles up to maxPause.
	firstPause = 500 * time.Millisecond
	maxPause   = 30 * time.Second
)

// health counts the consecutive crashes of a server. Backend.mu guards it.
type health struct {
	crashes int
	until   time.Time // earliest restart
	err     error     // of the last crash
}

// crashed records the end of a connection.
func (h *health) crashed(now time.Time, lasted time.Duration, err error) {
	if lasted >= minUptime {
		h.crashes = 0
	}
	if h.crashes++; h.crashes == 1 {
		return
	}
	pause := min(firstPause<<min(h.crashes-2, 16), maxPause)
	h.until, h.err = now.Add(pause-time.Duration(rand.Int64N(int64(pause/4)))), err
}

// dial opens a connection within the bounds.
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
		return nil, interact.Errorf(interact.Overloaded, "try again later", "%s already has %d connections", b.o.Name, b.o.MaxConns)
	case now.Before(h.until):
		return nil, &interact.Error{Code: interact.Unreachable, Err: h.err, Hint: "try again in " + h.until.Sub(now).Round(time.Millisecond).String(),
			Title: b.o.Name + " crashes repeatedly"}
	}
	conn, err := b.o.Dial(ctx)
	if err != nil {
		b.gone()
		return nil, err
	}
	return &counted{Conn: conn, b: b, started: now, ctx: ctx, gone: sync.OnceFunc(b.gone)}, nil
}

func (b *Backend) gone() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns--
}

// A counted connection counts toward MaxConns.
type counted struct {
	protocol.Conn
	b       *Backend
	started time.Time
	ctx     context.Context // of the connection
	gone    func()

	once sync.Once // guards ended
}

func (c *counted) Read(ctx context.Context) (*protocol.Message, error) {
	m, err := c.Conn.Read(ctx)
	if _, bad := err.(*protocol.Error); err != nil && !bad {
		c.ended(err)
	}
	return m, err
}

func (c *counted) Write(ctx context.Context, m *protocol.Message) error {
	err := c.Conn.Write(ctx, m)
	if err != nil && ctx.Err() == nil {
		c.ended(err)
	}
	return err
}

// ended records an end that the server caused. Ends of tunnels are not recorded: they can have other causes.
func (c *counted) ended(err error) {
	c.once.Do(func() {
		if c.ctx.Err() == nil && !c.b.o.Relay {
			c.b.mu.Lock()
			defer c.b.mu.Unlock()
			c.b.health.crashed(time.Now(), time.Since(c.started), err)
		}
	})
}

func (c *counted) Close() error {
	c.once.Do(func() {}) // an end from here on is intended
	defer c.gone()
	return c.Conn.Close()
}

// Relayed returns the error of lmosd behind a JSON-RPC error of a transport that failed; nil for other errors. A server can forge one,
// which affects only its own callers.
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

// relayed are the codes of transport errors.
var relayed = []interact.Code{interact.Unreachable, interact.Unauthenticated, interact.Forbidden, interact.Overloaded, interact.Timeout,
	interact.RateLimited, interact.TooLarge}
