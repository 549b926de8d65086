package stream

import (
	"math/bits"
	"sync"
)

// A buffer pool has buffers that nobody uses, by size: those of class i have from 2^(i+14) to 2^(i+15)-1 bytes. What is smaller
// or larger is not kept: to make and to forget it costs less, or comes seldom.
type bufferPool [7]sync.Pool

// buffers are what frames are read into and written from.
var buffers bufferPool

// class returns the class of a buffer of n bytes.
func (s *bufferPool) class(n int) (i int, ok bool) {
	i = bits.Len(uint(n)) - 15
	return i, i >= 0 && i < len(s)
}

// get returns n bytes of any content.
func (s *bufferPool) get(n int) []byte {
	if i, ok := s.class(n); ok {
		if p, _ := s[i].Get().(*[]byte); p != nil && cap(*p) >= n {
			return (*p)[:n]
		}
	}
	return make([]byte, n)
}

// put takes b back. Nobody may use it any more.
func (s *bufferPool) put(b []byte) {
	if i, ok := s.class(cap(b)); ok {
		s[i].Put(&b)
	}
}
