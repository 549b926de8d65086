package ratelimit

import (
	"net"
	"testing"
)

func TestAddressRange(t *testing.T) {
	t.Parallel()
	for ip, want := range map[string]string{
		"192.0.2.7": "192.0.2.7/32", "::ffff:192.0.2.7": "192.0.2.7/32", "2001:db8:1:2ff::7": "2001:db8:1:200::/56", "": "invalid Prefix",
	} {
		if got := AddressRange(&net.TCPAddr{IP: net.ParseIP(ip), Port: 1}).String(); got != want {
			t.Errorf("%s: got %s, want %s", ip, got, want)
		}
	}
	if got := AddressRange(&net.UnixAddr{}); got.IsValid() {
		t.Errorf("of a unix socket: got %s", got)
	}
}
