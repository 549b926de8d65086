package dnssd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/lmosd/lmosd/internal/ratelimit"
)

const (
	port       = 5353
	packetMax  = 9000 // bytes, RFC 6762 §17
	linksMax   = 32
	sourcesMax = 256  // sources with a rate of their own
	perSecond  = 100  // packets per second of one source
	allPackets = 2000 // packets per second of all sources
)

// RFC 6762 §3.
var (
	group4 = netip.MustParseAddr("224.0.0.251")
	group6 = netip.MustParseAddr("ff02::fb")
)

// A link is the network of one interface of the machine.
type link struct {
	index int
	name  string
	nets  []netip.Prefix // addresses of the interface with their prefix lengths
}

// contains reports whether addr is on the link (RFC 6762 §11). Prefixes of length 0 are ignored.
func (l link) contains(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	return addr.Is6() && addr.IsLinkLocalUnicast() ||
		slices.ContainsFunc(l.nets, func(p netip.Prefix) bool { return p.Bits() > 0 && p.Contains(addr) })
}

func sameLinks(a, b map[int]link) bool {
	return maps.EqualFunc(a, b, func(x, y link) bool { return x.name == y.name && slices.Equal(x.nets, y.nets) })
}

// A packet is a received packet; group reports that it was sent to the multicast address.
type packet struct {
	data  []byte
	link  int
	from  netip.AddrPort
	group bool
}

// An outgoing is a message to send on a link: to the group, or to one address if to is set.
type outgoing struct {
	msg  *dns.Msg
	link int
	to   netip.AddrPort
}

// A carrier transports packets: multicast sockets, or the network of a test.
type carrier interface {
	links() map[int]link
	// listen sends received packets to out, until ctx ends.
	listen(ctx context.Context, out chan<- packet)
	write(b []byte, l link, to netip.AddrPort) error
	close() error
}

// multicast is the carrier of the system: one socket per IP version.
type multicast struct {
	only    []string // names of interfaces; empty: all suitable interfaces
	sockets []socket
}

// A socket is a multicast socket of one IP version.
type socket struct {
	net.PacketConn
	group netip.Addr
	join  func(*net.Interface, net.Addr) error
	read  func(b []byte) (n, link int, dst net.IP, from net.Addr, err error)
	send  func(b []byte, link int, to net.Addr) error
}

func openMulticast(only []string) (*multicast, error) {
	m := &multicast{only: only}
	var failed []error
	for group, configure := range map[netip.Addr]func(net.PacketConn) (socket, error){group4: socket4, group6: socket6} {
		s, err := openSocket(group, configure)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		m.sockets = append(m.sockets, s)
	}
	if len(m.sockets) == 0 {
		return nil, fmt.Errorf("open multicast sockets: %w", errors.Join(failed...))
	}
	return m, nil
}

// openSocket opens a socket for an IP version.
func openSocket(group netip.Addr, configure func(net.PacketConn) (socket, error)) (socket, error) {
	network := "udp4"
	if group.Is6() {
		network = "udp6"
	}
	// For a group address, package net opens a socket on all addresses that other programs can share.
	c, err := net.ListenPacket(network, netip.AddrPortFrom(group, port).String())
	if err != nil {
		return socket{}, err
	}
	s, err := configure(c)
	if err != nil {
		_ = c.Close()
		return socket{}, err
	}
	return s, nil
}

func socket4(c net.PacketConn) (socket, error) {
	p := ipv4.NewPacketConn(c)
	read := func(b []byte) (int, int, net.IP, net.Addr, error) {
		n, cm, from, err := p.ReadFrom(b)
		if err != nil || cm == nil {
			return 0, 0, nil, from, err
		}
		return n, cm.IfIndex, cm.Dst, from, nil
	}
	send := func(b []byte, link int, to net.Addr) error {
		_, err := p.WriteTo(b, &ipv4.ControlMessage{IfIndex: link}, to)
		return err
	}
	err := errors.Join(p.SetControlMessage(ipv4.FlagInterface|ipv4.FlagDst, true), p.SetMulticastTTL(255))
	return socket{c, group4, p.JoinGroup, read, send}, err
}

func socket6(c net.PacketConn) (socket, error) {
	p := ipv6.NewPacketConn(c)
	read := func(b []byte) (int, int, net.IP, net.Addr, error) {
		n, cm, from, err := p.ReadFrom(b)
		if err != nil || cm == nil {
			return 0, 0, nil, from, err
		}
		return n, cm.IfIndex, cm.Dst, from, nil
	}
	send := func(b []byte, link int, to net.Addr) error {
		_, err := p.WriteTo(b, &ipv6.ControlMessage{IfIndex: link}, to)
		return err
	}
	err := errors.Join(p.SetControlMessage(ipv6.FlagInterface|ipv6.FlagDst, true), p.SetMulticastHopLimit(255))
	return socket{c, group6, p.JoinGroup, read, send}, err
}

func (m *multicast) close() (err error) {
	for _, s := range m.sockets {
		err = errors.Join(err, s.Close())
	}
	return err
}

// links returns the suitable interfaces. It joins the groups at each call, because an interface that was down has left them; joining twice
// has no effect.
func (m *multicast) links() map[int]link {
	all, err := net.Interfaces()
	if err != nil {
		return nil
	}
	links := map[int]link{}
	for _, i := range all {
		const want, avoid = net.FlagUp | net.FlagMulticast, net.FlagLoopback | net.FlagPointToPoint
		fits := slices.Contains(m.only, i.Name) || len(m.only) == 0 && i.Flags&avoid == 0
		l := link{index: i.Index, name: i.Name, nets: prefixes(i)}
		if i.Flags&want != want || !fits || len(links) == linksMax || len(l.nets) == 0 {
			continue
		}
		for _, s := range m.sockets {
			_ = s.join(&i, &net.UDPAddr{IP: s.group.AsSlice()})
		}
		links[i.Index] = l
	}
	return links
}

func prefixes(i net.Interface) []netip.Prefix {
	addrs, err := i.Addrs()
	if err != nil {
		return nil
	}
	var all []netip.Prefix
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			ip, _ := netip.AddrFromSlice(n.IP)
			bits, _ := n.Mask.Size()
			all = append(all, netip.PrefixFrom(ip.Unmap(), bits))
		}
	}
	return all
}

func (m *multicast) listen(ctx context.Context, out chan<- packet) {
	var readers sync.WaitGroup
	defer readers.Wait()
	for _, s := range m.sockets {
		readers.Go(func() { s.listen(ctx, out) })
	}
}

// listen reads packets until ctx ends or the socket is closed. Other errors of a UDP socket are temporary.
func (s socket) listen(ctx context.Context, out chan<- packet) {
	stop := context.AfterFunc(ctx, func() { _ = s.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, packetMax+1)
	for {
		n, link, dst, from, err := s.read(buf)
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n == 0 || n > packetMax {
			continue
		}
		select {
		case out <- packet{data: slices.Clone(buf[:n]), link: link, from: addrPort(from), group: dst.IsMulticast()}:
		case <-ctx.Done():
			return
		}
	}
}

func addrPort(a net.Addr) netip.AddrPort {
	u, ok := a.(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	from := u.AddrPort()
	return netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
}

// write sends b on a link: to the address to, or, if to is not set, to the group over both IP versions. It fails if no socket sent b.
func (m *multicast) write(b []byte, l link, to netip.AddrPort) error {
	var failed []error
	sent := false
	for _, s := range m.sockets {
		dst := netip.AddrPortFrom(s.group, port)
		if s.group.Is6() {
			dst = netip.AddrPortFrom(s.group.WithZone(l.name), port)
		}
		if to.IsValid() {
			dst = to
		}
		if dst.Addr().Is4() != s.group.Is4() {
			continue
		}
		err := s.send(b, l.index, net.UDPAddrFromAddrPort(dst))
		if err != nil {
			failed = append(failed, err)
		}
		sent = sent || err == nil
	}
	if sent {
		return nil
	}
	return errors.Join(failed...)
}

// rates limits the packets of each source, and of all sources together. Sources beyond sourcesMax share one rate.
type rates struct {
	each *ratelimit.Limiter[netip.Addr]
	all  ratelimit.Bucket
}

func newRates() rates {
	return rates{each: ratelimit.NewLimiter[netip.Addr](ratelimit.Limit{Rate: perSecond, Burst: perSecond}, sourcesMax)}
}

func (r *rates) allow(from netip.Addr, now time.Time) bool {
	return r.each.Take(from, 1, now) == 0 && r.all.Take(ratelimit.Limit{Rate: allPackets, Burst: allPackets}, 1, now)
}

// unpack decodes a multicast DNS message, whose opcode and response code are 0 (RFC 6762 §18.3, §18.11).
func unpack(b []byte) (*dns.Msg, error) {
	msg := new(dns.Msg)
	if err := msg.Unpack(b); err != nil {
		return nil, err
	}
	if msg.Opcode != dns.OpcodeQuery || msg.Rcode != dns.RcodeSuccess {
		return nil, errors.New("not a multicast DNS message")
	}
	return msg, nil
}
