package node

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/directory/reachability"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testhost"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/td"
)

// A sim is a simulated network whose time jumps.
type sim struct {
	*testhost.Network
	nodes []*running
}

// simulate runs f with n nodes that are linked, and not connected.
func simulate(t *testing.T, n int, f func(t *testing.T, s *sim)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &sim{Network: testhost.NewNetwork(t, 5*time.Millisecond)}
		for i := range n {
			s.nodes = append(s.nodes, run(t, s.open(t, i)))
		}
		if err := s.LinkAll(); err != nil {
			t.Fatal(err)
		}
		f(t, s)
	})
}

// vanish takes a node off the network.
func (s *sim) vanish(n *running) {
	id := n.network.ID()
	for _, p := range s.Peers() {
		if p != id {
			_ = s.UnlinkPeers(id, p)
			_ = s.DisconnectPeers(id, p)
		}
	}
}

func (s *sim) open(t *testing.T, i int, change ...func(*Options)) *Node {
	t.Helper()
	key := didtest.NewKey()
	priv, err := crypto.UnmarshalPrivateKey(key.Libp2p())
	if err != nil {
		t.Fatal(err)
	}
	h, err := s.AddPeer(priv, addrs(t, fmt.Sprintf("/ip4/10.0.0.%d/tcp/4667", i+1))[0])
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Key: key, Host: h, Network: "sim", Profile: "test", Lifetime: time.Hour, Policy: anyoneCalls(policy.Rules{})}
	for _, c := range change {
		c(&o)
	}
	n, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func codesOf(n *running) []string {
	var codes []string
	for _, w := range n.Status().Warnings {
		codes = append(codes, w.Code)
	}
	return codes
}

func TestPublicationWithoutPeersIsAnnouncedToTheFirst(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		host, other := s.nodes[0], s.nodes[1]
		p, err := host.Client().Publish(t.Context(), tool("Echo", ""))
		if err != nil || !p.Pending {
			t.Fatalf("got %+v, %v; want it pending", p, err)
		}
		if codes := codesOf(host); len(codes) != 0 {
			t.Errorf("a node that has just started warns of %v", codes)
		}
		time.Sleep(time.Minute)
		if codes := codesOf(host); !slices.Equal(codes, []string{"LMOS-W001", "LMOS-W042"}) {
			t.Errorf("alone for a minute it warns of %v, want no-peers and announce-pending", codes)
		}
		connect(t, other, host)
		knows(t, other, p.Ref)
		until(t, "nothing is pending", func() bool { return host.mesh.publisher.Pending() == 0 })
		until(t, "the DHT has it", func() bool { _, err := other.mesh.dht.Get(t.Context(), host.DID(), p.ID); return err == nil })
		if codes := codesOf(host); len(codes) != 0 {
			t.Errorf("in company it warns of %v", codes)
		}
	})
}

func TestWithdrawalWithoutPeersIsAnnouncedToTheFirst(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		host, other := s.nodes[0], s.nodes[1]
		ref := publish(t, host, tool("Echo", "urn:x:echo"))
		if p, err := host.Client().Unpublish(t.Context(), ref); err != nil || !p.Pending {
			t.Fatalf("got %+v, %v; want it pending", p, err)
		}
		time.Sleep(time.Hour)
		connect(t, other, host)
		until(t, "the DHT has the tombstone", func() bool {
			signed, err := other.mesh.dht.Get(t.Context(), host.DID(), "urn:x:echo")
			if err != nil {
				return false
			}
			r, err := td.NewVerifier(nil).Record(signed.Record, time.Now())
			return err == nil && r.Kind == td.KindTombstone
		})
		_, err := other.Client().Agent(t.Context(), ref)
		wantCode(t, err, interact.Withdrawn)
	})
}

func TestRecordsAreRenewedWhileTheirHostLives(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		host, other := s.nodes[0], s.nodes[1]
		connect(t, other, host)
		p, err := host.Client().Publish(t.Context(), tool("Echo", "urn:x:echo"))
		if err != nil {
			t.Fatal(err)
		}
		knows(t, other, p.Ref)
		time.Sleep(130 * time.Minute) // more than two lives
		d, err := other.Client().Agent(t.Context(), p.Ref)
		if err != nil {
			t.Fatal(err)
		}
		// The agent is not served; its host is reachable.
		if age := time.Since(d.Agent.Seen); age > 12*time.Minute || d.Signature.Seq <= p.Seq || d.Agent.State != api.StateUnreachable ||
			time.Since(d.Agent.LastSeen) > time.Minute {
			t.Errorf("the record is %v old with seq %d after %d; want it renewed every ten minutes", age, d.Signature.Seq, p.Seq)
		}
		if signed, err := other.mesh.dht.Get(t.Context(), host.DID(), "urn:x:echo"); err != nil || signed == nil {
			t.Errorf("the DHT has lost it: %v", err)
		}
	})
}

// gated is an agent that reports each call, and replies once it is released.
type gated struct{ asked, free chan struct{} }

func newGated() *gated { return &gated{asked: make(chan struct{}, 8), free: make(chan struct{})} }

func (g *gated) thing() interact.Thing {
	return interact.Unary(func(ctx context.Context, m *interact.Message) (*interact.Message, error) {
		g.asked <- struct{}{}
		select {
		case <-g.free:
			r := m.Reply(interact.ActionStatus, interact.JSON, m.Data)
			r.Status = interact.StatusCompleted
			return r, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
}

// A result is how a call ended.
type result struct {
	out []byte
	err error
}

// calling calls the action of a thing and returns where the answer comes.
func calling(t *testing.T, from *running, ref string) chan result {
	done := make(chan result, 1)
	go func() {
		out, _, err := from.Client().Call(t.Context(), ref, "echo", interact.JSON, []byte(`"x"`))
		done <- result{out, err}
	}()
	return done
}

func TestRunningCallsFinishWhenTheNodeStops(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		host, other, agent := s.nodes[0], s.nodes[1], newGated()
		connect(t, other, host)
		p, err := host.Offer(t.Context(), tool("Echo", ""), agent.thing())
		if err != nil {
			t.Fatal(err)
		}
		knows(t, other, p.Ref)
		remote, local := calling(t, other, p.Ref), calling(t, host, p.Ref)
		<-agent.asked
		<-agent.asked
		host.cancel()
		synctest.Wait()
		for _, n := range []*running{other, host} {
			err := ask(t, n, p.Ref)
			if e := wantCode(t, err, interact.ShuttingDown); e.Remote != (n == other) {
				t.Errorf("a new call gives %v, remote %v", e, e.Remote)
			}
		}
		if s := host.Status(); s.State != "draining" || host.reporter.Ready() == nil {
			t.Errorf("the node is %s, ready %v; want it draining", s.State, host.reporter.Ready())
		}
		time.Sleep(5 * time.Second)
		close(agent.free)
		for name, done := range map[string]chan result{"the other node": remote, "the node itself": local} {
			if r := <-done; r.err != nil || string(r.out) != `"x"` {
				t.Errorf("the running call of %s gives %s, %v; want its answer", name, r.out, r.err)
			}
		}
		if err := host.wait(); err != nil {
			t.Errorf("run: %v", err)
		}
		if !has(other, p.Ref) {
			t.Error("the thing was withdrawn, though its node only stopped")
		}
	})
}

func TestStuckCallIsCancelled(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		host, other, agent := s.nodes[0], s.nodes[1], newGated()
		connect(t, other, host)
		p, err := host.Offer(t.Context(), tool("Echo", ""), agent.thing())
		if err != nil {
			t.Fatal(err)
		}
		knows(t, other, p.Ref)
		remote, local := calling(t, other, p.Ref), calling(t, host, p.Ref)
		<-agent.asked
		<-agent.asked
		start := time.Now()
		if err := host.stop(); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took < drainFor || took > drainFor+2*time.Second {
			t.Errorf("the node stopped after %v, want %v and a little", took, drainFor)
		}
		if r := <-remote; codeOf(r.err) != interact.Unreachable { // A simulated stream tells no reason.
			t.Errorf("the call of the other node gives %v, want %v", r.err, interact.Unreachable)
		}
		if r := <-local; codeOf(r.err) != interact.Cancelled {
			t.Errorf("the call of the node itself gives %v, want that it was cut", r.err)
		}
	})
}

func TestIdleNodeStopsAtOnce(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		connect(t, s.nodes[0], s.nodes[1])
		start := time.Now()
		if err := s.nodes[0].stop(); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("the node stopped after %v", took)
		}
	})
}

// The host of a Thing is gone and gossip is over before the joiner starts: the joiner gets the record from a neighbor.
func TestJoinerReceivesMissedRecords(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		host, other, late := s.nodes[0], s.nodes[1], s.nodes[2]
		connect(t, other, host)
		var refs []string
		for i := range 40 {
			p, err := host.Client().Publish(t.Context(), tool(fmt.Sprint("Echo", i), fmt.Sprint("urn:x:echo", i)))
			if err != nil {
				t.Fatal(err)
			}
			refs = append(refs, p.Ref)
		}
		if _, err := host.Client().Unpublish(t.Context(), refs[0]); err != nil {
			t.Fatal(err)
		}
		for _, ref := range refs[1:] {
			knows(t, other, ref)
		}
		s.vanish(host)
		time.Sleep(time.Minute)
		connect(t, late, other)
		start := time.Now()
		for {
			if _, known := late.mesh.directory.Len(); known >= 39 {
				break
			}
			if time.Since(start) > 3*time.Second {
				_, known := late.mesh.directory.Len()
				t.Fatalf("it knows %d after 3 s: %+v", known, late.mesh.sync.Stats())
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Logf("after %v: %+v", time.Since(start), late.mesh.sync.Stats())
		_, err := late.Client().Agent(t.Context(), refs[0])
		wantCode(t, err, interact.Withdrawn)
	})
}

// lists returns the Things that a node lists as not unreachable, or as unreachable. It sends no request.
func lists(n *running, reachable bool) (refs []string) {
	for d := range n.view.Known(did.AsProcess(context.Background())) {
		if (n.mesh.monitor.Presence(d).State != reachability.Unreachable) == reachable {
			refs = append(refs, d.Ref())
		}
	}
	return refs
}

// Nodes that were connected to a failed host detect its failure, the others and later ones receive a report. All detect its return.
func TestFailedHostIsDetectedByAll(t *testing.T) {
	simulate(t, 4, func(t *testing.T, s *sim) {
		host, near, far, late := s.nodes[0], s.nodes[1], s.nodes[2], s.nodes[3]
		if err := s.UnlinkPeers(host.network.ID(), far.network.ID()); err != nil { // so that they are not connected
			t.Fatal(err)
		}
		connect(t, near, host)
		connect(t, far, near)
		ref := publish(t, host, tool("Echo", "urn:x:echo"))
		knows(t, far, ref)
		reachable := func(n *running) bool { return len(lists(n, true)) == 1 } // without a probe, which would be another attempt
		if !reachable(near) || !reachable(far) {
			t.Fatal("a living host is listed as gone")
		}
		time.Sleep(5 * time.Second) // new peers have received all records
		s.vanish(host)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if reachable(near) || reachable(far) {
			t.Errorf("after 10 s it is listed by a connected node: %v, by another: %v", reachable(near), reachable(far))
		}
		tally, before := new(td.CoverageCounter), near.mesh.dht.Stats().Queried
		for range near.view.Find(t.Context(), td.Query{ID: "urn:x:echo", Counter: tally}) {
		}
		if c, asked := tally.Coverage(), near.mesh.dht.Stats().Queried-before; asked != 0 || c.Unreachable != 1 {
			t.Errorf("a search asks %d, with coverage %+v; want one counted as unreachable, without a wait", asked, c)
		}
		if a, b := near.mesh.suspicion.Stats(), far.mesh.suspicion.Stats(); a.Sent != 1 || b.Confirmed != 1 || b.Sent != 0 {
			t.Errorf("%+v, %+v; want it told once, tried once", a, b)
		}
		connect(t, late, near)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(lists(late, false)) != 1 {
			t.Errorf("a later node lists %v as reachable", lists(late, true))
		}
		for _, n := range s.nodes[1:] {
			if _, err := s.LinkPeers(host.network.ID(), n.network.ID()); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for i, n := range s.nodes[1:] {
			if !reachable(n) {
				t.Errorf("a minute after it is back node %d lists it as gone", i+1)
			}
		}
	})
}

// A node without its uplink lists all others as unreachable and reports no failures. After its return, running hosts are soon reachable again.
func TestPartitionedNodeReturns(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		a, b, cut := s.nodes[0], s.nodes[1], s.nodes[2]
		connect(t, a, b)
		connect(t, cut, a)
		connect(t, cut, b)
		refs := []string{publish(t, a, tool("A", "urn:x:a")), publish(t, b, tool("B", "urn:x:b"))}
		for _, ref := range refs {
			knows(t, cut, ref)
		}
		s.vanish(cut)
		time.Sleep(40 * time.Minute) // its probes are minutes apart
		synctest.Wait()
		if down := lists(cut, false); len(down) != len(refs) {
			t.Errorf("it lists %v as unreachable, want %v", down, refs)
		}
		for _, n := range []*running{a, b} {
			if _, err := s.LinkPeers(cut.network.ID(), n.network.ID()); err != nil {
				t.Fatal(err)
			}
		}
		connect(t, cut, a)
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if up := lists(cut, true); len(up) != len(refs) {
			t.Errorf("six seconds after it is back it lists %v as reachable, want %v", up, refs)
		}
		if st := cut.mesh.suspicion.Stats(); st.Sent != 0 {
			t.Errorf("it told %+v", st)
		}
	})
}
