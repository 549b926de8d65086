// Package liveheap measures the memory that tests keep.
package liveheap

import (
	"runtime"
	"runtime/metrics"
)

// Bytes collects garbage and returns the size of the reachable objects of this process, in bytes. What other goroutines allocate during the
// collection is not included, so that the result does not depend on the speed of the machine.
func Bytes() int64 {
	runtime.GC()
	runtime.GC() // the second collection empties pools
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	return int64(live[0].Value.Uint64())
}
