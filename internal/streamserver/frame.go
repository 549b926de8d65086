package streamserver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/libp2p/go-libp2p/core/network"

	"github.com/lmosd/lmosd/internal/httpbody"
)

// A Violation is an error of a peer that does not keep to a protocol. Packages that implement a protocol declare their own.
type Violation string

func (v Violation) Error() string { return string(v) }

// Is reports whether target is [ErrViolation]: errors.Is finds every Violation with it.
func (v Violation) Is(target error) bool { return target == ErrViolation }

const (
	// ErrViolation matches every [Violation].
	ErrViolation = Violation("protocol violation")
	// ErrFrame reports a length prefix that is too long, not minimal, or larger than the limit.
	ErrFrame = Violation("malformed frame")
)

// MaxPrefix is the longest length prefix in bytes. Three hold 2 MiB, the largest frame of all protocols here.
const MaxPrefix = 3

// A Prefix is the length of a frame while its bytes are read: a minimal uvarint of one to three bytes.
type Prefix struct {
	Size int
	Read int // bytes of the prefix so far
}

// Add adds the next byte of the prefix. After done, Size is complete and at most limit. The error wraps [ErrFrame].
func (p *Prefix) Add(b byte, limit int) (done bool, err error) {
	p.Size |= int(b&0x7f) << (7 * p.Read)
	p.Read++
	switch {
	case b&0x80 != 0 && p.Read == MaxPrefix:
		return false, fmt.Errorf("%w: a length of more than %d bytes", ErrFrame, MaxPrefix)
	case b&0x80 != 0:
		return false, nil
	case b == 0 && p.Read > 1:
		return false, fmt.Errorf("%w: a length that is not minimal", ErrFrame)
	case p.Size > limit:
		return false, fmt.Errorf("%w: a length of %d bytes, the limit is %d", ErrFrame, p.Size, limit)
	}
	return true, nil
}

// readPrefix reads the length of the next frame and no byte after it. It returns io.EOF only before the first byte.
func readPrefix(r io.Reader, limit int) (int, error) {
	var p Prefix
	var b [1]byte
	for {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			if err == io.EOF && p.Read > 0 {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
		if done, err := p.Add(b[0], limit); done || err != nil {
			return p.Size, err
		}
	}
}

// Memory accounts for the bytes of messages: the resource manager's scope of a stream.
type Memory interface {
	ReserveMemory(size int, prio uint8) error
	ReleaseMemory(size int)
}

// ReadFrame reads one frame of at most limit bytes: a uvarint length and as many bytes. It allocates nothing before the length is known
// to be allowed and its memory is reserved. The caller calls release when it does not need the frame any more.
func ReadFrame(r io.Reader, m Memory, limit int) (frame []byte, release func(), err error) {
	n, err := readPrefix(r, limit)
	if err != nil {
		return nil, nil, err
	}
	if release, err = reserve(m, n); err != nil {
		return nil, nil, err
	}
	frame = make([]byte, n)
	if _, err := io.ReadFull(r, frame); err != nil {
		release()
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, nil, err
	}
	return frame, release, nil
}

// ReadAll reads one message of at most limit bytes that ends with the stream. The caller calls release when it does not need the message
// any more.
func ReadAll(r io.Reader, m Memory, limit int) (message []byte, release func(), err error) {
	if release, err = reserve(m, limit); err != nil {
		return nil, nil, err
	}
	message, err = httpbody.ReadAll(r, -1, int64(limit))
	if errors.Is(err, httpbody.ErrTooLarge) {
		err = fmt.Errorf("%w: a message of more than %d bytes", ErrFrame, limit)
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	return message, release, nil
}

func reserve(m Memory, n int) (release func(), err error) {
	if err := m.ReserveMemory(n, network.ReservationPriorityMedium); err != nil {
		return nil, fmt.Errorf("reserve %d bytes: %w", n, err)
	}
	return func() { m.ReleaseMemory(n) }, nil
}

// AppendFrame appends body as a frame. One Write for each frame keeps small frames in one packet.
func AppendFrame(dst, body []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(body))), body...)
}
