package pubsub

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/host"

	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/tdtest"
)

func TestMain(m *testing.M) {
	tdtest.WarmUp()
	testmain.Run(m)
}

// An agent is a Thing of a test.
type agent struct {
	key *keystore.Key
	id  string
	cap string
}

// signed signs a with a seq, for an hour from now.
func (a agent) signed(t testing.TB, seq uint64) *td.Signed {
	t.Helper()
	return a.signedAt(t, seq, time.Now())
}

func (a agent) signedAt(t testing.TB, seq uint64, now time.Time) *td.Signed {
	t.Helper()
	s, err := a.sign(seq, now)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (a agent) sign(seq uint64, now time.Time) (*td.Signed, error) {
	raw, err := json.Marshal(map[string]any{
		"@context":            []any{td.Context11, map[string]string{"lmos": td.ContextLMOS}},
		"@type":               []string{"lmos:Agent"},
		"id":                  a.id,
		"title":               "Weather",
		"security":            []string{"nosec"},
		"securityDefinitions": map[string]any{"nosec": map[string]string{"scheme": "nosec"}},
		"lmos:capabilities":   []any{map[string]string{"id": a.cap}},
		"actions": map[string]any{"weather": map[string]any{
			"forms": []any{map[string]string{"href": "http://127.0.0.1:1/ask"}},
		}},
	})
	if err != nil {
		return nil, err
	}
	thing, err := td.Complete(raw, a.key.DID())
	if err != nil {
		return nil, err
	}
	return td.Sign(thing, a.key, td.Lease{Seq: seq, Now: now, Lifetime: time.Hour})
}

// tombstone returns a tombstone of a.
func (a agent) tombstone(t testing.TB, seq uint64) *td.Signed {
	t.Helper()
	s, err := td.SignTombstone(a.key, a.id, td.Lease{Seq: seq, Now: time.Now(), Lifetime: 48 * time.Hour}, false)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// withoutTD returns s without TD, like a refresh.
func withoutTD(t testing.TB, s *td.Signed) *td.Signed {
	t.Helper()
	b, err := s.WithoutTD()
	if err != nil {
		t.Fatal(err)
	}
	return &td.Signed{Record: b.Record}
}

func weather(t testing.TB, n byte) agent {
	t.Helper()
	return agent{key: didtest.Key(int(n)), id: "urn:example:weather", cap: "urn:example:weather"}
}

// shard returns a shard of the records of a.
func (a agent) shard(t testing.TB) byte {
	t.Helper()
	id, ok := td.Normal(a.cap)
	if !ok {
		t.Fatal(a.cap)
	}
	return td.Shard(id)
}

// A node is a PubSub with the records delivered to it.
type node struct {
	*PubSub
	host host.Host

	mu   sync.Mutex
	seqs map[string][]uint64 // delivered, by thing; owned by mu
}

// delivered returns the sequence numbers that were delivered for a Thing.
func (n *node) delivered(thing string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return fmt.Sprint(n.seqs[thing])
}

// start starts a node on a host, until the end of the test. The host must be closed later.
func start(t testing.TB, h host.Host, o Options) *node {
	t.Helper()
	n := &node{host: h, seqs: map[string][]uint64{}}
	o.Network = cmp.Or(o.Network, "main")
	if o.Deliver == nil {
		o.Deliver = func(_ *td.Signed, r *td.Record) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.seqs[r.Thing] = append(n.seqs[r.Thing], r.Seq)
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	p, err := New(h, o)
	if err != nil {
		t.Fatal(err)
	}
	n.PubSub = p
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error("Run:", err)
		}
		if err := p.Close(); err != nil {
			t.Error("Close:", err)
		}
	})
	return n
}
