package a2a

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/bridge/a2a/card"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/oauth"
)

// credentialSet are the credentials of the host's store for an imported agent. They are sent in requests only.
type credentialSet struct {
	store  credentials.Store
	thing  string
	client *http.Client

	lock   chan struct{}          // mutex of tokens that supports cancellation: holds a value while locked
	tokens map[string]issuedToken // OAuth2 tokens, by scheme and scopes
}

// maxTokens limits the tokens of one agent, whose card chooses the scopes.
const maxTokens = 64

// An issuedToken is a token with the time when it was issued.
type issuedToken struct {
	oauth.Token
	at time.Time
}

// optional adds the bearer token of one scheme to requests, if there is one.
func (s *credentialSet) optional(scheme string) func(*http.Request) error {
	return func(r *http.Request) error {
		if c, err := s.store.Lookup(s.thing, scheme, r.URL.String()); err == nil && c.Token != "" {
			r.Header.Set("Authorization", "Bearer "+c.Token)
		}
		return nil
	}
}

// of adds the credentials that a card requires: all schemes of the first requirement for which the store has credentials (A2A 1.0 §4.5).
// If nothing is required, the first available scheme identifies the caller, because some operations need it.
func (s *credentialSet) of(c *card.Card) func(*http.Request) error {
	return func(r *http.Request) error {
		for _, name := range slices.Sorted(maps.Keys(c.Schemes)) {
			if len(c.Requirements) == 0 && s.satisfy(r, c, card.Requirement{Schemes: map[string]card.Scopes{name: {}}}) == nil {
				return nil
			}
		}
		var first error
		for _, need := range c.Requirements {
			err := s.satisfy(r, c, need)
			if err == nil {
				return nil
			}
			first = cmp.Or(first, err)
		}
		if first != nil {
			return &interact.Error{Code: interact.Unauthenticated,
				Title: "the A2A agent requires credentials that this node does not have", Err: first,
				Hint: fmt.Sprintf(`add {%q: {"SCHEME": {"origin": …, "token": …}}} to %s of the host`, s.thing, s.store.Name())}
		}
		return nil
	}
}

func (s *credentialSet) satisfy(r *http.Request, c *card.Card, need card.Requirement) error {
	put := make([]func(), 0, len(need.Schemes))
	for name, scopes := range need.Schemes {
		scheme, known := c.Schemes[name]
		if !known {
			return fmt.Errorf("the card has no scheme %q", name)
		}
		f, err := s.secret(r, name, scheme, scopes.List)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		put = append(put, f)
	}
	for _, f := range put {
		f()
	}
	return nil
}

// secret returns a function that adds the credentials of a scheme to r.
func (s *credentialSet) secret(r *http.Request, name string, scheme card.Scheme, scopes []string) (func(), error) {
	bearer := func(text string) func() { return func() { r.Header.Set("Authorization", "Bearer "+text) } }
	if flow, ok := clientFlow(scheme); ok {
		if own, err := s.store.Lookup(s.thing, name, flow.TokenURL); err == nil && own.Confidential() {
			text, err := s.grant(r.Context(), name, flow, own, scopes)
			return bearer(text), err
		}
	}
	c, err := s.store.Lookup(s.thing, name, r.URL.String())
	if err != nil {
		return nil, err
	}
	switch {
	case scheme.APIKey != nil && c.Key != "":
		return func() { putKey(r, scheme.APIKey, c.Key) }, nil
	case scheme.HTTP != nil && strings.EqualFold(scheme.HTTP.Scheme, "basic") && c.Username != "":
		return func() { r.SetBasicAuth(c.Username, c.Password) }, nil
	case c.Token != "" && (scheme.OAuth2 != nil || scheme.OpenID != nil ||
		scheme.HTTP != nil && strings.EqualFold(scheme.HTTP.Scheme, "bearer")):
		return bearer(c.Token), nil
	}
	return nil, fmt.Errorf("the credentials do not match the type of the scheme")
}

func putKey(r *http.Request, k *card.APIKey, value string) {
	switch k.Location {
	case "query":
		q := r.URL.Query()
		q.Set(k.Name, value)
		r.URL.RawQuery = q.Encode()
	case "cookie":
		r.AddCookie(&http.Cookie{Name: k.Name, Value: value})
	default:
		r.Header.Set(k.Name, value)
	}
}

func clientFlow(s card.Scheme) (card.Flow, bool) {
	if s.OAuth2 == nil {
		return card.Flow{}, false
	}
	f, ok := s.OAuth2.Flows["clientCredentials"]
	return f, ok
}

// grant returns a token of the client credentials flow (RFC 6749 §4.4). Client id and secret, or a signed assertion, are sent only to the
// origin that the store has for them. A card does not name the issuer, so the audience of an assertion is the token endpoint, unless the
// store has another one.
func (s *credentialSet) grant(ctx context.Context, name string, flow card.Flow, own credentials.Credential,
	scopes []string) (string, error) {
	key := name + " " + strings.Join(scopes, " ")
	select {
	case s.lock <- struct{}{}:
		defer func() { <-s.lock }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	now := time.Now()
	if g, ok := s.tokens[key]; ok && now.Before(g.Expires) && !oauth.Due(g.at, g.Expires, now) {
		return g.Access, nil
	}
	server := oauth.Server{TokenEndpoint: flow.TokenURL}
	c, err := server.Client(own)
	if err != nil {
		return "", err
	}
	params := url.Values{}
	if len(scopes) > 0 {
		params.Set("scope", strings.Join(scopes, " "))
	}
	t, err := server.Token(ctx, s.client, c, params)
	if err != nil {
		return "", fmt.Errorf("token request to %s failed: %w", credentials.OriginOf(flow.TokenURL), err)
	}
	if t.Expires.IsZero() {
		t.Expires = now.Add(2 * time.Second) // unknown: used for concurrent calls only
	}
	if s.tokens == nil || len(s.tokens) == maxTokens {
		s.tokens = map[string]issuedToken{}
	}
	s.tokens[key] = issuedToken{t, now}
	return t.Access, nil
}

// missing returns a warning if no requirement of a card can be satisfied from the store.
func (s *credentialSet) missing(c *card.Card) []string {
	if len(c.Requirements) == 0 || len(c.Interfaces) == 0 {
		return nil
	}
	r, err := http.NewRequest(http.MethodPost, c.Interfaces[0].URL, nil)
	if err != nil {
		return nil
	}
	names := map[string]bool{}
	for _, need := range c.Requirements {
		have := true
		for name := range need.Schemes {
			_, err := s.store.Lookup(s.thing, name, r.URL.String())
			if flow, ok := clientFlow(c.Schemes[name]); ok && err != nil {
				_, err = s.store.Lookup(s.thing, name, flow.TokenURL)
			}
			have = have && err == nil
			names[name] = true
		}
		if have {
			return nil
		}
	}
	return []string{fmt.Sprintf("the agent requires credentials: add %q with %s to %s", s.thing,
		strings.Join(slices.Sorted(maps.Keys(names)), " or "), s.store.Name())}
}
