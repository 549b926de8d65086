package gateway

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway/tokens"
)

// The principal of a request is the proven one; requests that a proxy forwards from loopback are not local.
func TestPrincipals(t *testing.T) {
	t.Parallel()
	token := Options{Tokens: tokens.New("secret")}
	proxied, by := Options{Tokens: token.Tokens, Operation: Operation{PublicURL: "https://node.example"}}, Options{Tokens: token.Tokens, Proxy: true}
	for name, c := range map[string]struct {
		o       Options
		by      did.Via // of the listener
		headers map[string]string
		want    did.Via
	}{
		"loopback":                   {token, did.Loopback, nil, did.Loopback},
		"loopback, the token":        {token, did.Loopback, map[string]string{"Authorization": "Bearer secret"}, did.Token},
		"loopback, another's token":  {token, did.Loopback, map[string]string{"Authorization": "Bearer agent's"}, did.Loopback},
		"loopback, no token at all":  {Options{}, did.Loopback, map[string]string{"Authorization": "Bearer "}, did.Loopback},
		"beyond loopback":            {token, did.Unproven, nil, did.Unproven},
		"beyond loopback, the token": {token, did.Unproven, map[string]string{"Authorization": "bearer secret"}, did.Token},
		"a proxy":                    {proxied, did.Loopback, nil, did.Unproven},
		"a proxy by its key":         {by, did.Loopback, nil, did.Unproven},
		"a proxy, the token":         {proxied, did.Loopback, map[string]string{"Authorization": "Bearer secret"}, did.Token},
		"a proxy with headers":       {token, did.Loopback, map[string]string{"X-Forwarded-For": "192.0.2.1"}, did.Unproven},
		"a proxy as in RFC 7239":     {token, did.Loopback, map[string]string{"Forwarded": "for=192.0.2.1"}, did.Unproven},
		"the socket":                 {token, did.Socket, nil, did.Socket},
		"the socket, forwarded":      {proxied, did.Socket, map[string]string{"X-Forwarded-For": "192.0.2.1"}, did.Socket},
		"this process":               {token, did.Process, map[string]string{"Authorization": "Bearer secret"}, did.Process},
	} {
		g := newGuard(c.o, nil)
		r, err := http.NewRequestWithContext(did.WithPrincipal(t.Context(), did.Consumer(c.by, "")), http.MethodGet, "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		for key, value := range c.headers {
			r.Header.Set(key, value)
		}
		r, release := g.identify(r)
		release()
		if p := did.PrincipalOf(r.Context()); p == nil || p.Via != c.want {
			t.Errorf("%s: got %+v, want %s", name, p, c.want)
		}
	}
}

// The nodes that are reached through this one, and who calls them, are not for requests through a proxy.
func TestNetHidesWhoIsRelayed(t *testing.T) {
	t.Parallel()
	r := start(t, Options{})
	for name, c := range map[string]struct {
		header map[string]string
		n      int
	}{"loopback": {nil, 1}, "a proxy": {map[string]string{"X-Forwarded-For": "192.0.2.1"}, 0}} {
		_, body := r.do(t, exchange{path: "/v1/net", header: c.header})
		var net api.Net
		if err := json.Unmarshal([]byte(body), &net); err != nil {
			t.Fatal(err)
		}
		if net.Serving.Today == 0 || len(net.Serving.Circuits) != c.n || len(net.Serving.Reservations) != c.n {
			t.Errorf("%s: %s", name, body)
		}
	}
}
