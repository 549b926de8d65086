package dnssd

import (
	"cmp"
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
	linksInterval = 10 * time.Second   // interval at which network interfaces are listed
	wellKnown     = "/.well-known/wot" // WoT Discovery §6.2
)

// Options configure a [Service]. The zero value is valid.
type Options struct {
	// Name is the instance name, at most 63 bytes of UTF-8. Longer names are truncated, and a name in use on the network gets a number:
	// "lab (2)". Empty means "lmosd".
	Name string
	// Network is the mesh of the node. It is announced, so that nodes of one mesh do not explore each other (see [ExplorerOptions]). If it
	// is empty, it is not announced.
	Network string
	// Interfaces are names of network interfaces, at most 32; empty means all that are up and support multicast, without loopback and
	// point-to-point links.
	Interfaces []string
	// Log may be nil.
	Log *slog.Logger

	net carrier // set by tests
}

// A Service announces and browses. It is safe for concurrent use.
type Service struct {
	net carrier
	log *slog.Logger

	// self, cache, links and rates belong to Run's goroutine.
	self  *responder
	cache *cache
	links map[int]link
	rates rates

	mu sync.Mutex
	// announced, name, known and changed are owned by mu.
	announced  announcedService
	name       string
	known      map[string]Introduction
	changed    chan struct{} // closed and replaced when known changes
	reannounce chan struct{} // signals a new value of announced to Run
	closed     chan struct{}
	once       sync.Once
}

// New opens the sockets of multicast DNS (UDP port 5353, shared with other programs of this machine). It fails without IPv4 and IPv6
// multicast.
func New(o Options) (*Service, error) {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.net == nil {
		m, err := openMulticast(o.Interfaces)
		if err != nil {
			return nil, err
		}
		o.net = m
	}
	o.Name = cmp.Or(o.Name, "lmosd")
	// The host name must be unique on the network, so it is random. It is not shown to users.
	var id [8]byte
	rand.Read(id[:])
	host := "lmosd-" + hex.EncodeToString(id[:]) + "." + domain
	return &Service{
		net: o.net, log: o.Log, self: newResponder(o.Name, host, o.Network, o.Log), cache: newCache(host), links: map[int]link{},
		rates: newRates(), known: map[string]Introduction{}, changed: make(chan struct{}), reannounce: make(chan struct{}, 1),
		closed: make(chan struct{}),
	}, nil
}

// Announce announces the directory at port, with its TD at /.well-known/wot, in place of an earlier announcement. Port 0 withdraws it.
func (s *Service) Announce(port uint16, https bool) {
	s.mu.Lock()
	s.announced = announcedService{port: port, https: https}
	s.mu.Unlock()
	select {
	case s.reannounce <- struct{}{}:
	default: // Run reads the newest value
	}
}

// Name returns the announced instance name, with its number if it has one.
func (s *Service) Name() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.name
}

// Host returns the .local host name of the announcement, which differs after each start. Clients may send it in the Host header.
func (s *Service) Host() string { return strings.TrimSuffix(s.self.host, ".") }

// Run announces, answers and browses until ctx ends, and then sends a goodbye. It is called once.
func (s *Service) Run(ctx context.Context) error {
	packets := make(chan packet, 64)
	var reader sync.WaitGroup
	reader.Go(func() { s.net.listen(ctx, packets) })
	defer reader.Wait()
	relink := time.NewTicker(linksInterval)
	defer relink.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	s.updateLinks(time.Now())
	for {
		timer.Reset(time.Until(s.step(time.Now())))
		select {
		case <-ctx.Done():
			s.send(s.self.goodbye(s.links))
			return ctx.Err()
		case p := <-packets:
			s.handle(p, time.Now())
		case <-timer.C:
		case <-s.reannounce:
		case <-relink.C:
			s.updateLinks(time.Now())
		}
	}
}

// Close releases the sockets, and ends all watchers.
func (s *Service) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.net.close()
}

// updateLinks lists the interfaces. After a change it announces and queries again.
func (s *Service) updateLinks(now time.Time) {
	links := s.net.links()
	if sameLinks(links, s.links) {
		return
	}
	s.links = links
	s.log.Debug("interfaces changed", "links", len(links))
	s.self.restart(now)
	s.cache.restart(now)
}

// step runs due work, and returns the time of the next step.
func (s *Service) step(now time.Time) time.Time {
	s.mu.Lock()
	o := s.announced
	s.mu.Unlock()
	s.send(s.self.announce(o, s.links, now))
	s.send(s.self.tick(s.links, now))
	s.send(s.cache.tick(s.links, now))
	s.publish(s.cache.changes(now))
	return earliest(s.self.deadline(), s.cache.deadline())
}

// handle processes a packet: a valid DNS message, sent on the link to the group, within the rate limits.
func (s *Service) handle(p packet, now time.Time) {
	l, ok := s.links[p.link]
	if !ok || !p.group || !l.contains(p.from.Addr()) || !s.rates.allow(p.from.Addr(), now) {
		return
	}
	msg, err := unpack(p.data)
	if err != nil {
		return
	}
	switch {
	case !msg.Response:
		s.send(s.self.query(msg, p, l, now))
	case p.from.Port() == port: // RFC 6762 §6: responders send from port 5353
		s.self.checkConflict(msg, now)
		s.cache.receive(msg, p.from.Addr(), l, now)
	}
}

func (s *Service) send(all []outgoing) {
	for _, p := range all {
		b, err := p.msg.Pack()
		if err != nil {
			s.log.Warn("DNS message encoding failed", "err", err)
			continue
		}
		if err := s.net.write(b, s.links[p.link], p.to); err != nil {
			s.log.Debug("DNS message send failed", "link", s.links[p.link].name, "err", err)
		}
	}
}

// A Change is a new or changed introduction, or, with Gone, a withdrawn or expired one.
type Change struct {
	Introduction
	Gone bool
}

// Introductions returns the current introductions, at most 256, in any order.
func (s *Service) Introductions() []Introduction {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.known))
}

// Watch yields the current introductions and then each change, until ctx or the service ends. A slow reader receives only the newest state of
// each introduction. The node's own introduction is not included.
func (s *Service) Watch(ctx context.Context) iter.Seq[Change] {
	return func(yield func(Change) bool) {
		seen := map[string]Introduction{}
		for {
			s.mu.Lock()
			now, changed := maps.Clone(s.known), s.changed
			s.mu.Unlock()
			for name, in := range now {
				if old, ok := seen[name]; (!ok || !old.isSame(in)) && !yield(Change{Introduction: in}) {
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
			case <-changed:
			}
		}
	}
}

// publish updates the table, and wakes the watchers.
func (s *Service) publish(changes []Change) {
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
	close(s.changed)
	s.changed = make(chan struct{})
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
