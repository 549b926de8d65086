package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// Token is an access token of a node: the response to POST /v1/tokens, and an element of [TokenList].
type Token struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
	Name       string `json:"name"`
	// Token is the secret. Only the response that creates the token has it.
	Token string `json:"token,omitempty"`
	// Scopes are the rights: "find", "read", "write", "invoke", "subscribe", "call", "manage" or "*", with an agent as "invoke:weather", or an
	// affordance of it as "invoke:weather/getWeather".
	Scopes  []string  `json:"scopes"`
	Roles   []string  `json:"roles,omitempty"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
	Expired bool      `json:"expired"`
}

// TokenList is GET /v1/tokens, ordered by name, also with expired tokens.
type TokenList struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"`
	Items      []Token `json:"items"`
	// IdentityProviders are those whose tokens the node accepts, too, ordered by name.
	IdentityProviders []IdentityProvider `json:"identity_providers,omitempty"`
}

// IdentityProvider is an identity provider in [TokenList].
type IdentityProvider struct {
	Name   string `json:"name"`
	Issuer string `json:"issuer"`
	// Keys is the number of its keys that the node knows, and Since the time when it read them last; zero: never. It reads them when the first
	// token arrives.
	Keys  int       `json:"keys"`
	Since time.Time `json:"since,omitzero"`
	// Problem is why the last attempt to read the keys failed; empty after a success.
	Problem string `json:"problem,omitempty"`
}

// TokenRequest is the body of POST /v1/tokens.
type TokenRequest struct {
	Name   string   `json:"name"` // 1 to 64 of [a-z0-9._-]
	Scopes []string `json:"scopes"`
	Roles  []string `json:"roles,omitempty"`
	// Lifetime is "30d" or "12h"; from one minute to 365 days. Empty means 90 days.
	Lifetime string `json:"lifetime,omitempty"`
}

// Tokens returns the access tokens of the node, without their secrets.
func (c *Client) Tokens(ctx context.Context) (*TokenList, error) {
	return get[TokenList](ctx, c, "/v1/tokens")
}

// CreateToken creates an access token.
func (c *Client) CreateToken(ctx context.Context, t TokenRequest) (*Token, error) {
	body, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	return request[Token](ctx, c, http.MethodPost, "/v1/tokens", interact.JSON, body)
}

// RevokeToken revokes an access token: its requests and connections end.
func (c *Client) RevokeToken(ctx context.Context, name string) error {
	_, _, err := c.do(ctx, http.MethodDelete, "/v1/tokens/"+url.PathEscape(name), "", nil)
	return err
}
