package noderecord

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/record"
	"github.com/libp2p/go-libp2p/p2p/host/peerstore/pstoremem"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/internal/testhost"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

var now = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

func key(t testing.TB, n int) crypto.PrivKey {
	t.Helper()
	k, err := crypto.UnmarshalPrivateKey(didtest.Key(n).Libp2p())
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// addrs returns n addresses from a port on.
func addrs(n, port int) (all []ma.Multiaddr) {
	for i := range n {
		all = append(all, ma.StringCast(fmt.Sprintf("/ip4/192.0.2.1/tcp/%d", port+i)))
	}
	return all
}

func signed(t testing.TB, at time.Time, as []ma.Multiaddr) *Record {
	t.Helper()
	r, err := Sign(key(t, 1), as, at)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// sealed returns a record without the checks of Sign.
func sealed(t testing.TB, signer int, r record.Record) []byte {
	t.Helper()
	e, err := record.Seal(r, key(t, signer))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := e.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestRecord(t *testing.T) {
	t.Parallel()
	r, err := Parse(signed(t, now, addrs(MaxAddrs, 1)).Raw, now.Add(Life))
	if err != nil {
		t.Fatal(err)
	}
	if r.Node != didtest.Key(1).DID() || !r.Issued.Equal(now) || !equal(r.Addrs, addrs(MaxAddrs, 1)) {
		t.Errorf("%+v", r)
	}
}

// A foreignRecord has the domain of records of nodes, and the content of something else.
type foreignRecord struct{ *peer.PeerRecord }

func (foreignRecord) Codec() []byte { return []byte("other") }

func TestInvalidRecords(t *testing.T) {
	t.Parallel()
	good := signed(t, now, addrs(2, 1)).Raw
	changed := slices.Clone(good)
	changed[len(changed)/2] ^= 1
	of := func(id peer.ID, n int, seq uint64) *peer.PeerRecord {
		return &peer.PeerRecord{PeerID: id, Addrs: addrs(n, 1), Seq: seq}
	}
	self, seq := peer.ID(didtest.Key(1).Peer()), uint64(now.UnixNano())
	rsa, pub, err := crypto.GenerateRSAKeyPair(2048, strings.NewReader(strings.Repeat("x", 1<<20)))
	if err != nil {
		t.Fatal(err)
	}
	other, err := peer.IDFromPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	e, err := record.Seal(of(other, 1, seq), rsa)
	if err != nil {
		t.Fatal(err)
	}
	ofRSA, err := e.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		raw  []byte
		now  time.Time
		want error
	}{
		"nothing":             {nil, now, ErrMalformed},
		"changed":             {changed, now, ErrMalformed},
		"too large":           {make([]byte, MaxSize+1), now, ErrMalformed},
		"of another node":     {sealed(t, 2, of(self, 1, seq)), now, ErrMalformed},
		"too many addresses":  {sealed(t, 1, of(self, MaxAddrs+1, seq)), now, ErrMalformed},
		"another content":     {sealed(t, 1, foreignRecord{of(self, 1, seq)}), now, ErrMalformed},
		"another kind of key": {ofRSA, now, ErrMalformed},
		"expired":             {good, now.Add(Life + 2*skew), ErrTime},
		"in the future":       {good, now.Add(-2 * skew), ErrTime},
		"without end":         {sealed(t, 1, of(self, 1, 1<<63)), now, ErrTime},
		"without time":        {sealed(t, 1, of(self, 1, 0)), now, ErrTime},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if r, err := Parse(c.raw, c.now); !errors.Is(err, c.want) {
				t.Errorf("got %+v, %v", r, err)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(signed(f, now, addrs(3, 1)).Raw)
	f.Add(sealed(f, 2, &peer.PeerRecord{PeerID: peer.ID(didtest.Key(1).Peer()), Seq: 1}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := Parse(raw, now)
		if err != nil {
			return
		}
		if again, err := Parse(r.Raw, now); err != nil || again.Node != r.Node || !again.Issued.Equal(r.Issued) {
			t.Errorf("%+v, then %+v, %v", r, again, err)
		}
	})
}

// A newer record replaces the addresses of the one before, an older one does not, and all end with the record.
func TestStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		book, err := pstoremem.NewPeerstore()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = book.Close() }()
		start := time.Now()
		one, two := signed(t, start, addrs(2, 1)), signed(t, start.Add(time.Second), addrs(1, 9))
		if Has(book, one.Peer) {
			t.Error("the address book is not empty")
		}
		for i, c := range []struct {
			r    *Record
			want bool
			has  []ma.Multiaddr
		}{{one, true, one.Addrs}, {two, true, two.Addrs}, {one, false, two.Addrs}} {
			if ok, err := c.r.Store(book, time.Now()); ok != c.want || err != nil || !equal(book.Addrs(one.Peer), c.has) || !Has(book, one.Peer) {
				t.Errorf("record %d: %v, %v; the addresses are %s", i, ok, err, book.Addrs(one.Peer))
			}
		}
		Keep(book, func(id did.DID) bool { return id != one.Node })(signed(t, start.Add(time.Minute), addrs(1, 99)))
		time.Sleep(Life)
		if !Has(book, one.Peer) {
			t.Error("the record ended early")
		}
		time.Sleep(2 * skew)
		if Has(book, one.Peer) {
			t.Error("the record did not end")
		}
	})
}

// An announced is a node with the records that it announced.
type announced struct {
	host   host.Host
	addrs  atomic.Pointer[[]ma.Multiaddr]
	change event.Emitter
	offers atomic.Bool
	peers  atomic.Int32
	gossip []*Record // read while the bubble is idle
	stored []*Record
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
		a := NewAnnouncer(AnnouncerOptions{Host: n.host, Offers: n.offers.Load, Addrs: func([]ma.Multiaddr) []ma.Multiaddr { return *n.addrs.Load() },
			Gossip: func(_ context.Context, r *Record) (int, error) {
				n.gossip = append(n.gossip, r)
				return int(n.peers.Load()), nil
			},
			Store: func(_ context.Context, r *Record) (int, error) {
				n.stored = append(n.stored, r)
				return int(n.peers.Load()), nil
			}})
		go func() { done <- a.Run(ctx) }()
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

// A change is announced at once, but for the least pause between two records, and what does not change rarely.
func TestAnnouncer(t *testing.T) {
	announces(t, func(t *testing.T, n *announced) {
		n.peers.Store(3)
		sleep(time.Minute)
		first := len(n.gossip)
		if first == 0 || first > 2 {
			t.Fatalf("%d records in the first minute", first)
		}
		for port := range 5 {
			n.moves(addrs(2, 10+port))
		}
		if got := n.gossip[first:]; len(got) != 1 || !equal(got[0].Addrs, addrs(2, 10)) {
			t.Errorf("after a change: %+v", got)
		}
		sleep(leastPause)
		if got := n.gossip[first:]; len(got) != 2 || !equal(got[1].Addrs, addrs(2, 14)) || got[1].Issued.Sub(got[0].Issued) < leastPause {
			t.Errorf("after the last of five changes: %+v", got)
		}
		n.moves(addrs(2, 14))
		sleep(gossipPeriod / 2)
		if got := len(n.gossip) - first; got != 2 {
			t.Errorf("%d records without a change", got-2)
		}
		stored := len(n.stored)
		sleep(Life - gossipPeriod)
		if got := len(n.gossip) - first - 2; got < 22 || got > 28 {
			t.Errorf("%d records in a day", got)
		}
		if got := len(n.stored) - stored; got < 3 || got > 5 {
			t.Errorf("%d records stored in a day", got)
		}
	})
}

// A node without peers tries again, more and more rarely.
func TestAnnouncerAlone(t *testing.T) {
	announces(t, func(t *testing.T, n *announced) {
		sleep(2 * time.Hour)
		if got := len(n.gossip); got < 10 || got > 20 {
			t.Errorf("%d attempts", got)
		}
		n.peers.Store(1)
		sleep(mostPause)
		before := len(n.gossip)
		sleep(gossipPeriod / 2)
		if len(n.gossip) != before {
			t.Error("it went on after a peer received the record")
		}
	})
}

// A node that offers nothing to all nodes, or has no address, announces none.
func TestAnnouncerWithoutThings(t *testing.T) {
	announces(t, func(t *testing.T, n *announced) {
		before := len(n.gossip)
		n.offers.Store(false)
		n.moves(addrs(2, 10))
		sleep(Life)
		n.offers.Store(true)
		n.moves(nil)
		sleep(Life)
		if len(n.gossip) != before {
			t.Errorf("%d records", len(n.gossip)-before)
		}
	})
}
