package gateway

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
	accessrules "github.com/lmosd/lmosd/policy/access"
)

// issued are the tokens of an identity provider, each with its grant or the error of its verification.
type issued map[string]struct {
	grant *tokens.Grant
	err   error
}

func (i issued) Find(_ context.Context, token string) (*tokens.Grant, error) {
	if one, found := i[token]; found {
		return one.grant, one.err
	}
	return nil, interact.Errorf(interact.TokenRejected, "", "this is not a token of the node")
}

func (i issued) Is(text string) bool            { _, found := i[text]; return found }
func (issued) Rules(*accessrules.Builder) error { return nil }
func (issued) Close() error                     { return nil }
func (issued) Issuers() []tokens.Issuer {
	return []tokens.Issuer{{Name: "acme", URL: "https://login.acme.example", Scopes: []string{"lmos.call", "lmos.find"}, Keys: 2, Since: time.Unix(1e9, 0)},
		{Name: "globex", URL: "https://login.globex.example", Scopes: []string{"lmos.find"}, Err: errors.New("connection refused")}}
}

// A token of an identity provider is used as one of the node. One that is not valid, or that cannot be checked, is refused on loopback, too.
func TestTokensOfIdentityProviders(t *testing.T) {
	t.Parallel()
	store := memory(t)
	p := &did.Principal{Name: "oidc:acme:alice", Via: did.OIDC, Relation: did.Local, Scopes: []string{"find"}, Expires: time.Now().Add(time.Hour)}
	find := tokens.Scope{Op: accessrules.Find}
	b := accessrules.NewBuilder(accessrules.Options{})
	for _, r := range find.Rules("scope:find") {
		if err := b.AddRule("http.oidc", r); err != nil {
			t.Fatal(err)
		}
	}
	granted, end := tokens.NewGrant(p, []tokens.Scope{find}, b.Build())
	t.Cleanup(func() { end(context.Canceled) })
	down := interact.Errorf(interact.StatusUnknown, "", "the token cannot be checked: the identity provider globex cannot be reached")
	down.RetryAfter = 7 * time.Second
	store.Accept(issued{"a.b.c": {grant: granted}, "x.y.z": {err: interact.Errorf(interact.TokenRejected, "", "its signature is not valid")}, "d.o.w": {err: down}})
	for listener, r := range map[string]*running{"loopback": start(t, Options{Tokens: store, Bridges: []Bridge{callerBridge{}}}),
		"another host": start(t, Options{Tokens: store, Listen: "0.0.0.0:0", Bridges: []Bridge{callerBridge{}}})} {
		with := func(token string) map[string]string { return map[string]string{"Authorization": "Bearer " + token} }
		r.check(t, exchange{path: "/things", header: with("a.b.c"), status: 200})
		for path, token := range map[string]string{"/things": "x.y.z", "/things/urn:x:weather/properties/unit": "x.y.z"} {
			r.check(t, exchange{path: path, header: with(token), status: 401, code: "LMOS-3003"})
		}
		r.check(t, exchange{path: "/things", header: with("d.o.w"), status: 503, code: "LMOS-1423", want: map[string]string{"Retry-After": "7", "WWW-Authenticate": ""}})
		r.check(t, exchange{path: "/healthz", header: with("d.o.w"), status: 200})
		resp, body := r.do(t, exchange{method: "POST", path: "/things/urn:x:weather/actions/ask", header: with("a.b.c")})
		checkProblem(t, resp, body, "LMOS-1403")
		if challenge := resp.Header.Get("WWW-Authenticate"); !strings.Contains(challenge, `error="insufficient_scope", resource_metadata=`) || !strings.Contains(body, "http.oidc") {
			t.Errorf("%s: %s, challenge %q", listener, body, challenge)
		}
		resp, _ = r.do(t, exchange{path: "/a2a/x/.well-known/agent-card.json", header: with("a.b.c")})
		if got := resp.Header.Get("X-Caller"); got != "{Operator:false Authorization:}" {
			t.Errorf("%s: a bridge has the caller %s", listener, got)
		}
		// A token in the query is one of the caller, for streams, and is removed elsewhere.
		r.check(t, exchange{path: "/things/events?token=x.y.z", header: map[string]string{"Accept": "text/event-stream"}, status: 401, code: "LMOS-3003"})
		resp, body = r.do(t, exchange{path: metadataPath, header: map[string]string{}})
		if want := `"authorization_servers":["https://login.acme.example","https://login.globex.example"],"bearer_methods_supported":["header"],"scopes_supported":["lmos.call","lmos.find"]`; resp.StatusCode != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: the metadata are %s", listener, body)
		}
		_, body = r.do(t, exchange{path: "/v1/tokens", socket: true})
		if want := `"identity_providers":[{"name":"acme","issuer":"https://login.acme.example","keys":2,"since":"2001-09-09T`; !strings.Contains(body, want) ||
			!strings.Contains(body, `{"name":"globex","issuer":"https://login.globex.example","keys":0,"problem":"connection refused"}`) {
			t.Errorf("%s: the tokens are %s", listener, body)
		}
	}
}
