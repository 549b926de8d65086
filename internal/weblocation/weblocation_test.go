package weblocation

import "testing"

// The rejected locations could lead to another host.
func TestURL(t *testing.T) {
	t.Parallel()
	for location, want := range map[string]string{
		"example.com":                  "https://example.com/.well-known/f",
		"issuer.example.com":           "https://issuer.example.com/.well-known/f",
		"example.com%3A8443":           "https://example.com:8443/.well-known/f",
		"example.com%3a8443":           "https://example.com:8443/.well-known/f",
		"example.com%3A3000:dids":      "https://example.com:3000/dids/f",
		"telekom.de:agents:billing":    "https://telekom.de/agents/billing/f",
		"xn--bcher-kva.example:a_b.c":  "https://xn--bcher-kva.example/a_b.c/f",
		"":                             "",
		"example.com:":                 "",
		"example.com::x":               "",
		"example.com:..":               "",
		"example.com:..:x":             "",
		"example.com:%2e%2e":           "",
		"example.com:%2e%2e:a":         "",
		"example.com:a%2fb":            "",
		"example.com:a%2Fb":            "",
		"example.com:a b":              "",
		"user%40example.com":           "",
		"user@example.com":             "",
		"example.com/x":                "",
		"example.com#x":                "",
		"example.com?x":                "",
		"example.com%2Fx":              "",
		"example.com%23.evil.example":  "",
		"example.com%2F..%2Fevil.test": "",
		"example.com%3A0":              "",
		"example.com%3A080":            "",
		"example.com%3A65536":          "",
		"example.com%3A70000":          "",
		"example.com%3A80%3A80":        "",
		"example.com%3A":               "",
		"127.0.0.1":                    "",
		"%31%32%37.0.0.1":              "",
		"127.1%3a80":                   "",
		"2130706433":                   "",
		"0x7f.1":                       "",
		"127.1":                        "",
		"%5B%3A%3A1%5D":                "",
		".example.com":                 "",
		"b\u00fccher.example":          "",
		"example.com\x00":              "",
	} {
		got, err := URL(location, "f")
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v; want %q", location, got, err, want)
		}
	}
}
