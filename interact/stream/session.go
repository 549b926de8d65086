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
)

// Why a session ended, if not for an error of the transport.
var (
	errClosed = errors.New("this node is shutting down")
	errIdle   = errors.New("nobody used the stream")
	errStuck  = errors.New("the peer reads nothing")
	errSlow   = errors.New("the peer sent half a frame and stopped")
	errMemory = errors.New("no memory left for this peer")
	errSilent = errors.New("the peer does not answer probes")
	errOver   = errors.New("the interaction is over")
)

// resetCode is what the far end is told when a session ends for the reason err.
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
	}
	return network.StreamNoError
}

// A session is one libp2p stream and the interactions on it, at either end. One goroutine reads it until it ends; whoever has
// something to say writes through out.
type session struct {
	b       *Binding
	s       network.Stream
	node    did.DID        // the far end
	own     bool           // of one interaction; set before anything runs, or by the first frame of the caller
	first   bool           // the first frame of the caller is still to come; only the reading goroutine uses it
	remote  *remote        // at the calling end
	inbound *inbound       // at the serving end
	from    *did.Principal // who asks, at the serving end
	limited bool           // the connection is relayed, with bounds on time and data
	in      *bufio.Reader
	out     writer
	memory  budget

	frameTimer *time.Timer  // runs while a frame is incomplete; only the reading goroutine sets it
	lastRead   atomic.Int64 // when the far end last spoke, in Unix nanoseconds
	eager      atomic.Int32 // frames that were written at once since then
	busy       atomic.Int32 // len(open)
	over       atomic.Bool  // err is set
	done       atomic.Bool  // the only interaction has been answered
	reported   bool         // Reach knows that the far end answers; only the reading goroutine uses it

	// mu owns what follows.
	mu     sync.Mutex
	open   map[uint64]*exchange
	number uint64                    // of the newest interaction
	idled  time.Time                 // since when open is empty
	names  map[string]*did.Principal // consumers of the calling node, at the serving end
	err    error                     // why the session ended
}

// readSize is the size of a session's read buffer. Larger frames are read into memory of their own.
const readSize = 16 << 10

// newSession registers a session on s to or from node, with memory for its buffer, and starts the time in which the first frame
// must come. It fails if the binding is closed or memory is short; the stream is then reset.
func (b *Binding) newSession(s network.Stream, node did.DID, to *remote, own bool) (*session, error) {
	l := &session{b: b, s: s, node: node, remote: to, own: own, limited: s.Conn().Stat().Limited,
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
	return l, nil
}

// listen notes that the far end spoke.
func (l *session) listen() {
	l.lastRead.Store(time.Now().UnixNano())
	l.eager.Store(0)
}

// startFrameTimer gives the far end a bounded time to complete what it began; relax takes that back.
func (l *session) startFrameTimer() { l.frameTimer.Reset(frameTime) }
func (l *session) stopFrameTimer()  { l.frameTimer.Stop() }

// serve reads frames and gives them to handle until the session ends, and then fails it with the reason. What has arrived can
// still be taken.
func (l *session) serve(handle func(frame.Frame) error) {
	err := l.loop(handle)
	if err == io.EOF && l.own && (l.done.Load() || l.remote != nil && l.answered()) {
		err = errOver
	}
	l.fail(err)
}

// answered reports whether the last frame of an interaction has arrived, and its caller has not left.
func (l *session) answered() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.open {
		if e.complete() {
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

// fail ends the session and everything on it. Only the first call does anything.
func (l *session) fail(err error) {
	l.mu.Lock()
	first := l.err == nil
	if first {
		l.err = err
		l.over.Store(true)
	}
	l.mu.Unlock()
	if first {
		l.tear(err)
	}
}

// expire ends the session if nobody has used it for so long that it should. The decision holds against a call that comes at the
// same time: either it keeps the session open, or it finds it ended.
func (l *session) expire(now time.Time) {
	limit := l.b.o.Idle
	if l.remote == nil {
		limit = limit * 5 / 2 // the calling end goes first, so that no call meets a closing session
	}
	l.mu.Lock()
	idle := l.err == nil && len(l.open) == 0 && now.Sub(l.idled) > limit
	if idle {
		l.err = errIdle
		l.over.Store(true)
	}
	l.mu.Unlock()
	if idle {
		l.tear(errIdle)
	}
}

// tear does what is to do once err is the session's.
func (l *session) tear(err error) {
	l.frameTimer.Stop()
	writing := l.out.fail(err)
	l.mu.Lock()
	open := l.open
	l.open = map[uint64]*exchange{}
	l.busy.Store(0)
	l.mu.Unlock()
	for _, e := range open {
		e.end(err)
	}
	// A stream that is closed while it is written to may keep that write for good: QUIC does, if the connection ends then.
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

// enlist puts a new interaction on the session. Only the calling end does that, since it numbers them.
func (l *session) enlist(e *exchange) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.own {
		l.number++
	}
	e.init(l, l.number)
	return l.addLocked(e)
}

// add puts an interaction on the session under the number that it has.
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

// remove takes e off the session; it reports false if e was not there any more.
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

// discard drops a frame that nobody waits for.
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

// look ends the calls whose time is up at now. It returns since when the longest call waits whose silence is doubtful (each
// until it is answered the first time, and a small one until its end), and when time is up next; zero if there is none.
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
		if !l.own && !e.long || e.silent() {
			started = earliest(started, e.started)
		}
	}
	return started, by
}

// earliest returns the earlier of two times of which one may be unset.
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

// direct reports whether the caller may write a small frame itself. With few interactions that saves a switch of
// goroutines; with many, frames leave together. A far end that has not spoken for some frames might block the caller.
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

// maxBody is the largest body of a frame on this session, in bytes.
func (l *session) maxBody() int {
	if l.own {
		return frame.MaxChunk
	}
	return frame.MaxControl
}

// window is what an end of an interaction may send before the other end has taken it, in bytes. A thousand that are long
// fit the memory that a node grants one peer.
func (l *session) window(long bool) int {
	switch {
	case l.own:
		return 2 << 20
	case long:
		return 64 << 10
	}
	return 256 << 10
}

// chunk is how much data one chunk that this node sends has at most, in bytes.
func (l *session) chunk() int {
	if l.own {
		return 256 << 10
	}
	return frame.MaxControl
}
