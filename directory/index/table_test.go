package index

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
)

// A table has what a map would have after the same changes.
func TestTable(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	var x table
	terms := make([]term, 500)
	want := map[string]uint32{}
	for step := range 20_000 {
		id := uint32(rng.IntN(len(terms)))
		text := fmt.Sprint("text", id)
		if _, known := want[text]; known {
			x.remove(terms, text)
			delete(want, text)
			terms[id] = term{}
		} else {
			terms[id].text = text
			x.add(text, id)
			want[text] = id
		}
		if other := fmt.Sprint("text", rng.IntN(2*len(terms))); step%100 > 0 {
			got, ok := x.find(terms, other)
			if id, known := want[other]; known != ok || got != id {
				t.Fatalf("step %d: %s is at %d (%v), want %d (%v)", step, other, got, ok, id, known)
			}
			continue
		}
		got := map[string]uint32{}
		for id := range x.all() {
			got[terms[id].text] = id
		}
		if !maps.Equal(got, want) || x.n != len(want) {
			t.Fatalf("step %d: %d terms, counted %d, want %d", step, len(got), x.n, len(want))
		}
	}
}
