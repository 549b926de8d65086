package reconcile

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/td"
)

// pair returns two connected nodes, in the bubble of a test.
func pair(t *testing.T) (*sim, *node, *node) {
	t.Helper()
	s := simulate(t, 10*time.Millisecond)
	a, b := s.node(), s.node()
	s.Connect(a.host, b.host)
	return s, a, b
}

// sync runs a session that must succeed.
func (n *node) sync(t *testing.T, with *node) Report {
	t.Helper()
	r, err := n.Sync(t.Context(), with.host.ID())
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait() // the other end too
	return r
}

// same checks that both nodes have the same records.
func same(t *testing.T, a, b *node, want int) {
	t.Helper()
	if a.set.Len() != want || b.set.Len() != want || a.set.view().fingerprint(nil) != b.set.view().fingerprint(nil) {
		t.Errorf("%d and %d items; want %d, the same", a.set.Len(), b.set.Len(), want)
	}
}

func TestEqualSetsTakeOneRoundTrip(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, a, b := pair(t)
		for _, size := range []int{0, 10, 100_000} {
			a.fill(0, size)
			b.fill(0, size)
			start := time.Now()
			r := a.sync(t, b)
			// 10 ms each way, and the stream is opened in the first.
			if took := time.Since(start); r.Rounds != 1 || took > 30*time.Millisecond || r.BytesOut+r.BytesIn > 100+size%100*itemSize {
				t.Errorf("%d items: %d rounds, %v, %d and %d bytes", size, r.Rounds, took, r.BytesOut, r.BytesIn)
			}
		}
		if st := b.Stats(); st.Served != 3 || st.Refused != 0 {
			t.Errorf("got %+v", st)
		}
	})
}

func TestOneDifferenceTakesFewBytes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, a, b := pair(t)
		a.fill(0, 100_000)
		b.fill(0, 100_000)
		for i, c := range []struct {
			name string
			with *node
			s    *td.Signed
		}{
			{"the peer has one more", b, signed(t, 1, 1)},
			{"the peer has a newer one", b, signed(t, 1, 2)},
			{"this node has one more", a, signed(t, 2, 1)},
			{"this node has a tombstone", a, tombstone(t, 1, 3)},
		} {
			c.with.add(t, c.s)
			r := a.sync(t, b)
			t.Logf("%s: %d bytes out, %d in, of these a record of %d; %d rounds", c.name, r.BytesOut, r.BytesIn, len(c.s.Record), r.Rounds)
			if bytes := r.BytesOut + r.BytesIn - len(c.s.Record); bytes > 4<<10 || r.Rounds > 5 || r.Received+r.Sent != 1 || r.More {
				t.Errorf("%s: %+v", c.name, r)
			}
			same(t, a, b, 100_000+[]int{1, 1, 2, 2}[i])
		}
	})
}

func TestBothEndsReceiveRecords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, a, b := pair(t)
		a.fill(0, 1000)
		b.fill(0, 1000)
		for i := range 150 {
			a.add(t, signed(t, i, 1+uint64(i%3))) // newer here, the same, or newer there
			b.add(t, signed(t, i, 1+uint64((i+1)%3)))
		}
		for i := range 50 {
			a.add(t, signed(t, 1000+i, 1))
			b.add(t, signed(t, 2000+i, 1))
		}
		r := a.sync(t, b)
		// Of three Things one is newer here (3 and 1), and two are newer there.
		if r.Received != 150 || r.Sent != 100 || r.Missing != 0 || r.More {
			t.Errorf("got %+v", r)
		}
		same(t, a, b, 1250)
		if r := a.sync(t, b); r.Rounds != 1 {
			t.Errorf("after it: %+v", r)
		}
	})
}

// TestNextSessionContinues reconciles sets with more differences than one session exchanges.
func TestNextSessionContinues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := simulate(t, 10*time.Millisecond)
		a, b := s.node(func(o *Options) { o.maxRequests = 100 }), s.node()
		s.Connect(a.host, b.host)
		for i := range 350 {
			b.add(t, tombstone(t, i, 1))
		}
		if r := a.sync(t, b); r.Received != 100 || !r.More {
			t.Errorf("got %+v, want it cut", r)
		}
		if err := b.syncAll(t.Context(), a.host.ID()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		same(t, a, b, 350)
		if st := b.Stats(); st.Sessions != 3 {
			t.Errorf("got %+v, want three more sessions", st)
		}
	})
}

func TestLateJoinerSyncsWithinSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := simulate(t, 30*time.Millisecond)
		nodes := []*node{s.node(), s.node(), s.node()}
		for i := range 2000 {
			one := signed(t, i, 1)
			for _, n := range nodes {
				n.add(t, one)
			}
		}
		late := s.node()
		late.add(t, signed(t, 5000, 1), signed(t, 5001, 1))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- late.Run(ctx) }()
		time.Sleep(time.Minute) // alone
		start := time.Now()
		for _, n := range nodes {
			s.Connect(late.host, n.host)
		}
		for late.set.Len() < 2002 {
			if time.Since(start) > 3*time.Second {
				t.Fatalf("%d Things after 3 s", late.set.Len())
			}
			time.Sleep(10 * time.Millisecond)
		}
		st := late.Stats()
		t.Logf("complete after %v: %d sessions, %d bytes in, %d out", time.Since(start), st.Sessions, st.BytesIn, st.BytesOut)
		time.Sleep(3 * time.Minute)
		if st := late.Stats(); st.Received != 2000 || st.Failed != 0 || st.Sessions < 8 || st.Sessions > 20 {
			t.Errorf("got %+v; want each record once, and 8 to 20 sessions", st)
		}
		complete := 0
		for _, n := range nodes {
			if n.set.Len() == 2002 {
				complete++
			}
		}
		if complete < 2 {
			t.Errorf("%d of 3 nodes have the Things of the joiner", complete)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A node that stores no record of an owner, and one that stores none, like a full directory, do not request the same records again at once.
func TestRefusedRecordsAreNotRequestedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := simulate(t, 10*time.Millisecond)
		b := s.node()
		full := s.node(func(o *Options) { o.Ingest = func(*td.Signed) {} })
		restricted := s.node(func(o *Options) {
			ingest := o.Ingest
			o.Ingest = func(s *td.Signed) {
				if r, err := o.Verifier.Record(s.Record, time.Now()); err == nil && r.Owner != first.DID() {
					ingest(s)
				}
			}
		})
		for i := range 50 {
			b.add(t, signed(t, i, 1))
		}
		b.add(t, signedBy(t, didtest.Key(1), 1, 1))
		for _, c := range []struct {
			name              string
			n                 *node
			received, refused int
			stored            int
		}{{"full", full, 51, 0, 0}, {"restricted", restricted, 51, 0, 1}} {
			s.Connect(c.n.host, b.host)
			if r := c.n.sync(t, b); r.Received != c.received || r.Refused != c.refused || c.n.set.Len() != c.stored {
				t.Errorf("%s: %+v, %d stored", c.name, r, c.n.set.Len())
			}
			if r := c.n.sync(t, b); r.Received+r.Refused != 0 {
				t.Errorf("%s, immediately after: %+v", c.name, r)
			}
			time.Sleep(2 * recentTime)
			if r := c.n.sync(t, b); r.Received+r.Refused != c.received+c.refused-c.stored {
				t.Errorf("%s, later: %+v", c.name, r)
			}
		}
	})
}

// A node with room for 10 of 50 Things receives newer records of these 10 only.
func TestFullNodeRequestsKnownRecords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := simulate(t, 10*time.Millisecond)
		var small *node
		small = s.node(func(o *Options) { o.Room = func() int { return 10 - small.set.Len() } })
		b := s.node()
		s.Connect(small.host, b.host)
		for seq := range uint64(2) {
			for i := range 50 {
				b.add(t, signed(t, i, 1+seq))
			}
			if r := small.sync(t, b); r.Received != 10 || r.More || small.set.Len() != 10 {
				t.Errorf("%+v, %d things", r, small.set.Len())
			}
			if r := small.sync(t, b); r.Received != 0 || r.More {
				t.Errorf("again: %+v", r)
			}
		}
	})
}

// TestLargeThings reconciles TDs that do not fit into their records.
func TestLargeThings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, a, b := pair(t)
		for i := range 20 {
			b.add(t, large(t, i))
		}
		if r := a.sync(t, b); r.Received != 20 || r.BytesIn < 20*8<<10 {
			t.Errorf("got %+v", r)
		}
		for k, s := range a.records {
			if string(s.TD) != string(b.get(k).TD) || len(s.TD) == 0 {
				t.Error("a TD is missing")
			}
		}
	})
}

func TestSessionsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := simulate(t, 10*time.Millisecond)
		n := s.node()
		for i := range maxServing + 2 {
			h := s.Add()
			s.Connect(h, n.host)
			for range 2 { // the second of each exceeds the limit
				st, err := h.NewStream(t.Context(), n.host.ID(), n.proto)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = st.Write([]byte{50})
			}
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			if got, want := n.Stats().Refused, uint64(min(i+1, maxServing)+2*max(0, i+1-maxServing)); got != want {
				t.Errorf("%d peers: %d sessions refused, want %d", i+1, got, want)
			}
		}
		time.Sleep(stallTime)
		late := s.node()
		s.Connect(late.host, n.host)
		late.add(t, signed(t, 1, 1))
		late.sync(t, n)
		same(t, n, late, 1)
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.ingested != 1 || n.Stats().Panics != 0 {
			t.Errorf("got %d", n.ingested)
		}
		served := 0
		for range 2 * maxConsecutive {
			if _, err := late.Sync(t.Context(), n.host.ID()); err == nil {
				served++
			}
		}
		if served < maxConsecutive-2 || served > maxConsecutive+10 {
			t.Errorf("%d sessions in a row were served, want about %d", served, maxConsecutive)
		}
	})
}

func TestAFailedPeerIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := simulate(t, 10*time.Millisecond)
		a := s.node()
		closed := s.node()
		s.Connect(a.host, closed.host)
		closed.host.SetStreamHandler(Protocol("test"), func(st network.Stream) { _ = st.ResetWithError(network.StreamGated) }) // like p2p.Gate
		if _, err := a.Sync(t.Context(), closed.host.ID()); err == nil || len(a.neighbors()) != 0 {
			t.Errorf("a node that rejects this one: %v, %d neighbors", err, len(a.neighbors()))
		}
		time.Sleep(failurePause)
		if len(a.neighbors()) != 1 {
			t.Error("a failed peer is not tried again")
		}
		if _, err := New(a.host, Options{}); err == nil {
			t.Error("New accepted options without a set")
		}
		if Protocol("x") != "/lmos/x/sync/1" {
			t.Error("the protocol id changed")
		}
	})
}

func TestPanicInIngestEndsTheSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := simulate(t, 10*time.Millisecond)
		a, b := s.node(), s.node(func(o *Options) { o.Ingest = func(*td.Signed) { panic("a bug") } })
		s.Connect(a.host, b.host)
		a.add(t, signed(t, 1, 1))
		if r, err := a.Sync(t.Context(), b.host.ID()); err == nil && r.Sent == 0 {
			t.Errorf("got %+v", r)
		}
		synctest.Wait()
		if st := b.Stats(); st.Panics != 1 {
			t.Errorf("got %+v", st)
		}
	})
}

// BenchmarkDifferences shows bytes per difference of sets of 100,000.
func BenchmarkDifferences(b *testing.B) {
	a, c := newNode(), newNode()
	a.fill(0, 100_000)
	c.fill(0, 100_000)
	seq, known := uint64(1), 0
	for _, n := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprint("differences=", n), func(b *testing.B) {
			bytes, records, sessions := 0, 0, 0
			for b.Loop() {
				b.StopTimer()
				seq++
				for i := range n {
					s := signed(b, i, seq)
					records += len(s.Record)
					c.add(b, s)
				}
				known = max(known, n)
				b.StartTimer()
				ends := runBoth(b, a.session(), c.session())
				bytes += ends[0].report.BytesIn + ends[0].report.BytesOut
				sessions++
				if a.set.Len() != 100_000+known {
					b.Fatalf("%d items", a.set.Len())
				}
			}
			b.ReportMetric(float64(bytes-records)/float64(sessions*n), "B/difference")
			b.ReportMetric(float64(records)/float64(sessions*n), "B/record")
		})
	}
}

// TestMeshUnderChurn adds, renews and removes Things while nodes sync: no node is banned, and finally all have the same.
func TestMeshUnderChurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size, steps = 12, 40
		s := simulate(t, 20*time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		var nodes []*node
		for range size {
			n := s.node()
			for _, other := range nodes {
				s.Connect(n.host, other.host)
			}
			nodes = append(nodes, n)
			running.Go(func() { _ = n.Run(ctx) })
		}
		for step := range steps { // every 250 ms each node adds one Thing, renews one, and removes one
			for i, n := range nodes {
				n.add(t, tombstone(t, 1000*i+step, 1))
				if step >= 10 {
					n.store(tombstone(t, 1000*i+step-10, uint64(step)))
				}
				n.drop(itemOf(t, tombstone(t, 1000*((i+1)%size)+step/2, 1)).key)
				if step%4 == 0 {
					n.syncNeighbors(ctx) // more often than usual
				}
			}
			time.Sleep(250 * time.Millisecond)
		}
		time.Sleep(recentTime * 5)
		for i, n := range nodes {
			if st := n.Stats(); st.Violations != 0 || st.Panics != 0 || n.set.Len() != size*steps {
				t.Errorf("node %d has %d of %d Things: %+v", i, n.set.Len(), size*steps, st)
			}
		}
		cancel()
		running.Wait()
	})
}
