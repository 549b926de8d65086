package nat

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// hostAddr is the address of each host behind a router, as in life.
const hostAddr = "192.168.1.2"

// A Machine is a host in a namespace of its own: with public addresses, or behind routers.
type Machine struct {
	*namespace
	addrs   []netip.Addr // that the cloud forwards to it, or to its router
	routers []*router    // from the host to the cloud
}

// A router is a namespace with the device wan, towards the cloud, and the device lan.
type router struct {
	*namespace
	kind     Kind
	host     string // address of the host, or of the next router
	rebooted bool
}

// public makes a machine with public addresses in the cloud.
func (c *Cloud) public(addrs ...netip.Addr) (*Machine, error) {
	n, err := newNamespace()
	if err != nil {
		return nil, err
	}
	m := &Machine{namespace: n, addrs: addrs}
	device, err := n.tun(addrs...)
	if err != nil {
		return nil, errors.Join(err, n.close())
	}
	c.Attach(device, addrs...)
	return m, nil
}

// behind makes a machine behind routers, the one of the machine first, the one in the cloud last, which has the address at. They are not verified.
func (c *Cloud) behind(at netip.Addr, kinds ...Kind) (*Machine, error) {
	outer, err := c.public(at)
	if err != nil {
		return nil, err
	}
	m := &Machine{addrs: []netip.Addr{at}}
	upper, net := outer.namespace, len(kinds)
	for i := len(kinds) - 1; i >= 0; i, net = i-1, net-1 {
		r := &router{namespace: upper, kind: kinds[i], host: fmt.Sprintf("192.168.%d.2", net)}
		m.routers = append([]*router{r}, m.routers...)
		below, name := (*namespace)(nil), "wan"
		if i == 0 {
			name = "eth0"
		}
		if below, err = newNamespace(); err != nil {
			return nil, errors.Join(err, m.close())
		}
		m.namespace = below
		if err := r.serve(below, name); err != nil {
			return nil, errors.Join(err, m.close())
		}
		upper = below
	}
	return m, nil
}

// close releases the namespaces. Their sockets and processes keep them.
func (m *Machine) close() error {
	var err error
	if m.namespace != nil {
		err = m.namespace.close()
	}
	for _, r := range m.routers {
		err = errors.Join(err, r.close())
	}
	return err
}

// serve connects a namespace to the lan of the router, by its device name, and starts the translation.
func (r *router) serve(below *namespace, name string) error {
	gateway := strings.TrimSuffix(r.host, "2") + "1"
	if err := r.ip(
		fmt.Sprintf("link add lan type veth peer name %s netns %s", name, below.path()),
		fmt.Sprintf("address add %s/24 dev lan", gateway),
		"link set lan up"); err != nil {
		return err
	}
	if err := below.ip(
		fmt.Sprintf("address add %s/24 dev %s", r.host, name),
		fmt.Sprintf("link set %s up", name),
		fmt.Sprintf("route add default via %s", gateway)); err != nil {
		return err
	}
	if err := r.set("ipv4/ip_forward=1"); err != nil {
		return err
	}
	return r.load()
}

// reboot deletes the state of the router, which then maps to other ports.
func (r *router) reboot() error {
	r.rebooted = true
	return errors.Join(r.load(), r.forget())
}

// load replaces the rules of the router by those of its kind.
func (r *router) load() error {
	return r.run("flush ruleset\n"+r.rules(), "nft", "-f", "-")
}

// rules returns the rules for nft. An unwanted packet from outside is dropped before it becomes a connection of the router itself: otherwise
// the flow of the host to the same peer finds its port taken, and a port-restricted router turns symmetric.
func (r *router) rules() string {
	blocked, inward, seen, masquerade := "", "", "", "masquerade"
	switch r.kind {
	case FullCone:
		inward = "iifname wan meta l4proto { tcp, udp } dnat ip to " + r.host
	case AddressRestricted:
		// The set has the flows by the port before translation: the masquerade keeps it.
		seen = `	set seen { type ipv4_addr . inet_proto . inet_service; flags dynamic,timeout; timeout 5m; }
	chain remember { type filter hook postrouting priority 90;
		oifname wan meta l4proto { tcp, udp } update @seen { ip daddr . meta l4proto . th sport }
	}
`
		inward = "iifname wan ip saddr . meta l4proto . th dport @seen dnat ip to " + r.host
	case Symmetric:
		masquerade = "masquerade fully-random"
	case PortRestricted:
		if r.rebooted {
			masquerade = "meta l4proto { tcp, udp } masquerade to :40000-49999"
		}
	case UDPBlocked:
		blocked = "meta l4proto udp drop"
	case Only443:
		blocked = "iifname lan tcp dport != 443 drop; meta l4proto udp drop"
	}
	return fmt.Sprintf(`table ip nat {
%s	chain input { type filter hook input priority 0;
		iifname wan ct state new drop
	}
	chain forward { type filter hook forward priority 0; policy drop;
		%s
		ct state established,related accept
		iifname lan accept
		iifname wan ct status dnat accept
	}
	chain inward { type nat hook prerouting priority -100;
		%s
	}
	chain outward { type nat hook postrouting priority 100;
		oifname wan %s
	}
}
`, seen, blocked, inward, masquerade)
}
