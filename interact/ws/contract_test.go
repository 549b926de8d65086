package ws

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/bindingtest"
)

// TestContract runs the contract of bindings with the client and the server of this package, in each dialect.
func TestContract(t *testing.T) {
	for _, subprotocol := range []string{"lmos", "webthingprotocol"} {
		t.Run(subprotocol, func(t *testing.T) { bindingtest.Run(t, contract(subprotocol)) })
	}
}

func contract(subprotocol string) bindingtest.Kit {
	return bindingtest.Kit{
		Supports: Supports,
		Client: func(o bindingtest.Options) bindingtest.Client {
			return NewClient(Options{Credentials: o.Credentials, Dial: o.Dial, MaxMessage: int64(o.Limit)})
		},
		Serve: func(t testing.TB, a *bindingtest.Agent) string {
			s := NewServer(ServerOptions{Mesh: a, Find: a.Find, Gate: a.Gate})
			h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.Serve(w, r, false) }))
			t.Cleanup(h.Close)
			t.Cleanup(s.Close)
			return strings.TrimPrefix(h.URL, "http://")
		},
		Form: func(address, _, _ string) string {
			return `"href": "ws://` + address + `/ws", "subprotocol": "` + subprotocol + `"`
		},
		Security: `{"scheme": "bearer"}`, Secret: `"token": "s3cret-word"`,
		TooLarge: interact.Unreachable, // the connection ends (RFC 6455 §7.4.1, 1009)
		Lacks:    map[bindingtest.Part]string{bindingtest.Conversion: "a frame names the media type of its data"},
	}
}
