package dnssd

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An ether is a simulated network, 10.0.0.0/24.
type testNetwork struct {
	mu    sync.Mutex
	plugs []*testHost
}

// A plug connects a host to an ether. The link of each host has the index 7.
type testHost struct {
	ether *testNetwork
	from  netip.AddrPort
	in    chan packet
	mu    sync.Mutex
	nets  []netip.Prefix
}

const testLink = 7

// connect connects a host with an address, such as "10.0.0.1".
func (e *testNetwork) connect(addr string) *testHost {
	p := &testHost{ether: e, from: netip.AddrPortFrom(netip.MustParseAddr(addr), port), in: make(chan packet, 4096)}
	p.nets = []netip.Prefix{netip.PrefixFrom(p.from.Addr(), 24)}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.plugs = append(e.plugs, p)
	return p
}

func (p *testHost) links() map[int]link {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.nets) == 0 {
		return nil
	}
	return map[int]link{testLink: {index: testLink, name: "lan0", nets: p.nets}}
}

func (p *testHost) listen(ctx context.Context, out chan<- packet) {
	for {
		select {
		case <-ctx.Done():
			return
		case got := <-p.in:
			select {
			case out <- got:
			case <-ctx.Done():
				return
			}
		}
	}
}

func (p *testHost) write(b []byte, _ link, to netip.AddrPort) error {
	p.put(packet{data: b, link: testLink, from: p.from, group: !to.IsValid()}, to)
	return nil
}

// put sends a packet with any source, to all hosts including the sender, or to one.
func (p *testHost) put(got packet, to netip.AddrPort) {
	p.ether.mu.Lock()
	defer p.ether.mu.Unlock()
	for _, other := range p.ether.plugs {
		if !to.IsValid() || to.Addr() == other.from.Addr() {
			select {
			case other.in <- got:
			default:
			}
		}
	}
}

func (p *testHost) close() error { return nil }

func (p *testHost) send(t testing.TB, msg *dns.Msg) {
	t.Helper()
	b, err := msg.Pack()
	if err != nil {
		t.Fatal(err)
	}
	_ = p.write(b, link{}, netip.AddrPort{})
}

// received returns the messages of other hosts within d, in order.
func (p *testHost) received(t testing.TB, d time.Duration) []*dns.Msg {
	t.Helper()
	var all []*dns.Msg
	for time.Sleep(d); ; {
		select {
		case got := <-p.in:
			msg, err := unpack(got.data)
			if err != nil {
				t.Fatal(err)
			}
			if got.from != p.from {
				all = append(all, msg)
			}
		default:
			return all
		}
	}
}

// answers returns the responses that arrived within d.
func (p *testHost) answers(t testing.TB, d time.Duration) []*dns.Msg {
	var all []*dns.Msg
	for _, msg := range p.received(t, d) {
		if msg.Response {
			all = append(all, msg)
		}
	}
	return all
}

// start runs a service at a plug until the test ends, or the returned function is called.
func start(t *testing.T, p *testHost, o Options) (*Service, func()) {
	t.Helper()
	o.net = p
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

// rr parses a record in the format of master files.
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
