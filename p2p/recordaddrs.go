package p2p

import (
	"net/netip"
	"slices"

	"github.com/libp2p/go-libp2p/core/host"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/lmosd/lmosd/p2p/noderecord"
	"github.com/lmosd/lmosd/p2p/relay"
	"github.com/lmosd/lmosd/td"
)

// recordedRelays is the number of addresses through relays for which a record keeps room.
const recordedRelays = 2

// RecordAddrs returns the addresses of a host that fit into the record of a Thing, as texts; see [NodeAddrs].
func RecordAddrs(as []ma.Multiaddr) []string {
	var out []string
	for _, a := range choose(as, td.MaxAddrs) {
		out = append(out, a.String())
	}
	return out
}

// NodeAddrs returns the addresses of a host that fit into its own record, the most reachable first. A machine with several interfaces has more, and
// the system lists loopback first. Two places are for relays, if the host has some. WebSockets come after other direct addresses: they help only
// where a network permits nothing else, and connected peers learn them by identify. Loopback is there only if the host has nothing else.
func NodeAddrs(as []ma.Multiaddr) []ma.Multiaddr {
	addrs := choose(slices.DeleteFunc(slices.Clone(as), func(a ma.Multiaddr) bool { return !noderecord.IsValid(a) }), noderecord.MaxAddrs)
	if i := slices.IndexFunc(addrs, func(a ma.Multiaddr) bool { return remoteness(a) == loopback }); i > 0 {
		addrs = addrs[:i] // they are the last ones
	}
	return addrs
}

// choose returns the addresses that are in a record with room for most.
func choose(as []ma.Multiaddr, most int) []ma.Multiaddr {
	as = slices.Clone(as)
	slices.SortStableFunc(as, func(a, b ma.Multiaddr) int { return remoteness(a) - remoteness(b) })
	relays := 0
	for _, a := range as {
		if relay.IsCircuit(a) {
			relays = min(relays+1, recordedRelays)
		}
	}
	var addrs []ma.Multiaddr
	for _, a := range as {
		room := most
		if remoteness(a) < relayed {
			room -= relays
		}
		if len(addrs) < room && len(a.String()) <= td.MaxAddr {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// The places of web, relayed and loopback addresses in the order of remoteness.
const (
	web      = 2
	relayed  = 3
	loopback = 4
)

// remoteness orders addresses by the number of peers that can use them, best first.
func remoteness(a ma.Multiaddr) int {
	ip, err := manet.ToIP(a)
	switch {
	case err == nil && ip.IsLoopback():
		return loopback
	case relay.IsCircuit(a):
		return relayed
	case isWebSocket(a):
		return web
	case err == nil && !manet.IsPublicAddr(a):
		return 1
	}
	return 0
}

// FullAddrs returns the multiaddrs of h with /p2p.
func FullAddrs(h host.Host) []string {
	var out []string
	for _, a := range h.Addrs() {
		out = append(out, a.String()+"/p2p/"+h.ID().String())
	}
	return out
}

// OnlyLoopback reports whether h announces only loopback addresses although it listens on others.
func OnlyLoopback(announced, listening []ma.Multiaddr) bool {
	more := func(a ma.Multiaddr) bool { return !manet.IsIPLoopback(a) }
	return slices.ContainsFunc(listening, more) && !slices.ContainsFunc(announced, more)
}

// Ranges are prefix lengths of address ranges that are treated as one address; 0 means single addresses.
type Ranges struct{ IPv4, IPv6 int }

// of returns the range of a public address; false if a is not public, is relayed, or has no range.
func (rs Ranges) of(a ma.Multiaddr) (netip.Prefix, bool) {
	if relay.IsCircuit(a) || !manet.IsPublicAddr(a) {
		return netip.Prefix{}, false
	}
	ip, err := manet.ToIP(a)
	if err != nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(ip)
	if addr = addr.Unmap(); !ok {
		return netip.Prefix{}, false
	}
	bits := rs.IPv4
	if addr.Is6() {
		bits = rs.IPv6
	}
	if bits <= 0 {
		return netip.Prefix{}, false
	}
	p, err := addr.Prefix(bits)
	return p, err == nil
}
