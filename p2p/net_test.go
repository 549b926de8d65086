package p2p

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/holepunch"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/internal/poll"
)

// The state of a node behind a router, of its relay, and of a node that is connected with it.
func TestNet(t *testing.T) {
	t.Parallel()
	hidden, through, refusing := started(t, behind), relayFor(t, did.Own), started(t, Options{Listen: []string{anyTCP},
		Relays: func(did.DID) (bool, did.Relation) { return false, did.Untrusted }, NAT: NAT{Serve: true, PrivateRelays: true}})
	runs(t, hidden)
	for _, h := range []*Host{through, refusing} {
		if err := dial(t, hidden, h); err != nil {
			t.Fatal(err)
		}
	}
	poll.Until(t, "a reservation and a failure", func() bool { n := netOf(hidden); return len(n.Relays) == 1 && len(n.RelayFailures) == 1 })
	caller := started(t, behind)
	if err := caller.Connect(t.Context(), peer.AddrInfo{ID: hidden.ID(), Addrs: hidden.Addrs()}); err != nil {
		t.Fatal(err)
	}

	n := netOf(hidden)
	if at := n.Relays[0]; at.DID != through.o.Key.DID() || at.Addr != hidden.Addrs()[0].String() || at.Seconds != 1800 || at.Bytes != 64<<20 ||
		!at.Until.After(at.Since) || n.Reachability != api.ReachableUnknown || n.Serving != nil || n.PortMapping.State != api.MappingOff {
		t.Errorf("the node behind a router: %+v", n)
	}
	if f := n.RelayFailures[0]; f.DID != refusing.o.Key.DID() || f.Reason != "its policy refuses this node" || !f.Until.After(f.At) {
		t.Errorf("the failure is %+v", f)
	}
	if state, relays := NewPeers(PeersOptions{Host: hidden}).Reachability(); state != n.Reachability || relays != 1 {
		t.Errorf("in short: %s, %d", state, relays)
	}

	n = netOf(through)
	if n.Reachability != api.ReachableLocal || len(n.Addrs) != 1 || n.Addrs[0].Proof != api.SourceInterface || !n.Addrs[0].Announced {
		t.Errorf("the relay: %+v", n)
	}
	if s := n.Serving; s == nil || len(s.Circuits) != 1 || s.Circuits[0].From != caller.o.Key.DID() || s.Circuits[0].To != hidden.o.Key.DID() ||
		s.Circuits[0].Bytes == 0 || s.Bytes == 0 || s.Limit == 0 || len(s.Reservations) != 1 || s.Reservations[0] != (api.Reservation{DID: hidden.o.Key.DID(), Terms: "long"}) {
		t.Errorf("it relays %+v", s)
	}

	n = netOf(caller)
	var paths []did.DID
	for _, p := range NewPeers(PeersOptions{Host: caller}).List() {
		if p.DID == hidden.o.Key.DID() {
			paths = append(paths, p.Relay)
		} else if p.Relay != "" {
			t.Errorf("a direct connection through %s", p.Relay)
		}
	}
	if len(paths) != 1 || paths[0] != through.o.Key.DID() || n.Peers.Relayed != 1 || n.Peers.Direct != 1 || n.Peers.Total != 2 {
		t.Errorf("the path is %v, the connections are %+v", paths, n.Peers)
	}
}

// Attempts are counted by result, and a bounded number of them is kept, with one line of reason.
func TestPunches(t *testing.T) {
	t.Parallel()
	var l punchLog
	remote := peer.ID(didtest.Key(1).Peer())
	trace := func(e any) { l.Trace(&holepunch.Event{Timestamp: 1, Remote: remote, Evt: e}) }
	trace(&holepunch.DirectDialEvt{Error: errors.ErrUnsupported.Error()})
	trace(&holepunch.StartHolePunchEvt{})
	trace(&holepunch.HolePunchAttemptEvt{Attempt: 1})
	trace(&holepunch.DirectDialEvt{Success: true, EllapsedTime: time.Millisecond})
	trace(&holepunch.ProtocolErrorEvt{Error: "first\n  * second " + strings.Repeat("long ", 100)})
	trace(&holepunch.EndHolePunchEvt{Error: "timeout", EllapsedTime: 5 * time.Second})
	trace(&holepunch.EndHolePunchEvt{Success: true, EllapsedTime: 20 * time.Millisecond})
	count, last := l.state()
	if count != (api.PunchCounts{Tried: 3, Won: 1, Failed: 2, Direct: 1}) || len(last) != 4 {
		t.Fatalf("got %+v, %+v", count, last)
	}
	if won := last[0]; won.Result != api.PunchWon || won.Took != 20 || won.Reason != "" || won.DID != didtest.Key(1).DID() {
		t.Errorf("the last one is %+v", won)
	}
	if failed := last[1]; failed.Result != api.PunchFailed || failed.Took != 5000 || failed.Reason != "timeout" {
		t.Errorf("the one before is %+v", failed)
	}
	if reason := last[2].Reason; !strings.HasPrefix(reason, "first * second long") || len(reason) > maxReason {
		t.Errorf("the reason is %q", reason)
	}
	for range 2 * maxPunches {
		trace(&holepunch.EndHolePunchEvt{})
	}
	if count, last = l.state(); len(last) != maxPunches || count.Tried != 3+2*maxPunches {
		t.Errorf("%d of %d attempts are kept", len(last), count.Tried)
	}
}
