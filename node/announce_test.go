package node

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/dht"
)

// dueNow returns what is due of a desk with one thing, and ends the attempt at once.
func dueNow(d *desk, listeners bool) (gossip, dht bool) {
	for _, t := range d.due(time.Now(), listeners) {
		d.rest(t.thing)
		return t.gossip, t.dht
	}
	return false, false
}

func TestWhenAnOfferIsDue(t *testing.T) {
	t.Parallel()
	const life = 10 * time.Hour
	for name, c := range map[string]struct {
		prepare             func(d *desk, of *offer)
		after               time.Duration
		alone               bool
		wantGossip, wantDHT bool
	}{
		"nobody knows it":  {prepare: func(*desk, *offer) {}, wantGossip: true, wantDHT: true},
		"nobody is there":  {prepare: func(*desk, *offer) {}, alone: true},
		"it is being told": {prepare: func(d *desk, of *offer) { d.busy(of.Thing) }},
		"it is being told twice, once ended": {prepare: func(d *desk, of *offer) { d.busy(of.Thing); d.busy(of.Thing); d.rest(of.Thing) },
			after: time.Hour},
		"it was just tried in vain":    {prepare: tried, after: 14 * time.Second},
		"it was tried in vain before":  {prepare: tried, after: 15 * time.Second, wantGossip: true, wantDHT: true},
		"everybody knows it":           {prepare: everywhere},
		"gossip had it 8 minutes ago":  {prepare: everywhere, after: 8 * time.Minute},
		"gossip had it 12 minutes ago": {prepare: everywhere, after: 12 * time.Minute, wantGossip: true},
		"the DHT had it 3 hours ago":   {prepare: everywhere, after: 3 * time.Hour, wantGossip: true, wantDHT: true},
		"only gossip has it":           {prepare: func(d *desk, of *offer) { d.told(of) }, wantDHT: true},
		"only the DHT has it":          {prepare: func(d *desk, of *offer) { d.replicated(of) }, wantGossip: true},
		"it was published anew": {prepare: func(d *desk, of *offer) { everywhere(d, of); d.publish("Other", of.Thing) },
			wantGossip: true, wantDHT: true},
		"it was withdrawn": {prepare: func(d *desk, of *offer) { everywhere(d, of); d.withdraw(of.Thing) },
			wantGossip: true, wantDHT: true},
		"an older record of it was told": {prepare: func(d *desk, of *offer) { d.publish("Other", of.Thing); everywhere(d, of) },
			wantGossip: true, wantDHT: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newDesk(t)
				d.life = life
				c.prepare(d, d.publish("Echo", "urn:x:echo"))
				time.Sleep(c.after)
				if gossip, dht := dueNow(d, !c.alone); gossip != c.wantGossip || dht != c.wantDHT {
					t.Errorf("due by gossip %v, by DHT %v; want %v, %v", gossip, dht, c.wantGossip, c.wantDHT)
				}
			})
		})
	}
}

func tried(d *desk, of *offer) { d.busy(of.Thing); d.rest(of.Thing) }

func everywhere(d *desk, of *offer) { d.told(of); d.replicated(of) }

// TestATDIsGossipedOnce: what is told again is a record without the TD, until the TD is another.
func TestATDIsGossipedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		known := func(what string, want bool) {
			t.Helper()
			time.Sleep(time.Hour)
			due := d.due(time.Now(), true)
			if len(due) != 1 || !due[0].gossip || due[0].known != want {
				t.Errorf("%s: due is %+v, want one with known %v", what, due, want)
			}
			d.rest("urn:x:echo")
		}
		of := d.publish("Echo", "urn:x:echo")
		known("new", false)
		d.told(of)
		known("told", true)
		d.publish("Other", of.Thing)
		known("new again", false)
	})
}

// TestAttemptsInVainBecomeRare: what gossip or the DHT refuses again and again must not be signed and stored every second.
func TestAttemptsInVainBecomeRare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		d.life = 24 * time.Hour
		of := d.publish("Echo", "urn:x:echo")
		tried(d, of)
		begin, last := time.Now(), time.Now()
		var pauses []time.Duration
		for time.Since(begin) < time.Hour {
			time.Sleep(time.Second)
			if gossip, _ := dueNow(d, true); gossip {
				pauses = append(pauses, time.Since(last))
				last = time.Now()
			}
		}
		want := []time.Duration{15, 30, 60, 120, 240, 480, 600, 600, 600, 600} // seconds
		if !slices.EqualFunc(pauses, want, func(got, want time.Duration) bool { return got == want*time.Second }) {
			t.Errorf("the pauses between attempts are %v, want %v s", pauses, want)
		}
		everywhere(d, of)
		tried(d, of)
		d.news(of.Thing)
		if gossip, dht := dueNow(d, true); gossip || dht {
			t.Error("tried again at once")
		}
		time.Sleep(retryEvery)
		if gossip, dht := dueNow(d, true); !gossip || !dht {
			t.Error("something new waits as long as what was told in vain")
		}
	})
}

func TestAShortLifeIsToldOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		d.life = 20 * time.Second
		of := d.publish("Echo", "urn:x:echo")
		told := 0
		for range 60 {
			for _, due := range d.due(time.Now(), true) {
				if due.gossip {
					told++
					d.told(of)
				}
				if due.dht {
					d.replicated(of)
				}
				d.rest(due.thing)
			}
			time.Sleep(time.Second)
		}
		if told < 4 || told > 8 {
			t.Errorf("told %d times in a minute, want about 6", told)
		}
	})
}

func TestPendingCountsWhatNobodyKnows(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	one, two, three := d.publish("One", "urn:x:1"), d.publish("Two", "urn:x:2"), d.publish("Three", "urn:x:3")
	for i, step := range []func(){func() {}, func() { d.told(one) }, func() { d.replicated(two) }, func() { d.withdraw(three.Thing) }} {
		if step(); d.pending() != 3-i {
			t.Errorf("after step %d, %d are pending, want %d", i, d.pending(), 3-i)
		}
	}
}

func TestAForgottenThingLeavesNoTrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		everywhere(d, d.publish("Echo", "urn:x:echo"))
		d.withdraw("urn:x:echo")
		time.Sleep(buriedFor + time.Second)
		for _, due := range d.due(time.Now(), true) {
			if of, err := d.renew(t.Context(), due.thing); of != nil || err != nil {
				t.Errorf("got %+v, %v; want nothing", of, err)
			}
			d.rest(due.thing)
		}
		if len(d.all) != 0 || len(d.reach) != 0 {
			t.Errorf("left are %v and %v", d.all, d.reach)
		}
	})
}

func TestJitterIsATenth(t *testing.T) {
	t.Parallel()
	low, high := time.Hour, time.Duration(0)
	for range 10_000 {
		d := jitter(10 * time.Minute)
		low, high = min(low, d), max(high, d)
	}
	if low < 9*time.Minute || high > 11*time.Minute || high-low < time.Minute {
		t.Errorf("between %v and %v, want 9 to 11 minutes", low, high)
	}
	if jitter(0) != 0 {
		t.Error("jitter of nothing is something")
	}
}

func TestASpreadSaysWhoWasTold(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		gossip   int
		receipt  dht.Receipt
		wantLeft bool
	}{
		"nobody":      {receipt: dht.Receipt{Wanted: 3}, wantLeft: true},
		"gossip":      {gossip: 2},
		"one replica": {receipt: dht.Receipt{Replicas: 1, Wanted: 20}},
	} {
		var s spread
		var p api.Publication
		s.heard(c.gossip)
		s.stored(c.receipt)
		if s.fill(&p); p.GossipPeers != c.gossip || p.Replicas != c.receipt.Replicas || p.Wanted != c.receipt.Wanted || p.Pending != c.wantLeft {
			t.Errorf("%s: got %+v", name, p)
		}
	}
}

func TestToBeAloneIsNoError(t *testing.T) {
	t.Parallel()
	other := errors.New("the store is full")
	for _, err := range []error{dht.ErrNoPeers, errors.Join(other, dht.ErrNoReplicas), nil} {
		if got := unlessAlone(err); got != nil {
			t.Errorf("%v gives %v, want no error", err, got)
		}
	}
	if unlessAlone(other) != other {
		t.Error("another error was dropped")
	}
}
