// Package cbor encodes and decodes deterministic CBOR (RFC 8949 §4.2.1). It knows nothing of what the bytes mean.
package cbor

import (
	"fmt"

	"github.com/fxamacker/cbor/v2"
)

// Bounds of what [Unmarshal] reads. The caller bounds the bytes before it calls.
const (
	MaxDepth = 16      // nested arrays and maps
	MaxItems = 1 << 16 // elements of an array
	MaxPairs = 1 << 12 // pairs of a map
)

// encMode and decMode never change after they are made; both are safe for concurrent use.
var (
	encMode = must(deterministic().EncMode())
	decMode = must(strict(cbor.ExtraDecErrorUnknownField).DecMode())
	anyMode = must(strict(cbor.ExtraDecErrorNone).DecMode())
)

// deterministic writes a nil slice or map as an empty one, so that "nothing" has one encoding.
func deterministic() cbor.EncOptions {
	o := cbor.CoreDetEncOptions()
	o.NilContainers = cbor.NilContainerAsEmpty
	return o
}

func strict(extra cbor.ExtraDecErrorCond) cbor.DecOptions {
	return cbor.DecOptions{
		DupMapKey:         cbor.DupMapKeyEnforcedAPF,
		MaxNestedLevels:   MaxDepth,
		MaxArrayElements:  MaxItems,
		MaxMapPairs:       MaxPairs,
		IndefLength:       cbor.IndefLengthForbidden,
		TagsMd:            cbor.TagsForbidden,
		ExtraReturnErrors: extra,
		FieldNameMatching: cbor.FieldNameMatchingCaseSensitive,
		NaN:               cbor.NaNDecodeForbidden,
		Inf:               cbor.InfDecodeForbidden,
	}
}

// Options are literals of this file: an error is a mistake in it.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Marshal returns the core deterministic encoding of v: shortest lengths, definite lengths, sorted keys. A nil slice
// or map is written as an empty one. Struct fields take the tags `cbor:"1,keyasint,omitempty"` and, on an embedded "_
// struct{}", `cbor:",toarray"`.
func Marshal(v any) ([]byte, error) {
	b, err := encMode.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode CBOR: %w", err)
	}
	return b, nil
}

// Unmarshal decodes b, exactly one value, into what v points to. Refused are: bytes after the value, duplicate keys,
// keys that the struct has no field for, indefinite lengths, tags, invalid UTF-8, NaN and infinities, and what passes
// the bounds. It is not a check of the deterministic form: encode again and compare where that matters. v keeps no
// reference to b.
func Unmarshal(b []byte, v any) error {
	if err := decMode.Unmarshal(b, v); err != nil {
		return fmt.Errorf("decode CBOR: %w", err)
	}
	return nil
}

// Peek is [Unmarshal] that passes over keys that the struct has no field for: to read a version before anything else.
func Peek(b []byte, v any) error {
	if err := anyMode.Unmarshal(b, v); err != nil {
		return fmt.Errorf("decode CBOR: %w", err)
	}
	return nil
}
