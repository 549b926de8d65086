package dnssd

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// inBubble runs a test in simulated time.
func inBubble(t *testing.T, f func(t *testing.T, n *testNetwork)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { f(t, &testNetwork{}) })
}

func urls(s *Service) []string {
	var all []string
	for _, in := range s.Introductions() {
		all = append(all, in.Instance+" "+in.URL)
	}
	slices.Sort(all)
	return all
}

func want(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestNodesFindEachOther(t *testing.T) {
	inBubble(t, func(t *testing.T, n *testNetwork) {
		a, _ := start(t, n.connect("10.0.0.1"), Options{Name: "lab α.1", Network: "home"})
		b, stop := start(t, n.connect("10.0.0.2"), Options{})
		a.Announce(4680, false)
		b.Announce(4681, true)
		time.Sleep(5 * time.Second)
		want(t, urls(a), "lmosd https://10.0.0.2:4681/.well-known/wot")
		want(t, urls(b), "lab α.1 http://10.0.0.1:4680/.well-known/wot")
		in := b.Introductions()[0]
		if in.Type != "Directory" || in.Network != "home" || in.From != netip.MustParseAddr("10.0.0.1") || in.Host != a.Host() ||
			!strings.HasSuffix(in.Host, ".local") {
			t.Errorf("got %+v", in)
		}

		a.Announce(5000, false)
		time.Sleep(time.Second)
		want(t, urls(b), "lab α.1 http://10.0.0.1:5000/.well-known/wot")
		a.Announce(0, false)
		time.Sleep(2 * time.Second)
		want(t, urls(b))
		stop()
		time.Sleep(2 * time.Second)
		want(t, urls(a)) // b sent a goodbye
	})
}

func TestIntroductionsAreRenewedForHours(t *testing.T) {
	inBubble(t, func(t *testing.T, n *testNetwork) {
		a, _ := start(t, n.connect("10.0.0.1"), Options{})
		b, _ := start(t, n.connect("10.0.0.2"), Options{})
		a.Announce(1, false)
		count := 0
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Hour)
		defer cancel()
		for range b.Watch(ctx) {
			count++
		}
		if count != 1 || len(b.Introductions()) != 1 {
			t.Errorf("%d changes in 5 h, and %d introductions; want one without changes", count, len(b.Introductions()))
		}
	})
}

func TestSilentHostsExpire(t *testing.T) {
	inBubble(t, func(t *testing.T, n *testNetwork) {
		p, peer := n.connect("10.0.0.1"), n.connect("10.0.0.9")
		s, _ := start(t, p, Options{})
		changes := make(chan Change, 16)
		go func() {
			for c := range s.Watch(t.Context()) {
				changes <- c
			}
		}()
		peer.send(t, entryOf(t, overTCP, `Lamp\ 1`, "lamp.local.", "10.0.0.9", "80", `"td=/td"`))
		if c := <-changes; c.Gone || c.Instance != "Lamp 1" || c.URL != "http://10.0.0.9:80/td" || c.Type != "Thing" {
			t.Errorf("got %+v", c)
		}
		queries := 0
		start := time.Now()
		c := <-changes
		if after := time.Since(start); !c.Gone || c.Instance != "Lamp 1" || after != 120*time.Second {
			t.Errorf("after %v: got %+v, want it removed", after, c)
		}
		for _, m := range peer.received(t, 0) {
			if slices.ContainsFunc(m.Question, func(q dns.Question) bool { return q.Name == "lamp.local." && q.Qtype == dns.TypeA }) {
				queries++
			}
		}
		if queries < 2 || queries > 6 {
			t.Errorf("%d queries for its address", queries)
		}
	})
}

func TestNameConflicts(t *testing.T) {
	inBubble(t, func(t *testing.T, n *testNetwork) {
		var all []*Service
		for i := range 3 {
			s, _ := start(t, n.connect(fmt.Sprintf("10.0.0.%d", i+1)), Options{Name: "lab"})
			s.Announce(4680, false) // two start at the same time, the third later
			if all = append(all, s); i > 0 {
				time.Sleep(20 * time.Second)
			}
		}
		var names []string
		for _, s := range all {
			names = append(names, s.Name())
		}
		if slices.Sort(names); len(slices.Compact(slices.Clone(names))) != 3 || names[0] != "lab" {
			t.Errorf("got %q, want three names, one of them lab", names)
		}
		if got := urls(all[0]); len(got) != 2 {
			t.Errorf("the first has the introductions %q", got)
		}
	})
}

// The owner of a name answers probes at once, and announces again after a conflict that it wins. RFC 6762 §8.1, §9.
func TestConflictsForAnOwnedName(t *testing.T) {
	inBubble(t, func(t *testing.T, n *testNetwork) {
		s, _ := start(t, n.connect("10.0.0.1"), Options{Name: "lab"})
		peer := n.connect("10.0.0.9")
		s.Announce(4680, false)
		time.Sleep(10 * time.Second)
		peer.received(t, 0)
		probe := question("lab."+overTCP, dns.TypeANY)
		probe.Ns = []dns.RR{rr(t, "lab._wot._tcp.local. 120 IN SRV 0 0 65535 zz.local.")}
		peer.send(t, probe)
		if m := peer.answers(t, 10*time.Millisecond); len(m) != 1 || kinds(m[0].Answer) != "SRV,TXT" {
			t.Errorf("a probe is answered by %v", m)
		}
		peer.send(t, entryOf(t, overTCP, "lab", "zz.local.", "10.0.0.9", "1", `""`))
		if m := peer.answers(t, 5*time.Second); len(m) < 3 || s.Name() != "lab" {
			t.Errorf("%d announcements after a won conflict, and the name is %q", len(m), s.Name())
		}
		peer.send(t, entryOf(t, overTCP, "lab", "zz.local.", "10.0.0.9", "65535", `""`))
		if time.Sleep(5 * time.Second); s.Name() != "lab (2)" {
			t.Errorf("after a lost conflict the name is %q", s.Name())
		}
	})
}

func TestRenamesAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, n *testNetwork) {
		rival := n.connect("10.0.0.9")
		s, _ := start(t, n.connect("10.0.0.1"), Options{Name: strings.Repeat("ä", 40)})
		s.Announce(4680, false)
		for range 200 {
			time.Sleep(100 * time.Millisecond)
			if s.Name() != "" {
				rival.send(t, entryOf(t, overTCP, escape(s.Name()), "zz.local.", "10.0.0.9", "65535", `""`))
			}
		}
		time.Sleep(5 * time.Second)
		if got := len(s.Name()); got > 63 || s.self.phase != announced {
			t.Errorf("a name of %d bytes, phase %d, want phase announced", got, s.self.phase)
		}
	})
}

// Queries and their answers: RFC 6762 §5.4, §6, §6.7, §7.1, §11; RFC 6763 §4, §7.1, §9. introduction-dns-sd-service-name
// introduction-dns-sd-service-name-directory sec-tdd-intro-no-ext
func TestQueriesAreAnswered(t *testing.T) {
	inBubble(t, func(t *testing.T, n *testNetwork) {
		p := n.connect("10.0.0.1")
		s, _ := start(t, p, Options{Name: "my lab"})
		s.Announce(4680, false)
		time.Sleep(10 * time.Second)
		peer := n.connect("10.0.0.9")
		const full = `my\ lab._wot._tcp.local.`
		known := question(overTCP, dns.TypePTR)
		known.Answer = []dns.RR{rr(t, overTCP+" 3000 IN PTR "+full)}
		stale := question(overTCP, dns.TypePTR)
		stale.Answer = []dns.RR{rr(t, overTCP+" 1000 IN PTR "+full)}
		one := question(overTCP, dns.TypePTR)
		one.Question[0].Qclass |= flush
		chaos := question(overTCP, dns.TypePTR)
		chaos.Question[0].Qclass = dns.ClassCHAOS
		update := question(overTCP, dns.TypePTR)
		update.Opcode = dns.OpcodeUpdate
		packed := func(m *dns.Msg) []byte {
			b, err := m.Pack()
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		near, far := peer.from, netip.MustParseAddrPort("192.0.2.1:5353")
		for _, c := range []struct {
			name  string
			msg   *dns.Msg
			from  netip.AddrPort
			group bool
			want  string
		}{
			{"the service", question(overTCP, dns.TypePTR), near, true, "PTR+SRV,TXT,A"},
			{"the subtype", question(directory, dns.TypePTR), near, true, "PTR+SRV,TXT,A"},
			{"in capitals", question("_WOT._TCP.Local.", dns.TypePTR), near, true, "PTR+SRV,TXT,A"},
			{"everything of the service", question(overTCP, dns.TypeANY), near, true, "PTR+SRV,TXT,A"},
			{"service types", question(allTypes, dns.TypePTR), near, true, "PTR+SRV,TXT,A"},
			{"the host", question(full, dns.TypeSRV), near, true, "SRV+TXT,A"},
			{"everything of the entry", question(full, dns.TypeANY), near, true, "SRV,TXT+A"},
			{"the address", question(s.self.host, dns.TypeA), near, true, "A+SRV,TXT"},
			{"with a unicast-response bit", one, near, true, "PTR+SRV,TXT,A"},
			{"known answer with a short TTL", stale, near, true, "PTR+SRV,TXT,A"},
			{"known answer", known, near, true, ""},
			{"another service", question("_http._tcp.local.", dns.TypePTR), near, true, ""},
			{"another class", chaos, near, true, ""},
			{"another operation", update, near, true, ""},
			{"from another network", question(overTCP, dns.TypePTR), far, true, ""},
			{"to this machine only", question(overTCP, dns.TypePTR), near, false, ""},
		} {
			time.Sleep(2 * time.Second)
			peer.received(t, 0)
			p.in <- packet{data: packed(c.msg), link: testLink, from: c.from, group: c.group}
			var got string
			for _, m := range peer.answers(t, time.Second) {
				got += kinds(m.Answer) + "+" + kinds(m.Extra)
			}
			if got != c.want {
				t.Errorf("%s: got %q, want %q", c.name, got, c.want)
			}
		}
		time.Sleep(2 * time.Second)
		peer.received(t, 0)
		resolver := question(overTCP, dns.TypePTR)
		resolver.Id = 77
		p.in <- packet{data: packed(resolver), link: testLink, from: netip.AddrPortFrom(near.Addr(), 4000), group: true}
		if m := peer.answers(t, time.Second); len(m) != 1 || m[0].Id != 77 || len(m[0].Question) != 1 || m[0].Answer[0].Header().Ttl != 10 ||
			m[0].Extra[0].Header().Class != dns.ClassINET {
			t.Errorf("a unicast resolver received %v", m)
		}
		for range 500 {
			p.in <- packet{data: packed(question(overTCP, dns.TypePTR)), link: testLink, from: near, group: true}
			time.Sleep(10 * time.Millisecond)
		}
		if n := len(peer.answers(t, time.Second)); n > 6 {
			t.Errorf("%d answers in 5 s, want one per second", n)
		}
	})
}

func kinds(all []dns.RR) string {
	var names []string
	for _, rr := range all {
		names = append(names, dns.TypeToString[rr.Header().Rrtype])
	}
	return strings.Join(names, ",")
}

// WoT Discovery §6.3: td, type, and scheme only if it is not the default; the key of lmosd is last:
// introduction-dns-sd-txt-record.
func TestAnnouncedText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		https   bool
		network string
		want    []string
	}{
		{false, "", []string{"td=/.well-known/wot", "type=Directory"}},
		{true, "a net", []string{"td=/.well-known/wot", "type=Directory", "scheme=https", `lmos=a\ net`}},
	} {
		r := newResponder("x", "h.local.", c.network, nil)
		r.service = announcedService{1, c.https}
		want(t, r.txt().Txt, c.want...)
	}
}

func TestInterfaceChanges(t *testing.T) {
	inBubble(t, func(t *testing.T, n *testNetwork) {
		p := n.connect("10.0.0.1")
		nets := p.nets
		p.nets = nil
		a, _ := start(t, p, Options{})
		b, _ := start(t, n.connect("10.0.0.2"), Options{})
		a.Announce(80, false)
		time.Sleep(20 * time.Second)
		want(t, urls(b))
		p.mu.Lock()
		p.nets = append(nets, netip.MustParsePrefix("10.0.0.77/24"), netip.MustParsePrefix("fe80::1/64"))
		p.mu.Unlock()
		time.Sleep(20 * time.Second)
		want(t, urls(b), "lmosd http://10.0.0.1:80/.well-known/wot")
		if in := b.Introductions()[0]; fmt.Sprint(in.Addrs) != "[10.0.0.1 10.0.0.77 fe80::1%lan0]" {
			t.Errorf("got %v", in.Addrs)
		}
	})
}
