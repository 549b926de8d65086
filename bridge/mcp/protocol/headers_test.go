package protocol

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
)

func TestDecodeHeader(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"plain": "plain", "  a b\t": "a b", "": "",
		"=?base64?w6k=?=": "é", "=?base64??=": "", "=?base64?w6k": "=?base64?w6k", "=?BASE64?w6k=?=": "=?BASE64?w6k=?=",
		"w6k=?=": "w6k=?=", "=?base64?=": "=?base64?=",
		"=?base64?w6k?=": "bad", "=?base64?w6l=?=": "bad", "=?base64?*?=": "bad", "=?base64?w6k=\n?=": "é",
	} {
		got, e := DecodeHeader(value)
		if e != nil {
			if got = "bad"; e.Code != HeaderMismatch {
				t.Errorf("%q: the code is %d", value, e.Code)
			}
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", value, got, want)
		}
	}
}

func TestParamsOfTools(t *testing.T) {
	t.Parallel()
	for schema, want := range map[string]string{
		``:                  "",
		`{"type":"object"}`: "",
		`{"properties":{"x-mcp-header":{"type":"string"}}}`: "",
		`{"properties":{"a":{"type":"string","x-mcp-header":"Region"},"b":{"type":"object","properties":{"c":{"type":"integer","x-mcp-header":"N"}}}}}`: "N=b.c Region=a",
		`{"properties":{"a":{"type":"string","default":{"x-mcp-header":"no"},"x-mcp-header":"A"}}}`:                                                     "A=a",
		`{"properties":{"a":{"type":"string","x-mcp-header":""}}}`:                                                                                      "bad",
		`{"properties":{"a":{"type":"string","x-mcp-header":"a b"}}}`:                                                                                   "bad",
		`{"properties":{"a":{"type":"string","x-mcp-header":7}}}`:                                                                                       "bad",
		`{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}`:                                                                                     "bad",
		`{"properties":{"a":{"x-mcp-header":"A"}}}`:                                                                                                     "bad",
		`{"x-mcp-header":"A","type":"string"}`:                                                                                                          "bad",
		`{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}`:                                            "bad",
		`{"properties":{"a":{"type":"array","items":{"type":"string","x-mcp-header":"A"}}}}`:                                                            "bad",
		`{"allOf":[{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}]}`:                                                                         "bad",
		`{"$defs":{"a":{"type":"string","x-mcp-header":"A"}}}`:                                                                                          "bad",
		`{"if":{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}}`:                                                                              "bad",
		`{"x-mcp-header"`: "bad",
		strings.Repeat(`{"not":`, 100) + `{"x-mcp-header":"A"}` + strings.Repeat("}", 100): "bad",
	} {
		params, err := Params(json.RawMessage(schema))
		var all []string
		for _, p := range params {
			all = append(all, p.Header+"="+strings.Join(p.Path, "."))
		}
		got := strings.Join(all, " ")
		if err != nil {
			got = "bad"
		}
		if got != want {
			t.Errorf("%.120s: got %q (%v), want %q", schema, got, err, want)
		}
	}
}

func TestHeaderMatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		header, argument string
		want             bool
	}{
		{"a", `"a"`, true}, {"A", `"a"`, false}, {"é", `"\u00e9"`, true}, {"", `""`, true},
		{"42", `42`, true}, {"42", `42.0`, true}, {"42.0", `42`, true}, {"43", `42`, false}, {"042", `42`, true},
		{"42", `"42"`, true}, {"42.0", `"42"`, false}, {"true", `true`, true}, {"True", `true`, false},
		{"84/2", `42`, false}, {"4.2e1", `42`, false}, {"0x2a", `42`, false}, {strings.Repeat("9", 100), strings.Repeat("9", 99), false},
	} {
		if got := HeaderMatches(c.header, json.RawMessage(c.argument)); got != c.want {
			t.Errorf("%s and %s: got %t", c.header, c.argument, got)
		}
	}
}

// Header values survive encoding and decoding.
func FuzzDecodeHeader(f *testing.F) {
	f.Add("a")
	f.Add("=?base64?YQ==?=")
	f.Fuzz(func(t *testing.T, text string) {
		got, e := DecodeHeader(codedPrefix + base64.StdEncoding.EncodeToString([]byte(text)) + codedSuffix)
		if e != nil || got != text {
			t.Errorf("%q became %q, %v", text, got, e)
		}
		if got, e := DecodeHeader(text); e == nil && got != strings.Trim(text, " \t") && !strings.Contains(text, codedPrefix) {
			t.Errorf("%q became %q", text, got)
		}
	})
}

// Every schema is accepted or rejected, and each path leads to an argument.
func FuzzParams(f *testing.F) {
	f.Add([]byte(`{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"properties":{"c":{"type":"boolean","x-mcp-header":"B"}}}}}`))
	f.Fuzz(func(t *testing.T, schema []byte) {
		params, err := Params(schema)
		for _, p := range params {
			if err != nil || !token().MatchString(p.Header) || len(p.Path) == 0 {
				t.Errorf("got %+v, %v", p, err)
			}
		}
	})
}
