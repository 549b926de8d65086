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
	entriesMax      = 256 // introductions
	perSource       = 16  // introductions of one address
	addrsMax        = 8   // addresses of one introduction
	textMax         = 1300
	queryInterval   = 15 * time.Minute // longest interval of queries; hosts announce changes
	answersMax      = 40               // known answers in a query, and questions in a packet, so that it fits into one packet
	completeTimeout = 10 * time.Second // time limit for the missing records of an entry
)

// A cache has the announcements of other hosts. Only PTR records create entries.
type cache struct {
	self    string // the host name of this node, whose announcements are ignored
	entries map[string]*entry
	pause   time.Duration // between the next two queries
	next    time.Time     // time of the next query
}

// An entry is an instance with its records. Times are expirations.
type entry struct {
	key    string // its name in lower case
	name   string
	udp    bool
	source netip.Addr // first sender of the PTR record: the entry counts for its limit
	sender netip.Addr // sender of the SRV record
	link   int        // link of the SRV record: addresses of the host on other links are ignored
	ptr    time.Time

	host  string
	port  uint16
	srv   time.Time
	text  []string
	txt   time.Time
	addrs map[netip.Addr]time.Time

	queryAt  time.Time // time of the next query for its records
	queries  int       // unanswered queries
	planned  time.Time // the expiration for which queryAt was set
	since    time.Time
	fresh    bool // a record was received since the last report
	reported Introduction
}

func newCache(self string) *cache {
	return &cache{self: self, entries: map[string]*entry{}, pause: time.Second}
}

// restart restarts the queries: at once, and then at growing intervals (RFC 6762 §5.2).
func (c *cache) restart(now time.Time) { c.pause, c.next = time.Second, now }

func (c *cache) deadline() time.Time {
	at := c.next
	for _, e := range c.entries {
		at = earliest(at, e.ends())
		if e.host != c.self {
			at = earliest(at, e.queryAt)
		}
	}
	return at
}

func (e *entry) complete() bool { return !e.srv.IsZero() && !e.txt.IsZero() && len(e.addrs) > 0 }

// ends returns the time when the entry expires: with its first record, or when records are missing for too long.
func (e *entry) ends() time.Time {
	if !e.complete() {
		return earliest(e.ptr, e.since.Add(completeTimeout))
	}
	var last time.Time // the entry needs one address only
	for _, until := range e.addrs {
		if until.After(last) {
			last = until
		}
	}
	return earliest(earliest(e.ptr, e.srv), earliest(e.txt, last))
}

// tick returns the queries that are due: for instances, and for missing or expiring records.
func (c *cache) tick(links map[int]link, now time.Time) []outgoing {
	msg := &dns.Msg{Compress: true}
	add := func(name string, rrtype uint16) {
		if len(msg.Question) < answersMax {
			msg.Question = append(msg.Question, dns.Question{Name: name, Qtype: rrtype, Qclass: dns.ClassINET})
		}
	}
	if !now.Before(c.next) {
		for _, service := range []string{overTCP, overUDP, directory} {
			add(service, dns.TypePTR)
		}
		msg.Answer = c.known(now)
		c.next = now.Add(c.pause)
		c.pause = min(3*c.pause, queryInterval)
	}
	for _, e := range c.entries {
		if now.Before(e.queryAt) || e.host == c.self {
			continue
		}
		e.queries++
		e.queryAt = now.Add(time.Second << min(e.queries, 10))
		add(e.name, dns.TypeSRV)
		add(e.name, dns.TypeTXT)
		if e.host != "" {
			add(e.host, dns.TypeA)
			add(e.host, dns.TypeAAAA)
		}
		if e.complete() {
			add(e.service(), dns.TypePTR)
		}
	}
	if len(msg.Question) == 0 {
		return nil
	}
	return onEach(links, func(link) *dns.Msg { return msg })
}

// service returns the service type of the entry.
func (e *entry) service() string {
	if e.udp {
		return overUDP
	}
	return overTCP
}

// known returns the known answers of a query (RFC 6762 §7.1).
func (c *cache) known(now time.Time) []dns.RR {
	var all []dns.RR
	for _, e := range c.entries {
		left := e.ptr.Sub(now) / time.Second
		if e.complete() && left > ttlOther/2 && len(all) < answersMax {
			all = append(all, &dns.PTR{Hdr: header(e.service(), dns.TypePTR, uint32(left)), Ptr: e.name})
		}
	}
	return all
}

// receive processes a response from an address of the link l: PTR records first, then the records of entries, then addresses.
func (c *cache) receive(msg *dns.Msg, from netip.Addr, l link, now time.Time) {
	records := slices.Concat(msg.Answer, msg.Extra)
	for _, rr := range records {
		if ptr, ok := rr.(*dns.PTR); ok {
			c.addPointer(ptr, from, now)
		}
	}
	hosts := map[string][]dns.RR{}
	for _, rr := range records {
		switch rr := rr.(type) {
		case *dns.SRV:
			if e := c.entries[strings.ToLower(rr.Hdr.Name)]; e != nil {
				e.setService(rr, from, l, now)
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
			e.setAddrs(all, l, now)
		}
		e.scheduleRenewal(now)
	}
}

// until returns the time when rr expires. A goodbye expires in 1 s (RFC 6762 §10.1); the TTL is at most ttlOther.
func until(rr dns.RR, now time.Time) time.Time {
	return now.Add(time.Duration(max(1, min(rr.Header().Ttl, ttlOther))) * time.Second)
}

func size(all []string) (n int) {
	for _, s := range all {
		n += 1 + len(s)
	}
	return n
}

func (c *cache) addPointer(ptr *dns.PTR, from netip.Addr, now time.Time) {
	var service string
	switch strings.ToLower(ptr.Hdr.Name) {
	case overTCP, directory:
		service = overTCP
	case overUDP, "_directory._sub." + overUDP:
		service = overUDP
	default:
		return
	}
	key := strings.ToLower(ptr.Ptr)
	label, isInstance := strings.CutSuffix(key, "."+service)
	if !isInstance || dns.CountLabel(key) != dns.CountLabel(service)+1 || label == "" {
		return
	}
	e := c.entries[key]
	if e == nil {
		if ptr.Hdr.Ttl == 0 || len(c.entries) >= entriesMax || c.entriesOf(from) >= perSource {
			return
		}
		e = &entry{key: key, name: ptr.Ptr, udp: service == overUDP, source: from, since: now, queryAt: now,
			addrs: map[netip.Addr]time.Time{}}
		c.entries[key] = e
	}
	e.ptr, e.fresh = until(ptr, now), true
}

// entriesOf returns the number of entries of a source.
func (c *cache) entriesOf(source netip.Addr) (n int) {
	for _, e := range c.entries {
		if e.source == source {
			n++
		}
	}
	return n
}

// setService processes an SRV record. A new host starts without addresses.
func (e *entry) setService(srv *dns.SRV, from netip.Addr, l link, now time.Time) {
	host := strings.ToLower(srv.Target)
	if srv.Port == 0 || host == "." {
		return
	}
	if host != e.host {
		e.addrs = map[netip.Addr]time.Time{}
	}
	if host != e.host || srv.Port != e.port { // otherwise copies of the record over IPv4 and IPv6 would alternate the sender
		e.host, e.port, e.sender, e.link = host, srv.Port, from, l.index
	}
	e.srv, e.fresh = until(srv, now), true
}

// setAddrs processes addresses of the host on its link. Addresses of other links are unusable there (RFC 6762 §6.2), or unreachable for the
// sender. A record with the cache-flush bit (§10.2) replaces the addresses of its type.
func (e *entry) setAddrs(records []dns.RR, l link, now time.Time) {
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
		if ok = ok && l.contains(addr); ok && addr.Is6() && addr.IsLinkLocalUnicast() {
			addr = addr.WithZone(l.name)
		}
		if _, have := e.addrs[addr]; ok && (have || len(e.addrs) < addrsMax) {
			e.addrs[addr] = until(rr, now)
		}
	}
}

// scheduleRenewal schedules the query that renews the records at 80 % of their lifetime (RFC 6762 §5.2). Only a new expiration postpones the
// query; otherwise it would never be due on a busy network.
func (e *entry) scheduleRenewal(now time.Time) {
	if end := e.ends(); e.complete() && end != e.planned {
		left := end.Sub(now)
		e.planned, e.queryAt, e.queries = end, now.Add(left-left/5), 0
	}
}

// changes returns new, renewed and removed introductions since the last call, and drops expired entries.
func (c *cache) changes(now time.Time) []Change {
	var all []Change
	for key, e := range c.entries {
		expired := !now.Before(e.ends())
		if expired {
			delete(c.entries, key)
		}
		if !expired && !e.fresh {
			continue
		}
		e.fresh = false
		in, ok := e.introduction(now)
		switch {
		case !expired && ok && e.host != c.self:
			e.reported = in
			all = append(all, Change{Introduction: in})
		case e.reported.Name != "":
			all = append(all, Change{Introduction: e.reported, Gone: true})
			e.reported = Introduction{}
		}
	}
	return all
}

// introduction returns the introduction of a complete entry.
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
		Network: readable([]byte(t.network)), Host: strings.TrimSuffix(e.host, "."), Addrs: addrs, From: e.sender, Expires: e.ends(),
	}, true
}

// byUse orders addresses by usability for other parts of the program: IPv4, IPv6, link-local IPv6.
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
