package jcs

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	oracle "github.com/gowebpki/jcs"
	"pgregory.net/rapid"
)

// RFC 8785 Appendix B: numbers by the bits of their binary64.
func TestNumbers(t *testing.T) {
	t.Parallel()
	for bits, want := range map[uint64]string{
		0x0000000000000000: "0",
		0x8000000000000000: "0",
		0x0000000000000001: "5e-324",
		0x8000000000000001: "-5e-324",
		0x7fefffffffffffff: "1.7976931348623157e+308",
		0xffefffffffffffff: "-1.7976931348623157e+308",
		0x4340000000000000: "9007199254740992",
		0xc340000000000000: "-9007199254740992",
		0x4430000000000000: "295147905179352830000",
		0x44b52d02c7e14af5: "9.999999999999997e+22",
		0x44b52d02c7e14af6: "1e+23",
		0x44b52d02c7e14af7: "1.0000000000000001e+23",
		0x444b1ae4d6e2ef4e: "999999999999999700000",
		0x444b1ae4d6e2ef4f: "999999999999999900000",
		0x444b1ae4d6e2ef50: "1e+21",
		0x3eb0c6f7a0b5ed8c: "9.999999999999997e-7",
		0x3eb0c6f7a0b5ed8d: "0.000001",
		0x41b3de4355555553: "333333333.3333332",
		0x41b3de4355555554: "333333333.33333325",
		0x41b3de4355555555: "333333333.3333333",
		0x41b3de4355555556: "333333333.3333334",
		0x41b3de4355555557: "333333333.33333343",
		0xbecbf647612f3696: "-0.0000033333333333333333",
		0x43143ff3c1cb0959: "1424953923781206.2",
	} {
		got, err := Append(nil, math.Float64frombits(bits))
		if err != nil || string(got) != want {
			t.Errorf("%016x: %s, %v; want %s", bits, got, err, want)
		}
	}
	for f, want := range map[float64]string{
		1: "1", 1e20: "100000000000000000000", 1e21: "1e+21", 1e-6: "0.000001", 1e-7: "1e-7", 1.5e-9: "1.5e-9", 1e-10: "1e-10",
		-1e100: "-1e+100", 4.5: "4.5", 2e-3: "0.002", 1 << 53: "9007199254740992", -123456789: "-123456789",
	} {
		if got, err := Append(nil, f); err != nil || string(got) != want {
			t.Errorf("%v: %s, %v; want %s", f, got, err, want)
		}
	}
}

// RFC 8785 §3.2.2: the example of literals, numbers and strings, and its sorted form of §3.2.3.
func TestSampleDocument(t *testing.T) {
	t.Parallel()
	in := `{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],
	  "string":"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}`
	want := `{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],` +
		`"string":"€$\u000f\nA'B\"\\\\\"/"}`
	if got := canonical(t, in); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// RFC 8785 §3.2.3: names sort by UTF-16 code units; the smiley goes before U+FB33.
func TestSortOfNames(t *testing.T) {
	t.Parallel()
	in := `{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One",
	  "\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}`
	want := `{"\r":"Carriage Return","1":"One","` + "\u0080" + `":"Control","ö":"Latin Small Letter O With Diaeresis",` +
		`"€":"Euro Sign","😀":"Emoji: Grinning Face","` + "\ufb33" + `":"Hebrew Letter Dalet With Dagesh"}`
	if got := canonical(t, in); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestNamesCompareAsUTF16(t *testing.T) {
	t.Parallel()
	name := rapid.StringOf(rapid.RuneFrom([]rune("a\u00e9\u0800\ud7ff\ue000\ufb33\uffff\U00010000\U0001f602\U0010ffff")))
	rapid.Check(t, func(t *rapid.T) {
		a, b := name.Draw(t, "a"), name.Draw(t, "b")
		want := slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
		if got := compareNames(a, b); sign(got) != want {
			t.Fatalf("%+q and %+q: %d, want %d", a, b, got, want)
		}
	})
}

func sign(n int) int { return min(1, max(-1, n)) }

func TestEscapes(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"\x00\x01\x1f":    `"\u0000\u0001\u001f"`,
		"\b\t\n\f\r":      `"\b\t\n\f\r"`,
		"\v":              `"\u000b"`,
		`"\/`:             `"\"\\/"`,
		"<>&'\u2028\x7f":  "\"<>&'\u2028\x7f\"",
		"e\u0301 \u00e9":  "\"e\u0301 \u00e9\"", // no normalization
		"😂\ufeff\uffff":   "\"😂\ufeff\uffff\"",
		"":                `""`,
		"plain":           `"plain"`,
		"\nfirst, last\n": `"\nfirst, last\n"`,
	} {
		if got, err := Append(nil, in); err != nil || string(got) != want {
			t.Errorf("%q: %s, %v; want %s", in, got, err, want)
		}
	}
}

func TestAppendRefuses(t *testing.T) {
	t.Parallel()
	deep := any(1.0)
	for range maxDepth + 1 {
		deep = []any{deep}
	}
	loop := map[string]any{}
	loop["again"] = loop
	for name, v := range map[string]any{
		"int":                 1,
		"json.Number":         json.Number("1"),
		"struct":              struct{}{},
		"slice of strings":    []string{"a"},
		"map of strings":      map[string]string{"a": "b"},
		"int in depth":        []any{map[string]any{"a": 1}},
		"NaN":                 math.NaN(),
		"infinity":            math.Inf(1),
		"minus infinity":      math.Inf(-1),
		"bad UTF-8":           "a\xff",
		"bad UTF-8 in a name": map[string]any{"\xff": 1.0},
		"surrogate":           "\xed\xa0\x80",
		"too deep":            deep,
		"a map in itself":     loop,
	} {
		got, err := Append([]byte("before"), v)
		if err == nil || string(got) != "before" {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}

func TestAppendKeepsThePrefix(t *testing.T) {
	t.Parallel()
	got, err := Append([]byte("x="), []any{map[string]any{"b": 1.0, "a": nil}})
	if err != nil || string(got) != `x=[{"a":null,"b":1}]` {
		t.Errorf("%s, %v", got, err)
	}
}

func TestAppendAllocatesOnce(t *testing.T) {
	v, err := Decode(agentTD(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	dst := make([]byte, 0, 8<<10)
	if n := testing.AllocsPerRun(50, func() { _, _ = Append(dst, v) }); n > 1 {
		t.Errorf("%v allocations, want the stack of members at most", n)
	}
}

// anyJSON draws values of every kind, nested up to four levels.
func anyJSON(depth int) *rapid.Generator[any] {
	leaves := []*rapid.Generator[any]{
		rapid.Just[any](nil),
		rapid.Bool().AsAny(),
		rapid.String().AsAny(),
		rapid.Float64().AsAny(),
		rapid.Map(rapid.Int64Range(-1<<53, 1<<53), func(n int64) any { return float64(n) }),
	}
	if depth == 0 {
		return rapid.OneOf(leaves...)
	}
	inner := anyJSON(depth - 1)
	return rapid.OneOf(append(leaves,
		rapid.Map(rapid.SliceOfN(inner, 0, 5), func(a []any) any { return a }),
		rapid.Map(rapid.MapOfN(rapid.String(), inner, 0, 6), func(m map[string]any) any { return m }),
	)...)
}

// writesLongInteger reports whether the canonical form of v holds an integer of 2^53 or more. ECMAScript fills such a
// number up with zeros (2^55 is 36028797018963970), and the decoder refuses digits that are not those of the value.
func writesLongInteger(v any) bool {
	switch v := v.(type) {
	case float64:
		return math.Abs(v) >= 1<<53 && math.Abs(v) < 1e21
	case []any:
		return slices.ContainsFunc(v, writesLongInteger)
	case map[string]any:
		return slices.ContainsFunc(slices.Collect(maps.Values(v)), writesLongInteger)
	}
	return false
}

// An independent implementation gives the same bytes for the same document.
func TestOracle(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := anyJSON(4).Filter(func(v any) bool { return !writesLongInteger(v) }).Draw(t, "value")
		raw, err := json.Marshal(map[string]any{"v": v})
		if err != nil {
			t.Fatal(err)
		}
		want, err := oracle.Transform(raw)
		if err != nil {
			t.Fatal(err)
		}
		back, err := Decode(raw, len(raw))
		if err != nil {
			t.Fatalf("Decode(%s): %v", raw, err)
		}
		if got, err := Append(nil, back); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("got  %s, %v\nwant %s", got, err, want)
		}
	})
}

func TestAppendedValuesDecode(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := anyJSON(4).Filter(func(v any) bool { return !writesLongInteger(v) }).Draw(t, "value")
		text, err := Append(nil, v)
		if err != nil {
			t.Fatal(err)
		}
		back, err := Decode(text, len(text))
		if err != nil {
			t.Fatalf("Decode(%s): %v", text, err)
		}
		again, err := Append(nil, back)
		if err != nil || !bytes.Equal(again, text) {
			t.Fatalf("%s became %s, %v", text, again, err)
		}
	})
}

func canonical(t *testing.T, in string) string {
	t.Helper()
	v, err := Decode([]byte(in), len(in))
	if err != nil {
		t.Fatal(err)
	}
	out, err := Append(nil, v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// What the decoder accepts, encoding/json accepts too and understands in the same way; the canonical form is a fixed
// point.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"a":[1,2.5e-7,null,true],"\u00e9":"\ud83d\ude02"}`, `[1e400]`, `{"a":1,"a":2}`, `"\ud800"`, "\ufeff1", "9007199254740993",
		strings.Repeat("[", 70), `{"😂":1,"` + "\ufb33" + `":2}`, string(agentTD()),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := Decode(b, 1<<20)
		if seen, bad := View(b); (bad == nil) != (err == nil) && len(b) <= 1<<20 || err == nil && !reflect.DeepEqual(seen, v) {
			t.Fatalf("Decode: %#v, %v\nView: %#v, %v", v, err, seen, bad)
		}
		if err != nil {
			var e *SyntaxError
			if !errors.As(err, &e) && !errors.Is(err, errTooLarge) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		var std any
		if err := json.Unmarshal(b, &std); err != nil || !reflect.DeepEqual(v, std) {
			t.Fatalf("encoding/json: %#v, %v\nDecode: %#v", std, err, v)
		}
		checkMembers(t, b, v)
		text, err := Append(nil, v)
		if err != nil {
			t.Fatal(err)
		}
		if writesLongInteger(v) {
			return
		}
		back, err := Decode(text, len(text))
		if err != nil {
			t.Fatalf("Decode(%s): %v", text, err)
		}
		if again, err := Append(nil, back); err != nil || !bytes.Equal(again, text) {
			t.Fatalf("%s became %s, %v", text, again, err)
		}
	})
}

func checkMembers(t *testing.T, b []byte, v any) {
	t.Helper()
	m, isObject := v.(map[string]any)
	ms, err := Members(b)
	if (err == nil) != isObject || len(ms) != len(m) {
		t.Fatalf("Members = %q, %v of %#v", ms, err, v)
	}
	for _, member := range ms {
		one, err := Decode(member.Raw, len(member.Raw))
		if err != nil || !reflect.DeepEqual(one, m[member.Name]) {
			t.Fatalf("member %q: %#v, %v; want %#v", member.Name, one, err, m[member.Name])
		}
	}
}
