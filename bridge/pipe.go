package bridge

import (
	"io"
	"sync"
)

// A pipe carries bytes from a goroutine that writes to one that reads, as [io.Pipe] does, but keeps up to maxPiece of them: the one
// need not wait for the other each time, and what came in many writes is read at once.
type pipe struct {
	mu   sync.Mutex
	turn sync.Cond // on mu: something was written, read or ended
	kept []byte
	at   int   // how much of kept was read
	end  error // why nothing more is written; nil: more may be
	left bool  // nobody reads any more
}

func newPipe() *pipe {
	p := &pipe{}
	p.turn.L = &p.mu
	return p
}

// Read returns what was written, in its order, and then why there is no more: io.EOF or what [pipe.finish] was given, or
// io.ErrClosedPipe after [pipe.Close].
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

// smallPiece is the memory that a pipe without bytes may hold.
const smallPiece = 4 << 10

// Write takes the bytes of b, and waits while there are maxPiece that nobody has read. The error is io.ErrClosedPipe.
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

// finish says that nothing more is written, and why; nil is io.EOF. What was written before is still read.
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

// Close is for who reads: nothing is read any more, and nothing can be written.
func (p *pipe) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left, p.kept, p.at = true, nil, 0
	p.turn.Broadcast()
	return nil
}
