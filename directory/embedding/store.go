package embedding

import (
	"bytes"
	"crypto/sha256"

	"github.com/lmosd/lmosd/td"
)

// A Saved is the stored form of a vector. It is valid for the same text and model.
type Saved struct {
	Model string `cbor:"1,keyasint"`
	Text  []byte `cbor:"2,keyasint"` // SHA-256
	Dims  []byte `cbor:"3,keyasint"`
}

// Stores reports whether vectors are stored, which requires the name of the model.
func (r *Embeddings) Stores() bool { return r.model != "" }

// Save returns the stored form of v, the vector of a Thing.
func (r *Embeddings) Save(v *Vector, of *td.Description) *Saved {
	text := sha256.Sum256([]byte(textOf(of)))
	s := &Saved{Model: r.model, Text: text[:], Dims: make([]byte, len(v.dims))}
	for i, n := range v.dims {
		s.Dims[i] = byte(n)
	}
	return s
}

// Restore returns the stored vector of a Thing, or nil if it is that of another text or model.
func (r *Embeddings) Restore(s *Saved, of *td.Description) *Vector {
	text := sha256.Sum256([]byte(textOf(of)))
	if !r.Stores() || s.Model != r.model || !bytes.Equal(s.Text, text[:]) || len(s.Dims) > maxDims {
		return nil
	}
	dims, some := make([]int8, len(s.Dims)), false
	for i, n := range s.Dims {
		dims[i] = int8(n)
		some = some || n != 0
	}
	if !some {
		return nil
	}
	return direction(dims)
}
