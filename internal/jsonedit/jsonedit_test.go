package jsonedit

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

func TestFind(t *testing.T) {
	t.Parallel()
	const text = ` {"a": {"b\u0063": [1, {"x": "]}\"\\"}], "": null}, "d":-1.5e3 ,"e":"\\"}`
	for path, want := range map[string]string{
		"a/bc": `[1, {"x": "]}\"\\"}]`, "a/": "null", "d": "-1.5e3", "e": `"\\"`, "a/none": "", "d/x": "", "a/bc/x": "",
	} {
		at, err := Find([]byte(text), strings.Split(path, "/")...)
		if got := text[at.From:at.To]; err != nil || got != want {
			t.Errorf("at %s is %s, %v, want %s", path, got, err, want)
		}
	}
	for _, twice := range []string{`{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, "{" + strings.Repeat(`"x":1,`, 40) + `"y":2}`} {
		if _, err := Find([]byte(twice), "y"); err != errTwice {
			t.Errorf("%s gives %v", twice, err)
		}
	}
}

func TestSet(t *testing.T) {
	t.Parallel()
	const text = `{"a":{"b":1, "c":2},"d":"x"}`
	for _, c := range []struct{ path, value, want string }{
		{"d", `[]`, `{"a":{"b":1, "c":2},"d":[]}`},
		{"a/b", `{}`, `{"a":{"b":{}, "c":2},"d":"x"}`},
		{"a/b", ``, `{"a":{"c":2},"d":"x"}`},
		{"a/e/f", `1`, `{"a":{"e":{"f":1},"b":1, "c":2},"d":"x"}`},
		{"g", `1`, `{"g":1,"a":{"b":1, "c":2},"d":"x"}`},
		{"g", ``, text},
		{"d/e", `1`, `{"a":{"b":1, "c":2},"d":{"e":1}}`},
	} {
		var value []byte
		if c.value != "" {
			value = []byte(c.value)
		}
		if got, err := Set([]byte(text), value, strings.Split(c.path, "/")...); err != nil || string(got) != c.want {
			t.Errorf("%s at %s gives %s, %v, want %s", c.value, c.path, got, err, c.want)
		}
	}
}

var texts = []string{`{"a":[1,-0.5e+7,true,false,null,"x\u00e9\n\\"],"b":{}}`, ` [ ] `, "\t\"\x7f\xff\"\r\n", "", "01", "-", "1.", "1e", "tru", "\"\x01\"",
	`"\x"`, `"\u12g4"`, `{"a":1,}`, `[1 2]`, `{1:2}`, `[`, `{"a"`, `{"a":`, `"\`, `nul`, "{}{}", `{"a":1,"a":{"a":[{}]}}`,
	strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000), strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001),
	strings.Repeat(`{"":`, 10_000) + "1" + strings.Repeat("}", 10_000)}

// FuzzText compares Valid and the editing functions with encoding/json.
func FuzzText(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		valid := Valid(text)
		if want := json.Valid(text); valid != want {
			t.Fatalf("%.100q is valid: %t, want %t", text, valid, want)
		}
		i := SkipSpace(text, 0)
		if !valid || text[i] != '{' {
			return
		}
		all, err := Members(nil, text[i:])
		if err != nil {
			return
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			if got := string(text[i:][m.At.From:m.At.To]); got != string(want[string(m.Name)]) {
				t.Errorf("%q is %q", m.Name, got)
			}
			if changed, err := Set(text, []byte("1"), string(m.Name)); err != nil || !json.Valid(changed) {
				t.Errorf("%q changed at %q is %q, %v", text, m.Name, changed, err)
			}
			if less, err := Set(text, nil, string(m.Name)); err != nil || !json.Valid(less) {
				t.Errorf("%q without %q is %q, %v", text, m.Name, less, err)
			}
		}
		if len(all) < len(want) {
			t.Errorf("%q has %d members, not %d", text, len(all), len(want))
		}
	})
}

func BenchmarkValid(b *testing.B) {
	text := []byte(`{"jsonrpc":"2.0","id":"0193","method":"SendMessage","params":{"message":{"messageId":"01","role":"ROLE_USER","parts":[{"text":"` +
		strings.Repeat("x", 256) + `"}]}}}`)
	for name, valid := range map[string]func([]byte) bool{"here": Valid, "encoding-json": json.Valid} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				valid(text)
			}
		})
	}
}
