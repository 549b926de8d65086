package servient

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func lampAt(t *testing.T, base, scheme string) *td.Thing {
	t.Helper()
	d, err := td.Parse(fmt.Appendf(nil, `{"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "Lamp", "id": "urn:x:lamp",
		"securityDefinitions": {"s": {"scheme": %q}}, "security": "s",
		"actions": {"blink": {"safe": true, "forms": [{"href": "mqtts://127.0.0.1:1/blink"}, {"href": "%s/blink"}, {"href": "%s/other"}]}}}`, scheme, base, base))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A foreign owner chooses the id of its Thing, and credentials are found by id.
func TestForeignAgentsGetNoCredentials(t *testing.T) {
	t.Parallel()
	called := false
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called = true }))
	t.Cleanup(server.Close)
	b := guardedBindings(DirectAny, slog.New(slog.DiscardHandler))
	t.Cleanup(b.close)
	d := lampAt(t, server.URL, "bearer")
	_, err := interact.Call(t.Context(), interact.NewPaths(d, b.paths(d, 0)...), &interact.Message{Type: interact.InvokeAction, Name: "blink", Via: "http"})
	if interact.AsError(err).Code != interact.Unauthenticated || called {
		t.Errorf("got %v; the server was called: %t", err, called)
	}
}

func TestDirectPaths(t *testing.T) {
	t.Parallel()
	if guardedBindings(DirectOff, nil) != nil {
		t.Error("got bindings for DirectOff")
	}
	var at string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { at = r.URL.Path }))
	t.Cleanup(server.Close)
	d := lampAt(t, server.URL, "nosec")
	blink := func(direct, via string) error {
		b := guardedBindings(direct, slog.New(slog.DiscardHandler))
		defer b.close()
		_, err := interact.Call(t.Context(), interact.NewPaths(d, b.paths(d, 0)...), &interact.Message{Type: interact.InvokeAction, Name: "blink", Via: via})
		return err
	}
	if err := blink(DirectSecure, ""); err == nil || at != "" {
		t.Errorf("plain HTTP on loopback was called at %q: %v", at, err)
	}
	if err := blink(DirectSecure, "mqtts"); interact.AsError(err).Code != interact.Unreachable {
		t.Errorf("a broker on loopback: %v", err)
	}
	if err := blink(DirectAny, server.URL+"/other"); err != nil || at != "/other" {
		t.Errorf("by its address: called at %q, %v", at, err)
	}
	if err := blink(DirectAny, ""); err != nil || at != "/blink" {
		t.Errorf("the second path when the first is down: called at %q, %v", at, err)
	}
}
