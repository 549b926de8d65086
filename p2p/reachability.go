package p2p

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/network"
	basichost "github.com/libp2p/go-libp2p/p2p/host/basic"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"
	"github.com/libp2p/go-libp2p/p2p/host/observedaddrs"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/internal/boundedmap"
	"github.com/lmosd/lmosd/internal/heartbeat"
	"github.com/lmosd/lmosd/p2p/relay"
)

// Times and limits of a reachability.
const (
	judgeEvery = 30 * time.Second // for port mappings, and for proofs that end
	provenFor  = 24 * time.Hour   // after an inbound connection
	sentFor    = 24 * time.Hour   // routers keep the state of a connection for less
	maxSent    = 4096
)

// A reachability determines whether others can dial this node. AutoNAT alone is not believed: a router that filters by address lets the peers dial
// back that the node has sent to, and nobody else. A public address is proven by an interface that has it, by the router, which has acknowledged a
// mapping, or by an inbound connection from an address to which this node has not sent. It is safe for concurrent use.
type reachability struct {
	o        *Options
	host     *basichost.BasicHost
	listen   []ma.Multiaddr // as configured
	announce func([]ma.Multiaddr) []ma.Multiaddr
	mapper   basichost.NATManager // nil: no port mappings
	observed basichost.ObservedAddrsManager
	places   func() []ma.Multiaddr // the addresses of this node at its relays
	serve    func(on bool)
	update   event.Emitter
	wake     chan struct{}

	mu          sync.Mutex // owns what follows
	sent        map[netip.Addr]time.Time
	sentTooMany time.Time              // until then, sent is not complete
	inbound     map[endpoint]time.Time // the last proof
	unreachable []ma.Multiaddr         // by AutoNAT, as the next
	reachable   []ma.Multiaddr
	mapped      []mapping
	state       network.Reachability // the last one of the event
	since       time.Time
}

// An endpoint is what a router translates for this node: the addresses of one IP version and transport.
type endpoint struct{ ip6, udp bool }

// A mapping is a port of the router that leads to this node.
type mapping struct{ local, external ma.Multiaddr }

// newReachability returns the reachability of h, which has a network and no host yet.
func (h *Host) newReachability(announce func([]ma.Multiaddr) []ma.Multiaddr) *reachability {
	r := &reachability{o: &h.o, listen: h.listen, announce: announce, places: func() []ma.Multiaddr { return h.places.Load().Addrs() },
		serve: h.serve, wake: make(chan struct{}, 1), inbound: map[endpoint]time.Time{}}
	h.gater.sent = r.noteSent
	h.swarm.Notify(r)
	return r
}

// openReachability completes the reachability of h, which has a host now.
func (h *Host) openReachability(observed *observedaddrs.Manager) (err error) {
	h.reach.host, h.reach.observed = h.BasicHost, observed
	if h.reach.update, err = h.EventBus().Emitter(new(event.EvtLocalReachabilityChanged), eventbus.Stateful); err != nil {
		return err
	}
	h.closers = append(h.closers, h.reach.update.Close, func() error { h.serve(false); return nil })
	return nil
}

// endpointOf returns the endpoint of an address; false if it is not that of a direct connection.
func endpointOf(a ma.Multiaddr) (endpoint, bool) {
	ip, ok := ipOf(a)
	_, err := a.ValueForProtocol(ma.P_UDP)
	return endpoint{ip.Is6(), err == nil}, ok && !relay.IsCircuit(a)
}

// noteSent notes that this node sends to an address, from which a connection is no proof for a while.
func (r *reachability) noteSent(to netip.Addr) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	expired := func(at time.Time) bool { return now.Sub(at) > sentFor }
	before := len(r.sent)
	boundedmap.Put(&r.sent, to, now, maxSent, expired)
	if before >= maxSent && len(r.sent) >= maxSent {
		r.sentTooMany = now.Add(sentFor) // one that counts may have been dropped
	}
}

// noteInbound notes a connection that proves its endpoint.
func (r *reachability) noteInbound(c network.Conn) {
	from, public := ipOf(c.RemoteMultiaddr())
	e, direct := endpointOf(c.RemoteMultiaddr())
	if c.Stat().Direction != network.DirInbound || !public || !direct || !manet.IsPublicAddr(c.RemoteMultiaddr()) {
		return
	}
	now := time.Now()
	r.mu.Lock()
	at, sent := r.sent[from]
	proof := now.After(r.sentTooMany) && (!sent || now.Sub(at) > sentFor)
	first := proof && now.Sub(r.inbound[e]) > provenFor
	if proof {
		r.inbound[e] = now
	}
	r.mu.Unlock()
	if first {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// isPlaced reports whether others can reach this node by what is known before it listens: at a public address that it has, or that is configured, or
// at a private one in a network that has no others.
func (r *reachability) isPlaced() bool {
	configured := r.announce(nil)
	return slices.ContainsFunc(r.listen, hasPublic) || slices.ContainsFunc(configured, manet.IsPublicAddr) ||
		r.o.NAT.PrivateRelays && len(r.listen)+len(configured) > 0
}

// run follows the reachability until ctx ends.
func (r *reachability) run(ctx context.Context) error {
	events, err := r.host.EventBus().Subscribe([]any{new(event.EvtHostReachableAddrsChanged), new(event.EvtLocalAddressesUpdated)},
		eventbus.Name("reachability"), eventbus.BufSize(256))
	if err != nil {
		return err
	}
	defer events.Close()
	ticker := time.NewTicker(judgeEvery)
	defer ticker.Stop()
	loop := heartbeat.Start(ctx, "reachability", judgeEvery)
	for {
		r.refresh()
		loop.Beat()
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-r.wake:
		case e, ok := <-events.Out():
			if !ok {
				return nil
			}
			if checked, ok := e.(event.EvtHostReachableAddrsChanged); ok {
				r.mu.Lock()
				r.reachable, r.unreachable = checked.Reachable, checked.Unreachable
				r.mu.Unlock()
			}
		}
	}
}

// refresh determines the reachability again. A change starts or stops the relay, and is emitted afterwards: the DHT then asks whether this node is
// one. Nodes that publish private addresses serve the DHT until they have a place at a public relay: their network may have no public address.
func (r *reachability) refresh() {
	var mapped []mapping
	if r.mapper != nil {
		for _, l := range r.host.Network().ListenAddresses() {
			if external := r.mapper.GetMapping(l); external != nil { // it may wait for the router
				mapped = append(mapped, mapping{l, external})
			}
		}
	}
	r.mu.Lock()
	r.mapped = mapped
	r.mu.Unlock()
	open := r.isOpen()
	state := network.ReachabilityUnknown
	switch {
	case open:
		state = network.ReachabilityPublic
	case r.o.PublicOnly || slices.ContainsFunc(r.places(), manet.IsPublicAddr):
		state = network.ReachabilityPrivate
	}
	r.serve(open)
	r.mu.Lock()
	changed := state != r.state || r.since.IsZero()
	if changed {
		r.state, r.since = state, time.Now()
	}
	r.mu.Unlock()
	if !changed {
		return
	}
	if err := r.update.Emit(event.EvtLocalReachabilityChanged{Reachability: state}); err != nil {
		r.o.Log.Debug("reachability not announced", "err", err)
	}
}

// isOpen reports whether others can dial this node.
func (r *reachability) isOpen() bool {
	if len(r.host.Network().ListenAddresses()) == 0 {
		return r.isPlaced()
	}
	return slices.ContainsFunc(r.addrs(), func(a api.NetAddr) bool { return a.Usable })
}

// addrs returns the direct addresses of this node, with what is known about each.
func (r *reachability) addrs() []api.NetAddr {
	all := r.announce(r.host.AllAddrs())
	interfaces := interfaceIPs()
	announced := r.host.Addrs()
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []api.NetAddr
	for _, a := range all {
		if relay.IsCircuit(a) {
			continue
		}
		own := api.NetAddr{Addr: a.String(), Source: api.SourceConfigured, Announced: ma.Contains(announced, a)}
		ip, _ := ipOf(a)
		e, _ := endpointOf(a)
		switch {
		case slices.ContainsFunc(r.mapped, func(m mapping) bool { return m.external.Equal(a) }):
			own.Source = api.SourceMapping
		case interfaces[ip]:
			own.Source = api.SourceInterface
		case len(r.o.Announce) == 0:
			own.Source = api.SourceObserved
		}
		switch {
		case ma.Contains(r.reachable, a):
			own.Checked = api.CheckedReachable
		case ma.Contains(r.unreachable, a):
			own.Checked = api.CheckedUnreachable
		}
		public := manet.IsPublicAddr(a)
		switch {
		case public && now.Sub(r.inbound[e]) <= provenFor:
			own.Proof = api.ProofInbound
		case (public || r.o.NAT.PrivateRelays) && own.Source != api.SourceObserved:
			own.Proof = own.Source
		}
		// A second router can be in front of the one that has acknowledged a mapping. AutoNAT checks public addresses only.
		doubtful := own.Proof == api.SourceMapping && public && own.Checked != api.CheckedReachable
		own.Usable = own.Proof != "" && own.Checked != api.CheckedUnreachable && !doubtful
		out = append(out, own)
	}
	return out
}

// interfaceIPs returns the IP addresses of this machine.
func interfaceIPs() map[netip.Addr]bool {
	ips := map[netip.Addr]bool{}
	all, _ := net.InterfaceAddrs() // without them none is known
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			ips[p.Addr()] = true
		}
	}
	return ips
}

// natKind determines how the router translates the addresses of one transport, by what peers have seen of this node. Mappings on request are not
// counted: they have ports of their own.
func (r *reachability) natKind(udp bool) string {
	if r.observed == nil {
		return api.NATUnknown
	}
	r.mu.Lock()
	requested := slices.Clone(r.mapped)
	r.mu.Unlock()
	of := func(observers int) (translated, own []ma.Multiaddr) {
		interfaces := interfaceIPs()
		for _, a := range ma.Unique(r.observed.Addrs(observers)) {
			e, _ := endpointOf(a)
			ip, ok := ipOf(a)
			switch {
			case !ok || e.udp != udp || slices.ContainsFunc(requested, func(m mapping) bool { return m.external.Equal(a) }):
			case interfaces[ip]:
				own = append(own, a)
			default:
				translated = append(translated, a)
			}
		}
		return translated, own
	}
	translated, own := of(1)
	same, _ := of(2)
	switch ports := map[netip.Addr]int{}; {
	case len(same) > 0:
		return api.NATIndependent
	case len(translated) == 0 && len(own) > 0:
		return api.NATNone
	default:
		for _, a := range translated {
			ip, _ := ipOf(a)
			if ports[ip]++; ports[ip] > 1 {
				return api.NATDependent
			}
		}
	}
	return api.NATUnknown
}

// Connected implements [network.Notifiee].
func (r *reachability) Connected(_ network.Network, c network.Conn) { r.noteInbound(c) }

// Disconnected implements [network.Notifiee].
func (r *reachability) Disconnected(network.Network, network.Conn) {}

// Listen implements [network.Notifiee].
func (r *reachability) Listen(network.Network, ma.Multiaddr) {}

// ListenClose implements [network.Notifiee].
func (r *reachability) ListenClose(network.Network, ma.Multiaddr) {}
