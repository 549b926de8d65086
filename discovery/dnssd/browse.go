package dnssd

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

const (
	entriesMax = 256 // introductions that are kept
	perSource  = 16  // of one address
	addrsMax   = 8   // of one introduction
	textMax    = 1300
	askEvery   = 15 * time.Minute // the longest pause; what changes is announced anyway
	answersMax = 40               // known answers in a question, questions in a packet: it shall not be split
	patience   = 10 * time.Second // for what is missing of an entry
)

// A cache holds what others announce. It grows by entries that somebody points to (PTR) and by nothing else.
type cache struct {
	self    string // the own host: what it announces is no news
	entries map[string]*entry
	pause   time.Duration // until the next question but one
	next    time.Time     // of the next question
}

// An entry is what is known of one instance. Times are ends; what is past is not known.
type entry struct {
	key    string // its name in lower case
	name   string
	udp    bool
	source netip.Addr // who pointed to it first: it counts as that one's
	from   netip.Addr // who said where it is
	link   int        // on which it was said: addresses of the host on another are not taken
	ptr    time.Time

	host  string
	port  uint16
	srv   time.Time
	text  []string
	txt   time.Time
	addrs map[netip.Addr]time.Time

	ask     time.Time // when its records are asked for
	asked   int       // how often that was in vain
	planned time.Time // the end that ask was made for
	since   time.Time
	fresh   bool // something was heard of it since it was last told
	told    Introduction
}

func newCache(self string) *cache {
	return &cache{self: self, entries: map[string]*entry{}, pause: time.Second}
}

// again asks anew, as after a start: at once, then less and less (RFC 6762 §5.2).
func (c *cache) again(now time.Time) { c.pause, c.next = time.Second, now }

func (c *cache) deadline() time.Time {
	at := c.next
	for _, e := range c.entries {
		at = earliest(at, e.ends())
		if e.host != c.self {
			at = earliest(at, e.ask)
		}
	}
	return at
}

func (e *entry) complete() bool { return !e.srv.IsZero() && !e.txt.IsZero() && len(e.addrs) > 0 }

// ends is when the entry is dropped if nothing is heard: its first part is past, or what is missing never came.
func (e *entry) ends() time.Time {
	if !e.complete() {
		return earliest(e.ptr, e.since.Add(patience))
	}
	var last time.Time // one address of several is enough
	for _, until := range e.addrs {
		if until.After(last) {
			last = until
		}
	}
	return earliest(earliest(e.ptr, e.srv), earliest(e.txt, last))
}

// tick asks what is due: who is there, and what entries lack or are about to.
func (c *cache) tick(links map[int]link, now time.Time) []parcel {
	msg := &dns.Msg{Compress: true}
	ask := func(name string, rrtype uint16) {
		if len(msg.Question) < answersMax {
			msg.Question = append(msg.Question, dns.Question{Name: name, Qtype: rrtype, Qclass: dns.ClassINET})
		}
	}
	if !now.Before(c.next) {
		for _, service := range []string{overTCP, overUDP, directory} {
			ask(service, dns.TypePTR)
		}
		msg.Answer = c.known(now)
		c.next = now.Add(c.pause)
		c.pause = min(3*c.pause, askEvery)
	}
	for _, e := range c.entries {
		if now.Before(e.ask) || e.host == c.self {
			continue
		}
		e.asked++
		e.ask = now.Add(time.Second << min(e.asked, 10))
		ask(e.name, dns.TypeSRV)
		ask(e.name, dns.TypeTXT)
		if e.host != "" {
			ask(e.host, dns.TypeA)
			ask(e.host, dns.TypeAAAA)
		}
		if e.complete() {
			ask(service(e), dns.TypePTR)
		}
	}
	if len(msg.Question) == 0 {
		return nil
	}
	var out []parcel
	for index := range links {
		out = append(out, parcel{msg: msg, link: index})
	}
	return out
}

func service(e *entry) string {
	if e.udp {
		return overUDP
	}
	return overTCP
}

// known are the pointers that need no answer (RFC 6762 §7.1).
func (c *cache) known(now time.Time) []dns.RR {
	var all []dns.RR
	for _, e := range c.entries {
		left := e.ptr.Sub(now) / time.Second
		if e.complete() && left > ttlOther/2 && len(all) < answersMax {
			all = append(all, &dns.PTR{Hdr: header(service(e), dns.TypePTR, uint32(left)), Ptr: e.name})
		}
	}
	return all
}

// hear takes a response that came over l from an address of it: pointers first, then what the entries are, then where.
func (c *cache) hear(msg *dns.Msg, from netip.Addr, l link, now time.Time) {
	records := slices.Concat(msg.Answer, msg.Extra)
	for _, rr := range records {
		if ptr, ok := rr.(*dns.PTR); ok {
			c.point(ptr, from, now)
		}
	}
	hosts := map[string][]dns.RR{}
	for _, rr := range records {
		switch rr := rr.(type) {
		case *dns.SRV:
			if e := c.entries[strings.ToLower(rr.Hdr.Name)]; e != nil {
				e.locate(rr, from, l, now)
			}
		case *dns.TXT:
			if e := c.entries[strings.ToLower(rr.Hdr.Name)]; e != nil && size(rr.Txt) <= textMax {
				e.text, e.txt, e.fresh = rr.Txt, until(rr, now), true
			}
		case *dns.A, *dns.AAAA:
			host := strings.ToLower(rr.Header().Name)
			hosts[host] = append(hosts[host], rr)
		}
	}
	for _, e := range c.entries {
		if all := hosts[e.host]; len(all) > 0 && e.link == l.index {
			e.reach(all, l, now)
		}
		e.plan(now)
	}
}

// until is when rr ends. Goodbye is in a second (RFC 6762 §10.1); and nobody is believed for longer than the usual time.
func until(rr dns.RR, now time.Time) time.Time {
	return now.Add(time.Duration(max(1, min(rr.Header().Ttl, ttlOther))) * time.Second)
}

func size(all []string) (n int) {
	for _, s := range all {
		n += 1 + len(s)
	}
	return n
}

func (c *cache) point(ptr *dns.PTR, from netip.Addr, now time.Time) {
	var of string
	switch strings.ToLower(ptr.Hdr.Name) {
	case overTCP, directory:
		of = overTCP
	case overUDP, "_directory._sub." + overUDP:
		of = overUDP
	default:
		return
	}
	key := strings.ToLower(ptr.Ptr)
	label, isInstance := strings.CutSuffix(key, "."+of)
	if !isInstance || dns.CountLabel(key) != dns.CountLabel(of)+1 || label == "" {
		return
	}
	e := c.entries[key]
	if e == nil {
		if ptr.Hdr.Ttl == 0 || len(c.entries) >= entriesMax || c.of(from) >= perSource {
			return
		}
		e = &entry{key: key, name: ptr.Ptr, udp: of == overUDP, source: from, since: now, ask: now, addrs: map[netip.Addr]time.Time{}}
		c.entries[key] = e
	}
	e.ptr, e.fresh = until(ptr, now), true
}

// of counts the entries of a source.
func (c *cache) of(source netip.Addr) (n int) {
	for _, e := range c.entries {
		if e.source == source {
			n++
		}
	}
	return n
}

// locate takes where the entry is. Another host begins without addresses.
func (e *entry) locate(srv *dns.SRV, from netip.Addr, l link, now time.Time) {
	host := strings.ToLower(srv.Target)
	if srv.Port == 0 || host == "." {
		return
	}
	if host != e.host {
		e.addrs = map[netip.Addr]time.Time{}
	}
	if host != e.host || srv.Port != e.port { // else the same comes over IPv4 and IPv6 in turn
		e.host, e.port, e.from, e.link = host, srv.Port, from, l.index
	}
	e.srv, e.fresh = until(srv, now), true
}

// reach takes addresses of the host that are on the link they are told on: others are of no use there (RFC 6762 §6.2), or are
// where who tells them has no way to. A record that says it is all there is (§10.2) ends those of its kind.
func (e *entry) reach(records []dns.RR, l link, now time.Time) {
	e.fresh = true
	maps.DeleteFunc(e.addrs, func(_ netip.Addr, until time.Time) bool { return !now.Before(until) })
	for _, rr := range records {
		if rr.Header().Class&flush == 0 {
			continue
		}
		for addr := range e.addrs {
			if addr.Is4() == (rr.Header().Rrtype == dns.TypeA) && (addr.Zone() == "" || addr.Zone() == l.name) {
				delete(e.addrs, addr)
			}
		}
	}
	for _, rr := range records {
		addr, ok := hostAddr(rr)
		if ok = ok && l.has(addr); ok && addr.Is6() && addr.IsLinkLocalUnicast() {
			addr = addr.WithZone(l.name)
		}
		if _, have := e.addrs[addr]; ok && (have || len(e.addrs) < addrsMax) {
			e.addrs[addr] = until(rr, now)
		}
	}
}

// plan sets when the records are asked for again: when a fifth of the time is left (RFC 6762 §5.2). Only another end moves it,
// or a busy network would move it forever.
func (e *entry) plan(now time.Time) {
	if end := e.ends(); e.complete() && end != e.planned {
		left := end.Sub(now)
		e.planned, e.ask, e.asked = end, now.Add(left-left/5), 0
	}
}

// changes returns what is new or renewed since the last call, and what is gone; it forgets what is past.
func (c *cache) changes(now time.Time) []Change {
	var all []Change
	for key, e := range c.entries {
		past := !now.Before(e.ends())
		if past {
			delete(c.entries, key)
		}
		if !past && !e.fresh {
			continue
		}
		e.fresh = false
		in, ok := e.introduction(now)
		switch {
		case !past && ok && e.host != c.self:
			e.told = in
			all = append(all, Change{Introduction: in})
		case e.told.Name != "":
			all = append(all, Change{Introduction: e.told, Gone: true})
			e.told = Introduction{}
		}
	}
	return all
}

// introduction is what the entry says, if it says all that is needed.
func (e *entry) introduction(now time.Time) (Introduction, bool) {
	var addrs []netip.Addr
	for addr, until := range e.addrs {
		if now.Before(until) {
			addrs = append(addrs, addr)
		}
	}
	t, err := parseText(e.text, e.udp)
	if !e.complete() || err != nil || len(addrs) == 0 {
		return Introduction{}, false
	}
	slices.SortFunc(addrs, byUse)
	label := dns.SplitDomainName(e.name)[0]
	return Introduction{
		Name: e.key, Instance: readable(unescape(label)), URL: t.address(addrs[0], e.port), Type: t.kind,
		Network: readable([]byte(t.network)), Host: strings.TrimSuffix(e.host, "."), Addrs: addrs, From: e.from, Expires: e.ends(),
	}, true
}

// byUse sorts addresses by how likely they are to work anywhere else in the program.
func byUse(a, b netip.Addr) int {
	rank := func(x netip.Addr) int {
		switch {
		case x.Is4():
			return 0
		case x.IsLinkLocalUnicast():
			return 2
		}
		return 1
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), a.Compare(b))
}
