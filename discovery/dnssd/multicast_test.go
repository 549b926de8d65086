package dnssd

import (
	"errors"
	"net"
	"net/netip"
	"testing"
)

// A socket that cannot be configured is closed.
func TestUnconfiguredSocketIsClosed(t *testing.T) {
	t.Parallel()
	failed := errors.New("no control messages")
	var c net.PacketConn
	_, err := openSocket(group4, func(opened net.PacketConn) (socket, error) {
		c = opened
		return socket{}, failed
	})
	if c == nil {
		t.Skip("no multicast:", err)
	}
	if !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
	to := net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:9"))
	if _, err := c.WriteTo(nil, to); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the socket is open: %v", err)
	}
}

// An answer to one address fails if its socket fails, and a message to the group only if all sockets fail.
func TestWriteReportsFailures(t *testing.T) {
	t.Parallel()
	failed := errors.New("network is unreachable")
	for _, c := range []struct {
		name   string
		err4   error
		err6   error
		to     string
		failed bool
	}{
		{"to the group", nil, nil, "", false},
		{"to the group over IPv6 only", failed, nil, "", false},
		{"to the group over no socket", failed, failed, "", true},
		{"to an IPv4 address", nil, failed, "10.0.0.9:4000", false},
		{"to an unreachable IPv4 address", failed, nil, "10.0.0.9:4000", true},
	} {
		m := &multicast{sockets: []socket{
			{group: group4, send: func([]byte, int, net.Addr) error { return c.err4 }},
			{group: group6, send: func([]byte, int, net.Addr) error { return c.err6 }},
		}}
		var to netip.AddrPort
		if c.to != "" {
			to = netip.MustParseAddrPort(c.to)
		}
		if err := m.write(nil, lan, to); errors.Is(err, failed) != c.failed {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
}
