package server

import (
	"net/http"
	"strings"
	"testing"
)

// TestCards checks the responses to pages of other origins, to conditional requests, and to other methods.
func TestCards(t *testing.T) {
	t.Parallel()
	base := start(t)
	send := func(verb, path string, header map[string]string) *http.Response {
		t.Helper()
		q, err := http.NewRequestWithContext(t.Context(), verb, base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range header {
			q.Header.Set(name, value)
		}
		r, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(q)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		return r
	}
	for path, status := range map[string]int{"/a2a/.well-known/agent-card.json": 404, "/a2a/.well-known/agent.json": 404, "/a2a/x/v1/.well-known/agent-card.json": 200,
		"/a2a//.well-known/agent-card.json": 404} {
		if r := send("GET", path, nil); r.StatusCode != status {
			t.Errorf("%s: got %d", path, r.StatusCode)
		}
	}
	for _, path := range []string{"/a2a/x/.well-known/agent-card.json", "/a2a/x/.well-known/agent.json", "/.well-known/agent-card.json"} {
		union, pure := send("GET", path, map[string]string{"A2A-Version": "0.3"}), send("GET", path, map[string]string{"A2A-Version": "1.0"})
		tag, other := pure.Header.Get("ETag"), union.Header.Get("ETag")
		if tag == "" || tag == other {
			t.Errorf("%s: the tags are %s and %s", path, tag, other)
		}
		if strings.HasSuffix(path, "agent.json") { // the path of 0.3
			tag, other = other, tag
		}
		for name, test := range map[string]struct {
			verb   string
			header map[string]string
			status int
			cache  string
		}{
			"anybody":             {"GET", nil, 200, "public, max-age=60"},
			"only the header":     {"HEAD", nil, 200, "public, max-age=60"},
			"a page":              {"GET", map[string]string{"Origin": "https://page.example"}, 200, "public, max-age=60"},
			"with a credential":   {"GET", map[string]string{"Authorization": "Bearer x"}, 200, "private, max-age=60"},
			"same tag":            {"GET", map[string]string{"If-None-Match": tag}, 304, "public, max-age=60"},
			"weak tag":            {"GET", map[string]string{"If-None-Match": `"x", W/` + tag}, 304, "public, max-age=60"},
			"any tag":             {"GET", map[string]string{"If-None-Match": "*"}, 304, "public, max-age=60"},
			"another tag":         {"GET", map[string]string{"If-None-Match": other}, 200, "public, max-age=60"},
			"1.0, same tag":       {"GET", map[string]string{"A2A-Version": "1.0", "If-None-Match": pure.Header.Get("ETag")}, 304, "public, max-age=60"},
			"preflight of a page": {"OPTIONS", map[string]string{"Origin": "https://page.example", "Access-Control-Request-Method": "GET"}, 204, ""},
			"change":              {"PUT", nil, 404, ""},
			"message to a card":   {"POST", nil, 404, ""},
		} {
			r := send(test.verb, path, test.header)
			h := r.Header
			if r.StatusCode != test.status || h.Get("Cache-Control") != test.cache || h.Get("Access-Control-Allow-Origin") != "*" || h.Get("Vary") != "A2A-Version" {
				t.Errorf("%s: %s gets %d with %v", path, name, r.StatusCode, h)
			}
			if test.status == http.StatusNoContent && (h.Get("Access-Control-Allow-Methods") != "GET, HEAD, OPTIONS" || !strings.Contains(h.Get("Access-Control-Allow-Headers"), "A2A-Version")) {
				t.Errorf("%s: %s gets %v", path, name, h)
			}
			if test.status == http.StatusOK && h.Get("Access-Control-Expose-Headers") != "ETag" {
				t.Errorf("%s: %s gets %v", path, name, h)
			}
		}
	}
}
