package bridge

import (
	"io"
	"sync"
)

// A pipe carries bytes from one writing goroutine to one reading goroutine, as [io.Pipe] does, but buffers up to maxPiece of them: the
// writer need not wait for each read, and one read returns the bytes of many writes.
type pipe struct {
	mu   sync.Mutex
	turn sync.Cond // on mu: signals a write, a read or the end
	kept []byte
	at   int   // number of bytes of kept that were read
	end  error // why the stream ended; nil: it has not
	left bool  // the reader has closed the pipe
}

func newPipe() *pipe {
	p := &pipe{}
	p.turn.L = &p.mu
	return p
}

// Read returns the bytes in order, and then the reason of the end: io.EOF or the error of [pipe.finish], or io.ErrClosedPipe after
// [pipe.Close].
func (p *pipe) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.at == len(p.kept) && p.end == nil && !p.left {
		p.turn.Wait()
	}
	switch {
	case p.left:
		return 0, io.ErrClosedPipe
	case p.at == len(p.kept):
		return 0, p.end
	}
	n := copy(b, p.kept[p.at:])
	if p.at += n; p.at == len(p.kept) {
		p.at, p.kept = 0, p.kept[:0]
		if cap(p.kept) > smallPiece {
			p.kept = nil
		}
	}
	p.turn.Broadcast()
	return n, nil
}

// smallPiece is the most memory that an empty pipe holds, in bytes.
const smallPiece = 4 << 10

// Write appends b, and blocks while maxPiece bytes are unread. The error is io.ErrClosedPipe.
func (p *pipe) Write(b []byte) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(b) > 0 {
		for len(p.kept)-p.at >= maxPiece && p.end == nil && !p.left {
			p.turn.Wait()
		}
		if p.end != nil || p.left {
			return n, io.ErrClosedPipe
		}
		size := min(len(b), maxPiece-(len(p.kept)-p.at))
		if p.at > 0 && len(p.kept)+size > cap(p.kept) {
			p.kept, p.at = p.kept[:copy(p.kept, p.kept[p.at:])], 0
		}
		p.kept = append(p.kept, b[:size]...)
		n, b = n+size, b[size:]
		p.turn.Broadcast()
	}
	return n, nil
}

// finish ends the stream with an error; nil means io.EOF. Buffered bytes can still be read.
func (p *pipe) finish(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if why == nil {
		why = io.EOF
	}
	if p.end == nil {
		p.end = why
	}
	p.turn.Broadcast()
}

// Close closes the reading end: unread bytes are dropped, and later reads and writes fail.
func (p *pipe) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left, p.kept, p.at = true, nil, 0
	p.turn.Broadcast()
	return nil
}
