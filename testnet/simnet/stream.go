package simnet

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
)

// window limits the bytes of a stream in flight or unread; further writes block.
const window = 1 << 20

var errClosed = errors.New("simnet: the stream is closed for writing")

// A stream is one side of a stream.
type stream struct {
	conn    *conn
	far     *stream
	in, out *pipe // out is the in of the other side
	half    atomic.Int32
}

var _ network.MuxedStream = (*stream)(nil)

// newStreams returns both sides of a stream that c opens.
func newStreams(c *conn) (near, far *stream) {
	there, back := &pipe{wire: c.wire}, &pipe{wire: c.wire}
	near, far = &stream{conn: c, in: back, out: there}, &stream{conn: c.far, in: there, out: back}
	near.far, far.far = far, near
	return near, far
}

// Read implements [io.Reader].
func (s *stream) Read(p []byte) (int, error) { return s.in.read(p) }

// Write implements [io.Writer]. It keeps no part of p.
func (s *stream) Write(p []byte) (int, error) { return s.out.write(p) }

// CloseWrite closes the stream for writing.
func (s *stream) CloseWrite() error {
	s.out.close()
	s.halve(1)
	return nil
}

// CloseRead drops all further input.
func (s *stream) CloseRead() error {
	s.in.drop()
	s.halve(2)
	return nil
}

// Close closes both directions.
func (s *stream) Close() error {
	_ = s.CloseWrite()
	return s.CloseRead()
}

// halve records the end of one direction.
func (s *stream) halve(which int32) {
	if s.half.Or(which)|which == 3 {
		s.conn.remove(s)
	}
}

// Reset ends the stream here, and on the other side after the delay.
func (s *stream) Reset() error {
	s.conn.remove(s)
	s.fail()
	s.conn.wire.deliver(func() {
		s.far.conn.remove(s.far)
		s.far.fail()
	})
	return nil
}

// fail ends this side.
func (s *stream) fail() {
	s.in.fail(true)
	s.out.fail(false)
}

// SetDeadline sets both deadlines; zero means none.
func (s *stream) SetDeadline(t time.Time) error {
	_ = s.SetReadDeadline(t)
	return s.SetWriteDeadline(t)
}

func (s *stream) SetReadDeadline(t time.Time) error {
	s.in.until(&s.in.readBy, t)
	return nil
}

func (s *stream) SetWriteDeadline(t time.Time) error {
	s.out.until(&s.out.writeBy, t)
	return nil
}

func (s *stream) ResetWithError(network.StreamErrorCode) error { return s.Reset() }

// A pipe is one direction of a stream.
type pipe struct {
	wire *wire

	mu              sync.Mutex // owns the rest
	parts           []part     // in flight or unread, in order
	size            int        // of parts, in bytes
	readBy, writeBy time.Time
	isClosed        bool
	closed          time.Time // arrival of the end; zero is not known
	readErr         error     // after a reset
	writeErr        error
	dropping        bool          // no reader
	changed         chan struct{} // closed at the next change; nil without a waiter
}

// A part is the data of one write.
type part struct {
	at    time.Time // of its arrival; zero is not known
	bytes []byte
}

// wakeLocked wakes all waiters.
func (p *pipe) wakeLocked() {
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// await unlocks p, waits for a change or the earliest non-zero time, and locks p.
func (p *pipe) await(times ...time.Time) {
	var first time.Time
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	changed := p.changed
	p.mu.Unlock()
	defer p.mu.Lock()
	if first.IsZero() {
		<-changed
		return
	}
	t := time.NewTimer(time.Until(first))
	defer t.Stop()
	select {
	case <-changed:
	case <-t.C:
	}
}

func over(t, now time.Time) bool { return !t.IsZero() && !now.Before(t) }

func (p *pipe) read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		var arrival time.Time
		if len(p.parts) > 0 {
			arrival = p.parts[0].at
		}
		switch now := time.Now(); {
		case p.readErr != nil:
			return 0, p.readErr
		case over(p.readBy, now):
			return 0, os.ErrDeadlineExceeded
		case p.dropping:
			return 0, io.EOF
		case len(b) == 0:
			return 0, nil
		case over(arrival, now):
			return p.takeLocked(b, now), nil
		case len(p.parts) == 0 && over(p.closed, now):
			return 0, io.EOF
		}
		p.await(arrival, p.closed, p.readBy)
	}
}

// takeLocked copies the arrived data to b.
func (p *pipe) takeLocked(b []byte, now time.Time) (n int) {
	full := p.size >= window
	for len(p.parts) > 0 && n < len(b) && over(p.parts[0].at, now) {
		first := &p.parts[0]
		k := copy(b[n:], first.bytes)
		n += k
		if first.bytes = first.bytes[k:]; len(first.bytes) == 0 {
			p.parts[0] = part{}
			p.parts = p.parts[1:]
		}
	}
	if p.size -= n; len(p.parts) == 0 {
		p.parts = nil
	}
	if full {
		p.wakeLocked()
	}
	return n
}

func (p *pipe) write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch now := time.Now(); {
		case p.writeErr != nil:
			return 0, p.writeErr
		case p.isClosed:
			return 0, errClosed
		case over(p.writeBy, now):
			return 0, os.ErrDeadlineExceeded
		case p.dropping || len(b) == 0:
			return len(b), nil
		case p.size < window:
			p.parts = append(p.parts, part{p.wire.arrival(now), append([]byte(nil), b...)})
			p.size += len(b)
			p.wakeLocked()
			return len(b), nil
		}
		p.await(p.writeBy)
	}
}

func (p *pipe) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.isClosed {
		p.isClosed, p.closed = true, p.wire.arrival(time.Now())
		p.wakeLocked()
	}
}

// resume lets what was sent over a wire that was cut arrive after the delay.
func (p *pipe) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	arrival := p.wire.arrival(time.Now())
	for i := range p.parts {
		if p.parts[i].at.IsZero() {
			p.parts[i].at = arrival
		}
	}
	if p.isClosed && p.closed.IsZero() {
		p.closed = arrival
	}
	p.wakeLocked()
}

func (p *pipe) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropping, p.parts, p.size = true, nil, 0
	p.wakeLocked()
}

// fail ends the pipe for its reader or its writer.
func (p *pipe) fail(reader bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if reader {
		p.readErr, p.parts, p.size = network.ErrReset, nil, 0
	} else {
		p.writeErr = network.ErrReset
	}
	p.wakeLocked()
}

func (p *pipe) until(deadline *time.Time, t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*deadline = t
	p.wakeLocked()
}
