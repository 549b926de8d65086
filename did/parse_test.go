package did_test

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/did"
)

const (
	counting     = did.DID("did:key:z6MkehRgf7yJbgaGfYsdoAsKdBPE3dj2CYhowQdcjqSJgvVd")
	countingBody = "z6MkehRgf7yJbgaGfYsdoAsKdBPE3dj2CYhowQdcjqSJgvVd"
	countingX    = "z6LSgTMiVvjkfQd8CF1kWasYZKBqtAYf6h8TC3yDfjPgDbWQ"
	zero         = did.DID("did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp")
	p256         = did.DID("did:key:zDnaerDaTF5BXEavCrfRZEk316dpbLsfPDZ3WJ5hRTPFU2169")
)

func TestParseAccepts(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		string(counting), "did:web:example.com", "did:web:example.com%3A8443:agents:billing", "did:webvh:QmX.y_z-1:a",
		"did:example::x", "did:x1:A",
	} {
		if d, err := did.Parse(s); err != nil || string(d) != s {
			t.Errorf("Parse(%q) = %q, %v", s, d, err)
		}
	}
}

func TestParseRejects(t *testing.T) {
	t.Parallel()
	pub, err := counting.Key()
	if err != nil {
		t.Fatal(err)
	}
	multikey := func(prefix string, key []byte) string {
		return "did:key:" + did.EncodeBase58(append([]byte(prefix), key...))
	}
	u := base64.RawURLEncoding.EncodeToString(append([]byte{0xed, 1}, pub...))
	for _, c := range []struct{ name, s string }{
		{"empty", ""},
		{"not a DID", "urn:uuid:1"},
		{"scheme in capitals", "DID:key:" + countingBody},
		{"method in capitals", "did:KEY:" + countingBody},
		{"no id", "did:key:"},
		{"no id of another method", "did:web:"},
		{"no method", "did::x"},
		{"only did", "did:"},
		{"trailing colon", "did:web:example.com:"},
		{"version component", "did:key:1:" + countingBody},
		{"version 1.1", "did:key:1.1:" + countingBody},
		{"fragment", string(counting) + "#" + countingBody},
		{"path", string(counting) + "/x"},
		{"query", string(counting) + "?versionId=1"},
		{"fragment of another method", "did:web:example.com#key"},
		{"path of another method", "did:web:example.com/x"},
		{"base64url form", "did:key:u" + u},
		{"base16 form", "did:key:fed01" + strings.Repeat("00", 32)},
		{"no multibase letter", "did:key:" + countingBody[1:]},
		{"X25519 codec", "did:key:" + countingX},
		{"P-256 codec", string(p256)},
		{"secp256k1 codec", multikey("\xe7\x01", append([]byte{2}, pub...))},
		{"unknown codec of the right length", multikey("\xee\x01", pub)},
		{"codec with a long spelling", multikey("\xed\x81\x00", pub[:31])},
		{"31 key bytes", multikey("\xed\x01", pub[:31])},
		{"33 key bytes", multikey("\xed\x01", append(append([]byte{}, pub...), 0))},
		{"trailing character", string(counting) + "1"},
		{"missing character", string(counting[:len(counting)-1])},
		{"letter outside of base58", strings.Replace(string(counting), "R", "0", 1)},
		{"letter outside of ASCII", strings.Replace(string(counting), "Vd", "é", 1)},
		{"percent-encoding", strings.Replace(string(counting), "z6Mk", "z6%4dk", 1)},
		{"space before", " " + string(counting)},
		{"space behind", string(counting) + " "},
		{"newline behind", string(counting) + "\n"},
		{"space in another method", "did:web:exa mple.com"},
		{"bad percent-encoding", "did:web:example.com%4"},
		{"slash in the method", "did:w/b:example.com"},
		{"too long", "did:web:" + strings.Repeat("a", did.MaxLength)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if d, err := did.Parse(c.s); !errors.Is(err, did.ErrInvalid) || d != "" {
				t.Errorf("Parse(%q) = %q, %v; want ErrInvalid", c.s, d, err)
			}
		})
	}
}

func TestParseForeign(t *testing.T) {
	t.Parallel()
	for _, s := range []string{string(counting), string(p256), "did:key:" + countingX, "did:web:example.com"} {
		if d, err := did.ParseForeign(s); err != nil || string(d) != s {
			t.Errorf("ParseForeign(%q) = %q, %v", s, d, err)
		}
	}
	for _, s := range []string{
		"did:key:u7QEDoQe", "did:key:z", "did:key:" + did.EncodeBase58([]byte("\x80\x24short")), string(counting) + "1",
		"did:key:1:" + string(p256[8:]), string(p256) + "#x", "did:key:z6Mk",
	} {
		if d, err := did.ParseForeign(s); !errors.Is(err, did.ErrInvalid) {
			t.Errorf("ParseForeign(%q) = %q, %v; want ErrInvalid", s, d, err)
		}
	}
}

func TestParseURL(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		s    string
		want did.URL
	}{
		{string(counting), did.URL{DID: counting}},
		{string(counting) + "#" + countingBody, did.URL{DID: counting, Fragment: countingBody}},
		{string(counting) + "#" + countingX, did.URL{DID: counting, Fragment: countingX}},
		{string(p256) + "#x", did.URL{DID: p256, Fragment: "x"}},
		{"did:web:a.example/p/q?x=1&y#k-1", did.URL{DID: "did:web:a.example", Path: "/p/q", Query: "x=1&y", Fragment: "k-1"}},
		{"did:web:a.example#/x?y", did.URL{DID: "did:web:a.example", Fragment: "/x?y"}},
	} {
		u, err := did.ParseURL(c.s)
		if err != nil || u != c.want || u.String() != c.s {
			t.Errorf("ParseURL(%q) = %+v, %v; want %+v", c.s, u, err, c.want)
		}
	}
}

func TestParseURLRejects(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, s string }{
		{"fragment of another key", string(counting) + "#" + string(zero[8:])},
		{"agreement key of another key", string(zero) + "#" + countingX},
		{"short fragment", string(counting) + "#key-1"},
		{"fragment with a trailing character", string(counting) + "#" + countingBody + "x"},
		{"path in a did:key", string(counting) + "/a#" + countingBody},
		{"query in a did:key", string(counting) + "?a=b#" + countingBody},
		{"empty fragment", string(counting) + "#"},
		{"empty query", "did:web:a.example?#k"},
		{"two fragments", "did:web:a.example#a#b"},
		{"space in the fragment", "did:web:a.example#a b"},
		{"bad percent-encoding", "did:web:a.example/%zz#k"},
		{"relative", "#key-1"},
		{"not a DID", "https://a.example/#k"},
		{"too long", "did:web:a.example#" + strings.Repeat("k", 2*did.MaxLength)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if u, err := did.ParseURL(c.s); !errors.Is(err, did.ErrInvalid) {
				t.Errorf("ParseURL(%q) = %+v, %v; want ErrInvalid", c.s, u, err)
			}
		})
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		d                        did.DID
		method, multibase, short string
	}{
		{counting, "key", countingBody, "z6MkehRg…"},
		{"did:web:example.com", "web", "", "web:example.com"},
		{"did:web:billing.agents.telekom.example", "web", "", "web:billing.agents.telek…"},
		{"", "", "", ""},
	} {
		if m, b, s := c.d.Method(), c.d.Multibase(), c.d.Short(); m != c.method || b != c.multibase || s != c.short {
			t.Errorf("%q: %q %q %q; want %q %q %q", c.d, m, b, s, c.method, c.multibase, c.short)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{string(counting), string(p256), "did:web:a%3A1:b", "did:key:1:z6Mk", "did:key:u7Q", string(zero) + "#x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := did.Parse(s)
		if err == nil && string(d) != s {
			t.Fatalf("Parse(%q) = %q", s, d)
		}
		if err == nil && d.Method() == "key" {
			pub, err := d.Key()
			if err != nil {
				t.Fatalf("Key of %q: %v", d, err)
			}
			if again, err := did.FromKey(pub); err != nil || again != d {
				t.Fatalf("%q has a second spelling %q, %v", d, again, err)
			}
		}
		if u, err := did.ParseURL(s); err == nil && u.String() != s {
			t.Fatalf("ParseURL(%q) = %+v", s, u)
		}
	})
}
