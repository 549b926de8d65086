package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	"github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/p2p/relay"
)

const (
	// moveTime limits the time to open the session to which subscriptions move.
	moveTime = 10 * time.Second
	// relayShare is the part of what is left of the limits of a relayed connection that one interaction may need.
	relayShare = 4
	// handshake is what a new relayed connection uses of its limits before the first interaction, in bytes, at most.
	handshake = 16 << 10
	// streamSpent is the code with which a session is reset before the limit of its relayed connection is reached.
	streamSpent network.StreamErrorCode = 0x4c01
)

// A need is the size of an interaction, in bytes: what this end sends, and what it expects to receive.
type need struct {
	send, receive int64
	waits         bool // for a direct connection, before other relays are tried
}

// Expected sizes, in bytes. The reply to a call is seldom larger; a subscription or a stream has as much on its way as its initial credit.
const (
	expectedReply  = 16 << 10
	expectedEvents = 64 << 10
	expectedStream = 2 << 20
	overhead       = 1 << 10 // of a request besides its data
)

// need returns the size of an interaction.
func (q request) need() need {
	n := need{overhead + int64(len(q.m.Data)), expectedReply, true}
	if q.m.Chunks != nil {
		n.send += expectedStream
	}
	switch q.class() {
	case short:
		n.waits = false
	case long:
		n.receive = expectedEvents
	case alone:
		n.receive = expectedStream
	}
	return n
}

// fits reports whether a connection has room for n; nil is a connection without limits.
func (n need) fits(m *relay.Meter) bool {
	if m == nil {
		return true
	}
	send, receive, _ := m.Left(time.Now())
	return !m.Retired() && n.send <= send/relayShare && n.receive <= receive/relayShare
}

// suits reports whether a new connection with the limits of the same relay would have room for n.
func (n need) suits(m *relay.Meter) bool {
	data, _ := m.Limits()
	return data == 0 || max(n.send, n.receive) <= (data-handshake)/relayShare
}

// isRelayed reports whether a connection is a circuit of a relay, with limits or without.
func isRelayed(c network.Conn) bool { return relay.IsCircuit(c.RemoteMultiaddr()) }

// isDirect reports whether there is a direct connection to the node.
func (r *remote) isDirect() bool {
	return slices.ContainsFunc(r.b.host.Network().ConnsToPeer(r.id), func(c network.Conn) bool { return !isRelayed(c) && !c.IsClosed() })
}

// fits reports whether a connection to the node has room for n. If one has, the host opens no streams on those that have not.
func (r *remote) fits(n need) bool {
	var low []*relay.Meter
	relayed, fits := false, false
	for _, c := range r.b.host.Network().ConnsToPeer(r.id) {
		switch m := relay.MeterOf(c); {
		case !isRelayed(c):
			if !c.IsClosed() {
				return true
			}
			continue
		case !n.fits(m):
			low = append(low, m)
		default:
			fits = fits || !c.IsClosed()
		}
		relayed = true
	}
	if !relayed {
		return true // the host dials
	}
	if fits {
		for _, m := range low {
			m.Retire()
		}
	}
	return fits
}

// connect connects to the node. After a failure it tries once more if there are relays: the dial of one ends those of the others, and a relay that
// failed is not dialed again.
func (r *remote) connect(ctx context.Context) error {
	err := r.b.host.Connect(ctx, peer.AddrInfo{ID: r.id})
	if err == nil || ctx.Err() != nil || !slices.ContainsFunc(r.b.host.Peerstore().Addrs(r.id), relay.IsCircuit) {
		return err
	}
	if s, ok := r.b.host.Network().(*swarm.Swarm); ok {
		s.Backoff().Clear(r.id)
	}
	if again := r.b.host.Connect(ctx, peer.AddrInfo{ID: r.id}); again == nil {
		return nil
	}
	return err
}

// findRoom makes a connection to the node that has room for n: a direct one, or one through a relay whose limits suffice.
func (r *remote) findRoom(ctx context.Context, n need) error {
	if n.waits && r.awaitDirect(ctx) {
		return nil
	}
	dial, cancel := r.dialing(ctx, (relay.Wanted+1)*relay.DialTimeout)
	defer cancel()
	var why *limitError
	var failed error
	var passed []*relay.Meter
	for range relay.Wanted + 1 {
		for _, c := range r.b.host.Network().ConnsToPeer(r.id) {
			if m := relay.MeterOf(c); m != nil {
				why = limitOf(m)
				m.Retire()
				if !n.suits(m) {
					m.Avoid(r.id)
				}
				passed = append(passed, m)
			}
		}
		if failed = r.connect(dial); failed != nil {
			break
		}
		if r.fits(n) {
			return nil
		}
	}
	for _, m := range passed { // they still carry less
		m.Restore()
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case why != nil:
		return why
	}
	return cmp.Or(failed, network.ErrNoConn) // the relayed connection has ended meanwhile
}

// awaitDirect waits a moment for a direct connection, and reports whether there is one.
func (r *remote) awaitDirect(ctx context.Context) bool {
	late := time.NewTimer(r.b.o.DirectWait)
	defer late.Stop()
	for {
		r.mu.Lock()
		if r.direct == nil {
			r.direct = make(chan struct{})
		}
		next := r.direct
		r.mu.Unlock()
		if r.isDirect() {
			return true
		}
		select {
		case <-next:
		case <-late.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// A limitError is the reason why the relayed connections to a host, the only ones, do not carry an interaction.
type limitError struct {
	data   int64
	length time.Duration
}

func limitOf(m *relay.Meter) *limitError {
	e := &limitError{}
	e.data, e.length = m.Limits()
	return e
}

func (e *limitError) Error() string {
	return "the only connection is relayed, and too little is left of its limits of " + e.limits()
}

func (e *limitError) limits() string {
	return fmt.Sprintf("%d KiB in each direction and %s", e.data>>10, e.length)
}

// report returns the error for the consumer.
func (e *limitError) report(node did.DID) *interact.Error {
	return &interact.Error{Code: interact.RelayLimited, Err: e, Title: "host " + node.Short() + " has no connection for an interaction of this size",
		Hint: "the relay permits " + e.limits() + "; send or request less, or try again: the nodes look for a direct connection"}
}

// path describes the connection of a session: "mesh" and its transport, or the node that relays it; and how long the relayed connection lasted that
// a direct one replaced.
func (l *session) path() string {
	if l.relayed {
		name := "mesh relay"
		if l.meter != nil {
			if node, err := did.FromPeer([]byte(l.meter.Relay())); err == nil {
				name += " " + node.Short()
			}
		}
		return name
	}
	name := strings.TrimSpace("mesh " + l.s.Conn().ConnState().Transport)
	if took := time.Duration(l.remote.upgraded.Load()); took > 0 {
		name += fmt.Sprintf(" direct after %d ms", took.Milliseconds())
	}
	return name
}

// watch moves or ends the interactions of a session on a relayed connection before its relay cuts it.
func (l *session) watch() {
	if l.meter == nil {
		return
	}
	unwatch := l.meter.Watch(func(s relay.Stage) {
		if !l.b.enter() {
			return
		}
		defer l.b.work.Done()
		switch {
		case s >= relay.Spent:
			l.fail(errSpent)
		case l.remote != nil:
			l.remote.move(l)
		}
	})
	l.mu.Lock()
	l.unwatch = unwatch
	over := l.err != nil
	l.mu.Unlock()
	if over {
		unwatch()
	}
}

// connected handles a new connection: what is relayed moves to a direct one.
func (b *Binding) connected(_ network.Network, c network.Conn) {
	if isRelayed(c) {
		return
	}
	node, err := did.FromPeer([]byte(c.RemotePeer()))
	if err != nil {
		return
	}
	b.mu.Lock()
	r := b.remotes[node]
	if r == nil || b.closed {
		b.mu.Unlock()
		return
	}
	b.work.Add(1)
	b.mu.Unlock()
	for _, old := range b.host.Network().ConnsToPeer(r.id) {
		if isRelayed(old) {
			r.upgraded.Store(int64(max(time.Since(old.Stat().Opened), 1)))
		}
	}
	go func() { // the network waits for this function
		defer b.work.Done()
		r.mu.Lock()
		if r.direct != nil {
			close(r.direct)
			r.direct = nil
		}
		sessions := slices.Collect(maps.Keys(r.sessions))
		r.mu.Unlock()
		for _, l := range sessions {
			if l.relayed {
				r.move(l)
			}
		}
	}()
}

// move lets the subscriptions of a session go on over another connection, which it opens first. Other interactions stay.
func (r *remote) move(l *session) {
	l.mu.Lock()
	var all []*exchange
	for _, e := range l.open {
		if e.long {
			all = append(all, e)
		}
	}
	l.mu.Unlock()
	if len(all) == 0 {
		return
	}
	r.mu.Lock()
	h := r.host
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(r.b.ctx, moveTime)
	defer cancel()
	next, err := r.session(ctx, h, long, need{send: overhead, receive: expectedEvents})
	if err != nil || next == l {
		r.b.o.Log.Debug("subscriptions stay on a relayed connection", "peer", r.node.Short(), "err", err)
		return
	}
	for _, e := range all {
		e.end(errMoved)
	}
}

// probeRelays pings the relays of the sessions. The result waits for their answers, and returns those that are silent.
func (r *remote) probeRelays() func() map[peer.ID]bool {
	r.mu.Lock()
	all := map[peer.ID]bool{}
	for l := range r.sessions {
		if l.meter != nil {
			all[l.meter.Relay()] = true
		}
	}
	r.mu.Unlock()
	results, timeout := make(chan peer.ID, len(all)), r.probeTimeout()
	for id := range all {
		r.b.work.Add(1) // the caller has entered
		go func() {
			defer r.b.work.Done()
			if pings(r.b, id, timeout) != nil {
				results <- id
				return
			}
			results <- ""
		}()
	}
	return func() map[peer.ID]bool {
		silent := map[peer.ID]bool{}
		for range all {
			silent[<-results] = true
		}
		delete(silent, "")
		return silent
	}
}

// pings pings a peer over an existing connection.
func pings(b *Binding, id peer.ID, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(network.WithNoDial(b.ctx, Service), timeout)
	defer cancel()
	select {
	case res, ok := <-ping.Ping(ctx, b.host, id):
		if !ok {
			return ctx.Err()
		}
		return res.Error
	case <-ctx.Done():
		return ctx.Err()
	}
}

// cut returns the reason for the end of a session whose relayed connection has ended.
func (l *session) cut(err error) error {
	switch {
	case l.meter.Stage() > relay.Fresh:
		return errSpent
	case l.remote != nil && !l.meter.Retired():
		l.remote.avoidRelays([]*session{l})
	}
	return err
}

// avoidRelays lets the next dial use other relays than those of the sessions, if other ones are known that are not avoided themselves.
func (r *remote) avoidRelays(sessions []*session) {
	for _, l := range sessions {
		if l.meter != nil && slices.ContainsFunc(r.b.host.Peerstore().Addrs(r.id), func(a multiaddr.Multiaddr) bool {
			return relay.IsCircuit(a) && relay.Of(a) != l.meter.Relay() && !l.meter.Avoids(r.id, a)
		}) {
			l.meter.AvoidShortly(r.id)
		}
	}
}

// leaveRelays ends the sessions through silent relays, and reports whether there are any: then the node itself may be reached through others.
func (r *remote) leaveRelays(silent map[peer.ID]bool) bool {
	r.mu.Lock()
	sessions := slices.Collect(maps.Keys(r.sessions))
	r.mu.Unlock()
	left := false
	for _, l := range sessions {
		if l.meter != nil && silent[l.meter.Relay()] {
			left = true
			l.meter.Retire() // first: what is repeated must not take the same circuit
			l.meter.Avoid(r.id)
			l.fail(errRelay)
			_ = r.b.host.Network().ClosePeer(l.meter.Relay())
		}
	}
	return left
}

// isSpent reports whether a session ended because the limit of its relayed connection was near.
func isSpent(err error) bool {
	return errors.Is(err, errSpent) || errors.Is(err, relay.ErrSpent) || resetBy(err, streamSpent)
}
