package dht

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/internal/testhost"
	"github.com/lmosd/lmosd/td"
)

// A node is a running DHT with its hosted records.
type node struct {
	*DHT
	host host.Host
	key  *keystore.Key
	held *held
	stop func() // ends Run and closes; more than once is once
}

// held is the Local of a test's node.
type held struct {
	verifier *td.Verifier

	mu     sync.Mutex
	things []*td.Signed
}

func (h *held) Body(_ context.Context, hash [32]byte) ([]byte, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.things {
		if sha256.Sum256(s.TD) == hash {
			return s.TD, true
		}
	}
	return nil, false
}

func (h *held) Hosted(_ context.Context, q td.Query) (found []*td.Signed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.things {
		d, err := s.Verify(context.Background(), h.verifier, time.Now())
		if err == nil && q.Match(d) && len(found) < q.Limit {
			found = append(found, s)
		}
	}
	return found
}

func (h *held) add(s *td.Signed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.things = append(h.things, s)
}

func (h *held) drop(s *td.Signed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.things = slices.DeleteFunc(h.things, func(o *td.Signed) bool { return o == s })
}

func (n *node) info() peer.AddrInfo { return peer.AddrInfo{ID: n.host.ID(), Addrs: n.host.Addrs()} }

func testSigner(t testing.TB, i int) *keystore.Key {
	t.Helper()
	k, err := keystore.FromSeed([32]byte(testKey(i).Seed()))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// loopback returns the i-th host, on a free port of loopback.
func loopback(t testing.TB, i int) host.Host {
	t.Helper()
	return testhost.Listen(t, testSigner(t, i), "/ip4/127.0.0.1/tcp/0")
}

// start starts a DHT on h, as server of a private network that joins through seeds; change sets other options.
func start(t testing.TB, i int, h host.Host, seeds func() []peer.AddrInfo, change ...func(*Options)) *node {
	t.Helper()
	v := td.NewVerifier(did.Keys())
	n := &node{host: h, key: testSigner(t, i), held: &held{verifier: v}}
	o := Options{Network: "test", Mode: ModeServer, PublishPrivate: true, BootstrapPeers: seeds, Local: n.held, Verifier: v}
	for _, f := range change {
		f(&o)
	}
	d, err := New(h, o)
	if err != nil {
		t.Fatal(err)
	}
	n.DHT = d
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	t.Cleanup(n.stop)
	return n
}

// loopbackMesh returns n nodes on loopback that have joined through the first.
func loopbackMesh(t testing.TB, n int, change ...func(*Options)) []*node {
	t.Helper()
	nodes := []*node{start(t, 0, loopback(t, 0), nil, change...)}
	for i := 1; i < n; i++ {
		nodes = append(nodes, start(t, i, loopback(t, i), seededBy(nodes[0]), change...))
	}
	joined(t, nodes)
	return nodes
}

func seededBy(seeds ...*node) func() []peer.AddrInfo {
	return func() (infos []peer.AddrInfo) {
		for _, n := range seeds {
			infos = append(infos, n.info())
		}
		return infos
	}
}

// joined waits until each node has half of the others in its routing table.
func joined(t testing.TB, nodes []*node) {
	t.Helper()
	acquainted(t, nodes, len(nodes)/2)
}

// acquainted waits until each node has n others in its routing table.
func acquainted(t testing.TB, nodes []*node, others int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for i, n := range nodes {
		for n.Size() < others {
			step, stop := context.WithTimeout(ctx, 5*time.Second)
			err := n.Wait(step, others)
			stop()
			if ctx.Err() != nil {
				t.Fatalf("node %d has %d peers: %v", i, n.Size(), err)
			}
			_ = n.kad.Bootstrap(ctx) // a node that was too busy to answer a new one is found by the next search, which no test waits for
		}
	}
}

// thing signs a TD with a title and capabilities, owned and hosted by n.
func (n *node) thing(t testing.TB, title string, seq uint64, capabilities ...string) *td.Signed {
	t.Helper()
	return n.sign(t, title, "It does something.", seq, capabilities...)
}

// bigThing is a thing whose TD does not fit into its record.
func (n *node) bigThing(t testing.TB, title string, capabilities ...string) *td.Signed {
	t.Helper()
	noise := make([]byte, 10<<10)
	rnd := rand.NewChaCha8([32]byte{1})
	_, _ = rnd.Read(noise)
	return n.sign(t, title, hex.EncodeToString(noise), 1, capabilities...)
}

func (n *node) sign(t testing.TB, title, description string, seq uint64, capabilities ...string) *td.Signed {
	t.Helper()
	var caps string
	for i, c := range capabilities {
		if i > 0 {
			caps += ","
		}
		caps += fmt.Sprintf(`{"lmos:id":%q}`, c)
	}
	raw := fmt.Sprintf(`{"@context":["https://www.w3.org/2022/wot/td/v1.1",{"lmos":"https://eclipse.dev/lmos/protocol/v1#"}],
		"@type":"lmos:Agent","title":%q,"description":%q,"lmos:capabilities":[%s],
		"securityDefinitions":{"none":{"scheme":"nosec"}},"security":"none",
		"actions":{"ask":{"forms":[{"href":"http://127.0.0.1:9/ask"}]}}}`, title, description, caps)
	thing, err := td.Complete([]byte(raw), n.key.DID())
	if err != nil {
		t.Fatal(err)
	}
	var addrs []string
	for _, a := range n.host.Addrs() {
		addrs = append(addrs, a.String())
	}
	s, err := td.Sign(thing, n.key, td.Lease{
		Seq: seq, Now: time.Now(), Lifetime: 6 * time.Hour,
		Hosts: []td.Host{{Node: n.key.DID(), Addrs: addrs[:min(len(addrs), td.MaxAddrs)]}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// record decodes a record that must be good.
func (n *node) record(t testing.TB, s *td.Signed) *td.Record {
	t.Helper()
	r, err := n.o.Verifier.Record(s.Record, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// offer makes n host s: it publishes and provides it.
func (n *node) offer(t testing.TB, s *td.Signed) Receipt {
	t.Helper()
	n.held.add(s)
	r, err := n.Publish(t.Context(), s)
	if err != nil {
		t.Fatalf("Publish: %v", err)
	}
	if _, err := n.Provide(t.Context(), n.record(t, s)); err != nil {
		t.Fatalf("Provide: %v", err)
	}
	return r
}

// found collects the results of n for q.
func (n *node) found(t testing.TB, q td.Query) (all []*td.Record, c td.Coverage) {
	t.Helper()
	q.Counter = new(td.CoverageCounter)
	for s, err := range n.Find(t.Context(), q) {
		if err != nil {
			t.Fatalf("Find: %v", err)
		}
		all = append(all, n.record(t, s))
	}
	return all, q.Counter.Coverage()
}

// verified returns the description of s.
func (n *node) verified(t testing.TB, s *td.Signed) *td.Description {
	t.Helper()
	d, err := s.Verify(t.Context(), td.NewVerifier(did.Keys()), time.Now())
	if err != nil {
		t.Fatalf("Verify: %v", err)
	}
	return d
}
