package reconcile

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
)

// The initiator of a session measures the clock of the peer, without the round-trip time. The responder does not: untrusted peers that begin
// sessions have no vote.
func TestPeerClocksAreCompared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const latency = 40 * time.Millisecond
		s := simulate(t, latency)
		initiator := s.node(func(*Options) {})
		for i, off := range []time.Duration{0, 10 * time.Minute, -2 * time.Hour} {
			peer := s.node(func(o *Options) {
				o.Now = func() time.Time { return time.Now().Add(off) }
			})
			s.Connect(initiator.host, peer.host)
			if i > 0 {
				peer.add(t, signed(t, i, 1)) // more than one round
			}
			if _, err := initiator.Sync(t.Context(), peer.host.ID()); err != nil {
				t.Fatal(err)
			}
			id, err := did.FromPeer([]byte(peer.host.ID()))
			if err != nil {
				t.Fatal(err)
			}
			if v := initiator.clocks.votes; len(v) != i+1 || (v[id].ahead-off).Abs() > 2*latency {
				t.Errorf("the votes are %v, want %v of %s", v, off, id)
			}
			if s := peer.Skew(); s.Peers != 0 {
				t.Errorf("the responder compared clocks: %v", s)
			}
		}
	})
}

// A peer of an older version sends no time. Its clock is unknown, not zero.
func TestOlderPeerSendsNoTime(t *testing.T) {
	t.Parallel()
	s := newNode().session()
	s.compareClocks(&round{}, time.Now())
	if s.report.Timed {
		t.Errorf("got %+v", s.report)
	}
	if again, err := decodeRound(marshal(t, &round{Time: 1})); err != nil || again.Time != 1 {
		t.Errorf("got %+v, %v", again, err)
	}
}

func TestSkewIsTheMedian(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		ahead []time.Duration // of peers
		want  time.Duration   // of this node
		bad   bool
	}{
		"no peers":                     {nil, 0, false},
		"two of two are undecided":     {[]time.Duration{time.Hour, time.Hour}, -time.Hour, false},
		"three agree":                  {[]time.Duration{time.Hour, time.Hour, time.Hour}, -time.Hour, true},
		"this node is ahead":           {[]time.Duration{-2 * time.Hour, -2 * time.Hour, -2 * time.Hour}, 2 * time.Hour, true},
		"one false clock of three":     {[]time.Duration{1e6 * time.Hour, time.Second, -time.Second}, -time.Second, false},
		"two false clocks of five":     {[]time.Duration{time.Hour, 0, time.Second, time.Hour, -time.Second}, -time.Second, false},
		"half of the peers":            {[]time.Duration{0, 0, time.Hour, time.Hour}, 0, false},
		"too little to refuse records": {[]time.Duration{time.Minute, time.Minute, time.Minute}, -time.Minute, false},
	} {
		var all clocks
		for i, ahead := range c.ahead {
			all.vote(did.DID(fmt.Sprint(i)), ahead, now)
		}
		if s := all.skew(now); s.Ahead != c.want || s.Peers != len(c.ahead) || s.IsOurs(5*time.Minute) != c.bad {
			t.Errorf("%s: got %+v", name, s)
		}
		if s := all.skew(now.Add(clockVoteLifetime + 1)); s.Peers != 0 {
			t.Errorf("%s: %d votes after their lifetime", name, s.Peers)
		}
	}
	var all clocks
	for i := range 1000 {
		all.vote("one", time.Hour, now) // one vote per peer, however many sessions it had
		all.vote(did.DID(fmt.Sprint(i)), 0, now)
	}
	if s := all.skew(now); s.Peers > maxClockVotes || s.Ahead != 0 {
		t.Errorf("got %+v", s)
	}
}
