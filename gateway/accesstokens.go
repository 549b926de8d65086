package gateway

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/interact/rest/server"
)

const maxTokenRequest = 64 << 10 // bytes

// listTokens returns the access tokens, without their secrets.
func (g *Gateway) listTokens(w http.ResponseWriter, _ *http.Request) error {
	list := api.TokenList{APIVersion: api.APIVersion, Kind: "TokenList", Items: []api.Token{}}
	if g.o.Tokens != nil {
		for _, t := range g.o.Tokens.List() {
			list.Items = append(list.Items, tokenOf(t))
		}
		for _, i := range g.o.Tokens.Issuers() {
			list.IdentityProviders = append(list.IdentityProviders, providerOf(i))
		}
	}
	return writeJSON(w, http.StatusOK, list)
}

// createToken creates an access token. The response is the only one with its secret.
func (g *Gateway) createToken(w http.ResponseWriter, r *http.Request) error {
	t, err := g.readToken(w, r)
	if err != nil {
		return err
	}
	store, err := g.changeTokens(r)
	if err != nil {
		return err
	}
	secret, t, err := store.Create(t)
	if err != nil {
		return err
	}
	created := tokenOf(t)
	created.APIVersion, created.Kind, created.Token = api.APIVersion, "Token", secret
	w.Header().Set("Cache-Control", "no-store")
	g.log.Info("access token created", "name", t.Name, "scopes", t.Scopes, "expires", t.Expires)
	return writeJSON(w, http.StatusCreated, created)
}

// revokeToken revokes an access token, and ends its requests and connections.
func (g *Gateway) revokeToken(w http.ResponseWriter, r *http.Request) error {
	store, err := g.changeTokens(r)
	if err != nil {
		return err
	}
	name := r.PathValue("ref")
	if err := store.Revoke(name); err != nil {
		return err
	}
	g.log.Info("access token revoked", "name", name)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// changeTokens returns the tokens for a caller that may change them. A token with the right to manage could otherwise create one with more
// rights than its own.
func (g *Gateway) changeTokens(r *http.Request) (Tokens, error) {
	grant := grantOf(r)
	switch {
	case g.o.Tokens == nil:
		return nil, interact.Errorf(interact.NoAffordance, "", "this node has no access tokens").Then(interact.StepStatus)
	case grant != nil && !grant.IsUnlimited():
		return nil, &scopeError{interact.Errorf(interact.Forbidden, "use the token of the operator, or the unix socket",
			"the token %s may not change tokens: that needs all rights", grant.Name), "*"}
	}
	return g.o.Tokens, nil
}

// readToken reads the description of a new token.
func (g *Gateway) readToken(w http.ResponseWriter, r *http.Request) (t tokens.Token, err error) {
	if err := server.CheckContentType(r, interact.JSON); err != nil {
		return t, err
	}
	raw, err := problem.ReadBody(w, r, maxTokenRequest)
	if err != nil {
		return t, err
	}
	var req api.TokenRequest
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	err = d.Decode(&req)
	if _, end := d.Token(); err != nil || end != io.EOF {
		return t, &interact.Error{Code: interact.Invalid, Title: "the body is not a request for a token", Hint: `for example {"name": "ci", "scopes": ["call"]}`,
			Err: err}
	}
	t = tokens.Token{Name: req.Name, Roles: req.Roles}
	for _, text := range req.Scopes {
		s, err := tokens.ParseScope(text)
		if err != nil {
			return t, err
		}
		t.Scopes = append(t.Scopes, s)
	}
	if req.Lifetime != "" {
		life, err := tokens.ParseLife(req.Lifetime)
		if err != nil {
			return t, err
		}
		t.Expires = time.Now().Add(life)
	}
	return t, nil
}

// tokenOf returns the form of a token in the API.
func tokenOf(t tokens.Token) api.Token {
	shown := api.Token{Name: t.Name, Scopes: []string{}, Roles: t.Roles, Created: t.Created, Expires: t.Expires, Expired: !time.Now().Before(t.Expires)}
	for _, s := range t.Scopes {
		shown.Scopes = append(shown.Scopes, s.String())
	}
	return shown
}

// providerOf returns the form of an identity provider in the API.
func providerOf(i tokens.Issuer) api.IdentityProvider {
	p := api.IdentityProvider{Name: i.Name, Issuer: i.URL, Keys: i.Keys, Since: i.Since}
	if i.Err != nil {
		p.Problem = i.Err.Error()
	}
	return p
}
