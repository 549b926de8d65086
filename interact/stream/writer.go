package stream

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact/stream/frame"
)

// Sizes of what waits to be written, in bytes.
const (
	highWater  = 256 << 10 // more than this waits
	keepSpare  = 64 << 10  // larger buffers are shared by all sessions
	writeSize  = 256 << 10 // is written at once, so that stuck can tell a slow link from one that stands still
	directSize = 4 << 10   // more may make the caller wait: four times this fits the first congestion window of QUIC
)

// A writer collects the frames of a session and writes as many as there are with one Write.
type writer struct {
	session *session

	// mu owns what follows.
	mu      sync.Mutex
	buf     []byte // frames that wait
	spare   []byte
	writing int           // bytes of the write that goes on
	room    chan struct{} // closed after a write; made by those who wait for room
	flushed uint64        // bytes that were given to the stream
	since   time.Time     // of the write that goes on; zero if none
	busy    bool          // somebody writes
	last    bool          // nothing is added any more: the stream's write side is closed when buf is empty
	err     error         // why nothing is written any more
}

// push appends a frame and sees that it is written. With direct set the caller may write itself. It waits while too much
// is waiting, as long as ctx allows. The error is of body, of ctx, or why the session ended; nothing was sent then.
func (w *writer) push(ctx context.Context, k frame.Kind, id uint64, direct bool, body func([]byte) ([]byte, error)) error {
	_, err := w.append(ctx, k, id, direct, body)
	return err
}

// append does what push says, and returns the position of the frame's first byte on the session; see sent.
func (w *writer) append(ctx context.Context, k frame.Kind, id uint64, direct bool, body func([]byte) ([]byte, error)) (uint64, error) {
	return w.add(ctx, direct, func() (err error) {
		w.buf, err = frame.Append(w.buf, k, id, body)
		return err
	})
}

// chunk does what push says with a chunk. The caller may change data afterwards.
func (w *writer) chunk(ctx context.Context, id uint64, data []byte, spend func()) error {
	_, err := w.add(ctx, false, func() error {
		spend()
		w.reserve(frame.ChunkHead + len(data))
		w.buf = frame.AppendChunk(w.buf, id, data)
		return nil
	})
	return err
}

// add calls put, which is to append to w.buf, and does what push says.
func (w *writer) add(ctx context.Context, direct bool, put func() error) (uint64, error) {
	w.mu.Lock()
	for w.err == nil && w.writing+len(w.buf) > highWater {
		if err := w.wait(ctx); err != nil {
			w.mu.Unlock()
			return 0, err
		}
	}
	if err := w.err; err != nil {
		w.mu.Unlock()
		return 0, err
	}
	at := w.flushed + uint64(len(w.buf))
	if err := put(); err != nil || w.busy {
		w.mu.Unlock()
		return at, err
	}
	w.busy = true
	if direct && len(w.buf) <= directSize {
		w.session.eager.Add(1)
		w.write()
		if w.rest() {
			return at, nil
		}
	}
	w.session.b.work.Add(1) // safe: err is nil, so the session's reader is still counted
	w.mu.Unlock()
	go w.flush()
	return at, nil
}

// wait waits for a write to end. It is called with mu locked, and unlocks it meanwhile.
func (w *writer) wait(ctx context.Context) error {
	if w.room == nil {
		w.room = make(chan struct{})
	}
	room := w.room
	w.mu.Unlock()
	defer w.mu.Lock()
	select {
	case <-room:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// flush writes until nothing waits.
func (w *writer) flush() {
	defer w.session.b.work.Done()
	for {
		// Let those who are about to add frames go first: many frames in one write are what makes a busy session fast.
		runtime.Gosched()
		w.mu.Lock()
		if w.rest() {
			return
		}
		w.write()
		w.mu.Unlock()
	}
}

// rest lets the writing goroutine go if nothing is left to write. It is called with mu locked, and unlocks it in that case.
func (w *writer) rest() bool {
	if len(w.buf) > 0 && w.err == nil {
		return false
	}
	w.busy = false
	if len(w.buf) == 0 {
		w.buf = small(w.buf)
	}
	shut := w.last && w.err == nil
	w.mu.Unlock()
	if shut {
		_ = w.session.s.CloseWrite() // may wait for the transport
	}
	return true
}

// finish closes the write side of the stream once everything is written.
func (w *writer) finish() {
	w.mu.Lock()
	w.last = true
	if w.busy {
		w.mu.Unlock() // who writes will do it
		return
	}
	w.rest()
}

// write gives what waits to the stream. It is called with mu locked, and unlocks it meanwhile.
func (w *writer) write() {
	out := w.buf
	w.buf, w.spare = w.spare[:0], nil
	if len(out) > keepSpare {
		w.buf = large(0) // as much is going to come meanwhile
	}
	w.flushed += uint64(len(out))
	w.writing = len(out)
	for rest, err := out, error(nil); len(rest) > 0 && err == nil; {
		part := rest[:min(len(rest), writeSize)]
		rest = rest[len(part):]
		w.since = time.Now()
		w.mu.Unlock()
		if _, err = w.session.s.Write(part); err != nil {
			w.session.fail(err)
		}
		w.mu.Lock()
	}
	w.writing, w.since = 0, time.Time{}
	w.spare = small(out)
	w.signal()
}

// reserve makes room for n bytes in buf. It is called with mu locked.
func (w *writer) reserve(n int) {
	n += len(w.buf)
	if n <= cap(w.buf) {
		return
	}
	old := w.buf
	w.buf = append(large(n), old...)
	small(old)
}

// large returns an empty buffer for n bytes, and for what waits at most before nothing is added.
func large(n int) []byte { return buffers.get(max(n, highWater+frame.MaxControl+frame.ChunkHead))[:0] }

// small returns b if a session may keep it, and gives it away otherwise. Its content is of no use any more.
func small(b []byte) []byte {
	if cap(b) <= keepSpare {
		return b
	}
	buffers.put(b)
	return nil
}

// signal wakes all who wait for room. It is called with mu locked.
func (w *writer) signal() {
	if w.room != nil {
		close(w.room)
		w.room = nil
	}
}

// sent reports whether the byte at position at was given to the stream, so that the far end may have read it.
func (w *writer) sent(at uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return at < w.flushed
}

// stuck reports whether a write has taken so long at now that the far end must have stopped reading.
func (w *writer) stuck(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.since.IsZero() && now.Sub(w.since) > writeTime
}

// fail makes everybody who writes give up, and reports whether the stream still has a write of theirs.
func (w *writer) fail(err error) (writing bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	w.buf = nil
	w.signal()
	return w.writing > 0
}
