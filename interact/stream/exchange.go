package stream

import (
	"context"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/stream/frame"
)

// An exchange is one interaction as one end of it sees it: what has arrived, and what may be sent. The session's reader puts
// frames in, one goroutine takes them out, and one goroutine sends; the first two may be one after the other.
type exchange struct {
	l       *session
	id      uint64
	started time.Time     // at the calling end
	until   time.Time     // when the caller stops waiting; zero means never
	long    bool          // it goes on until somebody ends it; set before init
	work    *work         // at the serving end; nil at the other
	ready   chan struct{} // has an element when there may be something to take; nil if nothing is expected
	extra   int           // memory that is in use beside frames, in bytes; of the goroutine that takes

	// mu owns what follows. Sizes are in bytes.
	mu       sync.Mutex
	window   int            // what an end may send before the other end has taken it
	queue    []frame.Frame  // arrived, not taken
	slot     [1]frame.Frame // the first place of queue: most interactions need no more
	queued   int            // size of queue
	taken    int            // of frames that were taken and may be in use
	owed     int            // credit for what was taken, not yet worth a frame
	credit   int            // what this end may send; one frame may overdraw it
	more     chan struct{}  // has an element when there may be credit; made when somebody waits
	received bool           // something has arrived
	over     bool           // the frame that ends the interaction has arrived
	err      error          // why nothing more will arrive
}

func (e *exchange) init(l *session, id uint64) {
	e.l, e.id, e.window = l, id, l.window(e.long)
	e.credit, e.queue = e.window, e.slot[:0]
}

// put hands over a frame that has arrived. It is called by the session's reader.
func (e *exchange) put(f frame.Frame) error {
	n := f.Cost()
	if f.Owned {
		n -= len(f.Body) // its reader has accounted for it
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
		return frame.Errorf("more was sent than there was credit for")
	}
	e.queue = append(e.queue, f)
	poke(e.ready)
	return nil
}

// poke puts an element into a channel that holds one.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// end tells everybody who waits that nothing more will come: the session has ended, the caller has left, or time is up.
func (e *exchange) end(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = err
	}
	poke(e.ready)
	poke(e.more)
	if e.work != nil {
		e.work.end()
	}
}

// left reports why nobody at the other end waits any more, or nil.
func (e *exchange) left() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// silent reports whether nothing has arrived yet.
func (e *exchange) silent() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.received
}

// complete reports whether the frame that ends the interaction has arrived.
func (e *exchange) complete() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.over
}

// take returns the next frame, and waits for it at most patience if that is not 0. What was taken before counts as used:
// the other end may send as much again.
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

// next returns the memory of what was taken, and credit for it when half the window is owed. Then it takes the first frame of
// the queue, if there is one. What arrived before the session ended comes before the error.
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

// reserve accounts for n bytes that are used beside the frames, until forget or release.
func (e *exchange) reserve(n int) error {
	err := e.l.memory.take(n)
	if err == nil {
		e.extra += n
	}
	return err
}

// keep lets the body of f, which was just taken, be used until forget or release.
func (e *exchange) keep(f frame.Frame) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.taken -= f.Cost()
	e.owed += f.Cost()
	e.extra += f.Cost()
}

// forget returns what reserve and keep took.
func (e *exchange) forget() {
	if e.extra > 0 {
		e.l.memory.give(e.extra)
		e.extra = 0
	}
}

// release returns all memory. The exchange must be off its session.
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
	if limit := e.l.b.o.MaxMessage; size > limit {
		return nil, interact.Errorf(interact.TooLarge, "send less, or in parts", "the message has %d bytes, at most %d are allowed",
			size, limit)
	}
	var data []byte
	for len(data) < int(size) {
		f, err := e.take(ctx, frameTime)
		if err != nil {
			return nil, err
		}
		n := len(data) + len(f.Body)
		if f.Kind != frame.Chunk || len(f.Body) == 0 || n > int(size) {
			return nil, frame.Errorf("data of %d bytes was announced and not sent", size)
		}
		if len(f.Body) == int(size) {
			e.keep(f)
			return f.Body, nil
		}
		if have := cap(data); n > have { // by and by, since to announce a size costs nothing
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

// spend notes what is about to be sent. It comes before the write, so that no credit for it can come earlier.
func (e *exchange) spend(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.credit -= n
}

// grant adds what the credit frame with the given body brings.
func (e *exchange) grant(body []byte) error {
	n, err := frame.Uvarint(body)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil || n == 0 || n > uint64(e.window-e.credit) {
		return frame.Errorf("a credit of more than was used")
	}
	e.credit += int(n)
	poke(e.more)
	return nil
}

// send sends a frame when there is credit for it.
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
