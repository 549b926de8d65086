package p2p

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	library "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/util"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/p2p/relay"
)

// behind are the options of a host that nobody can dial.
var behind = Options{NAT: NAT{Relay: true, PrivateRelays: true}}

// relayFor starts a host that relays for all nodes, which have a relation to it.
func relayFor(t *testing.T, relation did.Relation) *Host {
	t.Helper()
	return started(t, Options{Listen: []string{anyTCP}, Relays: func(did.DID) (bool, did.Relation) { return true, relation },
		NAT: NAT{Serve: true, PrivateRelays: true}})
}

// runs runs a host until the test ends.
func runs(t *testing.T, h *Host) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func places(h *Host) ([]relay.Place, []relay.Failure) {
	r, _ := h.Relays()
	return r.State()
}

func TestReachableThroughARelay(t *testing.T) {
	t.Parallel()
	hidden, through := started(t, behind), relayFor(t, did.Own)
	runs(t, hidden)
	hidden.SetStreamHandler("/echo", func(s network.Stream) {
		_, _ = io.Copy(s, s)
		_ = s.Close()
	})
	if err := dial(t, hidden, through); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "a reservation", func() bool { p, _ := places(hidden); return len(p) == 1 && len(hidden.Addrs()) == 1 })
	p, _ := places(hidden)
	if p[0].Relay != did.DID(through.o.Key.DID()) || p[0].Data != 64<<20 || p[0].Length != 30*time.Minute || !hidden.Addrs()[0].Equal(p[0].Addr) {
		t.Errorf("the place is %+v, announced is %v", p[0], hidden.Addrs())
	}
	caller := started(t, behind)
	if err := caller.Connect(t.Context(), peer.AddrInfo{ID: hidden.ID(), Addrs: hidden.Addrs()}); err != nil {
		t.Fatal(err)
	}
	s, err := caller.NewStream(network.WithAllowLimitedConn(t.Context(), "test"), hidden.ID(), "/echo")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	_ = s.CloseWrite()
	if got, err := io.ReadAll(s); string(got) != "hello" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if l := linkOf(caller.Network().ConnsToPeer(hidden.ID())); l != (Link{Transport: "relay", Relay: through.o.Key.DID()}) {
		t.Errorf("the link is %+v", l)
	}
	_, service := through.Relays()
	st := service.Stats()
	if len(st.Circuits) != 1 || st.Circuits[0].From != caller.o.Key.DID() || st.Circuits[0].To != hidden.o.Key.DID() || st.Circuits[0].Bytes() == 0 ||
		len(st.Reservations) != 1 || st.Today != st.Total || st.Today < st.Circuits[0].Bytes() {
		t.Errorf("the relay has %+v", st)
	}
	_ = caller.Network().ClosePeer(hidden.ID())
	poll.Until(t, "the end of the circuit", func() bool { return len(service.Stats().Circuits) == 0 })
}

// A relay that has called a node through another one has only a relayed connection to it. The node dials the relay nevertheless, to call through it and
// to get a reservation.
func TestRelayThatHasCalled(t *testing.T) {
	t.Parallel()
	second := started(t, Options{Listen: []string{anyTCP}, Relays: func(did.DID) (bool, did.Relation) { return true, did.Own },
		NAT: NAT{Relay: true, Serve: true, PrivateRelays: true}})
	first, caller, called := relayFor(t, did.Own), started(t, behind), started(t, behind)
	runs(t, caller)
	runs(t, called)
	reservation := func(h, at *Host) {
		t.Helper()
		if err := dial(t, h, at); err != nil {
			t.Fatal(err)
		}
		poll.Until(t, "a reservation", func() bool { p, _ := places(h); return len(p) == 1 })
	}
	reservation(caller, first)
	reservation(called, second)
	if err := dial(t, second, caller); err != nil {
		t.Fatal(err)
	}
	if caller.Network().Connectedness(second.ID()) != network.Limited {
		t.Fatal("the relay has not called through another one")
	}
	if err := dial(t, caller, called); err != nil {
		t.Errorf("a call through the relay: %v", err)
	}
}

// The list of peers has the direct connection of a peer that has a relayed one, too, as for a while after hole punching.
func TestPeersAreListedWithTheirDirectConnection(t *testing.T) {
	t.Parallel()
	hidden, through := started(t, Options{Listen: []string{anyTCP}, NAT: behind.NAT}), relayFor(t, did.Own)
	runs(t, hidden)
	if err := dial(t, hidden, through); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "a reservation", func() bool { p, _ := places(hidden); return len(p) == 1 })
	caller := started(t, behind)
	p, _ := places(hidden)
	if err := caller.Connect(t.Context(), peer.AddrInfo{ID: hidden.ID(), Addrs: []ma.Multiaddr{p[0].Addr}}); err != nil {
		t.Fatal(err)
	}
	peers := NewPeers(PeersOptions{Host: caller})
	addr := func() string {
		for _, p := range peers.List() {
			if p.DID == hidden.o.Key.DID() {
				return p.Addr
			}
		}
		return ""
	}
	if got := addr(); !strings.Contains(got, "/p2p-circuit") {
		t.Errorf("the address is %s, want one through the relay", got)
	}
	direct := peer.AddrInfo{ID: hidden.ID(), Addrs: hidden.Network().ListenAddresses()}
	if err := caller.Connect(network.WithForceDirectDial(t.Context(), "test"), direct); err != nil {
		t.Fatal(err)
	}
	if got := addr(); got == "" || strings.Contains(got, "/p2p-circuit") || len(caller.Network().ConnsToPeer(hidden.ID())) < 2 {
		t.Errorf("the address is %s, want the direct one beside the other", got)
	}
}

// A relay that ends is replaced at once by another one that is connected.
func TestRelaysAreReplaced(t *testing.T) {
	t.Parallel()
	hidden, relays := started(t, behind), map[did.DID]*Host{}
	runs(t, hidden)
	for _, relation := range []did.Relation{did.Own, did.Partner, did.Untrusted} {
		h := relayFor(t, relation)
		relays[h.o.Key.DID()] = h
	}
	for _, h := range relays {
		if err := dial(t, hidden, h); err != nil {
			t.Fatal(err)
		}
	}
	two := func() bool { p, _ := places(hidden); return len(p) == relay.Wanted }
	poll.Until(t, "two reservations", two)
	p, _ := places(hidden)
	lost := p[0].Relay
	_ = hidden.Network().ClosePeer(relays[lost].ID())
	relays[lost].Ban(hidden.ID(), time.Hour)
	poll.Until(t, "another relay", func() bool { p, _ := places(hidden); return two() && p[0].Relay != lost && p[1].Relay != lost })
	if len(hidden.Addrs()) != relay.Wanted {
		t.Errorf("it announces %v", hidden.Addrs())
	}
}

// A node uses no relay that refuses it, that connects nobody, or that connects somebody else.
func TestBadRelays(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		serve func(h *Host) error
		why   string
	}{
		"refused": {func(h *Host) error {
			s, err := relay.Serve(relay.ServiceOptions{Host: h, Private: true, Terms: func(did.DID) relay.Terms { return relay.Refused }})
			if err == nil {
				t.Cleanup(func() { _ = s.Close() })
			}
			return err
		}, "policy refuses"},
		"connects nobody":      {func(h *Host) error { return serveBadly(t, h, nil) }, "does not connect"},
		"connects to itself":   {func(h *Host) error { return serveBadly(t, h, answerItself) }, "does not connect"},
		"is silent afterwards": {func(h *Host) error { return serveBadly(t, h, func(network.Stream) {}) }, "does not connect"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			through := started(t, Options{Listen: []string{anyTCP}})
			if err := c.serve(through); err != nil {
				t.Fatal(err)
			}
			hidden := started(t, behind)
			runs(t, hidden)
			if err := dial(t, hidden, through); err != nil {
				t.Fatal(err)
			}
			poll.Until(t, "a failure", func() bool { _, f := places(hidden); return len(f) == 1 })
			p, f := places(hidden)
			if len(p) != 0 || len(hidden.Addrs()) != 0 || !strings.Contains(f[0].Why, c.why) || f[0].Relay != through.o.Key.DID() || !f[0].Until.After(f[0].At) {
				t.Errorf("the places are %+v, the failures %+v", p, f)
			}
		})
	}
}

// serveBadly takes reservations. It refuses circuits, or answers that they are open and gives them to connected.
func serveBadly(t *testing.T, h *Host, connected func(network.Stream)) error {
	captured := &handlerOf{Host: h}
	s, err := library.New(captured, library.WithReservationAddressFilter(func(ma.Multiaddr) bool { return true }))
	if err != nil {
		return err
	}
	t.Cleanup(func() { _ = s.Close() })
	var requests atomic.Int32
	h.SetStreamHandler(proto.ProtoIDv2Hop, func(s network.Stream) {
		if requests.Add(1) == 1 {
			captured.serve(s)
			return
		}
		status := pb.Status_PERMISSION_DENIED
		if connected != nil {
			status = pb.Status_OK
		}
		_ = util.NewDelimitedWriter(s).WriteMsg(&pb.HopMessage{Type: pb.HopMessage_STATUS.Enum(), Status: status.Enum()})
		if connected != nil {
			connected(s)
		}
	})
	return nil
}

// answerItself is the other end of a circuit, with another key.
func answerItself(s network.Stream) {
	_, _ = io.Copy(s, s)
}

type handlerOf struct {
	host.Host
	serve network.StreamHandler
}

func (h *handlerOf) SetStreamHandler(_ protocol.ID, f network.StreamHandler) { h.serve = f }
func (h *handlerOf) RemoveStreamHandler(protocol.ID)                         {}

// What a relay forwards for one caller is limited, and a node whose terms were lowered gets no more circuits by the old ones.
func TestLimitsOfARelay(t *testing.T) {
	t.Parallel()
	through := started(t, Options{Listen: []string{anyTCP}})
	var terms atomic.Int32
	terms.Store(int32(relay.Long))
	service, err := relay.Serve(relay.ServiceOptions{Host: through, Private: true, DailyOfOne: 400 << 10,
		Terms: func(did.DID) relay.Terms { return relay.Terms(terms.Load()) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = service.Close() })
	hidden := started(t, behind)
	hidden.SetStreamHandler("/sink", func(s network.Stream) { _, _ = io.Copy(io.Discard, s) })
	runs(t, hidden)
	if err := dial(t, hidden, through); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "a reservation", func() bool { return len(hidden.Addrs()) == 1 })
	connects := func() (*Host, error) {
		caller := started(t, behind)
		return caller, caller.Connect(t.Context(), peer.AddrInfo{ID: hidden.ID(), Addrs: hidden.Addrs()})
	}
	caller, err := connects()
	if err != nil {
		t.Fatal(err)
	}
	s, err := caller.NewStream(network.WithAllowLimitedConn(t.Context(), "test"), hidden.ID(), "/sink")
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; err == nil && n < 64; n++ {
		_, err = s.Write(make([]byte, 32<<10))
	}
	if err == nil {
		t.Error("2 MiB were relayed")
	}
	_ = caller.Network().ClosePeer(hidden.ID())
	if err := caller.Connect(t.Context(), peer.AddrInfo{ID: hidden.ID(), Addrs: hidden.Addrs()}); err == nil || !strings.Contains(err.Error(), "RESOURCE_LIMIT_EXCEEDED") {
		t.Errorf("the next circuit of the same caller: %v", err)
	}
	if _, err := connects(); err != nil {
		t.Errorf("another caller: %v", err)
	}
	terms.Store(int32(relay.Short))
	if _, err := connects(); err == nil || !strings.Contains(err.Error(), "NO_RESERVATION") {
		t.Errorf("after the terms were lowered: %v", err)
	}
	if st := service.Stats(); st.Refused["RESOURCE_LIMIT_EXCEEDED"] == 0 || st.Refused["NO_RESERVATION"] == 0 {
		t.Errorf("the refusals are %v", st.Refused)
	}
}

// A host closes with many peers, whose connections end with events that its reservations do not take any more.
func TestCloseWithManyPeers(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]bool{"it ran": true, "it did not run": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var peers []*Host
			for range 40 {
				peers = append(peers, started(t, Options{Listen: []string{anyTCP}}))
			}
			h := started(t, Options{NAT: NAT{Relay: true, PrivateRelays: true}}) // closed before its peers
			if run {
				runs(t, h)
			}
			for _, p := range peers {
				if err := dial(t, h, p); err != nil {
					t.Fatal(err)
				}
			}
			poll.Until(t, "all peers", func() bool { return len(h.Network().Peers()) == len(peers) })
		})
	}
}

// A node whose role record says that it relays, and that does not, is left out for a while; the next one is used.
func TestFoundNodeThatDoesNotRelay(t *testing.T) {
	t.Parallel()
	other, through := started(t, Options{Listen: []string{anyTCP}}), relayFor(t, did.Own)
	o := behind
	o.FindRelays = func(context.Context) iter.Seq[peer.AddrInfo] {
		return slices.Values([]peer.AddrInfo{
			{ID: other.ID(), Addrs: other.Addrs()},   // it does not relay
			{ID: through.ID(), Addrs: other.Addrs()}, // the addresses of another node
			{ID: through.ID(), Addrs: through.Addrs()},
		})
	}
	hidden := started(t, o)
	runs(t, hidden)
	poll.Until(t, "a reservation", func() bool { p, _ := places(hidden); return len(p) == 1 })
	poll.Until(t, "a failure", func() bool {
		_, f := places(hidden)
		return slices.ContainsFunc(f, func(f relay.Failure) bool { return f.Relay == other.o.Key.DID() })
	})
	if p, _ := places(hidden); p[0].Relay != through.o.Key.DID() {
		t.Errorf("the places are %+v", p)
	}
}

// A peer can name any address for a punch. A host gets few dials, and none if the policy refuses the peer.
func TestPunchedAddresses(t *testing.T) {
	t.Parallel()
	h := started(t, behind)
	from := peer.ID(didtest.Key(1).Peer())
	var named, want []ma.Multiaddr
	for port := range 1000 {
		for _, a := range []string{"/ip4/192.0.2.1/tcp/%d", "/ip4/192.0.2.1/udp/%d/quic-v1"} {
			named = append(named, ma.StringCast(fmt.Sprintf(a, port+1)))
		}
	}
	want = slices.Clone(named[:4])
	own := ma.StringCast("/ip4/198.51.100.7/tcp/1")
	named, want = append(named, ma.StringCast("/dns4/victim.example/tcp/1"), ma.StringCast("/ip4/203.0.113.1/tcp/1/p2p-circuit"), own), append(want, own)
	if got := (punches{h}).FilterRemote(from, named); !slices.EqualFunc(got, want, ma.Multiaddr.Equal) {
		t.Errorf("got %v", got)
	}
	var many []ma.Multiaddr
	for i := range 1000 {
		many = append(many, ma.StringCast(fmt.Sprintf("/ip4/198.51.%d.%d/tcp/1", i/250, i%250)))
	}
	if got := (punches{h}).FilterRemote(from, many); len(got) != maxPunched {
		t.Errorf("%d addresses are dialed", len(got))
	}
	o := behind
	o.Streams = func(did.DID) error { return errors.New("no") }
	if got := (punches{started(t, o)}).FilterRemote(from, many); len(got) != 0 {
		t.Errorf("for a refused peer: %v", got)
	}
}

// A called node whose router maps to another port for each destination dials its caller beside the punch, which would wait for a dial that cannot arrive.
func TestDialBesideAPunch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		seen   seenBy // of the called node, by others
		direct bool
	}{
		"dependent":     {seenBy{"/ip4/11.0.0.9/tcp/1": 1, "/ip4/11.0.0.9/tcp/2": 1}, true},
		"independent":   {seenBy{"/ip4/11.0.0.9/tcp/1": 2}, false},
		"only for QUIC": {seenBy{"/ip4/11.0.0.9/udp/1/quic-v1": 1, "/ip4/11.0.0.9/udp/2/quic-v1": 1}, false},
		"not yet known": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			called, through := started(t, behind), relayFor(t, did.Own)
			called.reach.observed = c.seen
			runs(t, called)
			if err := dial(t, called, through); err != nil {
				t.Fatal(err)
			}
			poll.Until(t, "a reservation", func() bool { return len(called.Addrs()) == 1 })
			caller := started(t, Options{Listen: []string{anyTCP}, NAT: behind.NAT})
			if err := caller.Connect(t.Context(), peer.AddrInfo{ID: called.ID(), Addrs: called.Addrs()}); err != nil {
				t.Fatal(err)
			}
			poll.Until(t, "the circuit", func() bool { return len(called.Network().ConnsToPeer(caller.ID())) == 1 })
			if got := (punches{called}).FilterRemote(caller.ID(), caller.Network().ListenAddresses()); len(got) != 1 {
				t.Errorf("the punch is to %v", got)
			}
			called.dials.Wait()
			if direct := slices.ContainsFunc(called.Network().ConnsToPeer(caller.ID()), isDirect); direct != c.direct {
				t.Errorf("the direct connection: %t", direct)
			}
		})
	}
}
