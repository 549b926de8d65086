package noderecord

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/record"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/internal/cbor"
	"github.com/lmosd/lmosd/internal/testhost"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

var now = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// addrs returns n addresses from a port on.
func addrs(n, port int) (all []ma.Multiaddr) {
	for i := range n {
		all = append(all, ma.StringCast(fmt.Sprintf("/ip4/192.0.2.1/tcp/%d", port+i)))
	}
	return all
}

func signed(t testing.TB, at time.Time, as []ma.Multiaddr) *Record {
	t.Helper()
	r, err := Sign(didtest.Key(1), "test", as, at)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// sealed signs a record without the checks of Sign. change is what differs from a valid one.
func sealed(t testing.TB, signer int, change func(*wireRecord)) []byte {
	t.Helper()
	w := &wireRecord{Version: version, Network: "test", Node: string(didtest.Key(1).DID()), Issued: uint64(now.UnixMilli()), Addrs: []string{"/ip4/192.0.2.1/tcp/1"}}
	change(w)
	raw, err := cbor.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	if w.Signature, err = didtest.Key(signer).Sign(did.PurposeNode, raw); err != nil {
		t.Fatal(err)
	}
	if raw, err = cbor.Marshal(w); err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestRecord(t *testing.T) {
	t.Parallel()
	r, err := Parse(signed(t, now, addrs(MaxAddrs, 1)).Raw, "test", now.Add(Life))
	if err != nil {
		t.Fatal(err)
	}
	if r.Node != didtest.Key(1).DID() || !r.Issued.Equal(now) || !equal(r.Addrs, addrs(MaxAddrs, 1)) || r.Peer != peer.ID(didtest.Key(1).Peer()) {
		t.Errorf("%+v", r)
	}
	if r, err := Parse(signed(t, now, nil).Raw, "test", now); err != nil || len(r.Addrs) != 0 {
		t.Errorf("without addresses: %+v, %v", r, err)
	}
}

func TestInvalidRecords(t *testing.T) {
	t.Parallel()
	good := signed(t, now, addrs(2, 1)).Raw
	changed := slices.Clone(good)
	changed[len(changed)/2] ^= 1
	padded := append(slices.Clone(good), 0x06, 0x00)
	padded[0]++
	addr := func(texts ...string) func(*wireRecord) { return func(w *wireRecord) { w.Addrs = texts } }
	relay := "/p2p/12D3KooWBmwkafWE2fqfzS96VoTZgpGp6aJsF4N2qAnNHfTLhGnD"
	// The record that the identify protocol of libp2p gives to each connected peer is not one that the node announces.
	k, err := crypto.UnmarshalPrivateKey(didtest.Key(1).Libp2p())
	if err != nil {
		t.Fatal(err)
	}
	envelope, err := record.Seal(&peer.PeerRecord{PeerID: peer.ID(didtest.Key(1).Peer()), Addrs: addrs(1, 1), Seq: uint64(now.UnixNano())}, k)
	if err != nil {
		t.Fatal(err)
	}
	identify, err := envelope.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		raw  []byte
		now  time.Time
		want error
	}{
		"nothing":               {nil, now, ErrMalformed},
		"changed":               {changed, now, ErrMalformed},
		"padded":                {padded, now, ErrMalformed},
		"bytes after it":        {append(slices.Clone(good), 0), now, ErrMalformed},
		"too large":             {make([]byte, MaxSize+1), now, ErrMalformed},
		"of identify":           {identify, now, ErrMalformed},
		"signed by another":     {sealed(t, 2, func(*wireRecord) {}), now, ErrMalformed},
		"of another network":    {sealed(t, 1, func(w *wireRecord) { w.Network = "main" }), now, ErrMalformed},
		"of no node":            {sealed(t, 1, func(w *wireRecord) { w.Node = "did:web:example.com" }), now, ErrMalformed},
		"version 0":             {sealed(t, 1, func(w *wireRecord) { w.Version = 0 }), now, ErrMalformed},
		"a later version":       {sealed(t, 1, func(w *wireRecord) { w.Version = 2 }), now, ErrVersion},
		"too many addresses":    {sealed(t, 1, addr(slices.Repeat([]string{"/ip4/192.0.2.1/tcp/1"}, MaxAddrs+1)...)), now, ErrMalformed},
		"no address":            {sealed(t, 1, addr("x")), now, ErrMalformed},
		"a long address":        {sealed(t, 1, addr("/dns4/"+strings.Repeat("x", MaxAddr)+"/tcp/1")), now, ErrMalformed},
		"another spelling":      {sealed(t, 1, addr("/ip4/192.0.2.1/tcp/01")), now, ErrMalformed},
		"a list of addresses":   {sealed(t, 1, addr("/dnsaddr/example.com")), now, ErrMalformed},
		"of a socket":           {sealed(t, 1, addr("/unix/run")), now, ErrMalformed},
		"with a node":           {sealed(t, 1, addr("/ip4/192.0.2.1/tcp/1"+relay)), now, ErrMalformed},
		"through two relays":    {sealed(t, 1, addr("/ip4/192.0.2.1/tcp/1"+relay+"/p2p-circuit"+relay+"/p2p-circuit")), now, ErrMalformed},
		"beyond a relay":        {sealed(t, 1, addr("/ip4/192.0.2.1/tcp/1"+relay+"/p2p-circuit/ip4/192.0.2.2/tcp/1")), now, ErrMalformed},
		"without time":          {sealed(t, 1, func(w *wireRecord) { w.Issued = 0 }), now, ErrMalformed},
		"in the far future":     {sealed(t, 1, func(w *wireRecord) { w.Issued = 1 << 63 }), now, ErrMalformed},
		"expired":               {good, now.Add(Life + 2*skew), ErrTime},
		"in the future":         {good, now.Add(-2 * skew), ErrTime},
		"through a relay: good": {sealed(t, 1, addr("/dns4/example.com/tcp/1"+relay+"/p2p-circuit")), now, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if r, err := Parse(c.raw, "test", c.now); !errors.Is(err, c.want) || (r == nil) != (err != nil) {
				t.Errorf("got %+v, %v", r, err)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(signed(f, now, addrs(3, 1)).Raw)
	f.Add(sealed(f, 2, func(*wireRecord) {}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if _, _, err := decode(raw, "test"); err != nil {
			if _, err := Parse(raw, "test", now); err == nil {
				t.Error("an undecodable record is valid")
			}
			return
		}
		r, err := Parse(raw, "test", now)
		if err != nil {
			return
		}
		again, err := Sign(didtest.Key(1), "test", r.Addrs, r.Issued)
		if err != nil || again.Node == r.Node && !slices.Equal(again.Raw, raw) {
			t.Errorf("%+v, signed again %+v, %v", r, again, err)
		}
	})
}

// A book has the newest record of the nodes that are wanted, until it ends. Copies, older records and those that follow too soon are none.
func TestBook(t *testing.T) {
	t.Parallel()
	wanted := true
	b := NewBook("test", func(did.DID) bool { return wanted })
	one, two := signed(t, now, addrs(2, 1)), signed(t, now.Add(MinInterval), addrs(1, 9))
	id := one.Peer
	if got := b.Addrs(id, now); got != nil {
		t.Errorf("an empty book has %s", got)
	}
	for i, c := range []struct {
		raw  []byte
		err  error
		want []ma.Multiaddr
	}{
		{one.Raw, nil, one.Addrs},
		{one.Raw, ErrOld, one.Addrs},
		{signed(t, now.Add(MinInterval-time.Millisecond), addrs(1, 50)).Raw, ErrOld, one.Addrs},
		{sealed(t, 2, func(w *wireRecord) { w.Issued += 10_000 }), ErrMalformed, one.Addrs},
		{two.Raw, nil, two.Addrs},
		{one.Raw, ErrOld, two.Addrs},
		{signed(t, now.Add(time.Minute), nil).Raw, nil, nil},
	} {
		if _, err := b.Add(c.raw, now.Add(time.Minute)); !errors.Is(err, c.err) || !equal(b.Addrs(id, now), c.want) {
			t.Errorf("record %d: %v; the addresses are %s", i, err, b.Addrs(id, now))
		}
	}
	b.Keep(two)
	if got := b.Addrs(id, now); got != nil {
		t.Errorf("an older record was kept: %s", got)
	}
	wanted = false
	other := sealed(t, 2, func(w *wireRecord) { w.Node = string(didtest.Key(2).DID()) })
	r, err := b.Add(other, now)
	if err != nil || !equal(b.Addrs(r.Peer, now), r.Addrs) || len(b.kept) != 1 {
		t.Errorf("of a node that is not wanted: %v, %s", err, b.Addrs(r.Peer, now))
	}
	b.Keep(r)
	if !equal(b.Addrs(r.Peer, now.Add(Life)), r.Addrs) || b.Addrs(r.Peer, now.Add(Life+2*skew)) != nil {
		t.Error("the record did not end at its end")
	}
}

// A flood of keys does not fill the memory, and nodes that go on are still known.
func TestBookIsBounded(t *testing.T) {
	t.Parallel()
	b := NewBook("test", func(did.DID) bool { return true })
	steady := peer.ID("steady")
	for i := range 5 * maxTimes {
		b.setLocked(peer.ID(fmt.Sprint(i)), now)
		if i%1000 == 0 {
			b.setLocked(steady, now)
		}
		b.keepLocked(&Record{Peer: peer.ID(fmt.Sprint(i)), Issued: now})
	}
	if n := len(b.recent) + len(b.old); n > 2*maxTimes || len(b.kept) > maxKept {
		t.Errorf("%d times and %d records", n, len(b.kept))
	}
	if _, ok := b.lastLocked(steady); !ok {
		t.Error("a node that goes on is forgotten")
	}
}

// An announced is a node with the records that it announced.
type announced struct {
	host   host.Host
	addrs  atomic.Pointer[[]ma.Multiaddr]
	change event.Emitter
	offers atomic.Bool
	peers  atomic.Int32

	mu       sync.Mutex
	sent     []*Record // by gossip; owned by mu
	replicas int       // records that were stored; owned by mu
}

// gossip returns the records that were sent.
func (n *announced) gossip() []*Record {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.sent)
}

func (n *announced) stored() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.replicas
}

// announces runs test with the announcer of a node without peers.
func announces(t *testing.T, test func(t *testing.T, n *announced)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := &announced{host: testhost.NewNetwork(t, time.Millisecond).Add()}
		n.moves(addrs(1, 1))
		n.offers.Store(true)
		var err error
		if n.change, err = n.host.EventBus().Emitter(new(event.EvtLocalAddressesUpdated)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		a := NewAnnouncer(AnnouncerOptions{Host: n.host, Signer: didtest.Key(1), Network: "test", Offers: n.offers.Load, Addrs: func([]ma.Multiaddr) []ma.Multiaddr { return *n.addrs.Load() },
			Gossip: func(_ context.Context, r *Record) (int, error) {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.sent = append(n.sent, r)
				return int(n.peers.Load()), nil
			},
			Store: func(context.Context, *Record) (int, error) {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.replicas++
				return int(n.peers.Load()), nil
			}})
		go func() { done <- a.Run(ctx) }()
		synctest.Wait()
		test(t, n)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		_ = n.change.Close()
	})
}

// moves gives the node other addresses.
func (n *announced) moves(as []ma.Multiaddr) {
	n.addrs.Store(&as)
	if n.change != nil {
		_ = n.change.Emit(event.EvtLocalAddressesUpdated{})
	}
	synctest.Wait()
}

func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// A change is announced at once, but for the least pause between two records, and once more a minute later. What does not change is announced rarely.
func TestAnnouncer(t *testing.T) {
	announces(t, func(t *testing.T, n *announced) {
		n.peers.Store(3)
		sleep(20 * time.Minute)
		first := len(n.gossip())
		if first == 0 || first > 3 {
			t.Fatalf("%d records in the first minutes", first)
		}
		for port := range 5 {
			n.moves(addrs(2, 10+port))
		}
		if got := n.gossip()[first:]; len(got) != 1 || !equal(got[0].Addrs, addrs(2, 10)) {
			t.Errorf("after a change: %+v", got)
		}
		sleep(2*firstPause + lookPause)
		if got := n.gossip()[first:]; len(got) != 2 || !equal(got[1].Addrs, addrs(2, 14)) || got[1].Issued.Sub(got[0].Issued) < firstPause {
			t.Errorf("after the last of five changes: %+v", got)
		}
		sleep(2 * repeatAfter)
		if got := n.gossip()[first:]; len(got) != 3 || !equal(got[2].Addrs, addrs(2, 14)) {
			t.Errorf("a minute later: %+v", got)
		}
		n.moves(addrs(2, 14))
		sleep(period / 2)
		if got := len(n.gossip()) - first; got != 3 {
			t.Errorf("%d records without a change", got-3)
		}
		sleep(Life)
		if got := len(n.gossip()) - first - 3; got < 3 || got > 6 || n.stored() != len(n.gossip()) {
			t.Errorf("%d records in a day, %d of %d stored", got, n.stored(), len(n.gossip()))
		}
	})
}

// Addresses that change again and again are announced more and more rarely.
func TestFlappingAddresses(t *testing.T) {
	announces(t, func(t *testing.T, n *announced) {
		n.peers.Store(3)
		for i := range 60 * 60 {
			n.moves(addrs(1, 1+i%2))
			sleep(time.Second)
		}
		if got := len(n.gossip()); got < 10 || got > 30 {
			t.Errorf("%d records in an hour", got)
		}
	})
}

// A node without peers tries again, more and more rarely.
func TestAnnouncerAlone(t *testing.T) {
	announces(t, func(t *testing.T, n *announced) {
		sleep(2 * time.Hour)
		if got := len(n.gossip()); got < 10 || got > 25 {
			t.Errorf("%d attempts", got)
		}
		n.peers.Store(1)
		sleep(2 * alonePause)
		before := len(n.gossip())
		sleep(period / 2)
		if len(n.gossip()) != before {
			t.Error("it went on after a peer received the record")
		}
	})
}

// A node that offers nothing to all nodes announces no addresses. If it did before, it announces that it has none, once a peer receives that.
func TestAnnouncerWithoutThings(t *testing.T) {
	announces(t, func(t *testing.T, n *announced) {
		n.peers.Store(1)
		n.offers.Store(false)
		sleep(10 * time.Minute)
		last := n.gossip()[len(n.gossip())-1]
		if len(last.Addrs) != 0 {
			t.Errorf("the last record has %s", last.Addrs)
		}
		before := len(n.gossip())
		n.moves(addrs(2, 10))
		sleep(Life)
		if len(n.gossip()) != before {
			t.Errorf("%d records more", len(n.gossip())-before)
		}
	})
}
