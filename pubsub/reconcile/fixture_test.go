package reconcile

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/host"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/internal/testhost"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/tdtest"
)

func TestMain(m *testing.M) {
	tdtest.WarmUp()
	testmain.Run(m)
}

// verifier is shared by all nodes, so that a record is verified once.
var verifier = td.NewVerifier(did.Keys())

// first is the key of most Things.
var first = didtest.Key(0)

// signed returns a record of the nth Thing of the first key, valid for an hour.
func signed(t testing.TB, n int, seq uint64) *td.Signed {
	t.Helper()
	return signedBy(t, first, n, seq)
}

func signedBy(t testing.TB, k *keystore.Key, n int, seq uint64) *td.Signed {
	t.Helper()
	raw := fmt.Sprintf(`{"@context":["https://www.w3.org/2022/wot/td/v1.1"],"id":"urn:x:%d","title":"Thing %d",
		"securityDefinitions":{"none":{"scheme":"nosec"}},"security":"none",
		"actions":{"ask":{"forms":[{"href":"http://127.0.0.1:9/ask"}]}}}`, n, n)
	thing, err := td.Complete([]byte(raw), k.DID())
	if err != nil {
		t.Fatal(err)
	}
	s, err := td.Sign(thing, k, td.Lease{Seq: seq, Now: time.Now(), Lifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// tombstone returns a tombstone of the nth Thing of the first key.
func tombstone(t testing.TB, n int, seq uint64) *td.Signed {
	t.Helper()
	s, err := td.SignTombstone(first, fmt.Sprint("urn:x:", n), td.Lease{Seq: seq, Now: time.Now(), Lifetime: 48 * time.Hour}, false)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// filler is the nth of many items that are never requested.
func filler(n int) item {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(n))
	return item{sha256.Sum256(b[:]), 1}
}

// A node is a Reconciler with its set and its records.
type node struct {
	*Reconciler
	host host.Host
	set  *Set

	mu       sync.Mutex
	records  map[[32]byte]*td.Signed // owned by mu
	ingested int                     // records that Ingest received and n stored
}

// store stores a valid and newer record, as the directory does.
func (n *node) store(s *td.Signed) bool {
	r, err := verifier.Record(s.Record, time.Now())
	if err != nil {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if old := n.records[r.Key()]; old != nil {
		if last, err := verifier.Record(old.Record, time.Now()); err == nil && last.Seq >= r.Seq {
			return false
		}
	}
	n.records[r.Key()] = s
	n.set.Put(r.Key(), r.Seq)
	return true
}

func (n *node) get(key [32]byte) *td.Signed {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.records[key]
}

func (n *node) ingest(s *td.Signed) {
	if n.store(s) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.ingested++
	}
}

// drop removes a Thing from n.
func (n *node) drop(key [32]byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.records, key)
	n.set.Delete(key)
}

// add adds records to n.
func (n *node) add(t testing.TB, all ...*td.Signed) {
	t.Helper()
	for _, s := range all {
		if !n.store(s) {
			t.Fatal("a record was not stored")
		}
	}
}

// fill puts items without records into the set.
func (n *node) fill(from, to int) {
	for i := from; i < to; i++ {
		it := filler(i)
		n.set.Put(it.key, it.seq)
	}
}

// newNode returns a node without a host.
func newNode() *node {
	n := &node{set: new(Set), records: map[[32]byte]*td.Signed{}}
	n.Reconciler = &Reconciler{o: n.options(), log: slog.New(slog.DiscardHandler)}
	return n
}

func (n *node) options() Options {
	return Options{Network: "test", Set: n.set, Get: n.get, Ingest: n.ingest, Verifier: verifier, maxRequests: maxRequests,
		Room: func() int { return math.MaxInt }}
}

// A sim is a simulated network.
type sim struct{ *testhost.Network }

// simulate returns a network with a latency. It ends with the test.
func simulate(t *testing.T, latency time.Duration) *sim {
	t.Helper()
	return &sim{testhost.NewNetwork(t, latency)}
}

// node adds a node that serves sessions; change sets its options.
func (s *sim) node(change ...func(*Options)) *node {
	s.T.Helper()
	return start(s.T, s.Add(), change...)
}

// start starts a node on a host; change sets its options.
func start(t testing.TB, h host.Host, change ...func(*Options)) *node {
	t.Helper()
	n := newNode()
	n.host = h
	o := n.options()
	o.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	for _, f := range change {
		f(&o)
	}
	r, err := New(h, o)
	if err != nil {
		t.Fatal(err)
	}
	n.Reconciler = r
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}
