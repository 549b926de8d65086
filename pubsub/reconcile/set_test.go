package reconcile

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/lmosd/lmosd/internal/liveheap"
)

// check checks the order, the counts and the sums in every node of a tree.
func check(t *testing.T, n *tree, want map[[32]byte]uint64) {
	t.Helper()
	var sum total
	count := 0
	last := item{}
	for it := range n.all(nil) {
		if count > 0 && compareKey(last, it.key) >= 0 {
			t.Fatal("items do not ascend")
		}
		if want[it.key] != it.seq {
			t.Fatalf("got seq %d, want %d", it.seq, want[it.key])
		}
		sum.add(it.digest())
		count++
		last = it
	}
	if count != len(want) || n.fingerprint(nil) != newFingerprint(count, sum) {
		t.Fatalf("%d items, want %d; fingerprint valid: %v", count, len(want), n.fingerprint(nil) == newFingerprint(count, sum))
	}
	for _, at := range [][]byte{{0}, {7, 3}, {15, 15, 15}, {1, 2, 3, 4, 5}} {
		var part total
		in := 0
		for key, seq := range want {
			if begins(&key, at) {
				part.add(item{key, seq}.digest())
				in++
			}
		}
		if n.fingerprint(at) != newFingerprint(in, part) {
			t.Fatalf("the fingerprint at %x is wrong", at)
		}
	}
}

// TestSetAgainstAMap makes random changes to a set and a map, some keys with a long common beginning, and takes views in between.
func TestSetAgainstAMap(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	var s Set
	want := map[[32]byte]uint64{}
	var view *tree
	var seen map[[32]byte]uint64
	for i := range 30_000 {
		it := filler(rnd.IntN(3000))
		if i%5 == 0 {
			copy(it.key[:20], "a common beginning..")
		}
		it.seq = rnd.Uint64N(4)
		drop := rnd.IntN(10) < 3 || i > 22_000 && rnd.IntN(10) < 8
		if drop {
			s.Delete(it.key)
			delete(want, it.key)
		} else {
			s.Put(it.key, it.seq)
			want[it.key] = it.seq
		}
		if i%7000 == 0 {
			view, seen = s.view(), maps.Clone(want)
		}
		if i%3000 == 0 {
			check(t, s.view(), want)
			check(t, view, seen) // later changes do not affect a view
		}
	}
	for key := range want {
		s.Delete(key)
	}
	if s.Len() != 0 || s.root != nil || s.view().fingerprint(nil) != emptyFingerprint {
		t.Errorf("an emptied set has %d items", s.Len())
	}
}

func TestEqualSetsHaveEqualFingerprints(t *testing.T) {
	t.Parallel()
	var a, b Set
	order := rand.New(rand.NewPCG(3, 4)).Perm(5000)
	for i := range 5000 {
		it, other := filler(i), filler(order[i])
		a.Put(it.key, it.seq)
		b.Put(other.key, 9)
		b.Put(other.key, other.seq)
	}
	if a.view().fingerprint(nil) != b.view().fingerprint(nil) || a.Len() != 5000 {
		t.Error("the fingerprint depends on the order of changes")
	}
	it := filler(17)
	b.Put(it.key, it.seq+1)
	if a.view().fingerprint(nil) == b.view().fingerprint(nil) {
		t.Error("the fingerprint does not depend on seq")
	}
}

func TestTotals(t *testing.T) {
	t.Parallel()
	max := ^uint64(0)
	sum := total{max, max, max, max}
	sum.add(total{0, 0, 0, 1})
	if sum != (total{}) {
		t.Errorf("got %x, want it to wrap", sum)
	}
	sum.sub(total{0, 0, 0, 1})
	if sum != (total{max, max, max, max}) {
		t.Errorf("got %x, want it to wrap back", sum)
	}
}

// TestMemoryOfASet also measures the size in the documentation.
func TestMemoryOfASet(t *testing.T) {
	for _, n := range []int{20_000, 100_000} {
		before := liveheap.Bytes()
		s := new(Set)
		for i := range n {
			it := filler(i)
			s.Put(it.key, it.seq)
		}
		each := (float64(liveheap.Bytes()) - float64(before)) / float64(n)
		t.Logf("%d items: %.0f bytes each", n, each)
		if each > 100 {
			t.Errorf("%d items take %.0f bytes each", n, each)
		}
		runtime.KeepAlive(s)
	}
}

func BenchmarkPut(b *testing.B) {
	for _, n := range []int{1_000, 100_000, 1_000_000} {
		for _, viewed := range []bool{false, true} {
			b.Run(fmt.Sprintf("of=%d/viewed=%v", n, viewed), func(b *testing.B) {
				var s Set
				keys := make([]item, n)
				for i := range n {
					keys[i] = filler(i)
					s.Put(keys[i].key, 1)
				}
				rnd := rand.New(rand.NewPCG(5, 6))
				b.ReportAllocs()
				for seq := uint64(2); b.Loop(); seq++ {
					if viewed { // the worst case: a session begins before each change
						s.view()
					}
					s.Put(keys[rnd.IntN(n)].key, seq)
				}
			})
		}
	}
}

func TestItemsOfARange(t *testing.T) {
	t.Parallel()
	var s Set
	for i := range 200 {
		it := filler(i)
		s.Put(it.key, it.seq)
	}
	var all []item
	for i := range byte(16) {
		all = slices.AppendSeq(all, s.view().all([]byte{i}))
	}
	if !slices.Equal(all, slices.Collect(s.view().all(nil))) {
		t.Error("the parts are not the whole")
	}
	for it := range s.view().all(nil) {
		if got, ok := s.view().get(it.key); !ok || got != it {
			t.Error("an item is not found by its key")
		}
		break // the loop may end early
	}
}
