package cbor

import (
	"bytes"
	"testing"

	"github.com/ipld/go-ipld-prime"
	"github.com/ipld/go-ipld-prime/codec/dagcbor"
	"github.com/ipld/go-ipld-prime/node/basicnode"
)

// FuzzDAG compares with the codec of IPLD: what UnmarshalDAG accepts, IPLD reads and writes as the same bytes.
func FuzzDAG(f *testing.F) {
	for _, v := range []any{nil, true, 24, -25, 1.5, "ü", []byte{1}, Link("\x00\x01\x71\x12\x01\xaa"), []any{1, "a"}, map[string]any{"b": 1, "aa": []any{}, "c": nil}} {
		b, err := MarshalDAG(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := UnmarshalDAG(b)
		if err != nil {
			return
		}
		if again, err := MarshalDAG(v); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("encoded again as %x, %v", again, err)
		}
		if hasLinks(v) { // the codec of IPLD also reads the CIDs
			return
		}
		n, err := ipld.DecodeUsingPrototype(b, dagcbor.Decode, basicnode.Prototype.Any)
		if err != nil {
			t.Fatalf("IPLD does not read %x: %v", b, err)
		}
		if again, err := ipld.Encode(n, dagcbor.Encode); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("IPLD writes %x as %x, %v", b, again, err)
		}
	})
}

// hasLinks reports whether v has links.
func hasLinks(v any) bool {
	switch v := v.(type) {
	case Link:
		return true
	case []any:
		for _, e := range v {
			if hasLinks(e) {
				return true
			}
		}
	case map[string]any:
		for _, e := range v {
			if hasLinks(e) {
				return true
			}
		}
	}
	return false
}
