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
// [Options.As] names the consumer for which a node calls. The host distinguishes consumers by that name and grants them no more than
// the node. A name that is not valid is Invalid. Invented names have no benefit, because quotas are per node. Observations and
// subscriptions are shared, so they have no consumer.
//
// If a host rejects a call by a rate limit and states the time to wait, the call is repeated after that time, if the deadline allows, in
// the order of the calls (pace.go): callers see RateLimited only if no time is left or if the request has a stream. If a host is
// overloaded and states the time to wait, the call is repeated for at most 2 s. Each consumer of the calling node is paced separately.
//
// An interaction is cancelled with a cancel frame on a shared session, and by closing or resetting a dedicated session. The end of a
// session cancels everything on it. The reset codes are those of libp2p: 0x1002 out of memory, 0x1004 protocol violation, 0x1006
// idle, 0x1007 shutting down.
package stream

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
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
)

// Options of a [Binding]. The zero value works.
type Options struct {
	// Network is part of the protocol id: only nodes of the same network call each other. Required.
	Network string
	// Log is where the binding tells what it decided; nil discards.
	Log *slog.Logger
	// MaxConcurrent bounds the calls that are served at once, and apart from them the observations and subscriptions; what
	// comes on top is answered with Overloaded. 0 means 4096.
	MaxConcurrent int
	// MaxPerPeer bounds the calls with one peer at once. More calls of a peer are answered with Overloaded, more calls to a
	// peer wait. 0 means 1024.
	MaxPerPeer int
	// MaxLong bounds the observations and subscriptions with one peer at once, in each direction. More are Overloaded at once:
	// who waited for another's end might wait for days. 0 means 1024.
	MaxLong int
	// MaxMessage bounds the data of one message, in bytes; what is larger fails with TooLarge. 0 means 16 MiB.
	MaxMessage int64
	// DialTimeout is how long it may take to connect to one host before the next is tried. 0 means 5 s.
	DialTimeout time.Duration
	// ProbeAfter is how long a peer may be silent while a call waits before it is probed: QUIC takes half a minute to notice
	// that a peer was killed. A lower value finds dead peers sooner and pings slow agents' nodes more often. 0 means 700 ms.
	ProbeAfter time.Duration
	// ProbeTimeout is how long a probe may take before the peer counts as dead. 0 means 1 s.
	ProbeTimeout time.Duration
	// Idle is how long an unused session to a peer stays open; the serving end waits 2.5 times as long. 0 means 2 min.
	Idle time.Duration
	// As names a consumer of this node to other nodes, as [did.ValidPrincipalName] has it; empty says nothing of it. Nil tells names
	// that are such names.
	As func(*did.Principal) string
	// Reach is told whether a node could be reached: false after a failed dial or probe, true after the first answer on a
	// new session. It must not block. Nil is told nothing.
	Reach func(node did.DID, ok bool)
	// Refused returns why a node may not be called, if that is why it could not be reached: an [*interact.Error] of code Forbidden, of its
	// policy (Remote) or of this node's. It is asked after a failure. Nil knows of none.
	Refused func(node did.DID) error
}

func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Reach == nil {
		o.Reach = func(did.DID, bool) {}
	}
	if o.Refused == nil {
		o.Refused = func(did.DID) error { return nil }
	}
	if o.As == nil {
		o.As = func(p *did.Principal) string {
			if !did.ValidPrincipalName(p.Name) {
				return ""
			}
			return p.Name
		}
	}
	o.MaxConcurrent = or(o.MaxConcurrent, 4096)
	o.MaxPerPeer = or(o.MaxPerPeer, 1024)
	o.MaxLong = or(o.MaxLong, 1024)
	o.MaxMessage = or(o.MaxMessage, 16<<20)
	o.DialTimeout = or(o.DialTimeout, 5*time.Second)
	o.ProbeAfter = or(o.ProbeAfter, 700*time.Millisecond)
	o.ProbeTimeout = or(o.ProbeTimeout, time.Second)
	o.Idle = or(o.Idle, 2*time.Minute)
	return o
}

func or[T int | int64 | time.Duration](v, otherwise T) T {
	if v <= 0 {
		return otherwise
	}
	return v
}

// A Binding calls things on other nodes and serves those of this one. It is safe for concurrent use.
type Binding struct {
	host     host.Host
	o        Options
	protocol protocol.ID
	local    interact.Thing  // set by Serve, before the handler
	ctx      context.Context // of probes; ends with Close
	stop     context.CancelFunc

	// mu owns what follows.
	mu       sync.Mutex
	closed   bool
	sessions map[*session]struct{}
	remotes  map[did.DID]*remote  // whom this node calls
	inbounds map[peer.ID]*inbound // who calls this node

	jobs     chan *served // for the workers that wait; closed when there is nobody left to employ one
	waiting  atomic.Int32 // workers that wait
	workers  sync.WaitGroup
	work     sync.WaitGroup // every other goroutine of the binding
	retired  sync.Once
	serving  load
	draining atomic.Bool
	drained  chan struct{} // closed when draining and nothing is served
	drainOne sync.Once
	count    counters
	pace     pacer
}

// A class of interactions has sessions and bounds of its own.
type class int

const (
	short class = iota // calls
	long               // observations and subscriptions (interact.Type.Long)
	alone              // what has a session of its own; the serving end counts it as short
)

// A load is how many interactions of each class are served now.
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

// Serve answers calls of other nodes with local. Call it once, before the host connects to anybody: peers learn of the
// protocol when they connect. A chunk of a request stream is local's until it asks for the next.
func (b *Binding) Serve(local interact.Thing) {
	b.local = local
	b.host.SetStreamHandler(b.protocol, b.accept)
}

// Run closes sessions that nobody uses and those that a peer does not read from. It returns when ctx ends, with nil.
func (b *Binding) Run(ctx context.Context) error {
	tick := time.NewTicker(min(b.o.Idle/4, writeTime/2))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			b.sweep(now)
		}
	}
}

// sweep ends every session that is stuck or idle at now, and forgets peers without any.
func (b *Binding) sweep(now time.Time) {
	for _, l := range b.all() {
		if l.out.stuck(now) {
			l.fail(errStuck)
		}
		l.expire(now)
	}
	b.pace.sweep(now)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	select {
	case b.jobs <- nil: // one worker less after a busy time
	default:
	}
	for id, r := range b.remotes {
		if r.unused(now) {
			delete(b.remotes, id)
		}
	}
}

// Drain refuses new calls of other nodes with ShuttingDown and waits until those that run have ended, or ctx has. Their
// observations and subscriptions, which have no end of their own, are ended the same way. Calls to other nodes go on, since
// what runs here may need them.
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
}

// settle notes that nothing is served any more, if so.
func (b *Binding) settle() {
	if b.draining.Load() && b.serving.sum() == 0 {
		b.drainOne.Do(func() { close(b.drained) })
	}
}

// Close stops serving, ends every call in both directions with ShuttingDown, and returns when the last goroutine has ended.
// It waits for things that do not heed their context. Calling it again does nothing.
func (b *Binding) Close() error {
	b.host.RemoveStreamHandler(b.protocol)
	b.stop()
	b.mu.Lock()
	b.closed = true
	remotes := make([]*remote, 0, len(b.remotes))
	for _, r := range b.remotes {
		remotes = append(remotes, r)
	}
	b.mu.Unlock()
	for _, l := range b.all() {
		l.fail(errClosed)
	}
	for _, r := range remotes {
		r.close()
	}
	b.retire()
	return nil
}

// retire waits for all goroutines. Nothing new may begin.
func (b *Binding) retire() {
	b.work.Wait() // those that read sessions are among them, and nobody else employs workers
	b.retired.Do(func() {
		b.mu.Lock() // sweep sends
		close(b.jobs)
		b.mu.Unlock()
	})
	b.workers.Wait()
}

// enter counts a goroutine in, unless the binding is closed.
func (b *Binding) enter() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.work.Add(1)
	}
	return !b.closed
}

// all returns the sessions that are open now.
func (b *Binding) all() []*session {
	b.mu.Lock()
	defer b.mu.Unlock()
	ls := make([]*session, 0, len(b.sessions))
	for l := range b.sessions {
		ls = append(ls, l)
	}
	return ls
}

// Stats is what a [Binding] has done and holds.
type Stats struct {
	CallsIn, CallsOut   uint64 // since the start
	ErrorsIn, ErrorsOut uint64 // those of them that ended with an error; calls that the consumer left are none
	ServingNow          int    // calls of other nodes that run
	Streams             int    // open libp2p streams, both directions
	Pooled              int    // those of them that this node keeps for its next calls
}

// Stats returns the figures of now.
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
