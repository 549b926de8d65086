package gateway

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/pipenet"
)

// grant creates a token with scopes and returns the header of its callers.
func grant(t *testing.T, s *tokens.Store, name string, texts ...string) map[string]string {
	t.Helper()
	var scopes []tokens.Scope
	for _, text := range texts {
		one, err := tokens.ParseScope(text)
		if err != nil {
			t.Fatal(err)
		}
		scopes = append(scopes, one)
	}
	secret, _, err := s.Create(tokens.Token{Name: name, Scopes: scopes})
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{"Authorization": "Bearer " + secret}
}

// memory returns a store of tokens until the test ends.
func memory(t *testing.T) *tokens.Store {
	s := tokens.New(token)
	t.Cleanup(func() { s.Close() })
	return s
}

// The scopes of a token are its rights on every route, on loopback and beyond it.
func TestScopesOfRoutes(t *testing.T) {
	t.Parallel()
	store := memory(t)
	node := newFake(describe("urn:x:weather", "Weather", owner1), describe("urn:x:lamp", "Lamp", owner1))
	names := []string{"find", "call", "manage", "weather", "findweather", "manageweather", "all"}
	as := map[string]map[string]string{"find": grant(t, store, "find", "find"), "call": grant(t, store, "call", "invoke"),
		"manage": grant(t, store, "manage", "manage"), "weather": grant(t, store, "weather", "invoke:weather"),
		"findweather": grant(t, store, "findweather", "find:urn:x:weather"), "manageweather": grant(t, store, "manageweather", "manage:weather"),
		"all": grant(t, store, "all", "*")}
	const everyone = "find call manage weather findweather manageweather all"
	for listener, r := range map[string]*running{"loopback": start(t, serving(node, Options{Tokens: store, Bridges: []Bridge{callerBridge{}}})),
		"another host": start(t, serving(node, Options{Tokens: store, Listen: "0.0.0.0:0", Bridges: []Bridge{callerBridge{}}}))} {
		for name, c := range map[string]struct {
			x       exchange
			allowed string // tokens; the others get 403
			scope   string
		}{
			"health":                {exchange{path: "/healthz"}, everyone, ""},
			"the node's TD":         {exchange{path: "/.well-known/wot"}, everyone, ""},
			"status":                {exchange{path: "/v1/status"}, "find call all", "find"},
			"net":                   {exchange{path: "/v1/net"}, "find call all", "find"},
			"metrics":               {exchange{path: "/metrics"}, "find call all", "find"},
			"tasks":                 {exchange{path: "/v1/tasks"}, "find call all", "find"},
			"a list":                {exchange{path: "/things"}, "find call all", "find"},
			"a search":              {exchange{path: "/v1/find"}, "find call all", "find"},
			"a query":               {exchange{path: "/search/jsonpath?query=$"}, "find call all", "find"},
			"an agent":              {exchange{path: "/v1/agents/urn:x:weather"}, "find call weather findweather all", "find"},
			"its TD":                {exchange{path: "/things/urn:x:weather"}, "find call weather findweather all", "find"},
			"its TD with forms":     {exchange{path: "/things/urn%3Ax%3Aweather/td"}, "find call weather findweather all", "find"},
			"another agent":         {exchange{path: "/v1/agents/urn:x:lamp"}, "find call all", "find"},
			"a property":            {exchange{path: "/things/urn:x:weather/properties/unit"}, "call weather all", "call"},
			"an action":             {exchange{method: "POST", path: "/things/urn:x:weather/actions/ask"}, "call weather all", "call"},
			"an action of another":  {exchange{method: "POST", path: "/things/urn:x:lamp/actions/ask"}, "call weather all", "call"}, // policy decides in the mesh
			"an A2A agent":          {exchange{method: "POST", path: "/a2a/x"}, "call weather all", "call"},
			"a card":                {exchange{path: "/a2a/x/.well-known/agent-card.json"}, "find call all", "find"},
			"a peer":                {exchange{method: "POST", path: "/v1/peers", body: `{"addr":"/x"}`, header: map[string]string{"Content-Type": "application/json"}}, "manage all", "manage"},
			"tokens":                {exchange{path: "/v1/tokens"}, "manage all", "manage"},
			"a path that is absent": {exchange{path: "/none"}, "", ""},
		} {
			for _, who := range names {
				x := c.x
				x.header = merge(as[who])
				for k, v := range c.x.header {
					x.header[k] = v
				}
				resp, body := r.do(t, x)
				refused := resp.StatusCode == http.StatusForbidden
				challenge := resp.Header.Get("WWW-Authenticate")
				switch allowed := strings.Contains(" "+c.allowed+" ", " "+who+" "); {
				case c.scope == "":
					if refused || challenge != "" {
						t.Errorf("%s: %s with %s: %d %s", listener, name, who, resp.StatusCode, body)
					}
				case allowed && (resp.StatusCode >= 400 || challenge != ""):
					t.Errorf("%s: %s with %s: %d %s", listener, name, who, resp.StatusCode, body)
				case !allowed:
					checkProblem(t, resp, body, "LMOS-1403")
					if want := `Bearer realm="lmosd", error="insufficient_scope", scope="` + c.scope + `", resource_metadata="http://`; !refused || !strings.HasPrefix(challenge, want) {
						t.Errorf("%s: %s with %s: %d %q", listener, name, who, resp.StatusCode, challenge)
					}
				}
			}
		}
		// Requests that pass the check of scopes and fail later.
		for path, statuses := range map[string]map[string]int{
			"GET /v1/agents/urn:x:none":   {"find": 404, "call": 404, "weather": 403, "manage": 403, "all": 404},
			"PATCH /things/urn:x:lamp":    {"find": 403, "call": 403, "weather": 403, "manage": 415, "manageweather": 403, "all": 415},
			"PATCH /things/urn:x:weather": {"find": 403, "call": 403, "weather": 403, "manage": 415, "manageweather": 415, "all": 415},
			"POST /v1/move/urn:x:weather": {"weather": 403, "manage": 415, "manageweather": 415},
			"POST /v1/tokens":             {"call": 403, "manage": 415, "manageweather": 403, "all": 415},
			"DELETE /v1/tasks/weather":    {"find": 403, "manage": 404, "manageweather": 403},
		} {
			method, at, _ := strings.Cut(path, " ")
			for who, status := range statuses {
				x := exchange{method: method, path: at, header: merge(as[who], "Content-Type", "text/plain"), status: status}
				if method == "POST" || method == "PATCH" {
					x.body = "{}"
				}
				if resp, body := r.do(t, x); resp.StatusCode != status {
					t.Errorf("%s: %s with %s: %d, want %d: %s", listener, path, who, resp.StatusCode, status, body)
				}
			}
		}
	}
}

// A token that is not valid is an error wherever it is sent, even where no token is needed; other headers there are for agents.
func TestTokensThatAreNotValid(t *testing.T) {
	t.Parallel()
	store := memory(t)
	revoked := grant(t, store, "old", "call")
	if err := store.Revoke("old"); err != nil {
		t.Fatal(err)
	}
	r := start(t, Options{Tokens: store})
	reject := exchange{path: "/v1/status", header: revoked, status: 401, code: "LMOS-3003",
		want: map[string]string{"WWW-Authenticate": `Bearer realm="lmosd", error="invalid_token", resource_metadata="` + r.url + metadataPath + `"`}}
	r.check(t, reject)
	reject.path = "/things/urn:x:weather/properties/unit"
	r.check(t, reject)
	r.check(t, exchange{path: "/healthz", header: revoked, status: 200})
	r.check(t, exchange{path: "/v1/status", header: revoked, socket: true, status: 200})
	for _, header := range []string{"Bearer agent's", "bearer", "null", "", "Basic YTpi", "DPoP x", "Bearer null"} {
		r.check(t, exchange{path: "/v1/status", header: map[string]string{"Authorization": header}, status: 200})
	}
}

// Plain HTTP beyond loopback serves an open directory, and accepts no tokens, not even valid ones.
func TestPlainListenerAcceptsNoTokens(t *testing.T) {
	t.Parallel()
	node := newFake(describe("urn:x:weather", "Weather", owner1))
	g, err := New(serving(node, Options{Listen: "0.0.0.0:0", Tokens: memory(t), Operation: Operation{OpenDirectory: true}}))
	if err != nil {
		t.Fatal(err)
	}
	r := &running{Gateway: g, t: t, url: g.URL(), http: client(t, "tcp", g.Addr().String())}
	done := make(chan error, 1)
	go func() { done <- g.Run(t.Context()) }()
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
	for path, status := range map[string]int{"/things": 200, "/things/urn:x:weather/td": 200, "/v1/status": 401, "/things/urn:x:weather/properties/unit": 401} {
		for _, header := range []map[string]string{nil, asAdmin} {
			x := exchange{path: path, header: header, status: status}
			if status == 401 {
				x.code, x.contain = "LMOS-1401", "http.tls.cert"
			}
			r.check(t, x)
		}
	}
}

// RFC 9728: the metadata of the API, and of the MCP endpoint, which MCP clients compare with their URL.
func TestResourceMetadata(t *testing.T) {
	t.Parallel()
	r := start(t, Options{Listen: "0.0.0.0:0", Bridges: []Bridge{mcpBridge{}}})
	public := start(t, Options{Operation: Operation{PublicURL: "https://node.example/"}, Bridges: []Bridge{mcpBridge{}}})
	for _, c := range []struct {
		at        *running
		path      string
		resource  string
		challenge string // of a request
	}{
		{r, "", r.url, "/v1/status"},
		{r, "/mcp", r.url + "/mcp", "/mcp"},
		{r, "/mcp/things/x", r.url + "/mcp/things/x", "/mcp/things/x"},
		{public, "/mcp", "https://node.example/mcp", ""},
	} {
		resp, body := c.at.do(t, exchange{path: metadataPath + c.path})
		var m map[string]any
		if err := json.Unmarshal([]byte(body), &m); err != nil || resp.StatusCode != 200 || m["resource"] != c.resource || m["authorization_servers"] != nil {
			t.Errorf("%s: %d %s", c.path, resp.StatusCode, body)
		}
		if methods, ok := m["bearer_methods_supported"].([]any); !ok || len(methods) != 1 || methods[0] != "header" || len(m["scopes_supported"].([]any)) != 8 {
			t.Errorf("%s: %s", c.path, body)
		}
		if c.challenge != "" {
			c.at.check(t, exchange{method: "GET", path: c.challenge, status: 401,
				want: map[string]string{"WWW-Authenticate": `Bearer realm="lmosd", resource_metadata="` + c.at.url + metadataPath + c.path + `"`}})
		}
	}
	none := start(t, Options{})
	none.check(t, exchange{path: metadataPath, status: 200})
	none.check(t, exchange{path: metadataPath + "/mcp", status: 404})
}

type mcpBridge struct{ callerBridge }

func (mcpBridge) Paths() []string { return []string{"/mcp", "/mcp/things/{name}"} }

func TestTokenAPI(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store, err := tokens.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	r := start(t, Options{Tokens: store})
	c := dial(t, r.o.Socket, "")
	made, err := c.CreateToken(t.Context(), api.TokenRequest{Name: "ci", Scopes: []string{"invoke:weather/ask", "find"}, Roles: []string{"build"}, Lifetime: "30d"})
	if err != nil || !tokens.Is(made.Token) || made.Kind != "Token" || made.Expires.Sub(made.Created).Round(time.Hour) != 30*24*time.Hour {
		t.Fatal(made, err)
	}
	if raw, err := os.ReadFile(dir + "/tokens.json"); err != nil || strings.Contains(string(raw), made.Token) {
		t.Errorf("stored: %s, %v", raw, err)
	}
	list, err := c.Tokens(t.Context())
	if err != nil || len(list.Items) != 1 || list.Items[0].Token != "" || strings.Join(list.Items[0].Scopes, " ") != "invoke:weather/ask find" || list.Items[0].Expired {
		t.Errorf("listed: %+v, %v", list, err)
	}
	own := dial(t, r.url, made.Token)
	if _, err := own.Status(t.Context()); err != nil {
		t.Error(err)
	}
	for name, refused := range map[string]error{
		"its list":      second(own.Tokens(t.Context())),
		"a new one":     second(own.CreateToken(t.Context(), api.TokenRequest{Name: "x", Scopes: []string{"*"}})),
		"its end":       own.RevokeToken(t.Context(), "ci"),
		"an escalation": second(dial(t, r.url, strings.TrimPrefix(grant(t, store, "admin", "manage")["Authorization"], "Bearer ")).CreateToken(t.Context(), api.TokenRequest{Name: "x", Scopes: []string{"*"}})),
	} {
		if e := interact.AsError(refused); e == nil || e.Code != interact.Forbidden {
			t.Errorf("%s: %v", name, refused)
		}
	}
	for name, q := range map[string]api.TokenRequest{"no name": {Scopes: []string{"find"}}, "no scope": {Name: "x"}, "an unknown scope": {Name: "x", Scopes: []string{"fly"}},
		"a lifetime": {Name: "x", Scopes: []string{"find"}, Lifetime: "2y"}, "a role": {Name: "x", Scopes: []string{"find"}, Roles: []string{"A"}}, "a known name": {Name: "ci", Scopes: []string{"find"}}} {
		if _, err := c.CreateToken(t.Context(), q); interact.AsError(err) == nil || interact.AsError(err).Code != interact.Usage {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, body := range []string{"", "x", "{}{}", `{"name":"x","admin":true}`} {
		r.check(t, exchange{method: "POST", path: "/v1/tokens", body: body, header: map[string]string{"Content-Type": "application/json"}, socket: true, status: 400, code: "LMOS-1400"})
	}
	if err := c.RevokeToken(t.Context(), "ci"); err != nil {
		t.Error(err)
	}
	if _, err := own.Status(t.Context()); interact.AsError(err).Code != interact.TokenRejected {
		t.Errorf("after the end: %v", err)
	}
	if e := interact.AsError(c.RevokeToken(t.Context(), "ci")); e.Code != interact.NotFound {
		t.Errorf("twice: %v", e)
	}
	r.check(t, exchange{method: "DELETE", path: "/v1/tokens/operator", socket: true, status: 400})
}

func second[T any](_ T, err error) error { return err }

// The end of a token ends its event streams and WebSockets, and no others.
func TestRevocationEndsStreams(t *testing.T) {
	t.Parallel()
	store := memory(t)
	secret := strings.TrimPrefix(grant(t, store, "ci", "call")["Authorization"], "Bearer ")
	ws := newPlainSocket()
	node := stationNode(t, counting(1))
	r := start(t, serving(node, Options{Tokens: store, WS: ws, Listen: "0.0.0.0:0"}))
	ends, first := make(chan string, 2), make(chan string, 2)
	for who, secret := range map[string]string{"ci": secret, "operator": token} {
		go func() {
			for _, err := range dial(t, r.url, secret).Watch(t.Context(), "urn:x:station", "events", "storm", "") {
				if err != nil {
					break
				}
				first <- who
			}
			ends <- who
		}()
	}
	<-first
	<-first
	if resp := r.upgrade(t, "tcp", "/ws?token="+secret); resp.StatusCode != 101 || <-ws.mayRegister {
		t.Errorf("the WebSocket of a token that may not manage: %d", resp.StatusCode)
	}
	if err := store.Revoke("ci"); err != nil {
		t.Fatal(err)
	}
	if who := <-ends; who != "ci" {
		t.Errorf("the stream of %s ended", who)
	}
	<-ws.ended
	select {
	case who := <-ends:
		t.Errorf("the stream of %s ended", who)
	case <-time.After(50 * time.Millisecond):
	}
}

// A token that expires ends its event streams.
func TestExpiryEndsStreams(t *testing.T) {
	t.Parallel()
	var store *tokens.Store
	prepare := func(g *Gateway) {
		store = tokens.New(token) // in the bubble
		g.guard.tokens = store
	}
	inBubble(t, serving(stationNode(t, counting(1)), Options{}), prepare, func(t *testing.T, r *running, _ *pipenet.Listener) {
		defer store.Close()
		secret, _, err := store.Create(tokens.Token{Name: "ci", Scopes: []tokens.Scope{{Op: "call"}}, Expires: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+"/things/urn:x:station/events/storm?token="+secret, nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Accept", "text/event-stream")
		began := time.Now()
		resp, err := r.http.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body) // the stream ends in one way or another
		if took := time.Since(began); took != time.Hour || !strings.Contains(string(text), "data: 10") {
			t.Errorf("the stream took %v: %s", took, text)
		}
		q.Header.Set("Accept", "application/json")
		q.Header.Set("Authorization", "Bearer "+secret)
		if resp, err = r.http.Do(q); err != nil || resp.Body.Close() != nil || resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("after it: %v, %v", resp, err)
		}
	})
}
