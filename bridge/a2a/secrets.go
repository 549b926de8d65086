package a2a

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge/a2a/card"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
)

// secrets are what an imported agent asks of its callers, from the host's store. They go into requests and nowhere else.
type secrets struct {
	store  credentials.Store
	thing  string
	client *http.Client

	mu     sync.Mutex
	tokens map[string]token // of OAuth2, by scheme
}

// A token is good until it expires.
type token struct {
	text    string
	expires time.Time
}

// optional puts the secret of one name into requests, as a bearer token, if there is one.
func (s *secrets) optional(scheme string) func(*http.Request) error {
	return func(r *http.Request) error {
		if c, err := s.store.Lookup(s.thing, scheme, r.URL.String()); err == nil && c.Token != "" {
			r.Header.Set("Authorization", "Bearer "+c.Token)
		}
		return nil
	}
}

// of puts into requests what a card requires: all schemes of the first requirement for which there are secrets (A2A 1.0 §4.5). Where
// nothing is required, the first scheme for which there is one shows who asks: some operations are for those only.
func (s *secrets) of(c *card.Card) func(*http.Request) error {
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
			if first == nil {
				first = err
			}
		}
		if first != nil {
			return &interact.Error{Code: interact.Unauthenticated,
				Title: "the A2A agent asks for credentials that this node does not have", Err: first,
				Hint: fmt.Sprintf(`add {%q: {"SCHEME": {"origin": …, "token": …}}} to %s of the host`, s.thing, s.store.Name())}
		}
		return nil
	}
}

func (s *secrets) satisfy(r *http.Request, c *card.Card, need card.Requirement) error {
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

// secret returns what puts the secret of a scheme into r.
func (s *secrets) secret(r *http.Request, name string, scheme card.Scheme, scopes []string) (func(), error) {
	bearer := func(text string) func() { return func() { r.Header.Set("Authorization", "Bearer "+text) } }
	if flow, ok := clientFlow(scheme); ok {
		if text, err := s.grant(r.Context(), name, flow, scopes); err == nil {
			return bearer(text), nil
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
	return nil, fmt.Errorf("the credentials are of another kind than the scheme")
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

// grant gets a token for a client (RFC 6749 §4.4). Its id and secret go to the origin that the store has for them, which is that
// of the token's address.
func (s *secrets) grant(ctx context.Context, name string, flow card.Flow, scopes []string) (string, error) {
	c, err := s.store.Lookup(s.thing, name, flow.TokenURL)
	if err != nil || c.Username == "" {
		return "", fmt.Errorf("there is no client id and secret for %s", credentials.OriginOf(flow.TokenURL))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tokens[name]; time.Now().Before(t.expires) {
		return t.text, nil
	}
	form := url.Values{"grant_type": {"client_credentials"}}
	if len(scopes) > 0 {
		form.Set("scope", strings.Join(scopes, " "))
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, flow.TokenURL, strings.NewReader(form.Encode()))
	if err != nil {
		return "", err
	}
	q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	q.SetBasicAuth(url.QueryEscape(c.Username), url.QueryEscape(c.Password)) // RFC 6749 §2.3.1
	answer, err := s.client.Do(q)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	var granted struct {
		Token   string `json:"access_token"`
		Expires int    `json:"expires_in"`
	}
	err = json.NewDecoder(io.LimitReader(answer.Body, 64<<10)).Decode(&granted)
	if err != nil || answer.StatusCode != http.StatusOK || granted.Token == "" {
		return "", fmt.Errorf("%s gives no token: it answers %d", credentials.OriginOf(flow.TokenURL), answer.StatusCode)
	}
	if s.tokens == nil {
		s.tokens = map[string]token{}
	}
	good := max(time.Duration(granted.Expires)*time.Second*9/10, time.Second)
	s.tokens[name] = token{granted.Token, time.Now().Add(good)}
	return granted.Token, nil
}

// missing says for which schemes of a card the store has nothing, if that keeps the agent from being asked.
func (s *secrets) missing(c *card.Card) []string {
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
	return []string{fmt.Sprintf("the agent asks for credentials: put %q with %s into %s", s.thing,
		strings.Join(slices.Sorted(maps.Keys(names)), " or "), s.store.Name())}
}
