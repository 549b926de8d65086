package rest

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/td"
)

// guarded has an action behind the security scheme definition, and one behind it in the body.
func guarded(t *testing.T, base, scheme string) *td.Thing {
	t.Helper()
	key := ""
	if strings.Contains(scheme, `"uri"`) {
		key = "{key}"
	}
	return describe(t, base, `"securityDefinitions": {"sc": `+scheme+`, "nosec_sc": {"scheme": "nosec"},
			"other_sc": {"scheme": "apikey", "in": "header", "name": "X-Other"}, "oauth_sc": {"scheme": "oauth2",
				"flow": "client", "token": "https://a.example/t"}},
		"security": ["sc"],
		"actions": {
			"act": {"input": {"type": "object"}, "output": {}, "forms": [{"href": "BASE/act?a=1"}]},
			"path": {"output": {}, "forms": [{"href": "BASE/path/`+key+`/x"}]},
			"open": {"output": {}, "forms": [{"href": "BASE/open", "security": ["nosec_sc"]}]},
			"pick": {"output": {}, "forms": [{"href": "BASE/oauth", "security": ["oauth_sc"]}, {"href": "BASE/pick",
				"security": ["nosec_sc"]}]}
		}`)
}

// withSecrets returns a client whose credentials file has the secret for the thing of the tests.
func withSecrets(t *testing.T, o Options, thing, scheme, secret string) *Client {
	t.Helper()
	var err error
	if o.Credentials, err = credentials.Load(writeSecrets(t,
		fmt.Sprintf(`{%q: {%q: %s}}`, thing, scheme, secret))); err != nil {
		t.Fatal(err)
	}
	return newClient(t, o)
}

func writeSecrets(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "credentials.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const secretText = "s3cr&t+Wört"

func TestSecuritySchemes(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`1`))
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("me:"+secretText))
	key := fmt.Sprintf(`{"origin": %q, "key": %q}`, agent.URL, secretText)
	token := fmt.Sprintf(`{"origin": %q, "token": %q}`, agent.URL, secretText)
	login := fmt.Sprintf(`{"origin": %q, "username": "me", "password": %q}`, agent.URL, secretText)
	header := func(name string) func(seen) string { return func(s seen) string { return s.header.Get(name) } }
	tests := []struct {
		name, scheme, secret, action string
		where                        func(seen) string
		want                         string
	}{
		{"basic", `{"scheme": "basic"}`, login, "act", header("Authorization"), basic},
		{"basic in another header", `{"scheme": "basic", "in": "header", "name": "Proxy-Authorization"}`, login,
			"act", header("Proxy-Authorization"), basic},
		{"bearer", `{"scheme": "bearer"}`, token, "act", header("Authorization"), "Bearer " + secretText},
		{"bearer in the query", `{"scheme": "bearer", "in": "query", "name": "access_token"}`, token, "act",
			func(s seen) string { return s.query }, "a=1&access_token=" + url.QueryEscape(secretText)},
		{"apikey in the header", `{"scheme": "apikey", "in": "header", "name": "X-API-Key"}`, key, "act",
			header("X-API-Key"), secretText},
		{"apikey in the query by default", `{"scheme": "apikey", "name": "k y"}`, key, "act",
			func(s seen) string { return s.query }, "a=1&k+y=" + url.QueryEscape(secretText)},
		{"apikey in a cookie", `{"scheme": "apikey", "in": "cookie", "name": "sid"}`, key, "act", header("Cookie"),
			"sid=" + secretText},
		{"apikey in the body", `{"scheme": "apikey", "in": "body", "name": "/auth/key"}`, key, "act",
			func(s seen) string { return s.body }, `{"auth":{"key":"s3cr\u0026t+Wört"},"n":1.50}`},
		{"apikey in the body by a bare name", `{"scheme": "apikey", "in": "body", "name": "key"}`, key, "act",
			func(s seen) string { return s.body }, `{"key":"s3cr\u0026t+Wört","n":1.50}`},
		{"apikey in the address", `{"scheme": "apikey", "in": "uri", "name": "key"}`, key, "path",
			func(s seen) string { return s.path }, "/path/s3cr%26t%2BW%C3%B6rt/x"},
		{"nosec of the form wins", `{"scheme": "basic"}`, login, "open", header("Authorization"), ""},
		{"the form that can be used is taken", `{"scheme": "basic"}`, login, "pick",
			func(s seen) string { return s.path }, "/pick"},
		{"all of a combo", `{"scheme": "combo", "allOf": ["other_sc", "nosec_sc"]}`, key, "act", header("X-Other"), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := withSecrets(t, Options{}, "urn:example:thing", "sc", tt.secret)
			in := ""
			if tt.action == "act" {
				in = `{"n":1.50}`
			}
			_, err := ask(t, c, guarded(t, agent.URL, tt.scheme), invoke(tt.action, in))
			if strings.HasPrefix(tt.name, "all of") {
				wantError(t, err, interact.Unauthenticated) // other_sc has no credentials
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := tt.where(agent.last(t)); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestCombo(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`1`))
	c := withSecrets(t, Options{}, "urn:example:thing", "other_sc", fmt.Sprintf(`{"origin": %q, "key": "k1"}`, agent.URL))
	for scheme, ok := range map[string]bool{
		`{"scheme": "combo", "oneOf": ["oauth_sc", "other_sc"]}`: true,
		`{"scheme": "combo", "allOf": ["other_sc", "nosec_sc"]}`: true,
		`{"scheme": "combo", "allOf": ["other_sc", "oauth_sc"]}`: false,
	} {
		_, err := ask(t, c, guarded(t, agent.URL, scheme), invoke("act", `{}`))
		if !ok {
			wantError(t, err, interact.Unauthenticated)
			continue
		}
		if err != nil || agent.last(t).header.Get("X-Other") != "k1" {
			t.Errorf("%s: %v, header %v", scheme, err, agent.last(t).header)
		}
	}
	loop := guarded(t, agent.URL, `{"scheme": "nosec"}`)
	loop.SecurityDefs["sc"] = &td.SecurityScheme{Scheme: "combo", AllOf: []string{"sc", "nosec_sc"}}
	_, err := ask(t, c, loop, invoke("act", `{}`))
	wantError(t, err, interact.BadTD)
}

func TestSchemesThatAreMissing(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`1`))
	for scheme, code := range map[string]interact.Code{
		`{"scheme": "digest"}`:                               interact.Unauthenticated,
		`{"scheme": "psk"}`:                                  interact.Unauthenticated,
		`{"scheme": "auto"}`:                                 interact.Unauthenticated,
		`{"scheme": "apikey", "in": "header"}`:               interact.BadTD,
		`{"scheme": "apikey", "in": "query"}`:                interact.BadTD,
		`{"scheme": "basic", "in": "query", "name": "auth"}`: interact.BadTD,
	} {
		c := withSecrets(t, Options{}, "urn:example:thing", "sc",
			fmt.Sprintf(`{"origin": %q, "key": "k", "username": "u", "password": "p"}`, agent.URL))
		_, err := ask(t, c, guarded(t, agent.URL, scheme), invoke("act", `{}`))
		wantError(t, err, code)
	}
	if n := len(agent.requests()); n != 0 {
		t.Errorf("the agent received %d requests", n)
	}
}

func TestMissingCredentialsNameFileAndMember(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`1`))
	path := filepath.Join(t.TempDir(), "credentials.json")
	creds, err := credentials.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	c := newClient(t, Options{Credentials: creds, Log: slog.New(slog.NewTextHandler(&log, nil))})
	thing := guarded(t, agent.URL, `{"scheme": "bearer"}`)
	_, err = ask(t, c, thing, invoke("act", `{}`))
	e := wantError(t, err, interact.Unauthenticated)
	for _, want := range []string{"/urn:example:thing/sc", agent.URL, `"token"`, "credentials.json"} {
		if !strings.Contains(e.Hint, want) {
			t.Errorf("%q is not in the hint: %s", want, e.Hint)
		}
	}
	if strings.Contains(everything(e), filepath.Dir(path)) || !strings.Contains(log.String(), path) {
		t.Errorf("the path belongs into the log alone: %s\n%s", everything(e), log.String())
	}

	// As soon as the file is there, it is used.
	if err := os.WriteFile(path, fmt.Appendf(nil, `{"urn:example:thing": {"sc": {"origin": %q, "token": "now"}}}`,
		agent.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t, c, thing, invoke("act", `{}`)); err != nil ||
		agent.last(t).header.Get("Authorization") != "Bearer now" {
		t.Errorf("after the file came: %v", err)
	}
}

func TestSecretsGoToTheirOriginOnly(t *testing.T) {
	t.Parallel()
	agent, thief := newRecorder(t, responds(`1`)), newRecorder(t, responds(`1`))
	c := withSecrets(t, Options{}, "urn:example:thing", "sc",
		fmt.Sprintf(`{"origin": %q, "token": %q}`, agent.URL, secretText))
	_, err := ask(t, c, guarded(t, thief.URL, `{"scheme": "bearer"}`), invoke("act", `{}`))
	if e := wantError(t, err, interact.Unauthenticated); !strings.Contains(e.Error(), "another origin") {
		t.Errorf("got %v", e)
	}
	other := guarded(t, agent.URL, `{"scheme": "bearer"}`)
	other.ID = "urn:example:other"
	_, err = ask(t, c, other, invoke("act", `{}`))
	wantError(t, err, interact.Unauthenticated)
	if n := len(thief.requests()) + len(agent.requests()); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

func TestSecretInRedirectOrEchoIsNotShown(t *testing.T) {
	t.Parallel()
	echo := func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch r.URL.Query().Get("a") {
		case "1":
			w.Header().Set("Location", "/elsewhere/"+url.PathEscape(secretText)+"?"+r.URL.RawQuery)
			w.WriteHeader(http.StatusFound)
		default:
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprintln(w, strings.Repeat("x", maxText-40), r.Header, r.URL, string(body))
		}
	}
	agent := newRecorder(t, echo)
	var log bytes.Buffer
	options := Options{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	for _, scheme := range []string{`{"scheme": "basic"}`, `{"scheme": "bearer"}`,
		`{"scheme": "apikey", "in": "query", "name": "k"}`,
		`{"scheme": "apikey", "in": "header", "name": "k"}`, `{"scheme": "apikey", "in": "uri", "name": "key"}`,
		`{"scheme": "apikey", "in": "body", "name": "k"}`, `{"scheme": "apikey", "in": "cookie", "name": "k"}`} {
		c := withSecrets(t, options, "urn:example:thing", "sc",
			fmt.Sprintf(`{"origin": %q, "key": %q, "token": %q, "username": "me", "password": %q}`, agent.URL,
				secretText, secretText, secretText))
		thing := guarded(t, agent.URL, scheme)
		for _, action := range []string{"act", "path"} {
			in := map[string]string{"act": `{}`}[action]
			_, err := ask(t, c, thing, invoke(action, in))
			var shown string
			if e := interact.AsError(err); e != nil {
				shown = everything(e) + fmt.Sprintf("%v %+v %#v", err, err, e.Err)
			}
			shown += log.String() + fmt.Sprintf("%v %+v %#v %s", c.consumer.Security.Credentials, c.consumer.Security.Credentials, c.consumer.Security.Credentials,
				c.consumer.Security.Credentials)
			for _, bad := range []string{secretText, url.QueryEscape(secretText), url.PathEscape(secretText), "s3cr",
				base64.StdEncoding.EncodeToString([]byte("me:" + secretText))} {
				if strings.Contains(shown, bad) {
					t.Errorf("%s %s: %q is shown: %s", scheme, action, bad, shown)
				}
			}
		}
	}
}

func TestSecretInABrokenConnectionIsNotShown(t *testing.T) {
	t.Parallel()
	down := httptest.NewServer(http.NotFoundHandler())
	down.Close()
	c := withSecrets(t, Options{}, "urn:example:thing", "sc",
		fmt.Sprintf(`{"origin": %q, "key": %q}`, down.URL, secretText))
	_, err := ask(t, c, guarded(t, down.URL, `{"scheme": "apikey", "in": "query", "name": "k"}`), invoke("act", `{}`))
	e := wantError(t, err, interact.Unreachable)
	if strings.Contains(everything(e), "s3cr") || strings.Contains(e.Error(), "?") {
		t.Errorf("got %s", everything(e))
	}
}

func TestConsumerCannotSetTheBodySecret(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`1`))
	thing := describe(t, agent.URL, `"securityDefinitions": {"sc": {"scheme": "apikey", "in": "body",
		"name": "/auth/key"}}, "security": ["sc"],
		"actions": {"act": {"forms": [{"href": "BASE/act"}], "input": {"type": "object", "required": ["auth", "n"],
			"properties": {"n": {"type": "integer"}, "auth": {"type": "object", "required": ["key"],
				"properties": {"key": {"type": "string", "minLength": 20}}}}}}}`)
	c := withSecrets(t, Options{}, "urn:example:thing", "sc",
		fmt.Sprintf(`{"origin": %q, "key": "0123456789abcdefghij"}`, agent.URL))
	if _, err := ask(t, c, thing, invoke("act", `{"n":1}`)); err != nil {
		t.Fatal(err)
	}
	if got := agent.last(t).body; got != `{"auth":{"key":"0123456789abcdefghij"},"n":1}` {
		t.Errorf("got %s", got)
	}
	_, err := ask(t, c, thing, invoke("act", `{"n":"x"}`))
	wantError(t, err, interact.Invalid)
}

func TestBodySecretNeedsAJSONBody(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`1`))
	thing := describe(t, agent.URL, `"securityDefinitions": {"sc": {"scheme": "apikey", "in": "body", "name": "key"}},
		"security": ["sc"], "actions": {
			"get":  {"forms": [{"href": "BASE/get", "htv:methodName": "GET"}]},
			"text": {"forms": [{"href": "BASE/text", "contentType": "text/plain"}]},
			"list": {"input": {"type": "array"}, "forms": [{"href": "BASE/list"}]},
			"none": {"forms": [{"href": "BASE/none"}]},
			"need": {"input": {"type": "object", "required": ["key"], "properties": {"key": {"type": "string"}}},
				"forms": [{"href": "BASE/need"}]}}`)
	c := withSecrets(t, Options{}, "urn:example:thing", "sc", fmt.Sprintf(`{"origin": %q, "key": "k1"}`, agent.URL))
	for action, code := range map[string]interact.Code{"get": interact.BadTD, "text": interact.BadTD, "list": interact.Invalid} {
		in := map[string]string{"list": `[1]`}[action]
		_, err := ask(t, c, thing, invoke(action, in))
		wantError(t, err, code)
	}
	if n := len(agent.requests()); n != 0 {
		t.Errorf("the agent received %d requests", n)
	}
	for _, action := range []string{"none", "need"} {
		if _, err := ask(t, c, thing, invoke(action, "")); err != nil {
			t.Fatalf("%s: %v", action, err)
		}
		if got := agent.last(t); got.body != `{"key":"k1"}` || got.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: got %+v", action, got)
		}
	}
}
