package node

import (
	"net/netip"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/lmosd/lmosd/did"
)

// shareOf names the share of the directory that what a peer brings is charged to: its own; or one for all peers of its address range,
// if it is not trusted and comes from a public address. Keys cost nothing, a range of addresses does. What comes over a relay, a
// private network or loopback says nothing of who has the address.
func (n *Node) shareOf(id did.DID) string {
	if amount, _ := n.trust(id); amount >= 1 {
		return string(id)
	}
	raw, err := id.Peer()
	if err != nil {
		return string(id)
	}
	for _, c := range n.host.Network().ConnsToPeer(peer.ID(raw)) {
		if r, ok := rangeOf(c.RemoteMultiaddr(), n.opts.Ranges); ok && !c.Stat().Limited {
			return r.String()
		}
	}
	return string(id)
}

// Ranges are how long the prefixes of addresses are that count as one; 0 counts no addresses together.
type Ranges struct{ IPv4, IPv6 int }

// rangeOf returns the range that a public address is in; false if it is not public, relayed, or no range is wanted.
func rangeOf(a ma.Multiaddr, rs Ranges) (netip.Prefix, bool) {
	if _, err := a.ValueForProtocol(ma.P_CIRCUIT); err == nil || !manet.IsPublicAddr(a) {
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
