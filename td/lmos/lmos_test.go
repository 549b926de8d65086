package lmos

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/did/web"
	"github.com/lmosd/lmosd/td"
)

const agent = `{"@context": ["https://www.w3.org/2022/wot/td/v1.1", {"lmos": "https://eclipse.dev/lmos/protocol/v1"}],
	"@type": "lmos:Agent", "title": "Billing", "securityDefinitions": {"n": {"scheme": "nosec"}}, "security": "n",
	"actions": {"chat": {"forms": [{"href": "/chat"}]}}}`

const capabilities = `{"capabilities": [{"id": "urn:x:view-bill", "name": "view-bill", "version": "1.0.0"}]}`

func parse(t testing.TB, address string) *url.URL {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// Endpoints of the types at the same host and port are read from a document with an invalid key.
func TestEndpointsOfADocument(t *testing.T) {
	t.Parallel()
	const document = `{"id": "did:web:telekom.de:agents:billing",
		"verificationMethod": [{"id": "#key-1", "publicKeyBase58": "..."}], "service": [
		{"id": "#vc", "type": "VerifiableCredentialService", "serviceEndpoint": "http://a.example:1/vc"},
		{"id": "#1", "type": ["WotThing"],
			"serviceEndpoint": ["http://a.example:1/1", "https://a.example:1/2", "http://a.example/3", "http://b.example:1/4"]},
		{"id": "#2", "type": "WotDirectory", "serviceEndpoint": "http://a.example:1/5"}]}`
	for _, c := range []struct {
		raw   string
		types []string
		want  string
	}{
		{document, []string{web.WotThing}, "http://a.example:1/1"},
		{document, []string{web.WotThing, web.WotDirectory}, "http://a.example:1/1 http://a.example:1/5"},
		{strings.Replace(document, "did:web:", "urn:", 1), []string{web.WotThing}, ""},
		{agent, []string{web.WotThing}, ""},
		{"[", []string{web.WotThing}, ""},
	} {
		var got []string
		for _, at := range Endpoints([]byte(c.raw), parse(t, "http://a.example:1/did.json"), c.types...) {
			got = append(got, at.String())
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// A TD with a proof, and documents that are not TDs of LMOS agents, are unchanged and cause no request.
func TestUnchangedDescriptions(t *testing.T) {
	t.Parallel()
	fetches := 0
	fetch := func(context.Context, *url.URL) ([]byte, error) {
		fetches++
		return []byte(capabilities), nil
	}
	from := parse(t, "http://a.example/td")
	for _, raw := range []string{strings.Replace(agent, `"title"`, `"proof": {}, "title"`, 1),
		strings.Replace(agent, "lmos:Agent", "Lamp", 1), "{}", "["} {
		if got := WithCapabilities(t.Context(), []byte(raw), from, fetch); string(got) != raw || fetches != 0 {
			t.Errorf("after %d requests %s became %s", fetches, raw, got)
		}
	}
	got, err := td.Parse(WithCapabilities(t.Context(), []byte(agent), from, fetch))
	if err != nil || len(got.Capabilities) != 1 || fetches != 1 {
		t.Errorf("got %v, %v after %d requests", got, err, fetches)
	}
}

func FuzzWithCapabilities(f *testing.F) {
	f.Add([]byte(agent), []byte(capabilities))
	f.Add([]byte(strings.Replace(agent, `"title"`, `"links": [{"rel": "service-meta", "href": "//b.example/x"}], "title"`, 1)),
		[]byte(`{"capabilities": [1]}`))
	f.Fuzz(func(t *testing.T, raw, document []byte) {
		from := parse(t, "http://a.example/td")
		for _, at := range Endpoints(raw, from, web.WotThing) {
			if at.Host != from.Host || at.Scheme != from.Scheme {
				t.Errorf("a document leads to %s", at)
			}
		}
		got := WithCapabilities(t.Context(), raw, from, func(_ context.Context, at *url.URL) ([]byte, error) {
			if at.Host != from.Host || at.Scheme != from.Scheme {
				t.Errorf("a TD leads to %s", at)
			}
			if len(document) == 0 {
				return nil, errors.New("not found")
			}
			return document, nil
		})
		if _, err := td.Parse(got); err != nil && string(got) != string(raw) {
			t.Errorf("%s became %s: %v", raw, got, err)
		}
	})
}
