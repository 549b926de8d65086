package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/boundedmap"
	"github.com/lmosd/lmosd/internal/heartbeat"
)

// Options configure [New]. Host, Rank and IsSelf are required.
type Options struct {
	Host host.Host
	// Find yields nodes that offer to relay, besides those that are connected; nil: none.
	Find func(ctx context.Context) iter.Seq[peer.AddrInfo]
	// Rank orders relays, the lowest first.
	Rank func(did.DID) int
	// IsSelf makes the handshake of a connection, and returns an error if its other end is not this node.
	IsSelf func(ctx context.Context, c net.Conn) error
	// Resolve returns the addresses of a DNS name; nil is the resolver of the system.
	Resolve func(ctx context.Context, name string) ([]net.IP, error)
	// Private permits relays with private addresses, for networks without public ones.
	Private bool
	Log     *slog.Logger // nil discards
}

// Wanted is the number of reservations of a node.
const Wanted = 2

// Times of [Reservations].
const (
	attemptFor  = 3 * time.Second  // a reservation, with its proof
	renewBefore = 2 * time.Minute  // before the end of a reservation
	renewLast   = 10 * time.Minute // a relay that has forgotten a reservation, or serves no more, is found by the proof
	renewFirst  = 30 * time.Second // whatever the relay states
	steady      = 5 * time.Minute  // a place that is lost before has failed
	pingEvery   = 3 * time.Second
	pingFor     = time.Second
	maxMisses   = 2 // pings without an answer, after which a relay is replaced
	findFirst   = time.Second
	findMost    = time.Minute
	findOther   = 10 * time.Minute // while both places are in one range of addresses
	failFirst   = time.Second      // until a relay that failed is tried again: it may not know yet who this node is
	failMost    = 10 * time.Minute
	maxFailures = 256
	maxNames    = 2 // DNS names of a relay that are resolved
)

// Reservations keeps the reservations of a node: at relays of its own choice, in different ranges of addresses if possible, each of which is proven
// by a connection to this node itself, watched by pings and replaced when it fails. Its methods are safe for concurrent use.
type Reservations struct {
	o      Options
	update event.Emitter

	found   chan attempt
	pings   chan pinged
	wake    chan struct{}
	seeking bool // owned by Run, as the next two
	next    time.Time
	pause   time.Duration

	mu       sync.Mutex // owns what follows
	places   []*Place
	failures map[peer.ID]*Failure
	trying   peer.ID // the relay of the attempt that is made; empty: none
	again    bool    // Retry was called for it meanwhile
}

// A Place is a reservation at a relay.
type Place struct {
	Relay  did.DID
	Addr   ma.Multiaddr // of this node through the relay
	Since  time.Time
	Until  time.Time
	RTT    time.Duration // of the last ping; 0 is unknown
	Length time.Duration // limit of a circuit; 0 is none
	Data   uint64        // limit of a circuit in each direction, in bytes; 0 is none

	id     peer.ID
	conn   network.Conn // of the reservation, which ends with it
	renew  time.Time
	group  string
	misses int
	failed *Failure // before the reservation; nil: none, or it was renewed since
}

// A Failure is a relay that did not serve this node.
type Failure struct {
	Relay did.DID
	Why   string
	At    time.Time
	Until time.Time // it is not tried again before
}

// An attempt is the result of a search for a relay: one place or several failures.
type attempt struct {
	life     context.Context // of Run
	place    *Place
	failures map[peer.ID]error
}

type pinged struct {
	id  peer.ID
	rtt time.Duration
	err error
}

// New returns the reservations of a host, which has the transport of circuits. Run makes them.
func New(o Options) (*Reservations, error) {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Resolve == nil {
		o.Resolve = func(ctx context.Context, name string) ([]net.IP, error) {
			return net.DefaultResolver.LookupIP(ctx, "ip", name)
		}
	}
	r := &Reservations{o: o, found: make(chan attempt, 1), pings: make(chan pinged, Wanted), wake: make(chan struct{}, 1), pause: findFirst, failures: map[peer.ID]*Failure{}}
	var err error
	r.update, err = o.Host.EventBus().Emitter(new(event.EvtAutoRelayAddrsUpdated), eventbus.Stateful)
	return r, err
}

// Close releases what New has opened, once Run has ended.
func (r *Reservations) Close() error { return r.update.Close() }

// Addrs returns the addresses of this node through its relays.
func (r *Reservations) Addrs() []ma.Multiaddr {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]ma.Multiaddr, len(r.places))
	for i, p := range r.places {
		all[i] = p.Addr
	}
	return all
}

// State returns the reservations, and the relays that failed lately, the newest first.
func (r *Reservations) State() (places []Place, failures []Failure) {
	if r == nil {
		return nil, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.places {
		places = append(places, *p)
	}
	for _, f := range r.failures {
		failures = append(failures, *f)
	}
	slices.SortFunc(failures, func(a, b Failure) int { return b.At.Compare(a.At) })
	return places, failures
}

// Run keeps the reservations until ctx ends.
func (r *Reservations) Run(ctx context.Context) error {
	// Only while they are taken: a full subscription stops the host.
	events, err := r.o.Host.EventBus().Subscribe([]any{new(event.EvtPeerIdentificationCompleted), new(event.EvtPeerProtocolsUpdated),
		new(event.EvtPeerConnectednessChanged)}, eventbus.Name("relay reservations"))
	if err != nil {
		return err
	}
	defer events.Close()
	var work sync.WaitGroup
	defer work.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ticker := time.NewTicker(pingEvery)
	defer ticker.Stop()
	var idle map[network.Conn]bool
	again := time.NewTimer(0)
	defer again.Stop()
	loop := heartbeat.Start(ctx, "relays", pingEvery)
	for {
		r.dropLost()
		if wait, ok := r.seek(ctx, &work, time.Now()); ok {
			again.Reset(wait)
		}
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-events.Out():
			if !ok {
				return nil
			}
		case <-again.C:
		case <-r.wake:
		case a := <-r.found:
			r.seeking = false
			r.take(a, time.Now())
		case p := <-r.pings:
			r.received(p)
		case <-ticker.C:
			loop.Beat()
			r.ping(ctx, &work)
			idle = giveBack(r.o.Host.Network(), idle)
		}
	}
}

// dropLost removes the places at relays that are not connected any more.
func (r *Reservations) dropLost() {
	now, lost := time.Now(), false
	r.mu.Lock()
	for _, p := range slices.Clone(r.places) {
		if !p.conn.IsClosed() && r.o.Host.Network().Connectedness(p.id) == network.Connected && r.serves(p.id) {
			continue
		}
		lost = true
		if now.Sub(p.Since) < steady {
			r.failLocked(p.id, errors.New("it ended the connection, or its service"), now)
		}
		r.removeLocked(p.id)
	}
	r.mu.Unlock()
	if lost {
		r.pause, r.next = findFirst, time.Time{}
		r.announce()
	}
}

// serves reports whether a peer relays, by what it states.
func (r *Reservations) serves(id peer.ID) bool {
	known, err := r.o.Host.Peerstore().SupportsProtocols(id, proto.ProtoIDv2Hop)
	return err == nil && len(known) > 0
}

// removeLocked removes a place.
func (r *Reservations) removeLocked(id peer.ID) {
	r.places = slices.DeleteFunc(r.places, func(p *Place) bool { return p.id == id })
	r.o.Host.ConnManager().Unprotect(id, protection)
}

// protection is the tag of the connections to relays, which the host does not close when it has many.
const protection = "relay"

// addLocked adds a place. Beyond the wanted ones it replaces the newest, if it is in another range of addresses.
func (r *Reservations) addLocked(p *Place) {
	if len(r.places) >= Wanted {
		if slices.ContainsFunc(r.places, func(old *Place) bool { return old.group == p.group }) {
			r.o.Host.ConnManager().Unprotect(p.id, protection)
			return
		}
		r.removeLocked(r.places[len(r.places)-1].id)
	}
	r.places = append(r.places, p)
}

// failLocked records that a relay failed. It is called before the place there is removed.
func (r *Reservations) failLocked(id peer.ID, err error, now time.Time) {
	old := r.failures[id]
	if i := r.indexLocked(id); i >= 0 {
		old = r.places[i].failed
	}
	pause := failFirst
	if old != nil {
		pause = min(2*old.Until.Sub(old.At), failMost)
	}
	boundedmap.Put(&r.failures, id, &Failure{did.OfPeer(id), err.Error(), now, now.Add(pause)}, maxFailures,
		func(f *Failure) bool { return now.After(f.Until.Add(failMost)) })
}

func (r *Reservations) indexLocked(id peer.ID) int {
	return slices.IndexFunc(r.places, func(p *Place) bool { return p.id == id })
}

// Retry lets a relay that failed be tried again now: what it thinks of this node may have changed.
func (r *Reservations) Retry(id peer.ID) {
	if r == nil {
		return
	}
	r.mu.Lock()
	failed := r.failures[id] != nil
	delete(r.failures, id)
	r.again = r.again || id == r.trying
	r.mu.Unlock()
	if failed {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// announce tells the host that its addresses have changed.
func (r *Reservations) announce() {
	if err := r.update.Emit(event.EvtAutoRelayAddrsUpdated{RelayAddrs: r.Addrs()}); err != nil {
		r.o.Log.Debug("addresses of relays not announced", "err", err)
	}
}

// seek starts to make or renew a reservation, if one is missing. ok is true if it must be called again after a time.
func (r *Reservations) seek(ctx context.Context, work *sync.WaitGroup, now time.Time) (wait time.Duration, ok bool) {
	if r.seeking {
		return 0, false
	}
	due := r.due(now)
	used, full := r.groups()
	if due == nil && full && len(used) >= Wanted {
		return renewFirst, true
	}
	var connected []candidate
	if due == nil {
		connected = r.connected(now, used, full)
	}
	if due == nil && len(connected) == 0 && now.Before(r.next) {
		return r.untilRetry(r.next.Sub(now), now), true
	}
	r.seeking = true
	search := due == nil && len(connected) == 0
	switch {
	case search && full: // only for another range of addresses
		r.next = now.Add(findOther)
	case search:
		r.next = now.Add(r.pause)
		r.pause = min(2*r.pause, findMost)
	}
	work.Go(func() {
		a := attempt{failures: map[peer.ID]error{}, life: ctx}
		ctx, cancel := context.WithTimeout(ctx, 2*attemptFor) // a renewal may be due
		defer cancel()
		switch {
		case due != nil:
			r.try(ctx, &a, peer.AddrInfo{ID: due.id})
		case !search:
			r.tryAll(ctx, &a, connected)
		case r.o.Find != nil:
			r.search(ctx, &a, used, full)
		}
		r.found <- a // it has room for the one attempt
	})
	return 0, false
}

// untilRetry returns the time until a connected relay that failed may be tried again, at most most.
func (r *Reservations) untilRetry(most time.Duration, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, f := range r.failures {
		if now.Before(f.Until) && r.o.Host.Network().Connectedness(id) == network.Connected {
			most = min(most, f.Until.Sub(now))
		}
	}
	return most
}

// due returns a place that must be renewed now, or nil.
func (r *Reservations) due(now time.Time) *Place {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.places, func(p *Place) bool { return now.After(p.renew) })
	if i < 0 {
		return nil
	}
	return r.places[i]
}

// A candidate is a relay that may be tried.
type candidate struct {
	peer.AddrInfo
	rank   int
	groups []string // ranges of its addresses; one that is connected has one
	rtt    time.Duration
}

// isOther reports whether a candidate has an address in a range that is not used.
func (c *candidate) isOther(used map[string]bool) bool {
	return slices.ContainsFunc(c.groups, func(g string) bool { return g != "" && !used[g] })
}

// order sorts candidates, the best first: the first place is that of the lowest rank; the second prefers another range of addresses. If both places
// are taken, only another range is better than what there is.
func order(all []candidate, used map[string]bool, full bool) []candidate {
	if full {
		all = slices.DeleteFunc(all, func(c candidate) bool { return !c.isOther(used) })
	}
	slices.SortStableFunc(all, func(a, b candidate) int {
		group := 0
		if len(used) > 0 {
			group = boolCompare(!a.isOther(used), !b.isOther(used))
		}
		return cmp.Or(group, cmp.Compare(a.rank, b.rank), cmp.Compare(a.rtt, b.rtt))
	})
	return all
}

// connected returns the connected relays that may be tried, the best first.
func (r *Reservations) connected(now time.Time, used map[string]bool, full bool) []candidate {
	n, book := r.o.Host.Network(), r.o.Host.Peerstore()
	var all []candidate
	for _, id := range n.Peers() {
		if n.Connectedness(id) == network.Connected && r.may(id, now) && r.isPlaced(id) && r.serves(id) {
			all = append(all, candidate{peer.AddrInfo{ID: id}, r.o.Rank(did.OfPeer(id)), []string{r.groupOf(id)}, book.LatencyEWMA(id)})
		}
	}
	return order(all, used, full)
}

// isPlaced reports whether a connected node may have an address that others can use.
func (r *Reservations) isPlaced(id peer.ID) bool {
	c := r.connOf(id)
	return c != nil && (r.o.Private || manet.IsPublicAddr(c.RemoteMultiaddr()))
}

func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// groups returns the ranges of the relays in use, and whether there are as many as wanted.
func (r *Reservations) groups() (used map[string]bool, full bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	used = map[string]bool{}
	for _, p := range r.places {
		used[p.group] = true
	}
	return used, len(r.places) >= Wanted
}

func (r *Reservations) groupOf(id peer.ID) string {
	if c := r.connOf(id); c != nil {
		return group(c.RemoteMultiaddr())
	}
	return ""
}

// connOf returns a direct connection to a peer, one that this node dialed if there is one, or nil.
func (r *Reservations) connOf(id peer.ID) (best network.Conn) {
	for _, c := range r.o.Host.Network().ConnsToPeer(id) {
		if !IsCircuit(c.RemoteMultiaddr()) && (best == nil || c.Stat().Direction == network.DirOutbound) {
			best = c
		}
	}
	return best
}

// may reports whether a relay may be tried: it is not in use, did not fail lately, and it is a node.
func (r *Reservations) may(id peer.ID, now time.Time) bool {
	node := did.OfPeer(id)
	if id == r.o.Host.ID() || node == "" {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.failures[id]; f != nil && now.Before(f.Until) {
		return false
	}
	return !slices.ContainsFunc(r.places, func(p *Place) bool { return p.id == id })
}

// search looks for relays that are not connected: any node can state that it is one, so the order is arbitrary but for rank and range.
func (r *Reservations) search(ctx context.Context, a *attempt, used map[string]bool, full bool) {
	finding, cancel := context.WithTimeout(ctx, attemptFor)
	defer cancel()
	var all []candidate
	for ai := range r.o.Find(finding) {
		if r.may(ai.ID, time.Now()) {
			c := candidate{AddrInfo: ai, rank: r.o.Rank(did.OfPeer(ai.ID))}
			for _, at := range ai.Addrs {
				c.groups = append(c.groups, group(at))
			}
			all = append(all, c)
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	r.tryAll(ctx, a, order(all, used, full))
}

// tryAll tries relays in their order until one works. Most may be unreachable, and those that are connected silent: the first is probed alone, then two
// at once, then four, and so on.
func (r *Reservations) tryAll(ctx context.Context, a *attempt, all []candidate) {
	for n := 1; len(all) > 0; n *= 2 {
		some := all[:min(n, len(all))]
		all = all[len(some):]
		errs := make([]error, len(some))
		var work sync.WaitGroup
		for i, c := range some {
			work.Go(func() { errs[i] = r.probe(ctx, c.AddrInfo) })
		}
		work.Wait()
		for i, c := range some {
			switch {
			case ctx.Err() != nil:
				return
			case errs[i] != nil:
				a.failures[c.ID] = errs[i]
			case r.try(ctx, a, c.AddrInfo):
				return
			}
		}
	}
}

// probe connects to a relay directly, or pings it over its connection.
func (r *Reservations) probe(ctx context.Context, ai peer.AddrInfo) error {
	ctx, cancel := context.WithTimeout(network.WithForceDirectDial(ctx, "relay"), DialTimeout)
	defer cancel()
	if c := r.connOf(ai.ID); c != nil {
		return pingOver(ctx, c)
	}
	return r.o.Host.Connect(ctx, ai)
}

// try makes a reservation at a relay, and reports whether it worked.
func (r *Reservations) try(ctx context.Context, a *attempt, ai peer.AddrInfo) bool {
	r.mu.Lock()
	r.trying, r.again = ai.ID, false
	r.mu.Unlock()
	p, err := r.reserve(ctx, ai)
	r.mu.Lock()
	again := r.again
	r.trying = ""
	r.mu.Unlock()
	if err != nil && again {
		p, err = r.reserve(ctx, ai)
	}
	if err != nil {
		if a.life.Err() == nil {
			a.failures[ai.ID] = err
		}
		return false
	}
	a.place = p
	return true
}

// reserve makes and proves a reservation.
func (r *Reservations) reserve(ctx context.Context, ai peer.AddrInfo) (*Place, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptFor)
	defer cancel()
	got, err := client.Reserve(network.WithForceDirectDial(ctx, "relay"), r.o.Host, ai)
	if err != nil {
		return nil, reserveError(err)
	}
	c := r.connOf(ai.ID)
	if c == nil {
		return nil, errors.New("the connection to the relay has ended")
	}
	addr, err := r.addrAt(ctx, ai.ID, c, got.Addrs)
	if err != nil {
		return nil, err
	}
	if err := r.prove(ctx, ai.ID); err != nil {
		return nil, fmt.Errorf("the relay does not connect this node: %w", err)
	}
	now := time.Now()
	return &Place{conn: c, renew: now.Add(min(max(got.Expiration.Sub(now)-renewBefore, renewFirst), renewLast)),
		Relay: did.OfPeer(ai.ID), Addr: addr, Since: now, Until: got.Expiration, RTT: r.o.Host.Peerstore().LatencyEWMA(ai.ID),
		Length: got.LimitDuration, Data: got.LimitData, id: ai.ID, group: group(c.RemoteMultiaddr())}, nil
}

// reserveError returns the error of a failed reservation with the reason of the relay.
func reserveError(err error) error {
	var refused client.ReservationError
	if !errors.As(err, &refused) {
		return err
	}
	switch refused.Status {
	case pb.Status_PERMISSION_DENIED:
		return errors.New("its policy refuses this node")
	case pb.Status_RESERVATION_REFUSED, pb.Status_RESOURCE_LIMIT_EXCEEDED:
		return errors.New("it has no room for this node")
	}
	return err
}

// addrAt chooses the address of this node at a relay, among those that the relay names: the one of the connection in use, or another with the IP
// address of the connection, or else a DNS name of that address. Other ones may be those of another host.
func (r *Reservations) addrAt(ctx context.Context, id peer.ID, c network.Conn, named []ma.Multiaddr) (best ma.Multiaddr, err error) {
	ip, err := manet.ToIP(c.RemoteMultiaddr())
	if err != nil {
		return nil, err
	}
	var names []ma.Multiaddr
	for _, a := range named {
		transport, relay := peer.SplitAddr(a)
		if relay != id || transport == nil || IsCircuit(transport) || !manet.IsPublicAddr(transport) && !r.o.Private {
			continue
		}
		if at, err := manet.ToIP(transport); err == nil && at.Equal(ip) && (best == nil || transport.Equal(c.RemoteMultiaddr())) {
			best = transport
		} else if nameIn(transport) != "" && len(names) < maxNames {
			names = append(names, transport)
		}
	}
	for i := 0; best == nil && i < len(names); i++ {
		if all, err := r.o.Resolve(ctx, nameIn(names[i])); err == nil && slices.ContainsFunc(all, ip.Equal) {
			best = names[i]
		}
	}
	if best == nil {
		return nil, errors.New("the relay names no address that others can use")
	}
	suffix, err := ma.NewMultiaddr("/p2p/" + id.String() + "/p2p-circuit")
	if err != nil {
		return nil, err
	}
	return best.Encapsulate(suffix), nil
}

// nameIn returns the DNS name that begins an address, or "".
func nameIn(a ma.Multiaddr) string {
	if len(a) == 0 {
		return ""
	}
	switch first := &a[0]; first.Protocol().Code {
	case ma.P_DNS, ma.P_DNS4, ma.P_DNS6:
		return first.Value()
	}
	return ""
}

// take takes the result of an attempt.
func (r *Reservations) take(a attempt, now time.Time) {
	r.mu.Lock()
	before := len(r.places)
	for id, err := range a.failures {
		r.failLocked(id, err, now)
		r.removeLocked(id)
	}
	if p := a.place; p != nil {
		r.o.Host.ConnManager().Protect(p.id, protection)
		if i := r.indexLocked(p.id); i >= 0 {
			p.Since = r.places[i].Since
			r.places[i] = p
		} else {
			p.failed = r.failures[p.id] // a relay that soon ends its service waits for longer each time
			r.addLocked(p)
		}
		delete(r.failures, p.id)
		r.pause = findFirst
	}
	changed := a.place != nil || len(r.places) != before
	if len(r.places) < before {
		r.pause, r.next = findFirst, time.Time{}
	}
	r.mu.Unlock()
	for id, err := range a.failures {
		r.o.Log.Debug("relay not used", "relay", did.ShortPeer(id), "err", err)
	}
	if a.place != nil && now.Sub(a.place.Since) < renewFirst {
		r.o.Log.Debug("reachable through a relay", "relay", a.place.Relay.Short(), "addr", a.place.Addr)
	}
	if changed {
		r.announce()
	}
}

// ping pings the relays in use.
func (r *Reservations) ping(ctx context.Context, work *sync.WaitGroup) {
	r.mu.Lock()
	all := slices.Clone(r.places)
	r.mu.Unlock()
	for _, p := range all {
		work.Go(func() {
			one, cancel := context.WithTimeout(network.WithNoDial(ctx, "relay ping"), pingFor)
			defer cancel()
			res, ok := <-ping.Ping(one, r.o.Host, p.id)
			if !ok {
				res.Error = context.DeadlineExceeded
			}
			select {
			case r.pings <- pinged{p.id, res.RTT, res.Error}:
			case <-ctx.Done():
			}
		})
	}
}

// received takes the result of a ping. A relay that is silent twice is disconnected: the next call does not wait for it.
func (r *Reservations) received(p pinged) {
	silent := false
	r.mu.Lock()
	for _, place := range r.places {
		switch {
		case place.id != p.id:
		case p.err == nil:
			place.misses, place.RTT = 0, p.rtt
		default:
			place.misses++
			silent = place.misses >= maxMisses
		}
	}
	r.mu.Unlock()
	if silent {
		r.o.Log.Info("relay is silent", "relay", did.ShortPeer(p.id))
		_ = r.o.Host.Network().ClosePeer(p.id)
		r.take(attempt{failures: map[peer.ID]error{p.id: errors.New("it did not answer pings")}}, time.Now())
	}
}
