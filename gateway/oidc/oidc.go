// Package oidc accepts the access tokens of identity providers: JWTs of the profile RFC 9068 whose issuer and audience the configuration names.
//
// The keys of a provider are found by OpenID Connect Discovery when its first token arrives, and kept. A token that cannot be checked, because
// the provider does not answer and its key is not known, is refused. The principal of an accepted token has the name "oidc:PROVIDER:SUBJECT",
// and the roles and scopes to which the configuration maps the claims and OAuth scopes of the token.
//
// Sources: RFC 9068, RFC 8725, RFC 7515, RFC 7517, OpenID Connect Discovery 1.0, docs/decisions/0056-tokens-of-identity-providers.md.
package oidc

import (
	"crypto/x509"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/go-jose/go-jose/v3"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/netguard"
	"github.com/lmosd/lmosd/policy/access"
)

// Limits of a configuration.
const (
	MaxProviders = 4
	maxMapped    = 64 // rights and roles of one provider
	maxName      = 32 // bytes
	maxCA        = 1 << 20
)

// A Provider is the configuration of an identity provider.
type Provider struct {
	// Name is the name of the provider in principals and access rules: 1 to 32 of [a-z0-9._-].
	Name string `json:"name"`
	// Issuer is its issuer identifier, an https URL exactly as in its tokens; http only for loopback. The node sends requests to its host only.
	Issuer string `json:"issuer"`
	// Audience is the audience that a token must have: the name of this node at the provider, usually the URL of its API (RFC 8707).
	Audience string `json:"audience"`
	// Algorithms are the permitted algorithms of signatures (RFC 7518 §3.1, RFC 8037 §3.1). Empty: RS256, ES256, EdDSA and PS256.
	Algorithms []string `json:"algorithms,omitempty"`
	// Type is the required type of tokens: "at+jwt" (RFC 9068 §2.1). Empty: also "JWT", or none.
	Type string `json:"type,omitempty"`
	// Scopes maps an OAuth scope of a token to rights, written as the scopes of access tokens ([tokens.ParseScope]).
	Scopes map[string][]string `json:"scopes,omitempty"`
	// Claims maps a value of a claim to roles, for access rules (local/ROLE) and agents. The name of a claim in an object has the names of the
	// objects before it: "realm_access.roles".
	Claims map[string]map[string][]string `json:"claims,omitempty"`
	// CA is a file with the certificates, in PEM, that the provider's must be signed by. Empty: those of the system.
	CA string `json:"ca,omitempty"`
}

// The algorithms of signatures that a configuration may permit, and those of an empty one. Those with a shared secret, and "none", are not
// among them (RFC 8725 §3.1).
var (
	known = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512,
		jose.EdDSA}
	usual = []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.EdDSA, jose.PS256}
)

// atJWT is the type of access tokens (RFC 9068 §2.1).
const atJWT = "at+jwt"

// algorithms returns the permitted algorithms.
func (p *Provider) algorithms() []jose.SignatureAlgorithm {
	if len(p.Algorithms) == 0 {
		return usual
	}
	all := make([]jose.SignatureAlgorithm, len(p.Algorithms))
	for i, a := range p.Algorithms {
		all[i] = jose.SignatureAlgorithm(a)
	}
	return all
}

// Check returns the error of the first part of a configuration that cannot be used. It reads no file.
func Check(all []Provider) error {
	if len(all) > MaxProviders {
		return fmt.Errorf("expected at most %d identity providers, got %d", MaxProviders, len(all))
	}
	names, issuers := map[string]bool{}, map[string]bool{}
	for i := range all {
		p := &all[i]
		switch err := p.check(); {
		case err != nil && p.Name == "":
			return fmt.Errorf("identity provider %d: %w", i+1, err)
		case err != nil:
			return fmt.Errorf("identity provider %q: %w", p.Name, err)
		case names[p.Name]:
			return fmt.Errorf("two identity providers have the name %q", p.Name)
		case issuers[p.Issuer]:
			return fmt.Errorf("two identity providers have the issuer %q", p.Issuer)
		}
		names[p.Name], issuers[p.Issuer] = true, true
	}
	return nil
}

func (p *Provider) check() error {
	u, err := url.Parse(p.Issuer)
	switch {
	case !did.ValidPrincipalName(p.Name) || len(p.Name) > maxName:
		return fmt.Errorf("expected a name of at most %d of a-z, 0-9, dot, hyphen and underscore", maxName)
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("expected the URL of the issuer, got %q", p.Issuer)
	case u.Scheme != "https" && !(u.Scheme == "http" && netguard.IsLoopback(u.Hostname())):
		return fmt.Errorf("expected an https URL of the issuer, got %q", p.Issuer)
	case p.Audience == "":
		return fmt.Errorf("the audience is missing: the name of this node in its tokens")
	case strings.HasPrefix(p.CA, "~"):
		return fmt.Errorf("the path of ca begins with ~, which is not expanded here")
	case p.Type != "" && p.Type != atJWT:
		return fmt.Errorf("expected the type %s or none, got %q", atJWT, p.Type)
	}
	for _, a := range p.algorithms() {
		if !slices.Contains(known, a) {
			return fmt.Errorf("expected algorithms of %v, got %q", known, a)
		}
	}
	if _, err := p.rights(); err != nil {
		return err
	}
	var roles []string
	for _, values := range p.Claims {
		for _, some := range values {
			if err := tokens.CheckRoles(some); err != nil {
				return err
			}
			roles = append(roles, some...)
		}
	}
	if len(roles) > maxMapped {
		return fmt.Errorf("expected at most %d roles, got %d", maxMapped, len(roles))
	}
	return nil
}

// rights returns the scopes of access tokens to which OAuth scopes are mapped.
func (p *Provider) rights() (map[string][]tokens.Scope, error) {
	all, n := map[string][]tokens.Scope{}, 0
	for name, texts := range p.Scopes {
		if name == "" || strings.ContainsAny(name, " \"\\") {
			return nil, fmt.Errorf("expected an OAuth scope, got %q", name)
		}
		for _, text := range texts {
			s, err := tokens.ParseScope(text)
			if err != nil {
				return nil, err
			}
			all[name] = append(all[name], s)
			n++
		}
	}
	if n > maxMapped {
		return nil, fmt.Errorf("expected at most %d rights, got %d", maxMapped, n)
	}
	return all, nil
}

// Open opens the access tokens in a data directory ([tokens.Open]), which also accept the tokens of identity providers. The error is that of
// tokens.Open, or of code ConfigInvalid for providers that [Check] refuses or whose file with certificates cannot be read.
func Open(dir string, providers []Provider, log *slog.Logger) (*tokens.Store, error) {
	v, err := Verifiers(providers, log)
	if err != nil {
		return nil, err
	}
	s, err := tokens.Open(dir)
	switch {
	case v != nil && err != nil:
		v.Close()
	case v != nil:
		s.Accept(v)
	}
	return s, err
}

// Verifiers returns the verifier of the tokens of providers; nil for none. The error is an [*interact.Error] of code ConfigInvalid.
func Verifiers(providers []Provider, log *slog.Logger) (tokens.Verifier, error) {
	if len(providers) == 0 {
		return nil, nil
	}
	v, err := New(providers, log)
	if err != nil {
		return nil, &interact.Error{Code: interact.ConfigInvalid, Title: "http.oidc cannot be used", Err: err, Hint: "correct the configuration of the identity provider"}
	}
	return v, nil
}

// authorities returns the certificates in the file of p; nil without a file.
func (p *Provider) authorities() (*x509.CertPool, error) {
	if p.CA == "" {
		return nil, nil
	}
	info, err := os.Stat(p.CA)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxCA {
		return nil, fmt.Errorf("%s is larger than %d bytes", p.CA, maxCA)
	}
	raw, err := os.ReadFile(p.CA)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		return nil, fmt.Errorf("%s has no certificates in PEM", p.CA)
	}
	return pool, nil
}

// addRules adds the access rules of all rights in the configuration of some providers: a caller with a scope may do what it says.
func addRules(b *access.Builder, all []Provider) error {
	texts := map[string]tokens.Scope{}
	for i := range all {
		rights, err := all[i].rights()
		if err != nil {
			return err
		}
		for _, some := range rights {
			for _, s := range some {
				texts[s.String()] = s
			}
		}
	}
	for _, text := range slices.Sorted(maps.Keys(texts)) {
		for _, r := range texts[text].Rules("scope:" + text) {
			if err := b.AddRule("http.oidc", r); err != nil {
				return fmt.Errorf("the right %q cannot be used: %w", text, err)
			}
		}
	}
	return nil
}
