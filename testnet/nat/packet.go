package nat

import "net/netip"

// addresses returns the source and the destination of an IP packet; false if it is not one of version 4 (RFC 791 §3.1) or 6 (RFC 8200 §3).
func addresses(packet []byte) (src, dst netip.Addr, ok bool) {
	switch {
	case len(packet) >= 20 && packet[0]>>4 == 4:
		return netip.AddrFrom4([4]byte(packet[12:])), netip.AddrFrom4([4]byte(packet[16:])), true
	case len(packet) >= 40 && packet[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(packet[8:])), netip.AddrFrom16([16]byte(packet[24:])), true
	}
	return netip.Addr{}, netip.Addr{}, false
}
