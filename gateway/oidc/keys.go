package oidc

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v3"
)

// Limits of the documents of a provider.
const (
	maxDocument  = 1 << 20 // bytes
	maxKeys      = 64
	minRSA       = 2048 // bits (RFC 7518 §3.3)
	maxRSA       = 8192 // bits; larger ones are slow
	fetchTimeout = 10 * time.Second
	maxRedirects = 3
)

// A key is a public key of a provider.
type key struct {
	public     any    // *rsa.PublicKey, *ecdsa.PublicKey or ed25519.PublicKey
	id         string // may be empty
	alg        string // for which it is meant; empty: all that fit
	thumbprint string // RFC 7638
}

// fits reports whether a key may verify signatures with an algorithm: its type decides, so that no algorithm turns a key into another one
// (RFC 8725 §3.1).
func (k *key) fits(alg jose.SignatureAlgorithm) bool {
	if k.alg != "" && k.alg != string(alg) {
		return false
	}
	switch public := k.public.(type) {
	case *rsa.PublicKey:
		return strings.HasPrefix(string(alg), "RS") || strings.HasPrefix(string(alg), "PS")
	case *ecdsa.PublicKey:
		return map[int]jose.SignatureAlgorithm{256: jose.ES256, 384: jose.ES384, 521: jose.ES512}[public.Params().BitSize] == alg
	case ed25519.PublicKey:
		return alg == jose.EdDSA
	}
	return false
}

// parseKeys parses a JWK Set (RFC 7517 §5). Keys that cannot verify signatures of tokens are ignored; a set without any other is an error.
func parseKeys(raw []byte) ([]key, error) {
	var set struct{ Keys []json.RawMessage }
	if err := json.Unmarshal(raw, &set); err != nil {
		return nil, errors.New("the keys are not a JWK Set")
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("expected at most %d keys, got %d", maxKeys, len(set.Keys))
	}
	var all []key
	for _, one := range set.Keys {
		var j jose.JSONWebKey
		if j.UnmarshalJSON(one) != nil || !j.Valid() || !j.IsPublic() || j.Use != "" && j.Use != "sig" || len(j.KeyID) > maxKeyID {
			continue
		}
		if r, ok := j.Key.(*rsa.PublicKey); ok && (r.N.BitLen() < minRSA || r.N.BitLen() > maxRSA) {
			continue
		}
		sum, err := j.Thumbprint(crypto.SHA256)
		if err != nil {
			continue
		}
		all = append(all, key{j.Key, j.KeyID, j.Algorithm, string(sum)})
	}
	if len(all) == 0 {
		return nil, errors.New("the provider publishes no keys for signatures that the node can use")
	}
	return all, nil
}

// newClient returns a client for requests to the issuer of p. It follows redirects within the origin of the issuer only.
func (p *Provider) newClient() (*http.Client, error) {
	pool, err := p.authorities()
	if err != nil {
		return nil, err
	}
	return &http.Client{Timeout: fetchTimeout,
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true,
			MaxResponseHeaderBytes: 64 << 10, IdleConnTimeout: 30 * time.Second},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) > maxRedirects {
				return errors.New("too many redirects")
			}
			return p.checkOrigin(r.URL)
		}}, nil
}

// checkOrigin refuses a URL of another origin than the issuer's.
func (p *Provider) checkOrigin(u *url.URL) error {
	issuer, err := url.Parse(p.Issuer)
	if err != nil || u.Scheme != issuer.Scheme || u.Host != issuer.Host || u.User != nil {
		return fmt.Errorf("the provider names a URL of another host, %s", u.Host)
	}
	return nil
}

// fetchKeys reads the keys of p: its metadata (OpenID Connect Discovery §4), and the keys to which they refer.
func (p *Provider) fetchKeys(ctx context.Context, client *http.Client) ([]key, error) {
	raw, err := get(ctx, client, strings.TrimSuffix(p.Issuer, "/")+"/.well-known/openid-configuration")
	if err != nil {
		return nil, err
	}
	var meta struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(raw, &meta); err != nil {
		return nil, errors.New("the metadata of the provider are not valid")
	}
	if meta.Issuer != p.Issuer { // §4.3
		return nil, fmt.Errorf("the provider states to be the issuer %.200q", meta.Issuer)
	}
	at, err := url.Parse(meta.Keys)
	if err != nil {
		return nil, errors.New("the address of the keys is not valid")
	}
	if err := p.checkOrigin(at); err != nil {
		return nil, err
	}
	if raw, err = get(ctx, client, at.String()); err != nil {
		return nil, err
	}
	return parseKeys(raw)
}

// get reads a JSON document.
func get(ctx context.Context, client *http.Client, address string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s", address, resp.Status)
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	if err == nil && len(raw) > maxDocument {
		err = fmt.Errorf("%s is larger than %d bytes", address, maxDocument)
	}
	return raw, err
}
