// Package backend connects to one MCP server, a local process or a remote URL, and adapts between protocol revisions. It detects the
// revision of the server, shares connections where the protocol allows it, and offers stateless requests (2026-07-28) and sessions
// (earlier revisions), whichever the server supports.
//
//	client     server
//	stateless  stateless  one connection for all callers (protocol.Multiplexer, hub.go)
//	session    session    one connection per session, messages unchanged
//	stateless  session    legacyserver.go, waiting.go, listen.go
//	session    stateless  legacysession.go
//
// A process can keep state between requests, so the package assigns processes as follows:
//
//   - Each session has a process of its own.
//   - Stateless callers share one process of a stateless server.
//   - Each stateless caller of a legacy server that supports input requests has a process of its own. All others share one (legacyserver.go).
//
// A process is started on demand, stopped when idle, and restarted with exponential back-off after a crash. State that it keeps in memory
// is lost with it.
//
// Sources: MCP 2026-07-28, "Lifecycle", "Versioning", backward compatibility; MCP 2025-11-25, "Lifecycle".
package backend

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/ratelimit"
)

// Options configure a [Backend].
type Options struct {
	// Dial opens a new connection to the server, for example a new process. The connection ends with ctx. Dial is required.
	Dial func(ctx context.Context) (protocol.Conn, error)
	// Relay means that the peer is a relay ([Serve]), which supports all revisions and needs no probe.
	Relay bool
	// Near means that the host at the other end of the relay is this node, so that requests carry the principal of the caller.
	Near bool
	// Own means that the server is in this process and trusted: [Serve] gets the name of the caller as its user.
	Own bool
	// Name is the name in errors and logs.
	Name string
	// Version is the version of lmosd for clientInfo; empty means "dev".
	Version string
	// MaxConns bounds the concurrent connections; 0 means 64. Beyond it calls fail with Overloaded.
	MaxConns int
	// Idle is the time after which an unused connection is closed; 0 means 5 min.
	Idle time.Duration
	// Start bounds the time until the first response of the server; 0 means 1 min, since a package runner may have to download it.
	Start time.Duration
	// Silent is the time without a response to server/discover after which initialize is sent, too; 0 means 2 s. HTTP servers always
	// respond.
	Silent time.Duration
	Log    *slog.Logger
}

// An Info describes a server.
type Info struct {
	// Modern reports support of 2026-07-28. Legacy is the newest earlier revision that the server supports, or "".
	Modern bool
	Legacy string
	// Discovered is the result of server/discover, or its equivalent made from initialize.
	Discovered json.RawMessage
	// Server is the self-reported name, for display only.
	Server struct{ Name, Version, Title string }
	// Instructions are the instructions for models.
	Instructions string
}

// A Backend implements [protocol.Server]. The caller must close it. It is safe for concurrent use.
type Backend struct {
	o      Options
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	legacy  *legacyServer
	owners  *owners
	secret  []byte // key for the names of users, known only to this relay
	listens *ratelimit.Inflight[string]
	probing chan struct{} // holds a token during a probe
	opening sync.Mutex    // serializes the opening of tunnels, so that concurrent callers open no more than needed; taken before mu

	mu     sync.Mutex
	info   *Info // nil before the first probe, and after the probed connection ended
	shared []*sharedConn
	conns  int
	health health
	closed bool
}

// New returns a backend. It does not connect before the first call.
func New(o Options) *Backend {
	o.MaxConns = cmp.Or(max(o.MaxConns, 0), 64)
	o.Idle = cmp.Or(max(o.Idle, 0), 5*time.Minute)
	o.Start = cmp.Or(max(o.Start, 0), time.Minute)
	o.Silent = cmp.Or(max(o.Silent, 0), probeTimeout)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	b := &Backend{o: o, secret: []byte(rand.Text()), probing: make(chan struct{}, 1), owners: newOwners(),
		listens: ratelimit.NewInflight[string](maxListens, allListens)}
	b.legacy = newLegacyServer(b)
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// Close ends all connections except those of sessions, which their callers close, and waits until they have ended.
func (b *Backend) Close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.cancel()
	b.legacy.suspended.Close()
	b.work.Wait()
}

// Info returns the description of the server. The first caller probes the server; after a failure the next caller retries. A restarted
// server is probed again.
func (b *Backend) Info(ctx context.Context) (*Info, error) {
	return b.infoFor(ctx, func() string { return CommonCapabilities })
}

// infoFor is Info for a caller with the capabilities caps. A legacy server is then probed in the process that the caller will use.
func (b *Backend) infoFor(ctx context.Context, caps func() string) (*Info, error) {
	if info := b.knownInfo(); info != nil {
		return info, nil
	}
	select {
	case b.probing <- struct{}{}:
		defer func() { <-b.probing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if info := b.knownInfo(); info != nil {
		return info, nil
	}
	return b.find(ctx, caps())
}

func (b *Backend) knownInfo() *Info {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.info
}

// startHint is the hint for a server that does not start as an MCP server.
const startHint = "start it by hand and check its output"

// find connects to the server and probes it. The connection is then shared by the callers.
func (b *Backend) find(ctx context.Context, caps string) (*Info, error) {
	conn, err := b.dial(b.ctx)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, b.o.Start)
	defer cancel()
	stop := context.AfterFunc(limited, func() { conn.Close() })
	info, err := probe(limited, conn, protocol.Self(b.o.Version), caps, b.o.Silent)
	if !stop() || err != nil {
		conn.Close()
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case limited.Err() != nil:
			return nil, interact.Errorf(interact.Timeout, startHint, "%s did not respond within %v", b.o.Name, b.o.Start)
		}
		if e, ok := errors.AsType[*protocol.Error](err); ok {
			if ours := Relayed(e); ours != nil {
				return nil, ours
			}
		}
		return nil, &interact.Error{Code: interact.AgentFailed, Title: b.o.Name + " is not an MCP server", Err: err,
			Hint: startHint}
	}
	if info.Modern {
		_, err = b.share(conn, nil, info, 0)
	} else {
		err = b.legacy.adopt(conn, ownerOf(ctx, caps), info)
	}
	if err != nil {
		return nil, err
	}
	b.o.Log.Debug("MCP server found", "server", b.o.Name, "modern", info.Modern, "legacy", info.Legacy)
	return info, nil
}

// enter returns a connection for a call, and a function to call after it. The connection is nil if the shared one has just ended.
func (b *Backend) enter(ctx context.Context, logs bool) (l *sharedConn, leave func(), err error) {
	opener := b.openerOf(ctx)
	if l = b.room(opener, logs); l == nil && b.o.Relay {
		if l, err = b.tunnel(opener, logs); err != nil {
			return nil, nil, err
		}
	}
	return l, func() { b.leave(l) }, nil
}

// room reserves a connection of an opener with room for one more call; nil if there is none.
func (b *Backend) room(opener *did.Principal, logs bool) *sharedConn {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, one := range b.shared {
		// A tunnel may have ended before its goroutine removes it: a retry needs another one.
		if !b.o.Relay || one.opener == opener && one.calls < maxCalls && !(logs && one.Logging()) && !one.Ended() {
			one.useLocked()
			return one
		}
	}
	return nil
}

// tunnel opens and reserves another tunnel, unless a concurrent caller has just opened one.
func (b *Backend) tunnel(opener *did.Principal, logs bool) (*sharedConn, error) {
	b.opening.Lock()
	defer b.opening.Unlock()
	if l := b.room(opener, logs); l != nil {
		return l, nil
	}
	conn, err := b.dial(did.WithPrincipal(b.ctx, opener))
	if err != nil {
		return nil, err
	}
	return b.share(conn, opener, nil, 1)
}

// Call implements [protocol.Server].
func (b *Backend) Call(ctx context.Context, m *protocol.Message, notify protocol.Notify) (*protocol.Message, error) {
	m, bad := b.owners.check(ctx, m)
	if bad != nil {
		return protocol.RespondError(m.ID(), bad), nil
	}
	r, err := b.call(ctx, m, notify)
	if err == nil {
		b.owners.note(ctx, m, r)
	}
	return r, err
}

// Bounds of concurrent listen requests of one caller and of all callers. A relay is one caller of its host.
const (
	maxListens = 512
	allListens = 1024
)

// maxTries bounds the attempts to find a live connection for a call.
const maxTries = 3

func (b *Backend) call(ctx context.Context, m *protocol.Message, notify protocol.Notify) (*protocol.Message, error) {
	if m.Method() == protocol.Listen {
		caller := protocol.CallerOf(ctx)
		if b.listens.Enter(caller) != ratelimit.Entered {
			return nil, overloaded("too many subscriptions at " + b.o.Name + " already")
		}
		defer b.listens.Leave(caller)
	}
	switch {
	case b.o.Relay && !b.o.Near:
		m = without(m, protocol.MetaCaller)
	case b.o.Relay || b.o.Own:
		m = namingCaller(ctx, m)
	default:
		m = withCallerMeta(ctx, m)
	}
	for range maxTries {
		if !b.o.Relay {
			info, err := b.infoFor(ctx, func() string { return capabilities(m) })
			if err != nil {
				return nil, err
			}
			if !info.Modern {
				return b.legacy.call(ctx, m, notify)
			}
		}
		l, leave, err := b.enter(ctx, m.Text("_meta", protocol.MetaLogLevel) != "")
		if err != nil {
			return nil, err
		}
		if l == nil {
			continue
		}
		defer leave()
		if want, ok := supported(m); m.Method() == protocol.Listen && ok && !b.o.Relay {
			return l.hub.listen(ctx, m, want, notify)
		}
		if b.o.Relay || b.o.Own {
			m = b.withUser(ctx, m)
		}
		r, err := l.Call(ctx, m, notify)
		if err == nil {
			b.keep(l, r)
		}
		return r, b.broken(ctx, err)
	}
	return nil, b.broken(ctx, errEnds)
}

// withUser adds the user of this relay to a request, as a pseudonym, so that the host can keep users apart.
func (b *Backend) withUser(ctx context.Context, m *protocol.Message) *protocol.Message {
	caller := protocol.CallerOf(ctx)
	if caller == "" {
		return without(m, protocol.MetaUser) // not allowed from clients
	}
	if !b.o.Own {
		mac := hmac.New(sha256.New, b.secret)
		mac.Write([]byte(caller))
		caller = hex.EncodeToString(mac.Sum(nil)[:16])
	}
	return m.WithParam(json.RawMessage(strconv.Quote(caller)), "_meta", protocol.MetaUser)
}

var errEnds = errors.New("the server ends after each start")

// broken converts the error of an ended connection. Errors of a tunnel have a reason of the mesh already.
func (b *Backend) broken(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || b.o.Relay && errors.As(err, new(*interact.Error)) {
		return err
	}
	code := interact.AgentFailed // a server that ends by itself is reachable, but fails
	if b.o.Relay {
		code = interact.Unreachable
	}
	return &interact.Error{Code: code, Title: b.o.Name + " ended before the response", Err: err,
		Hint: "try again: it is restarted", Started: true}
}

// Session implements [protocol.Server].
func (b *Backend) Session(ctx context.Context) (protocol.Conn, error) {
	conn, err := b.session(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case b.o.Relay:
		conn = relayedSession{conn}
	case !b.o.Own:
		conn = identifyingConn{conn}
	}
	return protocol.EnsureResponses(conn, func(err error) error {
		if b.ctx.Err() != nil {
			return interact.Errorf(interact.ShuttingDown, "try again later", "%s is shutting down", b.o.Name)
		}
		if ctx.Err() != nil {
			return protocol.SessionEnd(ctx)
		}
		return b.broken(ctx, err)
	}), nil
}

func (b *Backend) session(ctx context.Context) (protocol.Conn, error) {
	if b.o.Relay {
		return b.dial(ctx)
	}
	info, err := b.Info(ctx)
	if err != nil {
		return nil, err
	}
	if info.Legacy == "" {
		return b.legacySession(ctx, info), nil
	}
	return b.dial(ctx)
}

// A sharedConn is a connection that several calls use, in sequence or concurrently. Backend.mu guards its fields.
type sharedConn struct {
	*protocol.Multiplexer
	hub    *hub
	opener *did.Principal // of a tunnel
	calls  int
	idle   *time.Timer
	until  time.Time         // must stay open until then for a task
	gone   bool              // closed, or about to be
	ended  func(*sharedConn) // called once when gone is set, with the backend locked
}

// run reads a connection in its own goroutine until it ends. It passes messages of no call to unsolicited ([protocol.Multiplex]).
func (b *Backend) run(conn protocol.Conn, unsolicited func(*protocol.Message), ended func(*sharedConn)) (*sharedConn, error) {
	l := &sharedConn{Multiplexer: protocol.Multiplex(conn, unsolicited), ended: ended}
	l.hub = newHub(b, l)
	l.idle = time.AfterFunc(b.o.Idle, func() { b.closeIdle(l) })
	err := b.start(func() {
		defer context.AfterFunc(b.ctx, func() { l.Close() })()
		err := l.Run(b.ctx)
		b.mu.Lock()
		l.idle.Stop()
		l.endLocked()
		b.mu.Unlock()
		l.Close()
		b.o.Log.Debug("MCP connection ended", "server", b.o.Name, "err", err)
	})
	if err != nil {
		l.idle.Stop()
		conn.Close()
	}
	return l, err
}

// start runs f in a goroutine that Close waits for.
func (b *Backend) start(f func()) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return interact.Errorf(interact.ShuttingDown, "try again later", "%s is shutting down", b.o.Name)
	}
	b.work.Go(f)
	return nil
}

func (l *sharedConn) endLocked() {
	if !l.gone {
		l.gone = true
		l.ended(l)
	}
}

// share adds a connection to those that all stateless callers share, with calls on it already. The info is valid as long as the
// connection.
func (b *Backend) share(conn protocol.Conn, opener *did.Principal, info *Info, calls int) (*sharedConn, error) {
	l, err := b.run(conn, nil, func(l *sharedConn) {
		b.shared = slices.DeleteFunc(b.shared, func(o *sharedConn) bool { return o == l })
		b.info = nil
	})
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	l.opener = opener
	for range calls {
		l.useLocked()
	}
	if !l.gone {
		b.shared, b.info = append(b.shared, l), info
	}
	return l, nil
}

func (l *sharedConn) useLocked() {
	l.calls++
	l.idle.Stop()
}

// use reserves l and reports whether it is open; leave releases it.
func (b *Backend) use(l *sharedConn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !l.gone {
		l.useLocked()
	}
	return !l.gone
}

func (b *Backend) leave(l *sharedConn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l.calls--; l.calls == 0 && !l.gone {
		l.idle.Reset(max(b.o.Idle, time.Until(l.until)))
	}
}

// closeIdle closes a connection unless it is in use.
func (b *Backend) closeIdle(l *sharedConn) {
	b.mu.Lock()
	if l.calls > 0 || l.gone {
		b.mu.Unlock()
		return
	}
	l.endLocked()
	b.mu.Unlock()
	l.Close()
}

// maxTask bounds the time that a process is kept for a task.
const maxTask = time.Hour

// keep keeps a connection open while the server runs the task that r created (2026-07-28, extension "Tasks").
func (b *Backend) keep(l *sharedConn, r *protocol.Message) {
	if r.ResultType() != "task" {
		return
	}
	ttl := maxTask
	if raw, _ := r.InResult("ttlMs"); raw != nil {
		var ms int64
		if json.Unmarshal(raw, &ms) == nil && ms > 0 && ms < maxTask.Milliseconds() {
			ttl = time.Duration(ms) * time.Millisecond
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if end := time.Now().Add(ttl); end.After(l.until) {
		l.until = end
	}
}
