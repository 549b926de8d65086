package coap

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/messaging"
	"github.com/lmosd/lmosd/internal/ratelimit"
	"github.com/lmosd/lmosd/td"
)

const (
	defaultListen    = "127.0.0.1:5683" // RFC 7252 §6.1
	defaultObservers = 1000
	defaultRequests  = 256
	defaultRate      = 500
	maxHosts         = 4096 // with a rate limit of their own
	// defaultAckDelay is the processing time after which a request is acknowledged separately and the response is a message of its own
	// (RFC 7252 §5.2.2). A consumer retransmits after 2 s without acknowledgement.
	defaultAckDelay = time.Second
	// maxFailedReads is the number of consecutive failed reads after which the server ends.
	maxFailedReads = 100
)

// ServerOptions are the settings of a [Server]. Mesh and Find are required; the other zero values are defaults.
type ServerOptions struct {
	// Listen is the UDP address to listen on; empty means 127.0.0.1:5683.
	Listen string
	// Anyone allows an address that is not of loopback. All peers that can reach it are served: the server does not authenticate callers.
	Anyone bool
	// Mesh handles the messages.
	Mesh interact.Thing
	// From is the principal of all consumers: datagrams prove no identity.
	From *did.Principal
	// Find resolves the id of a path: an id, a short name or an exact reference. An [*interact.Error] is sent to the consumer; any other
	// error is "internal error".
	Find func(ctx context.Context, ref string) (*td.Description, error)
	// Known lists the things of /.well-known/core; nil lists none.
	Known func(ctx context.Context) iter.Seq[*td.Description]
	// Gate holds the requests until their responses are sent; nil holds none.
	Gate *interact.Gate
	// Log receives log records; nil discards them.
	Log *slog.Logger
	// MaxBody is the limit of a body in bytes, all blocks together, both ways; 0 means 4 MiB.
	MaxBody int
	// MaxObservers limits the observations; one host may have half of them; 0 means 1000.
	MaxObservers int
	// MaxRequests limits the concurrent requests; one host may have half of them; 0 means 256.
	MaxRequests int
	// Rate limits the requests of one host per second; the burst is twice as large. 0 means 500; a negative value means no limit.
	Rate float64
}

// A Server serves the Things of the mesh to CoAP consumers, over UDP:
//
//	GET                 /.well-known/core                                2.05 link format (RFC 6690): things, rt=wot.thing
//	GET                 /things/{id}                                     2.05 TD, content format 432, or 50 by Accept
//	GET FETCH           /things/{id}/properties                          2.05 object of values; FETCH has an array of names
//	PUT PATCH iPATCH    /things/{id}/properties                          2.04; an object of values
//	GET PUT             /things/{id}/properties/{name}                   2.05 value; 2.04
//	GET                 /things/{id}/actions                             2.05 states of all actions
//	POST GET            /things/{id}/actions/{name}                      2.05 output, 2.04 without; GET: state of the latest run
//	GET DELETE POST     /things/{id}/actions/{name}/{action id}          2.05 state; 2.02 or 2.04 cancelled
//	GET FETCH + Observe /things/{id}/events[/{name}]                     2.05 for each event
//
// Find resolves the id. Its slashes may separate segments or be escaped ("%2F") in one. An action runs in the background if its
// description has synchronous: false, or the query has "async". The response is then 2.01 with the path of the state in Location-Path.
// Variables of a form may be in the query. "timeout=5s" in the query is the timeout; the default is 30 s, the maximum 10 min.
//
// Properties, all or one, and events can be observed (RFC 7641). The first answer to an observation of a property is its value;
// of an event it is empty and confirms the subscription. An event without Observe is 4.05, because there is no value.
// If all are observed, a notification is an object with one member. Each notification is confirmable: an observer that does not
// acknowledge it, or resets it, is removed. If a property changes faster than an observer reads, the newest value is sent. An observer
// of events, or of all properties, that is 32 notifications or 1 MiB behind gets 5.03 and is removed. Observers of one affordance share
// one observation of the mesh.
//
// Accept and Content-Format choose JSON (50) or CBOR (60). Bodies of more than 1024 bytes go and come in blocks (RFC 7959),
// matched by host, port, method, path, query and Request-Tag. Errors have a diagnostic payload that begins with the code,
// "LMOS-1404 …"; 4.29 and 5.03 have the time to wait in Max-Age. Unknown critical options are 4.02, and those of proxies 5.05.
//
// Requests by multicast or broadcast get no response. A spoofed sender can make the server send at most one block for each datagram (a
// little more than 1 KiB), five copies of a response that takes more than a second, and five of one notification. There is no
// authentication: the server listens on loopback only, unless the options allow other addresses.
type Server struct {
	o        ServerOptions
	socket   messaging.Socket
	timing   messaging.Timing
	ackDelay time.Duration
	quiet    time.Duration // after which an observer is pinged

	rate    *ratelimit.Limiter[netip.Addr]  // new requests of each host
	busy    *ratelimit.Inflight[netip.Addr] // running requests
	seen    messaging.Replays
	coming  messaging.BlockStore
	going   messaging.BlockStore
	watches watches
	peers   peers

	work sync.WaitGroup
	halt context.CancelFunc
	ctx  context.Context // ends with Close
}

// NewServer opens the socket of a server. The error is an [*interact.Error] of code PortBusy or ConfigInvalid, or WildcardBind
// for an address that is not of loopback, unless ServerOptions.Anyone is set.
func NewServer(o ServerOptions) (*Server, error) {
	if o.Mesh == nil || o.Find == nil {
		return nil, interact.Errorf(interact.ConfigInvalid, "set both", "expected Mesh and Find in the options of a CoAP server")
	}
	o.Listen = cmp.Or(o.Listen, defaultListen)
	l, err := messaging.Listen(o.Listen)
	if err != nil {
		return nil, &interact.Error{Code: interact.PortBusy, Title: "cannot listen for CoAP on udp " + o.Listen,
			Hint: "list the owner of the port with ss -ulpn, or use another port", Err: err}
	}
	if at := l.Addr().Addr().Unmap(); !o.Anyone && !at.IsLoopback() {
		_ = l.Close() // its error does not matter
		return nil, interact.Errorf(interact.WildcardBind, "listen on 127.0.0.1, or set coap.ServerOptions.Anyone",
			"the CoAP server on udp %s is reachable from other hosts and has no authentication", o.Listen)
	}
	return newServer(o, l), nil
}

func newServer(o ServerOptions, l messaging.Socket) *Server {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.MaxBody = positive(o.MaxBody, maxBody)
	o.MaxObservers = positive(o.MaxObservers, defaultObservers)
	o.MaxRequests = positive(o.MaxRequests, defaultRequests)
	o.Rate = cmp.Or(o.Rate, defaultRate)
	s := &Server{o: o, socket: l, timing: messaging.Usual, ackDelay: defaultAckDelay, quiet: 5 * time.Minute,
		going: messaging.BlockStore{Evict: true}, rate: ratelimit.NewLimiter[netip.Addr](ratelimit.Limit{Rate: o.Rate, Burst: 2 * o.Rate}, maxHosts),
		busy: ratelimit.NewInflight[netip.Addr](max(1, o.MaxRequests/2), o.MaxRequests)}
	s.ctx, s.halt = context.WithCancel(context.Background())
	s.watches = watches{server: s, limit: o.MaxObservers, sources: map[sourceKey]*source{}, observers: map[observerKey]*observer{}}
	s.peers = peers{server: s, byAddr: map[netip.AddrPort]*peer{}}
	return s
}

// safely runs the part of a request that calls other code. A panic is an error of the request and does not end the node.
func (s *Server) safely(what string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.o.Log.Error("coap panic", "at", what, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = interact.Errorf(interact.Internal, "see the log of the node", "the node failed at %s", what)
		}
	}()
	return f()
}

func positive(n, otherwise int) int {
	if n > 0 {
		return n
	}
	return otherwise
}

// Addr returns the address that the server listens on.
func (s *Server) Addr() netip.AddrPort { return s.socket.Addr() }

// Close ends Run and closes the socket. It does not wait for Run.
func (s *Server) Close() error {
	s.halt()
	return s.socket.Close()
}

// Run serves until ctx ends or the server is closed, and returns when the last request and observation have ended. It may be
// called once. Observers get 5.03, without waiting for their acknowledgements.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	defer context.AfterFunc(ctx, s.socket.Stop)()
	err := s.listen(ctx)
	s.watches.farewell()
	s.halt()
	cancel()
	s.work.Wait()
	_ = s.socket.Close() // no write runs
	return err
}

// listen reads datagrams. It does not wait for peers.
func (s *Server) listen(ctx context.Context) error {
	buf := make([]byte, messaging.MaxDatagram)
	for failed := 0; ; {
		n, from, err := s.socket.Read(buf)
		switch {
		case ctx.Err() != nil, err != nil && messaging.IsStopped(err):
			return nil
		case err != nil:
			if failed++; failed > maxFailedReads {
				return err
			}
			s.o.Log.Warn("coap read", "err", err)
		case !from.Group: // RFC 7252 §8.2: a server may be silent to a group
			failed = 0
			s.receive(ctx, slices.Clone(buf[:n]), from)
		}
	}
}

// receive dispatches one datagram (RFC 7252 §4.2, §4.3). Malformed datagrams are ignored.
func (s *Server) receive(ctx context.Context, b []byte, from messaging.Remote) {
	p, err := messaging.ParseDatagram(b)
	switch {
	case err != nil:
	case p.Kind == message.Acknowledgement:
		s.peers.settle(from, p.Mid, nil)
	case p.Kind == message.Reset:
		s.peers.settle(from, p.Mid, messaging.ErrReset)
	case p.IsRequest():
		s.request(ctx, p, from)
	case p.Kind == message.Confirmable: // a ping, or an unexpected response
		s.send(messaging.Bare(message.Reset, p.Mid), from)
	}
}

// request starts to execute a request, or repeats the response to a duplicate.
func (s *Server) request(ctx context.Context, q *messaging.Packet, from messaging.Remote) {
	now := time.Now()
	r, reply, again := s.seen.Begin(from.Addr, q.Mid, now)
	if again {
		if reply != nil {
			s.send(reply, from)
		}
		return // while it is executed, the first copy is acknowledged in time
	}
	x := &exchange{server: s, q: q, from: from, host: messaging.HostOf(from.Addr.Addr()), replay: r}
	if err := busy(s.busy.Enter(x.host)); err != nil {
		s.seen.Forget(r) // its copies may try again
		x.respond(ctx, failure(err))
		return
	}
	release := s.o.Gate.Hold()
	s.work.Go(func() {
		defer release()
		defer s.busy.Leave(x.host)
		x.run(ctx)
	})
}

// busy returns the error of a request that has no slot.
func busy(o ratelimit.Outcome) error {
	switch o {
	case ratelimit.KeyFull:
		return interact.Errorf(interact.RateLimited, "wait for the responses", "this host has too many concurrent requests")
	case ratelimit.AllFull:
		return interact.Errorf(interact.Overloaded, "try again later", "the server has too many concurrent requests")
	}
	return nil
}

// send writes a datagram. If it is lost, the peer retransmits its request.
func (s *Server) send(b []byte, to messaging.Remote) {
	if err := s.socket.Write(b, to); err != nil {
		s.o.Log.Debug("coap write", "to", to.Addr, "err", err)
	}
}

// peers are the consumers of confirmable messages. Each has a message layer while it is in use.
type peers struct {
	server *Server
	mu     sync.Mutex // guards byAddr and users
	byAddr map[netip.AddrPort]*peer
}

type peer struct {
	*messaging.Layer
	remote messaging.Remote
	users  int
}

func (p *peers) get(r messaging.Remote) *peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.byAddr[r.Addr]
	if one == nil {
		one = &peer{remote: r}
		one.Layer = messaging.NewLayer(p.server.timing, func(b []byte) error { return p.server.socket.Write(b, r) })
		p.byAddr[r.Addr] = one
	}
	one.users++
	return one
}

func (p *peers) release(one *peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one.users--; one.users == 0 {
		delete(p.byAddr, one.remote.Addr)
	}
}

func (p *peers) settle(from messaging.Remote, mid uint16, err error) {
	p.mu.Lock()
	one := p.byAddr[from.Addr]
	p.mu.Unlock()
	if one != nil {
		one.Settle(mid, err)
	}
}
