// Package cbor encodes and decodes deterministic CBOR (RFC 8949 §4.2.1) and DAG-CBOR (IPLD).
package cbor

import (
	"fmt"

	"github.com/fxamacker/cbor/v2"
)

// Bounds of [Unmarshal]. The caller bounds the number of bytes.
const (
	MaxDepth = 16      // nested arrays and maps
	MaxItems = 1 << 16 // elements of an array
	MaxPairs = 1 << 12 // pairs of a map
)

// encMode and decMode are immutable and safe for concurrent use.
var (
	encMode = must(deterministic().EncMode())
	decMode = must(strict(cbor.ExtraDecErrorUnknownField).DecMode())
	anyMode = must(strict(cbor.ExtraDecErrorNone).DecMode())
)

// deterministic encodes a nil slice or map like an empty one.
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

// must panics on an error: the options are literals of this file.
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

// Unmarshal decodes b, exactly one value, into the value that v points to. It rejects trailing bytes, duplicate keys, keys without
// a field in the struct, indefinite lengths, tags, invalid UTF-8, NaN and infinities, and values beyond the bounds. It does not
// check the deterministic form: encode again and compare for that. v keeps no reference to b.
func Unmarshal(b []byte, v any) error {
	if err := decMode.Unmarshal(b, v); err != nil {
		return fmt.Errorf("decode CBOR: %w", err)
	}
	return nil
}

// Peek is [Unmarshal], but ignores keys without a field in the struct, for example to read only a version.
func Peek(b []byte, v any) error {
	if err := anyMode.Unmarshal(b, v); err != nil {
		return fmt.Errorf("decode CBOR: %w", err)
	}
	return nil
}
