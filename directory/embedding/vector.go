package embedding

import (
	"errors"
	"fmt"
	"math"
)

const maxDims = 4096

// A Vector is the direction of an embedding vector. One byte per dimension is precise enough for ranking. It is read-only.
type Vector struct {
	dims []int8
	per  float32 // 1 / length
}

// newVector returns the direction of v; an error if v is zero or has too many dimensions.
func newVector(v []float32) (*Vector, error) {
	if len(v) == 0 || len(v) > maxDims {
		return nil, fmt.Errorf("expected a vector of 1 to %[2]d dimensions, got %[1]d", len(v), maxDims)
	}
	largest := 0.0
	for _, x := range v {
		largest = max(largest, math.Abs(float64(x)))
	}
	if !(largest > 0 && largest <= math.MaxFloat32) {
		return nil, errors.New("the vector has no direction")
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

// Cosine returns the similarity of two directions, 0 to 1; opposite vectors and vectors of different length have 0.
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
