// Package mdns introduces this node to its local network, and the things of the local network to this node.
//
// A [Service] speaks DNS-SD over multicast DNS. It announces one entry of _wot._tcp, the node's directory, through which
// everything else is found, and it keeps the introductions that others make. An [Explorer] goes where an introduction leads and
// brings what is there: Thing Descriptions of anybody's, which are hints until somebody vouches for them. Nothing here reaches
// beyond the link: who is not on a network of this machine is neither answered nor believed nor asked.
//
// Sources: WoT Discovery §6.3 (introduction by DNS-SD), §5 (exploration); RFC 6762 (multicast DNS); RFC 6763 (DNS-SD).
package dnssd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	relinkEvery = 10 * time.Second   // interfaces come and go; the system is asked
	wellKnown   = "/.well-known/wot" // WoT Discovery §6.2
)

// Options are what a [Service] is made of. The zero value looks and announces nothing.
type Options struct {
	// Name is the entry's name for people, at most 63 bytes of UTF-8; what is longer is cut, and a name that somebody on the
	// network has already gets a number: "lab (2)". Empty is "lmosd".
	Name string
	// Network is the mesh that the node belongs to. It is announced, so that nodes of one mesh leave each other's things to the
	// mesh (see [ExplorerOptions]); empty announces none.
	Network string
	// Interfaces are names of network interfaces; empty means all that are up and can multicast, without loopback and
	// point-to-point links. At most 32 are used.
	Interfaces []string
	// Log may be nil.
	Log *slog.Logger

	net carrier // tests bring theirs
}

// A Service announces and listens. It is safe for concurrent use.
type Service struct {
	net carrier
	log *slog.Logger

	// self, cache, links and rates belong to Run's goroutine.
	self  *responder
	cache *cache
	links map[int]link
	rates rates

	mu sync.Mutex
	// offer, name, known and news are owned by mu.
	offer  offer
	name   string
	known  map[string]Introduction
	news   chan struct{} // closed, and another, when known changes
	moved  chan struct{} // tells Run that offer is new
	closed chan struct{}
	once   sync.Once
}

// New opens the sockets of multicast DNS (UDP port 5353, shared with other programs of this machine). It fails where there is
// neither IPv4 nor IPv6 multicast.
func New(o Options) (*Service, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.net == nil {
		m, err := openMulticast(o.Interfaces)
		if err != nil {
			return nil, err
		}
		o.net = m
	}
	if o.Name == "" {
		o.Name = "lmosd"
	}
	// The name of a host has to be of one host. Nobody types this one, so it may as well be one that nobody else has.
	var id [8]byte
	rand.Read(id[:])
	host := "lmosd-" + hex.EncodeToString(id[:]) + "." + domain
	return &Service{
		net: o.net, log: o.Log, self: newResponder(o.Name, host, o.Network, o.Log), cache: newCache(host), links: map[int]link{}, rates: newRates(),
		known: map[string]Introduction{}, news: make(chan struct{}), moved: make(chan struct{}, 1), closed: make(chan struct{}),
	}, nil
}

// Offer announces the directory at port, whose TD is at /.well-known/wot, from now on instead of what was announced before.
// Port 0 withdraws the entry.
func (s *Service) Offer(port uint16, https bool) {
	s.mu.Lock()
	s.offer = offer{port: port, https: https}
	s.mu.Unlock()
	select {
	case s.moved <- struct{}{}:
	default: // Run will see the newest offer
	}
}

// Name returns the name that is announced, with a number if it needed one.
func (s *Service) Name() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.name
}

// Host returns the name in .local that the entry leads to, which is this node's and changes with each start: who follows an
// introduction may ask for it by that name.
func (s *Service) Host() string { return strings.TrimSuffix(s.self.host, ".") }

// Run announces, answers and listens until ctx ends, then says goodbye. It is called once.
func (s *Service) Run(ctx context.Context) error {
	packets := make(chan packet, 64)
	var reader sync.WaitGroup
	reader.Go(func() { s.net.listen(ctx, packets) })
	defer reader.Wait()
	relink := time.NewTicker(relinkEvery)
	defer relink.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	s.relink(time.Now())
	for {
		timer.Reset(time.Until(s.step(time.Now())))
		select {
		case <-ctx.Done():
			s.send(s.self.goodbye(s.links))
			return ctx.Err()
		case p := <-packets:
			s.handle(p, time.Now())
		case <-timer.C:
		case <-s.moved:
		case <-relink.C:
			s.relink(time.Now())
		}
	}
}

// Close releases the sockets, and ends what watches.
func (s *Service) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.net.close()
}

// relink looks which interfaces there are now. Where something changed, everything is said and asked again.
func (s *Service) relink(now time.Time) {
	links := s.net.links()
	if sameLinks(links, s.links) {
		return
	}
	s.links = links
	s.log.Debug("interfaces for DNS-SD", "links", len(links))
	s.self.again(now)
	s.cache.again(now)
}

// step does what is due, and returns when the next thing will be.
func (s *Service) step(now time.Time) time.Time {
	s.mu.Lock()
	o := s.offer
	s.mu.Unlock()
	s.send(s.self.set(o, s.links, now))
	s.send(s.self.tick(s.links, now))
	s.send(s.cache.tick(s.links, now))
	s.tell(s.cache.changes(now))
	return earliest(s.self.deadline(), s.cache.deadline())
}

// handle takes one packet: from the link, to the group, not too many, not too large, and DNS.
func (s *Service) handle(p packet, now time.Time) {
	l, ok := s.links[p.link]
	if !ok || !p.group || !l.has(p.from.Addr()) || !s.rates.allow(p.from.Addr(), now) {
		return
	}
	msg, err := unpack(p.data)
	if err != nil {
		return
	}
	switch {
	case !msg.Response:
		s.send(s.self.query(msg, p, l, now))
	case p.from.Port() == port: // RFC 6762 §6: who answers from another port is no responder
		s.self.hear(msg, now)
		s.cache.hear(msg, p.from.Addr(), l, now)
	}
}

func (s *Service) send(all []parcel) {
	for _, p := range all {
		b, err := p.msg.Pack()
		if err != nil {
			s.log.Warn("a DNS message was not written", "err", err)
			continue
		}
		if err := s.net.write(b, s.links[p.link], p.to); err != nil {
			s.log.Debug("a DNS message was not sent", "link", s.links[p.link].name, "err", err)
		}
	}
}

// A Change is an introduction that is new or different, or, if Gone, one that is withdrawn or expired.
type Change struct {
	Introduction
	Gone bool
}

// Introductions returns what is introduced now, at most 256, in no order.
func (s *Service) Introductions() []Introduction {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.known))
}

// Watch yields the introductions that are known, then every change, until ctx or the service ends. Who is slow gets the newest
// state of each introduction only. The node's own entry is not among them.
func (s *Service) Watch(ctx context.Context) iter.Seq[Change] {
	return func(yield func(Change) bool) {
		seen := map[string]Introduction{}
		for {
			s.mu.Lock()
			now, news := maps.Clone(s.known), s.news
			s.mu.Unlock()
			for name, in := range now {
				if old, ok := seen[name]; (!ok || !old.same(in)) && !yield(Change{Introduction: in}) {
					return
				}
			}
			for name, in := range seen {
				if _, ok := now[name]; !ok && !yield(Change{Introduction: in, Gone: true}) {
					return
				}
			}
			seen = now
			select {
			case <-ctx.Done():
				return
			case <-s.closed:
				return
			case <-news:
			}
		}
	}
}

// tell brings the table up to date, and wakes who watches.
func (s *Service) tell(changes []Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.name = s.self.instance
	if len(changes) == 0 {
		return
	}
	for _, c := range changes {
		if c.Gone {
			delete(s.known, c.Name)
		} else {
			s.known[c.Name] = c.Introduction
		}
	}
	close(s.news)
	s.news = make(chan struct{})
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
