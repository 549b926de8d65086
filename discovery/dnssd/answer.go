package dnssd

import (
	"cmp"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/miekg/dns"
)

const (
	domain    = "local."
	overTCP   = "_wot._tcp.local."
	overUDP   = "_wot._udp.local."
	directory = "_directory._sub._wot._tcp.local."
	allTypes  = "_services._dns-sd._udp.local." // RFC 6763 §9

	ttlHost  = 120  // s, of records with the name or address of a host (RFC 6762 §10)
	ttlOther = 4500 // s, of other records
	flush    = 1 << 15

	renamesMax = 15 // conflicts after which the name is kept
)

// An announcedService is the service to announce; port 0 means none.
type announcedService struct {
	port  uint16
	https bool
}

// A responder announces one instance: it finds a free name (RFC 6762 §8.1), announces it (§8.3), and answers queries (§6).
//
//	idle ──set──▶ probing ──3 probes unanswered──▶ announcing ──3 times──▶ announced
//	                 ▲  └─in use: next name┘            ▲                      │
//	                 └────────── conflict, lost ────────┴── conflict, won ─────┘
type responder struct {
	displayName string
	instance    string // the display name, with a number if it is in use
	name        string // DNS name in the syntax of package dns
	host        string
	network     string
	log         *slog.Logger

	service announcedService
	phase   phase
	sent    int       // packets of this phase
	next    time.Time // time of the next packet; unused in idle and announced
	renames int
	due     map[int]*reply // by link
}

type phase uint8

const (
	idle phase = iota
	probing
	announcing
	announced
)

// A reply is delayed on its link, so that one packet answers many queries: by the random delay for shared records, and to at most one packet
// per second (RFC 6762 §6).
type reply struct {
	answer []dns.RR
	at     time.Time // the time to send it; unused while answer is empty
	last   time.Time // the time of the previous reply
}

func newResponder(name, host, network string, log *slog.Logger) *responder {
	r := &responder{displayName: name, host: host, network: cut(network, 200), log: log, due: map[int]*reply{}}
	r.setName(name)
	return r
}

// setName sets the name of the instance, truncated to a label.
func (r *responder) setName(name string) {
	const labelMax = 63
	r.instance = cut(name, labelMax)
	r.name = escape(r.instance) + "." + overTCP
}

func cut(s string, n int) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	for len(s) > n {
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	return s
}

// announce sets the service. It returns the goodbye of a withdrawn service.
func (r *responder) announce(o announcedService, links map[int]link, now time.Time) []outgoing {
	if o == r.service {
		return nil
	}
	var bye []outgoing
	if o.port == 0 {
		bye = r.goodbye(links)
	}
	was := r.service
	r.service = o
	switch {
	case o.port == 0:
		r.enter(idle, now)
	case was.port == 0:
		r.enter(probing, now.Add(rand.N(250*time.Millisecond))) // RFC 6762 §8.1: avoids synchronized starts
	case r.phase != probing:
		r.enter(announcing, now)
	}
	return bye
}

// restart restarts probing and announcing after a change of the links.
func (r *responder) restart(now time.Time) {
	if r.phase == announcing || r.phase == announced {
		r.enter(probing, now.Add(rand.N(250*time.Millisecond))) // the name may be in use there
	}
}

// enter starts a phase. Pending answers are dropped.
func (r *responder) enter(p phase, next time.Time) {
	r.phase, r.sent, r.next = p, 0, next
	for _, d := range r.due {
		d.answer = nil
	}
}

func (r *responder) deadline() time.Time {
	at := never
	if r.phase == probing || r.phase == announcing {
		at = r.next
	}
	for _, d := range r.due {
		if len(d.answer) > 0 {
			at = earliest(at, d.at)
		}
	}
	return at
}

// never is the deadline if no packet is pending.
var never = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// tick returns the messages that are due.
func (r *responder) tick(links map[int]link, now time.Time) []outgoing {
	var out []outgoing
	for (r.phase == probing || r.phase == announcing) && !now.Before(r.next) {
		switch {
		case r.phase == probing && r.sent == 3:
			r.enter(announcing, now)
			continue
		case r.phase == probing:
			out = append(out, onEach(links, r.probe)...)
			r.next = now.Add(250 * time.Millisecond)
		default:
			out = append(out, onEach(links, r.announcement)...)
			r.next = now.Add(time.Second << r.sent)
			if r.sent == 2 {
				r.phase = announced
			}
		}
		r.sent++
	}
	for index, d := range r.due {
		l, ok := links[index]
		if !ok {
			delete(r.due, index)
		} else if len(d.answer) > 0 && !now.Before(d.at) {
			out = append(out, outgoing{msg: r.response(d.answer, l), link: index})
			d.answer, d.last = nil, now
		}
	}
	return out
}

// onEach returns a message for each link.
func onEach(links map[int]link, message func(link) *dns.Msg) []outgoing {
	var out []outgoing
	for index, l := range links {
		out = append(out, outgoing{msg: message(l), link: index})
	}
	return out
}

// probe queries for the name, with the records that will be announced (RFC 6762 §8.2).
func (r *responder) probe(link) *dns.Msg {
	question := dns.Question{Name: r.name, Qtype: dns.TypeANY, Qclass: dns.ClassINET}
	return &dns.Msg{Question: []dns.Question{question}, Ns: []dns.RR{r.srv(), r.txt()}}
}

func (r *responder) announcement(l link) *dns.Msg { return answerOf(r.records(l), nil) }

// goodbye withdraws the announcement (RFC 6762 §10.1).
func (r *responder) goodbye(links map[int]link) []outgoing {
	if r.phase != announcing && r.phase != announced {
		return nil
	}
	return onEach(links, func(l link) *dns.Msg {
		msg := answerOf(r.records(l)[1:], nil) // without the service type, which other hosts announce, too
		for _, rr := range msg.Answer {
			rr.Header().Ttl = 0
		}
		return msg
	})
}

// query answers a query: delayed to the group, or at once to a sender with another port than 5353 (RFC 6762 §6.7).
func (r *responder) query(msg *dns.Msg, p packet, l link, now time.Time) []outgoing {
	if r.phase == probing {
		r.resolveConflict(msg.Ns, true, now)
	}
	if r.phase != announcing && r.phase != announced {
		return nil
	}
	var answer []dns.RR
	for _, rr := range r.records(l) {
		if isAnswer(rr, msg.Question) && !isKnown(rr, msg.Answer) {
			answer = append(answer, rr)
		}
	}
	if len(answer) == 0 {
		return nil
	}
	if p.from.Port() != port {
		return []outgoing{{msg: r.legacy(msg, answer, l), link: l.index, to: p.from}}
	}
	r.delay(answer, len(msg.Ns) > 0, l, now)
	return nil
}

// delay adds answers to the pending reply of the link. The reply to a probe is sent at once, before its sender uses the name.
func (r *responder) delay(answer []dns.RR, probe bool, l link, now time.Time) {
	d := r.due[l.index]
	if d == nil {
		d = &reply{}
		r.due[l.index] = d
	}
	at := now.Add(20*time.Millisecond + rand.N(100*time.Millisecond))
	if at.Before(d.last.Add(time.Second)) {
		at = d.last.Add(time.Second)
	}
	if probe {
		at = now
		if at.Before(d.last.Add(250 * time.Millisecond)) {
			at = d.last.Add(250 * time.Millisecond)
		}
	}
	if len(d.answer) == 0 || at.Before(d.at) {
		d.at = at
	}
	for _, rr := range answer {
		if !slices.ContainsFunc(d.answer, func(have dns.RR) bool { return dns.IsDuplicate(have, rr) }) {
			d.answer = append(d.answer, rr)
		}
	}
}

// legacy returns the answer to a unicast resolver: with its question and id, and TTLs of at most 10 s.
func (r *responder) legacy(to *dns.Msg, answer []dns.RR, l link) *dns.Msg {
	msg := r.response(answer, l)
	msg.Id, msg.Question = to.Id, to.Question[:1]
	for _, rr := range slices.Concat(msg.Answer, msg.Extra) {
		rr.Header().Ttl = min(rr.Header().Ttl, 10)
		rr.Header().Class &^= flush
	}
	return msg
}

// response returns answer with the records that the sender would query next (RFC 6763 §12).
func (r *responder) response(answer []dns.RR, l link) *dns.Msg {
	var extra []dns.RR
	for _, rr := range r.records(l) {
		answered := slices.ContainsFunc(answer, func(have dns.RR) bool { return dns.IsDuplicate(have, rr) })
		if rr.Header().Rrtype != dns.TypePTR && !answered {
			extra = append(extra, rr)
		}
	}
	return answerOf(answer, extra)
}

// answerOf returns a response; unique records have the cache-flush bit (RFC 6762 §10.2).
func answerOf(answer, extra []dns.RR) *dns.Msg {
	msg := &dns.Msg{MsgHdr: dns.MsgHdr{Response: true, Authoritative: true}, Compress: true}
	withFlush := func(in []dns.RR) (out []dns.RR) {
		for _, rr := range in {
			rr = dns.Copy(rr)
			if rr.Header().Rrtype != dns.TypePTR {
				rr.Header().Class |= flush
			}
			out = append(out, rr)
		}
		return out
	}
	msg.Answer, msg.Extra = withFlush(answer), withFlush(extra)
	return msg
}

// checkConflict checks a response for conflicts with the name.
func (r *responder) checkConflict(msg *dns.Msg, now time.Time) {
	r.resolveConflict(slices.Concat(msg.Answer, msg.Extra), false, now)
}

// resolveConflict resolves a conflict with records of another host for the name; isProbe means that the other host probes. If this node
// probes and the other host has the name, this node chooses another name. If both probe, or both have the name, the host with the greater
// record keeps the name (RFC 6762 §8.2, §9) and announces it again.
func (r *responder) resolveConflict(records []dns.RR, isProbe bool, now time.Time) {
	if r.phase == idle || r.renames >= renamesMax {
		return
	}
	own := r.srv()
	for _, rr := range records {
		srv, ok := rr.(*dns.SRV)
		if !ok || !strings.EqualFold(srv.Hdr.Name, r.name) || strings.EqualFold(srv.Target, own.Target) || srv.Hdr.Ttl == 0 {
			continue
		}
		c := cmp.Or(cmp.Compare(srv.Port, own.Port), strings.Compare(strings.ToLower(srv.Target), own.Target))
		if c < 0 && (isProbe || r.phase != probing) {
			if r.phase == announced {
				r.enter(announcing, now)
			}
			return
		}
		r.renames++
		r.setName(numbered(r.displayName, r.renames))
		r.log.Info("instance name in use by another host", "name", srv.Hdr.Name, "new_name", r.instance)
		r.enter(probing, now.Add(rand.N(250*time.Millisecond)))
		return
	}
}

// numbered returns the nth alternative of name. From the tenth on the number is random.
func numbered(name string, n int) string {
	n++
	if n >= 10 {
		n = 1000 + rand.N(9000)
	}
	const room = 63 - len(" (9999)")
	return fmt.Sprintf("%s (%d)", cut(name, room), n)
}

// records returns new copies of all records of the instance on l, the service type first.
func (r *responder) records(l link) []dns.RR {
	ptr := func(name, to string) dns.RR {
		return &dns.PTR{Hdr: header(name, dns.TypePTR, ttlOther), Ptr: to}
	}
	all := []dns.RR{ptr(allTypes, overTCP), ptr(overTCP, r.name), ptr(directory, r.name), r.srv(), r.txt()}
	for _, p := range l.nets[:min(len(l.nets), addrsMax)] {
		switch addr := p.Addr(); {
		case addr.IsLoopback():
		case addr.Is4():
			all = append(all, &dns.A{Hdr: header(r.host, dns.TypeA, ttlHost), A: addr.AsSlice()})
		default:
			all = append(all, &dns.AAAA{Hdr: header(r.host, dns.TypeAAAA, ttlHost), AAAA: addr.AsSlice()})
		}
	}
	return all
}

func (r *responder) srv() *dns.SRV {
	return &dns.SRV{Hdr: header(r.name, dns.TypeSRV, ttlHost), Port: r.service.port, Target: r.host}
}

// txt returns the TXT record: the keys of WoT Discovery §6.3 in their order, the scheme only if it is not the default, and then networkKey.
func (r *responder) txt() *dns.TXT {
	text := []string{"td=" + wellKnown, "type=Directory"}
	if r.service.https {
		text = append(text, "scheme=https")
	}
	if r.network != "" {
		text = append(text, networkKey+"="+escape(r.network))
	}
	return &dns.TXT{Hdr: header(r.name, dns.TypeTXT, ttlOther), Txt: text}
}

func header(name string, rrtype uint16, ttl uint32) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: ttl}
}

// isAnswer reports whether rr answers a question. The unicast-response bit is ignored (RFC 6762 §5.4).
func isAnswer(rr dns.RR, questions []dns.Question) bool {
	h := rr.Header()
	return slices.ContainsFunc(questions, func(q dns.Question) bool {
		class := q.Qclass &^ flush
		return (class == dns.ClassINET || class == dns.ClassANY) && (q.Qtype == h.Rrtype || q.Qtype == dns.TypeANY) &&
			strings.EqualFold(q.Name, h.Name)
	})
}

// isKnown reports whether the sender has rr with at least half of its TTL (RFC 6762 §7.1).
func isKnown(rr dns.RR, known []dns.RR) bool {
	return slices.ContainsFunc(known, func(k dns.RR) bool { return k.Header().Ttl >= rr.Header().Ttl/2 && dns.IsDuplicate(k, rr) })
}

// hostAddr returns the address of an A or AAAA record.
func hostAddr(rr dns.RR) (netip.Addr, bool) {
	switch rr := rr.(type) {
	case *dns.A:
		addr, ok := netip.AddrFromSlice(rr.A)
		return addr.Unmap(), ok
	case *dns.AAAA:
		return netip.AddrFromSlice(rr.AAAA)
	}
	return netip.Addr{}, false
}
