package stream

import (
	"encoding/binary"
	"io"

	"github.com/lmosd/lmosd/interact/stream/frame"
)

// read waits for the next frame and reads it. A body that is not owned is in the buffer of l.in.
func (l *session) read() (frame.Frame, error) {
	if l.in.Buffered() == 0 {
		if _, err := l.in.Peek(1); err != nil { // a session may be idle between frames
			return frame.Frame{}, err
		}
		l.listen()
	}
	if !l.whole() {
		l.startFrameTimer()
		defer l.stopFrameTimer()
	}
	n, size, err := l.length()
	if err != nil {
		return frame.Frame{}, err
	}
	if n+size > l.in.Size() {
		return l.readLarge(n, size)
	}
	b, err := l.in.Peek(n + size)
	if err != nil {
		return frame.Frame{}, unexpected(err)
	}
	f, err := frame.Parse(b[n:], size)
	if err != nil {
		return f, err
	}
	_, err = l.in.Discard(n + size)
	return f, err
}

// whole reports whether the buffer has the whole next frame.
func (l *session) whole() bool {
	b, _ := l.in.Peek(l.in.Buffered())
	size, n := binary.Uvarint(b)
	return n > 0 && uint64(len(b)-n) >= size
}

// length reads the length of the next frame without consuming it: the size of that number, and the number.
func (l *session) length() (n, size int, err error) {
	for n = 1; n <= 4; n++ {
		b, err := l.in.Peek(n)
		if err != nil {
			return 0, 0, unexpected(err)
		}
		if b[n-1] < 0x80 {
			size, err := frame.Uvarint(b)
			return n, int(size), l.fits(size, err)
		}
	}
	return 0, 0, frame.Errorf("a frame of more than 256 MiB was announced")
}

// fits checks a length before memory is allocated.
func (l *session) fits(size uint64, err error) error {
	limit := l.maxBody() + frame.MaxHead
	switch {
	case err != nil:
		return err
	case size < 2:
		return frame.Errorf("a frame of %d bytes", size)
	case size > uint64(limit):
		return frame.Errorf("a frame of %d bytes was announced, at most %d are allowed", size, limit)
	}
	return nil
}

// readLarge reads a frame that the buffer cannot hold, into memory of its own.
func (l *session) readLarge(n, size int) (frame.Frame, error) {
	b, err := l.in.Peek(n + frame.MaxHead)
	if err != nil {
		return frame.Frame{}, unexpected(err)
	}
	f, err := frame.Parse(b[n:], size)
	if err != nil {
		return f, err
	}
	head := len(b) - n - len(f.Body)
	if _, err := l.in.Discard(n + head); err != nil {
		return f, err
	}
	if err := l.memory.take(size - head); err != nil {
		return f, err
	}
	f.Body, f.Owned = buffers.get(size-head), true
	for rest := f.Body; len(rest) > 0 && err == nil; {
		part := rest[:min(len(rest), frame.MaxControl)]
		rest = rest[len(part):]
		l.startFrameTimer() // a slow link is not a stalled one
		_, err = io.ReadFull(l.in, part)
	}
	return f, unexpected(err)
}

// unexpected returns the error for the end of a session inside a frame.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
