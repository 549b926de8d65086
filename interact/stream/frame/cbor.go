package frame

import (
	"cmp"
	"math"
	"unicode/utf8"
)

// The part of CBOR that the maps of this protocol use (RFC 8949 §3). It is hand-written: each call encodes and decodes two maps.
const (
	cborUint  = 0
	cborNeg   = 1
	cborBytes = 2
	cborText  = 3
	cborArray = 4
	cborMap   = 5
	cborTrue  = 0xf5
)

var errCBOR = Errorf("a malformed map")

// appendHead writes the head of an item in its shortest form (RFC 8949 §4.2.1).
func appendHead(dst []byte, major byte, v uint64) []byte {
	major <<= 5
	switch {
	case v < 24:
		return append(dst, major|byte(v))
	case v <= math.MaxUint8:
		return append(dst, major|24, byte(v))
	case v <= math.MaxUint16:
		return append(dst, major|25, byte(v>>8), byte(v))
	case v <= math.MaxUint32:
		return append(dst, major|26, byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
	default:
		return append(dst, major|27, byte(v>>56), byte(v>>48), byte(v>>40), byte(v>>32), byte(v>>24), byte(v>>16),
			byte(v>>8), byte(v))
	}
}

func appendText(dst []byte, s string) []byte {
	return append(appendHead(dst, cborText, uint64(len(s))), s...)
}

// A mapWriter appends a map of less than 24 members whose keys are written in rising order.
type mapWriter struct {
	b     []byte
	start int  // of the map's head, which counts the members
	bad   bool // a text is not valid
}

func openMap(dst []byte) mapWriter { return mapWriter{b: append(dst, cborMap<<5), start: len(dst)} }

func (w *mapWriter) key(k byte) {
	w.b[w.start]++
	w.b = append(w.b, k)
}

func (w *mapWriter) uint(k byte, v uint64) {
	if v != 0 {
		w.key(k)
		w.b = appendHead(w.b, cborUint, v)
	}
}

func (w *mapWriter) int(k byte, v int64) {
	w.key(k)
	if v < 0 {
		w.b = appendHead(w.b, cborNeg, uint64(^v))
	} else {
		w.b = appendHead(w.b, cborUint, uint64(v))
	}
}

func (w *mapWriter) text(k byte, s string) {
	if s != "" {
		w.key(k)
		w.b = appendText(w.b, s)
	}
}

func (w *mapWriter) bytes(k byte, p []byte) {
	if len(p) != 0 {
		w.key(k)
		w.b = append(appendHead(w.b, cborBytes, uint64(len(p))), p...)
	}
}

func (w *mapWriter) yes(k byte, v bool) {
	if v {
		w.key(k)
		w.b = append(w.b, cborTrue)
	}
}

// A span is the position of a text in the bytes that are read.
type span struct{ from, to int }

// A mapReader reads the output of a [mapWriter] and rejects everything else: it requires members in rising order of their keys,
// shortest heads, values that are not empty, and no bytes after the end. After an error every method returns zero.
type mapReader struct {
	b    []byte
	i    int
	left int // members to come
	last int // key
	err  error
}

func readMap(b []byte) mapReader {
	r := mapReader{b: b, last: -1}
	r.left = int(r.head(cborMap, 23))
	return r
}

// next returns the next key; ok is false at the end of the map or after an error.
func (r *mapReader) next() (key byte, ok bool) {
	if r.err != nil || r.left == 0 {
		if r.i != len(r.b) {
			r.fail()
		}
		return 0, false
	}
	r.left--
	k := int(r.head(cborUint, 23))
	if k <= r.last {
		r.fail()
	}
	r.last = k
	return byte(k), r.err == nil
}

func (r *mapReader) fail() {
	r.err = cmp.Or(r.err, errCBOR)
}

// head reads the head of an item of the given major type whose value is at most limit.
func (r *mapReader) head(major byte, limit uint64) uint64 {
	if r.i >= len(r.b) || r.b[r.i]>>5 != major {
		r.fail()
		return 0
	}
	v := uint64(r.b[r.i] & 31)
	if r.i++; v > 27 {
		r.fail()
	} else if v >= 24 {
		v = r.big(1 << (v - 24))
	}
	if v > limit {
		r.fail()
	}
	if r.err != nil {
		return 0
	}
	return v
}

// big reads a value of n bytes, which must not fit fewer.
func (r *mapReader) big(n int) (v uint64) {
	if len(r.b)-r.i < n {
		r.fail()
		return 0
	}
	for range n {
		v = v<<8 | uint64(r.b[r.i])
		r.i++
	}
	if n == 1 && v < 24 || n > 1 && v < 1<<(4*n) {
		r.fail()
	}
	return v
}

// uint reads a value from 1 to limit.
func (r *mapReader) uint(limit uint64) uint64 {
	v := r.head(cborUint, limit)
	if v == 0 {
		r.fail()
	}
	return v
}

func (r *mapReader) int() int64 {
	if r.i < len(r.b) && r.b[r.i]>>5 == cborNeg {
		return ^int64(r.head(cborNeg, math.MaxInt64))
	}
	return int64(r.head(cborUint, math.MaxInt64))
}

// skip skips one item that is nested at most depth deep: a number, text, bytes, true, false, null, or arrays and maps of such.
func (r *mapReader) skip(depth int) {
	if r.i >= len(r.b) || depth == 0 || r.err != nil {
		r.fail()
		return
	}
	switch major := r.b[r.i] >> 5; major {
	case cborUint, cborNeg:
		r.head(major, math.MaxUint64)
	case cborBytes, cborText:
		r.run(major, len(r.b))
	case cborArray, cborMap:
		n := r.head(major, uint64(len(r.b))) // each item takes a byte
		if major == cborMap {
			n *= 2
		}
		for ; n > 0 && r.err == nil; n-- {
			r.skip(depth - 1)
		}
	default:
		if v := r.b[r.i]; v < 0xf4 || v > 0xf6 {
			r.fail()
		}
		r.i++
	}
}

// text reads a text of 1 to limit bytes.
func (r *mapReader) text(limit int) span {
	s := r.anyText(limit)
	if s.from == s.to {
		r.fail()
	}
	return s
}

// anyText reads a text of 0 to limit bytes.
func (r *mapReader) anyText(limit int) span {
	s := r.run(cborText, limit)
	if !utf8.Valid(r.b[s.from:s.to]) {
		r.fail()
	}
	return s
}

// bytes reads a byte string of 1 to limit bytes. The result is a part of r.b.
func (r *mapReader) bytes(limit int) []byte {
	s := r.run(cborBytes, limit)
	if s.from == s.to {
		r.fail()
	}
	return r.b[s.from:s.to:s.to]
}

func (r *mapReader) run(major byte, limit int) span {
	n := int(r.head(major, uint64(limit)))
	if n > len(r.b)-r.i {
		r.fail()
		n = 0
	}
	s := span{r.i, r.i + n}
	r.i += n
	return s
}

func (r *mapReader) yes() bool {
	if r.i >= len(r.b) || r.b[r.i] != cborTrue {
		r.fail()
		return false
	}
	r.i++
	return true
}

func (r *mapReader) string(s span) string { return string(r.b[s.from:s.to]) }
