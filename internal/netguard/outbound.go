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
	reason func(netip.Addr) string // of the refusal of an address; empty if it is allowed
	lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Public returns a guard that allows addresses of the public internet only: global unicast without the
// exceptions of [Guard.Check]. Use it for addresses from untrusted sources.
func Public() *Guard { return &Guard{reason: notPublic, lookup: net.DefaultResolver.LookupNetIP} }

// Any returns a guard that allows every address. Use it for addresses from the user of this node.
func Any() *Guard {
	return &Guard{reason: func(netip.Addr) string { return "" }, lookup: net.DefaultResolver.LookupNetIP}
}

// An Error means that a connection was refused before anything was sent. It is permanent.
type Error struct {
	// Host is the requested host: a name or an address.
	Host string
	// Addr is the refused address, for a name the first one. It is the zero value if no address was checked.
	Addr netip.Addr
	// Reason is a phrase such as "loopback".
	Reason string
}

// Error names the host, the address and the reason on one line.
func (e *Error) Error() string {
	switch {
	case !e.Addr.IsValid():
		return fmt.Sprintf("refused to connect to %q: %s", e.Host, e.Reason)
	case e.Addr.String() == e.Host:
		return fmt.Sprintf("refused to connect to %s: %s", e.Host, e.Reason)
	}
	return fmt.Sprintf("refused to connect to %q at %s: %s", e.Host, e.Addr, e.Reason)
}

// Refused returns true. Packages that do not import netguard recognize its errors by this method.
func (e *Error) Refused() bool { return true }

// Check returns an [*Error] if the guard refuses addr. A public guard refuses addresses that are not global unicast (loopback,
// private RFC 1918 and ULA, link-local, shared RFC 6598, multicast, unspecified, reserved), special-purpose ranges (documentation,
// benchmarks, protocols, discard), IPv4-mapped and IPv4-compatible IPv6, NAT64 and 6to4 addresses of a refused IPv4 address,
// tunnels with an unknown endpoint (Teredo, NAT64 with a local prefix), and the address of the machine services of Azure.
func (g *Guard) Check(addr netip.Addr) error {
	if reason := g.reason(addr); reason != "" {
		return &Error{Host: addr.String(), Addr: addr, Reason: reason}
	}
	return nil
}

// DialContext connects to addr, "host:port" with a numeric port, over network: tcp, tcp4, tcp6, udp, udp4 or udp6. It has the
// signature of [net/http.Transport.DialContext]. It resolves a name and tries its allowed addresses one after the other, at most
// 8, for at most 10 s in total. The error is an [*Error], or wraps one, if no address is allowed; otherwise it is that of the
// resolver or the first connection.
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

// split splits addr into host and port. It refuses everything else: an empty host means this machine to package net, and the
// network "unix" a file.
func split(network, addr string) (host string, port uint16, err error) {
	switch network {
	case "tcp", "tcp4", "tcp6", "udp", "udp4", "udp6":
	default:
		return "", 0, &Error{Host: addr, Reason: fmt.Sprintf("expected the network tcp or udp, got %q", network)}
	}
	host, digits, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	switch {
	case err != nil || n == 0:
		return "", 0, &Error{Host: host, Reason: fmt.Sprintf("expected a port from 1 to 65535, got %q", digits)}
	case host == "":
		return "", 0, &Error{Host: addr, Reason: "the host is empty"}
	}
	return host, uint16(n), nil
}

// resolve returns at least one and at most maxAddrs allowed addresses of host.
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
	refused := &Error{Host: host, Reason: "the name has no address"}
	for _, addr := range all {
		addr = addr.Unmap() // resolvers return IPv4-mapped addresses, which are dialed as IPv4
		if reason := g.reason(addr); reason == "" {
			allowed = append(allowed, addr)
		} else if !refused.Addr.IsValid() {
			refused.Addr, refused.Reason = addr, reason
		}
	}
	if len(allowed) == 0 {
		return nil, refused
	}
	return allowed[:min(len(allowed), maxAddrs)], nil
}

// dial tries addrs in the order of the resolver (RFC 6724). Each gets its share of the time.
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

// control checks the address of a socket before it connects, independently of the resolved name.
func (g *Guard) control(_, addr string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return &Error{Host: addr, Reason: "not an IP address"}
	}
	return g.Check(to.Addr())
}

// IsLoopback reports whether a host of a URL is this machine, by its address or the name localhost.
func IsLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback() || strings.EqualFold(host, "localhost")
}
