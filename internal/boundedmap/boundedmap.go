// Package boundedmap stores values in maps of limited size.
package boundedmap

import "maps"

// Put sets the value of k in a map, which it creates if it is nil. If k is new and the map has most keys, Put removes the stale values
// first, and then arbitrary ones, until k fits. A nil stale means that no value is stale.
func Put[K comparable, V any](m *map[K]V, k K, v V, most int, stale func(V) bool) {
	if *m == nil {
		*m = map[K]V{}
	}
	if _, ok := (*m)[k]; !ok && len(*m) >= most {
		makeRoom(*m, most, stale)
	}
	(*m)[k] = v
}

func makeRoom[K comparable, V any](m map[K]V, most int, stale func(V) bool) {
	if stale != nil {
		maps.DeleteFunc(m, func(_ K, v V) bool { return stale(v) })
	}
	for k := range m {
		if len(m) < most {
			return
		}
		delete(m, k)
	}
}
