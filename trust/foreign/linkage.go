package foreign

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/aries"
	"github.com/lmosd/lmosd/internal/jcs"
)

// Limits of a DID configuration.
const (
	MaxConfiguration = 128 << 10 // bytes
	maxLinked        = 64        // entries
)

const linkageType = "DomainLinkageCredential"

// Linked returns nil if a DID configuration, which an origin served at /.well-known/did-configuration.json, links the origin to a DID: an entry
// is a credential of the DID about itself and the origin, as a JWT of EdDSA, ES256 or ES384, or with an embedded proof (DIF Well Known DID
// Configuration 1.0). Entries of other DIDs are not verified. origin is "https://host", with a port unless it is 443. The error says why not.
func Linked(ctx context.Context, raw []byte, origin string, id did.DID, check aries.Check) error {
	doc, err := jcs.Object(raw, MaxConfiguration)
	if err != nil {
		return err
	}
	list, _ := doc["linked_dids"].([]any)
	if doc["@context"] != aries.ContextLinkage || len(doc) != 2 || len(list) == 0 || len(list) > maxLinked {
		return errors.New("it is not a DID configuration")
	}
	if check.Now.IsZero() {
		check.Now = time.Now()
	}
	check.Subject = id
	failed := fmt.Errorf("no entry is of %s", id.Short())
	for _, entry := range list {
		switch e := entry.(type) {
		case string:
			err = linkedByJWT(ctx, e, origin, id, check)
		case map[string]any:
			err = linkedByProof(ctx, e, origin, id, check)
		default:
			err = errors.New("an entry is neither a JWT nor a credential")
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, errOtherDID) {
			failed = err
		}
	}
	return failed
}

// errOtherDID means that an entry is of another DID.
var errOtherDID = errors.New("of another DID")

func linkedByProof(ctx context.Context, entry map[string]any, origin string, id did.DID, check aries.Check) error {
	if entry["issuer"] != string(id) {
		return errOtherDID
	}
	raw, err := jcs.Append(nil, entry)
	if err != nil {
		return err
	}
	c, err := aries.VerifyCredential(ctx, raw, check)
	switch {
	case err != nil:
		return err
	case !slices.Equal(c.Types, []string{linkageType}):
		return fmt.Errorf("an entry is not a %s", linkageType)
	case c.Claims["origin"] != origin:
		return fmt.Errorf("an entry is for the origin %.200q, not %s", fmt.Sprint(c.Claims["origin"]), origin)
	}
	return nil
}

// linkedByJWT verifies an entry in the form of a JWT. Its claims iss, sub and vc state the same.
func linkedByJWT(ctx context.Context, jwt, origin string, id did.DID, check aries.Check) error {
	header, rest, _ := strings.Cut(jwt, ".")
	payload, signature, ok := strings.Cut(rest, ".")
	h, err := part(header)
	if err != nil || !ok || len(jwt) > MaxCredential {
		return fmt.Errorf("an entry is not a JWT: %w", cmpErr(err))
	}
	claims, err := part(payload)
	if err != nil {
		return fmt.Errorf("an entry is not a JWT: %w", err)
	}
	if claims["iss"] != string(id) {
		return errOtherDID
	}
	if err := signedBy(ctx, h, id, header+"."+payload, signature, check.Resolver); err != nil {
		return err
	}
	return checkLinkage(claims, origin, id, check.Now)
}

func cmpErr(err error) error {
	if err == nil {
		return errors.New("expected three parts of at most 16 KiB")
	}
	return err
}

// part decodes a part of a JWT.
func part(text string) (map[string]any, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return nil, err
	}
	return jcs.Object(b, MaxCredential)
}

// signedBy verifies the signature of a JWT by a key that a DID lists under assertionMethod. The algorithm is that of the key.
func signedBy(ctx context.Context, header map[string]any, id did.DID, text, signature string, r did.Resolver) error {
	for name := range header {
		if !slices.Contains([]string{"alg", "kid", "typ"}, name) {
			return fmt.Errorf("the header of the JWT has the member %.80q", name)
		}
	}
	kid, _ := header["kid"].(string)
	doc, err := r.Resolve(ctx, id)
	if err != nil {
		return err
	}
	m := doc.Method(kid)
	if m == nil || doc.ID != id || m.Controller != id || !doc.Allows("assertionMethod", kid) {
		return fmt.Errorf("%s does not list the key %.200q under assertionMethod", id.Short(), kid)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(signature)
	if err != nil || m.Algorithm() == "" || header["alg"] != m.Algorithm() || !m.Verifies([]byte(text), b) {
		return fmt.Errorf("the signature of the JWT does not verify with the key %.200q", kid)
	}
	return nil
}

// checkLinkage checks the claims of a JWT.
func checkLinkage(claims map[string]any, origin string, id did.DID, now time.Time) error {
	vc, _ := claims["vc"].(map[string]any)
	subject, _ := vc["credentialSubject"].(map[string]any)
	types, _ := vc["type"].([]any)
	stated, _ := subject["origin"].(string)
	if !strings.Contains(stated, "://") { // as in the example of the specification
		stated = "https://" + stated
	}
	end, hasEnd := claims["exp"].(float64)
	start, hasStart := claims["nbf"].(float64)
	switch skew := aries.Skew.Seconds(); {
	case claims["sub"] != string(id) || subject["id"] != string(id) || vc["issuer"] != nil && vc["issuer"] != string(id):
		return errors.New("the JWT is not of the DID about itself")
	case !slices.Contains(types, any(linkageType)):
		return fmt.Errorf("the JWT is not a %s", linkageType)
	case stated != origin:
		return fmt.Errorf("the JWT is for the origin %.200q, not %s", stated, origin)
	case !hasEnd || !hasStart:
		return errors.New("the JWT has no time")
	case float64(now.Unix())+skew < start:
		return fmt.Errorf("%w: the JWT is valid later", aries.ErrNotYet)
	case float64(now.Unix())-skew > end:
		return fmt.Errorf("%w: the JWT", aries.ErrExpired)
	}
	return nil
}
