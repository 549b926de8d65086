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

// Ways in which a client says who it is (RFC 7591 §2).
const (
	SecretBasic   = "client_secret_basic"
	SecretPost    = "client_secret_post"
	PrivateKeyJWT = "private_key_jwt"
	Public        = "none"
)

const (
	askTimeout = 30 * time.Second
	// early is how long before its end a token is renewed, at most: one that lives for less than twice as long is at its half.
	early = 30 * time.Second
)

// A Server is an authorization server, as far as it is known (RFC 8414 §2). TokenEndpoint is needed.
type Server struct {
	// Issuer is how it calls itself; empty: nobody knows.
	Issuer string
	// TokenEndpoint is the address at which it is asked. It is the caller's to see that secrets may go there.
	TokenEndpoint string
	// Methods and Algorithms are what it takes of its clients: ways to say who they are, and what their assertions are signed
	// with. Empty: nobody knows.
	Methods, Algorithms []string
}

// A Client is how this host is known to a server. Secrets are in it, and it prints as its id.
type Client struct {
	ID     string
	Method string
	Secret string // of SecretBasic and SecretPost
	key    key    // of PrivateKeyJWT
}

// String is the id.
func (c Client) String() string { return "the client " + c.ID }

// GoString is String.
func (c Client) GoString() string { return c.String() }

// Algorithm is what the client signs with, if its method is PrivateKeyJWT.
func (c Client) Algorithm() string { return c.key.algorithm }

// Method is how a client with a secret says who it is, or without, if that is empty.
func (s Server) Method(secret string) string {
	switch {
	case secret == "":
		return Public
	case !slices.Contains(s.Methods, SecretBasic) && slices.Contains(s.Methods, SecretPost):
		return SecretPost
	}
	return SecretBasic
}

// Client returns what this host is at s by the operator's credential: with its key, if there is one and s takes such, else with
// its secret. The error says what does not fit, and has no secret in it.
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
		return c, fmt.Errorf("the authorization server takes no assertions that are signed with a key (it takes %s)", list(s.Methods))
	case c.Secret != "" && !takes(c.Method):
		return c, fmt.Errorf("the authorization server takes no secrets of clients (it takes %s)", list(s.Methods))
	}
	return c, nil
}

// A Token is what a server grants.
type Token struct {
	Access  string
	Refresh string    // for the next one; empty if there is none
	Scopes  []string  // nil if the server does not say them: they are those that were asked for (RFC 6749 §5.1)
	Expires time.Time // zero if the server does not say it
}

// Token asks s for a token, as c. Without a grant type in params it is one for the client itself (RFC 6749 §4.4). It goes to the
// token endpoint alone: no redirect is followed. The error tells what the server says in one line, without what it could have
// been told.
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
	// This way of that library asks with the parameters that are given, of whatever grant type; its others leave some out.
	o := clientcredentials.Config{ClientID: id, ClientSecret: c.Secret, TokenURL: s.TokenEndpoint, AuthStyle: style,
		EndpointParams: params}
	t, err := o.Token(context.WithValue(ctx, oauth2.HTTPClient, straight(h)))
	hidden := append(c.secrets(), params.Get("client_assertion"), params.Get("refresh_token"), params.Get("code"),
		params.Get("code_verifier"))
	if err != nil {
		return Token{}, safe(err, hidden)
	}
	if t.Type() != "Bearer" {
		return Token{}, fmt.Errorf("a token of the type %s is no bearer token", words(t.TokenType, append(hidden, t.AccessToken, t.RefreshToken)))
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

// assert says in params who the client is, by its key. No client_id goes with that: the assertion has it (RFC 7521 §4.2).
func (c Client) assert(params url.Values) error {
	assertion, err := c.key.assertion(c.ID, time.Now())
	if err != nil {
		return err
	}
	params.Set("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
	params.Set("client_assertion", assertion)
	return nil
}

// Due tells whether a token that was granted at one time and expires at another is to be renewed at now: 30 s before it expires,
// or at the half of its life if that is later. One that expires at no known time is never due.
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

// secrets are those of a client, as a server may repeat them.
func (c Client) secrets() []string {
	if c.Secret == "" {
		return nil
	}
	id, secret := url.QueryEscape(c.ID), url.QueryEscape(c.Secret)
	return []string{c.Secret, secret, base64.StdEncoding.EncodeToString([]byte(id + ":" + secret))}
}

// safe is an error without what a server wrote into it, but for its code, and without the address.
func safe(err error, hidden []string) error {
	if e, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		return errors.New(strings.TrimSpace(fmt.Sprint(e.Response.StatusCode, " ", words(e.ErrorCode, hidden))))
	}
	return Plain(err, hidden...)
}

// Plain is why a request failed, without its address, on one line of at most 200 bytes or so: servers write some of it, those
// that speak no HTTP for example. It has nothing of what is hidden. What it came of is behind it, see [errors.Is].
func Plain(err error, hidden ...string) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	return &plain{words(err.Error(), hidden), err}
}

// A plain error is another in a few words.
type plain struct {
	words string
	err   error
}

func (p *plain) Error() string { return p.words }
func (p *plain) Unwrap() error { return p.err }

// words are what a server wrote, clipped, on one line, unless it repeats a secret.
func words(text string, hidden []string) string {
	if slices.ContainsFunc(hidden, func(h string) bool { return h != "" && strings.Contains(text, h) }) {
		return "(its words repeat a secret)"
	}
	return interact.Readable(interact.Clip(text, 200))
}

// list is what a server says that it takes.
func list(all []string) string { return words(strings.Join(all, ", "), nil) }
