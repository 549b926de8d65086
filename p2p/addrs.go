package p2p

import (
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

// announced returns the filter of the advertised addresses: the configured ones instead of all, without excluded ones and those
// that lead to other machines. The error names a configured address that is not a multiaddr.
func announced(o *Options) (func([]ma.Multiaddr) []ma.Multiaddr, error) {
	given, err := multiaddrs("listen.announce", o.Announce)
	if err != nil {
		return nil, err
	}
	for i, a := range given {
		given[i], _ = peer.SplitAddr(a) // a line of `lmosd id` ends with the PeerID
	}
	bridges := bridgeIPs()
	return func(as []ma.Multiaddr) []ma.Multiaddr {
		if len(given) > 0 {
			return slices.Clone(given)
		}
		return withoutBridges(slices.DeleteFunc(slices.Clone(as), func(a ma.Multiaddr) bool {
			return hidden(a, o.NoAnnounce) || o.PublicOnly && private(a)
		}), bridges)
	}, nil
}

// withoutBridges removes the addresses of container bridges, unless only loopback would remain: the only network of a virtual
// machine or namespace can be a bridge.
func withoutBridges(as []ma.Multiaddr, bridges map[string]bool) []ma.Multiaddr {
	isBridge := func(a ma.Multiaddr) bool {
		ip, err := manet.ToIP(a)
		return err == nil && bridges[ip.String()]
	}
	if !slices.ContainsFunc(as, func(a ma.Multiaddr) bool { return !isBridge(a) && !manet.IsIPLoopback(a) }) {
		return as
	}
	return slices.DeleteFunc(as, isBridge)
}

// hidden reports whether a must not be announced: it has an excluded prefix, or is link-local.
func hidden(a ma.Multiaddr, exclude []string) bool {
	s := a.String()
	for _, x := range exclude {
		// Whole components: /ip4/10.0.0.1 is not a prefix of /ip4/10.0.0.12.
		if x = strings.TrimSuffix(x, "/"); s == x || strings.HasPrefix(s, x+"/") {
			return true
		}
	}
	ip, err := manet.ToIP(a)
	return err == nil && ip.IsLinkLocalUnicast()
}

// private reports whether a is an IP address that is not routed on the internet. Names and relays are not resolved.
func private(a ma.Multiaddr) bool {
	_, err := manet.ToIP(a)
	return err == nil && !manet.IsPublicAddr(a)
}

// hasPublic reports whether a listening address covers a public address of this machine.
func hasPublic(listen ma.Multiaddr) bool {
	ip, ok := ipOf(listen)
	if !ok || !ip.IsUnspecified() {
		return manet.IsPublicAddr(listen)
	}
	all, _ := net.InterfaceAddrs()
	return slices.ContainsFunc(all, func(a net.Addr) bool {
		m, err := manet.FromNetAddr(a)
		return err == nil && manet.IsPublicAddr(m)
	})
}

// isNear reports whether an address is in a network of an interface of this machine.
func isNear(ip netip.Addr) bool {
	all, _ := net.InterfaceAddrs() // without them no address is near
	return slices.ContainsFunc(all, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Contains(ip)
	})
}

// bridgeIPs returns the addresses of the container and virtual machine bridges of this machine. All such machines have the same
// ones, so a peer that dials them reaches another machine.
func bridgeIPs() map[string]bool {
	ips := map[string]bool{}
	ifaces, err := net.Interfaces()
	if err != nil {
		return ips
	}
	kinds := []string{"docker", "br-", "virbr", "veth", "cni", "lxc"}
	for _, i := range ifaces {
		if !slices.ContainsFunc(kinds, func(kind string) bool { return strings.HasPrefix(i.Name, kind) }) {
			continue
		}
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				ips[p.Addr().String()] = true
			}
		}
	}
	return ips
}
