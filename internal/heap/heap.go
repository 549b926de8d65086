// Package heap is a priority queue whose elements know their positions, so that each can be removed or moved.
package heap

import "container/heap"

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
