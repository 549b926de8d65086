package form

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/td"
)

func TestSecretsThatAreRepeated(t *testing.T) {
	t.Parallel()
	s := Secrets{hidden: []string{"s3 cret"}}
	for _, text := range []string{"bad token s3 cret", "bad token s3+cret", "bad token s3%20cret"} {
		if !s.IsRepeatedIn(&interact.Error{Code: interact.AgentFailed, Remote: true, Title: text}) || strings.Contains(s.Scrub(text), "s3") {
			t.Errorf("%q is shown", text)
		}
	}
	if s.IsRepeatedIn(&interact.Error{Title: "other"}) || s.Scrub("other") != "other" {
		t.Error("an error without a secret is hidden")
	}
}

func TestPlacesOfSecrets(t *testing.T) {
	t.Parallel()
	add := func(in, name, key string) (s Secrets, err error) {
		by := &Scheme{SecurityScheme: &td.SecurityScheme{Scheme: "apikey", In: in, Name: name}, by: &Security{NotIn: []string{"body"}},
			thing: &td.Thing{}, asks: &interact.Message{}}
		return s, s.put(by, credentials.Credential{Key: key})
	}
	for _, c := range []struct{ in, name, key, query, cookie, header string }{
		{"query", "key", "a&b", "x=1&key=a%26b", "", ""}, {"cookie", "key", "v", "x=1", "key=v", ""}, {"", "key", "v", "x=1", "", "v"},
	} {
		s, err := add(c.in, c.name, c.key)
		h, u := http.Header{}, &url.URL{RawQuery: "x=1"}
		if s.Apply(h, u); err != nil || u.RawQuery != c.query || h.Get("Cookie") != c.cookie || h.Get("Key") != c.header {
			t.Errorf("%+v: got %q, %v, %v", c, u.RawQuery, h, err)
		}
	}
	for _, c := range [][3]string{{"body", "key", "v"}, {"header", "", "v"}, {"header", "a b", "v"}, {"header", "key", "v\r\nX: y"},
		{"cookie", "key", "a;b"}} {
		if _, err := add(c[0], c[1], c[2]); interact.AsError(err).Code != interact.BadTD {
			t.Errorf("%q: got %v", c, err)
		}
	}
}

func TestHeaderOK(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{"X-Key": true, "": false, "a b": false, "a:b": false, "ä": false,
		"a\r\n": false} {
		if HeaderOK(name, "v") != ok {
			t.Errorf("name %q: want %t", name, ok)
		}
	}
	for value, ok := range map[string]bool{"": true, "a\tb": true, "ü": true, "a\nb": false, "a\x00": false,
		"\x7f": false} {
		if HeaderOK("X", value) != ok {
			t.Errorf("value %q: want %t", value, ok)
		}
	}
}
