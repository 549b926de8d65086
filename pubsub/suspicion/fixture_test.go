package suspicion

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/testhost"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// failedHost is the nth reported host.
func failedHost(t testing.TB, n int) did.DID { return didtest.Key(10_000 + n).DID() }

func several(t testing.TB, n int) (hosts []did.DID) {
	for i := range n {
		hosts = append(hosts, failedHost(t, i))
	}
	return hosts
}

// A node is a Detector with a simulated directory, and the hosts that its network reaches.
type node struct {
	*Detector
	host host.Host
	run  func()
	// onDial is closed by the first dial, if it is set.
	onDial chan struct{}

	mu      sync.Mutex
	alive   map[did.DID]bool // reachable from this node
	unknown bool             // dials give no result
	slow    time.Duration    // of each dial
	listed  map[did.DID]bool // up in the directory of this node
	dialed  map[did.DID]int
	now     int // dials
	most    int // at once
}

func (n *node) tracks(host did.DID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.listed[host]
}

func (n *node) dial(ctx context.Context, host did.DID) (bool, error) {
	n.mu.Lock()
	if n.dialed[host]++; n.onDial != nil {
		close(n.onDial)
		n.onDial = nil
	}
	n.now++
	n.most = max(n.most, n.now)
	slow := n.slow
	n.mu.Unlock()
	_ = backoff.Sleep(ctx, slow)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.now--
	if n.unknown {
		return false, errors.New("no network")
	}
	return n.alive[host], nil
}

// lost marks a host as down, and reports it if it was up.
func (n *node) lost(host did.DID) {
	n.mu.Lock()
	news := n.listed[host]
	delete(n.listed, host)
	n.mu.Unlock()
	if news {
		n.Report(host)
	}
}

// list marks hosts as up; living is whether they are reachable.
func (n *node) list(living bool, hosts ...did.DID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, h := range hosts {
		n.listed[h], n.alive[h] = true, living
	}
}

// fail makes a host unreachable.
func (n *node) fail(host did.DID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.alive, host)
}

// dials returns the number of dials.
func (n *node) dials() (all int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.dialed {
		all += c
	}
	return all
}

// serves returns the number of messages being received.
func (n *node) serves() int { return n.server.Serving() }

func (n *node) options() Options {
	return Options{Network: "test", Tracks: n.tracks, Probe: n.dial, OnFailed: n.lost}
}

func newNode(t testing.TB, h host.Host, change ...func(*Options)) *node {
	t.Helper()
	n := &node{host: h, alive: map[did.DID]bool{}, listed: map[did.DID]bool{}, dialed: map[did.DID]int{}}
	o := n.options()
	o.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	for _, f := range change {
		f(&o)
	}
	r, err := New(h, o)
	if err != nil {
		t.Fatal(err)
	}
	n.Detector = r
	ctx, cancel := context.WithCancel(context.Background())
	var g sync.WaitGroup
	n.run = sync.OnceFunc(func() {
		g.Go(func() {
			if err := r.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	})
	t.Cleanup(func() {
		cancel()
		g.Wait()
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// A sim is a simulated network.
type sim struct{ *testhost.Network }

// simulate runs f in a bubble, with a network whose messages take 10 ms. All of it ends with the test.
func simulate(t *testing.T, f func(t *testing.T, s *sim)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f(t, &sim{testhost.NewNetwork(t, 10*time.Millisecond)})
	})
}

// line adds n running nodes, each connected to the previous one; change sets their options.
func (s *sim) line(n int, change ...func(*Options)) []*node {
	s.T.Helper()
	var nodes []*node
	for i := range n {
		nodes = append(nodes, newNode(s.T, s.Add(), change...))
		nodes[i].run()
		if i > 0 {
			s.Connect(nodes[i-1].host, nodes[i].host)
		}
	}
	return nodes
}

// send sends bytes as a message of a host without the protocol, and waits until they were processed or rejected.
func (s *sim) send(from host.Host, to *node, body []byte) {
	s.T.Helper()
	st, err := from.NewStream(s.T.Context(), to.host.ID(), Protocol("test"))
	if err != nil {
		s.T.Fatal(err)
	}
	_, _ = st.Write(body)
	_ = st.CloseWrite()
	sleep(50 * time.Millisecond)
	_ = st.Reset()
	synctest.Wait()
}

// sleep waits for the given time, and then until all goroutines are idle.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func message1(t testing.TB, hosts ...did.DID) []byte {
	t.Helper()
	b, err := encode(hosts)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func peerOf(t testing.TB, n int) peer.ID { return peer.ID(didtest.Key(n).Peer()) }
