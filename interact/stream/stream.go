// Package stream carries interactions between nodes over libp2p streams.
//
// A session is one libp2p stream that carries interactions. Each node keeps one shared session open to each peer that it calls;
// all small calls to that peer use it. Package frame defines the bytes: frames carry the number of their interaction, so that
// replies of several interactions interleave, and the frames of many callers are written as one packet. Observations and
// subscriptions share a second session: a thousand of them are possible, and a burst of events delays no call. An interaction with a
// large request (more than 32 KiB of data, or a request stream) has a dedicated session, so that the flow control of the transport
// isolates it; so has an action whose consumer accepts neither JSON nor CBOR, because its output may be a stream. A dedicated session
// is closed at the end of its interaction. The caller chooses the session; the serving end treats all alike.
//
// A reply uses the session of its request, whatever its size. On a shared session, credit limits it: other replies wait for at most
// 256 KiB of it. The initial credit is 256 KiB, 64 KiB for an observation or subscription, and 2 MiB on a dedicated session. Because of
// credit, both ends always read, and a slow consumer slows down only its own interaction.
//
// [Options.As] states for whom a node calls. The host distinguishes consumers by name and grants them no more than the node: the lesser
// relation, and the roles that both have. A name that is not valid is Invalid. Invented names have no benefit, because quotas are per
// node. Observations and subscriptions are shared, so they have no name.
//
// If a host rejects a call by a rate limit and states the time to wait, the call is repeated after that time, if the deadline allows, in
// the order of the calls (pace.go): callers see RateLimited only if no time is left or if the request has a stream. If a host is
// overloaded and states the time to wait, the call is repeated for at most 2 s. Each consumer of the calling node is paced separately.
//
// An interaction is cancelled with a cancel frame on a shared session, and by closing or resetting a dedicated session. The end of a
// session cancels everything on it. The reset codes are those of libp2p: 0x1002 out of memory, 0x1004 protocol violation, 0x1006
// idle, 0x1007 shutting down.
//
// Files of both ends: session.go, read.go, writer.go (frames on a stream), exchange.go (one interaction), budget.go and bufpool.go (memory),
// errors.go. Of the calling end: call.go, hosts.go and pins.go (several hosts), peer.go (the sessions to one host), pace.go, pseudonym.go. Of the serving end: server.go,
// callcontext.go.
package stream

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/choice"
	"github.com/lmosd/lmosd/interact/stream/frame"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/heartbeat"
)

// Service is the name of the resource scope of inbound streams.
const Service = "lmos.interact"

// Protocol returns the libp2p protocol id of a network's interactions.
func Protocol(network string) protocol.ID { return protocol.ID("/lmos/" + network + "/interact/1") }

const (
	inline    = 32 << 10         // data that fits the frame of its message, in bytes
	maxOwn    = 128              // dedicated sessions per peer and direction; libp2p allows 200 streams
	frameTime = 10 * time.Second // for the next 64 KiB of an incomplete frame, and from a new session to its first frame
	writeTime = 10 * time.Second // for the transport to accept 256 KiB

	drainPause = 100 * time.Millisecond // without a call, at the end of Drain
)

// Options of a [Binding]. The zero value works.
type Options struct {
	// Network is part of the protocol id: only nodes of the same network call each other. Required.
	Network string
	// Log receives decisions; nil discards them.
	Log *slog.Logger
	// MaxConcurrent bounds the concurrent calls of other nodes, and separately their observations and subscriptions. More are Overloaded.
	// 0 means 4096.
	MaxConcurrent int
	// MaxPerPeer bounds the concurrent calls with one peer. More calls of a peer are Overloaded, more calls to a peer wait. 0 means 1024.
	MaxPerPeer int
	// MaxLong bounds the concurrent observations and subscriptions with one peer, in each direction. More are Overloaded: a wait for the
	// end of another one could take days. 0 means 1024.
	MaxLong int
	// MaxMessage bounds the data of one message, in bytes; more is TooLarge. 0 means 16 MiB.
	MaxMessage int64
	// DialTimeout limits the connection to one host, before the next is tried. 0 means 5 s.
	DialTimeout time.Duration
	// ProbeAfter is the time without data from a peer, while a call waits, until a probe: QUIC detects the end of a peer after half a
	// minute. A lower value detects failures sooner and pings the nodes of slow agents more often. 0 means 700 ms.
	ProbeAfter time.Duration
	// ProbeTimeout limits a probe; after it, the peer counts as failed. 0 means 1 s.
	ProbeTimeout time.Duration
	// Idle is the time until an unused session is closed; the serving end waits 2.5 times as long. 0 means 2 min.
	Idle time.Duration
	// DirectWait is how long an interaction that is too large for a relayed connection waits for a direct one, which the two ends are making,
	// before it uses another relay. 0 means 2 s.
	DirectWait time.Duration
	// As returns the statement for whom this node calls. Nil returns the names of principals that are valid, with all roles of the node.
	As func(*did.Principal) frame.As
	// Principal returns the current principal of a node, never nil. It must not block. Nil: all nodes are untrusted.
	Principal func(node did.DID) *did.Principal
	// Agent returns the principal of an agent with a key of its own for which a node calls, and nil if the node has not proven that the agent is there:
	// the call is then one of the node, without its roles. It may wait for a short time. The same pointer means the same standing. Nil: no agent is.
	Agent func(ctx context.Context, node *did.Principal, agent did.DID) *did.Principal
	// Wait waits until it is known who a connected node is, for a short time. Nil does not wait.
	Wait func(ctx context.Context, node did.DID)
	// Addrs returns the addresses that a node has signed, which are newer than those of its Things; none if they are not known. It must be fast.
	// Nil: none.
	Addrs func(id peer.ID, now time.Time) []multiaddr.Multiaddr
	// Find returns addresses of a node that other nodes know, when it could not be dialed. Nil: none.
	Find func(ctx context.Context, id peer.ID) (peer.AddrInfo, error)
	// Reach is called with false after a failed dial or probe, and with true after the first response on a new session. It must not block.
	// Nil is ignored.
	Reach func(node did.DID, ok bool)
	// Refused is called after a failure. If policy is the reason, it returns an [*interact.Error] with the code Forbidden, of the policy of
	// the other node (Remote) or of this one. Nil returns none.
	Refused func(node did.DID) error
}

func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Reach == nil {
		o.Reach = func(did.DID, bool) {}
	}
	if o.Addrs == nil {
		o.Addrs = func(peer.ID, time.Time) []multiaddr.Multiaddr { return nil }
	}
	if o.Refused == nil {
		o.Refused = func(did.DID) error { return nil }
	}
	if o.As == nil {
		o.As = func(p *did.Principal) frame.As {
			if !did.ValidPrincipalName(p.Name) {
				return frame.As{}
			}
			return frame.As{IsConsumer: true, Name: p.Name, Roles: frame.AllRoles, Relation: did.Own}
		}
	}
	if o.Agent == nil {
		o.Agent = func(context.Context, *did.Principal, did.DID) *did.Principal { return nil }
	}
	if o.Wait == nil {
		o.Wait = func(context.Context, did.DID) {}
	}
	if o.Principal == nil {
		o.Principal = func(node did.DID) *did.Principal { return did.NodePrincipal(node, "") }
	}
	o.MaxConcurrent = or(o.MaxConcurrent, 4096)
	o.MaxPerPeer = or(o.MaxPerPeer, 1024)
	o.MaxLong = or(o.MaxLong, 1024)
	o.MaxMessage = or(o.MaxMessage, 16<<20)
	o.DialTimeout = or(o.DialTimeout, 5*time.Second)
	o.ProbeAfter = or(o.ProbeAfter, 700*time.Millisecond)
	o.ProbeTimeout = or(o.ProbeTimeout, time.Second)
	o.DirectWait = or(o.DirectWait, 2*time.Second)
	o.Idle = or(o.Idle, 2*time.Minute)
	return o
}

func or[T int | int64 | time.Duration](v, otherwise T) T {
	if v <= 0 {
		return otherwise
	}
	return v
}

// A Binding calls Things on other nodes and serves those of this one. It is safe for concurrent use.
type Binding struct {
	host     host.Host
	o        Options
	protocol protocol.ID
	local    interact.Thing  // set by Serve, before the handler
	ctx      context.Context // of probes; ended by Close
	stop     context.CancelFunc

	// mu owns what follows.
	mu       sync.Mutex
	closed   bool
	sessions map[*session]struct{}
	remotes  map[did.DID]*remote   // nodes that this node calls
	inbounds map[peer.ID]*inbound  // nodes that call this node
	conns    *network.NotifyBundle // of new connections; nil before the first call

	jobs     chan *served // to waiting workers; closed by retire
	waiting  atomic.Int32 // number of waiting workers
	workers  sync.WaitGroup
	work     sync.WaitGroup // all other goroutines of the binding
	retired  sync.Once
	serving  load
	draining atomic.Bool
	drained  chan struct{} // closed when draining without a running call
	drainOne sync.Once
	count    counters
	pace     pacer

	// Of Things with several hosts.
	meter   choice.Meter[placeKey]
	retries backoff.Budget
	pins    pins
}

// A class of interactions has sessions and bounds of its own.
type class int

const (
	short class = iota // calls
	long               // observations and subscriptions (interact.Type.Long)
	alone              // interactions with a dedicated session; the serving end counts them as short
)

// A load counts the interactions that are served now, by class.
type load [2]atomic.Int64

func (l *load) sum() int64 { return l[short].Load() + l[long].Load() }

type counters struct{ in, out, errorsIn, errorsOut atomic.Uint64 }

// New returns a binding of h. It starts nothing; [Binding.Serve] accepts calls, [Binding.Thing] makes them.
func New(h host.Host, o Options) *Binding {
	b := &Binding{host: h, o: o.withDefaults(), sessions: map[*session]struct{}{}, remotes: map[did.DID]*remote{},
		inbounds: map[peer.ID]*inbound{}, drained: make(chan struct{}), jobs: make(chan *served)}
	b.protocol = Protocol(o.Network)
	b.ctx, b.stop = context.WithCancel(context.Background())
	b.pace.closed = b.ctx.Done()
	return b
}

// Serve serves calls of other nodes with local. Call it once, before the host connects: peers learn the protocols at connection. A
// chunk of a request stream is valid until local requests the next.
func (b *Binding) Serve(local interact.Thing) {
	b.local = local
	b.host.SetStreamHandler(b.protocol, b.accept)
}

// Run closes unused sessions and sessions whose peer does not read. It returns nil when ctx ends.
func (b *Binding) Run(ctx context.Context) error {
	every := min(b.o.Idle/4, writeTime/2)
	tick := time.NewTicker(every)
	defer tick.Stop()
	loop := heartbeat.StartVital(ctx, "streams", every)
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			b.sweep(now)
			loop.Beat()
		}
	}
}

// sweep ends the sessions that are stuck or idle at now, and removes peers without sessions.
func (b *Binding) sweep(now time.Time) {
	for _, l := range b.all() {
		err := l.expires(now)
		switch {
		case err == nil:
		case b.enter():
			go func() { // a peer that reads slowly must not delay the ends of other sessions
				defer b.work.Done()
				l.tear(err)
			}()
		default:
			l.tear(err) // which Close leaves to the one that ended the session
		}
	}
	b.pace.sweep(now)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	select {
	case b.jobs <- nil: // ends one worker
	default:
	}
	for id, r := range b.remotes {
		if r.unused(now) {
			delete(b.remotes, id)
		}
	}
}

// Drain rejects new calls of other nodes with ShuttingDown and waits until the running ones end, or ctx ends. It ends observations and
// subscriptions of other nodes. Then it goes on to reject calls until none has come for 100 ms, for at most a second: a call that is reset at the end
// may have begun for all that its caller knows, but one that is rejected moves to another host. Calls to other nodes continue, because running
// calls may need them.
func (b *Binding) Drain(ctx context.Context) {
	b.draining.Store(true)
	for _, l := range b.all() {
		l.dismiss()
	}
	b.settle()
	select {
	case <-b.drained:
	case <-ctx.Done():
	}
	for range 10 {
		calls := b.count.in.Load()
		if !b.hasCallers() || backoff.Sleep(ctx, drainPause) != nil || b.count.in.Load() == calls {
			return
		}
	}
}

// hasCallers reports whether another node has a session here.
func (b *Binding) hasCallers() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.inbounds) > 0
}

// settle ends Drain if nothing is served.
func (b *Binding) settle() {
	if b.draining.Load() && b.serving.sum() == 0 {
		b.drainOne.Do(func() { close(b.drained) })
	}
}

// Close ends all calls in both directions with ShuttingDown, and returns when the last goroutine has ended, also if a Thing ignores its
// context. Further calls do nothing.
func (b *Binding) Close() error {
	b.host.RemoveStreamHandler(b.protocol)
	b.stop()
	b.mu.Lock()
	b.closed = true
	conns := b.conns
	remotes := slices.Collect(maps.Values(b.remotes))
	b.mu.Unlock()
	if conns != nil {
		b.host.Network().StopNotify(conns)
	}
	var ends sync.WaitGroup // all at once, because peers may read slowly
	for _, l := range b.all() {
		ends.Go(func() { l.fail(errClosed) })
	}
	for _, r := range remotes {
		r.close()
	}
	ends.Wait()
	b.retire()
	return nil
}

// retire waits for all goroutines. The binding is closed.
func (b *Binding) retire() {
	b.work.Wait() // includes the readers of sessions, which use b.jobs
	b.retired.Do(func() {
		b.mu.Lock() // sweep sends
		close(b.jobs)
		b.mu.Unlock()
	})
	b.workers.Wait()
}

// fits returns a TooLarge error if data of size bytes exceeds MaxMessage.
func (b *Binding) fits(what string, size int64, hint string) error {
	if limit := b.o.MaxMessage; size > limit {
		return interact.Errorf(interact.TooLarge, hint, "the %s has %d bytes, at most %d are allowed", what, size, limit)
	}
	return nil
}

// enter registers a goroutine, unless the binding is closed.
func (b *Binding) enter() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.work.Add(1)
	}
	return !b.closed
}

// all returns the open sessions.
func (b *Binding) all() []*session {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Keys(b.sessions))
}

// Stats are the counters of a [Binding].
type Stats struct {
	CallsIn, CallsOut   uint64 // since the start
	ErrorsIn, ErrorsOut uint64 // of these, ended with an error; calls that the consumer cancelled do not count
	ServingNow          int    // running calls of other nodes
	Streams             int    // open libp2p streams, both directions
	Pooled              int    // of these, shared sessions of this node
}

// Stats returns the current counters.
func (b *Binding) Stats() Stats {
	s := Stats{CallsIn: b.count.in.Load(), CallsOut: b.count.out.Load(), ErrorsIn: b.count.errorsIn.Load(),
		ErrorsOut: b.count.errorsOut.Load(), ServingNow: int(b.serving.sum())}
	for _, l := range b.all() {
		s.Streams++
		if l.remote != nil && !l.own {
			s.Pooled++
		}
	}
	return s
}
