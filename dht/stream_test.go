package dht

import (
	"bytes"
	"io"
	"sync/atomic"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	ma "github.com/multiformats/go-multiaddr"
)

// memory counts reserved memory, up to a limit.
type memory struct {
	network.NullScope
	held, peak int
	full       bool
}

func (a *memory) ReserveMemory(n int, _ uint8) error {
	if a.full {
		return network.ErrResourceLimitExceeded
	}
	a.held += n
	a.peak = max(a.peak, a.held)
	return nil
}

func (a *memory) ReleaseMemory(n int) { a.held -= n }

// A script is a stream whose far end sends a fixed text, independent of the input.
type script struct {
	network.Stream
	r     io.Reader
	scope memory
	wrote bytes.Buffer
	code  atomic.Int64 // of the first reset, -1 for one without
	from  peer.ID
	addr  ma.Multiaddr
	onEnd func()
}

func (s *script) Read(b []byte) (int, error)  { return s.r.Read(b) }
func (s *script) Write(b []byte) (int, error) { return s.wrote.Write(b) }
func (s *script) Protocol() protocol.ID       { return "/test" }
func (s *script) Scope() network.StreamScope  { return &s.scope }
func (s *script) Conn() network.Conn          { return scriptConn{s: s} }
func (s *script) Close() error                { return nil }
func (s *script) CloseWrite() error           { return nil }
func (s *script) Reset() error                { return s.reset(-1) }

func (s *script) ResetWithError(c network.StreamErrorCode) error { return s.reset(int64(c)) }

func (s *script) reset(code int64) error {
	if s.code.CompareAndSwap(0, code) && s.onEnd != nil {
		s.onEnd()
	}
	return nil
}

type scriptConn struct {
	network.Conn
	s *script
}

func (c scriptConn) RemotePeer() peer.ID           { return c.s.from }
func (c scriptConn) RemoteMultiaddr() ma.Multiaddr { return c.s.addr }
