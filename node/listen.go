package node

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/lmosd/lmosd/interact"
)

// announced returns the filter of the addresses that peers learn: those the user gave instead of all, without those the
// user excluded and without interfaces that only this machine can reach.
func announced(announce, exclude []string) func([]ma.Multiaddr) []ma.Multiaddr {
	fixed, bridges := parseAddrs(announce), bridgeIPs()
	return func(as []ma.Multiaddr) []ma.Multiaddr {
		if len(fixed) > 0 {
			return fixed
		}
		return slices.DeleteFunc(slices.Clone(as), func(a ma.Multiaddr) bool { return hidden(a, exclude, bridges) })
	}
}

// hidden reports whether a must not be announced: it starts with an excluded prefix, is link-local, or is the address of a
// container bridge.
func hidden(a ma.Multiaddr, exclude []string, bridges map[string]bool) bool {
	s := a.String()
	for _, x := range exclude {
		if strings.HasPrefix(s, x) {
			return true
		}
	}
	ip, err := manet.ToIP(a)
	return err == nil && (ip.IsLinkLocalUnicast() || bridges[ip.String()])
}

// bridgeIPs returns the addresses of this machine's container and virtual machine bridges: every such machine has the same
// ones, so a peer that dials them meets somebody else.
func bridgeIPs() map[string]bool {
	ips := map[string]bool{}
	ifaces, err := net.Interfaces()
	if err != nil {
		return ips
	}
	for _, i := range ifaces {
		if !slices.ContainsFunc([]string{"docker", "br-", "virbr", "veth", "cni", "lxc"}, func(p string) bool { return strings.HasPrefix(i.Name, p) }) {
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

func parseAddrs(ss []string) []ma.Multiaddr {
	var as []ma.Multiaddr
	for _, s := range ss {
		if a, err := ma.NewMultiaddr(s); err == nil {
			as = append(as, a)
		}
	}
	return as
}

// listen opens the addresses. A default port that is busy gives way to a free one, which is said; a configured one that is
// busy is an error of code PortBusy.
func (n *Node) listen() error {
	addrs, err := multiaddrs("listen.p2p", n.opts.Listen)
	if err != nil {
		return err
	}
	err = n.host.Network().Listen(addrs...)
	// Listen succeeds if one address does: a missing one is looked for by hand.
	missing := n.missing(addrs)
	if err == nil && len(missing) == 0 {
		return nil
	}
	if n.opts.ListenExplicit {
		return &interact.Error{Code: interact.PortBusy, Title: "cannot listen on " + joinAddrs(missing),
			Hint: "stop what listens there, or choose another: --listen.p2p /ip4/0.0.0.0/tcp/0", Err: err}
	}
	n.log.Warn("the default port is busy; a free one is taken", "busy", joinAddrs(missing))
	for _, a := range missing {
		if err := n.host.Network().Listen(anyPort(a)); err != nil {
			return &interact.Error{Code: interact.PortBusy, Title: "cannot listen on " + a.String(), Err: err,
				Hint: "choose another address: --listen.p2p /ip4/127.0.0.1/tcp/0"}
		}
	}
	return nil
}

// missing returns the wanted addresses that no listener has.
func (n *Node) missing(wanted []ma.Multiaddr) []ma.Multiaddr {
	have := n.host.Network().ListenAddresses()
	return slices.DeleteFunc(slices.Clone(wanted), func(w ma.Multiaddr) bool {
		return slices.ContainsFunc(have, func(h ma.Multiaddr) bool { return samePort(w, h) })
	})
}

// samePort reports whether the listener have serves the wanted address, whose port 0 stands for any.
func samePort(want, have ma.Multiaddr) bool {
	if len(want) != len(have) {
		return false
	}
	for i := range want {
		w, h := want[i], have[i]
		if w.Protocol().Code != h.Protocol().Code || (w.Value() != h.Value() && w.Value() != "0") {
			return false
		}
	}
	return true
}

// anyPort returns a with port 0.
func anyPort(a ma.Multiaddr) ma.Multiaddr {
	out := make(ma.Multiaddr, 0, len(a))
	for _, c := range a {
		if code := c.Protocol().Code; code == ma.P_TCP || code == ma.P_UDP {
			if z, err := ma.NewComponent(c.Protocol().Name, "0"); err == nil {
				c = *z
			}
		}
		out = append(out, c)
	}
	return out
}

func multiaddrs(key string, ss []string) ([]ma.Multiaddr, error) {
	as := make([]ma.Multiaddr, 0, len(ss))
	for _, s := range ss {
		a, err := ma.NewMultiaddr(s)
		if err != nil {
			return nil, &interact.Error{Code: interact.ConfigInvalid, Title: key + " has an address that is no multiaddr: " + s,
				Hint: "write it like /ip4/0.0.0.0/udp/4667/quic-v1", Err: err}
		}
		as = append(as, a)
	}
	return as, nil
}

func joinAddrs(as []ma.Multiaddr) string {
	ss := make([]string, len(as))
	for i, a := range as {
		ss[i] = a.String()
	}
	return strings.Join(ss, " and ")
}

// hostname is what a node without a name is called.
func hostname() string {
	h, err := os.Hostname()
	if err != nil {
		return "node"
	}
	return h
}
