package dht

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/libp2p/go-libp2p/core/network"
)

// errFrame says that the far end does not keep to the framing: a prefix that is too long, not minimal, or announces more
// than is allowed here.
var errFrame = errors.New("malformed frame")

// maxPrefix is the longest length prefix in bytes. Three hold 2 MiB, and nothing here is that long.
const maxPrefix = 3

// A prefix is the length of a frame while its bytes come in: a minimal uvarint of one to three bytes.
type prefix struct {
	size int
	n    int // bytes taken so far
}

// add takes the next byte of the prefix. done says that size is complete; it is at most limit then.
func (p *prefix) add(b byte, limit int) (done bool, err error) {
	p.size |= int(b&0x7f) << (7 * p.n)
	p.n++
	switch {
	case b&0x80 != 0 && p.n == maxPrefix:
		return false, fmt.Errorf("%w: a length of more than %d bytes", errFrame, maxPrefix)
	case b&0x80 != 0:
		return false, nil
	case b == 0 && p.n > 1:
		return false, fmt.Errorf("%w: a length that is not minimal", errFrame)
	case p.size > limit:
		return false, fmt.Errorf("%w: %d bytes announced, %d allowed", errFrame, p.size, limit)
	}
	return true, nil
}

// readPrefix reads the length of the next frame. It reads no byte beyond, and returns io.EOF only before the first.
func readPrefix(r io.Reader, limit int) (int, error) {
	var p prefix
	var b [1]byte
	for {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			if err == io.EOF && p.n > 0 {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
		if done, err := p.add(b[0], limit); done || err != nil {
			return p.size, err
		}
	}
}

// memory is where the bytes of a frame are accounted for: the resource manager's scope of a stream.
type memory interface {
	ReserveMemory(size int, prio uint8) error
	ReleaseMemory(size int)
}

// readFrame reads one frame of at most limit bytes. Nothing is allocated before the length is known to be allowed and its
// memory is reserved; release gives that back, and is to be called when the frame is done with.
func readFrame(r io.Reader, m memory, limit int) (frame []byte, release func(), err error) {
	n, err := readPrefix(r, limit)
	if err != nil {
		return nil, nil, err
	}
	if err := m.ReserveMemory(n, network.ReservationPriorityMedium); err != nil {
		return nil, nil, fmt.Errorf("reserve %d bytes: %w", n, err)
	}
	frame = make([]byte, n)
	if _, err := io.ReadFull(r, frame); err != nil {
		m.ReleaseMemory(n)
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, nil, err
	}
	return frame, func() { m.ReleaseMemory(n) }, nil
}

// appendFrame appends body as a frame. One Write per frame keeps it in one packet where it fits.
func appendFrame(dst, body []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(body))), body...)
}
