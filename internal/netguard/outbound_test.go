package netguard

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

func TestPublicAddresses(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{
		"1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.1",
		"168.63.129.15", "168.63.129.17", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "191.255.255.255",
		"192.0.1.0", "192.0.3.0", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255",
		"2001:200::1", "2606:4700:4700::1111", "2a00:1450:4001:80e::200e", "2001:db7::1", "2001:db9::1", "3ffe::1",
		"64:ff9b::8.8.8.8",      // NAT64 of a public address: used by networks without IPv4
		"2002:808:808::1",       // 6to4 of 8.8.8.8
		"2a00::a00:1",           // the low bits are those of 10.0.0.1, but not an IPv4 address
		"2a00::ffff:a00:1",      // nor here
		"2003:a00:1::64:ff9b:1", // nor here
	} {
		if err := Public().Check(netip.MustParseAddr(addr)); err != nil {
			t.Errorf("%s: got %v, want it allowed", addr, err)
		}
	}
}

func TestNonPublicAddresses(t *testing.T) {
	t.Parallel()
	for addr, why := range map[string]string{
		"0.0.0.0": "unspecified", "0.1.2.3": "unspecified",
		"10.0.0.0": "RFC 1918", "10.255.255.255": "RFC 1918", "172.16.0.1": "RFC 1918", "172.31.255.255": "RFC 1918",
		"192.168.0.1": "RFC 1918", "192.168.255.255": "RFC 1918",
		"100.64.0.0": "carrier-grade", "100.100.100.200": "carrier-grade", "100.127.255.255": "carrier-grade",
		"127.0.0.1": "loopback", "127.255.255.254": "loopback",
		"168.63.129.16": "cloud", "169.254.169.254": "link-local", "169.254.0.0": "link-local",
		"192.0.0.192": "protocols", "192.0.2.1": "documentation", "198.51.100.7": "documentation", "203.0.113.255": "documentation",
		"192.88.99.1": "6to4", "198.18.0.0": "benchmarks", "198.19.255.255": "benchmarks",
		"224.0.0.251": "multicast", "239.255.255.250": "multicast", "240.0.0.1": "reserved", "255.255.255.255": "broadcast",
		"::": "unspecified", "::1": "loopback", "::2": "IPv4-compatible", "::127.0.0.1": "IPv4-compatible",
		"::ffff:127.0.0.1": "IPv4-mapped", "::ffff:8.8.8.8": "IPv4-mapped", "::ffff:0:1": "IPv4-mapped",
		"64:ff9b::10.0.0.1": "NAT64 of 10.0.0.1: private", "64:ff9b::169.254.169.254": "NAT64 of 169.254.169.254: link-local",
		"64:ff9b::127.0.0.1": "loopback", "64:ff9b::1:808:808": "not global unicast", "64:ff9b:1::808:808": "local prefix",
		"2002:a00:1::": "6to4 of 10.0.0.1: private", "2002:7f00:1::1": "6to4 of 127.0.0.1: loopback", "2002:a9fe:a9fe::": "link-local",
		"2001::1": "Teredo", "2001:0:4136:e378:8000:63bf:3fff:fdd2": "Teredo", "2001:2::1": "protocols", "2001:20::1": "protocols",
		"2001:1ff:ffff::": "protocols", "2001:db8::1": "documentation", "3fff::1": "documentation", "3fff:fff::1": "documentation",
		"100::1": "discarded", "100:0:0:1::1": "not global unicast", "5f00::1": "not global unicast", "4000::": "not global unicast",
		"1fff::": "not global unicast", "fd00:ec2::254": "unique local", "fc00::1": "unique local", "fdff::1": "unique local",
		"fe80::1": "link-local", "fe80::1%eth0": "zone", "2a00::1%lo": "zone", "febf::1": "link-local",
		"fec0::1": "site-local", "ff02::1": "multicast", "ff0e::1": "multicast",
		"::ffff:0:0:1": "not global unicast", // IPv4-translated (RFC 2765), ::ffff:0:a.b.c.d
	} {
		parsed := netip.MustParseAddr(addr)
		err := Public().Check(parsed)
		var refused *Error
		if !errors.As(err, &refused) || !strings.Contains(refused.Reason, why) || refused.Addr != parsed ||
			refused.Host != parsed.String() {
			t.Errorf("%s: got %v, want it refused as %q", addr, err, why)
		}
		if err := Any().Check(parsed); err != nil {
			t.Errorf("%s: Any refused it: %v", addr, err)
		}
	}
	if err := Public().Check(netip.Addr{}); err == nil {
		t.Error("the zero address is allowed")
	}
}

func TestErrorHasObjectAndCause(t *testing.T) {
	t.Parallel()
	lo := netip.MustParseAddr("127.0.0.1")
	for want, e := range map[string]*Error{
		`refused to connect to "printer.example" at 127.0.0.1: loopback`: {"printer.example", lo, "loopback"},
		`refused to connect to 127.0.0.1: loopback`:                      {"127.0.0.1", lo, "loopback"},
		`refused to connect to "x": the name has no address`:             {"x", netip.Addr{}, "the name has no address"},
	} {
		if e.Error() != want {
			t.Errorf("got %s, want %s", e, want)
		}
	}
}

// names is a resolver of fixed names.
func names(table map[string][]string) func(context.Context, string, string) ([]netip.Addr, error) {
	return func(_ context.Context, network, host string) ([]netip.Addr, error) {
		all, ok := table[host]
		if !ok {
			return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
		}
		var addrs []netip.Addr
		for _, a := range all {
			if addr := netip.MustParseAddr(a); network == "ip" || (network == "ip4") == addr.Unmap().Is4() {
				addrs = append(addrs, addr)
			}
		}
		return addrs, nil
	}
}

func TestNamesOfNonPublicAddresses(t *testing.T) {
	t.Parallel()
	g := Public()
	g.lookup = names(map[string][]string{
		"localhost":     {"127.0.0.1", "::1"},
		"router.evil":   {"192.168.1.1"},
		"metadata.evil": {"169.254.169.254"},
		"mapped.evil":   {"::ffff:10.0.0.1"},
		"six.evil":      {"8.8.8.8", "fd00::1"},
		"empty.evil":    {},
	})
	for _, c := range []struct{ network, addr, host, refused, why string }{
		{"tcp", "localhost:80", "localhost", "127.0.0.1", "loopback"},
		{"tcp6", "localhost:80", "localhost", "::1", "loopback"},
		{"udp", "localhost:5683", "localhost", "127.0.0.1", "loopback"},
		{"tcp", "router.evil:80", "router.evil", "192.168.1.1", "RFC 1918"},
		{"tcp", "metadata.evil:80", "metadata.evil", "169.254.169.254", "link-local"},
		{"tcp", "mapped.evil:80", "mapped.evil", "10.0.0.1", "RFC 1918"},
		{"udp6", "six.evil:80", "six.evil", "fd00::1", "unique local"},
		{"tcp", "127.0.0.1:80", "127.0.0.1", "127.0.0.1", "loopback"},
		{"tcp", "[::1]:80", "::1", "::1", "loopback"},
		{"tcp", "[::ffff:127.0.0.1]:80", "::ffff:127.0.0.1", "::ffff:127.0.0.1", "IPv4-mapped"},
		{"udp4", "224.0.0.251:5353", "224.0.0.251", "224.0.0.251", "multicast"},
		{"tcp", "[fe80::1%lo]:80", "fe80::1%lo", "fe80::1%lo", "zone"},
	} {
		conn, err := g.DialContext(t.Context(), c.network, c.addr)
		var e *Error
		if conn != nil || !errors.As(err, &e) || e.Host != c.host || e.Addr.String() != c.refused || !strings.Contains(e.Reason, c.why) {
			t.Errorf("%s %s: got %v, want %s of %s refused as %q", c.network, c.addr, err, c.refused, c.host, c.why)
		}
	}
	var e *Error
	if _, err := g.DialContext(t.Context(), "tcp", "empty.evil:80"); !errors.As(err, &e) || e.Addr.IsValid() {
		t.Errorf("a name without addresses: got %v", err)
	}
	var dns *net.DNSError
	if _, err := g.DialContext(t.Context(), "tcp", "gone.evil:80"); !errors.As(err, &dns) || errors.As(err, &e) {
		t.Errorf("an unknown name: got %v, want the resolver's error", err)
	}
}

func TestInvalidHostsAndPorts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, network, addr string }{
		{"a file", "unix", "/run/docker.sock"},
		{"a packet socket", "unixgram", "/run/x"},
		{"raw IP", "ip4:icmp", "8.8.8.8"},
		{"no network", "", "8.8.8.8:80"},
		{"this machine", "tcp", ":80"},
		{"port zero", "tcp", "8.8.8.8:0"},
		{"a service's name", "tcp", "8.8.8.8:http"},
		{"too large a port", "tcp", "8.8.8.8:65536"},
		{"a negative port", "tcp", "8.8.8.8:-1"},
	} {
		for kind, g := range map[string]*Guard{"public": Public(), "any": Any()} {
			var e *Error
			if _, err := g.DialContext(t.Context(), c.network, c.addr); !errors.As(err, &e) {
				t.Errorf("%s, %s: got %v, want an *Error", c.name, kind, err)
			}
		}
	}
	if _, err := Any().DialContext(t.Context(), "tcp", "8.8.8.8"); err == nil {
		t.Error("an address without a port is dialed")
	}
}

// server is a real listener that answers each connection with text.
func server(t *testing.T, network, addr, text string) string {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Skipf("no %s here: %v", addr, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, text)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().String()
}

func read(t *testing.T, g *Guard, network, addr string) (string, error) {
	t.Helper()
	c, err := g.DialContext(t.Context(), network, addr)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	b, err := io.ReadAll(c)
	return string(b), err
}

func TestAnyConnects(t *testing.T) {
	t.Parallel()
	addr := server(t, "tcp4", "127.0.0.1:0", "hello")
	_, port, _ := net.SplitHostPort(addr)
	for _, to := range []string{addr, "[::ffff:127.0.0.1]:" + port, "localhost:" + port} {
		if got, err := read(t, Any(), "tcp", to); got != "hello" || err != nil {
			t.Errorf("%s: got %q, %v", to, got, err)
		}
	}
}

func TestAnyConnectsOverUDP(t *testing.T) {
	t.Parallel()
	l, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	c, err := Any().DialContext(t.Context(), "udp", l.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 10)
	if n, _, err := l.ReadFrom(b); err != nil || string(b[:n]) != "ping" {
		t.Errorf("got %q, %v", b[:n], err)
	}
}

// allowOnly returns a guard that allows only the given addresses.
func allowOnly(table map[string][]string, allowed ...string) *Guard {
	return &Guard{lookup: names(table), reason: func(a netip.Addr) string {
		for _, ok := range allowed {
			if a.String() == ok {
				return ""
			}
		}
		return "not allowed in the test"
	}}
}

func TestDialSkipsRefusedAddresses(t *testing.T) {
	t.Parallel()
	addr := server(t, "tcp4", "127.0.0.1:0", "right")
	_, port, _ := net.SplitHostPort(addr)
	server(t, "tcp4", "127.0.0.2:"+port, "wrong")
	g := allowOnly(map[string][]string{"two.example": {"127.0.0.2", "::ffff:127.0.0.1"}}, "127.0.0.1")
	if got, err := read(t, g, "tcp", "two.example:"+port); got != "right" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestDialTriesTheNextAddress(t *testing.T) {
	t.Parallel()
	addr := server(t, "tcp4", "127.0.0.1:0", "second")
	_, port, _ := net.SplitHostPort(addr)
	g := allowOnly(map[string][]string{"x": {"127.0.0.9", "127.0.0.1"}, "y": {"127.0.0.8", "127.0.0.9"}}, "127.0.0.1", "127.0.0.8",
		"127.0.0.9")
	if got, err := read(t, g, "tcp", "x:"+port); got != "second" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	var e *Error
	_, err := read(t, g, "tcp", "y:"+port)
	if !errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &e) || !strings.Contains(err.Error(), "127.0.0.8") {
		t.Errorf("got %v, want the error of the first address", err)
	}
}

func TestDialTriesAtMostEightAddresses(t *testing.T) {
	t.Parallel()
	var all []string
	for i := range 40 {
		all = append(all, netip.AddrFrom4([4]byte{127, 0, 1, byte(i + 1)}).String())
	}
	g := Any()
	g.lookup = names(map[string][]string{"many.example": all})
	addrs, err := g.resolve(t.Context(), "tcp", "many.example")
	if err != nil || len(addrs) != maxAddrs {
		t.Errorf("got %d addresses, %v; want %d", len(addrs), err, maxAddrs)
	}
}

// TestRebinding connects a socket to a refused address after a successful resolution (DNS rebinding).
func TestRebinding(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddrPort(server(t, "tcp4", "127.0.0.1:0", "secret"))
	conn, err := Public().dial(withTimeout(t), "tcp", addr.Port(), []netip.Addr{addr.Addr()})
	var e *Error
	if conn != nil || !errors.As(err, &e) || e.Addr != addr.Addr() || e.Reason != "loopback" {
		t.Errorf("got %v, want the socket refused", err)
	}
	if err := Public().control("tcp", "nonsense", nil); !errors.As(err, &e) {
		t.Errorf("got %v, want an *Error", err)
	}
}

func withTimeout(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestSlowResolverTimesOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := Public()
		g.lookup = func(ctx context.Context, _, _ string) ([]netip.Addr, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		start := time.Now()
		_, err := g.DialContext(t.Context(), "tcp", "slow.example:80")
		if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took != timeout {
			t.Errorf("got %v after %v, want the deadline after %v", err, took, timeout)
		}
	})
}

func TestCancelEndsTheDial(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	g := Any()
	g.lookup = func(ctx context.Context, _, _ string) ([]netip.Addr, error) {
		cancel()
		return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")}, nil
	}
	if _, err := g.DialContext(ctx, "tcp", "x:9"); !errors.Is(err, context.Canceled) && !strings.Contains(err.Error(), "canceled") {
		t.Errorf("got %v, want it cancelled", err)
	}
}

// TestErrorPassesThroughHTTPClient checks that the errors of an HTTP client wrap that of the guard.
func TestErrorPassesThroughHTTPClient(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "yes") }))
	defer s.Close()
	for name, c := range map[string]struct {
		guard *Guard
		ok    bool
	}{"public": {Public(), false}, "any": {Any(), true}} {
		tr := &http.Transport{DialContext: c.guard.DialContext}
		defer tr.CloseIdleConnections()
		resp, err := (&http.Client{Transport: tr}).Get(s.URL)
		var e *Error
		if c.ok != (err == nil) || !c.ok && (!errors.As(err, &e) || e.Reason != "loopback") {
			t.Errorf("%s: got %v", name, err)
		}
		if resp != nil {
			_ = resp.Body.Close()
		}
	}
}

// FuzzCheck compares the guard with the classification of net/netip.
func FuzzCheck(f *testing.F) {
	for _, s := range []string{"8.8.8.8", "127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:7f00:1::", "fe80::1%x",
		"2a00::1", "::", "0x7f.1"} {
		f.Add(s)
	}
	g := Public()
	f.Fuzz(func(t *testing.T, s string) {
		addr, err := netip.ParseAddr(s)
		if err != nil || g.Check(addr) != nil {
			return
		}
		if !addr.IsGlobalUnicast() || addr.IsPrivate() || addr.Is4In6() || addr.Zone() != "" {
			t.Fatalf("%s is allowed", s)
		}
		if addr.Is4() && g.Check(netip.AddrFrom16(addr.As16())) == nil {
			t.Fatalf("%s is allowed as IPv6", s)
		}
		checkEmbeddedIPv4(t, g, addr)
	})
}

// checkEmbeddedIPv4 checks the IPv4 addresses in NAT64 and 6to4 addresses.
func checkEmbeddedIPv4(t *testing.T, g *Guard, addr netip.Addr) {
	b := addr.As16()
	var v4 netip.Addr
	switch {
	case addr.Is4():
		return
	case b[0] == 0x20 && b[1] == 0x02:
		v4 = netip.AddrFrom4([4]byte(b[2:6]))
	case b[0] == 0 && b[1] == 0x64:
		v4 = netip.AddrFrom4([4]byte(b[12:16]))
	case b[0]>>5 != 1:
		t.Fatalf("%s is allowed, outside of 2000::/3", addr)
	default:
		return
	}
	if g.Check(v4) != nil {
		t.Fatalf("%s is allowed and hides %s", addr, v4)
	}
}

func BenchmarkCheck(b *testing.B) {
	g, addr := Public(), netip.MustParseAddr("2606:4700:4700::1111")
	b.ReportAllocs()
	for b.Loop() {
		if g.Check(addr) != nil {
			b.Fatal("refused")
		}
	}
}
