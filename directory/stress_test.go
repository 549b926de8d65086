package directory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// All methods run concurrently, for the race detector. At the end the index has exactly the live entries.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	signed := many(t, 1, 0, 12)
	verifier := td.NewVerifier(did.Keys())
	d := openDirectory(t, Options{
		Store: memory(), Verifier: verifier, Self: didtest.Key(9).DID(), Max: 40, PerOwner: 30,
		Sources: []Source{sourceOf(signed...)},
		Fetch:   bodies(t, signed...),
		Bind: func(*td.Description) interact.Thing {
			return interact.Unary(func(context.Context, *interact.Message) (*interact.Message, error) { return nil, nil })
		},
	})
	stop := run(t, d)
	var g sync.WaitGroup
	for i := range 4 {
		g.Go(func() { changeRandomly(t, d, rand.New(rand.NewPCG(uint64(i), 1))) })
		g.Go(func() { callReaders(t, d, rand.New(rand.NewPCG(uint64(i), 2)), signed) })
	}
	g.Wait()
	stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	inUse := 0
	for _, e := range d.entries {
		if e.view != nil {
			inUse++
		}
	}
	if inUse != len(d.live) || inUse != d.index.Len() || inUse != len(d.hashes) ||
		len(d.entries) != inUse+len(d.removed) {
		t.Errorf("%d entries, %d living, %d in the heap, %d in order, %d by hash, %d gone",
			len(d.entries), inUse, len(d.live), d.index.Len(), len(d.hashes), len(d.removed))
	}
}

// changeRandomly adds, changes and withdraws.
func changeRandomly(t *testing.T, d *Directory, rng *rand.Rand) {
	for range 300 {
		id := fmt.Sprintf("urn:churn:%d", rng.IntN(50))
		desc := plain(t, byte(1+rng.IntN(3)), id, fmt.Sprintf("Title %d", rng.IntN(5)), "urn:a:b")
		desc.Record.Seq = rng.Uint64N(40)
		if rng.IntN(5) == 0 {
			desc.Record.Kind, desc.Thing = td.KindTombstone, nil
		}
		if _, err := d.put(desc, origin(rng.IntN(2))); err != nil && interact.AsError(err).Code == interact.Internal {
			t.Error(err)
		}
		d.SetReachable(desc.Record.Owner, rng.IntN(2) == 0)
		if rng.IntN(50) == 0 {
			d.dropDue(time.Now().Add(time.Duration(rng.IntN(61)) * time.Minute))
		}
	}
}

// callReaders calls all methods that read.
func callReaders(t *testing.T, d *Directory, rng *rand.Rand, signed []*td.Signed) {
	for range 50 {
		d.Enqueue(signed[rng.IntN(len(signed))])
		for _, err := range d.Find(t.Context(), td.Query{Capability: things, Limit: rng.IntN(20)}) {
			if err != nil {
				t.Error(err)
			}
		}
		for desc := range d.FindLocal(t.Context(), td.Query{Text: "title"}) {
			_ = d.IsReachable(desc.Record, time.Now())
		}
		_, _ = d.Locate(t.Context(), fmt.Sprintf("title-%d", rng.IntN(5)))
		_ = d.Hosted(t.Context(), td.Query{})
		_ = d.Stats()
		d.Len()
		d.Hosts(didtest.Key(rng.IntN(5)).DID())
	}
}
