package netguard

import "net/netip"

// A block is a range of addresses that is not public, with the reason.
type block struct {
	prefix netip.Prefix
	reason string
}

func blocks(rows ...string) []block {
	list := make([]block, 0, len(rows)/2)
	for i := 0; i < len(rows); i += 2 {
		list = append(list, block{netip.MustParsePrefix(rows[i]), rows[i+1]})
	}
	return list
}

// special4 are the blocks of the IANA IPv4 Special-Purpose Address Registry that are not globally reachable, multicast, and the
// address of the machine services of a cloud.
var special4 = blocks(
	"0.0.0.0/8", "unspecified (RFC 791)",
	"10.0.0.0/8", "private (RFC 1918)",
	"100.64.0.0/10", "shared, carrier-grade NAT (RFC 6598)",
	"127.0.0.0/8", "loopback",
	"168.63.129.16/32", "machine services of a cloud (Azure)",
	"169.254.0.0/16", "link-local (RFC 3927)",
	"172.16.0.0/12", "private (RFC 1918)",
	"192.0.0.0/24", "reserved for protocols (RFC 6890)",
	"192.0.2.0/24", "for documentation (RFC 5737)",
	"192.88.99.0/24", "6to4 relays (RFC 7526)",
	"192.168.0.0/16", "private (RFC 1918)",
	"198.18.0.0/15", "for benchmarks (RFC 2544)",
	"198.51.100.0/24", "for documentation (RFC 5737)",
	"203.0.113.0/24", "for documentation (RFC 5737)",
	"224.0.0.0/4", "multicast",
	"255.255.255.255/32", "broadcast",
	"240.0.0.0/4", "reserved (RFC 1112)",
)

// special6 are the blocks of the IANA IPv6 Special-Purpose Address Registry, and other blocks outside of 2000::/3, the range of
// global unicast. The first match is the reason.
var special6 = blocks(
	"::/128", "unspecified",
	"::1/128", "loopback",
	"::ffff:0:0/96", "IPv4-mapped",
	"::/96", "IPv4-compatible",
	"64:ff9b:1::/48", "NAT64 with a local prefix (RFC 8215)",
	"100::/64", "discarded (RFC 6666)",
	"2001::/32", "a Teredo tunnel (RFC 4380)",
	"2001::/23", "reserved for protocols (RFC 2928)",
	"2001:db8::/32", "for documentation (RFC 3849)",
	"3fff::/20", "for documentation (RFC 9637)",
	"fc00::/7", "private, unique local (RFC 4193)",
	"fe80::/10", "link-local (RFC 4291)",
	"fec0::/10", "private, site-local (RFC 3879)",
	"ff00::/8", "multicast",
)

var (
	globalUnicast = netip.MustParsePrefix("2000::/3")     // RFC 4291 §2.4, as allocated by IANA
	nat64         = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052 §2.1: the last 32 bits are an IPv4 address
	sixToFour     = netip.MustParsePrefix("2002::/16")    // RFC 3056 §2: the next 32 bits are an IPv4 address
)

// notPublic returns the reason why addr is not an address of the public internet, or "".
func notPublic(addr netip.Addr) string {
	switch {
	case !addr.IsValid():
		return "not an IP address"
	case addr.Is4():
		return find(special4, addr)
	case addr.Zone() != "":
		return "an address with a zone"
	}
	if reason := find(special6, addr); reason != "" {
		return reason
	}
	b := addr.As16()
	switch {
	case nat64.Contains(addr):
		return embedded("NAT64", [4]byte(b[12:16]))
	case sixToFour.Contains(addr):
		return embedded("6to4", [4]byte(b[2:6]))
	case !globalUnicast.Contains(addr):
		return "not global unicast (RFC 4291)"
	}
	return ""
}

// embedded returns the reason of the IPv4 address in an IPv6 address, or "".
func embedded(how string, v4 [4]byte) string {
	if reason := notPublic(netip.AddrFrom4(v4)); reason != "" {
		return how + " of " + netip.AddrFrom4(v4).String() + ": " + reason
	}
	return ""
}

func find(list []block, addr netip.Addr) string {
	for _, b := range list {
		if b.prefix.Contains(addr) {
			return b.reason
		}
	}
	return ""
}
