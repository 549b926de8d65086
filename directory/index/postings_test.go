package index

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// A list has the contents of a sorted slice after any sequence of changes, and drops its chunks when it is short.
func TestList(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 1))
	var l List
	want := map[uint32]byte{}
	check := func() {
		t.Helper()
		got := slices.Collect(l.All())
		for _, part := range l.parts() {
			for _, p := range part {
				if want[p.slot()] != p.weight() {
					t.Fatalf("slot %d has the weight %d, want %d", p.slot(), p.weight(), want[p.slot()])
				}
			}
		}
		if len(got) != len(want) || l.Len() != len(want) || !slices.IsSorted(got) {
			t.Fatalf("%d of %d slots, length %d, sorted %v", len(got), len(want), l.Len(), slices.IsSorted(got))
		}
	}
	for _, phase := range []struct{ steps, remove int }{{4000, 10}, {6000, 60}, {4000, 30}, {30_000, 95}} {
		for range phase.steps {
			slot := rng.Uint32N(5000)
			_, has := want[slot]
			if l.Has(slot) != has {
				t.Fatalf("has(%d) is not %v", slot, has)
			}
			if rng.IntN(100) < phase.remove {
				l.Remove(slot)
				delete(want, slot)
				continue
			}
			if weight := byte(rng.Uint32()); l.add(post(slot, weight)) == has {
				t.Fatalf("add(%d) is not new", slot)
			} else if !has {
				want[slot] = weight
			}
		}
		check()
	}
	for slot := range want {
		l.Remove(slot)
	}
	clear(want)
	check()
	if l.many != nil {
		t.Error("an empty list has chunks")
	}
	for slot := range uint32(3 * maxChunk) { // appended
		l.add(post(slot, 0))
		want[slot] = 0
	}
	check()
	if n := len(l.parts()); n != 3 {
		t.Errorf("%d chunks, want 3 full ones", n)
	}
	var none *List
	if none.Has(1) || none.Len() != 0 || len(none.parts()) != 0 {
		t.Error("a nil list has elements")
	}
}

func TestChunksNth(t *testing.T) {
	t.Parallel()
	var c chunks[int]
	for i := range 2000 {
		part, at := c.seek(func(v int) bool { return v < i*7%2000 })
		c.insert(part, at, i*7%2000)
	}
	for i := range 2000 {
		if v, ok := c.get(c.nth(i)); !ok || v != i {
			t.Fatalf("the %dth is %d, %v", i, v, ok)
		}
	}
	if _, ok := c.get(c.nth(2000)); ok {
		t.Error("an element after the end")
	}
}
