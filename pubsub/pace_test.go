package pubsub

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

func TestPace(t *testing.T) {
	t.Parallel()
	p := &pace{each: 100 * time.Millisecond, all: 10 * time.Millisecond, burst: 5, bursts: 12}
	now := time.Now()
	for i, c := range []struct {
		from    peer.ID
		after   time.Duration
		n, want int
	}{
		{"a", 0, 3, 3},
		{"a", 0, 3, 2},
		{"a", 0, 3, 0},
		{"b", 0, 0, 0},
		{"b", 0, 9, 5},
		{"c", 0, 9, 2}, // all together have reached their bound
		{"a", 100 * time.Millisecond, 3, 1},
		{"a", 50 * time.Millisecond, 3, 0},
		{"a", time.Minute, 9, 5},
	} {
		now = now.Add(c.after)
		if got := p.take(c.from, c.n, now); got != c.want {
			t.Errorf("step %d: %d of %d may pass, want %d", i, got, c.n, c.want)
		}
	}
	for i := range 3 * maxPaced {
		p.take(peer.ID(fmt.Sprint(i)), 1, now)
	}
	if len(p.debt) > maxPaced {
		t.Errorf("%d forwarders are remembered", len(p.debt))
	}
}

// TestFlood has a forwarder that floods a shard with valid records of fresh keys. It costs bounded work, no score, and nobody
// else: others are heard at once, even with a record that the flooder had forwarded first, and a tombstone is everywhere within
// a second.
func TestFlood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := simulate(t, 10*time.Millisecond)
		slow := newPace()
		slow.each, slow.burst = 100*time.Millisecond, 20
		victim := start(t, s.host(), Options{pace: slow})
		honest, behind := start(t, s.host(), Options{}), start(t, s.host(), Options{})
		send, flooder := attacker(t, s, "main")
		for _, n := range []*node{honest, behind, flooder} {
			s.connect(victim.host, n.host)
		}
		time.Sleep(2 * time.Second)
		a := weather(t, 250)
		first := a.signed(t, 1)
		flood := func(from, to int) {
			for i := from; i < to; i++ {
				fresh := agent{key(t, byte(i)), fmt.Sprint("urn:fresh:", i), a.cap}
				send(a.shard(t), fresh.signed(t, 1).Record)
				if i%5 == 4 {
					time.Sleep(20 * time.Millisecond)
				}
			}
		}
		flood(0, 100)
		send(a.shard(t), first.Record)
		time.Sleep(100 * time.Millisecond)
		if got := victim.heard(a.id) + behind.heard(a.id); got != "[][]" {
			t.Errorf("heard %s from who has used up its share", got)
		}
		if st := victim.Stats(); st.Limited < 60 || st.Delivered > 25 || st.Ignored+st.Rejected != 0 {
			t.Errorf("got %+v", st)
		}
		for seq, r := range []string{"[1]", "[1 2]"} {
			record := first
			if seq == 1 {
				record = a.buried(t, 2)
			}
			if _, err := honest.Announce(t.Context(), record); err != nil {
				t.Fatal(err)
			}
			flood(100*(seq+1), 100*(seq+1)+50)
			time.Sleep(time.Second - 50*time.Millisecond)
			synctest.Wait()
			if got := victim.heard(a.id) + behind.heard(a.id); got != r+r {
				t.Errorf("heard %s, want %s twice", got, r)
			}
		}
		time.Sleep(6 * time.Second)
		if score, ok := victim.Score(flooder.host.ID()); !ok || score < 0 {
			t.Errorf("the flooder's score is %v, %v: it broke no rule that all see alike", score, ok)
		}
	})
}
