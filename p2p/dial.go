package p2p

import (
	"net/netip"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/lmosd/lmosd/p2p/relay"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

// Delays of dials. A connection through a relay costs a third node, so direct addresses have a head start: a short one if they are private
// addresses of another network, which lead nowhere if a home router is between.
const (
	quicLater    = 30 * time.Millisecond  // QUIC after TCP on a private address
	webLater     = 200 * time.Millisecond // WebSockets after QUIC and TCP
	relayLater   = swarm.RelayDelay
	relayShortly = 50 * time.Millisecond
)

// A ranker orders the addresses of a peer. near reports whether an address is in a network of this machine.
type ranker struct {
	near func(netip.Addr) bool
}

// rank dials TCP before QUIC on private and loopback addresses, which no NAT translates: calls and bulk transfers are faster there, and the
// kernel reports the end of a process at once, where QUIC times out. For other addresses the default order holds, QUIC first, then TCP. WebSockets
// follow. Addresses of relays come last, whatever the address of the relay is.
func (r ranker) rank(addrs []ma.Multiaddr) []network.AddrDelay {
	var direct, web, relayed []ma.Multiaddr
	var later time.Duration
	tcp := false // on a private address
	for _, a := range addrs {
		switch {
		case relay.IsCircuit(a):
			relayed = append(relayed, a)
			continue
		case isWebSocket(a):
			web = append(web, a)
			continue
		case !manet.IsPrivateAddr(a):
			later = relayLater
		default:
			later = max(later, r.headStart(a))
			tcp = tcp || !isQUIC(a)
		}
		direct = append(direct, a)
	}
	ranked := swarm.DefaultDialRanker(direct)
	for i, d := range ranked {
		if tcp && manet.IsPrivateAddr(d.Addr) {
			ranked[i].Delay = 0
			if isQUIC(d.Addr) {
				ranked[i].Delay = quicLater
			}
		}
	}
	ranked, last := after(ranked, web)
	if len(web) > 0 {
		later = max(later, last+relayShortly)
	}
	for _, d := range swarm.DefaultDialRanker(relayed) {
		d.Delay += later
		ranked = append(ranked, d)
	}
	return ranked
}

// after adds the addresses of WebSockets after all others, and returns the delay of the last one. They cost the work of another protocol, and
// lead through networks that permit nothing else.
func after(ranked []network.AddrDelay, web []ma.Multiaddr) ([]network.AddrDelay, time.Duration) {
	var start, last time.Duration
	for _, d := range ranked {
		start = max(start, d.Delay+webLater)
	}
	for _, d := range swarm.DefaultDialRanker(web) {
		d.Delay += start
		last = max(last, d.Delay)
		ranked = append(ranked, d)
	}
	return ranked, last
}

// headStart returns that of a private address.
func (r ranker) headStart(a ma.Multiaddr) time.Duration {
	if ip, ok := ipOf(a); ok && (ip.IsLoopback() || r.near(ip)) {
		return relayLater
	}
	return relayShortly
}

func isQUIC(a ma.Multiaddr) bool {
	_, err := a.ValueForProtocol(ma.P_QUIC_V1)
	return err == nil
}

// ipOf returns the first IP address of a.
func ipOf(a ma.Multiaddr) (netip.Addr, bool) {
	ip, err := manet.ToIP(a)
	if err != nil {
		return netip.Addr{}, false
	}
	addr, ok := netip.AddrFromSlice(ip)
	return addr.Unmap(), ok
}
