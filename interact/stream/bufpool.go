package stream

import (
	"math/bits"
	"sync"
)

// A bufferPool has unused buffers by size: those of class i have 2^(i+14) to 2^(i+15)-1 bytes. Smaller buffers are cheap and larger ones
// are rare: they are not kept.
type bufferPool [7]sync.Pool

// buffers has the buffers of frames.
var buffers bufferPool

// class returns the class of a buffer of n bytes.
func (s *bufferPool) class(n int) (i int, ok bool) {
	i = bits.Len(uint(n)) - 15
	return i, i >= 0 && i < len(s)
}

// get returns a buffer of n bytes with any content.
func (s *bufferPool) get(n int) []byte {
	if i, ok := s.class(n); ok {
		if p, _ := s[i].Get().(*[]byte); p != nil && cap(*p) >= n {
			return (*p)[:n]
		}
	}
	return make([]byte, n)
}

// put returns b, which is not used any more.
func (s *bufferPool) put(b []byte) {
	if i, ok := s.class(cap(b)); ok {
		s[i].Put(&b)
	}
}
