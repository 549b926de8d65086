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

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
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
		say(map[string]any{"issuer": "/", "authorization_endpoint": "/authorize", "token_endpoint": "/token", "registration_endpoint": "/register", "revocation_endpoint": "/revoke",
			"code_challenge_methods_supported": []string{"S256"}, "token_endpoint_auth_methods_supported": []string{"none"}})(w, r)
	})
	mux.HandleFunc("/register", say(map[string]any{"client_id": "lmosd-1"}))
	mux.HandleFunc("/authorize", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		http.Redirect(w, r, q.Get("redirect_uri")+"?"+url.Values{"code": {"c"}, "state": {q.Get("state")}}.Encode(), http.StatusFound)
	})
	mux.HandleFunc("/token", say(map[string]any{"access_token": "let-me-in", "token_type": "Bearer", "refresh_token": "r"}))
	mux.HandleFunc("/revoke", func(http.ResponseWriter, *http.Request) {})
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

// A loginDocument and a logoutDocument are the documents of both commands.
type (
	loginDocument struct {
		Server, Issuer, File string
		Scopes               []string
		Renews               bool
	}
	logoutDocument struct {
		Grants []struct {
			Revoked bool
			Reason  string
		}
	}
)

// A server that requires a login results in a hint; after the approval in a browser it is an agent.
func TestLogin(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	at := loginSite(t)
	n := x.node("n")
	named := x
	x = x.at(n)
	contains(t, x.fails(cli.ExitRefused, "expose", "mcp:"+at), "requires a login at "+strings.TrimSuffix(at, "/mcp"), "LMOS-1401",
		"lmosd login mcp:"+at+" --scope greet")
	contains(t, named.fails(cli.ExitRefused, "expose", "mcp:"+at, "--data-dir", n.dir), "  hint   log in on the host of the server: lmosd --data-dir "+n.dir+" login mcp:"+at)
	contains(t, x.ok("login"), "SERVER\tISSUER\tENDS\tSCOPES")
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
	said := decode[loginDocument](t, p.out.String())
	if said.Issuer != strings.TrimSuffix(at, "/mcp") || len(said.Scopes) != 1 || said.Scopes[0] != "greet" || !said.Renews || said.File == "" ||
		strings.Contains(p.out.String()+p.talk.String(), "let-me-in") {
		t.Errorf("it says %s%s", p.out.String(), p.talk.String())
	}
	x.exposed("mcp:"+at, "--name", "guarded").prints("exposed guarded@", "action\thello\n")
	if out := x.ok("call", "guarded", "hello"); !strings.Contains(out, "hi") {
		t.Errorf("the agent says %s", out)
	}
	contains(t, x.ok("login"), "mcp:"+at+"\t"+said.Issuer+"\tnever: it is renewed\tgreet\n")
	if list := decode[cli.List[loginDocument]](t, x.ok("login", "-o", "json")); len(list.Items) != 1 || list.Items[0].Server != at || !list.Items[0].Renews {
		t.Errorf("the list is %+v", list)
	}
	contains(t, x.fails(cli.ExitUsage, "login", "--scope", "x"), "where is this host to log in?")
	contains(t, x.fails(cli.ExitNotFound, "logout", "mcp:"+at+"x"), "not logged in at mcp:"+at+"x", "did you mean \"mcp:"+at+"\"?")
	contains(t, x.fails(cli.ExitUsage, "logout", at), "is no MCP server elsewhere")
	if out := decode[logoutDocument](t, x.ok("logout", "mcp:"+at, "-o", "json")); len(out.Grants) != 1 || !out.Grants[0].Revoked || out.Grants[0].Reason != "" {
		t.Errorf("logged out is %+v", out)
	}
	if got := x.ok("login", "-o", "name"); got != "" {
		t.Errorf("it is logged in at %s", got)
	}
	contains(t, x.fails(cli.ExitNotFound, "logout", "mcp:"+at), "not logged in", "lmosd login # lists")
	contains(t, x.fails(cli.ExitTimeout, "login", "mcp:"+at, "--timeout", "50ms", "--no-browser"), "the login was not approved within 50ms")
	contains(t, x.fails(cli.ExitUsage, "login", at), "is no MCP server elsewhere")
	contains(t, x.fails(cli.ExitTimeout, "login", "mcp:http://127.0.0.1:1/"), "MCP server unreachable")
}
