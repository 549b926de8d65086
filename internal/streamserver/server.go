package streamserver

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/ratelimit"
)

// The errors for Options.Done that do not come from the handler.
var (
	ErrRefused = errors.New("stream refused")
	ErrPanic   = errors.New("the handler panicked")
)

// Options configure a [Server].
type Options struct {
	// Service is the name of the service in the resource manager, which may limit it. Empty is no service.
	Service string
	// Total and PerPeer are how many streams are served at once. More are refused without waiting.
	Total, PerPeer int
	// Deadline is the time of one stream, after which it is reset. Zero is no limit.
	Deadline time.Duration
	// Admit returns with which code a stream of a connection is refused; StreamNoError admits it. It must not block. It is required.
	Admit func(network.Conn) network.StreamErrorCode
	// Done is called once for each stream, when its slot is free again and before the peer learns of the end. The error is that of the
	// handler, ErrPanic or ErrRefused. Several goroutines call it at once. It is required.
	Done func(peer.ID, error)
	// Log gets panics. It is required.
	Log *slog.Logger
}

// A Server serves the streams of one protocol. It is safe for concurrent use.
type Server struct {
	o     Options
	slots *ratelimit.Inflight[peer.ID]

	mu       sync.Mutex
	closed   bool                    // owned by mu
	open     map[network.Stream]bool // owned by mu
	handlers sync.WaitGroup          // Add only with mu locked, and not after closed
}

// New returns a server. Its Serve is called by a stream handler of a host.
func New(o Options) *Server {
	return &Server{o: o, slots: ratelimit.NewInflight[peer.ID](o.PerPeer, o.Total), open: map[network.Stream]bool{}}
}

// Serve serves a stream: admission, slot, deadline, service, handle, close. handle reads the request, with [ReadFrame] or [ReadAll], and
// writes the answers. If it fails, Serve resets the stream with the code for the error.
func (s *Server) Serve(st network.Stream, handle func(network.Stream) error) {
	p := st.Conn().RemotePeer()
	if code := s.enter(st, p); code != network.StreamNoError {
		s.o.Done(p, ErrRefused)
		_ = st.ResetWithError(code)
		return
	}
	defer s.handlers.Done()
	err := s.handle(st, handle)
	s.leave(st, p) // first: a peer may begin its next stream as soon as it sees the end of this one
	s.o.Done(p, err)
	switch code := CodeOf(err); {
	case err == nil:
		_ = st.Close()
	case code == network.StreamNoError:
		_ = st.Reset()
	default:
		_ = st.ResetWithError(code)
	}
}

func (s *Server) enter(st network.Stream, p peer.ID) network.StreamErrorCode {
	if code := s.o.Admit(st.Conn()); code != network.StreamNoError {
		return code
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return network.StreamShutdown
	case s.slots.Enter(p) != ratelimit.Entered:
		return network.StreamRateLimited
	}
	s.open[st] = true
	s.handlers.Add(1)
	return network.StreamNoError
}

func (s *Server) leave(st network.Stream, p peer.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, st)
	s.slots.Leave(p)
}

// handle calls the handler. A panic ends the stream and not the process.
func (s *Server) handle(st network.Stream, handle func(network.Stream) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			s.o.Log.Error("stream handler panicked", "protocol", st.Protocol(), "peer", did.ShortPeer(st.Conn().RemotePeer()), "panic", fmt.Sprint(v),
				"stack", string(debug.Stack()))
			err = ErrPanic
		}
	}()
	if s.o.Deadline > 0 {
		deadline := time.AfterFunc(s.o.Deadline, func() { _ = st.Reset() })
		defer deadline.Stop()
	}
	if s.o.Service != "" {
		if err := st.Scope().SetService(s.o.Service); err != nil {
			return err
		}
	}
	return handle(st)
}

// CodeOf returns the code with which a stream is reset that ends with err.
func CodeOf(err error) network.StreamErrorCode {
	switch {
	case errors.Is(err, ErrViolation):
		return network.StreamProtocolViolation
	case errors.Is(err, network.ErrResourceLimitExceeded):
		return network.StreamResourceLimitExceeded
	}
	return network.StreamNoError
}

// Serving returns how many streams are served now.
func (s *Server) Serving() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// Close refuses new streams, resets those that are served, and returns when the last handler has returned. Call it after the handlers of
// the host are removed, and before the host is closed.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	open := slices.Collect(maps.Keys(s.open))
	s.mu.Unlock()
	for _, st := range open {
		_ = st.ResetWithError(network.StreamShutdown)
	}
	s.handlers.Wait()
}
