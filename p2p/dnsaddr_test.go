package p2p

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/miekg/dns"
	ma "github.com/multiformats/go-multiaddr"
	madns "github.com/multiformats/go-multiaddr-dns"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/internal/poll"
)

// nameServer returns a resolver that asks a DNS server on loopback, which has TXT records by domain.
func nameServer(t testing.TB, records map[string][]string) network.MultiaddrDNSResolver {
	t.Helper()
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(q)
		name := q.Question[0].Name
		if records[name] == nil {
			m.Rcode = dns.RcodeNameError
		}
		for _, text := range records[name] {
			m.Answer = append(m.Answer, &dns.TXT{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{text}})
		}
		_ = w.WriteMsg(m) // the resolver asks again
	})}
	started := make(chan struct{})
	s.NotifyStartedFunc = func() { close(started) }
	done := make(chan error, 1)
	go func() { done <- s.ActivateAndServe() }()
	<-started
	t.Cleanup(func() {
		if err := errors.Join(s.Shutdown(), <-done); err != nil {
			t.Error(err)
		}
	})
	return resolverOf(t, &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp4", conn.LocalAddr().String())
	}})
}

func resolverOf(t testing.TB, r madns.BasicResolver) network.MultiaddrDNSResolver {
	t.Helper()
	named, err := madns.NewResolver(madns.WithDefaultResolver(r))
	if err != nil {
		t.Fatal(err)
	}
	return swarm.ResolverFromMaDNS{Resolver: named}
}

// A node joins through the nodes of a domain, also those of a domain that it names.
func TestBootstrapByName(t *testing.T) {
	t.Parallel()
	first, second := started(t, Options{Listen: []string{anyTCP}}), started(t, Options{Listen: []string{anyTCP}})
	r := nameServer(t, map[string][]string{
		"_dnsaddr.example.org.":       {"v=spf1 -all", "dnsaddr=" + FullAddrs(first)[0], "dnsaddr=/dnsaddr/north.example.org", "dnsaddr=/ip4/192.0.2.1/tcp/1", "dnsaddr=x"},
		"_dnsaddr.north.example.org.": {"dnsaddr=" + FullAddrs(second)[0]},
	})
	h := started(t, Options{})
	b := bootstrapOf(t, h, inMemory(), "/dnsaddr/example.org")
	b.resolver = r
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	poll.Until(t, "both nodes are connected", func() bool {
		return h.Network().Connectedness(first.ID()) == network.Connected && h.Network().Connectedness(second.ID()) == network.Connected
	})
	if peers := b.Peers(); len(peers) != 2 || peers[0].ID != first.ID() && peers[1].ID != first.ID() {
		t.Errorf("got the peers %v", peers)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// The addresses of invitations and of `lmosd connect` may be names: they end with the id of the node.
func TestDialByName(t *testing.T) {
	t.Parallel()
	h, other := started(t, Options{Listen: []string{anyTCP}}), started(t, Options{Listen: []string{anyTCP}})
	r := nameServer(t, map[string][]string{"_dnsaddr.example.org.": {"dnsaddr=" + FullAddrs(other)[0], "dnsaddr=" + FullAddrs(h)[0]}})
	from := started(t, Options{resolver: r})
	info, err := peer.AddrInfoFromString("/dnsaddr/example.org/p2p/" + h.ID().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := from.Connect(t.Context(), *info); err != nil {
		t.Error(err)
	}
}

// texted resolves TXT records from a function.
type texted func(domain string) ([]string, error)

func (texted) LookupIPAddr(context.Context, string) ([]net.IPAddr, error) {
	return nil, errors.New("no addresses")
}
func (f texted) LookupTXT(_ context.Context, domain string) ([]string, error) { return f(domain) }

func TestNamesAreLimited(t *testing.T) {
	t.Parallel()
	name := ma.StringCast("/dnsaddr/example.org")
	id := didtest.NewKey().DID().PeerText()
	for what, c := range map[string]struct {
		text  func(n int) []string
		peers int
	}{
		"many addresses": {func(int) (all []string) {
			for i := range 500 {
				all = append(all, fmt.Sprintf("dnsaddr=/ip4/192.0.2.%d/tcp/%d/p2p/%s", i%250, i+1, id))
			}
			return all
		}, 1},
		"names without end": {func(n int) []string {
			return []string{fmt.Sprintf("dnsaddr=/dnsaddr/n%d.example.org", n), fmt.Sprintf("dnsaddr=/dnsaddr/m%d.example.org", n)}
		}, 0},
		"itself":                {func(int) []string { return []string{"dnsaddr=/dnsaddr/example.org"} }, 0},
		"none":                  {func(int) []string { return nil }, 0},
		"an address without id": {func(int) []string { return []string{"dnsaddr=/ip4/192.0.2.1/tcp/1"} }, 0},
	} {
		asked := 0
		peers, err := resolve(t.Context(), resolverOf(t, texted(func(string) ([]string, error) {
			asked++
			return c.text(asked), nil
		})), name)
		if len(peers) != c.peers || (err != nil) != (c.peers == 0) || asked > 1<<maxNameDepth {
			t.Errorf("%s: %d peers after %d questions, %v", what, len(peers), asked, err)
		}
		for _, p := range peers {
			if len(p.Addrs) > maxNameAddrs {
				t.Errorf("%s: %d addresses", what, len(p.Addrs))
			}
		}
	}
}

// A lookup that fails keeps the peers of the last one.
func TestNamesThatFail(t *testing.T) {
	t.Parallel()
	down := false
	b := bootstrapOf(t, started(t, Options{}), inMemory(), "/dnsaddr/example.org")
	var log strings.Builder
	b.log = slog.New(slog.NewTextHandler(&log, nil))
	b.resolver = resolverOf(t, texted(func(string) ([]string, error) {
		if down {
			return nil, errors.New("no answer")
		}
		return []string{"dnsaddr=/ip4/192.0.2.1/tcp/1/p2p/" + didtest.NewKey().DID().PeerText()}, nil
	}))
	if !b.resolveNames(t.Context(), time.Minute) || len(b.Peers()) != 1 {
		t.Fatalf("got %v", b.Peers())
	}
	if down = true; b.resolveNames(t.Context(), time.Minute) || len(b.Peers()) != 1 || !strings.Contains(log.String(), "/dnsaddr/example.org") {
		t.Errorf("after a failure: %v, log %s", b.Peers(), log.String())
	}
	b.resolveNames(t.Context(), time.Minute)
	if s := b.State(); len(s) != 1 || s[0].State != api.BootstrapUnreachable || s[0].Addr != "/dnsaddr/example.org" || s[0].Next.IsZero() || strings.Count(log.String(), "not reached") != 1 {
		t.Errorf("the same failure again: %+v, log %s", s, log.String())
	}
}
