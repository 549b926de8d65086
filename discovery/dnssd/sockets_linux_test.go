package dnssd

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/lmosd/lmosd/internal/netns"
)

// connectLAN connects two interfaces, lan0 and lan1, of the network namespace of this process.
func connectLAN(t *testing.T) {
	t.Helper()
	// Both hosts are this machine: it accepts its own packets, and IPv6 addresses are used without duplicate detection.
	for name, value := range map[string]string{"ipv4/conf/all/accept_local": "1", "ipv4/conf/all/rp_filter": "0",
		"ipv4/conf/default/rp_filter": "0", "ipv6/conf/all/accept_dad": "0", "ipv6/conf/default/accept_dad": "0"} {
		if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil {
			t.Skip(err)
		}
	}
	netns.IP(t, "link set lo up", "link add lan0 type veth peer name lan1", "link set lan1 up", "link set lan0 up",
		"addr add 10.9.0.1/24 dev lan0", "addr add 10.9.0.2/24 dev lan1")
}

// Two nodes on a real network discover each other over IPv4 and IPv6, and one explores the introduction of the other.
func TestOnARealNetwork(t *testing.T) {
	t.Parallel()
	if netns.Role(t) == "" {
		netns.Run(t, "both")
		return
	}
	connectLAN(t)
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/td+json")
		_, _ = w.Write([]byte(thing))
	})
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handler}}
	server.Start()
	defer server.Close()
	at := listener.Addr().(*net.TCPAddr).AddrPort()

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	a, stopA := run(t, Options{Name: "a", Interfaces: []string{"lan0"}})
	b, stopB := run(t, Options{Name: "b", Interfaces: []string{"lan1"}})
	defer stopB()
	a.Announce(at.Port(), false)
	b.Announce(1, false)
	resolver, err := net.ListenPacket("udp4", "10.9.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer resolver.Close()
	var seen, removed bool
	for c := range b.Watch(ctx) {
		if c.Gone {
			removed = c.Instance == "a"
			break
		}
		if seen { // another address was received
			continue
		}
		seen = true
		if c.Instance != "a" || !strings.HasPrefix(c.URL, "http://10.9.0.1:") || c.From.Is4() && c.From != netip.MustParseAddr("10.9.0.1") {
			t.Errorf("got %+v", c)
		}
		if got, err := explore(t, NewExplorer(ExplorerOptions{}), c.Introduction); err != nil || len(got) != 1 {
			t.Errorf("explored %q, %v", got, err)
		}
		six := c.Introduction // the same without IPv4
		six.Addrs = slices.DeleteFunc(slices.Clone(six.Addrs), netip.Addr.Is4)
		if len(six.Addrs) > 0 {
			six.URL = text{td: "/td", scheme: "http"}.address(six.Addrs[0], at.Port())
		}
		if got, err := explore(t, NewExplorer(ExplorerOptions{}), six); err != nil || len(got) != 1 || !six.Addrs[0].IsLinkLocalUnicast() {
			t.Errorf("explored %q over IPv6, %v: %+v", got, err, six)
		}
		if m := queryOnce(t, resolver); len(m.Answer) != 1 || !strings.HasSuffix(m.Answer[0].(*dns.PTR).Ptr, "._wot._tcp.local.") {
			t.Errorf("a unicast resolver received %v", m)
		}
		stopA()
	}
	if !removed {
		t.Error("a stopped node is still introduced")
	}
}

// queryOnce queries the group for directories from its own port, like a unicast resolver.
func queryOnce(t *testing.T, c net.PacketConn) *dns.Msg {
	t.Helper()
	b, err := question(directory, dns.TypePTR).Pack()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.WriteTo(b, net.UDPAddrFromAddrPort(netip.AddrPortFrom(group4, port))); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	buf := make([]byte, packetMax)
	n, _, err := c.ReadFrom(buf)
	if err != nil {
		t.Fatal(err)
	}
	msg, err := unpack(buf[:n])
	if err != nil {
		t.Fatal(err)
	}
	return msg
}
