package stream

import (
	"cmp"
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact/stream/frame"
)

// Sizes of unwritten frames, in bytes.
const (
	highWater  = 256 << 10 // callers wait above this
	keepSpare  = 64 << 10  // larger buffers return to the pool
	writeSize  = 256 << 10 // of one write, so that stuck can distinguish a slow link from a stalled one
	directSize = 4 << 10   // of a direct write, which must not block: the first congestion window of QUIC holds four times this
)

// A writer collects the frames of a session and writes them together.
type writer struct {
	session *session

	// mu owns what follows.
	mu      sync.Mutex
	buf     []byte // unwritten frames
	spare   []byte
	writing int           // bytes of the current write
	room    chan struct{} // closed after a write; made by the first waiting caller
	flushed uint64        // bytes that the stream accepted or accepts now
	since   time.Time     // start of the current write; zero if none
	busy    bool          // a goroutine writes
	last    bool          // no more frames: the write side is closed when buf is empty
	err     error         // reason why nothing is written any more
}

// push appends a frame, which a goroutine writes, or the caller if direct is set. It waits while too much is unwritten, until ctx ends.
// The error is that of body, of ctx, or the reason of the end of the session; nothing was sent then.
func (w *writer) push(ctx context.Context, k frame.Kind, id uint64, direct bool, body func([]byte) ([]byte, error)) error {
	_, err := w.append(ctx, k, id, direct, body)
	return err
}

// append is push that returns the position of the first byte of the frame; see sent.
func (w *writer) append(ctx context.Context, k frame.Kind, id uint64, direct bool, body func([]byte) ([]byte, error)) (uint64, error) {
	return w.add(ctx, direct, func() (err error) {
		w.buf, err = frame.Append(w.buf, k, id, body)
		return err
	})
}

// chunk is push of a chunk. The caller may change data afterwards.
func (w *writer) chunk(ctx context.Context, id uint64, data []byte, spend func()) error {
	_, err := w.add(ctx, false, func() error {
		spend()
		w.reserve(frame.ChunkHead + len(data))
		w.buf = frame.AppendChunk(w.buf, id, data)
		return nil
	})
	return err
}

// add is push with put, which appends to w.buf.
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
	w.session.b.work.Add(1) // safe: err is nil, so b.work still counts the reader of the session
	w.mu.Unlock()
	go w.flush()
	return at, nil
}

// wait waits for the end of a write. The caller holds mu, which wait unlocks in between.
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

// flush writes until buf is empty.
func (w *writer) flush() {
	defer w.session.b.work.Done()
	for {
		// Other goroutines may add frames first: many frames per write make a busy session fast.
		runtime.Gosched()
		w.mu.Lock()
		if w.rest() {
			return
		}
		w.write()
		w.mu.Unlock()
	}
}

// rest reports whether the writing goroutine may end. The caller holds mu; if rest returns true, it has unlocked mu.
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
		w.mu.Unlock() // the writing goroutine closes it
		return
	}
	w.rest()
}

// write writes buf to the stream. The caller holds mu, which write unlocks in between.
func (w *writer) write() {
	out := w.buf
	w.buf, w.spare = w.spare[:0], nil
	if len(out) > keepSpare {
		w.buf = large(0) // for as many new frames
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

// reserve makes room for n bytes in buf. The caller holds mu.
func (w *writer) reserve(n int) {
	n += len(w.buf)
	if n <= cap(w.buf) {
		return
	}
	old := w.buf
	w.buf = append(large(n), old...)
	small(old)
}

// large returns an empty buffer for n bytes, and at least for the maximum of unwritten frames.
func large(n int) []byte { return buffers.get(max(n, highWater+frame.MaxControl+frame.ChunkHead))[:0] }

// small returns b if a session may keep it, else it returns b to the pool. The content is not used any more.
func small(b []byte) []byte {
	if cap(b) <= keepSpare {
		return b
	}
	buffers.put(b)
	return nil
}

// signal wakes all callers that wait for room. The caller holds mu.
func (w *writer) signal() {
	if w.room != nil {
		close(w.room)
		w.room = nil
	}
}

// sent reports whether the byte at position at was written, so that the peer may have read it.
func (w *writer) sent(at uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return at < w.flushed
}

// stuck reports whether the current write has taken too long at now: the peer does not read.
func (w *writer) stuck(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.since.IsZero() && now.Sub(w.since) > writeTime
}

// fail ends all writers, and reports whether a write is still in progress.
func (w *writer) fail(err error) (writing bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = cmp.Or(w.err, err)
	w.buf = nil
	w.signal()
	return w.writing > 0
}
