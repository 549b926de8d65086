// Package oauth is an OAuth 2.0 client: token requests, client authentication and token revocation, and the file of the tokens that
// authorization servers granted to this host. Bindings and bridges choose the scopes, and when to request and renew a token.
//
// Sources: RFC 6749; RFC 7523 with draft-ietf-oauth-rfc7523bis-11, whose audience is the issuer; RFC 7009; RFC 8414.
package oauth

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
)

// Client authentication methods (RFC 7591 §2).
const (
	SecretBasic   = "client_secret_basic"
	SecretPost    = "client_secret_post"
	PrivateKeyJWT = "private_key_jwt"
	Public        = "none"
)

const (
	askTimeout = 30 * time.Second
	// early is how long before its end a token is renewed; a token that lives less than twice as long is renewed at half of its
	// life.
	early = 30 * time.Second
)

// A Server is an authorization server, with the known metadata (RFC 8414 §2). TokenEndpoint is required.
type Server struct {
	// Issuer is the issuer identifier; empty means unknown.
	Issuer string
	// TokenEndpoint is the address of token requests. The caller checks that secrets may be sent to it.
	TokenEndpoint string
	// Methods and Algorithms are the authentication methods and signature algorithms that the server accepts. Empty means unknown.
	Methods, Algorithms []string
}

// A Client is the registration of this host at a server. It contains secrets, and prints as its id.
type Client struct {
	ID     string
	Method string
	Secret string // of SecretBasic and SecretPost
	key    key    // of PrivateKeyJWT
}

// String returns the id.
func (c Client) String() string { return "the client " + c.ID }

// GoString is String.
func (c Client) GoString() string { return c.String() }

// Algorithm is the signature algorithm of PrivateKeyJWT.
func (c Client) Algorithm() string { return c.key.algorithm }

// Method returns the authentication method for a secret; without one, none.
func (s Server) Method(secret string) string {
	switch {
	case secret == "":
		return Public
	case !slices.Contains(s.Methods, SecretBasic) && slices.Contains(s.Methods, SecretPost):
		return SecretPost
	}
	return SecretBasic
}

// Client returns the client of this host at s from the credential of the operator: with its key, if there is one and s accepts it,
// else with its secret. The error contains no secret.
func (s Server) Client(own credentials.Credential) (Client, error) {
	c := Client{ID: own.Username, Secret: own.Password, Method: s.Method(own.Password)}
	takes := func(method string) bool { return len(s.Methods) == 0 || slices.Contains(s.Methods, method) }
	switch {
	case own.PrivateKeyFile != "" && takes(PrivateKeyJWT):
		var err error
		c.Secret, c.Method = "", PrivateKeyJWT
		c.key, err = s.key(own)
		return c, err
	case own.PrivateKeyFile != "" && c.Secret == "":
		return c, fmt.Errorf("the authorization server does not accept private_key_jwt (it accepts %s)", list(s.Methods))
	case c.Secret != "" && !takes(c.Method):
		return c, fmt.Errorf("the authorization server does not accept client secrets (it accepts %s)", list(s.Methods))
	}
	return c, nil
}

// A Token is the result of a token request.
type Token struct {
	Access  string
	Refresh string    // for the next one; empty if there is none
	Scopes  []string  // nil if not in the response: those requested (RFC 6749 §5.1)
	Expires time.Time // zero if unknown
}

// Token requests a token from s, as c. Without a grant type in params it is one for the client itself (RFC 6749 §4.4). Redirects
// are not followed. The error contains the response of the server in one line, without secrets.
func (s Server) Token(ctx context.Context, h *http.Client, c Client, params url.Values) (Token, error) {
	style, id := oauth2.AuthStyleInParams, c.ID
	switch c.Method {
	case SecretBasic:
		style = oauth2.AuthStyleInHeader
	case PrivateKeyJWT:
		form := url.Values{}
		maps.Copy(form, params)
		id, params = "", form
		if err := c.assert(params); err != nil {
			return Token{}, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	// This function of the library sends the given parameters for every grant type; the others omit some.
	o := clientcredentials.Config{ClientID: id, ClientSecret: c.Secret, TokenURL: s.TokenEndpoint, AuthStyle: style,
		EndpointParams: params}
	t, err := o.Token(context.WithValue(ctx, oauth2.HTTPClient, straight(h)))
	hidden := append(c.secrets(), params.Get("client_assertion"), params.Get("refresh_token"), params.Get("code"),
		params.Get("code_verifier"))
	if err != nil {
		return Token{}, safe(err, hidden)
	}
	if t.Type() != "Bearer" {
		return Token{}, fmt.Errorf("expected a bearer token, got type %s", words(t.TokenType, append(hidden, t.AccessToken, t.RefreshToken)))
	}
	got := Token{Access: t.AccessToken, Refresh: t.RefreshToken}
	if t.Expiry.After(time.Now()) {
		got.Expires = t.Expiry
	}
	if scope, ok := t.Extra("scope").(string); ok && scope != "" {
		got.Scopes = strings.Fields(scope)
	}
	return got, nil
}

// assert adds the signed client assertion to params. No client_id is sent: the assertion has it (RFC 7521 §4.2).
func (c Client) assert(params url.Values) error {
	assertion, err := c.key.assertion(c.ID, time.Now())
	if err != nil {
		return err
	}
	params.Set("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
	params.Set("client_assertion", assertion)
	return nil
}

// Due reports whether a token is to be renewed at now: 30 s before it expires, or at half of its life if that is later. A token
// without a known end is never due.
func Due(granted, expires, now time.Time) bool {
	if expires.IsZero() {
		return false
	}
	before := early
	if life := expires.Sub(granted); !granted.IsZero() && life < 2*early {
		before = life / 2
	}
	return expires.Sub(now) < before
}

// secrets returns the secrets of a client, which a server may repeat.
func (c Client) secrets() []string {
	if c.Secret == "" {
		return nil
	}
	id, secret := url.QueryEscape(c.ID), url.QueryEscape(c.Secret)
	return []string{c.Secret, secret, base64.StdEncoding.EncodeToString([]byte(id + ":" + secret))}
}

// safe returns an error without the text of the server, except its code, and without the address.
func safe(err error, hidden []string) error {
	if e, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		return errors.New(strings.TrimSpace(fmt.Sprint(e.Response.StatusCode, " ", words(e.ErrorCode, hidden))))
	}
	return Plain(err, hidden...)
}

// Plain returns the reason of a failed request without its address and hidden texts, on one line of about 200 bytes: servers write
// parts of it, for example those that do not speak HTTP. It wraps err, see [errors.Is].
func Plain(err error, hidden ...string) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	return &plain{words(err.Error(), hidden), err}
}

// A plain error is an error with another text.
type plain struct {
	words string
	err   error
}

func (p *plain) Error() string { return p.words }
func (p *plain) Unwrap() error { return p.err }

// words returns text of a server, clipped, on one line, unless it repeats a secret.
func words(text string, hidden []string) string {
	if slices.ContainsFunc(hidden, func(h string) bool { return h != "" && strings.Contains(text, h) }) {
		return "(its words repeat a secret)"
	}
	return interact.Readable(interact.Clip(text, 200))
}

// list returns the names that a server accepts.
func list(all []string) string { return words(strings.Join(all, ", "), nil) }
