package stream

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact/stream/frame"
	"github.com/lmosd/lmosd/p2p/relay"
)

// Reasons for the end of a session, besides errors of the transport.
var (
	errClosed = errors.New("this node is shutting down")
	errIdle   = errors.New("the stream was unused")
	errStuck  = errors.New("the peer does not read")
	errSlow   = errors.New("incomplete frame: read timed out")
	errMemory = errors.New("no memory left for this peer")
	errSilent = errors.New("the peer does not answer probes")
	errOver   = errors.New("the interaction is over")
	errMoved  = errors.New("the interaction goes on over another connection")
	errSpent  = errors.New("the limit of the relayed connection is reached")
	errRelay  = errors.New("the relay does not answer probes")
)

// resetCode returns the code for the peer when a session ends with err.
func resetCode(err error) network.StreamErrorCode {
	switch {
	case errors.Is(err, errMemory):
		return network.StreamResourceLimitExceeded
	case errors.Is(err, frame.ErrProtocol), errors.Is(err, io.ErrUnexpectedEOF):
		return network.StreamProtocolViolation
	case errors.Is(err, errIdle):
		return network.StreamGarbageCollected
	case errors.Is(err, errSlow), errors.Is(err, errStuck):
		return network.StreamRateLimited
	case errors.Is(err, errClosed):
		return network.StreamShutdown
	case errors.Is(err, errSpent):
		return streamSpent
	}
	return network.StreamNoError
}

// A session is one end of a libp2p stream with its interactions. One goroutine reads it; all others write through out.
type session struct {
	b       *Binding
	s       network.Stream
	node    did.DID      // the peer
	own     bool         // dedicated to one interaction; set before anything runs, or by the first frame of the caller
	first   bool         // the first frame of the caller has not arrived; only the reading goroutine uses it
	remote  *remote      // at the calling end
	inbound *inbound     // at the serving end
	relayed bool         // the connection is a circuit of a relay
	meter   *relay.Meter // of the limits of that circuit; nil if it is not known
	fastest atomic.Int64 // the shortest time between a request and its first reply, in nanoseconds, of a circuit; 0: none
	in      *bufio.Reader
	out     writer
	memory  budget

	frameTimer *time.Timer  // runs while a frame is incomplete; only the reading goroutine sets it
	lastRead   atomic.Int64 // time of the last data from the peer, in Unix nanoseconds
	eager      atomic.Int32 // direct writes since then
	busy       atomic.Int32 // len(open)
	over       atomic.Bool  // err is set
	done       atomic.Bool  // the only interaction has its response
	reported   bool         // Options.Reach was called; only the reading goroutine uses it

	// mu owns what follows.
	mu        sync.Mutex
	open      map[uint64]*exchange
	number    uint64                // of the newest interaction
	idled     time.Time             // since when open is empty
	consumers map[frame.As]consumer // of the calling node, at the serving end
	err       error                 // reason of the end
	unwatch   func()                // ends the watch of meter
}

// readSize is the size of the read buffer of a session. Larger frames get their own memory.
const readSize = 16 << 10

// newSession registers a session on s to or from node, reserves memory for its buffer, and starts the frame timer. It fails if the
// binding is closed or out of memory; the stream is then reset.
func (b *Binding) newSession(s network.Stream, node did.DID, to *remote, own bool) (*session, error) {
	l := &session{b: b, s: s, node: node, remote: to, own: own, relayed: isRelayed(s.Conn()), meter: relay.MeterOf(s.Conn()),
		open: map[uint64]*exchange{}, idled: time.Now()}
	l.memory.scope = s.Scope()
	l.out.session = l
	l.frameTimer = time.AfterFunc(24*time.Hour, func() { l.fail(errSlow) }) // set before it can run
	l.frameTimer.Reset(frameTime)
	if err := l.memory.take(readSize); err != nil {
		l.fail(err)
		return nil, err
	}
	l.in = bufio.NewReaderSize(s, readSize)
	b.mu.Lock()
	closed := b.closed
	if !closed {
		b.sessions[l] = struct{}{}
	}
	b.mu.Unlock()
	if closed {
		l.fail(errClosed)
		return nil, errClosed
	}
	l.watch()
	return l, nil
}

// listen records data from the peer.
func (l *session) listen() {
	l.lastRead.Store(time.Now().UnixNano())
	l.eager.Store(0)
}

// startFrameTimer limits the time for the rest of a frame.
func (l *session) startFrameTimer() { l.frameTimer.Reset(frameTime) }
func (l *session) stopFrameTimer()  { l.frameTimer.Stop() }

// serve calls handle for each frame until the session ends, and then fails it with the reason. Frames that arrived can still be taken.
func (l *session) serve(handle func(frame.Frame) error) {
	err := l.loop(handle)
	if err == io.EOF && l.own && (l.done.Load() || l.remote != nil && l.answered()) {
		err = errOver
	}
	if l.meter != nil && !l.over.Load() && l.s.Conn().IsClosed() {
		err = l.cut(err)
	}
	l.fail(err)
}

// answered reports whether the last frame of an open interaction has arrived.
func (l *session) answered() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.open {
		if _, over, _ := e.state(); over {
			return true
		}
	}
	return false
}

func (l *session) loop(handle func(frame.Frame) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			l.b.o.Log.Error("reading a stream panicked", "peer", l.node.Short(), "panic", p, "stack", string(debug.Stack()))
			err = frame.ErrProtocol
		}
	}()
	for {
		f, err := l.read()
		if err == nil {
			err = handle(f)
		}
		if err != nil {
			return err
		}
	}
}

// fail ends the session and its interactions. Only the first call has an effect. It may wait for a peer that reads slowly.
func (l *session) fail(err error) {
	if l.endsIf(err, func() bool { return true }) {
		l.tear(err)
	}
}

// expires ends the session if its peer does not read at now, or if it was unused for too long, and returns the reason; the caller then calls tear.
// The decision is atomic: a concurrent call keeps the session open, or finds it ended.
func (l *session) expires(now time.Time) error {
	if l.out.stuck(now) && l.endsIf(errStuck, func() bool { return true }) {
		return errStuck
	}
	limit := l.b.o.Idle
	switch {
	case l.remote == nil:
		limit = limit * 5 / 2 // the calling end closes first, so that no call uses a closing session
	case l.remote.outdated(l):
		limit = 0
	}
	if l.endsIf(errIdle, func() bool { return len(l.open) == 0 && now.Sub(l.idled) > limit }) {
		return errIdle
	}
	return nil
}

// endsIf ends the session with err, unless it has ended, if ok returns true, and reports whether it did. The caller then calls tear. It calls ok
// with mu locked.
func (l *session) endsIf(err error, ok func() bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil || !ok() {
		return false
	}
	l.err = err
	l.over.Store(true)
	return true
}

// tear releases everything after err is set. It may wait for a peer that reads slowly.
func (l *session) tear(err error) {
	l.frameTimer.Stop()
	writing := l.out.fail(err)
	l.mu.Lock()
	open, unwatch := l.open, l.unwatch
	l.open = map[uint64]*exchange{}
	l.busy.Store(0)
	l.mu.Unlock()
	if unwatch != nil {
		unwatch()
	}
	for _, e := range open {
		e.end(err)
	}
	// Close during a write may block that write forever: QUIC does so if the connection ends.
	if errors.Is(err, errOver) && !writing {
		_ = l.s.Close()
	} else {
		_ = l.s.ResetWithError(resetCode(err))
	}
	if l.remote != nil {
		l.remote.drop(l)
	}
	l.b.mu.Lock()
	delete(l.b.sessions, l)
	l.b.mu.Unlock()
}

// enlist adds a new interaction with the next number, at the calling end.
func (l *session) enlist(e *exchange) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.own {
		l.number++
	}
	e.init(l, l.number)
	return l.addLocked(e)
}

// add adds an interaction that has a number.
func (l *session) add(e *exchange) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addLocked(e)
}

func (l *session) addLocked(e *exchange) error {
	if l.err != nil {
		return l.err
	}
	l.open[e.id] = e
	l.busy.Store(int32(len(l.open)))
	return nil
}

// remove removes e; it reports false if e was removed before.
func (l *session) remove(e *exchange) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[e.id] != e {
		return false
	}
	delete(l.open, e.id)
	l.busy.Store(int32(len(l.open)))
	if len(l.open) == 0 {
		l.idled = time.Now()
	}
	return true
}

// dismiss ends the observations and subscriptions that are served on the session.
func (l *session) dismiss() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.open {
		if e.long && e.work != nil {
			e.work.end()
		}
	}
}

// discard releases a frame of a removed interaction.
func (l *session) discard(f frame.Frame) {
	if f.Owned {
		l.memory.give(len(f.Body))
	}
}

// reason returns why the session ended, or nil.
func (l *session) reason() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// look ends the calls whose deadline has passed at now. It returns the start of the oldest call that justifies a probe (until its first
// answer; a call on a shared session until its end), and the next deadline; zero if none.
func (l *session) look(now time.Time) (started, by time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.open {
		switch {
		case e.until.IsZero():
		case now.Before(e.until):
			by = earliest(by, e.until)
		default:
			e.end(context.DeadlineExceeded)
			continue
		}
		if received, _, _ := e.state(); !received || !l.own && !e.long {
			started = earliest(started, e.started)
		}
	}
	return started, by
}

// earliest returns the earlier of two times; zero is unset.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func (l *session) find(id uint64) *exchange {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open[id]
}

// direct reports whether the caller may write a small frame itself. With few interactions this saves a goroutine switch; with many,
// frames are written together. After some frames without data from the peer, a write could block the caller.
func (l *session) direct() bool { return l.busy.Load() <= 2 && l.eager.Load() < 4 }

// send writes a frame without a body, or the credit n.
func (l *session) send(k frame.Kind, id uint64, n int) {
	_ = l.out.push(context.Background(), k, id, false, func(b []byte) ([]byte, error) {
		if k == frame.Credit {
			b = binary.AppendUvarint(b, uint64(n))
		}
		return b, nil
	})
}

// maxBody returns the largest body of a frame on this session, in bytes.
func (l *session) maxBody() int {
	if l.own {
		return frame.MaxChunk
	}
	return frame.MaxControl
}

// window returns the initial credit of an interaction, in bytes. That of a thousand observations fits the memory limit of a peer.
func (l *session) window(long bool) int {
	switch {
	case l.own:
		return 2 << 20
	case long:
		return 64 << 10
	}
	return 256 << 10
}

// chunk returns the largest chunk that this node sends, in bytes.
func (l *session) chunk() int {
	if l.own {
		return 256 << 10
	}
	return frame.MaxControl
}
