package node

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/directory/directorytest"
	"github.com/lmosd/lmosd/internal/liveheap"
)

// maxOwnBytes is the limit of the memory of a Thing that a node publishes, its TD of 4 kB included.
const maxOwnBytes = 20_000

// firstThings is the number of Things whose memory is not measured: with them, the buffers of the store and the pools get their full size.
const firstThings = 1000

// BenchmarkOwnMemory measures the memory of a Thing that a node without peers publishes, everything included, and fails above the limit. LMOSD_LONG=1
// adds 100,000 Things.
func BenchmarkOwnMemory(b *testing.B) {
	sizes := []int{1000, 10_000}
	if os.Getenv("LMOSD_LONG") != "" {
		sizes = append(sizes, 100_000)
	}
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				o := quiet()
				o.Dir = b.TempDir()
				node := start(b, o)
				publishAll(b, node, 0, firstThings)
				before := liveheap.Bytes()
				publishAll(b, node, firstThings, firstThings+n)
				if err := node.mesh.directory.Flush(b.Context()); err != nil {
					b.Fatal(err)
				}
				each := float64(liveheap.Bytes()-before) / float64(n)
				b.ReportMetric(each, "B/thing")
				if each > maxOwnBytes {
					b.Errorf("a Thing takes %.0f bytes, want at most %d", each, maxOwnBytes)
				}
				if err := node.stop(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// publishAll publishes the agents from first to end on all processors.
func publishAll(b *testing.B, node *running, first, end int) {
	b.Helper()
	var g errgroup.Group
	for w := range 2 * runtime.GOMAXPROCS(0) {
		g.Go(func() error {
			for i := first + w; i < end; i += 2 * runtime.GOMAXPROCS(0) {
				if _, err := node.Publish(b.Context(), directorytest.TD(i)); err != nil {
					return fmt.Errorf("agent %d: %w", i, err)
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
}
