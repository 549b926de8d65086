package testnet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// What is asserted of 200 nodes that call Things with four hosts each, in simulated time.
const (
	hostsOfOne  = 4
	workFor     = 20 * time.Millisecond // of an action
	callWhole   = 500 * time.Millisecond
	callBroken  = 5 * time.Second // while hosts die
	spreadMost  = 3               // calls of the host of a Thing that has most, for each one of the host that has least
	unknownMost = 3               // calls of one node to one Thing with an unknown result: for each death of a host one, and one more
	deathsOfOne = 2               // hosts of one Thing that die
)

// TestCallsMoveBetweenHostsInSimulatedTime lets nodes call Things with several hosts, which die and return. Calls move to other hosts, and no action that
// may run once runs twice.
func TestCallsMoveBetweenHostsInSimulatedTime(t *testing.T) {
	m := &hosting{ran: map[string]int{}, by: map[*subject]int{}, unknown: map[string]int{}}
	populate(t, int64(rand.Uint32()), m.describe, m.run)
}

// A hosting is the network of the test.
type hosting struct {
	*population
	things  [][]*subject // the hosts of each
	callers []*subject

	mu      sync.Mutex // owns what follows
	ran     map[string]int
	by      map[*subject]int // actions that a host has begun
	unknown map[string]int   // works that a host may have begun, by caller and Thing
	results results
}

// results are those of the calls since they were last taken.
type results struct {
	calls, works int
	unknown      int // works that a host may have begun
	took         []float64
	acknowledged []string // works that must have run
	notBegun     []string // works that must not have run
	wrong        []string
}

// describe adds the public hosts of five Things, and callers behind routers.
func (m *hosting) describe(p *population) {
	m.population = p
	for k := range 5 {
		var hosts []*subject
		for i := range hostsOfOne {
			s := p.add(0, fmt.Sprintf("11.%d.0.%d", 1+k, 1+i), true)
			s.local = interact.Func(func(ctx context.Context, q *interact.Message) iter.Seq2[*interact.Message, error] {
				return m.serve(ctx, s, q)
			})
			hosts = append(hosts, s)
		}
		m.things = append(m.things, hosts)
	}
	for i := 0; len(p.nodes) < many; i++ {
		m.callers = append(m.callers, p.add(0, fmt.Sprintf("12.0.%d.%d", i/200, 1+i%200), false))
	}
}

// serve runs an action at a host.
func (m *hosting) serve(ctx context.Context, s *subject, q *interact.Message) iter.Seq2[*interact.Message, error] {
	m.mu.Lock()
	m.by[s]++
	if q.Name == "work" {
		m.ran[string(q.Data)]++
	}
	m.mu.Unlock()
	return func(yield func(*interact.Message, error) bool) {
		select {
		case <-ctx.Done():
			yield(nil, ctx.Err())
		case <-time.After(workFor):
			s.echo(ctx, q)(yield)
		}
	}
}

func (m *hosting) run(p *population) {
	time.Sleep(3 * time.Second) // the records of the hosts arrive
	long := time.Duration(1)
	if os.Getenv("LMOSD_LONG") != "" {
		long = 10
	}
	whole := m.callFor(long*15*time.Second, nil)
	m.check("all hosts live", whole, callWhole)
	if whole.unknown > 0 {
		p.Errorf("%d calls have an unknown result though all hosts live", whole.unknown)
	}
	m.spread()
	broken := m.callFor(long*30*time.Second, m.deaths)
	m.check("hosts die and return", broken, callBroken)
	m.check("all hosts live again", m.callFor(5*time.Second, nil), callBroken)
	for who, n := range m.unknown {
		if n > unknownMost {
			p.Errorf("%s have %d calls with an unknown result after %d deaths", who, n, deathsOfOne)
		}
	}
}

// callFor lets all callers call for a time, while during runs, and returns the results.
func (m *hosting) callFor(d time.Duration, during func()) results {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var work sync.WaitGroup
	for _, c := range m.callers {
		seed := m.r.Uint64()
		work.Go(func() { m.call(ctx, c, rand.New(rand.NewPCG(seed, 0))) })
	}
	if during != nil {
		during()
	}
	work.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	done := m.results
	m.results = results{}
	return done
}

// call lets one node call Things until ctx ends.
func (m *hosting) call(ctx context.Context, c *subject, r *rand.Rand) {
	var things []interact.Thing
	for k, hosts := range m.things {
		things = append(things, c.streams.Thing(thingAt(fmt.Sprint("urn:x:thing", k), hosts...)))
	}
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(200+r.IntN(200)) * time.Millisecond):
		}
		k := r.IntN(len(things))
		q := &interact.Message{Type: interact.InvokeAction, Thing: fmt.Sprint("urn:x:thing", k), Name: []string{"look", "work"}[r.IntN(2)],
			Data: fmt.Appendf(nil, "%d at %s", c.n, time.Now().Format(time.StampNano)), From: did.NodePrincipal(c.key.DID(), "")}
		began := time.Now()
		reply, err := interact.Call(context.Background(), things[k], q)
		m.note(c, k, q, reply, err, time.Since(began))
	}
}

// note records the result of a call.
func (m *hosting) note(c *subject, thing int, q *interact.Message, reply *interact.Message, err error, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, work := &m.results, q.Name == "work"
	r.calls++
	r.took = append(r.took, millis(took))
	if work {
		r.works++
	}
	var e *interact.Error
	switch {
	case err == nil && !slices.ContainsFunc(m.things[thing], func(s *subject) bool { return fmt.Sprint(s.n) == string(reply.Data) }):
		r.wrong = append(r.wrong, fmt.Sprintf("%s: %s has the result %s, which no host of the Thing gives", c, q.Name, reply.Data))
	case err == nil && work:
		r.acknowledged = append(r.acknowledged, string(q.Data))
	case err == nil:
	case !work || !errors.As(err, &e):
		r.wrong = append(r.wrong, fmt.Sprintf("%s: %s fails after %v: %v", c, q.Name, took, err))
	case e.Started:
		r.unknown++
		m.unknown[fmt.Sprintf("%s and Thing %d", c, thing)]++
	default:
		r.notBegun = append(r.notBegun, string(q.Data))
		r.wrong = append(r.wrong, fmt.Sprintf("%s: %s has no host after %v: %v", c, q.Name, took, err))
	}
}

// check asserts what holds of all results.
func (m *hosting) check(what string, r results, limit time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	twice, lost, denied := 0, 0, 0
	for _, n := range m.ran {
		if n > 1 {
			twice++
		}
	}
	for _, id := range r.acknowledged {
		if m.ran[id] != 1 {
			lost++
		}
	}
	for _, id := range r.notBegun {
		if m.ran[id] != 0 {
			denied++
		}
	}
	m.Logf("%s: %d calls took %s ms, %d of %d unsafe ones have an unknown result", what, r.calls, spread(r.took), r.unknown, r.works)
	if twice+lost+denied > 0 {
		m.Errorf("%s: %d works ran twice, %d acknowledged ones did not run, %d ran whose caller knows that they did not", what, twice, lost, denied)
	}
	if len(r.wrong) > 0 {
		m.Errorf("%s: %d calls failed, as %s", what, len(r.wrong), r.wrong[0])
	}
	if most := at(r.took, 1); most > millis(limit) {
		m.Errorf("%s: a call took %.0f ms, %v are allowed", what, most, limit)
	}
}

// spread asserts that no host of a Thing has much more to do than another one.
func (m *hosting) spread() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, hosts := range m.things {
		var counts []int
		for _, s := range hosts {
			counts = append(counts, m.by[s])
		}
		m.Logf("calls at the hosts of a Thing: %v", counts)
		if least, most := slices.Min(counts), slices.Max(counts); most > spreadMost*least {
			m.Errorf("the hosts of a Thing have had %v calls, want factor %d at most", counts, spreadMost)
		}
	}
}

// deaths kills hosts, each at a time of its own, and starts them again later: at most two of the four hosts of a Thing are dead at once. Of the two, one
// loses its power.
func (m *hosting) deaths() {
	type event struct {
		at     time.Duration
		host   *subject
		silent bool
	}
	var events []event
	for k, hosts := range m.things {
		for i := range deathsOfOne {
			at := time.Duration(1+2*k+3*i) * time.Second
			events = append(events, event{at, hosts[m.r.IntN(2)+2*i], i == 1})
		}
	}
	slices.SortFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	var work sync.WaitGroup
	defer work.Wait()
	began := time.Now()
	for _, e := range events {
		time.Sleep(e.at - time.Since(began))
		e.host.kill(e.silent)
		work.Go(func() {
			time.Sleep(8 * time.Second)
			if err := e.host.start(); err != nil {
				m.Error(err)
			}
		})
	}
}
