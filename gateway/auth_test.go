package gateway

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
)

// WoT Discovery §7.1.1: exploration-secboot-401 exploration-secboot-auth. This node does not redirect for OAuth 2.0.
func TestTokens(t *testing.T) {
	t.Parallel()
	r := start(t, Options{})
	connect := exchange{method: "POST", path: "/v1/peers", body: `{"addr":"/x"}`}
	for _, c := range []struct {
		name, authorization string
		socket              bool
		status              int
		code                string
	}{
		{"the token", "Bearer " + token, false, 204, ""},
		{"the token, other case of the scheme", "bearer  " + token, false, 204, ""},
		{"another token", "Bearer x", false, 401, "LMOS-3003"},
		{"a prefix of the token", "Bearer " + token[:5], false, 401, "LMOS-3003"},
		{"no header", "", false, 401, "LMOS-1401"},
		{"null, as some clients send", "null", false, 401, "LMOS-1401"},
		{"an empty token", "Bearer ", false, 401, "LMOS-1401"},
		{"another scheme", "Basic YTpi", false, 401, "LMOS-1401"},
		{"the socket", "", true, 204, ""},
		{"the socket with another token", "Bearer x", true, 204, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			x := connect
			x.header = map[string]string{"Content-Type": "application/json"}
			if c.authorization != "" {
				x.header["Authorization"] = c.authorization
			}
			x.socket, x.status, x.code = c.socket, c.status, c.code
			if c.status == 401 {
				reason := ""
				if c.code == "LMOS-3003" {
					reason = `error="invalid_token", `
				}
				x.want = map[string]string{"WWW-Authenticate": `Bearer realm="lmosd", ` + reason + `resource_metadata="` + r.url + metadataPath + `"`}
				x.contain = "/data/api.token"
			}
			r.check(t, x)
		})
	}
	for _, header := range []string{"null", "", "Basic YTpi", "Bearer wrong", "Digest"} {
		r.check(t, exchange{path: "/v1/status", header: map[string]string{"Authorization": header}, status: 200})
		r.check(t, exchange{path: "/things/urn:x:weather/properties/unit",
			header: map[string]string{"Authorization": header}, status: 200})
	}
}

// All requests that change the node require the token.
func TestWritesNeedTheToken(t *testing.T) {
	t.Parallel()
	r := start(t, Options{})
	for _, x := range []exchange{
		{method: "POST", path: "/things"}, {method: "PUT", path: "/things/x"}, {method: "PATCH", path: "/things/x"},
		{method: "DELETE", path: "/things/x"},
		{method: "POST", path: "/v1/publish"}, {method: "DELETE", path: "/v1/agents/x"},
		{method: "POST", path: "/v1/peers"},
	} {
		x.status, x.code, x.header = 401, "LMOS-1401", map[string]string{"Content-Type": tdJSON}
		r.check(t, x)
	}
}

func TestNoToken(t *testing.T) {
	t.Parallel()
	g, err := New(serving(newFake(), Options{Listen: "127.0.0.1:0"}))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	req, err := http.NewRequest(http.MethodPost, "/v1/peers", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer x")
	if err := g.guard.authorize(req, admin); err == nil {
		t.Error("a node without a token accepts a token")
	}
	open, err := New(serving(newFake(), Options{Listen: "127.0.0.1:0", NoAuth: true}))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	req.Header.Del("Authorization")
	if err := open.guard.authorize(req, admin); err != nil {
		t.Errorf("NoAuth: %v", err)
	}
}

// Other hosts need the token for all but health checks and the TD of the node.
func TestBeyondLoopback(t *testing.T) {
	t.Parallel()
	r := start(t, Options{Listen: "0.0.0.0:0"})
	for path, status := range map[string]int{"/healthz": 200, "/readyz": 200, "/.well-known/wot": 200,
		"/v1/status": 401, "/things": 401,
		"/things/urn:x:weather": 401, "/things/urn:x:weather/properties/unit": 401, "/metrics": 401, "/version": 401,
		"/v1/find": 401} {
		r.check(t, exchange{path: path, status: status})
		r.check(t, exchange{path: path, header: asAdmin, status: 200})
		r.check(t, exchange{path: path, socket: true, status: 200})
	}
	r.check(t, exchange{path: "/v1/status", header: map[string]string{"Authorization": "Bearer x"}, status: 401,
		code: "LMOS-3003"})
}

func TestHosts(t *testing.T) {
	t.Parallel()
	r := start(t, Options{Operation: Operation{Hosts: []string{"Node.Example:4668", "other.example"}}})
	for host, status := range map[string]int{
		"127.0.0.1": 200, "127.0.0.1:4668": 200, "127.8.8.8": 200, "[::1]:4668": 200, "[::1]": 200,
		"[::ffff:127.0.0.1]": 200,
		"localhost":          200, "LocalHost:80": 200, "localhost.": 200, "node.example": 200, "NODE.example:1": 200,
		"other.example:9": 200,
		"evil.example":    403, "127.0.0.1.evil.example": 403, "localhost.evil.example": 403, "node.example.evil": 403,
		"192.0.2.1": 403, "0.0.0.0": 403, "[fe80::1]": 403, "xlocalhost": 403,
		"localhost:": 200, "127.0.0.1:65535": 200, "127.0.0.1:evil": 403, "localhost:80x": 403, "node.example:-1": 403,
		"[::1]:evil": 403, "localhost:65536": 403,
	} {
		x := exchange{path: "/v1/status", header: map[string]string{"Host": host}, status: status}
		if status == 403 {
			x.code = "LMOS-1403"
		}
		t.Run(host, func(t *testing.T) {
			t.Parallel()
			r.check(t, x)
			x.socket, x.status, x.code = true, 200, ""
			r.check(t, x)
		})
	}
}

// The address that a request was sent to is an allowed host.
func TestHostIsTheLocalAddress(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{"192.0.2.7:4668": true, "192.0.2.8": false, "": true} {
		req, err := http.NewRequest(http.MethodGet, "http://x/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		ctx := context.WithValue(t.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 4668})
		g := newGuard(Options{}, nil)
		if got := g.isHostAllowed(req.WithContext(ctx)); got != want {
			t.Errorf("%q: %v, want %v", host, got, want)
		}
	}
}

// A page that a proxy serves at the public URL is a page of the node.
func TestPublicOrigin(t *testing.T) {
	t.Parallel()
	r := start(t, Options{Operation: Operation{PublicURL: "https://Node.example/"}})
	for origin, want := range map[string]int{"https://node.example": 401, "http://node.example": 403, "https://node.example:4443": 403} {
		r.check(t, exchange{method: "POST", path: "/v1/publish", header: map[string]string{"Origin": origin}, status: want})
	}
}

// A page of an allowed origin may read responses and send all requests (Fetch, CORS); others get no such header.
func TestCORS(t *testing.T) {
	t.Parallel()
	r := start(t, Options{Operation: Operation{Origins: []string{"https://app.example"}}})
	send := func(method, path, origin string, headers map[string]string) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), method, r.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if origin != "" {
			req.Header.Set("Origin", origin)
		}
		for name, value := range headers {
			req.Header.Set(name, value)
		}
		resp, err := r.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp
	}
	preflight := map[string]string{"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "authorization,content-type",
		"Access-Control-Request-Private-Network": "true"}
	for _, c := range []struct {
		name, method, path, origin string
		headers                    map[string]string
		status                     int
		allowed                    bool
	}{
		{"a read", "GET", "/things/urn:x:weather/properties/unit", "https://app.example", nil, 200, true},
		{"an error", "GET", "/things/urn:x:nothing/td", "https://app.example", nil, 404, true},
		{"a preflight", "OPTIONS", "/things/urn:x:weather/properties/unit", "https://app.example", preflight, 204, true},
		{"a preflight of another page", "OPTIONS", "/things/urn:x:weather/properties/unit", "https://evil.example", preflight, 403, false},
		{"a read of another page", "GET", "/v1/status", "https://evil.example", nil, 200, false},
		{"no browser", "GET", "/v1/status", "", nil, 200, false},
	} {
		resp := send(c.method, c.path, c.origin, c.headers)
		want := ""
		if c.allowed {
			want = c.origin
		}
		if got := resp.Header.Get("Access-Control-Allow-Origin"); resp.StatusCode != c.status || got != want {
			t.Errorf("%s: status %d, origin %q, want %d, %q", c.name, resp.StatusCode, got, c.status, want)
		}
		if vary := strings.Join(resp.Header.Values("Vary"), ","); c.status != 403 && !strings.Contains(vary, "Origin") {
			t.Errorf("%s: Vary is %q", c.name, vary)
		}
		if resp.Header.Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("%s: credentials of the browser are allowed", c.name)
		}
	}
	h := send("OPTIONS", "/v1/publish", "https://app.example", preflight).Header
	if !strings.Contains(h.Get("Access-Control-Allow-Methods"), "PUT") || h.Get("Access-Control-Allow-Headers") != "authorization,content-type" ||
		h.Get("Access-Control-Allow-Private-Network") != "true" {
		t.Errorf("the preflight got %v", h)
	}
}

func TestOrigins(t *testing.T) {
	t.Parallel()
	r := start(t, Options{Operation: Operation{Origins: []string{"https://console.example"}}})
	own := "http://" + r.Addr().String()
	call := func(headers ...string) exchange {
		return exchange{method: "POST", path: "/things/urn:x:weather/actions/ask", header: merge(nil, headers...)}
	}
	ask := func(below string, headers ...string) exchange {
		return exchange{path: "/things/urn:x:weather" + below, header: merge(nil, headers...)}
	}
	for _, c := range []struct {
		name   string
		x      exchange
		status int
	}{
		{"not a browser", call(), 204},
		{"own page", call("Origin", own), 401},
		{"own page with a token", call("Origin", own, "Authorization", "Bearer "+token), 204},
		{"own page with a value for an agent", call("Origin", own, "Authorization", "Bearer agent"), 401},
		{"own page by another name", call("Origin", "http://localhost:9", "Host", "localhost:9"), 401},
		{"configured page", call("Origin", "https://console.example"), 204},
		{"other page", call("Origin", "http://evil.example"), 403},
		{"other port", call("Origin", "http://127.0.0.1:1"), 403},
		{"other scheme", call("Origin", "https://"+r.Addr().String()), 403},
		{"sandboxed page", call("Origin", "null"), 403},
		{"empty origin", call("Origin", ""), 403},
		{"malformed origin", call("Origin", "::"), 403},
		{"browser without Origin", call("Sec-Fetch-Site", "cross-site"), 403},
		{"page of another port", call("Sec-Fetch-Site", "same-site"), 403},
		{"own page without Origin", call("Sec-Fetch-Site", "same-origin"), 401},
		{"own page with the token of another", exchange{method: "POST", path: "/v1/publish", header: merge(tdBody,
			"Origin", "http://evil.example")}, 403},
		{"preflight", exchange{method: "OPTIONS", path: "/v1/publish",
			header: map[string]string{"Origin": "http://evil.example",
				"Access-Control-Request-Method": "POST"}}, 403},
		{"status for any page", exchange{path: "/v1/status",
			header: map[string]string{"Origin": "http://evil.example"}}, 200},
		// Requests that cause work at the mesh or the node are not allowed from other pages.
		{"a search", exchange{path: "/v1/find?q=x", header: map[string]string{"Origin": "http://evil.example"}}, 403},
		{"an A2A agent", exchange{path: "/a2a/x/tasks", header: map[string]string{"Origin": "http://evil.example"}}, 403},
		{"a search with a query language", exchange{path: "/search/jsonpath?query=$", header: map[string]string{"Sec-Fetch-Site": "cross-site"}}, 403},
		{"the list of agents", exchange{path: "/v1/agents", header: map[string]string{"Sec-Fetch-Site": "cross-site"}}, 403},
		{"the list of agents, own page", exchange{path: "/v1/agents", header: map[string]string{"Sec-Fetch-Site": "same-origin"}}, 200},
		{"a probe of an agent", exchange{path: "/v1/agents/urn:x:weather", header: map[string]string{"Origin": "http://evil.example"}}, 403},
		{"the paths to an agent", exchange{path: "/v1/paths/urn:x:weather", header: map[string]string{"Sec-Fetch-Site": "same-site"}}, 403},
		{"tasks, whose hosts are asked", exchange{path: "/v1/tasks", header: map[string]string{"Sec-Fetch-Site": "cross-site"}}, 403},
		{"one task", exchange{path: "/v1/tasks/x", header: map[string]string{"Sec-Fetch-Site": "cross-site"}}, 403},
		{"events of a group", exchange{path: "/v1/groups/claims/events", header: map[string]string{"Sec-Fetch-Site": "cross-site"}}, 403},
		{"changes of the directory", exchange{path: "/events", header: map[string]string{"Sec-Fetch-Site": "cross-site"}}, 403},
		// Requests to agents are not allowed from other pages either.
		{"a description", ask("", "Origin", "http://evil.example"), 200},
		{"a description with forms", ask("/td", "Sec-Fetch-Site", "cross-site"), 200},
		{"a property, no browser", ask("/properties/unit"), 200},
		{"a property, own page", ask("/properties/unit", "Sec-Fetch-Site", "same-origin"), 401},
		{"a property, own page with a token", ask("/properties/unit", "Sec-Fetch-Site", "same-origin", "Authorization", "Bearer "+token), 200},
		{"a property, address bar", ask("/properties/unit", "Sec-Fetch-Site", "none"), 401},
		{"a description, own page", ask("/td", "Sec-Fetch-Site", "same-origin"), 200},
		{"a search, own page", exchange{path: "/v1/find?q=x", header: merge(nil, "Sec-Fetch-Site", "same-origin")}, 200},
		{"Node's fetch", call("Sec-Fetch-Mode", "cors"), 204},
		{"a property, own page with Origin", ask("/properties/unit", "Origin", own), 401},
		{"a property, configured page", ask("/properties/unit", "Origin", "https://console.example"), 200},
		{"a property, other page", ask("/properties/unit", "Origin", "http://evil.example"), 403},
		{"a property, image of another page", ask("/properties/unit", "Sec-Fetch-Site", "cross-site"), 403},
		{"a property, page of another port", ask("/properties/unit", "Sec-Fetch-Site", "same-site"), 403},
		{"all properties", ask("/properties", "Sec-Fetch-Site", "cross-site"), 403},
		{"events", ask("/events", "Sec-Fetch-Site", "cross-site", "Accept", "text/event-stream"), 403},
		{"states", ask("/actions", "Origin", "null"), 403},
		{"a webhook", ask("/subscriptions/x", "Sec-Fetch-Site", "cross-site"), 403},
		{"only the header", exchange{method: "HEAD", path: "/things/urn:x:weather/properties/unit",
			header: map[string]string{"Sec-Fetch-Site": "cross-site"}}, 403},
		{"an escaped id", exchange{path: "/things/urn%3Ax%3Aweather/properties/unit",
			header: map[string]string{"Sec-Fetch-Site": "cross-site"}}, 403},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.x.status = c.status
			c.x.code = map[int]string{401: "LMOS-1401", 403: "LMOS-1403"}[c.status]
			// Only the configured page may read the response.
			c.x.want = map[string]string{"Access-Control-Allow-Origin": ""}
			if c.x.header["Origin"] == "https://console.example" {
				c.x.want["Access-Control-Allow-Origin"] = "https://console.example"
			}
			r.check(t, c.x)
		})
	}
	two := call()
	req, err := http.NewRequestWithContext(t.Context(), two.method, r.url+two.path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header["Origin"] = []string{own, own}
	resp, err := r.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("two origins: %d", resp.StatusCode)
	}
}
