package oidc

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v3"

	"github.com/lmosd/lmosd/interact"
)

// Limits of a token.
const (
	maxToken   = 16 << 10 // bytes
	maxSubject = 255      // bytes (OpenID Connect Core §2)
	maxKeyID   = 256      // bytes
	// maxSkew is the tolerated difference of clocks. RFC 8725 permits a few minutes.
	maxSkew = time.Minute
	// maxTime is the last second of the year 9999, which time.Time and JSON can express.
	maxTime = 253402300799
)

// A token is a JWT whose signature is not verified.
type token struct {
	jws    *jose.JSONWebSignature
	alg    jose.SignatureAlgorithm
	kid    string // may be empty
	typ    string // in lower case, without "application/"; may be empty
	issuer string // states it
}

// read parses a token: a JWS in compact form, with one of the known algorithms, no critical header, and a JSON object as payload. Keys and
// addresses of keys in the header are ignored (RFC 8725 §3.10).
func read(text string) (*token, error) {
	if len(text) > maxToken {
		return nil, fmt.Errorf("larger than %d bytes", maxToken)
	}
	if strings.Count(text, ".") != 2 || strings.ContainsAny(text, "{\t\r\n ") { // the parser also accepts a JWS in JSON, and white space
		return nil, errors.New("expected three parts")
	}
	jws, err := jose.ParseSigned(text)
	switch {
	case err != nil:
		return nil, err
	case len(jws.Signatures) != 1:
		return nil, errors.New("expected one signature")
	}
	h := jws.Signatures[0].Protected
	if !slices.Contains(known, jose.SignatureAlgorithm(h.Algorithm)) {
		return nil, fmt.Errorf("the algorithm %.40q is not supported", h.Algorithm)
	}
	t := &token{jws: jws, alg: jose.SignatureAlgorithm(h.Algorithm), kid: h.KeyID}
	if len(t.kid) > maxKeyID {
		return nil, errors.New("the id of the key is too long")
	}
	// Every critical header is unknown here, "b64" of RFC 7797 included (RFC 7515 §4.1.11).
	if _, found := h.ExtraHeaders["crit"]; found {
		return nil, errors.New("unknown critical header")
	}
	switch typ := h.ExtraHeaders[jose.HeaderType].(type) {
	case nil:
	case string:
		t.typ = strings.TrimPrefix(strings.ToLower(typ), "application/") // RFC 7515 §4.1.9
	default:
		return nil, errors.New("the type is not a string")
	}
	c, err := parseClaims(jws.UnsafePayloadWithoutVerification())
	if err != nil {
		return nil, err
	}
	t.issuer, err = c.text("iss")
	return t, err
}

// claims are the claims of a token. Unlike the fields of structs, their names are compared exactly.
type claims map[string]json.RawMessage

func parseClaims(payload []byte) (c claims, err error) {
	if err := json.Unmarshal(payload, &c); err != nil || c == nil {
		return nil, errors.New("the payload is not a JSON object")
	}
	return c, nil
}

// text returns a claim that is a string; empty without it.
func (c claims) text(name string) (s string, err error) {
	if raw, found := c[name]; found && json.Unmarshal(raw, &s) != nil {
		return "", fmt.Errorf("%s is not a string", name)
	}
	return s, nil
}

// texts returns a claim that is a string or a list of strings. Other values, and other elements, are ignored.
func texts(raw json.RawMessage) []string {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return []string{one}
	}
	var list []any
	_ = json.Unmarshal(raw, &list) // nil for another value
	var all []string
	for _, e := range list {
		if s, ok := e.(string); ok {
			all = append(all, s)
		}
	}
	return all
}

// instant returns a claim that is a NumericDate (RFC 7519 §2).
func (c claims) instant(name string) (t time.Time, found bool, err error) {
	raw, found := c[name]
	if !found {
		return t, false, nil
	}
	var seconds *float64
	if json.Unmarshal(raw, &seconds) != nil || seconds == nil || *seconds < 0 {
		return t, true, fmt.Errorf("%s is not a time", name)
	}
	return time.Unix(int64(min(*seconds, maxTime)), 0), true, nil
}

// at returns the claim of a name, or the member of an object for a name with dots; nil without it.
func (c claims) at(name string) json.RawMessage {
	if raw, found := c[name]; found {
		return raw
	}
	first, rest, nested := strings.Cut(name, ".")
	if !nested {
		return nil
	}
	var inner claims
	_ = json.Unmarshal(c[first], &inner) // nil for another value
	return inner.at(rest)
}

// An identity is what an accepted token says.
type identity struct {
	subject string
	scopes  []string  // of OAuth
	expires time.Time // with the tolerated difference of clocks
	claims  claims
}

// identify checks the claims of a token of type typ whose signature is verified. The error is an [*interact.Error] of code TokenRejected.
func (p *Provider) identify(typ string, c claims, now time.Time) (*identity, error) {
	// RFC 9068 §4. The issuer is compared again: read compared an unverified one.
	issuer, err := c.text("iss")
	if err != nil || issuer != p.Issuer {
		return nil, rejected("it is of another issuer")
	}
	switch {
	case typ != atJWT && (p.Type != "" || typ != "jwt" && typ != ""):
		return nil, rejected("its type is not that of an access token")
	case typ != atJWT && c.isIDToken():
		return nil, rejected("it is an ID token, not an access token")
	case c["cnf"] != nil: // RFC 7800; a key of DPoP or of mutual TLS, which the node does not check
		return nil, rejected("it is bound to a key of its client, and was sent as a bearer token")
	case !slices.Contains(texts(c["aud"]), p.Audience):
		return nil, rejected("it is for another audience than " + p.Audience)
	}
	i := &identity{claims: c}
	if i.subject, err = c.text("sub"); err != nil || !isSubject(i.subject) {
		return nil, rejected(fmt.Sprintf("expected a subject of 1 to %d printable ASCII characters", maxSubject))
	}
	expires, found, err := c.instant("exp")
	if i.expires = expires.Add(maxSkew); err != nil || !found {
		return nil, rejected("it has no time of expiry")
	}
	if !now.Before(i.expires) {
		return nil, rejected("it expired at " + expires.UTC().Format(time.RFC3339))
	}
	for _, name := range [...]string{"nbf", "iat"} {
		from, _, err := c.instant(name)
		switch {
		case err != nil:
			return nil, rejected(err.Error())
		case now.Add(maxSkew).Before(from):
			return nil, rejected("it is valid from " + from.UTC().Format(time.RFC3339) + " on; compare the clocks")
		}
	}
	scope := c["scope"]
	if scope == nil {
		scope = c["scp"] // of providers before RFC 9068
	}
	for _, text := range texts(scope) {
		i.scopes = append(i.scopes, strings.Fields(text)...)
	}
	return i, nil
}

// isIDToken reports whether claims are only those of an ID token (OpenID Connect Core §2, §3.3.2.11).
func (c claims) isIDToken() bool {
	return slices.ContainsFunc([]string{"nonce", "at_hash", "c_hash"}, func(name string) bool { return c[name] != nil })
}

// isSubject reports whether a subject can be a part of a principal: agents receive it in headers and variables.
func isSubject(text string) bool {
	return text != "" && len(text) <= maxSubject && strings.IndexFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
}

// rejected returns the error of a token, which does not contain it.
func rejected(reason string) *interact.Error {
	return interact.Errorf(interact.TokenRejected, "", "the token of the identity provider was rejected: %s", reason)
}
