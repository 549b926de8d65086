package ucan

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/internal/cbor"
	"github.com/lmosd/lmosd/internal/jcs"
)

// fromJSON returns a value of a test in the kinds of DAG-CBOR.
func fromJSON(t testing.TB, text string) any {
	t.Helper()
	v, err := jcs.Decode([]byte(text), MaxBytes)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return withIntegers(v)
}

// matches reports whether the policies hold, and fails on too many steps.
func matches(t testing.TB, p Policy, args any) bool {
	t.Helper()
	var m match
	ok := m.all(p.statements, args)
	if m.steps > maxSteps {
		t.Fatal("too many steps")
	}
	return ok
}

// The official cases of policies.
func TestPolicyFixtures(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("testdata/policy.json")
	if err != nil {
		t.Fatal(err)
	}
	type cases []struct {
		Args     json.RawMessage
		Policies []json.RawMessage
	}
	var fixtures struct{ Valid, Invalid cases }
	if err := json.Unmarshal(b, &fixtures); err != nil {
		t.Fatal(err)
	}
	count := 0
	for want, list := range map[bool]cases{true: fixtures.Valid, false: fixtures.Invalid} {
		for _, c := range list {
			for _, policy := range c.Policies {
				count++
				p := where(t, fromJSON(t, string(policy)).([]any)...)
				if got := matches(t, p, fromJSON(t, string(c.Args))); got != want {
					t.Errorf("%s on %s: %v, want %v", policy, c.Args, got, want)
				}
			}
		}
	}
	if count != 25 {
		t.Errorf("there are %d policies, want 25", count)
	}
}

const arguments = `{"a":1,"f":1.5,"s":"Alice*","null":null,"list":[1,2,3],"map":{"z":1,"aa":2,"b":[{"c":3}]},"empty":[],"no":{},"x y":5,".":6,"ü":7,"t":true}`

func TestPolicy(t *testing.T) {
	t.Parallel()
	args := fromJSON(t, arguments).(map[string]any)
	args["bytes"] = []byte{0xd6, 0xa9, 0xc1, 0x8c, 0xf8, 0xc4}
	args["link"] = cbor.Link{0, 1, 2}
	for text, want := range map[string]bool{
		// Equality is deep, and 1 is 1.0.
		`["==",".a",1.0]`: true, `["==",".a","1"]`: false, `["==",".list",[1,2.0,3]]`: true, `["==",".list",[1,2]]`: false, `["==",".map.b",[{"c":3}]]`: true,
		`["==",".no",{}]`: true, `["==",".no",[]]`: false, `["==",".t",true]`: true, `["==",".t",1]`: false, `["==",".null",null]`: true, `["==",".null",false]`: false,
		`["!=",".a",1]`: false, `["!=",".a","x"]`: true, `["!=",".missing",1]`: true, `["!=",".list[9]",1]`: false, `["==",".map",{"z":1,"aa":2,"b":[{"c":3}],"y":1}]`: false,
		// Numbers.
		`["<",".a",2]`: true, `["<",".a",1]`: false, `["<=",".a",1.0]`: true, `[">",".f",1]`: true, `[">=",".f",1.5]`: true, `[">=",".f",2]`: false, `[">",".s",0]`: false,
		`["<",".s",0]`: false, `["<",".null",1]`: false, `["<",".missing",1]`: false, `[">",".t",0]`: false, `["<",".a",9007199254740991]`: true,
		// Globs.
		`["like",".s","Alice*"]`: true, `["like",".s","Alice\\*"]`: true, `["like",".s","Alice"]`: false, `["like",".s","*"]`: true, `["like",".s","**i**"]`: true,
		`["like",".s","*e\\*"]`: true, `["like",".s","lice*"]`: false, `["like",".s","*lic"]`: false, `["like",".s",""]`: false, `["like",".a","*"]`: false, `["like",".s","A*c*\\*"]`: true,
		`["like",".s","Al*ce*ce*"]`: false,
		// Connectives.
		`["and",[]]`: true, `["or",[]]`: true, `["and",[["==",".a",1],["==",".a",2]]]`: false, `["or",[["==",".a",1],["==",".a",2]]]`: true, `["or",[["==",".a",2]]]`: false,
		`["not",["==",".a",2]]`: true, `["not",["==",".list[9]",1]]`: true, `["not",["not",["==",".a",1]]]`: true,
		// Quantifiers, over lists and the values of maps.
		`["all",".list",[">",".",0]]`: true, `["all",".list",[">",".",1]]`: false, `["any",".list",[">",".",2]]`: true, `["any",".list",[">",".",3]]`: false,
		`["all",".empty",["==",".",1]]`: true, `["any",".empty",["==",".",1]]`: false, `["any",".map",["==",".",2]]`: true, `["all",".map",["==",".",2]]`: false,
		`["all",".a",["==",".",1]]`: false, `["any",".s",["==",".","A"]]`: false, `["any",".map.b",["==",".c",3]]`: true, `["all",".missing",["==",".",1]]`: false,
		// Selectors.
		`["==",".list[0]",1]`: true, `["==",".list[-1]",3]`: true, `["==",".list[3]",3]`: false, `["==",".list[-4]",1]`: false, `["==",".list[3]?",null]`: true,
		`["==",".list[1:]",[2,3]]`: true, `["==",".list[:1]",[1]]`: true, `["==",".list[0:-1]",[1,2]]`: true, `["==",".list[2:1]",[]]`: true, `["==",".list[7:9]",[]]`: true,
		`["==",".list[-9:2]",[1,2]]`: true, `["==",".list[]",[1,2,3]]`: true, `["==",".map[]",[[{"c":3}],1,2]]`: true, `["==",".map[][1]",1]`: true, `["==",".a[]",1]`: false,
		`["==",".[\"x y\"]",5]`: true, `["==",".[\".\"]",6]`: true, `["==",".ü",7]`: true, `["==",".map[\"b\"][0].c",3]`: true, `["==",".map.b.[0].c",3]`: true,
		`["==","a.",1]`: true, `["==",".a.",1]`: true, `["==","[\"a\"].",1]`: true, `["==",".missing",null]`: true, `["==",".missing.x",null]`: false, `["==",".missing.x?",null]`: true,
		`["==",".missing.x?.y",null]`: false, `["==",".list[9].x?",null]`: false, `["==",".a.x???",null]`: true, `["==",".list.x",null]`: false, `["==",".map[0]",1]`: false,
		`["==",".bytes[3]",140]`: true, `["==",".bytes[-1]",196]`: true, `["==",".bytes[9]",0]`: false, `["==",".bytes.x",1]`: false, `["==",".bytes","1qnBjPjE"]`: false,
		`["like",".bytes","*"]`: false, `["==",".link",null]`: false, `["==",".",1]`: false,
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			if got := matches(t, where(t, fromJSON(t, text)), args); got != want {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
	// What JSON does not have.
	for name, statement := range map[string][]any{
		"bytes":            {"==", ".bytes", args["bytes"]},
		"a slice of bytes": {"==", ".bytes[1:3]", []byte{0xa9, 0xc1}},
		"a link":           {"==", ".link", cbor.Link{0, 1, 2}},
		"another link":     {"!=", ".link", cbor.Link{0, 1, 3}},
		"link and bytes":   {"!=", ".link", []byte{0, 1, 2}},
	} {
		if !matches(t, where(t, statement), args) {
			t.Errorf("%s: false", name)
		}
	}
}

// Integers of 64 bits and floats are compared exactly, not as floats.
func TestNumbersAreExact(t *testing.T) {
	t.Parallel()
	const most = 1<<63 - 1
	for _, c := range []struct {
		a, b any
		want int
	}{
		{int64(most), int64(most - 1), 1}, {int64(-most - 1), int64(most), -1}, {int64(most), float64(1 << 63), -1}, {int64(1<<53 + 1), float64(1 << 53), 1},
		{float64(1 << 53), int64(1<<53 + 1), -1}, {int64(0), 0.0, 0}, {math.Copysign(0, -1), 0.0, 0}, {1e300, int64(most), 1}, {5e-324, int64(0), 1},
	} {
		if got, ok := compare(c.a, c.b); !ok || got != c.want {
			t.Errorf("%v and %v: %d, %v; want %d", c.a, c.b, got, ok, c.want)
		}
	}
}

func TestPolicyRefuses(t *testing.T) {
	t.Parallel()
	nest := func(n int) string {
		return strings.Repeat(`["not",`, n) + `["==",".a",1]` + strings.Repeat("]", n)
	}
	statements := func(n int) string {
		return `["and",[` + strings.Repeat(`["==",".a",1],`, n-1) + `["==",".a",1]]]`
	}
	for text, want := range map[string]Reason{
		`1`: InvalidClaim, `[]`: InvalidClaim, `["=="]`: InvalidClaim, `["==",".a"]`: InvalidClaim, `["==",".a",1,2]`: InvalidClaim, `["==",1,1]`: InvalidClaim,
		`["=",".a",1]`: InvalidClaim, `[1,".a",1]`: InvalidClaim, `["<",".a","1"]`: InvalidClaim, `["<",".a",null]`: InvalidClaim, `["like",".a",1]`: InvalidClaim,
		`["and",{}]`: InvalidClaim, `["and",[1]]`: InvalidClaim, `["and",["==",".a",1]]`: InvalidClaim, `["not",[]]`: InvalidClaim, `["not",[["==",".a",1]]]`: InvalidClaim,
		`["all",".a",[]]`: InvalidClaim, `["all",".a"]`: InvalidClaim, `["and",".a",[]]`: InvalidClaim, `["not",".a",["==",".a",1]]`: InvalidClaim,
		nest(31): "", nest(32): TooLarge, statements(255): "", statements(256): TooLarge,
	} {
		_, err := NewPolicy([]any{fromJSON(t, text)})
		checkReason(t, err, want)
		if t.Failed() {
			t.Fatalf("%.60s", text)
		}
	}
	if _, err := NewPolicy([]any{[]any{"==", ".a", make(chan int)}}); !errors.Is(err, InvalidClaim) {
		t.Errorf("a channel: %v", err)
	}
	if _, err := NewPolicy([]any{[]any{"==", ".a", uint64(1 << 63)}}); !errors.Is(err, InvalidClaim) {
		t.Errorf("2^63: %v", err)
	}
}

func TestSelectorRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "a", "..", "...", ".a..", "..a", ".a..b", "[0]", ".a b", ".0a", ".-a", ".?", "?", ".a?b", ".a]", ".[", ".[0", `.["a`, `.["a"`, `.["a]`, `.["\ud800"]`, `.["a"b]`, ".[:]",
		".[ 0]", ".[+1]", ".[01]", ".[-0]", ".[1:x]", ".[1:2:3]", ".[9007199254740993]", ".[99999999999999999999]", ".a|.b", ".a,.b", ".*", ".$", "..."} {
		if s, err := parseSelector(text); !errors.Is(err, InvalidClaim) {
			t.Errorf("%q is %+v", text, s)
		}
	}
}

// A policy that would take long is refused, also if its result is negated.
func TestPolicyIsBounded(t *testing.T) {
	t.Parallel()
	list := make([]any, 2000)
	for i := range list {
		list[i] = "a"
	}
	inner := make([]any, 200)
	for i := range inner {
		inner[i] = []any{"==", ".", "a"}
	}
	for name, statement := range map[string]any{
		"many elements and statements": []any{"all", ".list", []any{"and", inner}},
		"negated":                      []any{"not", []any{"all", ".list", []any{"and", inner}}},
		"values of a map":              []any{"or", repeated([]any{"==", ".map[]", 1}, 200)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			object := map[string]any{}
			for i := range 1000 {
				object[fmt.Sprint(i)] = 1
			}
			root := delegation(t, host, alice, func(d *Delegation) { d.Policy = where(t, statement) })
			invoke := invocation(t, alice, []*Token{root}, func(i *Invocation) { i.Args = map[string]any{"list": list, "map": object} })
			_, err := verifier().Verify(bytesOf(root, invoke), noon)
			checkReason(t, err, TooLarge)
		})
	}
	// A pattern of many stars takes one pass.
	p := where(t, []any{"like", ".s", strings.Repeat("*a", 20000) + "*b"})
	if matches(t, p, map[string]any{"s": strings.Repeat("a", 40000)}) {
		t.Error("the pattern matches")
	}
}

// The memory of a pattern grows with its length, not with its square.
func TestLongPattern(t *testing.T) {
	long := strings.Repeat("a", MaxBytes)
	if n := testing.AllocsPerRun(5, func() { splitGlob(long) }); n > 100 {
		t.Errorf("%v allocations", n)
	}
}

func repeated(v any, n int) []any {
	list := make([]any, n)
	for i := range list {
		list[i] = v
	}
	return list
}

// FuzzPolicy: reading and evaluating end, and a policy that is read is read again from its source.
func FuzzPolicy(f *testing.F) {
	for _, text := range []string{`[["==",".a",1]]`, `[["all",".list[0:2]",["not",["like",".","x*"]]]]`, `[["or",[["<=",".map[][\"z\"]?",1.5]]]]`} {
		f.Add(text, ".a", "*a\\**")
	}
	args := fromJSON(f, arguments)
	f.Fuzz(func(t *testing.T, policy, selector, glob string) {
		if s, err := parseSelector(selector); err == nil {
			var cost int
			s.find(args, &cost)
		} else if !errors.Is(err, InvalidClaim) {
			t.Fatal(err)
		}
		if parts := splitGlob(glob); !like(parts, strings.Join(parts, "xyz")) {
			t.Fatalf("%q does not match a text made of its parts %q", glob, parts)
		}
		v, err := jcs.Decode([]byte(policy), MaxBytes)
		source, ok := v.([]any)
		if err != nil || !ok {
			return
		}
		p, err := NewPolicy(source)
		if err != nil {
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Fatal(err)
			}
			return
		}
		var m match
		m.all(p.statements, args)
		if again, err := NewPolicy(p.Source()); err != nil || !reflect.DeepEqual(again, p) {
			t.Fatalf("read again as %+v, %v", again, err)
		}
	})
}
