package web

import (
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

const key = did.DID("did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK")

// TestURL checks spellings against the rules of did:web; the rejected ones could lead to another host.
func TestURL(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		"did:web:example.com":               "https://example.com/.well-known/did.json",
		"did:web:example.com%3A8443":        "https://example.com:8443/.well-known/did.json",
		"did:web:telekom.de:agents:billing": "https://telekom.de/agents/billing/did.json",
		"did:web:":                          "",
		"did:web:127.0.0.1":                 "",
		"did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK": "",
	} {
		got, err := URL(did.DID(id))
		if got != want || (err == nil) != (want != "") || err != nil && !errors.Is(err, did.ErrInvalid) && !errors.Is(err, did.ErrMethod) {
			t.Errorf("%q: got %q, %v; want %q", id, got, err, want)
		}
	}
}

func FuzzURL(f *testing.F) {
	for _, s := range []string{"did:web:example.com%3A1:x", "did:web:127.0.0.1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		address, err := URL(did.DID(s))
		if err != nil {
			return
		}
		r, err := http.NewRequest(http.MethodGet, address, nil)
		if err != nil || r.URL.User != nil || r.URL.RawQuery != "" || r.URL.Fragment != "" || r.URL.Path != r.URL.EscapedPath() ||
			net.ParseIP(r.URL.Hostname()) != nil || strings.Contains(address, "/../") {
			t.Errorf("%q leads to %q, %v", s, address, err)
		}
	})
}

// serve runs a web server for example.com, and returns a resolver that finds it there, and its DID.
func serve(t *testing.T, h http.HandlerFunc) (*Resolver, did.DID) {
	t.Helper()
	o, port := didtest.Serve(t, h)
	return New(o), did.DID("did:web:example.com%3A" + port)
}

// A node can parse the document of another node (WoT Discovery §6.5, DID document: the context MUST be present; the endpoints of WotThing
// and WotDirectory are TDs).
func TestNodeDocument(t *testing.T) {
	t.Parallel()
	var id did.DID
	r, id := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/.well-known/did.json" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(Document(id, key, "https://example.com/.well-known/wot"))
	})
	doc, err := r.Resolve(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc.Raw), `"https://www.w3.org/2022/wot/discovery-did"`) ||
		!slices.Equal(doc.AlsoKnownAs, []string{string(key)}) ||
		len(doc.VerificationMethod) != 1 || doc.VerificationMethod[0].KeyType != did.Ed25519 || len(doc.AssertionMethod) != 1 {
		t.Errorf("the document is %s", doc.Raw)
	}
	for _, typ := range []string{WotThing, WotDirectory} {
		if got := Endpoints(doc, typ); !slices.Equal(got, []string{"https://example.com/.well-known/wot"}) {
			t.Errorf("%s leads to %q", typ, got)
		}
	}
	if _, err := r.Resolve(t.Context(), id+":agents"); !errors.Is(err, did.ErrNotFound) {
		t.Errorf("another DID: %v", err)
	}
	for address, want := range map[string]did.DID{
		"https://node.example": "did:web:node.example", "https://node.example:8443/": "did:web:node.example%3A8443",
		"http://node.example": "", "https://node.example/x": "", "https://192.0.2.1": "", "": "",
	} {
		if got, ok := Of(address); got != want && ok || ok != (want != "") {
			t.Errorf("%s has %q, want %q", address, got, want)
		}
	}
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
	doc, err := did.ParseDocument([]byte(`{"id": "did:web:example.com", "service": [
		{"id": "#a", "type": "WotThing", "serviceEndpoint": "https://example.com/a"},
		{"id": "#b", "type": ["Other", "WotThing", "WotThing"], "serviceEndpoint": ["https://example.com/b", "https://example.com/c"]},
		{"id": "#c", "type": "WotThing", "serviceEndpoint": {"uri": "https://example.com/d"}},
		{"id": "#d", "type": "WotThing", "serviceEndpoint": "/relative"},
		{"id": "#e", "type": "WotDirectory", "serviceEndpoint": "https://example.com/e"}]}`), "")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(Endpoints(doc, WotThing), " "); got != "https://example.com/a https://example.com/b https://example.com/c" {
		t.Errorf("got %s", got)
	}
}

func TestInvalidResponses(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]http.HandlerFunc{
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://elsewhere.example/", http.StatusFound)
		},
		"another id": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(Document("did:web:other.example", key, "https://x"))
		},
		"an error":    func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"too much":    func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 10<<20)) },
		"no document": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) },
		"half of it": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9")
			_, _ = w.Write([]byte("{"))
		},
	} {
		r, id := serve(t, h)
		if doc, err := r.Resolve(t.Context(), id); err == nil {
			t.Errorf("%s: got %s", name, doc.Raw)
		}
	}
}
