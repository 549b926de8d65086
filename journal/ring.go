package journal

import "sort"

// A ring is a queue that grows up to a limit, and then replaces its oldest elements.
type ring[T any] struct {
	elements []T
	first, n int
}

// push appends an element. The caller has popped one if there are most elements.
func (r *ring[T]) push(v T, most int) {
	if r.n == len(r.elements) {
		bigger := make([]T, min(max(64, 2*len(r.elements)), most))
		for i := range r.n {
			bigger[i] = *r.at(i)
		}
		r.elements, r.first = bigger, 0
	}
	r.n++
	*r.at(r.n - 1) = v
}

// pop removes and returns the oldest element.
func (r *ring[T]) pop() T {
	var zero T
	v := *r.at(0)
	*r.at(0) = zero
	r.first, r.n = (r.first+1)%len(r.elements), r.n-1
	return v
}

// at returns the element i, of which 0 is the oldest.
func (r *ring[T]) at(i int) *T { return &r.elements[(r.first+i)%len(r.elements)] }

// search returns the index of the first element for which f, which is false and then true, is true.
func (r *ring[T]) search(f func(*T) bool) int {
	return sort.Search(r.n, func(i int) bool { return f(r.at(i)) })
}
