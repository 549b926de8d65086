package stream

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	"github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// A remote is a node that this one calls: the lanes to it, and the doubt whether it is alive.
type remote struct {
	b     *Binding
	id    peer.ID
	node  did.DID
	slots chan struct{} // an element per call on the shared lane
	owns  chan struct{} // an element per call on a lane of its own
	users atomic.Int32  // calls that hold the remote; raised with Binding.mu held

	// mu owns what follows.
	mu      sync.Mutex
	shared  *lane
	opening *opening
	lanes   map[*lane]struct{} // shared and own
	doubts  *time.Timer        // runs while calls wait
	doubted bool               // doubts runs
	probed  time.Time          // of the last probe that was answered
	probes  int                // that were answered in a row
	closed  bool
}

// An opening is an attempt to open the shared lane that several calls wait for.
type opening struct {
	done chan struct{} // closed when what follows is set
	lane *lane
	err  error
	left bool // the call that made the attempt gave up, so that the error is its own
}

var errSelf = errors.New("that is this node")

func peerID(node did.DID) (peer.ID, error) {
	raw, err := node.Peer()
	if err != nil {
		return "", err
	}
	return peer.IDFromBytes(raw)
}

// remote returns the remote for node and counts its user in.
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
	r := &remote{b: b, id: id, node: node, lanes: map[*lane]struct{}{}, slots: make(chan struct{}, b.o.MaxPerPeer),
		owns: make(chan struct{}, min(maxOwn, b.o.MaxPerPeer)), closed: b.closed}
	r.users.Add(1)
	b.remotes[node] = r
	return r, nil
}

// unused reports whether the remote can be forgotten. It is called with Binding.mu held.
func (r *remote) unused() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.users.Load() == 0 && len(r.lanes) == 0
}

// place puts c on a lane to h: the shared one, or a new one of its own.
func (r *remote) place(ctx context.Context, h td.Host, c *call) error {
	if c.alone() {
		l, err := r.open(ctx, h, true)
		if err != nil {
			return err
		}
		return r.add(l, c)
	}
	l, err := r.lane(ctx, h)
	if err != nil {
		return err
	}
	return r.add(l, c)
}

// add puts c on the lane, and sees that the silence of the node is noticed. A lane that has ended meanwhile lets the caller
// try again.
func (r *remote) add(l *lane, c *call) error {
	if err := l.enlist(&c.exchange); err != nil {
		return &lostError{cause: err}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.doubtLocked()
	return nil
}

// lane returns the shared lane, and opens it if there is none. Calls that need it at the same time wait for one attempt.
func (r *remote) lane(ctx context.Context, h td.Host) (*lane, error) {
	for {
		r.mu.Lock()
		if l := r.shared; l != nil && !r.outdated(l) {
			r.mu.Unlock()
			return l, nil
		}
		o := r.opening
		if o == nil {
			o = &opening{done: make(chan struct{})}
			r.opening = o
			r.mu.Unlock()
			return r.openShared(ctx, h, o)
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

// unopened is the error for a stream that could not be opened.
func (r *remote) unopened(ctx context.Context, h td.Host, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return expired(ctx, r.node)
	}
	return &pathError{host: h, err: err}
}

// outdated reports whether the shared lane is relayed and a direct connection has come up since. The lane is then left to
// the calls on it.
func (r *remote) outdated(l *lane) bool {
	return l.limited && r.b.host.Network().Connectedness(r.id) == network.Connected
}

func (r *remote) openShared(ctx context.Context, h td.Host, o *opening) (*lane, error) {
	o.lane, o.err = r.open(ctx, h, false)
	o.left = ctx.Err() != nil
	r.mu.Lock()
	r.opening = nil
	if o.err == nil && o.lane.reason() == nil {
		r.shared = o.lane
	}
	r.mu.Unlock()
	close(o.done)
	return o.lane, o.err
}

// open opens a stream to the node, connecting with the addresses of h if need be, and starts to read it.
func (r *remote) open(ctx context.Context, h td.Host, own bool) (*lane, error) {
	s, err := r.stream(ctx, h, own)
	if err != nil {
		if ctx.Err() == nil {
			r.b.o.Reach(r.node, false)
		}
		return nil, r.unopened(ctx, h, err)
	}
	if !r.b.enter() {
		_ = s.ResetWithError(network.StreamShutdown)
		return nil, (&lostError{cause: errClosed}).report(r.node)
	}
	l, err := r.b.newLane(s, r.node, r, own)
	if err != nil {
		r.b.work.Done()
		return nil, (&lostError{cause: err}).report(r.node)
	}
	l.relax() // the host speaks when it has something to say
	r.mu.Lock()
	r.lanes[l] = struct{}{}
	r.mu.Unlock()
	go func() {
		defer r.b.work.Done()
		l.serve(l.answer)
	}()
	return l, nil
}

// stream opens a libp2p stream. Small interactions may use a relayed connection.
func (r *remote) stream(ctx context.Context, h td.Host, own bool) (network.Stream, error) {
	if n := r.b.host.Network(); n.Connectedness(r.id) != network.Connected {
		r.b.host.Peerstore().AddAddrs(r.id, multiaddrs(h.Addrs), peerstore.TempAddrTTL)
	}
	ctx, cancel := context.WithTimeout(network.WithDialPeerTimeout(ctx, dialTimeout), dialTimeout)
	defer cancel()
	if !own {
		ctx = network.WithAllowLimitedConn(ctx, Service)
	}
	return r.b.host.NewStream(ctx, r.id, Protocol)
}

// multiaddrs returns those of addrs that are well-formed.
func multiaddrs(addrs []string) []multiaddr.Multiaddr {
	ms := make([]multiaddr.Multiaddr, 0, len(addrs))
	for _, a := range addrs {
		if m, err := multiaddr.NewMultiaddr(a); err == nil {
			ms = append(ms, m)
		}
	}
	return ms
}

// answer takes a frame that the host sent. It is called by the lane's reader.
func (l *lane) answer(f frame) error {
	if !l.told {
		l.told = true
		l.remote.b.o.Reach(l.node, true)
	}
	if f.kind == kindRequest || f.kind == kindCancel {
		return broken("a frame of kind %d from the serving end", f.kind)
	}
	e := l.find(f.id)
	switch {
	case e == nil: // its caller has left
		l.discard(f)
		return nil
	case f.kind == kindCredit:
		return e.grant(f.body)
	}
	err := e.put(f)
	if errors.Is(err, errMemory) && l.remove(e) { // costs this call only
		l.discard(f)
		e.end(err)
		l.send(kindCancel, e.id, 0)
		return nil
	}
	return err
}

// drop forgets a lane that has ended.
func (r *remote) drop(l *lane) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.lanes, l)
	if r.shared == l {
		r.shared = nil
	}
}

func (r *remote) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.doubts != nil {
		r.doubts.Stop()
	}
}

// doubtLocked sees that the silence of the node is noticed while a call waits.
func (r *remote) doubtLocked() {
	if r.doubted || r.closed {
		return
	}
	r.doubted, r.probes = true, 0
	if r.doubts == nil {
		r.doubts = time.AfterFunc(r.b.o.DoubtAfter, r.doubt)
	} else {
		r.doubts.Reset(r.b.o.DoubtAfter)
	}
}

// doubt probes the node if it has been silent for too long while a call waits, and sets the timer again as long as calls do.
func (r *remote) doubt() {
	if !r.b.enter() {
		return
	}
	defer r.b.work.Done()
	due, ok := r.due()
	if !ok {
		return
	}
	if wait := time.Until(due); wait > 0 {
		r.again(wait)
		return
	}
	began := time.Now()
	if err := r.probe(); err != nil && !r.heardSince(began) {
		r.bury(err)
		return
	}
	r.mu.Lock()
	r.probed = time.Now()
	r.probes++
	r.mu.Unlock()
	if due, ok := r.due(); ok {
		r.again(time.Until(due))
	}
}

// due returns when the next probe is due. If no call waits, ok is false and the timer is off.
func (r *remote) due() (due time.Time, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var oldest, heard time.Time
	for l := range r.lanes {
		if begun, waits := l.waiting(); waits && (!ok || begun.Before(oldest)) {
			oldest, ok = begun, true
		}
		heard = latest(heard, time.Unix(0, l.heard.Load()))
	}
	r.doubted = ok
	// Each answered probe doubles the patience, to eight times: the node lives, and its agent takes long.
	return latest(oldest, latest(heard, r.probed)).Add(r.b.o.DoubtAfter << min(r.probes, 3)), ok
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (r *remote) again(wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.doubts.Reset(max(wait, 0))
	}
}

func (r *remote) heardSince(t time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.lanes {
		if l.heard.Load() > t.UnixNano() {
			return true
		}
	}
	return false
}

// probe pings the node over the connection that exists. A node that answers that it knows no ping is alive.
func (r *remote) probe() error {
	ctx, cancel := context.WithTimeout(network.WithNoDial(r.b.ctx, Service), r.b.o.ProbeTimeout)
	defer cancel()
	select {
	case res, ok := <-ping.Ping(ctx, r.b.host, r.id):
		if !ok {
			return ctx.Err()
		}
		if res.Error != nil && notSpoken(res.Error) {
			return nil
		}
		return res.Error
	case <-ctx.Done():
		return ctx.Err()
	}
}

// bury ends everything with a node that is dead, so that the next call dials it afresh.
func (r *remote) bury(err error) {
	r.b.o.Log.Info("peer is silent", "peer", r.node.Short(), "probe", err.Error())
	r.mu.Lock()
	r.doubted = false
	lanes := make([]*lane, 0, len(r.lanes))
	for l := range r.lanes {
		lanes = append(lanes, l)
	}
	r.mu.Unlock()
	for _, l := range lanes {
		l.fail(errSilent)
	}
	_ = r.b.host.Network().ClosePeer(r.id)
	r.b.o.Reach(r.node, false)
}
