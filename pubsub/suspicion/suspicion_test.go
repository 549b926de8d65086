package suspicion

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
)

func TestReportsGoFromPeerToPeer(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		nodes, host := s.line(4), failedHost(t, 1)
		for _, n := range nodes {
			n.list(false, host)
		}
		nodes[0].lost(host)
		sleep(3 * (batchTime + batchJitter + probeJitter + 100*time.Millisecond))
		for i, n := range nodes {
			st := n.Stats()
			if n.tracks(host) || n.dialed[host] != min(i, 1) {
				t.Errorf("node %d: listed %v, tried %d times", i, n.tracks(host), n.dialed[host])
			}
			// A reporter does not get its own report back.
			if want := uint64(min(i, 1)); st.Received != want || st.Confirmed != want || st.Sent != uint64(min(3-i, 1)) || st.SendFailed+st.Rejected+st.Refuted != 0 {
				t.Errorf("node %d: %+v", i, st)
			}
		}
		told := nodes[0].Stats().BytesOut
		sleep(time.Hour)
		if got := nodes[0].Stats().BytesOut; got != told || told > 64 {
			t.Errorf("%d bytes, %d after an hour of silence", told, got)
		}
	})
}

// A link between two running nodes is cut: nodes that reach the host keep it as up and report nothing.
func TestFalseReportIsNotForwarded(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		nodes, host := s.line(3), failedHost(t, 1)
		for i, n := range nodes {
			n.list(i > 0, host)
		}
		nodes[0].lost(host)
		sleep(time.Minute)
		if st := nodes[1].Stats(); !nodes[1].tracks(host) || st.Probed != 1 || st.Refuted != 1 || st.Sent != 0 {
			t.Errorf("a node that reaches the host must list it: %v, %+v", nodes[1].tracks(host), st)
		}
		if st := nodes[2].Stats(); !nodes[2].tracks(host) || st != (Stats{}) {
			t.Errorf("the report was forwarded: %+v", st)
		}
	})
}

func TestUnrelatedHostsAreNotProbed(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		n, from, friend := s.line(1)[0], s.Add(), s.Add()
		s.Connect(from, n.host)
		s.Connect(friend, n.host)
		id := func(p peer.ID) did.DID { d, _ := did.FromPeer([]byte(p)); return d }
		n.list(true, id(n.host.ID()), id(friend.ID())) // itself, a connected host, and one without Things
		s.send(from, n, message1(t, id(n.host.ID()), id(friend.ID()), failedHost(t, 1)))
		sleep(time.Minute)
		if st := n.Stats(); st.Received != 3 || st.Probed != 0 || len(n.suspects) != 0 {
			t.Errorf("%+v, %d suspects", st, len(n.suspects))
		}
		n.list(false, failedHost(t, 2))
		s.send(from, n, message1(t, failedHost(t, 2)))
		n.list(false, failedHost(t, 3))
		n.receive(from.ID(), []did.DID{failedHost(t, 3)}, time.Now())
		n.lost(failedHost(t, 3)) // fails before its probe
		sleep(time.Minute)
		if st := n.Stats(); st.Probed != 1 || st.Confirmed != 1 {
			t.Errorf("%+v, want one tried", st)
		}
	})
}

// A host that did not answer in time is probed, and reported only if it cannot be reached.
func TestSuspects(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		nodes, dead, slow := s.line(2), failedHost(t, 1), failedHost(t, 2)
		for _, n := range nodes {
			n.list(false, dead)
			n.list(true, slow)
		}
		nodes[0].Suspect(dead)
		nodes[0].Suspect(slow)
		nodes[0].Suspect(failedHost(t, 3)) // an unknown host
		sleep(5 * time.Second)
		if a, b := nodes[0].Stats(), nodes[1].Stats(); a.Probed != 2 || a.Confirmed != 1 || a.Refuted != 1 || b.Received != 1 || nodes[1].tracks(dead) {
			t.Errorf("%+v, %+v", a, b)
		}
	})
}

// A host is probed at most once a minute, however often it is reported.
func TestProbePause(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		n, host := s.line(1)[0], failedHost(t, 1)
		n.list(true, host)
		for range 3 {
			from := s.Add()
			s.Connect(from, n.host)
			s.send(from, n, message1(t, host))
		}
		sleep(2 * time.Second)
		if st := n.Stats(); st.Received != 3 || st.Probed != 1 {
			t.Errorf("%+v, want one probe", st)
		}
		from, before := s.Add(), n.dials()
		s.Connect(from, n.host)
		for range 10 {
			s.send(from, n, message1(t, host))
			sleep(15 * time.Second)
		}
		if got := n.dials() - before; got != 2 && got != 3 {
			t.Errorf("tried %d times in two and a half minutes", got)
		}
		n.fail(host) // a report within the minute is not lost
		s.send(from, n, message1(t, host))
		sleep(probePause + probeJitter)
		if n.tracks(host) {
			t.Error("the host failed in between, and is still listed")
		}
	})
}

func TestFalseReporterIsBanned(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		n, reporter, other := s.line(1)[0], s.Add(), s.Add()
		s.Connect(reporter, n.host)
		s.Connect(other, n.host)
		hosts := several(t, 50)
		n.list(true, hosts...)
		n.Suspect(hosts[48]) // does not depend on the reporters
		s.send(reporter, n, message1(t, hosts[:48]...))
		sleep(time.Second)
		s.send(reporter, n, message1(t, hosts[49]))
		sleep(5 * time.Minute)
		if st := n.Stats(); st.Probed != maxPenalties+1 || st.Refuted != maxPenalties+1 || st.Rejected != 1 || st.Received != 48 {
			t.Errorf("%+v, want %d and the suspect tried and the rest dropped", st, maxPenalties)
		}
		n.fail(hosts[49])
		s.send(other, n, message1(t, hosts[49]))
		sleep(2 * time.Second)
		if st := n.Stats(); n.tracks(hosts[49]) || st.Confirmed != 1 {
			t.Errorf("reports of others are ignored: %+v", st)
		}
		sleep(banTime - 5*time.Minute)
		s.send(reporter, n, message1(t, hosts[0]))
		sleep(2 * time.Second)
		if st := n.Stats(); st.Refuted != maxPenalties+2 {
			t.Errorf("after ten minutes: %+v", st)
		}
	})
}

// A node that is cut off from some hosts, and also reports many true failures, is not banned.
func TestTrueReportsReducePenalties(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		n, from := s.line(1)[0], s.Add()
		s.Connect(from, n.host)
		for i, host := range several(t, 6*maxPenalties) {
			n.list(i%2 == 0, host)
			s.send(from, n, message1(t, host))
			sleep(2 * time.Second)
		}
		if st := n.Stats(); st.Refuted != 3*maxPenalties || st.Confirmed != 3*maxPenalties || st.Rejected != 0 {
			t.Errorf("%+v", st)
		}
	})
}

func TestInconclusiveProbesKeepTheState(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		n, from := s.line(1)[0], s.Add()
		s.Connect(from, n.host)
		hosts := several(t, 2*maxPenalties)
		n.list(false, hosts...)
		n.unknown = true
		s.send(from, n, message1(t, hosts...))
		sleep(2 * time.Second)
		if st := n.Stats(); st.Probed != 2*maxPenalties || st.Confirmed+st.Refuted+st.Sent != 0 || !n.tracks(hosts[0]) || n.peers.all[from.ID()].penalties != 0 {
			t.Errorf("%+v", st)
		}
	})
}

func TestFloodIsRejected(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		n, from := s.line(1)[0], s.Add()
		s.Connect(from, n.host)
		body := message1(t, several(t, maxHosts)...)
		start := time.Now()
		for range 200 {
			s.send(from, n, body)
		}
		most := maxBurst + uint64(time.Since(start)/eachTime) + 1
		if st := n.Stats(); st.Received > most*maxHosts || st.Rejected < 200-most || len(n.suspects) != 0 {
			t.Errorf("%+v of at most %d messages, %d suspects", st, most, len(n.suspects))
		}
	})
}

func TestViolatorsAreBanned(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		n := s.line(1)[0]
		good := message1(t, failedHost(t, 1))
		for i, body := range [][]byte{nil, []byte("hello"), append(slices.Clone(good), 0), make([]byte, 1<<20)} {
			from := s.Add()
			s.Connect(from, n.host)
			s.send(from, n, body)
			s.send(from, n, good)
			if st := n.Stats(); st.Received != 0 || st.Rejected != uint64(2*i+2) || st.BytesIn > uint64(i+1)*(maxMessage+1) {
				t.Errorf("message %d: %+v", i, st)
			}
		}
	})
}

// Many hosts fail at once: a few messages report them, and a limited number of probes runs at a time.
func TestManyHostsFailAtOnce(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		nodes, hosts := s.line(2), several(t, 150)
		for _, n := range nodes {
			n.list(false, hosts...)
			n.slow = time.Hour // each dial takes as long as its timeout
		}
		start := time.Now()
		for _, h := range hosts {
			nodes[0].lost(h)
		}
		for nodes[1].Stats().Confirmed < 150 && time.Since(start) < time.Minute {
			sleep(100 * time.Millisecond)
		}
		took := time.Since(start)
		if st := nodes[0].Stats(); st.Sent != 3 || st.BytesOut > 150*keySize+3*16 {
			t.Errorf("the reporter: %+v", st)
		}
		if st := nodes[1].Stats(); st.Confirmed != 150 || nodes[1].most != maxProbes || took > 18*time.Second {
			t.Errorf("the receiver after %v: %+v, %d dials at once", took, st, nodes[1].most)
		}
	})
}

func TestSyncPeer(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		nodes, hosts := s.line(2), several(t, maxHosts+1)
		late, unrelated := nodes[1], s.Add()
		s.Connect(nodes[0].host, unrelated)
		late.list(false, hosts...)
		for range 3 {
			nodes[0].SyncPeer(t.Context(), late.host.ID(), hosts)
			nodes[0].SyncPeer(t.Context(), unrelated.ID(), hosts)
			nodes[0].SyncPeer(t.Context(), peerOf(t, 99), hosts)
		}
		sleep(2 * time.Second)
		if a, b := nodes[0].Stats(), late.Stats(); a.Sent != 1 || a.SendFailed != 0 || b.Confirmed != maxHosts {
			t.Errorf("%+v, %+v", a, b)
		}
		sleep(syncPause)
		nodes[0].SyncPeer(t.Context(), late.host.ID(), nil)
		nodes[0].SyncPeer(t.Context(), late.host.ID(), hosts[:1])
		if a := nodes[0].Stats(); a.Sent != 2 {
			t.Errorf("after ten minutes: %+v", a)
		}
	})
}

// A peer that opens streams and sends nothing holds a few slots for a few seconds.
func TestSilentStreamsTimeOut(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		n, from := s.line(1)[0], s.Add()
		s.Connect(from, n.host)
		for range 10 {
			st, err := from.NewStream(t.Context(), n.host.ID(), Protocol("test"))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = st.Write([]byte{0xa1})
		}
		sleep(time.Second)
		if held := n.serves(); held != 10 {
			t.Errorf("%d are being received", held)
		}
		sleep(sendTimeout)
		if st := n.Stats(); st.Rejected != 10 || n.serves() != 0 {
			t.Errorf("%+v, %d are being received", st, n.serves())
		}
	})
}

func TestCloseEndsStreams(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		n, from := s.line(1)[0], s.Add()
		s.Connect(from, n.host)
		st, err := from.NewStream(t.Context(), n.host.ID(), Protocol("test"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = st.Write([]byte{0xa1})
		sleep(100 * time.Millisecond)
		start := time.Now()
		if err := n.Close(); err != nil || time.Since(start) > time.Second {
			t.Errorf("closed after %v, %v", time.Since(start), err)
		}
	})
}

func TestPanicEndsOneMessage(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		n, from := s.line(1, func(o *Options) { o.Tracks = func(did.DID) bool { panic("oh") } })[0], s.Add()
		s.Connect(from, n.host)
		for i := range 2 {
			s.send(from, n, message1(t, failedHost(t, 1)))
			if st := n.Stats(); st.Panics != uint64(i+1) || n.serves() != 0 {
				t.Errorf("%+v", st)
			}
		}
	})
}

func TestMemoryIsBounded(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		n := newNode(t, s.Add()) // it does not run, so that received reports stay queued
		hosts := several(t, maxSuspects+10)
		n.list(false, hosts...)
		for i := range maxPeers + 100 {
			from := peerOf(t, i)
			n.peers.allow(from, time.Now())
			if i < 2*maxReporters {
				n.receive(from, hosts[:maxReported+10], time.Now())
			}
		}
		if got := len(n.suspects); got != maxReported || len(n.suspects[hosts[0]].reporters) != maxReporters || len(n.peers.all) != maxPeers {
			t.Errorf("%d suspects of %d reporters, %d peers", got, len(n.suspects[hosts[0]].reporters), len(n.peers.all))
		}
		for _, h := range hosts {
			n.Report(h)
		}
		n.Report("did:web:example.com") // has no key
		if got := len(n.suspects); got != maxSuspects {
			t.Errorf("%d suspects, want %d", got, maxSuspects)
		}
		for len(n.gather()) > 0 {
			sleep(time.Millisecond)
		}
		sleep(probePause)
		n.mu.Lock()
		for _, s := range n.suspects {
			s.probeAt = time.Time{}
		}
		n.mu.Unlock()
		n.Report(failedHost(t, maxSuspects+100))
		sleep(2 * syncPause)
		n.peers.allow(peerOf(t, 5000), time.Now())
		if len(n.suspects) != 1 || len(n.peers.all) != 1 {
			t.Errorf("%d suspects and %d peers, want expired ones removed", len(n.suspects), len(n.peers.all))
		}
	})
}

func TestOptionsAreChecked(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		h, whole := s.Add(), (&node{}).options()
		for i, cut := range []func(*Options){func(o *Options) { o.Tracks = nil }, func(o *Options) { o.Probe = nil }, func(o *Options) { o.OnFailed = nil },
			func(o *Options) { o.Network = "" }} {
			o := whole
			cut(&o)
			if _, err := New(h, o); err == nil {
				t.Error(fmt.Sprint("case ", i, " was accepted"))
			}
		}
		if r, err := New(h, Options{Network: "main", Tracks: whole.Tracks, Probe: whole.Probe, OnFailed: whole.OnFailed}); err != nil || r.proto != "/lmos/main/suspicion/1" {
			t.Errorf("got %v", err)
		}
	})
}
