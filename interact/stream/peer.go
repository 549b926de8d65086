package stream

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact/stream/frame"
	"github.com/lmosd/lmosd/p2p/relay"
	"github.com/lmosd/lmosd/td"
)

// A remote is a node that this node calls: its sessions and its failure detection.
type remote struct {
	b        *Binding
	id       peer.ID
	node     did.DID
	slots    [3]chan struct{} // by class: an element per interaction
	users    atomic.Int32     // calls that hold the remote; raised with Binding.mu held
	upgraded atomic.Int64     // time from a relayed connection to the direct one that replaced it, in nanoseconds; 0: none did
	fell     atomic.Int64     // time when it became unreachable, in Unix nanoseconds; 0 after a response
	broke    atomic.Int64     // time when a connection was lost during a call, in the same unit; 0 after a response on a new session
	warmed   atomic.Int64     // time of the last connection in advance, in the same unit
	probing  atomic.Bool      // a probe runs; written with mu locked

	shared [2]atomic.Pointer[session] // by class, short and long; written with mu locked

	// mu owns what follows.
	mu       sync.Mutex
	opening  [2]*opening
	sessions map[*session]struct{} // shared and own
	host     td.Host               // as it was called last
	direct   chan struct{}         // closed with the next direct connection; nil if no call waits for it
	closing  chan struct{}         // closed when the connections of a silent node are; nil if none are being closed
	closed   bool

	// The timer of waiting calls.
	timer    *time.Timer
	watching bool      // the timer or a probe runs
	next     time.Time // when the timer fires
	probed   time.Time // time of the last answered probe
	answered int       // successive probes
}

// An opening is an attempt to open the shared session, for which several calls wait.
type opening struct {
	done    chan struct{} // closed when the other fields are set
	session *session
	err     error
	left    bool // err is the cancellation of the call that made the attempt
}

var errSelf = errors.New("this is the calling node itself")

func peerID(node did.DID) (peer.ID, error) {
	raw, err := node.Peer()
	if err != nil {
		return "", err
	}
	return peer.IDFromBytes(raw)
}

// remote returns the remote for node and increments its users.
func (b *Binding) remote(node did.DID) (*remote, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r, ok := b.remotes[node]; ok {
		r.users.Add(1)
		return r, nil
	}
	id, err := peerID(node)
	if err == nil && id == b.host.ID() {
		err = errSelf
	}
	if err != nil {
		return nil, err
	}
	r := &remote{b: b, id: id, node: node, sessions: map[*session]struct{}{}, closed: b.closed}
	for cl, n := range [...]int{short: b.o.MaxPerPeer, long: b.o.MaxLong, alone: min(maxOwn, b.o.MaxPerPeer)} {
		r.slots[cl] = make(chan struct{}, n)
	}
	r.users.Add(1)
	b.remotes[node] = r
	if b.conns == nil && !b.closed {
		b.conns = &network.NotifyBundle{ConnectedF: b.connected}
		b.host.Network().Notify(b.conns)
	}
	return r, nil
}

// unused reports whether the remote can be removed at now. The caller holds Binding.mu.
func (r *remote) unused(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.users.Load() == 0 && len(r.sessions) == 0 && !r.down(now)
}

// unreachableBackoff is the time in which an unreachable host is tried after the others.
const unreachableBackoff = time.Minute

func (r *remote) down(now time.Time) bool {
	return now.UnixNano()-r.fell.Load() < int64(unreachableBackoff)
}

// lost records that the node is unreachable.
func (r *remote) lost() {
	r.fell.Store(time.Now().UnixNano())
	r.b.o.Reach(r.node, false)
}

// sessionFor returns the session for q of class cl: shared, or new and dedicated.
func (r *remote) sessionFor(ctx context.Context, h td.Host, q request, cl class) (*session, error) {
	if cl != alone {
		if l := r.usable(cl, q.need()); l != nil {
			return l, nil
		}
	}
	ctx, cancel := q.within(ctx)
	defer cancel()
	if cl == alone {
		return r.open(ctx, h, cl, q.need())
	}
	return r.session(ctx, h, cl, q.need())
}

// usable returns the shared session of class cl, if it is open, not outdated, and has room for n.
func (r *remote) usable(cl class, n need) *session {
	if l := r.shared[cl].Load(); l != nil && !l.over.Load() && !r.outdated(l) && n.fits(l.meter) {
		return l
	}
	return nil
}

// add puts c on the session and watches it. If the session has ended, the caller may try again.
func (r *remote) add(l *session, c *call) error {
	if err := l.enlist(&c.exchange); err != nil {
		return &lostError{cause: err}
	}
	r.watch(c)
	return nil
}

// session returns the shared session of class cl, and opens it if necessary. Concurrent calls wait for one attempt.
func (r *remote) session(ctx context.Context, h td.Host, cl class, n need) (*session, error) {
	for {
		r.mu.Lock()
		if l := r.usable(cl, n); l != nil {
			r.mu.Unlock()
			return l, nil
		}
		o := r.opening[cl]
		if o == nil {
			o = &opening{done: make(chan struct{})}
			r.opening[cl] = o
			r.mu.Unlock()
			return r.openShared(ctx, h, o, cl, n)
		}
		r.mu.Unlock()
		select {
		case <-o.done:
		case <-ctx.Done():
			return nil, r.unopened(ctx, h, ctx.Err())
		}
		if o.err != nil && !o.left {
			return nil, o.err
		}
	}
}

// unopened returns the error for a stream that could not be opened.
func (r *remote) unopened(ctx context.Context, h td.Host, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return expired(ctx.Err(), r.node)
	}
	return &pathError{host: h, err: err}
}

// outdated reports whether the session is on a relayed connection that takes no new streams, or beside which a direct one exists now. New calls
// then use a new session.
func (r *remote) outdated(l *session) bool {
	return l.relayed && (l.meter != nil && l.meter.Retired() || r.isDirect())
}

func (r *remote) openShared(ctx context.Context, h td.Host, o *opening, cl class, n need) (*session, error) {
	o.session, o.err = r.open(ctx, h, cl, n)
	o.left = ctx.Err() != nil
	r.mu.Lock()
	r.opening[cl] = nil
	if o.err == nil && o.session.reason() == nil {
		r.shared[cl].Store(o.session)
	}
	r.mu.Unlock()
	close(o.done)
	return o.session, o.err
}

// open opens a stream to the node, connects with the addresses of h if necessary, and starts its reader.
func (r *remote) open(ctx context.Context, h td.Host, cl class, n need) (*session, error) {
	r.awaitClose(ctx)
	s, err := r.stream(ctx, h, n)
	if err != nil && r.findAddrs(ctx, h, err) {
		s, err = r.stream(ctx, h, n)
	}
	if err != nil {
		switch refusal := r.b.o.Refused(r.node); {
		case refusal != nil && !errors.Is(ctx.Err(), context.Canceled):
			return nil, &pathError{host: h, err: refusal} // the node is reachable
		case ctx.Err() == nil && !isLocal(err):
			r.lost()
		}
		return nil, r.unopened(ctx, h, err)
	}
	if !r.b.enter() {
		_ = s.ResetWithError(network.StreamShutdown)
		return nil, (&lostError{cause: errClosed}).report(r.node)
	}
	l, err := r.b.newSession(s, r.node, r, cl == alone)
	if err != nil {
		r.b.work.Done()
		return nil, (&lostError{cause: err}).report(r.node)
	}
	l.stopFrameTimer() // the first frame comes from this end
	r.mu.Lock()
	r.sessions[l] = struct{}{}
	r.host = h
	r.mu.Unlock()
	go func() {
		defer r.b.work.Done()
		l.serve(l.answer)
	}()
	return l, nil
}

// isLocal reports whether the reason for a failed open does not mean that the peer is unreachable: a resource limit of this node or of a relay, or
// a peer without the protocol.
func isLocal(err error) bool {
	if _, relayed := errors.AsType[*limitError](err); relayed {
		return true
	}
	return errors.Is(err, network.ErrResourceLimitExceeded) || unsupported(err)
}

// answer handles a frame of the host. The reader of the session calls it.
func (l *session) answer(f frame.Frame) error {
	if !l.reported {
		l.reported = true
		l.remote.fell.Store(0)
		l.remote.broke.Store(0)
		l.remote.b.o.Reach(l.node, true)
	}
	if f.Kind == frame.Request || f.Kind == frame.Cancel {
		return frame.Errorf("a frame of kind %d from the serving end", f.Kind)
	}
	e := l.find(f.ID)
	switch {
	case e == nil: // cancelled
		l.discard(f)
		return nil
	case f.Kind == frame.Credit:
		return e.grant(f.Body)
	}
	err := e.put(f)
	if errors.Is(err, errMemory) && l.remove(e) { // ends this call only
		l.discard(f)
		e.end(err)
		l.send(frame.Cancel, e.id, 0)
		return nil
	}
	return err
}

// drop removes a session that has ended.
func (r *remote) drop(l *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sessions, l)
	for cl := range r.shared {
		r.shared[cl].CompareAndSwap(l, nil)
	}
}

func (r *remote) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.timer != nil {
		r.timer.Stop()
	}
}

// watch sets the timer for a probe of the node and for the deadline of c. All calls share one timer: a call that is answered soon does
// not change it.
func (r *remote) watch(c *call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch due := earliest(c.started.Add(r.b.o.probeAfter(c.l.relayed)), c.until); {
	case r.closed:
	case !r.watching:
		r.watching, r.answered = true, 0
		r.alarm(due, c.started)
	case due.Before(r.next):
		r.alarm(due, c.started)
	}
}

// alarm sets the timer to next. The caller holds mu.
func (r *remote) alarm(next, now time.Time) {
	r.next = next
	if r.timer == nil {
		r.timer = time.AfterFunc(next.Sub(now), r.wake)
	} else {
		r.timer.Reset(next.Sub(now))
	}
}

// wake ends calls whose deadline has passed, probes the node if it sent nothing for too long, and sets the timer again while calls wait.
func (r *remote) wake() {
	if !r.b.enter() {
		return
	}
	defer r.b.work.Done()
	for r.look(time.Now()) {
		r.inquire()
	}
}

// look does this at now, and reports whether the node must be probed.
func (r *remote) look(now time.Time) (probe bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var started, by, lastRead time.Time
	relayed := len(r.sessions) > 0
	for l := range r.sessions {
		relayed = relayed && l.relayed
		b, d := l.look(now)
		started, by = earliest(started, b), earliest(by, d)
		lastRead = latest(lastRead, time.Unix(0, l.lastRead.Load()))
	}
	next := by
	if !started.IsZero() && !r.probing.Load() {
		// Each answered probe doubles the time to the next, up to eight times: the node is alive and its agent is slow.
		due := latest(started, latest(lastRead, r.probed)).Add(r.b.o.probeAfter(relayed) << min(r.answered, 3))
		if probe = !now.Before(due); !probe {
			next = earliest(next, due)
		}
	}
	if probe {
		r.probing.Store(true)
	}
	r.watching = !next.IsZero() || r.probing.Load()
	if !next.IsZero() && !r.closed {
		r.alarm(next, now)
	}
	return probe
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// inquire probes the node, and ends its sessions after a failure. During the probe, the timer is for deadlines only.
func (r *remote) inquire() {
	began := time.Now()
	relays := r.probeRelays()
	err := r.probe()
	// A timeout that is reported late is one of this process, which waits for the processor: the node may have answered in time
	// (Lifeguard, "local health").
	for again := 0; err != nil && again < lateProbes && r.isLate(began); again++ {
		began = time.Now()
		relays, err = r.probeRelays(), r.probe()
	}
	if err != nil && r.readSince(began) {
		err = nil
	}
	r.mu.Lock()
	r.probing.Store(false)
	if err == nil {
		r.probed = time.Now()
		r.answered++
	}
	r.mu.Unlock()
	if silent := relays(); err != nil && !r.leaveRelays(silent) {
		r.closeAll(err)
	}
}

// lateProbes is the number of probes whose late timeout does not count.
const lateProbes = 4

// isLate reports whether the timeout of a probe that began then was reported late.
func (r *remote) isLate(began time.Time) bool {
	return time.Since(began) > r.b.o.ProbeTimeout+r.b.o.ProbeTimeout/4
}

func (r *remote) readSince(t time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.sessions {
		if l.lastRead.Load() > t.UnixNano() {
			return true
		}
	}
	return false
}

// probe pings the node over the existing connection. A node that does not support ping is alive. The only connection may be a relayed one that
// takes no new streams.
func (r *remote) probe() error {
	isRetired := func(c network.Conn) bool { m := relay.MeterOf(c); return m != nil && m.Retired() }
	if all := r.b.host.Network().ConnsToPeer(r.id); len(all) > 0 && !slices.ContainsFunc(all, func(c network.Conn) bool { return !isRetired(c) }) {
		return nil
	}
	if err := pings(r.b, r.id, r.probeTimeout()); err != nil && !unsupported(err) {
		return err
	}
	return nil
}

// A relay fails more often than a node, and there is another one: its failure is detected sooner. The shorter times hold for nodes that are reached only
// through relays, and the shorter timeout only for those that are known to answer in a quarter of it.
const (
	relayedSooner  = 4.0 / 7
	relayedTimeout = 0.7
)

// probeAfter returns Options.ProbeAfter, or less for a node that is reached through a relay.
func (o *Options) probeAfter(relayed bool) time.Duration {
	if relayed {
		return time.Duration(relayedSooner * float64(o.ProbeAfter))
	}
	return o.ProbeAfter
}

// roundTrip returns how long the node takes to answer, or more; 0 if that is not known.
func (r *remote) roundTrip() (least time.Duration) {
	least = r.b.host.Peerstore().LatencyEWMA(r.id)
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.sessions {
		if took := time.Duration(l.fastest.Load()); took > 0 && (least == 0 || took < least) {
			least = took
		}
	}
	return least
}

// noteReply records the time between a request and its first reply.
func (l *session) noteReply(took time.Duration) {
	for {
		known := l.fastest.Load()
		if known > 0 && known <= int64(took) || l.fastest.CompareAndSwap(known, max(int64(took), 1)) {
			return
		}
	}
}

// probeTimeout returns Options.ProbeTimeout, or less for a node that is reached through a relay and answers quickly.
func (r *remote) probeTimeout() time.Duration {
	whole := r.b.o.ProbeTimeout
	short := time.Duration(relayedTimeout * float64(whole))
	usual := r.roundTrip()
	all := r.b.host.Network().ConnsToPeer(r.id)
	if usual == 0 || usual > short/4 || len(all) == 0 || slices.ContainsFunc(all, func(c network.Conn) bool { return !isRelayed(c) }) {
		return whole
	}
	return short
}

// closeAll ends all sessions and the connection of a failed node, so that the next call dials it again.
func (r *remote) closeAll(err error) {
	r.b.o.Log.Info("peer is silent", "peer", r.node.Short(), "probe", err.Error())
	r.lost()
	closed := make(chan struct{})
	r.mu.Lock()
	sessions := slices.Collect(maps.Keys(r.sessions))
	r.closing = closed
	r.mu.Unlock()
	r.avoidRelays(sessions)
	for _, l := range sessions {
		l.fail(errSilent)
	}
	_ = r.b.host.Network().ClosePeer(r.id)
	r.mu.Lock()
	r.closing = nil
	r.mu.Unlock()
	close(closed)
}

// awaitClose waits until the connections of a silent node are closed: a call that is repeated must not use them.
func (r *remote) awaitClose(ctx context.Context) {
	r.mu.Lock()
	closing := r.closing
	r.mu.Unlock()
	if closing == nil {
		return
	}
	select {
	case <-closing:
	case <-ctx.Done():
	}
}
