package embedding

import (
	"errors"
	"fmt"
	"math"
)

const maxDims = 4096

// A Vector is the direction of a text: a byte for each dimension is exact enough to rank by. It is read-only.
type Vector struct {
	dims []int8
	per  float32 // 1 / length
}

// newVector returns the direction of v; an error if it has none.
func newVector(v []float32) (*Vector, error) {
	if len(v) == 0 || len(v) > maxDims {
		return nil, fmt.Errorf("a vector of %d dimensions, 1 to %d are allowed", len(v), maxDims)
	}
	largest := 0.0
	for _, x := range v {
		largest = max(largest, math.Abs(float64(x)))
	}
	if !(largest > 0 && largest <= math.MaxFloat32) {
		return nil, errors.New("a vector without a direction")
	}
	dims := make([]int8, len(v))
	for i, x := range v {
		dims[i] = int8(math.Round(127 * float64(x) / largest))
	}
	return direction(dims), nil
}

// direction returns the vector of dims, which are not all zero.
func direction(dims []int8) *Vector {
	sum := 0.0
	for _, n := range dims {
		sum += float64(n) * float64(n)
	}
	return &Vector{dims, float32(1 / math.Sqrt(sum))}
}

// Cosine returns how alike two directions are, 0 to 1; what is opposite or of another length is not.
func (v *Vector) Cosine(o *Vector) float64 {
	if len(v.dims) != len(o.dims) {
		return 0
	}
	var sum int32 // 4096 × 127² fits
	b := o.dims[:len(v.dims)]
	for i, x := range v.dims {
		sum += int32(x) * int32(b[i])
	}
	return min(max(float64(sum)*float64(v.per)*float64(o.per), 0), 1)
}
