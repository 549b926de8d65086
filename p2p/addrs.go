package p2p

import (
	"crypto/tls"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/p2p/oneport"
	"github.com/lmosd/lmosd/p2p/relay"
)

// An announcer selects the addresses that other nodes learn. It is safe for concurrent use.
type announcer struct {
	o      *Options
	given  []ma.Multiaddr // Options.Announce
	listen []ma.Multiaddr
	filter []netip.Prefix
	conf   *tls.Config // of WebSockets; nil: none
	local  interfaces
}

// newAnnouncer returns the announcer of o. The error names a configured address that is not a multiaddr.
func newAnnouncer(o *Options, listen []ma.Multiaddr, filter []netip.Prefix, conf *tls.Config) (*announcer, error) {
	given, err := multiaddrs("listen.announce", o.Announce)
	if err != nil {
		return nil, err
	}
	for i, a := range given {
		given[i], _ = peer.SplitAddr(a) // a line of `lmosd id` ends with the PeerID
	}
	given = slices.DeleteFunc(given, func(a ma.Multiaddr) bool { return isFiltered(a, filter) })
	return &announcer{o: o, given: given, listen: listen, filter: filter, conf: conf}, nil
}

// announce returns the configured addresses instead of those of the host, or the latter without excluded ones and those that lead to other
// machines. It does not change its argument.
func (r *announcer) announce(as []ma.Multiaddr) []ma.Multiaddr {
	if len(r.o.Announce) > 0 {
		return slices.Clone(r.given)
	}
	as = slices.DeleteFunc(slices.Clone(as), func(a ma.Multiaddr) bool {
		return hidden(a, r.o.NoAnnounce) || isFiltered(a, r.filter) || r.o.PublicOnly && private(a)
	})
	bridges, tunnels := r.local.special(time.Now())
	for _, l := range r.listen {
		if ip, ok := ipOf(l); ok { // an address that is configured itself is announced
			delete(bridges, ip)
			delete(tunnels, ip)
		}
	}
	as = without(as, func(_ ma.Multiaddr, ip netip.Addr) bool { return bridges[ip] })
	as = without(as, func(a ma.Multiaddr, ip netip.Addr) bool { return tunnels[ip] && !manet.IsPublicAddr(a) })
	return named(as, r.conf)
}

// without removes the addresses for which f is true, unless only loopback and relays would remain: the only network of a virtual machine or namespace can
// be a bridge, and that of a node a VPN.
func without(as []ma.Multiaddr, f func(ma.Multiaddr, netip.Addr) bool) []ma.Multiaddr {
	isOut := func(a ma.Multiaddr) bool {
		ip, ok := ipOf(a)
		return ok && f(a, ip)
	}
	if !slices.ContainsFunc(as, func(a ma.Multiaddr) bool { return !isOut(a) && !manet.IsIPLoopback(a) && !relay.IsCircuit(a) }) {
		return as
	}
	return slices.DeleteFunc(as, isOut)
}

// named replaces the addresses of WebSockets with TLS that the certificate does not contain by its first name, because dialers check it. Without
// a name they are removed.
func named(as []ma.Multiaddr, conf *tls.Config) []ma.Multiaddr {
	if conf == nil || conf.GetCertificate == nil {
		return as
	}
	cert, err := conf.GetCertificate(&tls.ClientHelloInfo{})
	if err != nil || cert.Leaf == nil {
		return as
	}
	name := slices.IndexFunc(cert.Leaf.DNSNames, func(n string) bool { return !strings.HasPrefix(n, "*") })
	var out []ma.Multiaddr
	for _, a := range as {
		_, ending := splitTCP(a)
		ip, ok := ipOf(a)
		if ok && ending.Equal(oneport.Secure) && cert.Leaf.VerifyHostname(ip.String()) != nil {
			if name < 0 || ip.IsLoopback() {
				continue
			}
			host, err := ma.NewComponent("dns", cert.Leaf.DNSNames[name])
			if err != nil {
				continue
			}
			a = append(ma.Multiaddr{*host}, a[1:]...)
		}
		if !slices.ContainsFunc(out, a.Equal) {
			out = append(out, a)
		}
	}
	return out
}

// prefixes parses the address ranges of a configuration key.
func prefixes(key string, ss []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, s := range ss {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, &interact.Error{Code: interact.ConfigInvalid, Title: key + " contains an invalid address range: " + s,
				Hint: "write it like 10.8.0.0/16", Err: err}
		}
		all = append(all, p.Masked())
	}
	return all, nil
}

// isFiltered reports whether the first IP address of a is in a range.
func isFiltered(a ma.Multiaddr, filter []netip.Prefix) bool {
	ip, ok := ipOf(a)
	return ok && slices.ContainsFunc(filter, func(p netip.Prefix) bool { return p.Contains(ip) })
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

// LeadOutside reports whether an entry of mesh.bootstrap leads out of the local network: to a public address, or to a name.
func LeadOutside(entries []string) bool {
	return slices.ContainsFunc(entries, func(text string) bool {
		a, err := ma.NewMultiaddr(text)
		return strings.HasPrefix(text, "did:") || err == nil && !private(a)
	})
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

// interfacesFor is the time for which the addresses of interfaces are kept: reading them can take milliseconds.
const interfacesFor = 10 * time.Second

// interfaces knows the addresses of this machine at interfaces of containers and tunnels. Such interfaces come and go while the node runs.
type interfaces struct {
	mu               sync.Mutex
	read             time.Time           // owned by mu, as the following
	bridges, tunnels map[netip.Addr]bool // not changed after they are set
}

// special returns the addresses of the bridges of containers and virtual machines, and of tunnels of VPNs. The caller may change the maps.
func (s *interfaces) special(now time.Time) (bridges, tunnels map[netip.Addr]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.read) > interfacesFor {
		s.read = now
		s.bridges, s.tunnels = readInterfaces()
	}
	return maps.Clone(s.bridges), maps.Clone(s.tunnels)
}

// Beginnings of the names of interfaces. All machines with bridges have the same addresses there, so a peer that dials them reaches another
// machine. Tunnels lead to the machines of one VPN only.
var (
	bridgeNames = []string{"docker", "podman", "br-", "virbr", "veth", "cni", "cali", "cilium", "flannel", "kube", "lxc", "lxd", "incus", "vmnet", "vboxnet"}
	tunnelNames = []string{"tun", "tap", "utun", "wg", "tailscale", "zt", "nebula"}
)

func readInterfaces() (bridges, tunnels map[netip.Addr]bool) {
	bridges, tunnels = map[netip.Addr]bool{}, map[netip.Addr]bool{}
	all, _ := net.Interfaces() // without them no address is special
	for _, i := range all {
		into := bridges
		switch {
		case hasName(i, bridgeNames):
		case hasName(i, tunnelNames), i.Flags&net.FlagPointToPoint != 0:
			into = tunnels
		default:
			continue
		}
		addrs, _ := i.Addrs() // the interface may be gone
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				into[p.Addr().Unmap()] = true
			}
		}
	}
	return bridges, tunnels
}

func hasName(i net.Interface, beginnings []string) bool {
	return slices.ContainsFunc(beginnings, func(b string) bool { return strings.HasPrefix(i.Name, b) })
}
