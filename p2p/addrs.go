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

// announced returns the filter of the addresses that peers learn: those the user gave instead of all, without those the
// user excluded and those that lead peers to somebody else. The error says which of the given ones is no multiaddr.
func announced(o *Options) (func([]ma.Multiaddr) []ma.Multiaddr, error) {
	given, err := multiaddrs("listen.announce", o.Announce)
	if err != nil {
		return nil, err
	}
	for i, a := range given {
		given[i], _ = peer.SplitAddr(a) // Who copies a line of `lmosd id` has the PeerID at its end.
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

// withoutBridges drops the addresses of container bridges, unless nothing but loopback were left: a machine whose only network is
// a bridge, such as a virtual one or a namespace, is reached there or nowhere.
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

// hidden reports whether a must not be announced: it is excluded or begins with what is, or is link-local.
func hidden(a ma.Multiaddr, exclude []string) bool {
	s := a.String()
	for _, x := range exclude {
		// Whole components: /ip4/10.0.0.1 is no part of /ip4/10.0.0.12.
		if x = strings.TrimSuffix(x, "/"); s == x || strings.HasPrefix(s, x+"/") {
			return true
		}
	}
	ip, err := manet.ToIP(a)
	return err == nil && ip.IsLinkLocalUnicast()
}

// private reports whether a is an IP address that the internet does not route. Names and relays are not looked into.
func private(a ma.Multiaddr) bool {
	_, err := manet.ToIP(a)
	return err == nil && !manet.IsPublicAddr(a)
}

// bridgeIPs returns the addresses of this machine's container and virtual machine bridges: every such machine has the same
// ones, so a peer that dials them meets somebody else.
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
