package reconcile

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
)

// TestClocksAreCompared has a node ask peers whose clocks differ. Who begins learns the other's clock, without the time of the
// way; who is asked learns nothing, so that nobody is told by strangers that come.
func TestClocksAreCompared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const latency = 40 * time.Millisecond
		s := simulate(t, latency)
		var told []time.Duration
		asks := s.node(func(o *Options) {
			o.Clock = func(_ did.DID, ahead time.Duration) { told = append(told, ahead) }
		})
		for i, off := range []time.Duration{0, 10 * time.Minute, -2 * time.Hour} {
			peer := s.node(func(o *Options) {
				o.Now = func() time.Time { return time.Now().Add(off) }
				o.Clock = func(did.DID, time.Duration) { t.Error("who was asked compared clocks") }
			})
			s.connect(asks.host, peer.host)
			if i > 0 {
				peer.add(t, signed(t, i, 1)) // more than one turn
			}
			if _, err := asks.Sync(t.Context(), peer.host.ID()); err != nil {
				t.Fatal(err)
			}
			if len(told) != i+1 || (told[i]-off).Abs() > 2*latency {
				t.Errorf("told %v, want %v last", told, off)
			}
		}
	})
}

// TestAnOlderPeerSaysNoTime and is not taken for one whose clock is at zero.
func TestAnOlderPeerSaysNoTime(t *testing.T) {
	t.Parallel()
	s := newNode().session()
	s.compareClocks(&turn{}, time.Now())
	if s.report.Timed {
		t.Errorf("got %+v", s.report)
	}
	if again, err := decodeTurn(marshal(t, &turn{Time: 1})); err != nil || again.Time != 1 {
		t.Errorf("got %+v, %v", again, err)
	}
}
