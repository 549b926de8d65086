package stream

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact/stream/frame"
)

// An exchange is one end of an interaction: its received frames and its credit. The reader of the session puts frames, one goroutine
// takes them, and one goroutine sends; the last two may be the same.
type exchange struct {
	l       *session
	id      uint64
	started time.Time     // at the calling end
	until   time.Time     // deadline of the caller; zero means none
	long    bool          // an observation or subscription; set before init
	work    *work         // at the serving end; nil at the other
	ready   chan struct{} // has an element when a frame may be available; nil if none is expected
	extra   int           // memory in use besides frames, in bytes; owned by the goroutine that takes

	// mu owns what follows. Sizes are in bytes.
	mu       sync.Mutex
	window   int            // initial credit
	queue    []frame.Frame  // arrived, not taken
	slot     [1]frame.Frame // memory of queue: most interactions need no more
	queued   int            // size of queue
	taken    int            // size of frames that were taken and may be in use
	owed     int            // credit for taken frames that was not granted yet
	credit   int            // of this end; one frame may exceed it
	more     chan struct{}  // has an element when credit may be available; made by the first wait
	received bool           // something has arrived
	over     bool           // the frame that ends the interaction has arrived
	err      error          // reason why no more frames arrive
}

func (e *exchange) init(l *session, id uint64) {
	e.l, e.id, e.window = l, id, l.window(e.long)
	e.credit, e.queue = e.window, e.slot[:0]
}

// put adds a frame that has arrived. The reader of the session calls it.
func (e *exchange) put(f frame.Frame) error {
	n := f.Cost()
	if f.Owned {
		n -= len(f.Body) // counted by its reader
	}
	if err := e.l.memory.take(n); err != nil {
		return err
	}
	if !f.Owned {
		f.Body, f.Owned = append(make([]byte, 0, len(f.Body)), f.Body...), true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over {
		return frame.Errorf("a frame came after the last")
	}
	e.queued += f.Cost()
	e.received = true
	e.over = f.Kind.Ends()
	if e.queued+e.taken+e.owed > e.window+e.l.maxBody() {
		return frame.Errorf("data without credit")
	}
	e.queue = append(e.queue, f)
	poke(e.ready)
	return nil
}

// poke puts an element into a channel of capacity one.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// end ends all waits: the session has ended, the caller has cancelled, or the deadline has passed.
func (e *exchange) end(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = cmp.Or(e.err, err)
	poke(e.ready)
	poke(e.more)
	if e.work != nil {
		e.work.end()
	}
}

// state reports whether a frame has arrived, whether the last frame has arrived, and the reason why no more frames arrive, or nil.
func (e *exchange) state() (received, over bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.received, e.over, e.err
}

// take returns the next frame; a timeout of 0 waits without limit. Earlier frames count as used: the other end gets credit for them.
func (e *exchange) take(ctx context.Context, timeout time.Duration) (frame.Frame, error) {
	if f, ok, err := e.next(); ok || err != nil {
		return f, err
	}
	var late <-chan time.Time
	if timeout > 0 {
		t := time.NewTimer(timeout)
		defer t.Stop()
		late = t.C
	}
	for {
		select {
		case <-e.ready:
		case <-ctx.Done():
			return frame.Frame{}, ctx.Err()
		case <-late:
			return frame.Frame{}, errSlow
		}
		if f, ok, err := e.next(); ok || err != nil {
			return f, err
		}
	}
}

// next releases the memory of earlier frames, and grants credit when half the window is owed. Then it takes the first frame of the queue,
// if any. Frames that arrived before the end of the session come before the error.
func (e *exchange) next() (f frame.Frame, ok bool, err error) {
	e.mu.Lock()
	free, credit := e.refundLocked()
	f, ok, err = e.popLocked()
	e.mu.Unlock()
	if free > 0 {
		e.l.memory.give(free)
	}
	if credit > 0 {
		e.l.send(frame.Credit, e.id, credit)
	}
	return f, ok, err
}

func (e *exchange) popLocked() (f frame.Frame, ok bool, err error) {
	if len(e.queue) == 0 {
		return f, false, e.err
	}
	f, e.queue[0] = e.queue[0], frame.Frame{}
	if e.queue = e.queue[1:]; len(e.queue) == 0 {
		e.queue = e.slot[:0]
	}
	e.queued -= f.Cost()
	e.taken += f.Cost()
	return f, true, nil
}

func (e *exchange) refundLocked() (free, credit int) {
	free = e.taken
	e.owed += e.taken
	e.taken = 0
	if e.owed >= e.window/2 && !e.over {
		credit, e.owed = e.owed, 0
	}
	return free, credit
}

// reserve counts n bytes that are used besides the frames, until forget or release.
func (e *exchange) reserve(n int) error {
	err := e.l.memory.take(n)
	if err == nil {
		e.extra += n
	}
	return err
}

// keep keeps the body of f, the last taken frame, until forget or release.
func (e *exchange) keep(f frame.Frame) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.taken -= f.Cost()
	e.owed += f.Cost()
	e.extra += f.Cost()
}

// forget releases the memory of reserve and keep.
func (e *exchange) forget() {
	if e.extra > 0 {
		e.l.memory.give(e.extra)
		e.extra = 0
	}
}

// release releases all memory. The exchange is not on its session any more.
func (e *exchange) release() {
	e.mu.Lock()
	free := e.taken + e.queued
	e.taken, e.queued, e.queue = 0, 0, nil
	e.mu.Unlock()
	free += e.extra
	if e.extra = 0; free > 0 {
		e.l.memory.give(free)
	}
}

// assemble collects the size bytes of data that follow a message in chunks.
func (e *exchange) assemble(ctx context.Context, size int64) ([]byte, error) {
	if err := e.l.b.fits("message", size, "send less, or in parts"); err != nil {
		return nil, err
	}
	var data []byte
	for len(data) < int(size) {
		f, err := e.take(ctx, frameTime)
		if err != nil {
			return nil, err
		}
		n := len(data) + len(f.Body)
		if f.Kind != frame.Chunk || len(f.Body) == 0 || n > int(size) {
			return nil, frame.Errorf("announced data of %d bytes was not sent", size)
		}
		if len(f.Body) == int(size) {
			e.keep(f)
			return f.Body, nil
		}
		if have := cap(data); n > have { // in steps, because the size is only announced
			room := min(int(size), max(2*have, n))
			if err := e.reserve(room - have); err != nil {
				return nil, err
			}
			data = append(make([]byte, 0, room), data...)
		}
		data = append(data, f.Body...)
		buffers.put(f.Body)
	}
	return data, nil
}

// allow waits until this end may send.
func (e *exchange) allow(ctx context.Context) error {
	for {
		e.mu.Lock()
		if err := e.err; err != nil || e.credit > 0 {
			e.mu.Unlock()
			return err
		}
		if e.more == nil {
			e.more = make(chan struct{}, 1)
		}
		more := e.more
		e.mu.Unlock()
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// spend uses credit. It precedes the write, so that no credit for it can arrive earlier.
func (e *exchange) spend(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.credit -= n
}

// grant adds the credit of a credit frame with the given body.
func (e *exchange) grant(body []byte) error {
	n, err := frame.Uvarint(body)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil || n == 0 || n > uint64(e.window-e.credit) {
		return frame.Errorf("more credit than was used")
	}
	e.credit += int(n)
	poke(e.more)
	return nil
}

// send waits for credit and sends a frame.
func (e *exchange) send(ctx context.Context, k frame.Kind, direct bool, body func([]byte) ([]byte, error)) error {
	if err := e.allow(ctx); err != nil {
		return err
	}
	return e.l.out.push(ctx, k, e.id, direct, func(b []byte) ([]byte, error) {
		before := len(b)
		b, err := body(b)
		e.spend(frame.Frame{Kind: k, Body: b[before:]}.Cost())
		return b, err
	})
}

// sendData sends data in chunks of at most limit bytes.
func (e *exchange) sendData(ctx context.Context, data []byte, limit int) error {
	for len(data) > 0 {
		part := data[:min(len(data), limit)]
		data = data[len(part):]
		if err := e.allow(ctx); err != nil {
			return err
		}
		cost := frame.Frame{Kind: frame.Chunk, Body: part}.Cost()
		if err := e.l.out.chunk(ctx, e.id, part, func() { e.spend(cost) }); err != nil {
			return err
		}
	}
	return nil
}
