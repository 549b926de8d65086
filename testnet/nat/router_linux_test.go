package nat

import (
	"net/netip"
	"testing"
	"time"

	"github.com/lmosd/lmosd/internal/testprogram"
)

// requires skips the test where namespaces are not permitted. In CI a machine that permits them has the programs and the device, too.
func requires(t *testing.T) {
	t.Helper()
	if err := Missing(); err != nil {
		if isForbidden() {
			t.Skip(err)
		}
		testprogram.Missing(t, err)
	}
}

// TestRoutersAreVerified makes a router of each kind, and verifies that it has the properties of this kind and of no other one.
func TestRoutersAreVerified(t *testing.T) {
	t.Parallel()
	requires(t)
	c := NewCloud(Link{Delay: time.Millisecond}, 1)
	defer c.Close()
	var servers []*Machine
	for _, at := range []string{"11.0.0.1", "11.0.0.2"} {
		m, err := c.public(netip.MustParseAddr(at))
		if err != nil {
			t.Fatal(err)
		}
		defer m.close()
		servers = append(servers, m)
	}
	v, err := newVerifier(servers[0], servers[1])
	if err != nil {
		t.Fatal(err)
	}
	defer v.close()
	for i, k := range []Kind{FullCone, AddressRestricted, PortRestricted, Symmetric, UDPBlocked, Only443} {
		m, err := c.behind(netip.AddrFrom4([4]byte{11, 1, byte(i), 1}), k)
		if err != nil {
			t.Fatal(err)
		}
		defer m.close()
		if err := v.verify(m); err != nil {
			t.Error(err)
		}
		other := m.routers[0].kind
		if m.routers[0].kind = FullCone; other == FullCone {
			m.routers[0].kind = Symmetric
		}
		if behaviors[other].passes { // the wait for a packet that must pass is long
			if err := v.verify(m); err == nil {
				t.Errorf("a router of kind %s passes as %s", other, m.routers[0].kind)
			}
		}
	}
}
