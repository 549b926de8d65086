package testnet

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/directory/reachability"
	"github.com/lmosd/lmosd/td"
)

// TestAMeshFindsEverything is discovery in a mesh of whole nodes, held against what is true. Messages take 5 to 60 ms one way;
// each node begins with three neighbours or so and finds the others. With LMOSD_LONG=1 it runs with 100 and 200 nodes too, with
// LMOSD_LONG=500 with 500; their figures are in docs/benchmarks.md.
func TestAMeshFindsEverything(t *testing.T) {
	for _, size := range []struct {
		nodes, agents int
		long          string
	}{{small[0], small[1], ""}, {50, 500, "1"}, {100, 1000, "1"}, {200, 2000, "1"},
		{50, 200, "N"}, {100, 200, "N"}, {200, 200, "N"}, {500, 200, "N"}, {500, 500, "500"}} {
		t.Run(fmt.Sprintf("%dx%d", size.nodes, size.agents), func(t *testing.T) {
			if long := os.Getenv("LMOSD_LONG"); size.long != "" && long != size.long {
				t.Skipf("LMOSD_LONG=%s runs it", size.long)
			}
			m := &trial{T: t, agents: size.agents, long: size.long != "", periods: size.long == "N", seed: int64(rand.Uint32())}
			t.Logf("seed %d", m.seed)
			synctest.Test(t, m.run(size.nodes, m.everything))
		})
	}
}

// A trial is a mesh with the expected state.
type trial struct {
	*testing.T
	ctx    context.Context
	seed   int64
	r      *rand.Rand
	agents int
	long   bool // measure more often
	// periods enables the measurement of the traffic of announcements, without changes and with churn, which is most of the work.
	periods bool
	net     *Net
	alive   []*Member
	truth   map[string]*Member // by the ref of an agent: its host
}

// TestTrafficWithoutChanges is the slow part, in a small mesh.
func TestTrafficWithoutChanges(t *testing.T) {
	m := &trial{T: t, agents: 30, seed: int64(rand.Uint32())}
	t.Logf("seed %d", m.seed)
	synctest.Test(t, m.run(15, func() {
		m.step("publish", m.publish)
		m.step("converge", m.converge)
		m.step("silence", m.silence)
	}))
}

// run returns what starts the nodes and does the steps.
func (m *trial) run(nodes int, steps func()) func(*testing.T) {
	return func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		o := Options{Seed: m.seed, Topology: "random:3", Latency: 5 * time.Millisecond, Farthest: 60 * time.Millisecond}
		if nodes > 200 {
			o.pause = 200 * time.Millisecond
		}
		net, err := Simulated(ctx, nodes, o)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := net.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}()
		if err := net.Settle(ctx); err != nil {
			t.Fatal(err)
		}
		m.T, m.ctx, m.net, m.alive = t, ctx, net, slices.Clone(net.Members)
		m.r, m.truth = rand.New(rand.NewPCG(uint64(m.seed), 1)), map[string]*Member{}
		steps()
	}
}

func (m *trial) everything() {
	m.step("publish", m.publish)
	m.step("converge", m.converge)
	m.step("lookups", m.lookups)
	m.step("recall", m.recall)
	m.step("news", m.news)
	m.step("joiner", m.joiner)
	if m.periods {
		m.step("silence", m.silence)
		m.step("churn", m.churn)
	}
	m.step("deaths", m.deaths)
}

// step runs a part and logs its duration.
func (m *trial) step(name string, part func()) {
	began, worked := time.Now(), cpu()
	part()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	m.Logf("%-8s took %v simulated, %v of processors; %d MB from the system, %d goroutines", name,
		time.Since(began).Round(time.Millisecond), (cpu() - worked).Round(10*time.Millisecond), mem.Sys>>20, runtime.NumGoroutine())
}

// cpu is the CPU time of this process; the clock of a simulation does not measure it.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// few is how often something is measured.
func (m *trial) few() int {
	if m.long {
		return 20
	}
	return 5
}

// group is the first level of ten capabilities, of which ten agents have one each.
func group(i int) string { return fmt.Sprintf("urn:g%d", i) }

func skill(i int) string { return fmt.Sprintf("%s:a%d", group(i/10), i) }

// agentTD is a small agent, of 0.8 kB.
func agentTD(id, capability string) []byte {
	return fmt.Appendf(nil, `{"@context":["https://www.w3.org/2022/wot/td/v1.1",{"lmos":"https://eclipse.dev/lmos/protocol/v1"}],
"@type":"lmos:Agent","id":%q,"title":"Worker","securityDefinitions":{"nosec_sc":{"scheme":"nosec"}},"security":["nosec_sc"],
"lmos:capabilities":[{"id":%q,"name":"work","version":"1.0.0","description":"Does one kind of work."}],
"actions":{"work":{"synchronous":true,"input":{"type":"string"},"output":{"type":"string"},
"forms":[{"href":"http://127.0.0.1:1/work","op":["invokeaction"],"contentType":"application/json"}]}}}`, id, capability)
}

// publish spreads the agents over the nodes. The nodes publish at once, each its own one after the other.
func (m *trial) publish() {
	var g errgroup.Group
	var mu sync.Mutex
	var pause time.Duration // or a node of many would be connected to nearly all others at once
	if len(m.alive) > 200 || m.agents > 1000 {
		pause = 250 * time.Millisecond
	}
	for k, host := range m.alive {
		g.Go(func() error {
			time.Sleep(time.Duration(k) * pause)
			for i := k; i < m.agents; i += len(m.alive) {
				p, err := host.Publish(m.ctx, agentTD(fmt.Sprintf("urn:x:agent-%d", i), skill(i)))
				if err != nil {
					return err
				}
				mu.Lock()
				m.truth[p.Ref] = host
				mu.Unlock()
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		m.Fatal(err)
	}
}

// converge waits until all know as many things as there are, for three minutes at most.
func (m *trial) converge() {
	knowsLess := func(who *Member) bool { return who.node.Status().Agents.Known < m.agents }
	for began := time.Now(); time.Since(began) < 3*time.Minute && slices.ContainsFunc(m.alive, knowsLess); {
		time.Sleep(100 * time.Millisecond)
	}
	if missing, all := m.missing(m.alive...); missing > 0 {
		m.Errorf("%d of %d are missing", missing, all)
	}
}

// missing counts the agents of living nodes that members do not know, and those that they should, of all members together.
func (m *trial) missing(members ...*Member) (missing, all int) {
	for _, who := range members {
		known := map[string]bool{}
		for d := range who.node.Known() {
			known[d.Ref()] = true
		}
		for ref, host := range m.truth {
			if slices.Contains(m.alive, host) {
				if all++; !known[ref] {
					missing++
				}
			}
		}
	}
	return missing, all
}

// recall has every node find every agent by its capability, and once ten by the level that they share, with coverage.
func (m *trial) recall() {
	missed := 0
	for _, who := range m.alive {
		for i := range m.agents {
			found := 0
			for d := range who.node.Mesh().Find(m.ctx, td.Query{Capability: []string{skill(i)}, Limit: 1}) { // with room for one, no peer is queried
				if d.Record.Thing == fmt.Sprintf("urn:x:agent-%d", i) {
					found++
				}
			}
			if found != 1 {
				missed++
			}
		}
	}
	if missed > 0 {
		m.Errorf("%d of %d queries for a capability failed", missed, m.agents*len(m.alive))
	}
	m.groups(func(who *Member, list *api.AgentList) {
		if len(list.Items) != 10 || !list.Coverage.Complete() {
			m.Errorf("node %d finds %d of 10 with coverage %+v", who.N, len(list.Items), list.Coverage)
		}
	})
}

// groups lets all nodes search for a group concurrently, and passes the results to f one by one.
func (m *trial) groups(f func(who *Member, list *api.AgentList)) {
	lists := make([]*api.AgentList, len(m.alive))
	var g errgroup.Group
	for k, who := range m.alive {
		i := m.r.IntN(m.agents / 10)
		g.Go(func() (err error) {
			lists[k], err = who.Find(m.ctx, td.Query{Capability: []string{group(i)}}, 0)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		m.Fatal(err)
	}
	for k, list := range lists {
		f(m.alive[k], list)
	}
}

// lookups counts the messages of sequential searches in the mesh. Each has ten hosts.
func (m *trial) lookups() {
	var dht, questions, states, took []float64
	for range 2 * m.few() {
		who, began := m.any(), time.Now()
		before := m.net.sentBy(who)
		if _, err := who.Find(m.ctx, td.Query{Capability: []string{group(m.r.IntN(m.agents / 10))}}, 0); err != nil {
			m.Fatal(err)
		}
		took = append(took, millis(time.Since(began)))
		s := m.net.sentBy(who).since(before)
		dht, questions = append(dht, float64(s[forDHT].requests)), append(questions, float64(s[forQuestions].requests))
		states = append(states, float64(s[forStates].requests))
	}
	m.Logf("a lookup of ten: %s DHT messages, %s questions, %s for states, %s ms", spread(dht), spread(questions), spread(states), spread(took))
	// Twenty servers are nearest, each host gets one query for its records and one for the states of its agents, and the lookup takes a
	// few.
	n := math.Log2(float64(len(m.alive)))
	if d, q, st := at(dht, .5), at(questions, .5), at(states, .5); d > 20+2*n || q > 12 || st > 10 || at(states, 1) == 0 {
		m.Errorf("a lookup of ten costs %.0f messages, %.0f questions and %.0f for states, want %.0f, 12 and 10 at most", d, q, st, 20+2*n)
	}
}

func (m *trial) any() *Member { return m.alive[m.r.IntN(len(m.alive))] }

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// at returns a quantile.
func at(v []float64, q float64) float64 {
	slices.Sort(v)
	return v[min(len(v)-1, int(q*float64(len(v))))]
}

func spread(v []float64) string {
	return fmt.Sprintf("p50 %.0f p99 %.0f max %.0f", at(v, .5), at(v, .99), at(v, 1))
}

// sum returns what the living have sent so far.
func (m *trial) sum() (s sent) {
	for _, who := range m.alive {
		s = s.plus(m.net.sentBy(who))
	}
	return s
}

// sightings are when nodes saw things come and go.
type sightings struct {
	mu sync.Mutex
	at map[string][]time.Time // by thing and kind; owned by mu
}

func (s *sightings) follow(ctx context.Context, who *Member) {
	for c, err := range who.node.Mesh().Watch(ctx, td.Query{Capability: []string{"urn:news"}}, 0) {
		if err != nil {
			return
		}
		s.mu.Lock()
		key := fmt.Sprint(c.Thing.Record.Thing, c.Kind)
		s.at[key] = append(s.at[key], time.Now())
		s.mu.Unlock()
	}
}

// of waits until n nodes saw something, for two minutes at most, and returns after how many milliseconds each did.
func (s *sightings) of(key string, n int, began time.Time) (took []float64) {
	for wait := 0; wait < 1200; wait++ {
		s.mu.Lock()
		seen := slices.Clone(s.at[key])
		s.mu.Unlock()
		if took = nil; len(seen) >= n || wait == 1199 {
			for _, t := range seen {
				took = append(took, millis(t.Sub(began)))
			}
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return took
}

// news publishes and withdraws agents, and measures the time until all nodes know.
func (m *trial) news() {
	ctx, cancel := context.WithCancel(m.ctx)
	var g sync.WaitGroup
	defer g.Wait()
	defer cancel()
	seen := &sightings{at: map[string][]time.Time{}}
	for _, who := range m.alive {
		g.Go(func() { seen.follow(ctx, who) })
	}
	synctest.Wait()
	var came, went []float64
	before := m.sum()
	for i := range m.few() {
		host, id := m.any(), fmt.Sprintf("urn:x:news-%d", i)
		began := time.Now()
		p, err := host.Publish(m.ctx, agentTD(id, "urn:news:n"))
		if err != nil {
			m.Fatal(err)
		}
		came = append(came, seen.of(fmt.Sprint(id, directory.Added), len(m.alive), began)...)
		began = time.Now()
		if _, err := host.Unpublish(m.ctx, p.Ref); err != nil {
			m.Fatal(err)
		}
		went = append(went, seen.of(fmt.Sprint(id, directory.Removed), len(m.alive), began)...)
	}
	m.within("published", came)
	m.within("withdrawn", went)
	if m.long {
		time.Sleep(20 * time.Second) // gossip repeats messages for a few seconds
		m.Logf("an announcement costs each node %s", m.sum().since(before).per(float64(2*m.few()*len(m.alive))))
	}
}

// within holds what nodes saw of all news against the goal.
func (m *trial) within(what string, took []float64) {
	if len(took) != m.few()*len(m.alive) {
		m.Fatalf("%s: %d sightings, want %d", what, len(took), m.few()*len(m.alive))
	}
	m.Logf("%s: seen after %s ms", what, spread(took))
	if p99 := at(took, .99); p99 > 1000 {
		m.Errorf("%s: 99 %% have seen it after %.0f ms, want 1 s at most", what, p99)
	}
}

// grown adds a node that knows two others.
func (m *trial) grown() *Member {
	late, err := m.net.grow()
	if err != nil {
		m.Fatal(err)
	}
	for range 2 {
		if err := late.Connect(m.ctx, m.any().Addrs[0]); err != nil {
			m.Fatal(err)
		}
	}
	return late
}

// joiner measures the time until a new node knows all Things.
func (m *trial) joiner() {
	began := time.Now()
	late := m.grown()
	for late.node.Status().Agents.Known < m.agents && time.Since(began) < time.Minute {
		time.Sleep(10 * time.Millisecond)
	}
	took := time.Since(began)
	missing, all := m.missing(late)
	m.Logf("a joining node lacks %d of %d after %v", missing, all, took)
	if missing > 0 || took > 3*time.Second {
		m.Errorf("a joining node lacks %d of %d after %v, want all within 3 s", missing, all, took)
	}
	m.alive = append(m.alive, late)
}

// period is the time in which every Thing is announced once, with a margin.
const period = 11 * time.Minute

// started is the time after which a new node has announced its addresses and repeated that, with a margin.
const started = 2 * time.Minute

// silence measures the traffic of a node without changes: gossip repeats all announcements.
func (m *trial) silence() {
	time.Sleep(started)
	m.spends("a minute of silence", 0, 1000, func() { time.Sleep(period) })
}

// churn measures the same while each minute one in a hundred nodes dies and another joins, and one in a hundred agents goes and
// another comes.
func (m *trial) churn() {
	var g sync.WaitGroup
	defer g.Wait()
	came := 0
	m.spends("a minute of churn", 2*max(1, m.agents/100), 8000, func() {
		for range period / time.Minute {
			time.Sleep(time.Minute)
			for range max(1, len(m.alive)/100) {
				m.replace(&g)
			}
			for range max(1, m.agents/100) {
				came++
				m.swap(fmt.Sprintf("urn:x:late-%d", came))
			}
		}
	})
}

// replace cuts a node off, and lets another join.
func (m *trial) replace(g *sync.WaitGroup) {
	i := m.r.IntN(len(m.alive))
	dead := m.alive[i]
	m.alive = slices.Delete(m.alive, i, i+1)
	if err := dead.cut(); err != nil {
		m.Fatal(err)
	}
	g.Go(func() { _ = dead.stop() })
	m.alive = append(m.alive, m.grown())
}

// swap withdraws an agent of the living, and publishes another.
func (m *trial) swap(id string) {
	for ref, host := range m.truth {
		if !slices.Contains(m.alive, host) {
			continue
		}
		delete(m.truth, ref)
		if _, err := host.Unpublish(m.ctx, ref); err != nil {
			m.Fatal(err)
		}
		break
	}
	host := m.any()
	p, err := host.Publish(m.ctx, agentTD(id, "urn:late:a"))
	if err != nil {
		m.Fatal(err)
	}
	m.truth[p.Ref] = host
}

// spends measures what the nodes that are alive at the end have sent during f, which takes a period, and holds it against bounds:
// gossip grows with the things, and what is published or withdrawn each minute, and not with the nodes; the rest grows with the
// logarithm of the nodes.
func (m *trial) spends(what string, news int, restEach float64, f func()) {
	before := map[*Member]sent{}
	for _, who := range m.alive {
		before[who] = m.net.sentBy(who)
	}
	began := time.Now()
	f()
	var s sent
	for _, who := range m.alive {
		s = s.plus(m.net.sentBy(who).since(before[who]))
	}
	minutes := time.Since(began).Minutes() * float64(len(m.alive))
	m.Logf("%s costs each node %s", what, s.per(minutes))
	gossip, rest := float64(s[forGossip].bytes)/minutes, float64(s.bytes()-s[forGossip].bytes)/minutes
	if most := gossipEach*float64(m.agents)/10 + newsEach*float64(news) + 1000; gossip > most {
		m.Errorf("%s: gossip sends %.0f bytes, want %.0f at most with %d things", what, gossip, most, m.agents)
	}
	if most := restEach * math.Log2(float64(len(m.alive))); rest > most {
		m.Errorf("%s: all but gossip send %.0f bytes, want %.0f at most with %d nodes", what, rest, most, len(m.alive))
	}
}

// The maximal gossip traffic of a node in bytes, per repeated announcement of a Thing, and per publication.
const (
	gossipEach = 4500
	newsEach   = 8000
)

// deaths cuts off 30 % of the nodes at once.
func (m *trial) deaths() {
	m.r.Shuffle(len(m.alive), func(i, j int) { m.alive[i], m.alive[j] = m.alive[j], m.alive[i] })
	n := len(m.alive) * 3 / 10
	dead := m.alive[:n]
	m.alive = m.alive[n:]
	met := m.connections()
	var g sync.WaitGroup
	defer g.Wait()
	for _, who := range dead {
		if err := who.cut(); err != nil {
			m.Errorf("cut node %d: %v", who.N, err)
		}
		g.Go(func() { _ = who.stop() })
	}
	time.Sleep(10 * time.Second)
	missing, living := m.missing(m.alive...)
	if float64(missing) > 0.001*float64(living) {
		m.Errorf("%d of %d of the living are missing", missing, living)
	}
	wrong, blind, all := m.undead(met)
	if wrong+blind > 0 {
		m.Errorf("of %d agents of the dead %d are listed as reachable by connected nodes, %d by others, want none",
			all, wrong, blind)
	}
	found, listed := 0, 0
	m.groups(func(_ *Member, list *api.AgentList) {
		for _, a := range list.Items {
			if !slices.Contains(m.alive, m.truth[a.Ref]) {
				if listed++; a.State == api.StateReachable {
					found++
				}
			}
		}
	})
	if found > 0 {
		m.Errorf("searches list %d of %d agents of the dead as reachable, want none", found, listed)
	}
	m.Logf("%d of %d died: %d of %d of the living are missing; of %d agents of the dead %d are listed as reachable by "+
		"connected nodes, %d by others; searches then listed %d, %d of them as reachable",
		n, n+len(m.alive), missing, living, all, wrong, blind, listed, found)
}

// connections returns the connected pairs.
func (m *trial) connections() map[*Member]map[did.DID]bool {
	all := map[*Member]map[did.DID]bool{}
	for _, who := range m.alive {
		all[who] = map[did.DID]bool{}
		for _, p := range m.net.sim.hosts[who.N-1].Network().Peers() {
			if id, err := did.FromPeer([]byte(p)); err == nil {
				all[who][id] = true
			}
		}
	}
	return all
}

// undead counts the agents of dead nodes that the living list, of these wrong are listed as reachable by nodes that were connected to
// their host, and blind by others.
func (m *trial) undead(met map[*Member]map[did.DID]bool) (wrong, blind, all int) {
	for _, who := range m.alive {
		for d := range who.node.Known() {
			host := m.truth[d.Ref()]
			if host == nil || slices.Contains(m.alive, host) {
				continue
			}
			switch all++; {
			case who.node.Mesh().Presence(d).State != reachability.Reachable:
			case met[who][host.DID]:
				wrong++
			default:
				blind++
			}
		}
	}
	return wrong, blind, all
}

func TestLinksHaveSeparateDelays(t *testing.T) {
	t.Parallel()
	o := Options{Seed: 3, Latency: 5 * time.Millisecond, Farthest: 60 * time.Millisecond}
	seen := map[time.Duration]bool{}
	for i := range 20 {
		a, b := peer.ID(fmt.Sprint(i)), peer.ID("20")
		d := o.delay(a, b)
		if d < o.Latency || d >= o.Farthest || d != o.delay(b, a) {
			t.Errorf("got %v, want the same from %v to %v", d, o.Latency, o.Farthest)
		}
		seen[d] = true
	}
	if o.Farthest = 0; len(seen) < 10 || o.delay("1", "2") != o.Latency {
		t.Errorf("20 links have %d delays, and %v without a range", len(seen), o.delay("1", "2"))
	}
}
