package trust

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/trust/exchange"
)

// A heldNetwork has the connections of one peer. It reports nothing: the test passes the events to a Trust, in an order of its choice.
type heldNetwork struct {
	network.Network
	id    peer.ID
	open  map[*heldConn]bool
	asked func() // runs between an answer of Connectedness and its use; nil: nothing does
}

// Connectedness implements [network.Network].
func (w *heldNetwork) Connectedness(peer.ID) network.Connectedness {
	answer := network.NotConnected
	if len(w.open) > 0 {
		answer = network.Connected
	}
	if w.asked != nil {
		w.asked()
	}
	return answer
}

// A heldConn is an inbound connection.
type heldConn struct {
	network.Conn
	in *heldNetwork
}

func (c *heldConn) RemotePeer() peer.ID { return c.in.id }

func (c *heldConn) Stat() network.ConnStats {
	return network.ConnStats{Stats: network.Stats{Direction: network.DirInbound}}
}

func (w *heldNetwork) dial() *heldConn {
	c := &heldConn{in: w}
	w.open[c] = true
	return c
}

func (w *heldNetwork) end(c *heldConn) { delete(w.open, c) }

// A peer that dials again as soon as its connection is closed, or at the same time, is not left connected without a decision: OnHello follows each
// connection, in whichever order the beginnings and the ends of connections are reported. The peer never says hello.
func TestEachConnectionIsDecided(t *testing.T) {
	t.Parallel()
	const never = 2 * waitFor // later than the decision
	for name, c := range map[string]struct {
		run  func(tr *Trust, w *heldNetwork)
		want []time.Duration // of the calls of OnHello
	}{
		"one after the other": {func(tr *Trust, w *heldNetwork) {
			first := w.dial()
			tr.connected(w, first)
			time.Sleep(never)
			w.end(first)
			tr.disconnected(w, first)
			tr.connected(w, w.dial())
		}, []time.Duration{waitFor, never + waitFor}},
		"the second is reported before the end of the first": {func(tr *Trust, w *heldNetwork) {
			first := w.dial()
			tr.connected(w, first)
			time.Sleep(never)
			w.end(first)
			tr.connected(w, w.dial())
			tr.disconnected(w, first)
		}, []time.Duration{waitFor, never + waitFor}},
		"the second begins before the end of the first is reported": {func(tr *Trust, w *heldNetwork) {
			first := w.dial()
			tr.connected(w, first)
			time.Sleep(never)
			w.end(first)
			second := w.dial()
			tr.disconnected(w, first)
			tr.connected(w, second)
		}, []time.Duration{waitFor, never + waitFor}},
		"both are open, the second later than the decision": {func(tr *Trust, w *heldNetwork) {
			tr.connected(w, w.dial())
			time.Sleep(never)
			tr.connected(w, w.dial())
		}, []time.Duration{waitFor, never + waitFor}},
		"both are open before the decision": {func(tr *Trust, w *heldNetwork) {
			tr.connected(w, w.dial())
			time.Sleep(waitFor / 2)
			tr.connected(w, w.dial())
		}, []time.Duration{waitFor}},
		"the first ends before its decision": {func(tr *Trust, w *heldNetwork) {
			first := w.dial()
			tr.connected(w, first)
			time.Sleep(waitFor / 2)
			w.end(first)
			tr.disconnected(w, first)
			tr.connected(w, w.dial())
		}, []time.Duration{waitFor/2 + waitFor}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				id := must(exchange.PeerOf(didtest.NewKey().DID()))(t)
				start, decided := time.Now(), make(chan time.Duration, 8)
				tr := must(New(Options{Self: didtest.NewKey().DID(), OnHello: func(did.DID) { decided <- time.Since(start) }}))(t)
				c.run(tr, &heldNetwork{id: id, open: map[*heldConn]bool{}})
				time.Sleep(never)
				noError(t, tr.Close())
				close(decided)
				var got []time.Duration
				for at := range decided {
					got = append(got, at)
				}
				if !slices.Equal(got, c.want) {
					t.Errorf("decided after %v, want %v", got, c.want)
				}
			})
		})
	}
}

// A connection that begins while the end of the last one is reported stays known: whether the peer is connected is asked in the order of the reports.
func TestConnectionDuringTheReportOfAnEnd(t *testing.T) {
	t.Parallel()
	id := didtest.NewKey().DID()
	w := &heldNetwork{id: must(exchange.PeerOf(id))(t), open: map[*heldConn]bool{}}
	tr := must(New(Options{Self: didtest.NewKey().DID()}))(t)
	defer tr.Close()
	first := w.dial()
	tr.connected(w, first)
	w.end(first)
	second, reported := (*heldConn)(nil), false
	w.asked = func() {
		if second = w.dial(); tr.mu.TryLock() { // else its report waits for the end of that of the first
			tr.mu.Unlock()
			tr.connected(w, second)
			reported = true
		}
	}
	tr.disconnected(w, first)
	if !reported {
		tr.connected(w, second)
	}
	tr.mu.RLock()
	defer tr.mu.RUnlock()
	if n := tr.online[id]; n == nil || n.hello == nil {
		t.Error("the peer does not count as connected")
	}
}
