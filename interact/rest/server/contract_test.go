package server

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact/bindingtest"
	"github.com/lmosd/lmosd/interact/rest"
)

// TestContract runs the contract of bindings with the client of package rest and the server of this package.
func TestContract(t *testing.T) {
	bindingtest.Run(t, bindingtest.Kit{
		Supports: rest.Supports,
		Client: func(o bindingtest.Options) bindingtest.Client {
			return rest.NewClient(rest.Options{Credentials: o.Credentials, Dial: o.Dial, MaxBody: int64(o.Limit)})
		},
		Serve: func(t testing.TB, a *bindingtest.Agent) string {
			s := New(Options{Mesh: a, Find: a.Find})
			h := httptest.NewServer(s)
			t.Cleanup(func() { s.Close(); h.Close() })
			return strings.TrimPrefix(h.URL, "http://")
		},
		Form: func(address, op, name string) string {
			kind := map[string]string{"invokeaction": "actions", "subscribeevent": "events"}[op]
			if kind == "" {
				kind = "properties"
			}
			form := `"href": "http://` + address + "/things/urn:example:lamp/" + kind + "/" + name + `"`
			if op == "subscribeevent" || op == "observeproperty" {
				form += `, "subprotocol": "sse"`
			}
			return form
		},
		Security: `{"scheme": "bearer"}`, Secret: `"token": "s3cret-word"`,
		Lacks: map[bindingtest.Part]string{bindingtest.Gate: "http.Server.Shutdown waits for responses"},
	})
}
