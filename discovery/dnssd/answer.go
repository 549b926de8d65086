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

	ttlHost  = 120  // s, of what has the name or address of a host (RFC 6762 §10)
	ttlOther = 4500 // s, of the rest
	flush    = 1 << 15

	renamesMax = 15 // after as many somebody plays games, and the name is kept
)

// An offer is what is announced; nothing if port is 0.
type offer struct {
	port  uint16
	https bool
}

// A responder owns one entry: it finds a name that is free (RFC 6762 §8.1), announces it (§8.3), and answers (§6).
//
//	silent ──set──▶ probing ──3 probes unanswered──▶ announcing ──3 times──▶ standing
//	                   ▲  └─taken: next name─┘            ▲                     │
//	                   └────────── conflict, lost ────────┴── conflict, won ────┘
type responder struct {
	wanted   string // for people
	instance string // for people, with a number if needed
	name     string // of the entry, as package dns writes it
	host     string
	network  string
	log      *slog.Logger

	offer   offer
	phase   phase
	sent    int       // packets of this phase
	next    time.Time // when the next is due; not used in silent and standing
	renames int
	due     map[int]*reply // by link
}

type phase uint8

const (
	silent phase = iota
	probing
	announcing
	standing
)

// A reply waits a moment on its link, so that one packet answers many: for the random pause that shared records need, and until
// a second has passed since the last (RFC 6762 §6).
type reply struct {
	answer []dns.RR
	at     time.Time // when it is sent; not used while answer is empty
	last   time.Time // when the last was
}

func newResponder(name, host, network string, log *slog.Logger) *responder {
	r := &responder{wanted: name, host: host, network: cut(network, 200), log: log, due: map[int]*reply{}}
	r.call(name)
	return r
}

// call takes name, cut to what fits into a label, as the entry's.
func (r *responder) call(name string) {
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

// set takes a new offer. What is withdrawn is said goodbye to.
func (r *responder) set(o offer, links map[int]link, now time.Time) []parcel {
	if o == r.offer {
		return nil
	}
	var bye []parcel
	if o.port == 0 {
		bye = r.goodbye(links)
	}
	was := r.offer
	r.offer = o
	switch {
	case o.port == 0:
		r.enter(silent, now)
	case was.port == 0:
		r.enter(probing, now.Add(rand.N(250*time.Millisecond))) // RFC 6762 §8.1: not all at once after a power cut
	case r.phase != probing:
		r.enter(announcing, now)
	}
	return bye
}

// again announces anew where there is something to announce: a link came, or changed.
func (r *responder) again(now time.Time) {
	if r.phase == announcing || r.phase == standing {
		r.enter(probing, now.Add(rand.N(250*time.Millisecond))) // the name may be taken there
	}
}

// enter begins a phase. Answers that wait are of what was before it.
func (r *responder) enter(p phase, next time.Time) {
	r.phase, r.sent, r.next = p, 0, next
	for _, d := range r.due {
		d.answer = nil
	}
}

func (r *responder) deadline() time.Time {
	at := far
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

// far is a deadline that is none.
var far = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// tick returns what is due to be sent.
func (r *responder) tick(links map[int]link, now time.Time) []parcel {
	var out []parcel
	for (r.phase == probing || r.phase == announcing) && !now.Before(r.next) {
		switch {
		case r.phase == probing && r.sent == 3:
			r.enter(announcing, now)
			continue
		case r.phase == probing:
			out = append(out, r.everywhere(links, r.probe)...)
			r.next = now.Add(250 * time.Millisecond)
		default:
			out = append(out, r.everywhere(links, r.announcement)...)
			r.next = now.Add(time.Second << r.sent)
			if r.sent == 2 {
				r.phase = standing
			}
		}
		r.sent++
	}
	for index, d := range r.due {
		l, ok := links[index]
		if !ok {
			delete(r.due, index)
		} else if len(d.answer) > 0 && !now.Before(d.at) {
			out = append(out, parcel{msg: r.response(d.answer, l), link: index})
			d.answer, d.last = nil, now
		}
	}
	return out
}

func (r *responder) everywhere(links map[int]link, of func(link) *dns.Msg) []parcel {
	var out []parcel
	for index, l := range links {
		out = append(out, parcel{msg: of(l), link: index})
	}
	return out
}

// probe asks whether somebody has the name, and says what will be said of it (RFC 6762 §8.2).
func (r *responder) probe(link) *dns.Msg {
	ask := dns.Question{Name: r.name, Qtype: dns.TypeANY, Qclass: dns.ClassINET}
	return &dns.Msg{Question: []dns.Question{ask}, Ns: []dns.RR{r.srv(), r.txt()}}
}

func (r *responder) announcement(l link) *dns.Msg { return answerOf(r.records(l), nil) }

// goodbye takes back what was announced (RFC 6762 §10.1).
func (r *responder) goodbye(links map[int]link) []parcel {
	if r.phase != announcing && r.phase != standing {
		return nil
	}
	return r.everywhere(links, func(l link) *dns.Msg {
		msg := answerOf(r.records(l)[1:], nil) // that there is such a service at all is others' to say, too
		for _, rr := range msg.Answer {
			rr.Header().Ttl = 0
		}
		return msg
	})
}

// query answers what is asked for: everybody together and later, or who asked from a port of its own at once (RFC 6762 §6.7).
func (r *responder) query(msg *dns.Msg, p packet, l link, now time.Time) []parcel {
	if r.phase == probing {
		r.rival(msg.Ns, true, now)
	}
	if r.phase != announcing && r.phase != standing {
		return nil
	}
	var answer []dns.RR
	for _, rr := range r.records(l) {
		if asked(rr, msg.Question) && !isKnown(rr, msg.Answer) {
			answer = append(answer, rr)
		}
	}
	if len(answer) == 0 {
		return nil
	}
	if p.from.Port() != port {
		return []parcel{{msg: r.legacy(msg, answer, l), link: l.index, to: p.from}}
	}
	r.later(answer, len(msg.Ns) > 0, l, now)
	return nil
}

// later puts answer with what waits on the link. A probe is answered at once: who asks is about to take the name.
func (r *responder) later(answer []dns.RR, probe bool, l link, now time.Time) {
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

// legacy is the answer to a plain resolver: its question, its id, and times that it cannot keep for long.
func (r *responder) legacy(to *dns.Msg, answer []dns.RR, l link) *dns.Msg {
	msg := r.response(answer, l)
	msg.Id, msg.Question = to.Id, to.Question[:1]
	for _, rr := range slices.Concat(msg.Answer, msg.Extra) {
		rr.Header().Ttl = min(rr.Header().Ttl, 10)
		rr.Header().Class &^= flush
	}
	return msg
}

// response is answer with what who asked will ask next (RFC 6763 §12).
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

// answerOf makes a response; records that only this node has get the bit that says so (RFC 6762 §10.2).
func answerOf(answer, extra []dns.RR) *dns.Msg {
	msg := &dns.Msg{MsgHdr: dns.MsgHdr{Response: true, Authoritative: true}, Compress: true}
	own := func(in []dns.RR) (out []dns.RR) {
		for _, rr := range in {
			rr = dns.Copy(rr)
			if rr.Header().Rrtype != dns.TypePTR {
				rr.Header().Class |= flush
			}
			out = append(out, rr)
		}
		return out
	}
	msg.Answer, msg.Extra = own(answer), own(extra)
	return msg
}

// hear looks whether somebody else has the entry's name.
func (r *responder) hear(msg *dns.Msg, now time.Time) {
	r.rival(slices.Concat(msg.Answer, msg.Extra), false, now)
}

// rival settles who keeps the name when records of another host have it. While this node only asks for it (probing), who has it
// keeps it; two who ask, or two who have it (their networks met), compare: the greater keeps it (RFC 6762 §8.2, §9). Who wins
// says so again.
func (r *responder) rival(records []dns.RR, asks bool, now time.Time) {
	if r.phase == silent || r.renames >= renamesMax {
		return
	}
	own := r.srv()
	for _, rr := range records {
		srv, ok := rr.(*dns.SRV)
		if !ok || !strings.EqualFold(srv.Hdr.Name, r.name) || strings.EqualFold(srv.Target, own.Target) || srv.Hdr.Ttl == 0 {
			continue
		}
		c := cmp.Or(cmp.Compare(srv.Port, own.Port), strings.Compare(strings.ToLower(srv.Target), own.Target))
		if c < 0 && (asks || r.phase != probing) {
			if r.phase == standing {
				r.enter(announcing, now)
			}
			return
		}
		r.renames++
		r.call(numbered(r.wanted, r.renames))
		r.log.Info("another host has the name on the local network", "taken", srv.Hdr.Name, "now", r.instance)
		r.enter(probing, now.Add(rand.N(250*time.Millisecond)))
		return
	}
}

// numbered is the nth name after name. From the tenth on it is a number that nobody counts to.
func numbered(name string, n int) string {
	n++
	if n >= 10 {
		n = 1000 + rand.N(9000)
	}
	const room = 63 - len(" (9999)")
	return fmt.Sprintf("%s (%d)", cut(name, room), n)
}

// records are all records of the entry as they are on l, the one of the service type first. They are new at each call.
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
	return &dns.SRV{Hdr: header(r.name, dns.TypeSRV, ttlHost), Port: r.offer.port, Target: r.host}
}

// txt has the keys of WoT Discovery §6.3 in their order, the scheme only if it is not the default, and one of ours at the end.
func (r *responder) txt() *dns.TXT {
	text := []string{"td=" + wellKnown, "type=Directory"}
	if r.offer.https {
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

// asked reports whether rr answers one of the questions. Their top bit asks for an answer to one; all get it (RFC 6762 §5.4).
func asked(rr dns.RR, questions []dns.Question) bool {
	h := rr.Header()
	return slices.ContainsFunc(questions, func(q dns.Question) bool {
		class := q.Qclass &^ flush
		return (class == dns.ClassINET || class == dns.ClassANY) && (q.Qtype == h.Rrtype || q.Qtype == dns.TypeANY) &&
			strings.EqualFold(q.Name, h.Name)
	})
}

// isKnown reports whether who asks has rr for half of its time at least (RFC 6762 §7.1).
func isKnown(rr dns.RR, known []dns.RR) bool {
	return slices.ContainsFunc(known, func(k dns.RR) bool { return k.Header().Ttl >= rr.Header().Ttl/2 && dns.IsDuplicate(k, rr) })
}

// hostAddr is the address that an A or AAAA record gives its name.
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
