package ratelimit

import (
	"net"
	"net/netip"
)

// AddressRange returns the addresses that are limited together with that of a TCP connection: an IPv4 address, or the /56 of an IPv6 address,
// which is what one customer of a provider has. It returns the zero Prefix for other connections.
func AddressRange(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := 32
	if ip.Is6() {
		bits = 56
	}
	p, _ := ip.Prefix(bits) // of an invalid address: the zero Prefix
	return p
}
