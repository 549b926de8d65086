// Package heap is a priority queue whose elements know their positions, so that each can be removed or moved.
package heap

import (
	"container/heap"
	"iter"
)

// An Element is in at most one heap.
type Element[E any] interface {
	// Before reports whether the element precedes another one.
	Before(E) bool
	// Position returns the variable in which the heap keeps the index of the element.
	Position() *int
}

// A Heap has the element that precedes all others at index 0. The zero value is empty.
type Heap[E Element[E]] []E

// Add adds e.
func (h *Heap[E]) Add(e E) { heap.Push((*items[E])(h), e) }

// Remove removes e, which is in the heap.
func (h *Heap[E]) Remove(e E) { heap.Remove((*items[E])(h), *e.Position()) }

// Fix restores the order after a change of e.
func (h *Heap[E]) Fix(e E) { heap.Fix((*items[E])(h), *e.Position()) }

// While yields, in no order, the elements of the front for which fits is true. If it is true for an element, it must be true for all that precede it. The
// loop must not change the heap. The cost is that of the yielded elements.
func (h Heap[E]) While(fits func(E) bool) iter.Seq[E] {
	return func(yield func(E) bool) { h.while(0, fits, yield) }
}

func (h Heap[E]) while(i int, fits, yield func(E) bool) bool {
	if i >= len(h) || !fits(h[i]) {
		return true
	}
	return yield(h[i]) && h.while(2*i+1, fits, yield) && h.while(2*i+2, fits, yield)
}

// items implements [heap.Interface].
type items[E Element[E]] []E

func (s items[E]) Len() int           { return len(s) }
func (s items[E]) Less(i, j int) bool { return s[i].Before(s[j]) }

func (s items[E]) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	*s[i].Position(), *s[j].Position() = i, j
}

func (s *items[E]) Push(e any) {
	*e.(E).Position() = len(*s)
	*s = append(*s, e.(E))
}

func (s *items[E]) Pop() any {
	last := len(*s) - 1
	e := (*s)[last]
	clear((*s)[last:])
	*s = (*s)[:last]
	return e
}
