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
	none, wrong, right := "", "Bearer wrong", "Bearer "+token
	near := Options{}
	far, opened := Options{Listen: "0.0.0.0:0"}, Options{Listen: "0.0.0.0:0", OpenDirectory: true}
	for name, test := range map[string]struct {
		o                    Options
		verb, path, auth     string
		origin               string
		unix                 bool
		status               int
		operator, shownAgain bool
	}{
		"no token":                    {near, "POST", "/a2a/x", none, "", false, 200, false, false},
		"another token":               {near, "POST", "/a2a/x", wrong, "", false, 200, false, true},
		"the token":                   {near, "POST", "/a2a/x", right, "", false, 200, true, false},
		"the socket":                  {near, "POST", "/a2a/x", none, "", true, 200, true, false},
		"a header over the socket":    {near, "POST", "/a2a/x", wrong, "", true, 200, true, true},
		"the token over the socket":   {near, "POST", "/a2a/x", right, "", true, 200, true, false},
		"no token from afar":          {far, "POST", "/a2a/x", none, "", false, 401, false, false},
		"the token from afar":         {far, "POST", "/a2a/x", right, "", false, 200, true, false},
		"a page":                      {near, "POST", "/a2a/x", none, page, false, 403, false, false},
		"a preflight of a page":       {near, "OPTIONS", "/a2a/x", none, page, false, 403, false, false},
		"a page lists tasks":          {near, "GET", "/a2a/x/tasks", none, page, false, 403, false, false},
		"a card":                      {near, "GET", card, none, page, false, 200, false, false},
		"the node's card":             {near, "GET", "/.well-known/agent-card.json", none, page, false, 200, false, false},
		"a card by its old name":      {near, "GET", "/a2a/x/.well-known/agent.json", none, page, false, 200, false, false},
		"preflight of a card":         {near, "OPTIONS", card, none, page, false, 200, false, false},
		"a page changes a card":       {near, "PUT", card, none, page, false, 403, false, false},
		"a card from afar":            {far, "GET", card, none, page, false, 401, false, false},
		"a card with the token":       {far, "GET", card, right, page, false, 200, true, false},
		"preflight from afar":         {far, "OPTIONS", card, none, page, false, 200, false, false},
		"a card of an open directory": {opened, "GET", card, none, page, false, 200, false, false},
		"a call at an open directory": {opened, "POST", "/a2a/x", none, "", false, 401, false, false},
		"a file of the same name":     {near, "GET", "/things/.well-known/agent-card.json", none, page, false, 404, false, false},
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
				if test.shownAgain {
					want = fmt.Sprintf("%+v", bridge.Caller{Operator: test.operator, Authorization: test.auth})
				}
			}
			if got := a.Header.Get("X-Caller"); a.StatusCode != test.status || got != want {
				t.Errorf("got %d and %q, want %d and %q", a.StatusCode, got, test.status, want)
			}
		})
	}
}
