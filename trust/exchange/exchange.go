// Package exchange carries requests about organizations between two nodes: the frames of the protocol /lmos/NETWORK/trust/1, its client and
// its server.
//
// It knows how a request and its response look, and how many a peer may send. What they mean is not decided here: the server passes each
// request to a [Handler], with the node that sent it.
package exchange

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/ratelimit"
	"github.com/lmosd/lmosd/internal/streamserver"
)

// Timeout limits one exchange.
const Timeout = 10 * time.Second

// Limits of the serving end.
const (
	service        = "lmos.trust"
	maxStreams     = 256
	maxPeerStreams = 8
	maxRequests    = 2       // of one stream
	maxBudgets     = 1 << 14 // peers whose budgets are kept
)

// budget limits the streams of one peer. A new member gets the log and the lists of each partner, each on a stream of its own.
var budget = ratelimit.Limit{Rate: 32, Burst: 2048}

// A Handler answers one request of a node. The node receives an error as an [*interact.Error].
type Handler func(ctx context.Context, from did.DID, q *Request) (*Response, error)

// Options configure an [Exchange]. All are required.
type Options struct {
	Network string // part of the protocol id
	Host    host.Host
	Handle  Handler
	Now     func() time.Time
	Log     *slog.Logger
}

// An Exchange sends requests to other nodes and serves theirs. It is safe for concurrent use.
type Exchange struct {
	o       Options
	server  *streamserver.Server
	budgets *ratelimit.Limiter[peer.ID]
	ctx     context.Context // ends with Close
	end     context.CancelFunc
}

// New returns an Exchange that sends requests. [Exchange.Start] serves those of others.
func New(o Options) *Exchange {
	e := &Exchange{o: o, budgets: ratelimit.NewLimiter[peer.ID](budget, maxBudgets)}
	e.ctx, e.end = context.WithCancel(context.Background())
	e.server = streamserver.New(streamserver.Options{Service: service, Total: maxStreams, PerPeer: maxPeerStreams, Deadline: Timeout,
		Admit: e.admit, Done: e.done, Log: o.Log})
	return e
}

// Start serves the protocol at the host. The caller closes the Exchange before the host.
func (e *Exchange) Start() { e.o.Host.SetStreamHandler(Protocol(e.o.Network), e.serve) }

// Close ends the protocol and returns after the last handler.
func (e *Exchange) Close() {
	e.end()
	e.o.Host.RemoveStreamHandler(Protocol(e.o.Network))
	e.server.Close()
}

// admit refuses the streams of a peer that has used its budget.
func (e *Exchange) admit(c network.Conn) network.StreamErrorCode {
	if e.budgets.Take(c.RemotePeer(), 1, e.o.Now()) > 0 {
		return network.StreamRateLimited
	}
	return network.StreamNoError
}

func (e *Exchange) done(p peer.ID, err error) {
	if err != nil {
		e.o.Log.Debug("trust exchange failed", "peer", did.ShortPeer(p), "err", err)
	}
}

// serve serves a stream of a peer.
func (e *Exchange) serve(s network.Stream) {
	e.server.Serve(s, func(s network.Stream) error {
		id, err := did.FromPeer([]byte(s.Conn().RemotePeer()))
		if err != nil {
			return err
		}
		for range maxRequests {
			q := &Request{}
			if err := readFrame(s, MaxRequest, q); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			r, err := e.o.Handle(e.ctx, id, q)
			if err != nil {
				x := interact.AsError(err)
				r = &Response{Code: uint16(x.Code), Title: x.Title, Hint: x.Hint}
			}
			if err := writeFrame(s, r); err != nil {
				return err
			}
			if q.Op != OpSeek {
				return nil
			}
		}
		return nil
	})
}

// A Stream carries the requests that follow each other: seek and hello.
type Stream struct {
	s    network.Stream
	stop func() bool // of the end of its context
}

// Open opens a stream to a connected node. If there are addresses, it connects to the node first. The end of ctx ends the requests: a node that stops
// does not wait for a peer that is silent. The caller closes the stream.
func (e *Exchange) Open(ctx context.Context, id did.DID, addrs ...string) (*Stream, error) {
	p, err := PeerOf(id)
	if err != nil {
		return nil, err
	}
	if len(addrs) > 0 {
		info := peer.AddrInfo{ID: p}
		for _, text := range addrs {
			if a, err := ma.NewMultiaddr(text); err == nil {
				info.Addrs = append(info.Addrs, a)
			}
		}
		if err := e.o.Host.Connect(ctx, info); err != nil {
			return nil, err
		}
	}
	// Without the permission, a stream on a relayed connection waits for a direct one.
	s, err := e.o.Host.NewStream(network.WithAllowLimitedConn(network.WithNoDial(ctx, "trust"), "trust"), p, Protocol(e.o.Network))
	if err != nil {
		return nil, err
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(Timeout)
	}
	_ = s.SetDeadline(deadline)
	return &Stream{s, context.AfterFunc(ctx, func() { _ = s.SetDeadline(time.Unix(1, 0)) })}, nil
}

// Close ends the stream.
func (s *Stream) Close() {
	s.stop()
	_ = s.s.Close()
}

// Do sends a request and returns its response. An error of the node is an [*interact.Error] that is Remote.
func (s *Stream) Do(q *Request) (*Response, error) {
	if err := writeFrame(s.s, q); err != nil {
		return nil, errors.Join(err, s.s.Reset())
	}
	r := &Response{}
	limit := MaxResponse
	if q.Op == OpLinks {
		limit = MaxLinks
	}
	if err := readFrame(s.s, limit, r); err != nil {
		return nil, errors.Join(err, s.s.Reset())
	}
	if r.Code != 0 {
		code := interact.Code(r.Code)
		if _, ok := interact.ParseCode(code.String()); !ok {
			code = interact.Internal
		}
		return nil, &interact.Error{Code: code, Title: interact.Excerpt(r.Title, 500), Hint: interact.Excerpt(r.Hint, 500), Remote: true}
	}
	return r, nil
}

// Ask sends one request to a node and returns its response, within [Timeout]. If there are addresses, it connects to the node first.
func (e *Exchange) Ask(ctx context.Context, id did.DID, q *Request, addrs ...string) (*Response, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	s, err := e.Open(ctx, id, addrs...)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return s.Do(q)
}

// PeerOf returns the libp2p id of a node.
func PeerOf(id did.DID) (peer.ID, error) {
	raw, err := id.Peer()
	return peer.ID(raw), err
}

// NodeIn returns the node of a multiaddr with /p2p, or "".
func NodeIn(addr string) did.DID {
	info, err := peer.AddrInfoFromString(addr)
	if err != nil {
		return ""
	}
	node, err := did.FromPeer([]byte(info.ID))
	if err != nil {
		return ""
	}
	return node
}
