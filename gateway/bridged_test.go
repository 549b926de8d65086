package gateway

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/lmosd/lmosd/bridge"
)

// callerBridge is a bridge that responds with its caller.
type callerBridge struct{}

func (callerBridge) Paths() []string { return []string{"/a2a/", "/.well-known/agent-card.json"} }

func (callerBridge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Caller", fmt.Sprintf("%+v", bridge.CallerOf(r)))
}

// Bridges see proven callers. Any page may read Agent Cards; beyond loopback, cards have the access rules of the directory.
func TestCallers(t *testing.T) {
	t.Parallel()
	const page, card = "https://page.example", "/a2a/x/.well-known/agent-card.json"
	none, wrong, valid := "", "Bearer wrong", "Bearer "+token
	local := Options{}
	remote, remoteOpen := Options{Listen: "0.0.0.0:0"}, Options{Listen: "0.0.0.0:0", Operation: Operation{OpenDirectory: true}}
	for name, test := range map[string]struct {
		o                   Options
		verb, path, auth    string
		origin              string
		unix                bool
		status              int
		operator, forwarded bool
	}{
		"no token":                    {local, "POST", "/a2a/x", none, "", false, 200, false, false},
		"another token":               {local, "POST", "/a2a/x", wrong, "", false, 200, false, true},
		"the token":                   {local, "POST", "/a2a/x", valid, "", false, 200, true, false},
		"the socket":                  {local, "POST", "/a2a/x", none, "", true, 200, true, false},
		"a header over the socket":    {local, "POST", "/a2a/x", wrong, "", true, 200, true, true},
		"the token over the socket":   {local, "POST", "/a2a/x", valid, "", true, 200, true, false},
		"no token from another host":  {remote, "POST", "/a2a/x", none, "", false, 401, false, false},
		"the token from another host": {remote, "POST", "/a2a/x", valid, "", false, 200, true, false},
		"a page":                      {local, "POST", "/a2a/x", none, page, false, 403, false, false},
		"a preflight of a page":       {local, "OPTIONS", "/a2a/x", none, page, false, 403, false, false},
		"a page lists tasks":          {local, "GET", "/a2a/x/tasks", none, page, false, 403, false, false},
		"a card":                      {local, "GET", card, none, page, false, 200, false, false},
		"the node's card":             {local, "GET", "/.well-known/agent-card.json", none, page, false, 200, false, false},
		"a card at its previous path": {local, "GET", "/a2a/x/.well-known/agent.json", none, page, false, 200, false, false},
		"preflight of a card":         {local, "OPTIONS", card, none, page, false, 200, false, false},
		"a page changes a card":       {local, "PUT", card, none, page, false, 403, false, false},
		"a card from another host":    {remote, "GET", card, none, page, false, 401, false, false},
		"a card with the token":       {remote, "GET", card, valid, page, false, 200, true, false},
		"preflight from another host": {remote, "OPTIONS", card, none, page, false, 200, false, false},
		"a card of an open directory": {remoteOpen, "GET", card, none, page, false, 200, false, false},
		"a call at an open directory": {remoteOpen, "POST", "/a2a/x", none, "", false, 401, false, false},
		"a file of the same name":     {local, "GET", "/things/.well-known/agent-card.json", none, page, false, 404, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.o.Bridges = []Bridge{callerBridge{}}
			r := start(t, test.o)
			client, base := r.http, r.url
			if test.unix {
				client, base = r.unix, "http://localhost"
			}
			q, err := http.NewRequestWithContext(t.Context(), test.verb, base+test.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			for header, value := range map[string]string{"Authorization": test.auth, "Origin": test.origin} {
				if value != "" {
					q.Header.Set(header, value)
				}
			}
			a, err := client.Do(q)
			if err != nil {
				t.Fatal(err)
			}
			a.Body.Close()
			want := ""
			if test.status == http.StatusOK {
				want = fmt.Sprintf("%+v", bridge.Caller{Operator: test.operator})
				if test.forwarded {
					want = fmt.Sprintf("%+v", bridge.Caller{Operator: test.operator, Authorization: test.auth})
				}
			}
			if got := a.Header.Get("X-Caller"); a.StatusCode != test.status || got != want {
				t.Errorf("got %d and %q, want %d and %q", a.StatusCode, got, test.status, want)
			}
		})
	}
}
