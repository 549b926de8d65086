package pubsub

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/internal/ratelimit"
	"github.com/lmosd/lmosd/internal/testhost"
)

func TestLimiter(t *testing.T) {
	t.Parallel()
	p := &limiter{share: ratelimit.Limit{Rate: 1, Burst: 2}, each: ratelimit.Limit{Rate: 10, Burst: 5},
		pool: ratelimit.Limit{Rate: 100, Burst: 6}, bytes: ratelimit.Limit{Rate: 1000, Burst: 100}}
	now := time.Now()
	for i, c := range []struct {
		from    peer.ID
		after   time.Duration
		n, want int
	}{
		{"a", 0, 3, 3}, // two of its share, one of the pool
		{"a", 0, 3, 2},
		{"a", 0, 3, 0},
		{"b", 0, 0, 0},
		{"b", 0, 9, 5},
		{"c", 0, 9, 2}, // the pool is empty: its own share is left
		{"a", 100 * time.Millisecond, 3, 1},
		{"a", 50 * time.Millisecond, 3, 0},
		{"a", time.Minute, 9, 5},
	} {
		now = now.Add(c.after)
		got := p.take(c.from, c.n, now)
		if got != c.want {
			t.Errorf("step %d: %d of %d may pass, want %d", i, got, c.n, c.want)
		}
		for range got {
			p.done(c.from, now)
		}
	}
	for i, c := range []struct{ n, want int }{{100, 0}, {1, 1}, {9, 10}} {
		if got := p.read("a", c.n, now); got != time.Duration(c.want)*time.Millisecond {
			t.Errorf("step %d: got a pause of %v, want %d ms", i, got, c.want)
		}
	}
	if got := p.read("b", 100, now); got != 0 {
		t.Errorf("b waits %v for bytes of a", got)
	}
	for i := range 3 * maxForwarders {
		p.take(peer.ID(fmt.Sprint(i)), 1, now)
	}
	if len(p.peers) > maxForwarders || p.extra != 0 {
		t.Errorf("got %d forwarders and %d messages", len(p.peers), p.extra)
	}
}

// TestSlotsAreShared checks that a peer gets at most its window, and that any number of peers leave slots for others.
func TestSlotsAreShared(t *testing.T) {
	t.Parallel()
	p, now := newLimiter(), time.Now()
	if got := p.take("flooder", 5000, now); got != windowMin {
		t.Errorf("a fresh key holds %d slots, want %d", got, windowMin)
	}
	for range 2 * windowMax {
		p.widen("flooder")
	}
	if got := windowMin + p.take("flooder", 5000, now); got != windowMax {
		t.Errorf("a proven peer holds %d slots, want %d", got, windowMax)
	}
	for i := range 254 {
		p.take(peer.ID(fmt.Sprint("flooder ", i)), 5000, now)
	}
	sum := 0
	for _, f := range p.peers {
		sum += f.open
	}
	if got := p.take("honest", 5000, now); got != slotsEach || sum > slots || p.extra > slotsPool {
		t.Errorf("an honest peer gets %d slots; %d of %d are in use", got, sum, slots)
	}
	p.leave("flooder", now)
	if got := p.take("flooder", 1, now); got != 1 {
		t.Errorf("a peer that reconnected gets %d slots", got)
	}
	for range slotsEach {
		p.done("honest", now)
	}
	// Slots of messages that gossipsub dropped are released, even if the peer keeps sending.
	later, got := now, 0
	for ; got == 0 && later.Before(now.Add(openAtMost+2*time.Second)); later = later.Add(time.Second) {
		got = p.take("flooder 0", 1, later)
	}
	if got == 0 || later.Before(now.Add(openAtMost)) {
		t.Errorf("slots were released after %v, want a little more than %v", later.Sub(now), openAtMost)
	}
}

func TestOffenses(t *testing.T) {
	t.Parallel()
	p, now := newLimiter(), time.Now()
	for i := range maxOffenses {
		if got := p.addOffense("forger", now); got != (i == maxOffenses-1) {
			t.Errorf("offense %d: banned is %v", i+1, got)
		}
	}
	if p.addOffense("forger", now) {
		t.Error("banned twice")
	}
	for i := range 2 * maxForwarders {
		p.take(peer.ID(fmt.Sprint(i)), 1, now)
	}
	if !p.isBanned("forger", now.Add(banFor-1)) || p.isBanned("forger", now.Add(banFor)) || p.isBanned("honest", now) {
		t.Error("the ban has the wrong duration, or was dropped")
	}
	if back := now.Add(banFor); !p.addOffense("forger", back) {
		t.Error("an offense after the ban does not start another")
	}
	for i := range 9 {
		if p.addOffense("unlucky", now.Add(time.Duration(i)*(offenseFor+1))) {
			t.Error("offenses are not cleared")
		}
	}
}

// TestFlood floods a shard with valid records of fresh keys. The flood costs bounded work and no score, and does not delay others:
// their records are delivered, including one that the flooder had forwarded first, and a tombstone reaches all nodes within a
// second.
func TestFlood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := testhost.NewNetwork(t, 10*time.Millisecond)
		slow := newLimiter()
		slow.share, slow.each = ratelimit.Limit{Rate: 1, Burst: 5}, ratelimit.Limit{Rate: 10, Burst: 20}
		victim := start(t, s.Add(), Options{limiter: slow})
		honest, behind := start(t, s.Add(), Options{}), start(t, s.Add(), Options{})
		send, flooder := attacker(t, s, "main")
		for _, n := range []*node{honest, behind, flooder} {
			s.Connect(victim.host, n.host)
		}
		time.Sleep(2 * time.Second)
		a := weather(t, 250)
		first := a.signed(t, 1)
		flood := func(from, to int) {
			for i := from; i < to; i++ {
				fresh := agent{didtest.Key(i), fmt.Sprint("urn:fresh:", i), a.cap}
				send(a.shard(t), fresh.signed(t, 1).Record)
				if i%5 == 4 {
					time.Sleep(20 * time.Millisecond)
				}
			}
		}
		flood(0, 100)
		send(a.shard(t), first.Record)
		time.Sleep(100 * time.Millisecond)
		if got := victim.delivered(a.id) + behind.delivered(a.id); got != "[][]" {
			t.Errorf("got %s from a forwarder over its share", got)
		}
		if st := victim.Stats(); st.Limited < 60 || st.Delivered > 25 || st.Ignored+st.Rejected != 0 {
			t.Errorf("got %+v", st)
		}
		for seq, r := range []string{"[1]", "[1 2]"} {
			record := first
			if seq == 1 {
				record = a.tombstone(t, 2)
			}
			if _, err := honest.Announce(t.Context(), record); err != nil {
				t.Fatal(err)
			}
			flood(100*(seq+1), 100*(seq+1)+50)
			time.Sleep(time.Second - 50*time.Millisecond)
			synctest.Wait()
			if got := victim.delivered(a.id) + behind.delivered(a.id); got != r+r {
				t.Errorf("got %s, want %s twice", got, r)
			}
		}
		time.Sleep(6 * time.Second)
		if score, ok := victim.score(flooder.host.ID()); !ok || score < 0 {
			t.Errorf("the flooder's score is %v, %v, want at least 0: its records are valid", score, ok)
		}
	})
}
