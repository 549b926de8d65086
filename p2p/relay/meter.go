package relay

import (
	"context"
	"errors"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/lmosd/lmosd/internal/boundedmap"
)

// ErrSpent is the error of a write that a relay would not forward any more.
var ErrSpent = errors.New("the limit of the relayed connection is reached")

// A relay cuts a circuit at its limit, with all its streams and without a reason. The two ends move away before that.
const (
	lowPart   = 8  // at an eighth of the limit a circuit takes no new streams, and what can move does
	spentPart = 32 // at this part all else ends
	// lowBytes and spentBytes are higher parts of low limits, because some data is on its way when a part is reached; at most a quarter and an eighth.
	lowBytes   = 512 << 10
	spentBytes = 256 << 10
)

// margins returns what is left of a limit of data at the beginning of the stages.
func margins(data int64) (low, spent int64) {
	return max(data/lowPart, min(data/4, lowBytes)), max(data/spentPart, min(data/8, spentBytes))
}

// How long a relay is not dialed again for a peer: if its limits do not suffice or it is silent, and if a connection through it failed, for which the
// peer may be the reason.
const (
	avoidFor      = 30 * time.Second
	avoidShortly  = 5 * time.Second
	maxAvoided    = 1024
	handshakeTime = 3 * time.Second // of a connection in a circuit, at the end that dials
)

// A Stage is how much of the limits of a circuit is used.
type Stage uint8

// The stages, in their order.
const (
	Fresh Stage = iota
	Low         // less than an eighth is left, or a quarter of low limits
	Spent       // less than a thirty-second is left, or an eighth of low limits; or a write did not fit
)

// Circuits counts what the relayed connections of a host use. It is safe for concurrent use.
type Circuits struct {
	mu      sync.Mutex
	avoided map[pair]time.Time // until then; owned by mu
}

// A pair is a peer and a relay through which it is reached.
type pair struct{ peer, relay peer.ID }

// Avoids reports whether an address of a peer leads through a relay that does not suffice for now.
func (c *Circuits) Avoids(p peer.ID, a ma.Multiaddr) bool {
	if c == nil || !IsCircuit(a) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Before(c.avoided[pair{p, Of(a)}])
}

func (c *Circuits) avoid(p, relay peer.ID, how time.Duration) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	boundedmap.Put(&c.avoided, pair{p, relay}, now.Add(how), maxAvoided, func(until time.Time) bool { return now.After(until) })
}

// Of returns the relay of an address, or an empty one.
func Of(a ma.Multiaddr) peer.ID {
	before, _ := ma.SplitFunc(a, func(c ma.Component) bool { return c.Protocol().Code == ma.P_CIRCUIT })
	_, id := peer.SplitAddr(before)
	return id
}

// Upgrader returns one that counts the bytes of the connections that it upgrades, for the transport of circuits.
func (c *Circuits) Upgrader(u transport.Upgrader) transport.Upgrader { return upgrader{u, c} }

type upgrader struct {
	transport.Upgrader
	of *Circuits
}

// Upgrade implements [transport.Upgrader].
func (u upgrader) Upgrade(ctx context.Context, t transport.Transport, raw manet.Conn, dir network.Direction, p peer.ID,
	scope network.ConnManagementScope) (transport.CapableConn, error) {
	counted := u.of.count(raw)
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	c, err := u.Upgrader.Upgrade(ctx, t, counted, dir, p, scope)
	if err != nil {
		counted.m.stop()
		u.of.avoid(p, counted.m.relay, avoidShortly)
		return nil, err
	}
	return circuitConn{c, counted.m}, nil
}

// UpgradeGatedMaListener implements [transport.Upgrader].
func (u upgrader) UpgradeGatedMaListener(t transport.Transport, l transport.GatedMaListener) transport.Listener {
	return upgraded{u.Upgrader.UpgradeGatedMaListener(t, accepted{l, u.of})}
}

// accepted are the connections that arrive through relays.
type accepted struct {
	transport.GatedMaListener
	of *Circuits
}

// Accept implements [transport.GatedMaListener].
func (a accepted) Accept() (manet.Conn, network.ConnManagementScope, error) {
	c, scope, err := a.GatedMaListener.Accept()
	if err != nil {
		return nil, nil, err
	}
	return a.of.count(c), scope, nil
}

// upgraded are those after their handshake.
type upgraded struct{ transport.Listener }

// Accept implements [transport.Listener].
func (u upgraded) Accept() (transport.CapableConn, error) {
	c, err := u.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return circuitConn{c, meterIn(statOf(c))}, nil
}

// A circuitConn is one end of the encrypted connection in a circuit.
type circuitConn struct {
	transport.CapableConn
	m *Meter
}

// IsClosed implements [network.MuxedConn]. The host opens no streams on a retired circuit, and dials in its place; its streams go on.
func (c circuitConn) IsClosed() bool { return c.m.retired.Load() || c.CapableConn.IsClosed() }

// Stat implements [network.ConnStat].
func (c circuitConn) Stat() network.ConnStats { return statOf(c.CapableConn) }

func statOf(c transport.CapableConn) network.ConnStats {
	if s, ok := c.(network.ConnStat); ok {
		return s.Stat()
	}
	return network.ConnStats{}
}

// counted is one end of a circuit below its encryption.
type counted struct {
	manet.Conn
	m *Meter
}

func (c *Circuits) count(raw manet.Conn) counted {
	var stat network.ConnStats
	if s, ok := raw.(network.ConnStat); ok {
		stat = s.Stat()
	}
	data, _ := stat.Extra[client.StatLimitData].(uint64)
	length, _ := stat.Extra[client.StatLimitDuration].(time.Duration)
	return counted{raw, newMeter(c, Of(raw.RemoteMultiaddr()), data, length)}
}

// meterKey is the key of a [Meter] in the state of a connection.
type meterKey struct{}

// Stat implements [network.ConnStat].
func (c counted) Stat() (stat network.ConnStats) {
	if s, ok := c.Conn.(network.ConnStat); ok {
		stat = s.Stat()
	}
	extra := map[any]any{meterKey{}: c.m}
	for k, v := range stat.Extra {
		extra[k] = v
	}
	stat.Extra = extra
	return stat
}

// Read implements [net.Conn].
func (c counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.m.add(&c.m.received, n)
	return n, err
}

// Write implements [net.Conn]. What the relay would cut is not sent: the other end cannot tell a cut from a crash.
func (c counted) Write(b []byte) (int, error) {
	if !c.m.add(&c.m.sent, len(b)) {
		return 0, ErrSpent
	}
	return c.Conn.Write(b)
}

// Close implements [net.Conn].
func (c counted) Close() error {
	c.m.stop()
	return c.Conn.Close()
}

var _ net.Conn = counted{}

// A Meter counts what one end of a relayed connection uses of the limits that the relay stated. It is safe for concurrent use.
type Meter struct {
	of     *Circuits
	relay  peer.ID
	data   int64         // limit of each direction, in bytes; 0 is none
	length time.Duration // limit of time; 0 is none
	opened time.Time

	sent, received atomic.Int64
	retired        atomic.Bool

	mu       sync.Mutex // owns what follows
	stage    Stage
	timers   []*time.Timer
	watchers map[*func(Stage)]struct{}
}

func newMeter(of *Circuits, relay peer.ID, data uint64, length time.Duration) *Meter {
	m := &Meter{of: of, relay: relay, data: int64(min(data, math.MaxInt64)), length: max(length, 0), opened: time.Now(),
		watchers: map[*func(Stage)]struct{}{}}
	if m.length > 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.timers = []*time.Timer{
			time.AfterFunc(m.length-m.length/lowPart, func() { m.reach(Low) }),
			time.AfterFunc(m.length-m.length/spentPart, func() { m.reach(Spent) }),
		}
	}
	return m
}

// MeterOf returns that of a relayed connection, or nil for a direct one.
func MeterOf(c network.Conn) *Meter { return meterIn(c.Stat()) }

func meterIn(s network.ConnStats) *Meter {
	m, _ := s.Extra[meterKey{}].(*Meter)
	return m
}

// Relay returns the relay of the circuit.
func (m *Meter) Relay() peer.ID { return m.relay }

// Limits returns what the relay stated: bytes in each direction and a time; 0 is no limit.
func (m *Meter) Limits() (data int64, length time.Duration) { return m.data, m.length }

// Left returns what is left of the limits: bytes that this end may send and receive, and the time. Without a limit it is the highest value.
func (m *Meter) Left(now time.Time) (send, receive int64, length time.Duration) {
	send, receive, length = math.MaxInt64, math.MaxInt64, math.MaxInt64
	if m.data > 0 {
		send, receive = max(m.data-m.sent.Load(), 0), max(m.data-m.received.Load(), 0)
	}
	if m.length > 0 {
		length = max(m.length-now.Sub(m.opened), 0)
	}
	return send, receive, length
}

// Retired reports whether the circuit takes no new streams.
func (m *Meter) Retired() bool { return m.retired.Load() }

// Stage returns how much is used.
func (m *Meter) Stage() Stage {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stage
}

// Retire ends the use of the circuit for new streams: the next one dials.
func (m *Meter) Retire() { m.retired.Store(true) }

// Avoid keeps the host from dialing a peer through the relay of the circuit for a while.
func (m *Meter) Avoid(to peer.ID) { m.of.avoid(to, m.relay, avoidFor) }

// AvoidShortly is Avoid for a circuit that failed, for which the peer may be the reason.
func (m *Meter) AvoidShortly(to peer.ID) { m.of.avoid(to, m.relay, avoidShortly) }

// Avoids reports whether the host does not dial an address of a peer for now.
func (m *Meter) Avoids(to peer.ID, a ma.Multiaddr) bool { return m.of.Avoids(to, a) }

// Restore lets the circuit have new streams again, unless it is low.
func (m *Meter) Restore() { m.retired.Store(m.Stage() >= Low) }

// Watch calls f at the beginning of each later stage, in a goroutine of its own, until stop is called. A stage that has begun counts.
func (m *Meter) Watch(f func(Stage)) (stop func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := &f
	m.watchers[key] = struct{}{}
	if m.stage > Fresh {
		go f(m.stage)
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.watchers, key)
	}
}

// add counts bytes of a direction, and reports whether they are within its limit. Those that are not do not count.
func (m *Meter) add(direction *atomic.Int64, n int) bool {
	used := direction.Add(int64(n))
	if m.data == 0 {
		return true
	}
	low, spent := margins(m.data)
	switch left := m.data - used; {
	case left <= 0: // at its limit, the relay ends the direction
		direction.Add(-int64(n))
		m.reach(Spent)
		return false
	case left < spent:
		m.reach(Spent)
	case left < low:
		m.reach(Low)
	}
	return true
}

// reach begins a stage, unless it or a later one has begun.
func (m *Meter) reach(s Stage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stage >= s {
		return
	}
	m.stage = s
	m.retired.Store(true)
	for f := range m.watchers {
		go (*f)(s)
	}
}

// stop ends the timers.
func (m *Meter) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.timers {
		t.Stop()
	}
}

// giveBack closes the circuits without streams that are not used any more: retired ones, and those beside a direct connection. before are those that
// had no streams at the last call, which is due for the time in which both ends learn of the direct connection.
func giveBack(n network.Network, before map[network.Conn]bool) (idle map[network.Conn]bool) {
	idle = map[network.Conn]bool{}
	for _, c := range n.Conns() {
		if !IsCircuit(c.RemoteMultiaddr()) || len(c.GetStreams()) > 0 {
			continue
		}
		m := MeterOf(c)
		direct := slices.ContainsFunc(n.ConnsToPeer(c.RemotePeer()), func(d network.Conn) bool {
			return !d.IsClosed() && !IsCircuit(d.RemoteMultiaddr())
		})
		switch {
		case !direct && (m == nil || !m.Retired()):
		case before[c]:
			_ = c.Close()
		default:
			idle[c] = true
		}
	}
	return idle
}
