package bridge

import (
	"cmp"
	"io"
	"sync"
)

// A pipe carries bytes from one writing goroutine to one reading goroutine, as [io.Pipe] does, but buffers up to maxChunk of them: the
// writer need not wait for each read, and one read returns the bytes of many writes.
type pipe struct {
	mu      sync.Mutex
	changed sync.Cond // on mu: signals a write, a read or the end
	buffer  []byte
	read    int   // number of bytes of buffer that were read
	end     error // reason why the stream ended; nil while it has not
	closed  bool  // the reader has closed the pipe
}

func newPipe() *pipe {
	p := &pipe{}
	p.changed.L = &p.mu
	return p
}

// Read returns the bytes in order. At the end the error is that of [pipe.finish], after [pipe.Close] io.ErrClosedPipe.
func (p *pipe) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.read == len(p.buffer) && p.end == nil && !p.closed {
		p.changed.Wait()
	}
	switch {
	case p.closed:
		return 0, io.ErrClosedPipe
	case p.read == len(p.buffer):
		return 0, p.end
	}
	n := copy(b, p.buffer[p.read:])
	if p.read += n; p.read == len(p.buffer) {
		p.read, p.buffer = 0, p.buffer[:0]
		if cap(p.buffer) > maxIdle {
			p.buffer = nil
		}
	}
	p.changed.Broadcast()
	return n, nil
}

// maxIdle is the most memory that an empty pipe holds, in bytes.
const maxIdle = 4 << 10

// Write appends b, and blocks while maxChunk bytes are unread. The error is io.ErrClosedPipe.
func (p *pipe) Write(b []byte) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(b) > 0 {
		for len(p.buffer)-p.read >= maxChunk && p.end == nil && !p.closed {
			p.changed.Wait()
		}
		if p.end != nil || p.closed {
			return n, io.ErrClosedPipe
		}
		size := min(len(b), maxChunk-(len(p.buffer)-p.read))
		if p.read > 0 && len(p.buffer)+size > cap(p.buffer) {
			p.buffer, p.read = p.buffer[:copy(p.buffer, p.buffer[p.read:])], 0
		}
		p.buffer = append(p.buffer, b[:size]...)
		n, b = n+size, b[size:]
		p.changed.Broadcast()
	}
	return n, nil
}

// finish ends the stream with an error; nil means io.EOF. Buffered bytes can still be read.
func (p *pipe) finish(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	why = cmp.Or(why, io.EOF)
	p.end = cmp.Or(p.end, why)
	p.changed.Broadcast()
}

// Close closes the reading end: unread bytes are dropped, and later reads and writes fail.
func (p *pipe) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.buffer, p.read = true, nil, 0
	p.changed.Broadcast()
	return nil
}
