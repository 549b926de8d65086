package cbor_test

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/internal/cbor"
)

type pair struct {
	_    struct{} `cbor:",toarray"`
	Name string
	Nums []uint64
}

type note struct {
	Version uint64 `cbor:"0,keyasint"`
	Text    string `cbor:"1,keyasint,omitempty"`
	Data    []byte `cbor:"2,keyasint,omitempty"`
	Pairs   []pair `cbor:"3,keyasint,omitempty"`
	Far     int    `cbor:"24,keyasint,omitempty"`
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestMarshal(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		in   any
		want string
	}{
		{"shortest integers", []uint64{0, 23, 24, 255, 256, 1 << 32}, "86 00 17 18 18 18ff 190100 1b0000000100000000"},
		{"map keys sorted by their bytes", map[string]int{"b": 1, "aa": 2, "a": 3}, "a3 6161 03 6162 01 626161 02"},
		{"struct with integer keys", note{Version: 1, Text: "é", Far: -1}, "a3 00 01 01 62c3a9 1818 20"},
		{"array struct", note{Pairs: []pair{{Name: "n", Nums: []uint64{7}}}}, "a2 00 00 03 81 82 616e 81 07"},
		{"a nil slice is an empty one", []pair{{Name: "n"}}, "81 82 616e 80"},
		{"shortest float", 1.5, "f93e00"},
		{"bytes", []byte{1, 2}, "42 0102"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := cbor.Marshal(tt.in)
			if err != nil {
				t.Fatal(err)
			}
			if want := unhex(t, tt.want); !bytes.Equal(got, want) {
				t.Errorf("got %x, want %x", got, want)
			}
		})
	}
}

func TestMarshalRefuses(t *testing.T) {
	t.Parallel()
	if _, err := cbor.Marshal(make(chan int)); err == nil {
		t.Error("a channel was encoded")
	}
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	in := note{Version: 3, Text: "hello", Data: []byte("raw"), Pairs: []pair{{Name: "x", Nums: []uint64{1, 2}}}, Far: 9}
	b, err := cbor.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out note
	if err := cbor.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	again, err := cbor.Marshal(out)
	if err != nil || !bytes.Equal(again, b) {
		t.Errorf("second encoding %x (%v), want %x", again, err, b)
	}
}

func TestUnmarshalKeepsNoReference(t *testing.T) {
	t.Parallel()
	b := unhex(t, "a2 00 01 02 43 010203")
	var n note
	if err := cbor.Unmarshal(b, &n); err != nil {
		t.Fatal(err)
	}
	clear(b)
	if !bytes.Equal(n.Data, []byte{1, 2, 3}) {
		t.Errorf("data changed with the input: %x", n.Data)
	}
}

func TestUnmarshalRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, in string }{
		{"nothing", ""},
		{"cut off", "a1 00"},
		{"bytes after the value", "a1 00 01 00"},
		{"a duplicate key", "a2 00 01 00 02"},
		{"an unknown key", "a2 00 01 09 02"},
		{"an indefinite map", "bf 00 01 ff"},
		{"an indefinite string", "a2 00 01 01 7f 6161 ff"},
		{"an indefinite array", "a2 00 01 03 9f ff"},
		{"a tag", "a1 00 c1 01"},
		{"text that is not UTF-8", "a2 00 01 01 61 ff"},
		{"a number where text belongs", "a2 00 01 01 02"},
		{"text where a number belongs", "a1 00 6131"},
		{"a negative where an unsigned belongs", "a1 00 20"},
		{"an array of the wrong length", "a2 00 01 03 81 81 616e"},
		{"a length of 4 GiB", "a2 00 01 02 5affffffff"},
		{"an array that promises 2^40 elements", "a2 00 01 03 9b0000010000000000"},
		{"a map that promises 2^40 pairs", "bb0000010000000000"},
		{"an integer over 64 bits", "a1 00 c249010000000000000000"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var n note
			if err := cbor.Unmarshal(unhex(t, tt.in), &n); err == nil {
				t.Errorf("accepted as %+v", n)
			}
		})
	}
}

func TestUnmarshalRefusesFloatsThatAreNoNumber(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"f97e00", "f97c00", "fb7ff0000000000000", "fbfff0000000000000"} {
		var f float64
		if err := cbor.Unmarshal(unhex(t, in), &f); err == nil {
			t.Errorf("%s accepted as %v", in, f)
		}
	}
}

func TestDepth(t *testing.T) {
	t.Parallel()
	nested := func(n int) []byte { return append(bytes.Repeat([]byte{0x81}, n), 0x00) }
	var v any
	if err := cbor.Unmarshal(nested(cbor.MaxDepth), &v); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	if err := cbor.Unmarshal(nested(cbor.MaxDepth+1), &v); err == nil {
		t.Error("over the limit: accepted")
	}
	if err := cbor.Unmarshal(nested(100_000), &v); err == nil {
		t.Error("100,000 levels accepted")
	}
}

func TestPeekPassesOverUnknownKeys(t *testing.T) {
	t.Parallel()
	var head struct {
		Version uint64 `cbor:"0,keyasint"`
	}
	if err := cbor.Peek(unhex(t, "a3 00 07 01 6161 1903e7 f6"), &head); err != nil {
		t.Fatal(err)
	}
	if head.Version != 7 {
		t.Errorf("got version %d, want 7", head.Version)
	}
	if err := cbor.Peek(unhex(t, "a2 00 07 00 08"), &head); err == nil {
		t.Error("a duplicate key was accepted")
	}
}

func FuzzUnmarshal(f *testing.F) {
	for _, s := range []string{"a1 00 01", "a3 00 01 01 6161 02 43010203", "a2 00 00 03 81 82 616e 81 07", "bf00ff", "9f", "5affffffff"} {
		f.Add(unhex(f, s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var n note
		if cbor.Unmarshal(b, &n) != nil {
			return
		}
		one, err := cbor.Marshal(n)
		if err != nil {
			t.Fatalf("decoded and cannot be encoded: %v", err)
		}
		var again note
		if err := cbor.Unmarshal(one, &again); err != nil {
			t.Fatalf("own encoding refused: %v", err)
		}
		if two, _ := cbor.Marshal(again); !bytes.Equal(one, two) {
			t.Fatalf("encodings differ: %x and %x", one, two)
		}
	})
}
