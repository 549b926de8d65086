package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/sec"
	"github.com/libp2p/go-libp2p/p2p/muxer/yamux"
	netupgrader "github.com/libp2p/go-libp2p/p2p/net/upgrader"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/util"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/multiformats/go-multistream"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/internal/testhost"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

func hop(t testing.TB, m *pb.HopMessage) []byte {
	t.Helper()
	var raw bytes.Buffer
	if err := util.NewDelimitedWriter(&raw).WriteMsg(m); err != nil {
		t.Fatal(err)
	}
	return raw.Bytes()
}

// A message that is read comes back with bytes that have the same meaning, and what follows it stays.
func FuzzHop(f *testing.F) {
	to := peer.AddrInfo{ID: peer.ID(didtest.Key(1).Peer())}
	f.Add(hop(f, &pb.HopMessage{Type: pb.HopMessage_RESERVE.Enum()}))
	f.Add(append(hop(f, &pb.HopMessage{Type: pb.HopMessage_CONNECT.Enum(), Peer: util.PeerInfoToPeerV2(to)}), "and more"...))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, text []byte) {
		in := bytes.NewReader(text)
		m, raw, err := readHop(in)
		if err != nil {
			return
		}
		again, same, err := readHop(bytes.NewReader(raw))
		if err != nil || !bytes.Equal(raw, same) || again.GetType() != m.GetType() || !bytes.Equal(again.GetPeer().GetId(), m.GetPeer().GetId()) {
			t.Fatalf("%v is read as %v, %v", m, again, err)
		}
	})
}

// A relay that is silent twice is disconnected and not used for a while; an answer between the two counts.
func TestSilentRelay(t *testing.T) {
	t.Parallel()
	self, other := testhost.Listen(t, didtest.NewKey(), "/ip4/127.0.0.1/tcp/0"), testhost.Listen(t, didtest.NewKey(), "/ip4/127.0.0.1/tcp/0")
	r, err := New(Options{Host: self, Rank: func(did.DID) int { return 0 }})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := self.Connect(t.Context(), peer.AddrInfo{ID: other.ID(), Addrs: other.Addrs()}); err != nil {
		t.Fatal(err)
	}
	r.places = []*Place{{id: other.ID(), Relay: did.OfPeer(other.ID()), Addr: ma.StringCast("/ip4/192.0.2.7/tcp/1/p2p-circuit")}}
	for _, err := range []error{errSilent, nil, errSilent} {
		r.received(pinged{other.ID(), time.Millisecond, err})
		if len(r.Addrs()) != 1 || self.Network().Connectedness(other.ID()) != network.Connected {
			t.Fatal("the relay was given up early")
		}
	}
	r.next = time.Now().Add(findOther) // as after a search for another range of addresses
	r.received(pinged{other.ID(), 0, errSilent})
	if !r.next.IsZero() {
		t.Errorf("the next search is in %v, want it at once", time.Until(r.next))
	}
	places, failures := r.State()
	if len(places) != 0 || len(failures) != 1 || failures[0].Relay != did.OfPeer(other.ID()) || r.may(other.ID(), time.Now()) {
		t.Errorf("the places are %+v, the failures %+v", places, failures)
	}
	if self.Network().Connectedness(other.ID()) == network.Connected {
		t.Error("the connection to the silent relay is open")
	}
}

var errSilent = errors.New("silent")

// The first place is that of the lowest rank; the second is in another range of addresses, if there is one; and two places in one range are exchanged
// only for another range.
func TestOrderOfRelays(t *testing.T) {
	t.Parallel()
	all := map[string]candidate{
		"own":           {rank: 0, groups: []string{"a"}},
		"own, far":      {rank: 0, groups: []string{"a"}, rtt: time.Second},
		"partner":       {rank: 1, groups: []string{"a"}},
		"partner in b":  {rank: 1, groups: []string{"b"}},
		"untrusted":     {rank: 2, groups: []string{"c"}},
		"no IP address": {rank: 0, groups: []string{""}},
		"two ranges":    {rank: 1, groups: []string{"a", "b"}},
	}
	for name, c := range map[string]struct {
		of   []string
		used map[string]bool
		full bool
		want []string
	}{
		"the first place":             {[]string{"untrusted", "partner in b", "own"}, nil, false, []string{"own", "partner in b", "untrusted"}},
		"equal ranks":                 {[]string{"own, far", "own"}, nil, false, []string{"own", "own, far"}},
		"the second place":            {[]string{"own", "untrusted", "partner in b"}, map[string]bool{"a": true}, false, []string{"partner in b", "untrusted", "own"}},
		"no other range":              {[]string{"partner", "own"}, map[string]bool{"a": true}, false, []string{"own", "partner"}},
		"some of its addresses":       {[]string{"own", "two ranges"}, map[string]bool{"a": true}, false, []string{"two ranges", "own"}},
		"an address without a range":  {[]string{"no IP address", "partner in b"}, map[string]bool{"a": true}, false, []string{"partner in b", "no IP address"}},
		"both places are in a":        {[]string{"own", "partner", "untrusted", "no IP address"}, map[string]bool{"a": true}, true, []string{"untrusted"}},
		"both places, no other range": {[]string{"own", "partner"}, map[string]bool{"a": true}, true, nil},
	} {
		var in []candidate
		for _, n := range c.of {
			one := all[n]
			one.ID = peer.ID(n)
			in = append(in, one)
		}
		var got []string
		for _, one := range order(in, c.used, c.full) {
			got = append(got, string(one.ID))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// A place in another range of addresses replaces one of two in the same range.
func TestPlaceInAnotherRange(t *testing.T) {
	t.Parallel()
	r, err := New(Options{Host: testhost.Listen(t, didtest.NewKey(), "/ip4/127.0.0.1/tcp/0"), Rank: func(did.DID) int { return 0 }})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	at := ma.StringCast("/ip4/192.0.2.7/tcp/1/p2p-circuit")
	groups := func() (all []string) {
		for _, p := range r.places {
			all = append(all, p.group)
		}
		return all
	}
	for _, c := range []struct {
		id, group string
		want      []string
	}{{"1", "a", []string{"a"}}, {"2", "a", []string{"a", "a"}}, {"3", "a", []string{"a", "a"}}, {"4", "b", []string{"a", "b"}}, {"5", "b", []string{"a", "b"}}} {
		r.take(attempt{place: &Place{id: peer.ID(c.id), Addr: at, group: c.group}}, time.Now())
		if got := groups(); !slices.Equal(got, c.want) || r.places[0].id != "1" {
			t.Errorf("after %s in %s: the places are in %q, want %q", c.id, c.group, got, c.want)
		}
	}
}

// A relay that names itself by DNS is used at a name of the address of the connection, and at no other.
func TestAddressOfARelay(t *testing.T) {
	t.Parallel()
	key := didtest.NewKey()
	self, other := testhost.Listen(t, didtest.NewKey(), "/ip4/127.0.0.1/tcp/0"), testhost.Listen(t, key, "/ip4/127.0.0.1/tcp/0")
	if err := self.Connect(t.Context(), peer.AddrInfo{ID: other.ID(), Addrs: other.Addrs()}); err != nil {
		t.Fatal(err)
	}
	r, err := New(Options{Host: self, Private: true, Rank: func(did.DID) int { return 0 },
		Resolve: func(_ context.Context, name string) ([]net.IP, error) {
			if name == "relay.example" {
				return []net.IP{net.IPv4(192, 0, 2, 1), net.IPv4(127, 0, 0, 1)}, nil
			}
			return []net.IP{net.IPv4(192, 0, 2, 1)}, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for name, c := range map[string]struct {
		named []string
		want  string
	}{
		"the IP address first": {[]string{"/dns4/relay.example/tcp/443", "/ip4/127.0.0.1/tcp/1"}, "/ip4/127.0.0.1/tcp/1"},
		"a name":               {[]string{"/ip4/192.0.2.1/tcp/1", "/dns4/victim.example/tcp/443", "/dns/relay.example/udp/443/quic-v1"}, "/dns/relay.example/udp/443/quic-v1"},
		"others only":          {[]string{"/ip4/192.0.2.1/tcp/1", "/dns4/victim.example/tcp/443"}, ""},
		"too many names":       {[]string{"/dns4/a.example/tcp/1", "/dns4/b.example/tcp/1", "/dns4/relay.example/tcp/1"}, ""},
	} {
		var named []ma.Multiaddr
		for _, a := range c.named {
			named = append(named, ma.StringCast(a+"/p2p/"+other.ID().String()))
		}
		got, err := r.addrAt(t.Context(), other.ID(), r.connOf(other.ID()), named)
		if c.want == "" && err == nil || c.want != "" && (err != nil || got.String() != c.want+"/p2p/"+other.ID().String()+"/p2p-circuit") {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
}

// A silent older connection of a node with a reservation is closed when the node connects again; one that answers stays.
func TestOlderConnections(t *testing.T) {
	t.Parallel()
	for name, silent := range map[string]bool{"silent": true, "alive": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := didtest.NewKey()
			through, node, again := testhost.Listen(t, didtest.NewKey(), "/ip4/127.0.0.1/tcp/0"), testhost.Listen(t, key, "/ip4/127.0.0.1/tcp/0"), testhost.Listen(t, key, "/ip4/127.0.0.1/tcp/0")
			s, err := Serve(ServiceOptions{Host: through, Private: true, Terms: func(did.DID) Terms { return Long }})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			pinged := make(chan struct{}, 8)
			node.SetStreamHandler(ping.ID, func(st network.Stream) {
				pinged <- struct{}{}
				if !silent {
					_, _ = io.Copy(st, st)
				}
			})
			to := peer.AddrInfo{ID: through.ID(), Addrs: through.Addrs()}
			if _, err := client.Reserve(t.Context(), node, to); err != nil {
				t.Fatal(err)
			}
			first := through.Network().ConnsToPeer(node.ID())[0]
			if err := again.Connect(t.Context(), to); err != nil {
				t.Fatal(err)
			}
			<-pinged
			if silent {
				poll.Until(t, "the end of the silent connection", first.IsClosed)
				return
			}
			s.work.Wait()
			if first.IsClosed() || len(through.Network().ConnsToPeer(node.ID())) != 2 {
				t.Error("a connection that answers was closed")
			}
		})
	}
}

// Callers without long terms have a quarter of what is relayed in a day; others have the rest.
func TestShareOfUntrustedCallers(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := &Service{o: ServiceOptions{Daily: 4000, DailyOfOne: 800}, began: now}
	one, two, known := &Circuit{}, &Circuit{}, &Circuit{known: true}
	for _, c := range []struct {
		from   string
		about  *Circuit
		n      int
		within bool
	}{{"a", one, 700, true}, {"b", two, 300, true}, {"b", two, 1, false}, {"c", one, 1, false}, {"d", known, 800, true}, {"d", known, 1, false}, {"e", known, 700, true}} {
		if got := s.spend(peer.ID(c.from), c.about, c.n); got != c.within {
			t.Errorf("%d bytes for %s: %t", c.n, c.from, got)
		}
	}
	if left := s.leftLocked("a", false, now.Add(day)); left != 800 {
		t.Errorf("%d bytes are left on the next day", left)
	}
}

// The stages of a circuit begin before its limits, and what does not fit is not sent.
func TestMeter(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		data           uint64
		low, spent, no int64 // bytes sent at the beginning of the stages, and those that do not fit
	}{
		"of untrusted nodes": {128 << 10, 96<<10 + 1, 112<<10 + 1, 128 << 10},
		"of members":         {64 << 20, 56<<20 + 1, 62<<20 + 1, 64 << 20},
		"one byte":           {1, 1, 1, 1},
		"lies":               {math.MaxUint64, math.MaxInt64 - math.MaxInt64/8 + 1, math.MaxInt64 - math.MaxInt64/32 + 1, math.MaxInt64},
	} {
		at := func(n int64) Stage {
			m := newMeter(&Circuits{}, "", c.data, 0)
			m.add(&m.sent, int(n))
			return m.Stage()
		}
		if at(0) != Fresh || c.low > 1 && at(c.low-1) != Fresh || at(c.low) < Low || at(c.spent) != Spent {
			t.Errorf("%s: the stages are %d, %d, %d", name, at(c.low-1), at(c.low), at(c.spent))
		}
		m := newMeter(&Circuits{}, "", c.data, 0)
		if m.add(&m.sent, int(c.no)) || m.sent.Load() != 0 || m.Stage() != Spent {
			t.Errorf("%s: %d bytes fit", name, c.no)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		m := newMeter(&Circuits{}, "", 0, 32*time.Second)
		reached := make(chan Stage, 4)
		stop := m.Watch(func(s Stage) { reached <- s })
		time.Sleep(28 * time.Second)
		synctest.Wait()
		if _, _, left := m.Left(time.Now()); len(reached) != 1 || <-reached != Low || left != 4*time.Second || !m.Retired() {
			t.Errorf("after 28 of 32 s: %s left", left)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if stop(); len(reached) != 1 || <-reached != Spent {
			t.Error("after 31 of 32 s the circuit is not spent")
		}
		m.stop()
	})
}

// A wish is a request for a reservation of a node at an address.
type wish struct {
	id   peer.ID
	addr ma.Multiaddr
	in   io.Reader
	out  bytes.Buffer
}

// status is the answer.
func (w *wish) status(t *testing.T) pb.Status {
	t.Helper()
	m, _, err := readHop(&w.out)
	if err != nil {
		t.Fatal(err)
	}
	return m.GetStatus()
}

// A wishStream is its stream, and a wishConn its connection.
type (
	wishStream struct {
		network.Stream
		w *wish
	}
	wishConn struct {
		network.Conn
		w *wish
	}
)

func (s wishStream) Conn() network.Conn               { return wishConn{w: s.w} }
func (s wishStream) Read(b []byte) (int, error)       { return s.w.in.Read(b) }
func (s wishStream) Write(b []byte) (int, error)      { return s.w.out.Write(b) }
func (s wishStream) Close() error                     { return nil }
func (s wishStream) Reset() error                     { return nil }
func (s wishStream) SetDeadline(time.Time) error      { return nil }
func (s wishStream) SetReadDeadline(time.Time) error  { return nil }
func (s wishStream) SetWriteDeadline(time.Time) error { return nil }
func (s wishStream) Scope() network.StreamScope       { return &network.NullScope{} }
func (c wishConn) RemotePeer() peer.ID                { return c.w.id }
func (c wishConn) RemoteMultiaddr() ma.Multiaddr      { return c.w.addr }

// Nodes that want 10,000 reservations with one key, at one address or in one organization get those of one node, one address and one class; who has
// one before keeps it, and who is elsewhere gets one.
func TestManyReservations(t *testing.T) {
	t.Parallel()
	through := testhost.Listen(t, didtest.NewKey(), "/ip4/127.0.0.1/tcp/0")
	var members sync.Map
	s, err := Serve(ServiceOptions{Host: through, Private: true, Terms: func(id did.DID) Terms {
		if _, ok := members.Load(id); ok {
			return Long
		}
		return Short
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	asks := func(id peer.ID, addr string) pb.Status {
		w := &wish{id: id, addr: ma.StringCast(addr + "/tcp/4001"), in: bytes.NewReader(hop(t, &pb.HopMessage{Type: pb.HopMessage_RESERVE.Enum()}))}
		s.serve(wishStream{w: w})
		return w.status(t)
	}
	known := map[int]peer.ID{}
	key := func(n int) peer.ID {
		if known[n] == "" {
			known[n] = peer.ID(didtest.Key(n).Peer())
		}
		return known[n]
	}
	granted := func(n int, id func(int) peer.ID, addr func(int) string) (all int) {
		for i := range n {
			if asks(id(i), addr(i)) == pb.Status_OK {
				all++
			}
		}
		return all
	}
	const many = 10_000
	partner, victim := key(50_000), key(50_001)
	members.Store(did.OfPeer(partner), true)
	if asks(partner, "/ip4/11.9.9.9") != pb.Status_OK || asks(victim, "/ip4/11.8.8.8") != pb.Status_OK {
		t.Fatal("the first reservations were refused")
	}
	one := func(int) string { return "/ip4/11.0.0.1" }
	each := func(i int) string { return fmt.Sprintf("/ip4/12.%d.%d.1", i>>8, i&255) }
	if n := granted(many, func(int) peer.ID { return key(0) }, one); n != many {
		t.Errorf("%d of %d requests of one node were granted", n, many)
	}
	if n := granted(many, func(i int) peer.ID { return key(1 + i) }, one); n != rooms[Short].MaxReservationsPerIP-1 {
		t.Errorf("%d nodes at one address have a reservation", n)
	}
	for i := range many {
		members.Store(did.OfPeer(key(1+i)), true)
	}
	if n := granted(many, func(i int) peer.ID { return key(1 + i) }, each); n != rooms[Long].MaxReservations-1 {
		t.Errorf("%d nodes of one organization have a reservation", n)
	}
	if asks(partner, "/ip4/11.9.9.9") != pb.Status_OK || asks(victim, "/ip4/11.8.8.8") != pb.Status_OK {
		t.Error("who has a reservation cannot renew it")
	}
	if asks(key(50_002), "/ip4/11.7.7.7") != pb.Status_OK {
		t.Error("a node at another address gets no reservation")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if most := rooms[Short].MaxReservations + rooms[Long].MaxReservations; len(s.reserved) > most {
		t.Errorf("%d reservations are in memory", len(s.reserved))
	}
}

// newEnd returns a host with QUIC whose circuits are counted.
func newEnd(t *testing.T) host.Host {
	t.Helper()
	h := testhost.Listen(t, didtest.NewKey(), "/ip4/127.0.0.1/udp/0/quic-v1")
	muxers := []netupgrader.StreamMuxer{{ID: yamux.ID, Muxer: yamux.DefaultTransport}}
	tls, err := libp2ptls.New(libp2ptls.ID, h.Peerstore().PrivKey(h.ID()), muxers)
	if err != nil {
		t.Fatal(err)
	}
	up, err := netupgrader.New([]sec.SecureTransport{tls}, muxers, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.AddTransport(h, (&Circuits{}).Upgrader(up)); err != nil {
		t.Fatal(err)
	}
	return h
}

// A circuit is closed at the second look if it has no streams and is retired, or beside a direct connection; another one stays.
func TestCircuitsAreGivenBack(t *testing.T) {
	t.Parallel()
	for name, unused := range map[string]func(t *testing.T, caller, hidden host.Host, c network.Conn){
		"retired": func(_ *testing.T, _, _ host.Host, c network.Conn) { MeterOf(c).Retire() },
		"beside a direct connection": func(t *testing.T, caller, hidden host.Host, _ network.Conn) {
			to := peer.AddrInfo{ID: hidden.ID(), Addrs: hidden.Network().ListenAddresses()}
			if err := caller.Connect(network.WithForceDirectDial(t.Context(), "test"), to); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			through, hidden, caller := testhost.Listen(t, didtest.NewKey(), "/ip4/127.0.0.1/udp/0/quic-v1"), newEnd(t), newEnd(t)
			s, err := Serve(ServiceOptions{Host: through, Private: true, Terms: func(did.DID) Terms { return Long }})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if _, err := client.Reserve(t.Context(), hidden, peer.AddrInfo{ID: through.ID(), Addrs: through.Addrs()}); err != nil {
				t.Fatal(err)
			}
			at := ma.StringCast(fmt.Sprintf("%s/p2p/%s/p2p-circuit", through.Addrs()[0], through.ID()))
			if err := caller.Connect(t.Context(), peer.AddrInfo{ID: hidden.ID(), Addrs: []ma.Multiaddr{at}}); err != nil {
				t.Fatal(err)
			}
			n := caller.Network()
			circuit := n.ConnsToPeer(hidden.ID())[0]
			poll.Until(t, "the end of identify", func() bool { return len(circuit.GetStreams()) == 0 })
			if idle := giveBack(n, map[network.Conn]bool{circuit: true}); len(idle) != 0 || circuit.IsClosed() {
				t.Fatal("a circuit in use was given back")
			}
			hidden.SetStreamHandler("/test", func(st network.Stream) { _, _ = io.Copy(st, st) })
			st, err := circuit.NewStream(network.WithAllowLimitedConn(t.Context(), "test"))
			if err != nil {
				t.Fatal(err)
			}
			if err := multistream.SelectProtoOrFail("/test", st); err != nil {
				t.Fatal(err)
			}
			unused(t, caller, hidden, circuit)
			if idle := giveBack(n, map[network.Conn]bool{circuit: true}); len(idle) != 0 || len(circuit.GetStreams()) == 0 {
				t.Error("a circuit with a stream was given back")
			}
			_ = st.Reset()
			var idle map[network.Conn]bool
			poll.Until(t, "a circuit without streams", func() bool { idle = giveBack(n, nil); return idle[circuit] })
			giveBack(n, idle)
			poll.Until(t, "the end of the circuit", func() bool { return !slices.Contains(n.ConnsToPeer(hidden.ID()), circuit) })
			poll.Until(t, "the end of the circuit at the relay", func() bool { return len(s.Stats().Circuits) == 0 })
			if direct := n.ConnsToPeer(hidden.ID()); name != "retired" && (len(direct) != 1 || direct[0].IsClosed()) {
				t.Errorf("the connections are %v", direct)
			}
		})
	}
}

// newAlone returns reservations of a host that is connected to another one, which may relay.
func newAlone(t *testing.T) (r *Reservations, through host.Host) {
	t.Helper()
	self := newEnd(t)
	through = testhost.Listen(t, didtest.NewKey(), "/ip4/127.0.0.1/udp/0/quic-v1")
	r, err := New(Options{Host: self, Private: true, Rank: func(did.DID) int { return 0 }, IsSelf: func(context.Context, net.Conn) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r, through
}

// A reservation ends the failure of its relay at once. If the place is lost soon, the next pause is longer than the one before.
func TestFailureEndsWithAReservation(t *testing.T) {
	t.Parallel()
	r, through := newAlone(t)
	now, id := time.Now(), through.ID()
	fail := func() time.Duration {
		r.take(attempt{failures: map[peer.ID]error{id: errSilent}}, now)
		return r.failures[id].Until.Sub(now)
	}
	reserve := func() {
		r.take(attempt{place: &Place{id: id, Relay: did.OfPeer(id), Addr: ma.StringCast("/ip4/192.0.2.7/tcp/1/p2p-circuit")}}, now)
		if places, failures := r.State(); len(places) != 1 || len(failures) != 0 {
			t.Errorf("the places are %v, the failures %v", places, failures)
		}
	}
	var got []time.Duration
	for range 3 {
		got = append(got, fail())
		reserve()
	}
	reserve() // a renewal
	if got = append(got, fail()); !slices.Equal(got, []time.Duration{failFirst, 2 * failFirst, 4 * failFirst, failFirst}) {
		t.Errorf("the pauses are %v", got)
	}
}

// A relay that failed is tried again at once after [Reservations.Retry], and otherwise at the end of its pause if it is connected.
func TestRetry(t *testing.T) {
	t.Parallel()
	r, through := newAlone(t)
	s, err := Serve(ServiceOptions{Host: through, Private: true, Terms: func(did.DID) Terms { return Long }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	testhost.Connect(t, r.o.Host, through)
	now := time.Now()
	r.failures[through.ID()] = &Failure{Relay: did.OfPeer(through.ID()), At: now, Until: now.Add(time.Hour)}
	r.next = now.Add(2 * time.Hour)
	if wait, ok := r.seek(t.Context(), nil, now); wait != time.Hour || !ok {
		t.Errorf("the next attempt is after %s", wait)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.Retry(through.ID())
	poll.Until(t, "a reservation", func() bool { return len(r.Addrs()) == 1 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A relay that refuses this node while its standing changes is asked once more in the same attempt.
func TestRetryDuringAnAttempt(t *testing.T) {
	t.Parallel()
	r, through := newAlone(t)
	var requests atomic.Int32
	s, err := Serve(ServiceOptions{Host: through, Private: true, Terms: func(did.DID) Terms {
		if requests.Add(1) > 1 {
			return Long
		}
		r.Retry(through.ID())
		return Refused
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	testhost.Connect(t, r.o.Host, through)
	a := attempt{failures: map[peer.ID]error{}, life: t.Context()}
	if !r.try(t.Context(), &a, peer.AddrInfo{ID: through.ID()}) || len(a.failures) != 0 {
		t.Errorf("the attempt is %+v", a)
	}
}
