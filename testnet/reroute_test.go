package testnet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/p2p/relay"
)

// What is asserted of 200 nodes in simulated time.
const (
	placesFirst  = 3 * time.Second  // until every node has two relays, after the start of all
	placesAgain  = 10 * time.Second // the same after the death of a relay
	pairsFirst   = 15 * time.Second // until each node knows a path to each other one, after the start of all
	pairsAgain   = 15 * time.Second // the same after the death of a relay
	callFirst    = 2 * time.Second  // one call, while all relays live
	callAgain    = 6 * time.Second  // one call, repeated until it succeeds, right after that
	placesCut    = 30 * time.Second // until every node has a place at the only relay that is left
	placesHealed = 70 * time.Second // until every node has two relays, after the end of a partition: the pause of a search grows to a minute
)

// TestNodesAreReroutedInSimulatedTime is a mesh in which most nodes are behind routers, so that others reach them through relays only. Relays die and
// return, and a part of the mesh is cut off except for one node.
func TestNodesAreReroutedInSimulatedTime(t *testing.T) {
	m := &rerouting{isCut: func(a, b peer.ID) bool { return false }}
	populate(t, int64(rand.Uint32()), m.describe, m.run)
}

// A rerouting is the network of the test.
type rerouting struct {
	*population
	relays  []*subject // public nodes
	offices [][]*subject
	isCut   func(a, b peer.ID) bool // which pairs have no path
}

// describe adds 14 public nodes of two organizations and of none, an office with a fifth of the nodes behind one address, one of nodes of no organization, and
// homes with 4 nodes each.
func (m *rerouting) describe(p *population) {
	m.population, p.nat = p, p2p.NAT{Relay: true, Serve: true}
	add := func(org int, outside string, public bool) *subject {
		s := p.add(org, outside, public)
		s.local = interact.Func(s.echo)
		return s
	}
	for i := range 14 {
		org := i % 2
		if i >= 12 {
			org = -1
		}
		m.relays = append(m.relays, add(org, fmt.Sprintf("11.%d.0.%d", 1+i/4*2+i%2, 1+i), true)) // two relays of an organization are in one range
	}
	office := func(org, n int) (all []*subject) {
		for range n {
			all = append(all, add(org, fmt.Sprintf("12.0.0.%d", 1+len(m.offices)), false))
		}
		m.offices = append(m.offices, all)
		return all
	}
	office(0, many/5)
	office(-1, many/8)
	for i := 0; len(p.nodes) < many; i++ {
		office(i%2, min(4, many-len(p.nodes)))
	}
}

func (m *rerouting) run(p *population) {
	began := time.Now()
	m.bootstrap()
	p.within(placesFirst, "two relays each", m.twoPlaces)
	p.within(60*time.Second, "relays in two ranges, of the own organization", m.choices)
	p.within(pairsFirst-time.Since(began), "a path between each pair", m.paths)
	m.calls("all relays live", callFirst)
	m.limits()

	for _, c := range []struct {
		what   string
		dead   *subject
		silent bool
	}{{"a relay lost its power", m.relays[0], true}, {"a relay was killed", m.relays[3], false}} {
		m.death(c.what, c.dead, c.silent)
	}
	for _, dead := range []*subject{m.relays[0], m.relays[3]} {
		if err := dead.start(); err != nil {
			p.Fatal(err)
		}
		m.connect(dead, m.relays[1])
	}
	p.within(placesAgain, "two relays each, with the relays that have returned", m.twoPlaces)
	m.partition()
}

// bootstrap states which nodes relay, and connects each node to one of its organization.
func (m *rerouting) bootstrap() {
	for _, r := range m.relays {
		if !r.host.CanServe() {
			m.Fatalf("%s does not relay", r)
		}
	}
	m.mu.Lock()
	m.served = m.relays
	m.mu.Unlock()
	var g sync.WaitGroup
	for _, s := range m.nodes {
		if !s.public && s.host.CanServe() {
			m.Errorf("%s relays behind a router", s)
		}
		own := m.living(func(r *subject) bool { return r.public && r != s && r.org == s.org })
		to := own[m.r.IntN(len(own))]
		g.Go(func() { m.connect(s, to) })
	}
	g.Wait()
}

func (m *rerouting) connect(s, to *subject) {
	if err := s.host.Connect(context.Background(), peer.AddrInfo{ID: to.id, Addrs: to.host.Addrs()}); err != nil {
		m.Errorf("%s connects to %s: %v", s, to, err)
	}
}

// twoPlaces returns why not every living node has two places at living relays, which know of them.
func (m *rerouting) twoPlaces() string {
	at := m.reservations()
	lacking, example := 0, ""
	for _, s := range m.living(func(*subject) bool { return true }) {
		good := 0
		for _, p := range s.places() {
			if at[m.of(p.Relay)][s.key.DID()] > relay.Refused {
				good++
			}
		}
		if good != relay.Wanted {
			lacking++
			example = m.state(s)
		}
	}
	if lacking == 0 {
		return ""
	}
	return fmt.Sprintf("%d nodes have not, as %s", lacking, example)
}

// state describes the places of a node, and the relays that have failed.
func (m *rerouting) state(s *subject) string {
	places, failures := reservationsOf(s).State()
	text := fmt.Sprintf("%s behind %s, at", s, s.outside)
	for _, p := range places {
		text += fmt.Sprintf(" %s,", m.of(p.Relay))
	}
	for _, f := range failures {
		text += fmt.Sprintf(" failed %s after %v until %v: %s,", m.of(f.Relay), time.Since(f.At), time.Until(f.Until), f.Why)
	}
	return text
}

func reservationsOf(s *subject) *relay.Reservations {
	r, _ := s.host.Relays()
	return r
}

// reservations returns those that the living relays know of.
func (m *rerouting) reservations() map[*subject]map[did.DID]relay.Terms {
	all := map[*subject]map[did.DID]relay.Terms{}
	for _, r := range m.living(func(s *subject) bool { return s.host.CanServe() }) {
		_, service := r.host.Relays()
		all[r] = service.Stats().Reservations
	}
	return all
}

// choices returns which node is not at relays of its own organization, in two ranges of addresses.
func (m *rerouting) choices() string {
	for _, s := range m.nodes {
		places := s.places()
		if len(places) != relay.Wanted {
			return fmt.Sprintf("%s has %d places", s, len(places))
		}
		a, b := m.of(places[0].Relay), m.of(places[1].Relay)
		// A public node also takes a relay that has connected to it.
		if s.org >= 0 && !s.public && (a.org != s.org || b.org != s.org) {
			return fmt.Sprintf("%s of organization %d is at relays of %d and %d", s, s.org, a.org, b.org)
		}
		if rangeOf(a.outside) == rangeOf(b.outside) {
			return fmt.Sprintf("%s is at relays in one range: %s and %s", s, a.outside, b.outside)
		}
	}
	return ""
}

func rangeOf(a netip.Addr) netip.Prefix {
	p, _ := a.Prefix(16)
	return p
}

// paths returns which node knows no path to another one: to its address, if it is public, or through a living relay with a reservation.
func (m *rerouting) paths() string {
	at := m.reservations()
	missing, example := 0, ""
	all := m.living(func(*subject) bool { return true })
	for _, a := range all {
		for _, b := range all {
			if a != b && !m.hasPath(a, b, at) {
				missing++
				example = fmt.Sprintf("%s to %s, which has %v", a, b, a.book.Addrs(b.id, time.Now()))
			}
		}
	}
	if missing == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d pairs have none, as %s", missing, len(all)*(len(all)-1), example)
}

func (m *rerouting) hasPath(a, b *subject, at map[*subject]map[did.DID]relay.Terms) bool {
	for _, addr := range a.book.Addrs(b.id, time.Now()) {
		if !relay.IsCircuit(addr) {
			if b.public && !m.isCut(a.id, b.id) {
				return true
			}
			continue
		}
		if r := m.byID[relay.Of(addr)]; r == a && at[r][b.key.DID()] > relay.Refused || r.alive && at[r][b.key.DID()] > relay.Refused && !m.isCut(a.id, r.id) {
			return true
		}
	}
	return false
}

// calls lets each node call others, and asserts how long the calls take.
func (m *rerouting) calls(what string, limit time.Duration) {
	each := 1
	if os.Getenv("LMOSD_LONG") != "" {
		each = 10
	}
	all := m.living(func(*subject) bool { return true })
	var mu sync.Mutex
	var took []float64
	var g errgroup.Group
	g.SetLimit(100)
	for range each {
		for _, a := range all {
			b := all[m.r.IntN(len(all))]
			if a == b {
				continue
			}
			g.Go(func() error {
				d, err := m.call(a, b, limit)
				mu.Lock()
				defer mu.Unlock()
				took = append(took, millis(d))
				return err
			})
		}
	}
	if err := g.Wait(); err != nil {
		m.Errorf("%s: %v", what, err)
	}
	m.Logf("%s: %d calls took %s ms", what, len(took), spread(took))
}

// call calls b until that succeeds, and returns after how long. The error is that of the last call before the limit.
func (m *rerouting) call(a, b *subject, limit time.Duration) (time.Duration, error) {
	began := time.Now()
	thing := a.streams.Thing(thingAt("urn:x:echo", b))
	for {
		q := &interact.Message{Type: interact.InvokeAction, Thing: "urn:x:echo", Name: "look", From: did.NodePrincipal(a.key.DID(), "")}
		r, err := interact.Call(m.Context(), thing, q)
		took := time.Since(began)
		switch {
		case err == nil && string(r.Data) != fmt.Sprint(b.n):
			return took, fmt.Errorf("%s calls %s: the answer is %s", a, b, r.Data)
		case took > limit:
			return took, fmt.Errorf("%s calls %s: not within %v: %v", a, b, limit, err)
		case err == nil:
			return took, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Limits of a relay, as docs/operations.md states them: reservations, those of one address, and circuits to one node.
var limitsOf = map[relay.Terms][3]int{relay.Short: {128, 8, 16}, relay.Long: {512, 64, 64}}

// limits asserts that no relay exceeds what it permits.
func (m *rerouting) limits() {
	for r, of := range m.reservations() {
		all, from := map[relay.Terms]int{}, map[relay.Terms]map[netip.Addr]int{relay.Short: {}, relay.Long: {}}
		for node, terms := range of {
			s := m.of(node)
			want := relay.Short
			if m.relation(r, s) >= did.Partner {
				want = relay.Long
			}
			if terms != want {
				m.Errorf("%s has %s terms at %s, want %s", s, terms, r, want)
			}
			all[terms]++
			from[terms][s.outside]++
			if n := from[terms][s.outside]; n > limitsOf[terms][1] {
				m.Errorf("%s has %d reservations with %s terms of %s", r, n, terms, s.outside)
			}
		}
		_, service := r.host.Relays()
		to := map[did.DID]int{}
		for _, c := range service.Stats().Circuits {
			if to[c.To]++; to[c.To] > limitsOf[c.Terms][2] {
				m.Errorf("%s has %d circuits to %s", r, to[c.To], m.of(c.To))
			}
		}
		for terms, n := range all {
			if n > limitsOf[terms][0] {
				m.Errorf("%s has %d reservations with %s terms", r, n, terms)
			}
		}
	}
}

// death ends a relay, and asserts what the others do: those that had a place at it take another one and announce their record, and the rest is silent.
func (m *rerouting) death(what string, dead *subject, silent bool) {
	time.Sleep(80 * time.Second) // until the records of the last change are repeated
	var had []*subject
	for _, s := range m.living(func(s *subject) bool { return s != dead }) {
		if slices.ContainsFunc(s.places(), func(p relay.Place) bool { return m.of(p.Relay) == dead }) {
			had = append(had, s)
		}
	}
	before := m.announced()
	dead.kill(silent)
	began := time.Now()
	if len(had) > 0 {
		others := m.living(func(s *subject) bool { return s != had[0] })
		took, err := m.call(others[m.r.IntN(len(others))], had[0], callAgain)
		if err != nil {
			m.Error(err)
		}
		m.Logf("%s: a call right after it took %v", what, took)
	}
	m.within(placesAgain-time.Since(began), fmt.Sprintf("%s, which %d nodes used: two relays each", what, len(had)), m.twoPlaces)
	m.within(pairsAgain-time.Since(began), what+": a path between each pair", m.paths)
	m.calls(what, callAgain)
	m.limits()
	for s, n := range m.announced() {
		most := 0
		if s == dead {
			continue
		}
		if slices.Contains(had, s) {
			most = 2 // without the lost place, and with the new one
		}
		if got := n - before[s]; got > most {
			m.Errorf("%s: %s has announced %d records, want %d at most", what, s, got, most)
		}
	}
}

// partition cuts two offices off from all but one relay, and from each other.
func (m *rerouting) partition() {
	between := m.relays[1]
	inside := append(slices.Clone(m.offices[0]), m.offices[3]...) // 0 and 1: one of each organization
	isIn := map[peer.ID]bool{}
	for _, s := range inside {
		isIn[s.id] = true
	}
	m.isCut = func(a, b peer.ID) bool { return (isIn[a] || isIn[b]) && a != between.id && b != between.id }
	m.net.Cut(m.isCut)
	m.within(placesCut, fmt.Sprintf("%d nodes have one common node: a place at it", len(inside)), func() string {
		at := m.reservations()[between]
		for _, s := range inside {
			if at[s.key.DID()] == relay.Refused {
				return fmt.Sprintf("%s has none", m.state(s))
			}
		}
		return ""
	})
	m.within(pairsAgain, "one common node: a path between each pair inside", func() string {
		at := m.reservations()
		for _, a := range inside {
			for _, b := range inside {
				if a != b && !m.hasPath(a, b, at) {
					return fmt.Sprintf("%s to %s, which has %v", a, b, a.book.Addrs(b.id, time.Now()))
				}
			}
		}
		return ""
	})
	var g errgroup.Group
	for i, a := range inside {
		g.Go(func() error {
			_, err := m.call(a, inside[(i+len(m.offices[0]))%len(inside)], callAgain)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		m.Error(err)
	}
	m.limits()
	m.isCut = func(a, b peer.ID) bool { return false }
	m.net.Cut(m.isCut)
	m.within(placesHealed, "healed: two relays each", m.twoPlaces)
	time.Sleep(pairsAgain)
	m.within(0, "healed: a path between each pair", m.paths)
	m.calls("healed", callAgain)
}
