package stream

import (
	"testing"

	"github.com/lmosd/lmosd/interact/stream/frame"
)

// TestShelf: a buffer that was given away comes back for what fits it, and nothing else.
func TestShelf(t *testing.T) {
	t.Parallel()
	var s bufferPool
	for _, n := range []int{0, 1, 1 << 14, 1<<14 + 1, frame.MaxControl, frame.MaxControl + 1, frame.MaxChunk, frame.MaxChunk + 100, 1 << 21, 1 << 25} {
		for range 10 {
			b := s.get(n)
			if len(b) != n {
				t.Fatalf("got %d bytes, want %d", len(b), n)
			}
			s.put(b)
		}
	}
	for n, kept := range map[int]bool{0: false, 1<<14 - 1: false, 1 << 14: true, 1<<21 - 1: true, 1 << 21: false} {
		if _, ok := s.class(n); ok != kept {
			t.Errorf("%d bytes are kept: %t, want %t", n, ok, kept)
		}
	}
}
