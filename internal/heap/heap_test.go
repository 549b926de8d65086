package heap

import (
	"math/rand/v2"
	"slices"
	"testing"
)

type number struct{ n, at int }

func (e *number) Before(o *number) bool { return e.n < o.n }
func (e *number) Position() *int        { return &e.at }

// After every change the first element is the smallest, and each element knows its index.
func TestHeap(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	var h Heap[*number]
	var all []*number
	for step := range 2000 {
		switch i := r.IntN(max(len(all), 1)); {
		case len(all) < 5 || r.IntN(2) == 0 && len(all) < 100:
			e := &number{n: r.IntN(50)}
			h.Add(e)
			all = append(all, e)
		case r.IntN(2) == 0:
			h.Remove(all[i])
			all = slices.Delete(all, i, i+1)
		default:
			all[i].n = r.IntN(50)
			h.Fix(all[i])
		}
		if len(h) != len(all) {
			t.Fatalf("step %d: %d elements, want %d", step, len(h), len(all))
		}
		least := slices.MinFunc(all, func(a, b *number) int { return a.n - b.n })
		if h[0].n != least.n {
			t.Fatalf("step %d: the first is %d, want %d", step, h[0].n, least.n)
		}
		small := 0
		for i, e := range h {
			if e.at != i {
				t.Fatalf("step %d: element %d has the position %d", step, i, e.at)
			}
			if e.n < 20 {
				small++
			}
		}
		if front := slices.Collect(h.While(func(e *number) bool { return e.n < 20 })); len(front) != small {
			t.Fatalf("step %d: %d elements below 20, want %d", step, len(front), small)
		}
	}
}
