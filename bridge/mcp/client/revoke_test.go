package client

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/oauth"
)

// A logout also ends the access of a running node, whether or not the issuer revokes tokens, and a refresh by the node does not undo it.
func TestLogout(t *testing.T) {
	t.Parallel()
	for name, revokes := range map[string]bool{"it revokes": true, "it revokes nothing": false} {
		i := newIssuer(t)
		if revokes {
			i.more = map[string]any{"revocation_endpoint": i.URL + "/revoke"}
		}
		at, store := i.guarded(t), storeIn(t)
		if _, err := loginFor(t, at, LoginOptions{Credentials: store, Show: approveInBrowser}).Authorize(t.Context(), nil); err != nil {
			t.Fatal(name, err)
		}
		running := loginFor(t, at, LoginOptions{Credentials: store})
		node := dialled(t, Options{URL: at, Login: running})
		if got, _, err := call(t, node, "x"); err != nil || !strings.Contains(got, `"result"`) {
			t.Fatalf("%s: before %s, %v", name, got, err)
		}
		had := oauth.GrantsOf(store).Of(at)[0]
		all, err := loginFor(t, at, LoginOptions{Credentials: store}).Logout(t.Context())
		if err != nil || len(all) != 1 || all[0].Issuer != i.URL || (all[0].Err == nil) != revokes {
			t.Errorf("%s: the logout returns %v, %v", name, all, err)
		}
		if said := fmt.Sprint(all); strings.Contains(said, had.Access) || strings.Contains(said, had.Refresh) {
			t.Errorf("%s: the result is formatted as %s", name, said)
		}
		if revokes && (i.seen("revoke refresh_token") != 1 || i.seen("revoke access_token") != 1) {
			t.Errorf("%s: requests %v", name, maps.Collect(maps.All(i.asked)))
		}
		running.mu.Lock()
		running.lastRead = running.lastRead.Add(-reloadInterval)
		running.mu.Unlock()
		refreshed := i.seen("refresh_token")
		if got, _, err := call(t, node, "x"); !strings.Contains(got+fmt.Sprint(err), "requires a login") {
			t.Errorf("%s: a call after the logout: %s, %v", name, got, err)
		}
		if i.seen("refresh_token") != refreshed || len(oauth.GrantsOf(store).Of(at)) != 0 {
			t.Errorf("%s: requests %v, stored %v", name, maps.Collect(maps.All(i.asked)), oauth.GrantsOf(store).Of(at))
		}
		if all, err := loginFor(t, at, LoginOptions{Credentials: store}).Logout(t.Context()); len(all) != 0 || err != nil {
			t.Errorf("%s: the second logout returns %v, %v", name, all, err)
		}
	}
}

// A token that a node refreshes or reads during a logout is neither used nor stored.
func TestLogoutDuringRenewal(t *testing.T) {
	t.Parallel()
	store := storeIn(t)
	const at = "https://mcp.example/mcp"
	g := oauth.Grant{Issuer: "https://as.example", Access: "a", Refresh: "r", Expires: time.Now().Add(time.Hour)}
	for name, anew := range map[string]bool{"renewed": true, "taken over": false} {
		if err := oauth.GrantsOf(store).Keep(t.Context(), at, g); err != nil {
			t.Fatal(err)
		}
		l := loginFor(t, at, LoginOptions{Credentials: store})
		now := l.current(reloadInterval)
		if now == nil || now.Access != "a" {
			t.Fatalf("%s: it has %v", name, now)
		}
		if _, err := oauth.GrantsOf(store).Forget(t.Context(), at); err != nil {
			t.Fatal(err)
		}
		next := *now
		next.Access, next.unsaved = "b", anew
		l.adopt(t.Context(), next)
		if now := l.current(0); now != nil || len(oauth.GrantsOf(store).Of(at)) != 0 {
			t.Errorf("%s: the active grant is %v, and %v is stored", name, now, oauth.GrantsOf(store).Of(at))
		}
	}
}

// A token is also not restored by a node that first reads and refreshes it during a logout.
func TestLogoutDuringReauthorization(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	at, store := i.guarded(t), storeIn(t)
	running := loginFor(t, at, LoginOptions{Credentials: store})
	if running.current(0) != nil {
		t.Fatal("the login has a grant before its first request")
	}
	g, err := loginFor(t, at, LoginOptions{Credentials: store, Show: approveInBrowser}).Authorize(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	g.Expires = time.Now().Add(-time.Minute)
	if err := oauth.GrantsOf(store).Keep(t.Context(), at, g); err != nil {
		t.Fatal(err)
	}
	i.duringToken = func() {
		if _, err := oauth.GrantsOf(store).Forget(t.Context(), at); err != nil {
			t.Error(err)
		}
	}
	_, _, err = call(t, dialled(t, Options{URL: at, Login: running}), "x")
	if i.seen("refresh_token") != 1 || len(oauth.GrantsOf(store).Of(at)) != 0 || !strings.Contains(fmt.Sprint(err), "requires a login") {
		t.Errorf("%v is stored, %v", oauth.GrantsOf(store).Of(at), err)
	}
}

// Two processes of a host share one login: a refreshed token is not refreshed again with the old one.
func TestConcurrentRenewal(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	at, store := i.guarded(t), storeIn(t)
	if _, err := loginFor(t, at, LoginOptions{Credentials: store, Show: approveInBrowser}).Authorize(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	refused, both := i.seen("401"), [2]*Login{}
	for n := range both {
		both[n] = loginFor(t, at, LoginOptions{Credentials: store})
		aged := *both[n].current(0)
		aged.Expires, aged.Granted = time.Now(), time.Now().Add(-time.Hour)
		both[n].active = &aged
	}
	for n, l := range both {
		if got, _, err := call(t, dialled(t, Options{URL: at, Login: l}), "x"); err != nil || !strings.Contains(got, `"result"`) {
			t.Errorf("%d: %s, %v", n, got, err)
		}
	}
	if i.seen("refresh_token") != 1 || i.seen("401") != refused || both[1].current(0).Access != oauth.GrantsOf(store).Of(at)[0].Access {
		t.Errorf("%d renewals and %d denied requests", i.seen("refresh_token"), i.seen("401")-refused)
	}
}

// Tokens are revoked only at their issuers, by their client, and failures are reported.
func TestRevocation(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		endpoint     string // of the metadata; / is the issuer itself
		method       string
		status       int
		body         string // for access tokens
		refresh      string // status for refresh tokens, if it is not 200
		want         string // of the error
		asked        int
		authenticate string
	}{
		"a public client":             {"/revoke", oauth.Public, 200, "", "", "", 2, "id="},
		"a secret in the body":        {"/revoke", oauth.SecretPost, 200, "", "", "", 2, "id=se cret"},
		"a secret in the header":      {"/revoke", oauth.SecretBasic, 200, "", "", "", 2, "id+1:se+cret"},
		"no access tokens":            {"/revoke", oauth.Public, 400, `{"error":"unsupported_token_type"}`, "", "", 2, "id="},
		"it is away for a while":      {"/revoke", oauth.Public, 200, "", "503", "503", 1, "id="},
		"it refuses, with words":      {"/revoke", oauth.Public, 400, `{"error":"invalid_client","error_description":"secret"}`, "", "invalid_client", 2, "id="},
		"it answers with no document": {"/revoke", oauth.Public, 500, "<html>", "", "500", 2, "id="},
		"none":                        {"", oauth.Public, 200, "", "", "does not support revocation", 0, ""},
		"has another origin":          {"https://other.example/revoke", oauth.Public, 200, "", "", "has another origin", 0, ""},
		"no address":                  {":", oauth.Public, 200, "", "", "revo", 0, ""},
	} {
		var said []string
		var site *httptest.Server
		site = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/.well-known/") {
				meta := map[string]any{"issuer": site.URL, "authorization_endpoint": site.URL + "/a", "token_endpoint": site.URL + "/t",
					"response_types_supported": []string{"code"}, "code_challenge_methods_supported": []string{"S256"}}
				if test.endpoint != "" {
					meta["revocation_endpoint"] = strings.Replace(test.endpoint, "/revoke", site.URL+"/revoke", 1)
				}
				if strings.HasPrefix(test.endpoint, "https") {
					meta["revocation_endpoint"] = test.endpoint
				}
				reply(w, 200, meta)
				return
			}
			_ = r.ParseForm()
			user, password, basic := r.BasicAuth()
			who := r.Form.Get("client_id") + "=" + r.Form.Get("client_secret")
			if basic {
				who = user + ":" + password
			}
			said = append(said, r.Form.Get("token_type_hint")+" "+r.Form.Get("token")+" "+who)
			switch {
			case r.Form.Get("token_type_hint") == "access_token":
				w.WriteHeader(test.status)
				_, _ = w.Write([]byte(test.body))
			case test.refresh != "":
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}))
		store := storeIn(t)
		g := oauth.Grant{Issuer: site.URL, TokenEndpoint: site.URL + "/t", ClientID: "id", Method: test.method, Access: "acc", Refresh: "ref"}
		if test.method != oauth.Public {
			g.ClientSecret = "se cret"
		}
		if test.method == oauth.SecretBasic {
			g.ClientID = "id 1"
		}
		if err := oauth.GrantsOf(store).Keep(t.Context(), site.URL, g); err != nil {
			t.Fatal(err)
		}
		l := loginFor(t, site.URL, LoginOptions{Credentials: store})
		all, err := l.Logout(t.Context())
		if err != nil || len(all) != 1 || len(oauth.GrantsOf(store).Of(site.URL)) != 0 {
			t.Fatalf("%s: %v, %v", name, all, err)
		}
		got := fmt.Sprint(all[0].Err)
		if all[0].Err == nil {
			got = ""
		}
		if (got == "") != (test.want == "") || !strings.Contains(got, test.want) || strings.Contains(got, "secret") {
			t.Errorf("%s: the error is %q, want %q", name, got, test.want)
		}
		if len(said) != test.asked || test.asked > 0 && said[0] != "refresh_token ref "+test.authenticate || test.asked > 1 && said[1] != "access_token acc "+test.authenticate {
			t.Errorf("%s: the requests are %q", name, said)
		}
		l.Close()
		site.CloseClientConnections()
		site.Close()
	}
	if _, err := loginFor(t, "https://mcp.example", LoginOptions{}).Logout(t.Context()); interact.AsError(err).Code != interact.ConfigFile {
		t.Errorf("without a file: %v", err)
	}
}
