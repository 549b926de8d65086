package proof

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
)

// maxProofs limits the proofs of a document.
const maxProofs = 8

// A Check has the requirements for a proof. The zero value requires an assertion by a did:key, now.
type Check struct {
	// Resolver resolves the signers. Nil: [did.Keys].
	Resolver did.Resolver
	// Now is the time of the check. Zero: the current time.
	Now time.Time
	// Purpose is the required proofPurpose. Empty: assertionMethod.
	Purpose string
	// Domain and Challenge, if set, are required in every proof.
	Domain, Challenge string
}

// A Verified is the result of a verification. Document shares memory with the input.
type Verified struct {
	// Document is the document without "proof" and "registration". If the proof has an @context, Document has that one, without contexts
	// that were appended after signing.
	Document map[string]any
	// Owner is the DID of the signer, Method the DID URL of the key. Of several proofs, these and the times are those
	// of the first.
	Owner   did.DID
	Method  string
	Created time.Time
	Expires time.Time // zero: the proof does not expire by itself
	// Owners are the DIDs of all signers, each once, in the order of the proofs.
	Owners []did.DID
}

// Verify verifies the member "proof" of doc, which comes from strictly decoded JSON and is not changed. A proof may be
// one object or an array of 1 to [maxProofs], all of which must verify, each over the document without any proof. The
// key must be an Ed25519 key that the signer's document lists under the purpose and controls. A proof must have a time of creation, and may
// be [Skew] in the future or past its expiry.
//
// Errors are [*Error] and wrap [ErrProof]. An error that wraps [ErrTime] means that the time is wrong, not the signature. After an error of
// the resolver the signature is unchecked.
func Verify(ctx context.Context, doc map[string]any, c Check) (*Verified, error) {
	v, err := c.withDefaults().document(ctx, doc)
	if err == nil {
		return v, nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return nil, e
	}
	return nil, &Error{kind: "PROOF_VERIFICATION_ERROR", err: err}
}

func (c Check) withDefaults() Check {
	if c.Resolver == nil {
		c.Resolver = did.Keys()
	}
	if c.Now.IsZero() {
		c.Now = time.Now()
	}
	c.Purpose = cmp.Or(c.Purpose, did.PurposeAssertion)
	return c
}

func (c Check) document(ctx context.Context, doc map[string]any) (*Verified, error) {
	proofs, err := list(doc["proof"])
	if err != nil {
		return nil, err
	}
	v := &Verified{}
	body := without(doc, "proof", "registration")
	for i, p := range proofs {
		signed, err := c.signedDocument(body, p)
		if err != nil {
			return nil, err
		}
		if i > 0 && !reflect.DeepEqual(signed["@context"], v.Document["@context"]) {
			return nil, errors.New("the proofs differ in their @context")
		}
		s, err := c.verifyProof(ctx, signed, p)
		if err != nil {
			return nil, err
		}
		v.add(signed, s)
	}
	return v, nil
}

// add adds a signer of the document.
func (v *Verified) add(doc map[string]any, s *statement) {
	if v.Document == nil {
		v.Document = doc
		v.Owner, v.Method, v.Created, v.Expires = s.method.DID, s.method.String(), s.created, s.expires
	}
	if !slices.Contains(v.Owners, s.method.DID) {
		v.Owners = append(v.Owners, s.method.DID)
	}
}

// list returns the proofs in the member proof.
func list(v any) ([]map[string]any, error) {
	var all []any
	switch v := v.(type) {
	case nil:
		return nil, errors.New("the document has no proof")
	case map[string]any:
		return []map[string]any{v}, nil
	case []any:
		all = v
	}
	if len(all) == 0 || len(all) > maxProofs {
		return nil, fmt.Errorf("the proof is neither an object nor an array of 1 to %d", maxProofs)
	}
	proofs := make([]map[string]any, len(all))
	for i, p := range all {
		m, ok := p.(map[string]any)
		if !ok {
			return nil, errors.New("the array of proofs has an entry that is not an object")
		}
		proofs[i] = m
	}
	return proofs, nil
}

// signedDocument returns the document that p signs. If p has an @context, its values must be the first ones of the document's, and the
// signed document has only these (EdDSA Cryptosuites §3.3.2, step 4).
func (c Check) signedDocument(body, p map[string]any) (map[string]any, error) {
	own, ok := p["@context"]
	if !ok {
		return body, nil
	}
	mine, whole := contexts(own), contexts(body["@context"])
	if len(mine) == 0 || len(mine) > len(whole) || !reflect.DeepEqual(mine, whole[:len(mine)]) {
		return nil, errors.New("the @context of the proof is not the beginning of the document's")
	}
	signed := without(body)
	signed["@context"] = own
	return signed, nil
}

// contexts returns the values of an @context.
func contexts(v any) []any {
	switch v := v.(type) {
	case []any:
		return v
	case string, map[string]any:
		return []any{v}
	}
	return nil
}

// A statement is a parsed proof.
type statement struct {
	method    did.URL
	created   time.Time
	expires   time.Time
	signature []byte
}

// verifyProof verifies the proof p of doc: cheap checks first, then the key, then the signature.
func (c Check) verifyProof(ctx context.Context, doc, p map[string]any) (*statement, error) {
	s, err := c.read(p)
	if err != nil {
		return nil, err
	}
	key, err := c.key(ctx, s.method)
	if err != nil {
		return nil, err
	}
	if err := c.times(s); err != nil {
		return nil, err
	}
	hash, err := hashData(without(p, "proofValue"), doc)
	if err != nil {
		return nil, err
	}
	if !ed25519.Verify(key, hash, s.signature) {
		return nil, fmt.Errorf("the signature of %s does not verify: the document or its proof was changed after signing",
			s.method.DID.Short())
	}
	return s, nil
}

// read reads the members of p and rejects values that this cryptosuite does not support.
func (c Check) read(p map[string]any) (*statement, error) {
	for name, want := range map[string]string{"type": proofType, "cryptosuite": cryptosuite, "proofPurpose": c.Purpose} {
		if got, _ := p[name].(string); got != want {
			return nil, fmt.Errorf("expected %s %q in the proof, got %q", name, want, truncate(got))
		}
	}
	if _, ok := p["previousProof"]; ok {
		return nil, errors.New("the proof is part of a chain (previousProof), which is not supported")
	}
	if err := c.audience(p); err != nil {
		return nil, err
	}
	s := &statement{}
	if err := s.readKey(p); err != nil {
		return nil, err
	}
	return s, s.readTimes(p)
}

// readKey reads the method and the signature.
func (s *statement) readKey(p map[string]any) (err error) {
	method, _ := p["verificationMethod"].(string)
	if s.method, err = did.ParseURL(method); err != nil {
		return fmt.Errorf("verificationMethod: %w", err)
	}
	value, _ := p["proofValue"].(string)
	// 64 bytes have at most 88 digits: a longer text need not be decoded.
	if len(value) > 1+88 {
		return errors.New("proofValue is longer than a signature")
	}
	if s.signature, err = did.DecodeBase58(value); err != nil {
		return fmt.Errorf("proofValue: %w", err)
	}
	if len(s.signature) != ed25519.SignatureSize {
		return fmt.Errorf("proofValue has %d bytes, a signature has 64", len(s.signature))
	}
	return nil
}

func (s *statement) readTimes(p map[string]any) (err error) {
	if s.created, err = DateTime(p["created"]); err != nil {
		return fmt.Errorf("created: %w", err)
	}
	v, ok := p["expires"]
	if !ok {
		return nil
	}
	if s.expires, err = DateTime(v); err != nil {
		return fmt.Errorf("expires: %w", err)
	}
	if s.expires.Before(s.created) {
		return errors.New("the proof expires before it is created")
	}
	return nil
}

// audience checks the domain and challenge of the proof (Data Integrity §4.3, steps 6 and 7). A domain may be one string or several.
func (c Check) audience(p map[string]any) error {
	if c.Domain != "" {
		domains, _ := p["domain"].([]any)
		if p["domain"] != any(c.Domain) && !slices.Contains(domains, any(c.Domain)) {
			return &Error{kind: "INVALID_DOMAIN_ERROR", err: fmt.Errorf("the proof is not for the domain %q", c.Domain)}
		}
	}
	if c.Challenge != "" && p["challenge"] != any(c.Challenge) {
		return &Error{kind: "INVALID_CHALLENGE_ERROR", err: errors.New("the proof has another challenge")}
	}
	return nil
}

// key resolves the method and returns its key, if the signer's document permits the purpose.
func (c Check) key(ctx context.Context, method did.URL) (ed25519.PublicKey, error) {
	if c.Purpose == did.PurposeAssertion && method.Fragment == method.DID.Multibase() {
		// The document of a did:key lists this method under each purpose of a signature: it need not be made.
		if key, err := method.DID.Key(); err == nil {
			return key, nil
		}
	}
	doc, err := c.Resolver.Resolve(ctx, method.DID)
	if err != nil {
		return nil, fmt.Errorf("resolve the signer: %w", err)
	}
	id := method.String()
	m := doc.Method(id)
	switch {
	case doc.ID != method.DID:
		return nil, fmt.Errorf("the resolver returned the document of %q for %q", doc.ID.Short(), method.DID.Short())
	case m == nil:
		return nil, fmt.Errorf("%s has no key %q", method.DID.Short(), truncate(id))
	case !doc.Allows(c.Purpose, id):
		return nil, fmt.Errorf("%s does not list the key %q under %s", method.DID.Short(), truncate(id), c.Purpose)
	case m.Controller != doc.ID:
		return nil, fmt.Errorf("the key %q is controlled by %s, not by its document", truncate(id), m.Controller.Short())
	case m.KeyType != did.Ed25519:
		return nil, fmt.Errorf("the key %q is not an Ed25519 key", truncate(id))
	}
	return m.PublicKey, did.CheckKey(m.PublicKey)
}

func (c Check) times(s *statement) error {
	if ahead := s.created.Sub(c.Now); ahead > Skew {
		return fmt.Errorf("%w: created %s, %s from now; compare the clocks", ErrTime, stamp(s.created), ahead.Round(time.Second))
	}
	if s.expires.IsZero() {
		return nil
	}
	if past := c.Now.Sub(s.expires); past > Skew {
		return fmt.Errorf("%w: expired %s, %s ago", ErrTime, stamp(s.expires), past.Round(time.Second))
	}
	return nil
}

// DateTime reads an XSD dateTime with a time zone, the form of created and expires (Data Integrity §2.1).
func DateTime(v any) (time.Time, error) {
	s, ok := v.(string)
	if !ok {
		return time.Time{}, errors.New("expected a time such as 2026-11-20T12:00:00Z")
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	_, zone := t.Zone()
	// time.Parse also accepts a single digit of the hour, a comma before the fraction, and zones that do not exist.
	if err != nil || s[13] != ':' || strings.Contains(s, ",") || len(s) > 64 || zone > 14*3600 || zone < -14*3600 {
		return time.Time{}, fmt.Errorf("%q is not a time such as 2026-11-20T12:00:00Z", truncate(s))
	}
	return t.UTC(), nil
}

// truncate shortens a text from the network.
func truncate(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}
