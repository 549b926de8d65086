package publication

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/dht"
)

// dueNow returns the due attempts of a fixture with one Thing, and ends them.
func dueNow(d *fixture, listeners bool) (gossip, dht bool) {
	for _, t := range d.schedule.due(time.Now(), listeners) {
		d.schedule.end(t.thing)
		return t.gossip, t.dht
	}
	return false, false
}

func TestWhenAnOfferIsDue(t *testing.T) {
	t.Parallel()
	const life = 10 * time.Hour
	for name, c := range map[string]struct {
		prepare             func(d *fixture, of *Publication)
		after               time.Duration
		alone               bool
		wantGossip, wantDHT bool
	}{
		"nobody knows it":  {prepare: func(*fixture, *Publication) {}, wantGossip: true, wantDHT: true},
		"nobody is there":  {prepare: func(*fixture, *Publication) {}, alone: true},
		"it is being told": {prepare: func(d *fixture, of *Publication) { d.schedule.begin(of.Thing) }},
		"it is being told twice, once ended": {prepare: func(d *fixture, of *Publication) {
			d.schedule.begin(of.Thing)
			d.schedule.begin(of.Thing)
			d.schedule.end(of.Thing)
		},
			after: time.Hour},
		"it was just tried in vain":    {prepare: tried, after: 14 * time.Second},
		"it was tried in vain before":  {prepare: tried, after: 15 * time.Second, wantGossip: true, wantDHT: true},
		"everybody knows it":           {prepare: everywhere},
		"gossip had it 8 minutes ago":  {prepare: everywhere, after: 8 * time.Minute},
		"gossip had it 12 minutes ago": {prepare: everywhere, after: 12 * time.Minute, wantGossip: true},
		"the DHT had it 3 hours ago":   {prepare: everywhere, after: 3 * time.Hour, wantGossip: true, wantDHT: true},
		"only gossip has it":           {prepare: func(d *fixture, of *Publication) { d.schedule.gossiped(of) }, wantDHT: true},
		"only the DHT has it":          {prepare: func(d *fixture, of *Publication) { d.schedule.replicated(of) }, wantGossip: true},
		"it was published anew": {prepare: func(d *fixture, of *Publication) { everywhere(d, of); d.publish("Other", of.Thing) },
			wantGossip: true, wantDHT: true},
		"it was withdrawn": {prepare: func(d *fixture, of *Publication) { everywhere(d, of); d.withdraw(of.Thing) },
			wantGossip: true, wantDHT: true},
		"an older record of it was told": {prepare: func(d *fixture, of *Publication) { d.publish("Other", of.Thing); everywhere(d, of) },
			wantGossip: true, wantDHT: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newFixture(t)
				d.schedule.lifetime = life
				c.prepare(d, d.publish("Echo", "urn:x:echo"))
				time.Sleep(c.after)
				if gossip, dht := dueNow(d, !c.alone); gossip != c.wantGossip || dht != c.wantDHT {
					t.Errorf("due by gossip %v, by DHT %v; want %v, %v", gossip, dht, c.wantGossip, c.wantDHT)
				}
			})
		})
	}
}

func tried(d *fixture, of *Publication) { d.schedule.begin(of.Thing); d.schedule.end(of.Thing) }

func everywhere(d *fixture, of *Publication) { d.schedule.gossiped(of); d.schedule.replicated(of) }

// A TD is gossiped once: repetitions are records without the TD, until the TD changes.
func TestATDIsGossipedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newFixture(t)
		known := func(what string, want bool) {
			t.Helper()
			time.Sleep(time.Hour)
			due := d.schedule.due(time.Now(), true)
			if len(due) != 1 || !due[0].gossip || due[0].hasTD != want {
				t.Errorf("%s: due is %+v, want one with known %v", what, due, want)
			}
			d.schedule.end("urn:x:echo")
		}
		of := d.publish("Echo", "urn:x:echo")
		known("new", false)
		d.schedule.gossiped(of)
		known("told", true)
		d.publish("Other", of.Thing)
		known("new again", false)
	})
}

// TestFailedAttemptsBackOff: what gossip or the DHT refuses again and again must not be signed and stored every second.
func TestFailedAttemptsBackOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newFixture(t)
		d.schedule.lifetime = 24 * time.Hour
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
		d.schedule.reset(of.Thing)
		if gossip, dht := dueNow(d, true); gossip || dht {
			t.Error("tried again at once")
		}
		time.Sleep(retryInterval)
		if gossip, dht := dueNow(d, true); !gossip || !dht {
			t.Error("something new waits as long as what was told in vain")
		}
	})
}

func TestShortLifetimeIsAnnouncedOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newFixture(t)
		d.schedule.lifetime = 20 * time.Second
		of := d.publish("Echo", "urn:x:echo")
		told := 0
		for range 60 {
			for _, due := range d.schedule.due(time.Now(), true) {
				if due.gossip {
					told++
					d.schedule.gossiped(of)
				}
				if due.dht {
					d.schedule.replicated(of)
				}
				d.schedule.end(due.thing)
			}
			time.Sleep(time.Second)
		}
		if told < 4 || told > 8 {
			t.Errorf("told %d times in a minute, want about 6", told)
		}
	})
}

func TestPendingCountsUnknownThings(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	one, two, three := d.publish("One", "urn:x:1"), d.publish("Two", "urn:x:2"), d.publish("Three", "urn:x:3")
	for i, step := range []func(){func() {}, func() { d.schedule.gossiped(one) }, func() { d.schedule.replicated(two) }, func() { d.withdraw(three.Thing) }} {
		if step(); d.Pending() != 3-i {
			t.Errorf("after step %d, %d are pending, want %d", i, d.Pending(), 3-i)
		}
	}
}

func TestForgetRemovesTheThing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newFixture(t)
		everywhere(d, d.publish("Echo", "urn:x:echo"))
		d.withdraw("urn:x:echo")
		time.Sleep(tombstoneLifetime + time.Second)
		for _, due := range d.schedule.due(time.Now(), true) {
			if of, err := d.renew(t.Context(), due.thing); of != nil || err != nil {
				t.Errorf("got %+v, %v; want nothing", of, err)
			}
			d.schedule.end(due.thing)
		}
		if len(d.all) != 0 || len(d.schedule.states) != 0 {
			t.Errorf("left are %v and %v", d.all, d.schedule.states)
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

func TestReach(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		gossip      int
		receipt     dht.Receipt
		wantPending bool
	}{
		"no peers":    {receipt: dht.Receipt{Wanted: 3}, wantPending: true},
		"gossip":      {gossip: 2},
		"one replica": {receipt: dht.Receipt{Replicas: 1, Wanted: 20}},
	} {
		var g progress
		g.gossiped(c.gossip)
		g.replicated(c.receipt)
		r := Result{Publication: &Publication{}, Reach: g.get()}
		if r.Reach != (Reach{c.gossip, c.receipt.Replicas, c.receipt.Wanted}) || r.IsPending() != c.wantPending {
			t.Errorf("%s: got %+v, pending %v", name, r.Reach, r.IsPending())
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

func TestAFailedRenewalIsRepeated(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	p := d.publish("Echo", "urn:x:echo")
	d.disk.fail(errors.New("the cable is out"))
	later := time.Now().Add(time.Hour)
	for _, due := range d.schedule.due(later, true) {
		d.refresh(t.Context(), due)
	}
	if text := d.log.String(); !strings.Contains(text, "record renewal failed") || !strings.Contains(text, "the cable is out") {
		t.Errorf("the log has %s", text)
	}
	d.disk.fail(nil)
	due := d.schedule.due(later.Add(time.Hour), true)
	if len(due) != 1 {
		t.Fatalf("%v is due, want it once more", due)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	d.refresh(ended, due[0]) // A node that stops begins nothing.
	if now := d.Get(p.Thing); now.Seq != p.Seq {
		t.Errorf("the seq went from %d to %d while the node stopped", p.Seq, now.Seq)
	}
	d.refresh(t.Context(), d.schedule.due(later.Add(2*time.Hour), true)[0])
	if now := d.Get(p.Thing); now.Seq <= p.Seq || len(d.sent.sent) != 1 {
		t.Errorf("the seq is %d after %d, %d records were sent", now.Seq, p.Seq, len(d.sent.sent))
	}
	d.refresh(t.Context(), attempt{thing: "urn:x:removed", gossip: true, dht: true})
}

// A Thing may be withdrawn during its announcement.
func TestAnAnnouncementOfAReplacedPublicationHasNoEffect(t *testing.T) {
	t.Parallel()
	d := newFixture(t)
	old := d.publish("Echo", "urn:x:echo")
	d.withdraw("urn:x:echo")
	d.sent.err = errors.New("a newer record was sent")
	d.announce(t.Context(), old, attempt{thing: old.Thing, gossip: true, dht: true}, new(progress))
	if text := d.log.String(); text != "" {
		t.Errorf("the log warns of an expected state: %s", text)
	}
	if gossip, dht := dueNow(d, true); !gossip || !dht {
		t.Errorf("due by gossip %v, by DHT %v; want the withdrawal to be due", gossip, dht)
	}
}
