package messaging

import "net/netip"

// HostOf returns the address by which limits count a host: an IPv4 address, or the network of an IPv6 address.
func HostOf(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if p, err := a.Prefix(64); a.Is6() && err == nil {
		return p.Addr()
	}
	return a
}
