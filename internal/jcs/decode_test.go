package jcs

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestDecodeAccepts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   string
		want any
	}{
		{"null", nil},
		{" \t\r\n true ", true},
		{"false", false},
		{`""`, ""},
		{`"a\"\\\/\b\f\n\r\té"`, "a\"\\/\b\f\n\r\té"},
		{`"\u00e9\u0000\uFFFF"`, "é\x00\uffff"},
		{`"\ud83d\ude02"`, "😂"},
		{`"😂` + "\u2028\x7f" + `"`, "😂\u2028\x7f"},
		{`"x` + "\ufeff" + `"`, "x\ufeff"},
		{"0", 0.0},
		{"-12", -12.0},
		{"0.5", 0.5},
		{"1e2", 100.0},
		{"1E+2", 100.0},
		{"1.25e-1", 0.125},
		{"1e-400", 0.0},
		{"1.0000000000000000000000001", 1.0},
		{"9007199254740992", float64(1 << 53)},
		{"-9007199254740991", float64(1 - 1<<53)},
		{"9007199254740994", float64(1<<53 + 2)},
		{"1152921504606846976", float64(1 << 60)},
		{"1e21", 1e21},
		{"1.7976931348623157e308", 1.7976931348623157e308},
		{"[]", []any{}},
		{"[ 1 , [ ] , {} ]", []any{1.0, []any{}, map[string]any{}}},
		{`{"a":{"a":1},"":[null]}`, map[string]any{"a": map[string]any{"a": 1.0}, "": []any{nil}}},
		{`{"\u0061":"\u0062"}`, map[string]any{"a": "b"}},
	} {
		got, err := Decode([]byte(c.in), 100)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("Decode(%s) = %#v, %v; want %#v", c.in, got, err, c.want)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, in     string
		offset       int
		line, column int
	}{
		{"duplicate name", `{"a":1,"a":2}`, 7, 1, 8},
		{"duplicate name after unescaping", `{"a":1,"\u0061":2}`, 7, 1, 8},
		{"duplicate name in depth", "{\"x\":[{\n \"é\":1, \"é\":2}]}", 17, 2, 9},
		{"duplicate empty name", `{"":1,"":1}`, 6, 1, 7},
		{"bytes that are not UTF-8", "\"a\xff\"", 2, 1, 3},
		{"overlong UTF-8", "\"\xc0\xaf\"", 1, 1, 2},
		{"surrogate in UTF-8", "\"\xed\xa0\x80\"", 1, 1, 2},
		{"bad UTF-8 in a name", "{\"\xff\":1}", 2, 1, 3},
		{"cut UTF-8", "\"\xc3", 1, 1, 2},
		{"byte order mark", "\ufeff{}", 0, 1, 1},
		{"lone high surrogate", `"\ud800"`, 1, 1, 2},
		{"lone low surrogate", `"\udc00"`, 1, 1, 2},
		{"high surrogate before a letter", `"\ud800a"`, 1, 1, 2},
		{"high surrogate before another escape", `"\ud800\n"`, 1, 1, 2},
		{"two high surrogates", `"\ud800\ud800"`, 1, 1, 2},
		{"swapped surrogates", `"\ude02\ud83d"`, 1, 1, 2},
		{"lone surrogate in a name", `{"\ud800":1}`, 2, 1, 3},
		{"trailing data", "{} x", 3, 1, 4},
		{"two values", "1 2", 2, 1, 3},
		{"trailing zero byte", "1\x00", 1, 1, 2},
		{"empty", "", 0, 1, 1},
		{"only space", " \n ", 3, 2, 2},
		{"cut object", `{"a":1`, 6, 1, 7},
		{"cut object after a comma", `{"a":1,`, 7, 1, 8},
		{"cut object after a name", `{"a"`, 4, 1, 5},
		{"cut object after a colon", `{"a":`, 5, 1, 6},
		{"cut empty object", `{`, 1, 1, 2},
		{"cut array", `[1`, 2, 1, 3},
		{"cut array after a comma", `[1,`, 3, 1, 4},
		{"cut string", `"abc`, 0, 1, 1},
		{"cut string after an escape", `"abc\n`, 0, 1, 1},
		{"cut escape", `"\`, 1, 1, 2},
		{"cut unicode escape", `"\u12"`, 1, 1, 2},
		{"cut literal", `tru`, 0, 1, 1},
		{"literal in capitals", `True`, 0, 1, 1},
		{"leading zero", "01", 0, 1, 1},
		{"leading zero behind minus", "-01", 0, 1, 1},
		{"plus", "+1", 0, 1, 1},
		{"hexadecimal", "0x1p-2", 1, 1, 2},
		{"underscore", "1_000", 1, 1, 2},
		{"NaN", "NaN", 0, 1, 1},
		{"Infinity", "Infinity", 0, 1, 1},
		{"minus Infinity", "-Infinity", 0, 1, 1},
		{"no digit before the point", ".5", 0, 1, 1},
		{"no digit after the point", "1.", 0, 1, 1},
		{"no digit in the exponent", "1e", 0, 1, 1},
		{"lone minus", "-", 0, 1, 1},
		{"trailing comma in an object", `{"a":1,}`, 6, 1, 7},
		{"trailing comma in an array", `[1, ]`, 2, 1, 3},
		{"only a comma", `[,]`, 1, 1, 2},
		{"two commas", `[1,,2]`, 3, 1, 4},
		{"no comma", `[1 2]`, 3, 1, 4},
		{"no colon", `{"a" 1}`, 5, 1, 6},
		{"name without quotes", `{a:1}`, 1, 1, 2},
		{"string in single quotes", `['a']`, 1, 1, 2},
		{"wrong bracket", `[1}`, 2, 1, 3},
		{"line comment", "// x\n1", 0, 1, 1},
		{"comment inside", `[1 /* x */]`, 3, 1, 4},
		{"line break in a string", "\"a\nb\"", 2, 1, 3},
		{"control character after an escape", "\"\\n\x01\"", 3, 1, 4},
		{"unknown escape", `"\x41"`, 1, 1, 2},
		{"capital U", `"\U0041"`, 1, 1, 2},
		{"no hexadecimal digit", `"\u00g0"`, 1, 1, 2},
		{"form feed as space", "\f1", 0, 1, 1},
		{"no-break space", "\u00a01", 0, 1, 1},
		{"number out of range", "[1e400]", 1, 1, 2},
		{"negative number out of range", "-1e400", 0, 1, 1},
		{"integer out of range", "1" + strings.Repeat("0", 400), 0, 1, 1},
		{"integer without an exact value", "9007199254740993", 0, 1, 1},
		{"negative integer without an exact value", "-9007199254740993", 0, 1, 1},
		{"long integer without an exact value", "1000000000000000000000001", 0, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v, err := Decode([]byte(c.in), 1000)
			var e *SyntaxError
			if !errors.As(err, &e) || v != nil {
				t.Fatalf("Decode(%q) = %v, %v; want a SyntaxError", c.in, v, err)
			}
			if e.Offset != c.offset || e.Line != c.line || e.Column != c.column || e.Msg == "" {
				t.Errorf("Decode(%q): offset %d, %v; want %d, line %d, column %d", c.in, e.Offset, e, c.offset, c.line, c.column)
			}
		})
	}
}

// Numbers that take strconv long are accepted up to a limit.
func TestSlowNumbers(t *testing.T) {
	t.Parallel()
	few := "[" + strings.Repeat("0e-320,5e-324,-0.0e5,1e-307,", maxTiny)
	if _, err := Decode([]byte(few+"1]"), 1<<20); err != nil {
		t.Error(err)
	}
	var syntax *SyntaxError
	if _, err := Decode([]byte(few+"9e-330]"), 1<<20); !errors.As(err, &syntax) || syntax.Offset != len(few) {
		t.Errorf("got %v, want an error at %d", err, len(few))
	}
}

func TestDepth(t *testing.T) {
	t.Parallel()
	nest := func(n int) []byte {
		return []byte(strings.Repeat(`[{"a":`, n/2) + strings.Repeat("[", n%2) + "1" + strings.Repeat("]", n%2) + strings.Repeat("}]", n/2))
	}
	for n, ok := range map[int]bool{63: true, 64: true, 65: false, 66: false, 100000: false} {
		v, err := Decode(nest(n), 1<<20)
		if (err == nil) != ok {
			t.Errorf("%d levels: %v", n, err)
		}
		if ok {
			if _, err := Append(nil, v); err != nil {
				t.Errorf("append %d levels: %v", n, err)
			}
		}
	}
	// Siblings do not add depth.
	if _, err := Decode([]byte("["+strings.Repeat("[],", 1000)+"{}]"), 1<<20); err != nil {
		t.Error(err)
	}
}

func TestLimit(t *testing.T) {
	t.Parallel()
	if _, err := Decode([]byte("[1]"), 3); err != nil {
		t.Error(err)
	}
	for _, max := range []int{2, 0, -1} {
		if _, err := Decode([]byte("[1]"), max); !errors.Is(err, errTooLarge) {
			t.Errorf("limit %d: %v", max, err)
		}
	}
}

func TestObject(t *testing.T) {
	t.Parallel()
	if m, err := Object([]byte(`{"a":1}`), 10); err != nil || m["a"] != 1.0 {
		t.Errorf("%v, %v", m, err)
	}
	for _, in := range []string{"null", "true", "1", `"a"`, "[]", "{"} {
		var e *SyntaxError
		if m, err := Object([]byte(in), 10); !errors.As(err, &e) || m != nil {
			t.Errorf("Object(%s) = %v, %v", in, m, err)
		}
	}
}

func TestDecodedValueSharesNoMemory(t *testing.T) {
	t.Parallel()
	in := []byte(`{"name":"value"}`)
	m, err := Object(in, 100)
	if err != nil {
		t.Fatal(err)
	}
	clear(in)
	if m["name"] != "value" {
		t.Errorf("got %v", m)
	}
}

func TestMembers(t *testing.T) {
	t.Parallel()
	in := []byte(" {\"b\" : [1, {\"x\":2}] ,\n\"\\u0061\":\"s\\n\",\"c\":  -1.50 }\n")
	ms, err := Members(in)
	if err != nil {
		t.Fatal(err)
	}
	want := []Member{{"b", []byte(`[1, {"x":2}]`)}, {"a", []byte(`"s\n"`)}, {"c", []byte("-1.50")}}
	if !reflect.DeepEqual(ms, want) {
		t.Errorf("got %q, want %q", ms, want)
	}
	if &ms[0].Raw[0] != &in[strings.Index(string(in), "[")] {
		t.Error("Raw is a copy")
	}
	if cap(ms[0].Raw) != len(ms[0].Raw) {
		t.Error("appending to Raw would write into the document")
	}
	if ms, err := Members([]byte("{}")); err != nil || len(ms) != 0 {
		t.Errorf("empty object: %v, %v", ms, err)
	}
}

func TestMembersRefuses(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		"", "[]", "1", "{", "{} x", `{"a":1,"a":1}`, `{"a":{"b":1,"b":2}}`, `{"a":01}`, "{\"a\":\"\xff\"}", "\ufeff{}",
	} {
		var e *SyntaxError
		if ms, err := Members([]byte(in)); !errors.As(err, &e) {
			t.Errorf("Members(%q) = %q, %v", in, ms, err)
		}
	}
}
