package dnssd

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// A testNetwork is a simulated network, 10.0.0.0/24.
type testNetwork struct {
	mu    sync.Mutex
	hosts []*testHost // owned by mu
}

// A testHost is a host on a testNetwork. Its link has the index testLink.
type testHost struct {
	network *testNetwork
	from    netip.AddrPort
	in      chan packet
	mu      sync.Mutex
	nets    []netip.Prefix // owned by mu
}

const testLink = 7

// connect connects a host with an address, such as "10.0.0.1".
func (n *testNetwork) connect(addr string) *testHost {
	h := &testHost{network: n, from: netip.AddrPortFrom(netip.MustParseAddr(addr), port), in: make(chan packet, 4096)}
	h.nets = []netip.Prefix{netip.PrefixFrom(h.from.Addr(), 24)}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts = append(n.hosts, h)
	return h
}

func (h *testHost) links() map[int]link {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.nets) == 0 {
		return nil
	}
	return map[int]link{testLink: {index: testLink, name: "lan0", nets: h.nets}}
}

func (h *testHost) listen(ctx context.Context, out chan<- packet) {
	for {
		select {
		case <-ctx.Done():
			return
		case got := <-h.in:
			select {
			case out <- got:
			case <-ctx.Done():
				return
			}
		}
	}
}

func (h *testHost) write(b []byte, _ link, to netip.AddrPort) error {
	h.put(packet{data: b, link: testLink, from: h.from, group: !to.IsValid()}, to)
	return nil
}

// put sends a packet with any source, to all hosts including the sender, or to one.
func (h *testHost) put(got packet, to netip.AddrPort) {
	h.network.mu.Lock()
	defer h.network.mu.Unlock()
	for _, other := range h.network.hosts {
		if !to.IsValid() || to.Addr() == other.from.Addr() {
			select {
			case other.in <- got:
			default:
			}
		}
	}
}

func (h *testHost) close() error { return nil }

func (h *testHost) send(t testing.TB, msg *dns.Msg) {
	t.Helper()
	b, err := msg.Pack()
	if err != nil {
		t.Fatal(err)
	}
	_ = h.write(b, link{}, netip.AddrPort{})
}

// received returns the messages of other hosts within d, in order.
func (h *testHost) received(t testing.TB, d time.Duration) []*dns.Msg {
	t.Helper()
	var all []*dns.Msg
	for time.Sleep(d); ; {
		select {
		case got := <-h.in:
			msg, err := unpack(got.data)
			if err != nil {
				t.Fatal(err)
			}
			if got.from != h.from {
				all = append(all, msg)
			}
		default:
			return all
		}
	}
}

// answers returns the responses that arrived within d.
func (h *testHost) answers(t testing.TB, d time.Duration) []*dns.Msg {
	var all []*dns.Msg
	for _, msg := range h.received(t, d) {
		if msg.Response {
			all = append(all, msg)
		}
	}
	return all
}

// start runs a service on a host until the test ends, or the returned function is called.
func start(t *testing.T, h *testHost, o Options) (*Service, func()) {
	t.Helper()
	o.net = h
	return run(t, o)
}

// run runs a service until the test ends, or the returned function is called.
func run(t *testing.T, o Options) (*Service, func()) {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		<-done
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return s, stop
}

func question(name string, rrtype uint16) *dns.Msg {
	return &dns.Msg{Question: []dns.Question{{Name: name, Qtype: rrtype, Qclass: dns.ClassINET}}}
}

// rr parses a record in the format of zone files.
func rr(t testing.TB, text string) dns.RR {
	t.Helper()
	r, err := dns.NewRR(text)
	if err != nil || r == nil {
		t.Fatalf("%s: %v", text, err)
	}
	return r
}

// entryOf returns the announcement of a Thing by another host.
func entryOf(t testing.TB, service, instance, host, addr string, portOf string, text string) *dns.Msg {
	t.Helper()
	full := instance + "." + service
	return &dns.Msg{MsgHdr: dns.MsgHdr{Response: true, Authoritative: true}, Answer: []dns.RR{
		rr(t, service+" 4500 IN PTR "+full), rr(t, full+" 120 IN SRV 0 0 "+portOf+" "+host), rr(t, full+" 4500 IN TXT "+text),
		rr(t, host+" 120 IN A "+addr),
	}}
}
