package streamserver

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// A fake is a stream on which nothing arrives until it is reset.
type fake struct {
	network.Stream
	from    peer.ID
	service string
	closed  bool
	reset   sync.Once
	code    network.StreamErrorCode // of the first reset
	over    chan struct{}           // closed by the first reset
}

type conn struct {
	network.Conn
	from peer.ID
}

type scope struct {
	network.NullScope
	f *fake
}

func (s *scope) SetService(name string) error { s.f.service = name; return nil }

// plain is the code that a fake notes for a reset without one.
const plain network.StreamErrorCode = 0xffff

func newFake(from peer.ID) *fake { return &fake{from: from, over: make(chan struct{})} }

func (c conn) RemotePeer() peer.ID { return c.from }

func (f *fake) Conn() network.Conn         { return conn{from: f.from} }
func (f *fake) Protocol() protocol.ID      { return "/test" }
func (f *fake) Scope() network.StreamScope { return &scope{f: f} }
func (f *fake) Close() error               { f.closed = true; return nil }
func (f *fake) Reset() error               { return f.ResetWithError(plain) }
func (f *fake) Read([]byte) (int, error)   { <-f.over; return 0, network.ErrReset }

func (f *fake) ResetWithError(code network.StreamErrorCode) error {
	f.reset.Do(func() { f.code = code; close(f.over) })
	return nil
}

// newServer returns a server of 3 streams, 2 of one peer, and how its streams ended.
func newServer() (*Server, *[]error) {
	var mu sync.Mutex
	var ends []error // owned by mu
	return New(Options{Service: "lmos.test", Total: 3, PerPeer: 2, Deadline: time.Minute, Log: slog.New(slog.DiscardHandler),
		Admit: func(c network.Conn) network.StreamErrorCode {
			if c.RemotePeer() == "banned" {
				return network.StreamGated
			}
			return network.StreamNoError
		},
		Done: func(_ peer.ID, err error) {
			mu.Lock()
			defer mu.Unlock()
			ends = append(ends, err)
		}}), &ends
}

func wait(st network.Stream) error { _, err := io.ReadAll(st); return err }

func TestServeEndsStreams(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		from   peer.ID
		handle func(network.Stream) error
		err    error
		code   network.StreamErrorCode // 0: closed
	}{
		"served":         {"a", func(network.Stream) error { return nil }, nil, 0},
		"failed":         {"a", func(network.Stream) error { return io.EOF }, io.EOF, plain},
		"violation":      {"a", func(network.Stream) error { return fmt.Errorf("x: %w", ErrFrame) }, ErrViolation, network.StreamProtocolViolation},
		"without memory": {"a", func(network.Stream) error { return network.ErrResourceLimitExceeded }, network.ErrResourceLimitExceeded, network.StreamResourceLimitExceeded},
		"panic":          {"a", func(network.Stream) error { panic("a bug") }, ErrPanic, plain},
		"not admitted":   {"banned", nil, ErrRefused, network.StreamGated},
		"silence":        {"a", wait, network.ErrReset, plain},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, ends := newServer()
				st := newFake(c.from)
				began := time.Now()
				s.Serve(st, c.handle)
				if len(*ends) != 1 || !errors.Is((*ends)[0], c.err) || st.code != c.code || st.closed != (c.code == 0) {
					t.Errorf("ended with %v, code %#x, closed %v; want %v, %#x", *ends, st.code, st.closed, c.err, c.code)
				}
				if c.handle != nil && st.service != "lmos.test" {
					t.Errorf("service %q", st.service)
				}
				if took := time.Since(began); took > time.Minute || s.Serving() != 0 {
					t.Errorf("took %v, %d streams are still served", took, s.Serving())
				}
				s.Close()
			})
		})
	}
}

func TestServeBoundsStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, ends := newServer()
		open := func(p peer.ID) *fake {
			st := newFake(p)
			go s.Serve(st, wait)
			synctest.Wait()
			return st
		}
		served := []*fake{open("a"), open("a"), open("b")}
		for i, st := range []*fake{open("a"), open("b")} {
			if st.code != network.StreamRateLimited {
				t.Errorf("stream %d beyond a limit: code %#x", i, st.code)
			}
		}
		if n := s.Serving(); n != len(served) {
			t.Errorf("%d streams are served, want %d", n, len(served))
		}
		_ = served[0].Reset()
		synctest.Wait()
		if st := open("c"); st.code != 0 {
			t.Errorf("a free slot was not used: code %#x", st.code)
		}
		s.Close()
		if served[1].code != network.StreamShutdown || len(*ends) != 6 {
			t.Errorf("after Close: code %#x, %d streams ended", served[1].code, len(*ends))
		}
		if st := open("d"); st.code != network.StreamShutdown {
			t.Errorf("a stream after Close: code %#x", st.code)
		}
	})
}

func TestReadAll(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		size int
		full bool
		err  error
	}{{0, false, nil}, {10, false, nil}, {11, false, ErrFrame}, {1, true, network.ErrResourceLimitExceeded}} {
		m := accounts{full: c.full}
		body, release, err := ReadAll(io.LimitReader(zeros{}, int64(c.size)), &m, 10)
		if !errors.Is(err, c.err) || err == nil && len(body) != c.size {
			t.Errorf("%d bytes: got %d, %v; want %v", c.size, len(body), err, c.err)
		}
		if release != nil {
			release()
		}
		if m.held != 0 || m.peak > 10 {
			t.Errorf("%d bytes: %d stay reserved, %d at the peak", c.size, m.held, m.peak)
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }
