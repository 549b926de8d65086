package dht

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	pb "github.com/libp2p/go-libp2p-kad-dht/pb"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"google.golang.org/protobuf/proto"

	"github.com/lmosd/lmosd/internal/streamserver"
)

// Limits of calls to one peer.
const (
	callTime           = 10 * time.Second   // S2: of a request with its reply
	idleTimeout        = 10 * time.Second   // S11: lifetime of an unused stream; a server keeps it for a minute
	maxIdle            = maxConcurrentCalls // S11: unused streams per peer
	maxConcurrentCalls = 4                  // S11: concurrent calls to one peer; with as many unused streams, the limit of a server
)

// A sender sends DHT messages and accepts only well-formed replies. The library and this package use it;
// the sender of the library is unused. Its rules:
//
//   - S1 a reply has at most 256 KiB, checked before memory is allocated; a request 64 KiB
//   - S2 a call ends after ten seconds or with its context, and leaves no goroutine
//   - S3 a reply has the type of its request
//   - S4 an acknowledged PUT_VALUE comes back with its key and value
//   - S5 a record in a reply to GET_VALUE has the requested key, and the size of a record
//   - S6 a reply with a key has that of its request
//   - S7 lists of peers and addresses are cut; invalid peers are removed
//   - S8 anything else is an error and a reset, never a nil reply without an error
//   - S9 a message without reply is acknowledged by the end of the stream
//   - S10 latencies are recorded, and results counted by type
//   - S11 a few streams per peer are kept for the next call, fewer than the limit of a server
//   - S12 a peer whose reply is malformed is reported
//
// It is safe for concurrent use.
type sender struct {
	host   host.Host
	protos []protocol.ID
	k      int
	stats  *counters
	// fault receives each malformed reply (S12).
	fault func(peer.ID, error)

	// peers and closed are owned by mu.
	mu     sync.Mutex
	peers  map[peer.ID]*peerStreams
	closed bool
}

// peerStreams are the calls and unused streams of one peer. Its fields are owned by the mu of the sender, except the channel.
type peerStreams struct {
	slots chan struct{} // one per running call
	users int           // running and waiting calls
	idle  []*idleStream
}

type idleStream struct {
	network.Stream
	timer *time.Timer
}

func newSender(h host.Host, protos []protocol.ID, k int, stats *counters, fault func(peer.ID, error)) *sender {
	return &sender{host: h, protos: protos, k: k, stats: stats, fault: fault, peers: map[peer.ID]*peerStreams{}}
}

// SendRequest sends m to p and returns the matching reply, which is not nil without an error.
func (s *sender) SendRequest(ctx context.Context, p peer.ID, m *pb.Message) (*pb.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	resp, err := s.request(ctx, p, m)
	s.count(p, m.GetType(), err)
	if err != nil {
		return nil, fmt.Errorf("%s to %s: %w", m.GetType(), p, err)
	}
	return resp, nil
}

func (s *sender) request(ctx context.Context, p peer.ID, m *pb.Message) (*pb.Message, error) {
	frame, err := encode(m)
	if err != nil {
		return nil, err
	}
	leave, err := s.enter(ctx, p)
	if err != nil {
		return nil, err
	}
	defer leave()
	if st := s.takeIdle(p); st != nil {
		resp, err := s.exchange(ctx, p, st, m, frame)
		if err == nil || ctx.Err() != nil || errors.Is(err, errMalformed) {
			return resp, err
		}
		// The peer may have closed an unused stream: retry on a new one.
	}
	st, err := s.host.NewStream(ctx, p, s.protos...)
	if err != nil {
		return nil, err
	}
	return s.exchange(ctx, p, st, m, frame)
}

// exchange writes the frame of m on st and reads the reply. It keeps st after success, and resets it otherwise.
func (s *sender) exchange(ctx context.Context, p peer.ID, st network.Stream, m *pb.Message, frame []byte) (*pb.Message, error) {
	// S2: a reset unblocks both directions, on every transport, also on those without deadlines.
	stop := context.AfterFunc(ctx, func() { _ = st.Reset() })
	start := time.Now()
	resp, err := roundTrip(st, m, frame, s.k)
	rtt := time.Since(start)
	if !stop() {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		_ = st.Reset() // S8
		return nil, err
	}
	s.host.Peerstore().RecordLatency(p, rtt) // S10
	s.keepIdle(p, st)
	return resp, nil
}

func roundTrip(st network.Stream, m *pb.Message, frame []byte, k int) (*pb.Message, error) {
	if _, err := st.Write(frame); err != nil {
		return nil, fmt.Errorf("send: %w", err)
	}
	reply, release, err := streamserver.ReadFrame(st, st.Scope(), maxReply)
	switch {
	case errors.Is(err, streamserver.ErrFrame):
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	case err != nil:
		return nil, fmt.Errorf("receive: %w", err)
	}
	defer release()
	return decodeReply(m, reply, k)
}

// SendMessage sends m, which has no reply, to p (S9). It returns nil if p has processed it.
func (s *sender) SendMessage(ctx context.Context, p peer.ID, m *pb.Message) error {
	return s.sendAll(ctx, p, []*pb.Message{m})
}

// sendAll sends messages without replies on one stream. It returns nil if p has processed all: a peer that rejects one resets the
// stream, and closes it after the last, so the end of the stream is the acknowledgement.
func (s *sender) sendAll(ctx context.Context, p peer.ID, ms []*pb.Message) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	err := s.send(ctx, p, ms)
	for _, m := range ms {
		s.count(p, m.GetType(), err)
	}
	if err != nil {
		return fmt.Errorf("%s to %s: %w", ms[0].GetType(), p, err)
	}
	return nil
}

func (s *sender) send(ctx context.Context, p peer.ID, ms []*pb.Message) error {
	leave, err := s.enter(ctx, p)
	if err != nil {
		return err
	}
	defer leave()
	st, err := s.host.NewStream(ctx, p, s.protos...)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = st.Reset() })
	err = oneWay(st, ms)
	if !stop() {
		return context.Cause(ctx)
	}
	_ = st.Reset() // unlike Close, Reset never waits
	return err
}

func oneWay(st network.Stream, ms []*pb.Message) error {
	for _, m := range ms {
		frame, err := encode(m)
		if err != nil {
			return err
		}
		if _, err := st.Write(frame); err != nil {
			return fmt.Errorf("send: %w", err)
		}
	}
	if err := st.CloseWrite(); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	var b [1]byte
	switch n, err := st.Read(b[:]); {
	case n > 0:
		return fmt.Errorf("%w: unexpected reply", errMalformed)
	case err != io.EOF:
		return fmt.Errorf("refused: %w", err)
	}
	return nil
}

// encode returns the frame of a request.
func encode(m *pb.Message) ([]byte, error) {
	body, err := proto.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(body) > maxRequest {
		return nil, fmt.Errorf("request of %d bytes, %d allowed", len(body), maxRequest)
	}
	return streamserver.AppendFrame(make([]byte, 0, len(body)+streamserver.MaxPrefix), body), nil
}

// enter waits for a slot for a call to p. leave releases it.
func (s *sender) enter(ctx context.Context, p peer.ID) (leave func(), err error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, errClosed
	}
	l := s.peers[p]
	if l == nil {
		l = &peerStreams{slots: make(chan struct{}, maxConcurrentCalls)}
		s.peers[p] = l
	}
	l.users++
	s.mu.Unlock()
	select {
	case l.slots <- struct{}{}:
		return func() { <-l.slots; s.release(p, l) }, nil
	case <-ctx.Done():
		s.release(p, l)
		return nil, context.Cause(ctx)
	}
}

// release releases a use of l, and removes it after the last.
func (s *sender) release(p peer.ID, l *peerStreams) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.users--
	s.forgetLocked(p, l)
}

func (s *sender) forgetLocked(p peer.ID, l *peerStreams) {
	if l.users == 0 && len(l.idle) == 0 && s.peers[p] == l {
		delete(s.peers, p)
	}
}

// takeIdle returns an unused stream to p, or nil.
func (s *sender) takeIdle(p peer.ID) network.Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.peers[p]
	if l == nil || len(l.idle) == 0 {
		return nil
	}
	st := l.idle[len(l.idle)-1]
	l.idle = l.idle[:len(l.idle)-1]
	st.timer.Stop()
	return st.Stream
}

// keepIdle keeps st for the next call, for a while.
func (s *sender) keepIdle(p peer.ID, st network.Stream) {
	s.mu.Lock()
	l := s.peers[p]
	if s.closed || l == nil || len(l.idle) >= maxIdle {
		s.mu.Unlock()
		_ = st.Reset()
		return
	}
	i := &idleStream{Stream: st}
	i.timer = time.AfterFunc(idleTimeout, func() { s.closeIdle(p, i) })
	l.idle = append(l.idle, i)
	s.mu.Unlock()
}

// closeIdle closes an unused stream, if it is still unused.
func (s *sender) closeIdle(p peer.ID, st *idleStream) {
	s.mu.Lock()
	l, n := s.peers[p], -1
	if l != nil {
		n = slices.Index(l.idle, st)
	}
	if n >= 0 {
		l.idle = slices.Delete(l.idle, n, n+1)
		s.forgetLocked(p, l)
	}
	s.mu.Unlock()
	if n >= 0 {
		_ = st.Reset()
	}
}

// OnDisconnect removes the streams to p; the library calls it.
func (s *sender) OnDisconnect(_ context.Context, p peer.ID) {
	s.mu.Lock()
	l := s.peers[p]
	var idle []*idleStream
	if l != nil {
		idle, l.idle = l.idle, nil
		s.forgetLocked(p, l)
	}
	s.mu.Unlock()
	reset(idle)
}

// close closes all unused streams; running calls end with their contexts.
func (s *sender) close() {
	s.mu.Lock()
	s.closed = true
	var idle []*idleStream
	for _, l := range s.peers {
		idle = append(idle, l.idle...)
		l.idle = nil
	}
	s.mu.Unlock()
	reset(idle)
}

func reset(idle []*idleStream) {
	for _, st := range idle {
		st.timer.Stop()
		_ = st.Reset()
	}
}

// count counts one message by its result (S10), and reports a malformed reply (S12).
func (s *sender) count(p peer.ID, t pb.Message_MessageType, err error) {
	c := s.stats.calls(t)
	c.sent.Add(1)
	switch {
	case errors.Is(err, errMalformed):
		c.malformed.Add(1)
		s.fault(p, err)
	case err != nil:
		c.failed.Add(1)
	}
}
