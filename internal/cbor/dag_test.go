package cbor

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"strings"
	"testing"
)

func TestDAG(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		bytes string // hexadecimal
		want  any
	}{
		"null":              {"f6", nil},
		"true":              {"f5", true},
		"24":                {"1818", int64(24)},
		"largest integer":   {"1b7fffffffffffffff", int64(1<<63 - 1)},
		"smallest integer":  {"3b7fffffffffffffff", int64(-1 << 63)},
		"a float":           {"fb3ff0000000000000", 1.0},
		"text":              {"62c3bc", "ü"},
		"bytes":             {"420102", []byte{1, 2}},
		"a link":            {"d82a4500017112aa", Link{0, 1, 0x71, 0x12, 0xaa}},
		"a list":            {"8201f6", []any{int64(1), nil}},
		"shorter key first": {"a2617a01626161f4", map[string]any{"z": int64(1), "aa": false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, _ := hex.DecodeString(c.bytes)
			got, err := UnmarshalDAG(b)
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %#v, %v; want %#v", got, err, c.want)
			}
			if again, err := MarshalDAG(c.want); err != nil || !bytes.Equal(again, b) {
				t.Errorf("encoded as %x, %v", again, err)
			}
		})
	}
}

func TestDAGRejects(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]string{
		"nothing":                        "",
		"trailing byte":                  "f600",
		"long form of an integer":        "1800",
		"long form of a length":          "580101",
		"keys in the order of RFC 8949":  "a2626161f4617a01",
		"a key twice":                    "a2616101616102",
		"a key that is an integer":       "a10102",
		"float of 16 bits":               "f93c00",
		"float of 32 bits":               "fa3f800000",
		"NaN":                            "fb7ff8000000000000",
		"infinity":                       "fb7ff0000000000000",
		"undefined":                      "f7",
		"another simple value":           "f0",
		"indefinite list":                "9f01ff",
		"indefinite bytes":               "5f4101ff",
		"text that is not UTF-8":         "61ff",
		"integer of 2^63":                "1b8000000000000000",
		"integer below -2^63":            "3b8000000000000000",
		"bignum":                         "c249010000000000000000",
		"small bignum":                   "c24101",
		"another tag":                    "d82b4100",
		"a date":                         "c100",
		"a link that is a text":          "d82a6100",
		"a link without the zero byte":   "d82a420101",
		"an empty link":                  "d82a40",
		"the tag of links in a long way": "d9002a4500017112aa",
		"too deep":                       strings.Repeat("81", MaxDAGDepth+1) + "f6",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw, err := hex.DecodeString(b)
			if err != nil {
				t.Fatal(err)
			}
			if v, err := UnmarshalDAG(raw); err == nil {
				t.Errorf("accepted as %#v", v)
			}
		})
	}
}
