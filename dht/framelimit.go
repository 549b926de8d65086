package dht

import (
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"github.com/lmosd/lmosd/internal/streamserver"
)

// Limits of inbound DHT streams. A PUT_VALUE is at most 8 KiB of record, an ADD_PROVIDER one peer
// record, so 64 KiB is ample.
const (
	maxInbound = 64 << 10         // G3: a request
	frameTime  = 10 * time.Second // G4: from the first byte of a request to its last, and for writing a reply
	idleTime   = time.Minute      // G4: between requests
)

// A frameLimiter is between a stream and the handler of the library, which would read frames of up to 4 MiB. It checks each length prefix
// and resets the stream before the handler can act on an invalid one. No Read crosses the end of a frame.
//
// Only one goroutine reads and writes, as the handler does.
type frameLimiter struct {
	network.Stream
	head    streamserver.Prefix
	left    int // unread bytes of the current frame
	timer   *time.Timer
	refused func(error)
}

// newFrameLimiter wraps s. refused is called for an invalid prefix. stop must be called after the handler.
//
// It uses timers, because stream deadlines apply to one direction or both, and a stream may wait a minute for its next request, but
// not for a reply.
func newFrameLimiter(s network.Stream, refused func(error)) *frameLimiter {
	g := &frameLimiter{Stream: s, refused: refused}
	g.timer = time.AfterFunc(idleTime, func() { _ = s.Reset() })
	return g
}

func (g *frameLimiter) stop() { g.timer.Stop() }

// Read returns one byte of a prefix or a part of one frame's body.
func (g *frameLimiter) Read(p []byte) (int, error) {
	switch {
	case len(p) == 0:
		return 0, nil
	case g.left == 0:
		return g.readHead(p[:1])
	}
	n, err := g.Stream.Read(p[:min(len(p), g.left)])
	g.left -= n
	if g.left == 0 {
		g.timer.Reset(idleTime)
	}
	return n, err
}

func (g *frameLimiter) readHead(p []byte) (int, error) {
	n, err := g.Stream.Read(p)
	if n == 0 {
		return 0, err
	}
	if g.head.Read == 0 {
		g.timer.Reset(frameTime)
	}
	done, bad := g.head.Add(p[0], maxInbound)
	if bad != nil {
		g.refused(bad)
		_ = g.Stream.ResetWithError(network.StreamProtocolViolation)
		return 0, bad
	}
	if done {
		g.left, g.head = g.head.Size, streamserver.Prefix{}
	}
	if done && g.left == 0 {
		g.timer.Reset(idleTime)
	}
	return n, err
}

// Write sends a part of a reply. A stream that does not accept it in time is reset.
func (g *frameLimiter) Write(p []byte) (int, error) {
	g.timer.Reset(frameTime)
	n, err := g.Stream.Write(p)
	g.timer.Reset(idleTime)
	return n, err
}
