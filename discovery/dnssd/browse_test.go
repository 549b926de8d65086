package dnssd

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

var (
	lan   = link{index: testLink, name: "lan0", nets: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8")}}
	epoch = time.Unix(1e9, 0)

	discard = slog.New(slog.DiscardHandler)
)

// The cache is bounded: per source, in all, and per entry.
func TestFloods(t *testing.T) {
	t.Parallel()
	c := newCache("self.local.")
	for i := range 3000 {
		host := fmt.Sprintf("h%d.local.", i)
		from := netip.AddrFrom4([4]byte{10, 0, 0, 9})
		if i >= 1000 {
			from = netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		}
		c.receive(entryOf(t, overTCP, fmt.Sprintf("x%d", i), host, "10.0.0.9", "80", `"td=/"`), from, lan, epoch)
		if i == 999 && len(c.entries) != perSource {
			t.Errorf("one source has %d entries, want %d", len(c.entries), perSource)
		}
	}
	many := &dns.Msg{MsgHdr: dns.MsgHdr{Response: true}}
	for i := range 200 {
		many.Answer = append(many.Answer, rr(t, fmt.Sprintf("h0.local. 120 IN A 10.0.1.%d", i)))
	}
	many.Answer = append(many.Answer, rr(t, "x0._wot._tcp.local. 120 IN TXT "+strings.Repeat(`"`+strings.Repeat("y", 250)+`" `, 6)))
	c.receive(many, netip.MustParseAddr("10.0.0.9"), lan, epoch)
	e := c.entries["x0._wot._tcp.local."]
	if len(c.entries) != entriesMax || len(e.addrs) != addrsMax || size(e.text) > 10 {
		t.Errorf("%d entries, %d addresses, %d bytes of text", len(c.entries), len(e.addrs), size(e.text))
	}
	for _, p := range c.tick(map[int]link{testLink: lan}, epoch.Add(100*time.Second)) {
		if len(p.msg.Question) > answersMax || len(p.msg.Answer) > answersMax {
			t.Errorf("%d questions, %d known answers", len(p.msg.Question), len(p.msg.Answer))
		}
	}
	if n := len(c.changes(epoch)); n != entriesMax {
		t.Errorf("%d changes", n)
	}
	if n := len(c.changes(epoch.Add(ttlOther * time.Second))); n != entriesMax || len(c.entries) != 0 {
		t.Errorf("%d changes, %d entries after all have expired", n, len(c.entries))
	}
}

func TestRates(t *testing.T) {
	t.Parallel()
	r := newRates()
	allowed := 0
	for i := range 100000 {
		if r.allow(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), epoch) {
			allowed++
		}
	}
	if allowed != sourcesMax+perSecond || r.each.Len() > sourcesMax+1 {
		t.Errorf("%d packets of as many sources were allowed, %d sources counted", allowed, r.each.Len())
	}
	if !r.allow(netip.MustParseAddr("10.0.0.1"), epoch.Add(time.Second)) {
		t.Error("no packet in the next second")
	}
}

// The introductions after received messages, record by record: introduction-dns-sd introduction-dns-sd-service-name
// introduction-dns-sd-service-name-directory introduction-dns-sd-service-name-udp.
func TestReceive(t *testing.T) {
	t.Parallel()
	const (
		ptr = `_wot._tcp.local. 4500 IN PTR Lamp._wot._tcp.local.`
		srv = `Lamp._wot._tcp.local. 120 IN SRV 0 0 80 l.local.`
		txt = `Lamp._wot._tcp.local. 4500 IN TXT "td=/td"`
		a   = `l.local. 120 IN A 10.0.0.9`
	)
	const lamp = "lamp._wot._tcp.local. http://10.0.0.9:80/td [10.0.0.9]"
	for _, c := range []struct {
		name     string
		received []string // messages; records separated by newlines
		want     string
	}{
		{"all in one, in any order", []string{strings.Join([]string{a, txt, srv, ptr}, "\n")}, lamp},
		{"one by one", []string{ptr, srv, txt, a}, lamp},
		{"other case", []string{ptr, strings.ToUpper(srv), txt, strings.ToUpper(a)}, lamp},
		{"without text", []string{ptr, srv, a}, ""},
		{"without a PTR record", []string{srv, txt, a}, ""},
		{"withdrawn", []string{ptr, srv, txt, a, strings.Replace(ptr, "4500", "0", 1)}, ""},
		{"by its subtype", []string{"_directory._sub." + ptr, srv, txt, a}, lamp},
		{"another port", []string{ptr, srv, txt, a, strings.Replace(srv, " 80 ", " 81 ", 1)},
			"lamp._wot._tcp.local. http://10.0.0.9:81/td [10.0.0.9]"},
		{"another host", []string{ptr, srv, txt, a, strings.Replace(srv, "l.local", "m.local", 1)}, ""},
		{"one more address", []string{ptr, srv, txt, a, "l.local. 120 IN AAAA fe80::9"},
			"lamp._wot._tcp.local. http://10.0.0.9:80/td [10.0.0.9 fe80::9%lan0]"},
		{"IPv6 only", []string{ptr, srv, txt, "l.local. 120 IN AAAA fe80::9"},
			"lamp._wot._tcp.local. http://[fe80::9%25lan0]:80/td [fe80::9%lan0]"},
		{"a replaced address", []string{ptr, srv, txt, a, "l.local. 120 CLASS32769 A 10.0.0.8"},
			"lamp._wot._tcp.local. http://10.0.0.8:80/td [10.0.0.8]"},
		{"an address of another network", []string{ptr, srv, txt, "l.local. 120 IN A 192.168.7.9\nl.local. 120 IN AAAA fd00::9"}, ""},
		{"an additional address of another network", []string{ptr, srv, txt, a + "\nl.local. 120 IN A 192.168.7.9"}, lamp},
		{"the address of another host", []string{ptr, srv, txt, "m.local. 120 IN A 10.0.0.9"}, ""},
		{"over UDP", []string{strings.NewReplacer("_tcp", "_udp", "80", "5683").Replace(strings.Join([]string{ptr, srv, txt, a}, "\n"))},
			"lamp._wot._udp.local. coap://10.0.0.9:5683/td [10.0.0.9]"},
		{"port 0", []string{ptr, strings.Replace(srv, "80", "0", 1), txt, a}, ""},
		{"no host", []string{ptr, strings.Replace(srv, "l.local.", ".", 1), txt, a}, ""},
		{"the own host", []string{ptr, strings.Replace(srv, "l.local.", "SELF.local.", 1), txt, "self.local. 120 IN A 10.0.0.1"}, ""},
		{"a pointer elsewhere", []string{"_wot._tcp.local. 9 IN PTR Lamp._http._tcp.local."}, ""},
		{"a pointer to itself", []string{"_wot._tcp.local. 9 IN PTR _wot._tcp.local."}, ""},
		{"a pointer below", []string{"_wot._tcp.local. 9 IN PTR a.b._wot._tcp.local."}, ""},
		{"an invalid scheme", []string{ptr, srv, a, `Lamp._wot._tcp.local. 4500 IN TXT "scheme=gopher"`}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cache := newCache("self.local.")
			for _, text := range c.received {
				msg := &dns.Msg{MsgHdr: dns.MsgHdr{Response: true}}
				for line := range strings.Lines(text) {
					msg.Answer = append(msg.Answer, rr(t, line))
				}
				cache.receive(msg, netip.MustParseAddr("10.0.0.9"), lan, epoch)
			}
			known := map[string]Introduction{}
			for _, now := range []time.Time{epoch, epoch.Add(2 * time.Second)} {
				for _, ch := range cache.changes(now) {
					known[ch.Name] = ch.Introduction
					if ch.Gone {
						delete(known, ch.Name)
					}
				}
			}
			var got string
			for _, in := range known {
				got += fmt.Sprint(in.Name, " ", in.URL, " ", in.Addrs)
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// An introduction of a host on two networks of this machine has only addresses of the network where it was received first.
func TestTwoNetworks(t *testing.T) {
	t.Parallel()
	c, other := newCache("self.local."), link{index: 8, name: "lan1", nets: []netip.Prefix{netip.MustParsePrefix("192.168.7.1/24")}}
	c.receive(entryOf(t, overTCP, "lamp", "l.local.", "10.0.0.9", "80", `"td=/"`), netip.MustParseAddr("10.0.0.9"), lan, epoch)
	c.receive(entryOf(t, overTCP, "lamp", "l.local.", "192.168.7.9", "80", `"td=/"`), netip.MustParseAddr("192.168.7.9"), other, epoch)
	all := c.changes(epoch)
	if len(all) != 1 || fmt.Sprint(all[0].Addrs, all[0].From) != "[10.0.0.9] 10.0.0.9" {
		t.Fatalf("got %+v", all)
	}
	later := epoch.Add(200 * time.Second) // its records of the first network have expired
	c.changes(later)
	c.receive(entryOf(t, overTCP, "lamp", "l.local.", "192.168.7.9", "80", `"td=/"`), netip.MustParseAddr("192.168.7.9"), other, later)
	if all = c.changes(later); len(all) != 1 || fmt.Sprint(all[0].Addrs, all[0].From) != "[192.168.7.9] 192.168.7.9" {
		t.Errorf("got %+v", all)
	}
}

// Alternating messages of a host over IPv4 and IPv6 are not a change.
func TestTwoSenderAddresses(t *testing.T) {
	t.Parallel()
	c := newCache("self.local.")
	var all []Change
	for _, from := range []string{"10.0.0.9", "fe80::9%lan0", "10.0.0.9"} {
		c.receive(entryOf(t, overTCP, "x", "h.local.", "10.0.0.9", "80", `"td=/"`), netip.MustParseAddr(from), lan, epoch)
		all = append(all, c.changes(epoch)...)
	}
	if len(all) != 3 || !all[0].isSame(all[1].Introduction) || !all[1].isSame(all[2].Introduction) ||
		all[2].From != netip.MustParseAddr("10.0.0.9") {
		t.Errorf("got %+v", all)
	}
}

// TTLs have an upper limit.
func TestTTLsAreBounded(t *testing.T) {
	t.Parallel()
	c := newCache("self.local.")
	msg := entryOf(t, overTCP, "x", "h.local.", "10.0.0.9", "80", `"td=/"`)
	for _, rr := range msg.Answer {
		rr.Header().Ttl = 1 << 31
	}
	c.receive(msg, netip.MustParseAddr("10.0.0.9"), lan, epoch)
	if got := c.changes(epoch); len(got) != 1 || got[0].Expires != epoch.Add(ttlOther*time.Second) {
		t.Errorf("got %+v", got)
	}
}

// RFC 6763 §6, WoT Discovery §6.3: introduction-dns-sd-txt-record introduction-dns-sd-txt-record-udp.
func TestParseText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		in   []string
		udp  bool
		want text // empty: an error
	}{
		{"empty", nil, false, text{"/.well-known/wot", "Thing", "http", ""}},
		{"empty, over UDP", []string{""}, true, text{"/.well-known/wot", "Thing", "coap", ""}},
		{"all, in any order and case", []string{"SCHEME=HTTPS", "x", "Type=directory", "lmos=net", "TD=/td"}, false,
			text{"/td", "Directory", "https", "net"}},
		{"the first of duplicates", []string{"td=/a", "td=/b", "=", "=c"}, false, text{"/a", "Thing", "http", ""}},
		{"without a slash", []string{"td=things/1?x=y"}, false, text{"/things/1?x=y", "Thing", "http", ""}},
		{"escapes", []string{`td=/\"\195\164`}, false, text{`/"ä`, "Thing", "http", ""}},
		{"unknown type", []string{"type=Zoo"}, false, text{"/.well-known/wot", "Thing", "http", ""}},
		{"CoAP over TCP", []string{"scheme=coaps+tcp"}, false, text{"/.well-known/wot", "Thing", "coaps+tcp", ""}},
		{"a URL stays a path", []string{"td=http://evil/x"}, false, text{"/http://evil/x", "Thing", "http", ""}},
		{"two slashes stay a path", []string{"td=//evil/x"}, false, text{"//evil/x", "Thing", "http", ""}},
		{"HTTP over UDP", []string{"scheme=http"}, true, text{}},
		{"CoAP over UDP as TCP", []string{"scheme=coap"}, false, text{}},
		{"a control character", []string{`td=/\010`}, false, text{}},
	} {
		got, err := parseText(c.in, c.udp)
		if err != nil {
			got = text{}
		}
		if got != c.want {
			t.Errorf("%s: got %+v (%v), want %+v", c.name, got, err, c.want)
		}
	}
}

// Package dns returns names with the same escapes, so that names can be compared.
func TestEscape(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"lab", "my lab", "v1.2", `a\b"c`, "ä (2)", "\x00\x1f\x7f\xff", "a@b;c'd$e", `\046`} {
		wire := make([]byte, 300)
		if _, err := dns.PackDomainName(escape(s)+"."+overTCP, wire, 0, nil, false); err != nil {
			t.Errorf("%q: %v", s, err)
			continue
		}
		back, _, err := dns.UnpackDomainName(wire, 0)
		if err != nil || back != escape(s)+"."+overTCP || string(unescape(escape(s))) != s {
			t.Errorf("%q: escaped %q, unpacked %q (%v)", s, escape(s), back, err)
		}
	}
}

func FuzzText(f *testing.F) {
	for _, s := range []string{"td=/x\x00type=Directory", "scheme=https", `td=//h\064x`, `\`, `\25`, `td=%zz`} {
		f.Add(s, false)
	}
	f.Fuzz(func(t *testing.T, s string, udp bool) {
		got, err := parseText(strings.Split(s, "\x00"), udp)
		if err != nil {
			return
		}
		address := got.address(netip.MustParseAddr("10.0.0.9"), 80)
		if !strings.HasPrefix(address, got.scheme+"://10.0.0.9:80/") {
			t.Errorf("%q leads to %q", s, address)
		}
	})
}

// Any packet is processed without a panic, and the cache stays valid.
func FuzzPacket(f *testing.F) {
	for _, m := range []*dns.Msg{
		entryOf(f, overTCP, `Lamp\ 1`, "l.local.", "10.0.0.9", "80", `"td=/td" "type=Directory"`), question(overTCP, dns.TypePTR),
		{Question: question(`lab._wot._tcp.local.`, dns.TypeANY).Question,
			Ns: []dns.RR{rr(f, `lab._wot._tcp.local. 120 IN SRV 0 0 1 x.local.`)}},
	} {
		b, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		msg, err := unpack(b)
		if err != nil {
			return
		}
		r, c := newResponder("lab", "self.local.", "", discard), newCache("self.local.")
		r.service, r.phase = announcedService{port: 80}, announced
		links := map[int]link{testLink: lan}
		from := netip.MustParseAddr("10.0.0.9")
		out := r.query(msg, packet{from: netip.AddrPortFrom(from, 9)}, lan, epoch)
		r.checkConflict(msg, epoch)
		c.receive(msg, from, lan, epoch)
		for _, now := range []time.Time{epoch, epoch.Add(time.Second), epoch.Add(time.Minute)} {
			out = slices.Concat(out, r.tick(links, now), c.tick(links, now))
			c.changes(now)
		}
		for _, p := range out {
			if b, err := p.msg.Pack(); err != nil || len(b) > packetMax {
				t.Errorf("%d bytes, %v: %v", len(b), err, p.msg)
			}
		}
	})
}
