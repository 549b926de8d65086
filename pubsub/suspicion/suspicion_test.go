package suspicion

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
)

func TestARumourGoesFromPeerToPeer(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		nodes, host := s.line(4), gone(t, 1)
		for _, n := range nodes {
			n.list(false, host)
		}
		nodes[0].lost(host)
		rest(3 * (gatherTime + spreadTime + maxWait + 100*time.Millisecond))
		for i, n := range nodes {
			st := n.Stats()
			if n.expects(host) || n.tried[host] != min(i, 1) {
				t.Errorf("node %d: listed %v, tried %d times", i, n.expects(host), n.tried[host])
			}
			// Nobody is told what he said himself.
			if want := uint64(min(i, 1)); st.Heard != want || st.True != want || st.Told != uint64(min(3-i, 1)) || st.Unsent+st.Refused+st.False != 0 {
				t.Errorf("node %d: %+v", i, st)
			}
		}
		told := nodes[0].Stats().BytesOut
		rest(time.Hour)
		if got := nodes[0].Stats().BytesOut; got != told || told > 64 {
			t.Errorf("%d bytes, %d after an hour of silence", told, got)
		}
	})
}

// A link is cut between two nodes that live: who reaches the host goes on listing it, and says nothing.
func TestARumourEndsWhereItIsFalse(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		nodes, host := s.line(3), gone(t, 1)
		for i, n := range nodes {
			n.list(i > 0, host)
		}
		nodes[0].lost(host)
		rest(time.Minute)
		if st := nodes[1].Stats(); !nodes[1].expects(host) || st.Checked != 1 || st.False != 1 || st.Told != 0 {
			t.Errorf("who reaches it lists it: %v, %+v", nodes[1].expects(host), st)
		}
		if st := nodes[2].Stats(); !nodes[2].expects(host) || st != (Stats{}) {
			t.Errorf("the rumour went on: %+v", st)
		}
	})
}

func TestWhatDoesNotConcernIsNotTried(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		n, from, friend := s.line(1)[0], s.bare(), s.bare()
		s.connect(from, n.host)
		s.connect(friend, n.host)
		id := func(p peer.ID) did.DID { d, _ := did.FromPeer([]byte(p)); return d }
		n.list(true, id(n.host.ID()), id(friend.ID())) // itself, one that is connected, and one that hosts nothing
		s.say(from, n, message1(t, id(n.host.ID()), id(friend.ID()), gone(t, 1)))
		rest(time.Minute)
		if st := n.Stats(); st.Heard != 3 || st.Checked != 0 || len(n.stories) != 0 {
			t.Errorf("%+v, %d stories", st, len(n.stories))
		}
		n.list(false, gone(t, 2))
		s.say(from, n, message1(t, gone(t, 2)))
		n.list(false, gone(t, 3))
		n.hear(from.ID(), []did.DID{gone(t, 3)}, time.Now())
		n.lost(gone(t, 3)) // found gone before it is tried
		rest(time.Minute)
		if st := n.Stats(); st.Checked != 1 || st.True != 1 {
			t.Errorf("%+v, want one tried", st)
		}
	})
}

// What did not answer in time is tried, and told only if it is gone.
func TestSuspects(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		nodes, dead, slow := s.line(2), gone(t, 1), gone(t, 2)
		for _, n := range nodes {
			n.list(false, dead)
			n.list(true, slow)
		}
		nodes[0].Suspect(dead)
		nodes[0].Suspect(slow)
		nodes[0].Suspect(gone(t, 3)) // of which nothing is known
		rest(5 * time.Second)
		if a, b := nodes[0].Stats(), nodes[1].Stats(); a.Checked != 2 || a.True != 1 || a.False != 1 || b.Heard != 1 || nodes[1].expects(dead) {
			t.Errorf("%+v, %+v", a, b)
		}
	})
}

// Whatever is heard and however often, a host is tried once a minute.
func TestAHostIsTriedOncePerMinute(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		n, host := s.line(1)[0], gone(t, 1)
		n.list(true, host)
		for range 3 {
			from := s.bare()
			s.connect(from, n.host)
			s.say(from, n, message1(t, host))
		}
		rest(2 * time.Second)
		if st := n.Stats(); st.Heard != 3 || st.Checked != 1 {
			t.Errorf("%+v, want it tried once for all", st)
		}
		from, before := s.bare(), n.dials()
		s.connect(from, n.host)
		for range 10 {
			s.say(from, n, message1(t, host))
			rest(15 * time.Second)
		}
		if got := n.dials() - before; got != 2 && got != 3 {
			t.Errorf("tried %d times in two and a half minutes", got)
		}
		n.dies(host) // and what was said within the minute is not lost
		s.say(from, n, message1(t, host))
		rest(tryPause + maxWait)
		if n.expects(host) {
			t.Error("it has gone in between, and is still listed")
		}
	})
}

func TestALiarIsNotListenedTo(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		n, liar, honest := s.line(1)[0], s.bare(), s.bare()
		s.connect(liar, n.host)
		s.connect(honest, n.host)
		hosts := several(t, 50)
		n.list(true, hosts...)
		n.Suspect(hosts[48]) // which does not depend on who is heard
		s.say(liar, n, message1(t, hosts[:48]...))
		rest(time.Second)
		s.say(liar, n, message1(t, hosts[49]))
		rest(5 * time.Minute)
		if st := n.Stats(); st.Checked != maxCredit+1 || st.False != maxCredit+1 || st.Refused != 1 || st.Heard != 48 {
			t.Errorf("%+v, want %d and the suspect tried and the rest dropped", st, maxCredit)
		}
		n.dies(hosts[49])
		s.say(honest, n, message1(t, hosts[49]))
		rest(2 * time.Second)
		if st := n.Stats(); n.expects(hosts[49]) || st.True != 1 {
			t.Errorf("others are not heard: %+v", st)
		}
		rest(lieTime - 5*time.Minute)
		s.say(liar, n, message1(t, hosts[0]))
		rest(2 * time.Second)
		if st := n.Stats(); st.False != maxCredit+2 {
			t.Errorf("after ten minutes: %+v", st)
		}
	})
}

// Who is cut off from some, and tells of many that are gone, keeps his credit.
func TestTheTruthGivesCreditBack(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		n, from := s.line(1)[0], s.bare()
		s.connect(from, n.host)
		for i, host := range several(t, 6*maxCredit) {
			n.list(i%2 == 0, host)
			s.say(from, n, message1(t, host))
			rest(2 * time.Second)
		}
		if st := n.Stats(); st.False != 3*maxCredit || st.True != 3*maxCredit || st.Refused != 0 {
			t.Errorf("%+v", st)
		}
	})
}

func TestWhatCannotBeCheckedChangesNothing(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		n, from := s.line(1)[0], s.bare()
		s.connect(from, n.host)
		hosts := several(t, 2*maxCredit)
		n.list(false, hosts...)
		n.unknown = true
		s.say(from, n, message1(t, hosts...))
		rest(2 * time.Second)
		if st := n.Stats(); st.Checked != 2*maxCredit || st.True+st.False+st.Told != 0 || !n.expects(hosts[0]) || n.peers.all[from.ID()].spent != 0 {
			t.Errorf("%+v", st)
		}
	})
}

func TestAFloodIsRefused(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		n, from := s.line(1)[0], s.bare()
		s.connect(from, n.host)
		body := message1(t, several(t, maxHosts)...)
		start := time.Now()
		for range 200 {
			s.say(from, n, body)
		}
		most := maxBurst + uint64(time.Since(start)/eachTime) + 1
		if st := n.Stats(); st.Heard > most*maxHosts || st.Refused < 200-most || len(n.stories) != 0 {
			t.Errorf("%+v of at most %d messages, %d stories", st, most, len(n.stories))
		}
	})
}

func TestWhoBreaksTheProtocolIsShunned(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		n := s.line(1)[0]
		good := message1(t, gone(t, 1))
		for i, body := range [][]byte{nil, []byte("hello"), append(slices.Clone(good), 0), make([]byte, 1<<20)} {
			from := s.bare()
			s.connect(from, n.host)
			s.say(from, n, body)
			s.say(from, n, good)
			if st := n.Stats(); st.Heard != 0 || st.Refused != uint64(2*i+2) || st.BytesIn > uint64(i+1)*(maxMessage+1) {
				t.Errorf("message %d: %+v", i, st)
			}
		}
	})
}

// Many hosts go at once: a few messages tell it, and a few hosts are tried at a time.
func TestManyGoAtOnce(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		nodes, hosts := s.line(2), several(t, 150)
		for _, n := range nodes {
			n.list(false, hosts...)
			n.slow = time.Hour // a black hole: each dial takes as long as it may
		}
		start := time.Now()
		for _, h := range hosts {
			nodes[0].lost(h)
		}
		for nodes[1].Stats().True < 150 && time.Since(start) < time.Minute {
			rest(100 * time.Millisecond)
		}
		took := time.Since(start)
		if st := nodes[0].Stats(); st.Told != 3 || st.BytesOut > 150*keySize+3*16 {
			t.Errorf("the teller: %+v", st)
		}
		if st := nodes[1].Stats(); st.True != 150 || nodes[1].most != triesAtOnce || took > 18*time.Second {
			t.Errorf("the hearer after %v: %+v, %d dials at once", took, st, nodes[1].most)
		}
	})
}

func TestANewPeerIsTold(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		nodes, hosts := s.line(2), several(t, maxHosts+1)
		late, stranger := nodes[1], s.bare()
		s.connect(nodes[0].host, stranger)
		late.list(false, hosts...)
		for range 3 {
			nodes[0].Meet(t.Context(), late.host.ID(), hosts)
			nodes[0].Meet(t.Context(), stranger.ID(), hosts)
			nodes[0].Meet(t.Context(), peerOf(t, 99), hosts)
		}
		rest(2 * time.Second)
		if a, b := nodes[0].Stats(), late.Stats(); a.Told != 1 || a.Unsent != 0 || b.True != maxHosts {
			t.Errorf("%+v, %+v", a, b)
		}
		rest(meetTime)
		nodes[0].Meet(t.Context(), late.host.ID(), nil)
		nodes[0].Meet(t.Context(), late.host.ID(), hosts[:1])
		if a := nodes[0].Stats(); a.Told != 2 {
			t.Errorf("after ten minutes: %+v", a)
		}
	})
}

func TestWhoIsNotAdmittedIsLeftOut(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		closed := func(o *Options) { o.Admits = func(did.DID) error { return errors.New("not ours") } }
		n, out, host := s.line(1)[0], newNode(t, s.bare(), closed), gone(t, 1)
		out.run()
		s.connect(n.host, out.host)
		n.list(false, host)
		out.list(false, host, gone(t, 2))
		n.lost(host)
		out.lost(gone(t, 2))
		rest(time.Minute)
		if a, b := n.Stats(), out.Stats(); a.Heard != 0 || b.Heard != 0 || b.Refused != 1 || b.Told != 0 {
			t.Errorf("%+v, %+v", a, b)
		}
	})
}

// Who opens streams and says nothing, holds a few places for a few seconds.
func TestSilenceEnds(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		n, from := s.line(1)[0], s.bare()
		s.connect(from, n.host)
		for range 10 {
			st, err := from.NewStream(t.Context(), n.host.ID(), Protocol("test"))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = st.Write([]byte{0xa1})
		}
		rest(time.Second)
		if held := n.serves(); held != 10 {
			t.Errorf("%d are being heard", held)
		}
		rest(sendTime)
		if st := n.Stats(); st.Refused != 10 || n.serves() != 0 {
			t.Errorf("%+v, %d are being heard", st, n.serves())
		}
	})
}

func TestCloseEndsWhatIsHeard(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		n, from := s.line(1)[0], s.bare()
		s.connect(from, n.host)
		st, err := from.NewStream(t.Context(), n.host.ID(), Protocol("test"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = st.Write([]byte{0xa1})
		rest(100 * time.Millisecond)
		start := time.Now()
		if err := n.Close(); err != nil || time.Since(start) > time.Second {
			t.Errorf("closed after %v, %v", time.Since(start), err)
		}
	})
}

func TestAPanicCostsOneMessage(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		n, from := s.line(1, func(o *Options) { o.Expects = func(did.DID) bool { panic("oh") } })[0], s.bare()
		s.connect(from, n.host)
		for i := range 2 {
			s.say(from, n, message1(t, gone(t, 1)))
			if st := n.Stats(); st.Panics != uint64(i+1) || n.serves() != 0 {
				t.Errorf("%+v", st)
			}
		}
	})
}

func TestMemoryIsBounded(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		n := newNode(t, s.bare()) // it does not run: nothing is done with what comes
		hosts := several(t, maxStories+10)
		n.list(false, hosts...)
		for i := range maxKnown + 100 {
			from := peerOf(t, i)
			n.peers.may(from, time.Now())
			if i < 2*maxNarrators {
				n.hear(from, hosts[:maxHeard+10], time.Now())
			}
		}
		if got := len(n.stories); got != maxHeard || len(n.stories[hosts[0]].by) != maxNarrators || len(n.peers.all) != maxKnown {
			t.Errorf("%d stories of %d narrators, %d peers", got, len(n.stories[hosts[0]].by), len(n.peers.all))
		}
		for _, h := range hosts {
			n.Report(h)
		}
		n.Report("did:web:example.com") // has no key
		if got := len(n.stories); got != maxStories {
			t.Errorf("%d stories, want %d", got, maxStories)
		}
		for len(n.gather()) > 0 {
			rest(time.Millisecond)
		}
		rest(tryPause)
		n.mu.Lock()
		for _, s := range n.stories {
			s.check = time.Time{}
		}
		n.mu.Unlock()
		n.Report(gone(t, maxStories+100))
		rest(2 * meetTime)
		n.peers.may(peerOf(t, 5000), time.Now())
		if len(n.stories) != 1 || len(n.peers.all) != 1 {
			t.Errorf("%d stories and %d peers, want what is over forgotten", len(n.stories), len(n.peers.all))
		}
	})
}

func TestOptionsAreChecked(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		h, whole := s.bare(), (&node{}).options()
		for i, cut := range []func(*Options){func(o *Options) { o.Expects = nil }, func(o *Options) { o.Try = nil }, func(o *Options) { o.Gone = nil }} {
			o := whole
			cut(&o)
			if _, err := New(h, o); err == nil {
				t.Error(fmt.Sprint("case ", i, " was taken"))
			}
		}
		if r, err := New(h, Options{Expects: whole.Expects, Try: whole.Try, Gone: whole.Gone}); err != nil || r.proto != "/lmos/main/gone/1" {
			t.Errorf("got %v", err)
		}
	})
}
