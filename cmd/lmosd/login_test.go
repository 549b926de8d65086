package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/console"
)

// loginSite is an MCP server of the Go SDK, and at the same address an authorization server that lets everybody in.
func loginSite(t *testing.T) string {
	s := sdk.NewServer(&sdk.Implementation{Name: "guarded", Version: "1"}, nil)
	s.AddTool(&sdk.Tool{Name: "hello", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "hi"}}}, nil
		})
	mcp := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, &sdk.StreamableHTTPOptions{Stateless: true})
	site := httptest.NewUnstartedServer(nil)
	say := func(v map[string]any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for name, at := range v {
				if path, ok := at.(string); ok && strings.HasPrefix(path, "/") {
					v[name] = site.URL + strings.TrimSuffix(path, "/")
				}
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(v)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/oauth-protected-resource/mcp", func(w http.ResponseWriter, r *http.Request) {
		say(map[string]any{"resource": "/mcp", "authorization_servers": []string{site.URL}})(w, r)
	})
	mux.HandleFunc("/.well-known/oauth-authorization-server", func(w http.ResponseWriter, r *http.Request) {
		say(map[string]any{"issuer": "/", "authorization_endpoint": "/authorize", "token_endpoint": "/token", "registration_endpoint": "/register",
			"code_challenge_methods_supported": []string{"S256"}, "token_endpoint_auth_methods_supported": []string{"none"}})(w, r)
	})
	mux.HandleFunc("/register", say(map[string]any{"client_id": "lmosd-1"}))
	mux.HandleFunc("/authorize", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		http.Redirect(w, r, q.Get("redirect_uri")+"?"+url.Values{"code": {"c"}, "state": {q.Get("state")}}.Encode(), http.StatusFound)
	})
	mux.HandleFunc("/token", say(map[string]any{"access_token": "let-me-in", "token_type": "Bearer", "refresh_token": "r"}))
	mux.HandleFunc("/mcp", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer let-me-in" {
			w.Header().Set("WWW-Authenticate", `Bearer scope="greet"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		mcp.ServeHTTP(w, r)
	})
	site.Config.Handler = mux
	site.Start()
	t.Cleanup(site.Close)
	return site.URL + "/mcp"
}

// A server that wants a login says which command does it; somebody agrees in a browser, and from then on the server is an agent.
func TestLogin(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	at := loginSite(t)
	x = x.at(x.node("n"))
	contains(t, x.fails(console.ExitRefused, "expose", "mcp:"+at), "wants a login at "+strings.TrimSuffix(at, "/mcp"), "LMOS-1401",
		"lmosd login mcp:"+at+" --scope greet")
	p := x.start("login", "mcp:"+at, "-o", "json")
	var address string
	eventually(t, "the address is shown", func() bool {
		address = regexp.MustCompile(`http://\S+/authorize\S+\n`).FindString(p.talk.String())
		return address != ""
	})
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(strings.TrimSpace(address))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if code := p.wait(); code != 0 {
		t.Fatalf("exit code %d: %s", code, p.talk.String())
	}
	said := decode[loggedIn](t, p.out.String())
	if said.Issuer != strings.TrimSuffix(at, "/mcp") || len(said.Scopes) != 1 || said.Scopes[0] != "greet" || !said.Renews || said.File == "" ||
		strings.Contains(p.out.String()+p.talk.String(), "let-me-in") {
		t.Errorf("it says %s%s", p.out.String(), p.talk.String())
	}
	x.exposed("mcp:"+at, "--name", "guarded").prints("exposed guarded@", "action\thello\n")
	if out := x.ok("call", "guarded", "hello"); !strings.Contains(out, "hi") {
		t.Errorf("the agent says %s", out)
	}
	contains(t, x.fails(console.ExitTimeout, "login", "mcp:"+at, "--timeout", "50ms", "--no-browser"), "nobody has agreed within 50ms")
	contains(t, x.fails(console.ExitUsage, "login", at), "is no MCP server elsewhere")
	contains(t, x.fails(console.ExitTimeout, "login", "mcp:http://127.0.0.1:1/"), "cannot be reached")
}
