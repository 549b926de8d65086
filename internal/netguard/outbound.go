package netguard

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	timeout  = 10 * time.Second // for a name and a connection together
	maxAddrs = 8                // of one name that are tried
)

// A Guard dials only addresses that it allows. It is safe for concurrent use. The zero
// value is invalid: use [Public] and [Any].
type Guard struct {
	judge  func(netip.Addr) string // why an address is refused; empty if it is not
	lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Public returns a guard that allows addresses of the public internet only: global unicast without the
// exceptions of [Guard.Check]. Use it for addresses from untrusted sources.
func Public() *Guard { return &Guard{judge: notPublic, lookup: net.DefaultResolver.LookupNetIP} }

// Any returns a guard that allows every address. Use it for addresses from the user of this node.
func Any() *Guard {
	return &Guard{judge: func(netip.Addr) string { return "" }, lookup: net.DefaultResolver.LookupNetIP}
}

// An Error means that a connection was refused before anything was sent. It is permanent.
type Error struct {
	// Host is the requested host: a name or an address.
	Host string
	// Addr is the address that was refused: the first of a name all of whose addresses were. It is invalid (the zero value) if
	// it did not come to that.
	Addr netip.Addr
	// Why is the reason, such as "loopback".
	Why string
}

// Error names the host, the address and the reason on one line.
func (e *Error) Error() string {
	switch {
	case !e.Addr.IsValid():
		return fmt.Sprintf("refused to connect to %q: %s", e.Host, e.Why)
	case e.Addr.String() == e.Host:
		return fmt.Sprintf("refused to connect to %s: %s", e.Host, e.Why)
	}
	return fmt.Sprintf("refused to connect to %q at %s: %s", e.Host, e.Addr, e.Why)
}

// Refused returns true. Packages that do not import netguard recognize its errors by this method.
func (e *Error) Refused() bool { return true }

// Check reports whether the guard allows addr. The error is an [*Error]. Public guards refuse what is not global unicast
// (loopback, private RFC 1918 and ULA, link-local, shared RFC 6598, multicast, unspecified, reserved), what is set aside
// (documentation, benchmarks, protocols, discard), IPv4 written as IPv6 (IPv4-mapped and -compatible), NAT64 and 6to4 addresses
// that stand for a refused IPv4 address, tunnels with an unknown endpoint (Teredo, NAT64 with a local prefix), and the address
// at which a large cloud serves the machine itself.
func (g *Guard) Check(addr netip.Addr) error {
	if why := g.judge(addr); why != "" {
		return &Error{Host: addr.String(), Addr: addr, Why: why}
	}
	return nil
}

// DialContext connects to addr, "host:port" with a numeric port, over network: tcp, tcp4, tcp6, udp, udp4 or udp6. It has the
// signature that [net/http.Transport] and most clients want. Names are resolved here; of what they resolve to, the addresses
// that are allowed are tried one after the other, at most 8. All of it has 10 s, or until ctx ends if that is earlier. The error
// is an [*Error], or wraps one, if nothing was tried because it is not allowed; else it is that of the resolver or the
// connection.
func (g *Guard) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	host, port, err := split(network, addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	addrs, err := g.resolve(ctx, network, host)
	if err != nil {
		return nil, err
	}
	return g.dial(ctx, network, port, addrs)
}

// split takes network and addr apart, and refuses what could mean something else than a host and a port: an empty host is this
// machine to package net, and a network "unix" would be a file.
func split(network, addr string) (host string, port uint16, err error) {
	switch network {
	case "tcp", "tcp4", "tcp6", "udp", "udp4", "udp6":
	default:
		return "", 0, &Error{Host: addr, Why: fmt.Sprintf("the network %q is neither tcp nor udp", network)}
	}
	host, digits, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	switch {
	case err != nil || n == 0:
		return "", 0, &Error{Host: host, Why: fmt.Sprintf("%q is no port", digits)}
	case host == "":
		return "", 0, &Error{Host: addr, Why: "it names no host"}
	}
	return host, uint16(n), nil
}

// resolve returns the addresses of host that are allowed: at least one.
func (g *Guard) resolve(ctx context.Context, network, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		if err := g.Check(addr); err != nil {
			return nil, err
		}
		return []netip.Addr{addr.Unmap()}, nil
	}
	all, err := g.lookup(ctx, "ip"+strings.TrimLeft(network, "tcpud"), host)
	if err != nil {
		return nil, err
	}
	var allowed []netip.Addr
	refused := &Error{Host: host, Why: "it has no address"}
	for _, addr := range all {
		addr = addr.Unmap() // resolvers write IPv4 so; it is dialled as IPv4, and judged as that
		if why := g.judge(addr); why == "" {
			allowed = append(allowed, addr)
		} else if !refused.Addr.IsValid() {
			refused.Addr, refused.Why = addr, why
		}
	}
	if len(allowed) == 0 {
		return nil, refused
	}
	return allowed[:min(len(allowed), maxAddrs)], nil
}

// dial tries addrs in the order of the resolver, which puts those first that this machine can reach (RFC 6724). Each gets its
// share of the time, so that the first cannot take it all.
func (g *Guard) dial(ctx context.Context, network string, port uint16, addrs []netip.Addr) (net.Conn, error) {
	d := net.Dialer{KeepAlive: 30 * time.Second, Control: g.control}
	end, _ := ctx.Deadline()
	var first error
	for i, addr := range addrs {
		d.Timeout = time.Until(end) / time.Duration(len(addrs)-i)
		c, err := d.DialContext(ctx, network, netip.AddrPortFrom(addr, port).String())
		if err == nil {
			return c, nil
		}
		first = cmp.Or(first, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}

// control looks at the address that a socket is about to connect to: whatever happened before, none that is refused passes here.
func (g *Guard) control(_, addr string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return &Error{Host: addr, Why: "not an IP address"}
	}
	return g.Check(to.Addr())
}
