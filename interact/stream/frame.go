package stream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/lmosd/lmosd/interact"
)

// A kind says what a frame is. The numbers are those of the package comment.
type kind byte

const (
	kindRequest kind = 1 + iota
	kindReply
	kindLast
	kindEnd
	kindError
	kindChunk
	kindCancel
	kindCredit
)

// ends reports whether a frame of the server ends its interaction.
func (k kind) ends() bool { return k == kindLast || k == kindEnd || k == kindError }

// A frame is one frame that was read. Its body belongs to the frame if own is set, and is valid until the next read if not.
type frame struct {
	kind kind
	id   uint64
	body []byte
	own  bool
}

// cost is what the frame takes of the credit of its sender and of the memory of its reader, in bytes.
func (f frame) cost() int {
	if f.kind == kindReply || f.kind == kindLast || f.kind == kindChunk {
		return len(f.body) + 64
	}
	return len(f.body)
}

// maxHead is the most that kind and number take.
const maxHead = 1 + binary.MaxVarintLen64

var errProtocol = errors.New("the peer broke the protocol")

func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errProtocol, fmt.Sprintf(format, args...))
}

// appendFrame appends a frame that is no chunk, and whose body is what body appends. If that fails, dst is returned as it was.
func appendFrame(dst []byte, k kind, id uint64, body func([]byte) ([]byte, error)) ([]byte, error) {
	const room = 4 // for the length, which is not known yet; 4 bytes hold 2^28
	start := len(dst)
	b := append(dst, 0, 0, 0, 0, byte(k))
	b = binary.AppendUvarint(b, id)
	head := len(b)
	b, err := body(b)
	if err != nil {
		return dst, err
	}
	if len(b)-head > maxControl {
		return dst, interact.Errorf(interact.TooLarge, "shorten its members", "the message has %d bytes beside its data, "+
			"at most %d are allowed", len(b)-head, maxControl)
	}
	var length [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(length[:], uint64(len(b)-start-room))
	copy(b[start:], length[:n])
	return append(b[:start+n], b[start+room:]...), nil
}

// chunkHead is the most that stands before the body of a chunk: length, kind and number.
const chunkHead = 4 + maxHead

// appendChunk appends the frame of a chunk. Its length is known at once, so that nothing is moved.
func appendChunk(dst []byte, id uint64, data []byte) []byte {
	var head [maxHead]byte
	head[0] = byte(kindChunk)
	n := 1 + binary.PutUvarint(head[1:], id)
	dst = binary.AppendUvarint(dst, uint64(n+len(data)))
	return append(append(dst, head[:n]...), data...)
}

// read waits for the next frame and reads it. A body that is not the frame's own lies in the buffer of l.in.
func (l *session) read() (frame, error) {
	if l.in.Buffered() == 0 {
		if _, err := l.in.Peek(1); err != nil { // a session may be idle between frames
			return frame{}, err
		}
		l.listen()
	}
	if !l.whole() {
		l.startFrameTimer()
		defer l.stopFrameTimer()
	}
	n, size, err := l.length()
	if err != nil {
		return frame{}, err
	}
	if n+size > l.in.Size() {
		return l.readLarge(n, size)
	}
	b, err := l.in.Peek(n + size)
	if err != nil {
		return frame{}, unexpected(err)
	}
	f, err := l.parse(b[n:], size)
	if err != nil {
		return f, err
	}
	_, err = l.in.Discard(n + size)
	return f, err
}

// whole reports whether the next frame is in the buffer to its end.
func (l *session) whole() bool {
	b, _ := l.in.Peek(l.in.Buffered())
	size, n := binary.Uvarint(b)
	return n > 0 && uint64(len(b)-n) >= size
}

// length reads how long the next frame is, without consuming it: the size of that number, and the number.
func (l *session) length() (n, size int, err error) {
	for n = 1; n <= 4; n++ {
		b, err := l.in.Peek(n)
		if err != nil {
			return 0, 0, unexpected(err)
		}
		if b[n-1] < 0x80 {
			size, err := uvarint(b)
			return n, int(size), l.fits(size, err)
		}
	}
	return 0, 0, broken("a frame of more than 256 MiB was announced")
}

// fits checks a length before anything is allocated for it.
func (l *session) fits(size uint64, err error) error {
	limit := l.maxBody() + maxHead
	switch {
	case err != nil:
		return err
	case size < 2:
		return broken("a frame of %d bytes", size)
	case size > uint64(limit):
		return broken("a frame of %d bytes was announced, at most %d are allowed", size, limit)
	}
	return nil
}

// parse reads kind and number of a frame of size bytes that begins in b.
func (l *session) parse(b []byte, size int) (frame, error) {
	f := frame{kind: kind(b[0])}
	n := 1
	for n < len(b) && n < maxHead && b[n] >= 0x80 {
		n++
	}
	id, err := uvarint(b[1:min(n+1, len(b))])
	if err != nil {
		return f, err
	}
	f.id, f.body = id, b[n+1:]
	if f.kind < kindRequest || f.kind > kindCredit {
		return f, broken("a frame of unknown kind %d", f.kind)
	}
	if (f.kind == kindEnd || f.kind == kindCancel) && size != n+1 {
		return f, broken("a frame of kind %d with a body", f.kind)
	}
	if body := size - n - 1; body > maxControl && (f.kind != kindChunk || body > maxChunk) {
		return f, broken("a frame of kind %d with %d bytes", f.kind, body)
	}
	return f, nil
}

// uvarint reads the number that fills b, in its shortest form.
func uvarint(b []byte) (uint64, error) {
	v, n := binary.Uvarint(b)
	if n <= 0 || n != len(b) || n > 1 && b[n-1] == 0 {
		return 0, broken("a malformed number")
	}
	return v, nil
}

// readLarge reads a frame that the buffer cannot hold, into memory of its own.
func (l *session) readLarge(n, size int) (frame, error) {
	b, err := l.in.Peek(n + maxHead)
	if err != nil {
		return frame{}, unexpected(err)
	}
	f, err := l.parse(b[n:], size)
	if err != nil {
		return f, err
	}
	head := len(b) - n - len(f.body)
	if _, err := l.in.Discard(n + head); err != nil {
		return f, err
	}
	if err := l.memory.take(size - head); err != nil {
		return f, err
	}
	f.body, f.own = buffers.get(size-head), true
	for rest := f.body; len(rest) > 0 && err == nil; {
		part := rest[:min(len(rest), maxControl)]
		rest = rest[len(part):]
		l.startFrameTimer() // a slow link is none that stands still
		_, err = io.ReadFull(l.in, part)
	}
	return f, unexpected(err)
}

// unexpected returns the error for a session that ended inside a frame.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
