// Package backend connects to one MCP server, a local process or a remote URL, and adapts between protocol revisions. It finds out
// which era the server speaks, shares what can be shared between callers, and gives every session what is its own. What one era has
// and the other has not, it makes: of a server of either era it is one of both.
//
//	client   server
//	new      new      one connection for all callers (wire.Shared, hub.go)
//	old      old      a connection for each session, passed on as it is
//	new      old      old.go, park.go, listen.go
//	old      new      young.go
//
// A program may remember what it was told, so it matters who has which process of it:
//
//   - A session of the old era has one of its own, from its first message to its last: it is one client's.
//   - Callers of the new era have no sessions. All of them share one process of a program that speaks the new era, which must not tell
//     them apart; of a program of the old era, each that can be asked for something has one, and the others share one (old.go).
//
// A process is started when somebody asks, stopped when nobody has for a while, and started again, later each time, when it ends
// by itself. What a program keeps in memory only, it has forgotten then.
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
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/ratelimit"
)

// Options are the settings of a [Backend].
type Options struct {
	// Dial opens a connection of its own to the server: a new process, say. It ends with ctx. It is needed.
	Dial func(ctx context.Context) (protocol.Conn, error)
	// Relay says that another relay is at the other end, which speaks both eras ([Serve]): nobody asks what it is.
	Relay bool
	// Near says that the host at the other end of a relay is this node, so that it is told who asks as this node knows it.
	Near bool
	// Own says that the server is of this process, and trusted with who calls: [Serve] has the caller's own name as its user.
	Own bool
	// Name is for errors and the log.
	Name string
	// Version is that of lmosd, which servers are told; empty means "dev".
	Version string
	// MaxConns bounds the connections at once; 0 means 64. What comes on top is Overloaded.
	MaxConns int
	// Idle is how long a connection that nobody uses stays open; 0 means 5 min.
	Idle time.Duration
	// Start is how long a server may take until it answers first; 0 means 1 min: a package runner may have to fetch it.
	Start time.Duration
	// Silent is how long a server may say nothing to server/discover before it is asked in the old way, too; 0 means 2 s. Over HTTP all
	// servers answer.
	Silent time.Duration
	Log    *slog.Logger
}

// An Info is what a server says of itself.
type Info struct {
	// Modern tells that it speaks 2026-07-28, Legacy the newest revision before that which it speaks, or "".
	Modern bool
	Legacy string
	// Discovered is the result of server/discover, or what it would be: supportedVersions, capabilities, instructions.
	Discovered json.RawMessage
	// Server is what it calls itself. It is for showing only.
	Server struct{ Name, Version, Title string }
	// Instructions are words for models.
	Instructions string
}

// A Backend implements [protocol.Server]. Close it when it is done. It is safe for concurrent use.
type Backend struct {
	o      Options
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	old     *old
	whose   *owners
	secret  []byte // of the names of users, for this relay alone
	listens *ratelimit.Inflight[string]
	probing chan struct{} // holds a token while somebody finds out what the server is
	opening sync.Mutex    // held while a tunnel is begun, so that many callers at once begin no more than they need; taken before mu

	mu     sync.Mutex
	info   *Info // nil: not known yet, or no more, since what said it has ended
	lanes  []*lane
	conns  int
	health health
	over   bool
}

// New returns a backend. Nothing is dialled before it is asked.
func New(o Options) *Backend {
	o.MaxConns = cmp.Or(max(o.MaxConns, 0), 64)
	o.Idle = cmp.Or(max(o.Idle, 0), 5*time.Minute)
	o.Start = cmp.Or(max(o.Start, 0), time.Minute)
	o.Silent = cmp.Or(max(o.Silent, 0), silentFor)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	b := &Backend{o: o, secret: []byte(rand.Text()), probing: make(chan struct{}, 1), whose: newOwners(), listens: ratelimit.NewInflight[string](maxListens, allListens)}
	b.old = newOld(b)
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// Close ends all connections but the sessions, which are their callers', and waits until they have ended.
func (b *Backend) Close() {
	b.mu.Lock()
	b.over = true
	b.mu.Unlock()
	b.cancel()
	b.old.forget()
	b.work.Wait()
}

// Info says what the server is. The first who asks finds out; if the server cannot be asked, the next tries again. A server that was
// started anew is asked anew.
func (b *Backend) Info(ctx context.Context) (*Info, error) {
	return b.infoFor(ctx, func() string { return Common })
}

// infoFor is Info for a caller that can be asked for what caps says: if the server is an old one, it will use the process that
// was asked.
func (b *Backend) infoFor(ctx context.Context, caps func() string) (*Info, error) {
	if info := b.known(); info != nil {
		return info, nil
	}
	select {
	case b.probing <- struct{}{}:
		defer func() { <-b.probing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if info := b.known(); info != nil {
		return info, nil
	}
	return b.find(ctx, caps())
}

func (b *Backend) known() *Info {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.info
}

// find dials the server and asks it. The connection is then the one that callers share.
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
			return nil, interact.Errorf(interact.Timeout, "start it by hand and see what it waits for", "%s did not answer within %v", b.o.Name, b.o.Start)
		}
		if e, ok := errors.AsType[*protocol.Error](err); ok {
			if ours := Relayed(e); ours != nil {
				return nil, ours
			}
		}
		return nil, &interact.Error{Code: interact.AgentFailed, Title: b.o.Name + " does not answer as an MCP server", Err: err,
			Hint: "start it by hand and see what it says"}
	}
	if info.Modern {
		_, err = b.share(conn, info, 0)
	} else {
		err = b.old.adopt(conn, ownerOf(ctx, caps), info)
	}
	if err != nil {
		return nil, err
	}
	b.o.Log.Debug("an MCP server was found", "server", b.o.Name, "modern", info.Modern, "legacy", info.Legacy)
	return info, nil
}

// enter returns a connection for a call, and what to do after it. There is none if the last has just ended.
func (b *Backend) enter(logs bool) (l *lane, leave func(), err error) {
	if l = b.room(logs); l == nil && b.o.Relay {
		if l, err = b.tunnel(logs); err != nil {
			return nil, nil, err
		}
	}
	return l, func() { b.leave(l) }, nil
}

// room returns a connection that takes one more call, which the caller uses; nil if there is none.
func (b *Backend) room(logs bool) *lane {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, one := range b.lanes {
		// A tunnel may have ended, and its goroutine not be there yet: who heard that and calls again has another.
		if !b.o.Relay || one.calls < maxCalls && !(logs && one.Logging()) && !one.Ended() {
			one.useLocked()
			return one
		}
	}
	return nil
}

// tunnel begins another tunnel, which the caller uses, unless another caller has just done so.
func (b *Backend) tunnel(logs bool) (*lane, error) {
	b.opening.Lock()
	defer b.opening.Unlock()
	if l := b.room(logs); l != nil {
		return l, nil
	}
	conn, err := b.dial(b.ctx)
	if err != nil {
		return nil, err
	}
	return b.share(conn, nil, 1)
}

// Call implements [protocol.Server].
func (b *Backend) Call(ctx context.Context, m *protocol.Message, notify func(*protocol.Message) error) (*protocol.Message, error) {
	m, bad := b.whose.check(ctx, m)
	if bad != nil {
		return protocol.RespondError(m.ID(), bad), nil
	}
	r, err := b.call(ctx, m, notify)
	if err == nil {
		b.whose.note(ctx, m, r)
	}
	return r, err
}

// How many callers may listen at once: maxListens times one, allListens all. A relay is one caller of its host.
const (
	maxListens = 512
	allListens = 1024
)

// maxTries is how often a call looks for a connection that does not end before it is used.
const maxTries = 3

func (b *Backend) call(ctx context.Context, m *protocol.Message, notify func(*protocol.Message) error) (*protocol.Message, error) {
	if m.Method() == protocol.Listen {
		caller := protocol.CallerOf(ctx)
		if b.listens.Enter(caller) != ratelimit.Entered {
			return nil, overloaded("too many listen to " + b.o.Name + " already")
		}
		defer b.listens.Leave(caller)
	}
	switch {
	case b.o.Relay && !b.o.Near:
		m = untold(m)
	case !b.o.Own:
		m = told(ctx, m)
	}
	for range maxTries {
		if !b.o.Relay {
			info, err := b.infoFor(ctx, func() string { return capabilities(m) })
			if err != nil {
				return nil, err
			}
			if !info.Modern {
				return b.old.call(ctx, m, notify)
			}
		}
		l, leave, err := b.enter(m.Text("_meta", protocol.MetaLogLevel) != "")
		if err != nil {
			return nil, err
		}
		if l == nil {
			continue
		}
		defer leave()
		if want, ok := known(m); m.Method() == protocol.Listen && ok && !b.o.Relay {
			return l.hub.listen(ctx, m, want, notify)
		}
		if b.o.Relay || b.o.Own {
			m = b.signed(ctx, m)
		}
		r, err := l.Call(ctx, m, notify)
		if err == nil {
			b.keep(l, r)
		}
		return r, b.broken(ctx, err)
	}
	return nil, b.broken(ctx, errEnds)
}

// signed says in a request for which user of this relay it is, so that the host can tell them apart: by a word that says nothing else.
func (b *Backend) signed(ctx context.Context, m *protocol.Message) *protocol.Message {
	caller := protocol.CallerOf(ctx)
	if caller == "" {
		if raw, _ := m.Param("_meta", protocol.MetaUser); raw != nil { // it is not for clients to say
			return m.WithParam(nil, "_meta", protocol.MetaUser)
		}
		return m
	}
	if !b.o.Own {
		mac := hmac.New(sha256.New, b.secret)
		mac.Write([]byte(caller))
		caller = hex.EncodeToString(mac.Sum(nil)[:16])
	}
	return m.WithParam(json.RawMessage(strconv.Quote(caller)), "_meta", protocol.MetaUser)
}

var errEnds = errors.New("it ends whenever it is started")

// broken says that the server ended. Why a tunnel did is said by the mesh.
func (b *Backend) broken(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || b.o.Relay && errors.As(err, new(*interact.Error)) {
		return err
	}
	code := interact.AgentFailed // a server that ends by itself is there, and fails
	if b.o.Relay {
		code = interact.Unreachable
	}
	return &interact.Error{Code: code, Title: b.o.Name + " ended before it answered", Err: err,
		Hint: "try again: it is started anew", Started: true}
}

// Session implements [protocol.Server].
func (b *Backend) Session(ctx context.Context) (protocol.Conn, error) {
	conn, err := b.session(ctx)
	if err != nil {
		return nil, err
	}
	if !b.o.Relay && !b.o.Own {
		conn = telling{conn}
	}
	return protocol.EnsureResponses(conn, func(err error) error {
		if b.ctx.Err() != nil {
			return interact.Errorf(interact.ShuttingDown, "try again later", "%s is being ended", b.o.Name)
		}
		if ctx.Err() != nil {
			return interact.Errorf(interact.Cancelled, "begin another session", "the session was ended before there was an answer")
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
		return b.young(ctx, info), nil
	}
	return b.dial(ctx)
}

// A lane is a connection that calls share, one after the other or at once. Its fields are owned by Backend.mu.
type lane struct {
	*protocol.Multiplexer
	hub   *hub
	calls int
	idle  *time.Timer
	until time.Time   // it has work to do until then that no call waits for
	gone  bool        // it is closed, or about to be
	ended func(*lane) // called once, with the backend locked, when it is gone
}

// run reads a connection in a goroutine of its own, until it ends.
func (b *Backend) run(conn protocol.Conn, asked func(*protocol.Message), ended func(*lane)) (*lane, error) {
	l := &lane{Multiplexer: protocol.Multiplex(conn, asked), ended: ended}
	l.hub = newHub(b, l)
	l.idle = time.AfterFunc(b.o.Idle, func() { b.rest(l) })
	err := b.start(func() {
		defer context.AfterFunc(b.ctx, func() { l.Close() })()
		err := l.Run(b.ctx)
		b.mu.Lock()
		l.idle.Stop()
		l.endLocked()
		b.mu.Unlock()
		l.Close()
		b.o.Log.Debug("a connection to an MCP server has ended", "server", b.o.Name, "err", err)
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
	if b.over {
		return interact.Errorf(interact.ShuttingDown, "try again later", "%s is being ended", b.o.Name)
	}
	b.work.Go(f)
	return nil
}

func (l *lane) endLocked() {
	if !l.gone {
		l.gone = true
		l.ended(l)
	}
}

// share takes a connection up among those that all callers of the new era share, with calls on it already. What the server said of
// itself holds as long as it.
func (b *Backend) share(conn protocol.Conn, info *Info, calls int) (*lane, error) {
	l, err := b.run(conn, nil, func(l *lane) {
		b.lanes = slices.DeleteFunc(b.lanes, func(o *lane) bool { return o == l })
		b.info = nil
	})
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for range calls {
		l.useLocked()
	}
	if !l.gone {
		b.lanes, b.info = append(b.lanes, l), info
	}
	return l, nil
}

func (l *lane) useLocked() {
	l.calls++
	l.idle.Stop()
}

// use reports whether l can still be used; then leave gives it back.
func (b *Backend) use(l *lane) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !l.gone {
		l.useLocked()
	}
	return !l.gone
}

func (b *Backend) leave(l *lane) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l.calls--; l.calls == 0 && !l.gone {
		l.idle.Reset(max(b.o.Idle, time.Until(l.until)))
	}
}

// rest closes a connection that nobody uses.
func (b *Backend) rest(l *lane) {
	b.mu.Lock()
	if l.calls > 0 || l.gone {
		b.mu.Unlock()
		return
	}
	l.endLocked()
	b.mu.Unlock()
	l.Close()
}

// maxTask is how long a process is kept for a task that nobody asks for.
const maxTask = time.Hour

// keep keeps a connection open while the server works on a task that r is the beginning of (2026-07-28, extension "Tasks").
func (b *Backend) keep(l *lane, r *protocol.Message) {
	if kind(r) != "task" {
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

// kind is the resultType of a response.
func kind(r *protocol.Message) (kind string) {
	if raw, _ := r.InResult("resultType"); raw != nil {
		_ = json.Unmarshal(raw, &kind)
	}
	return kind
}
