//go:build !noaries

package aries

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hyperledger/aries-framework-go/component/models/ld/processor"
	"github.com/hyperledger/aries-framework-go/component/models/signature/api"
	"github.com/hyperledger/aries-framework-go/component/models/signature/verifier"
	"github.com/piprate/json-gold/ld"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/proof"
	"github.com/lmosd/lmosd/internal/jcs"
)

// VerifyCredential verifies a credential of the data model 1.1 with one embedded proof: Ed25519Signature2018, Ed25519Signature2020, or
// JsonWebSignature2020 with a key of Ed25519, P-256 or P-384. The issuer's document lists the key under assertionMethod. The credential has an
// issuanceDate, an expirationDate and one subject, which is a DID. Its contexts are among those built in; inline ones are refused, and so are
// members and types that they do not define, which a signature does not cover. raw is at most [MaxCredential] bytes. credentialStatus is only
// read: see [Credential.Status]. The error wraps [ErrCredential], [ErrNotYet], [ErrExpired], or that of the resolver or of ctx.
func VerifyCredential(ctx context.Context, raw []byte, check Check) (*Credential, error) {
	if check.Now.IsZero() {
		check.Now = time.Now()
	}
	doc, err := jcs.Object(raw, MaxCredential)
	if err != nil {
		return nil, refused(err)
	}
	c, p, err := read(doc)
	if err != nil {
		return nil, refused(err)
	}
	if check.Subject != "" && c.Subject != check.Subject {
		return nil, refused(fmt.Errorf("its subject is %s, not %s", c.Subject.Short(), check.Subject.Short()))
	}
	if err := c.window(p, check.Now); err != nil {
		return nil, err
	}
	key, err := keyOf(ctx, check.Resolver, p.method)
	if err != nil {
		return nil, err
	}
	if err := p.fits(key); err != nil {
		return nil, refused(err)
	}
	v, err := verifier.New(resolved{}, &suite{name: p.suite, key: key})
	if err != nil {
		return nil, refused(err)
	}
	err = recovered(ctx, func() error { return v.VerifyObject(doc, processor.WithDocumentLoader(loader{})) })
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("verify a credential: %w", err)
	case err != nil:
		return nil, refused(err)
	}
	return c, nil
}

func refused(err error) error { return fmt.Errorf("%w: %w", ErrCredential, err) }

// window checks the times of the credential, and that of its proof.
func (c *Credential) window(p *embedded, now time.Time) error {
	start := c.From
	if p.created.After(start) {
		start = p.created
	}
	if now.Add(Skew).Before(start) {
		return fmt.Errorf("%w: valid from %s", ErrNotYet, start.Format(time.RFC3339))
	}
	if now.Add(-Skew).After(c.Until) {
		return fmt.Errorf("%w: on %s", ErrExpired, c.Until.Format(time.RFC3339))
	}
	return nil
}

// keyOf returns a key of an issuer that it may sign credentials with.
func keyOf(ctx context.Context, r did.Resolver, method did.URL) (*did.VerificationMethod, error) {
	doc, err := r.Resolve(ctx, method.DID)
	if err != nil {
		return nil, fmt.Errorf("resolve the issuer: %w", err)
	}
	id := method.String()
	m := doc.Method(id)
	switch {
	case doc.ID != method.DID:
		return nil, refused(fmt.Errorf("the resolver returned the document of %q for %q", doc.ID.Short(), method.DID.Short()))
	case m == nil:
		return nil, refused(fmt.Errorf("the issuer has no key %.200q", id))
	case !doc.Allows("assertionMethod", id):
		return nil, refused(fmt.Errorf("the issuer does not list the key %.200q under assertionMethod", id))
	case m.Controller != doc.ID:
		return nil, refused(fmt.Errorf("the key %.200q is controlled by %s, not by the issuer", id, m.Controller.Short()))
	}
	return m, nil
}

// A suite is one of the three, which differ by the form of the signature only. It verifies with one key.
type suite struct {
	name string
	key  *did.VerificationMethod
}

// Accept reports whether the suite is the named one.
func (s *suite) Accept(name string) bool { return name == s.name }

// CompactProof returns false: the credential is canonicalized as it is.
func (s *suite) CompactProof() bool { return false }

// GetDigest returns the SHA-256 of a canonical document.
func (s *suite) GetDigest(doc []byte) []byte {
	sum := sha256.Sum256(doc)
	return sum[:]
}

// GetCanonicalDocument returns the statements of a document, one a line. Each value in the document must be one of them: a member or a type that
// no context defines is left out by the canonicalization, without an error, and is not signed.
func (s *suite) GetCanonicalDocument(doc map[string]any, opts ...processor.Opts) ([]byte, error) {
	out, err := processor.Default().GetCanonicalDocument(doc, opts...)
	if err != nil {
		return nil, err
	}
	if stated, signed := statements(doc), bytes.Count(out, []byte{'\n'}); stated != signed {
		return nil, fmt.Errorf("%d of %d values would not be signed: a member or a type is not defined by the contexts, or an id is not an IRI",
			max(stated-signed, signed-stated), stated)
	}
	return out, nil
}

// statements counts the values of a document, besides its context and ids.
func statements(v any) (n int) {
	switch v := v.(type) {
	case []any:
		for _, entry := range v {
			n += statements(entry)
		}
		return n
	case map[string]any:
		n = 1 // the statement that has the object as its value
		for name, value := range v {
			if name != "@context" && name != "id" {
				n += statements(value)
			}
		}
		if _, isDocument := v["@context"]; isDocument {
			n--
		}
		return n
	}
	return 1
}

// Verify verifies a signature. The key is not that of the caller but the one of the suite.
func (s *suite) Verify(_ *api.PublicKey, message, signature []byte) error {
	if !s.key.Verifies(message, signature) {
		return errors.New("the signature does not verify: the credential or its proof was changed after signing")
	}
	return nil
}

// resolved stands for the key resolver of the module: the suite has the key.
type resolved struct{}

// Resolve returns an empty key.
func (resolved) Resolve(string) (*api.PublicKey, error) { return &api.PublicKey{}, nil }

// An embedded is a proof.
type embedded struct {
	suite   string
	method  did.URL
	created time.Time
	alg     string // of a JWS
}

// proofMembers are those that a proof has besides its signature. The module signs no others: expires, for example, would be ignored.
var proofMembers = []string{"type", "created", "proofPurpose", "verificationMethod"}

// signatures are the members that have the signature, by suite.
var signatures = map[string]string{"Ed25519Signature2018": "jws", "Ed25519Signature2020": "proofValue", "JsonWebSignature2020": "jws"}

// readProof reads the one proof of a credential.
func readProof(v any) (*embedded, error) {
	if list, ok := v.([]any); ok {
		if len(list) != 1 {
			return nil, fmt.Errorf("it has %d proofs, expected one", len(list))
		}
		v = list[0]
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("it has no proof")
	}
	p := &embedded{suite: text(m["type"])}
	signature, ok := signatures[p.suite]
	if !ok {
		return nil, fmt.Errorf("the proof has the unsupported type %.80q", p.suite)
	}
	for name := range m {
		if name != signature && !slices.Contains(proofMembers, name) {
			return nil, fmt.Errorf("the proof has the member %.80q, which %s here does not support", name, p.suite)
		}
	}
	if purpose := text(m["proofPurpose"]); purpose != "assertionMethod" {
		return nil, fmt.Errorf("the purpose of the proof is %.80q, expected assertionMethod", purpose)
	}
	var err error
	if p.created, err = proof.DateTime(m["created"]); err != nil {
		return nil, fmt.Errorf("proof.created: %w", err)
	}
	if p.method, err = did.ParseURL(text(m["verificationMethod"])); err != nil {
		return nil, fmt.Errorf("proof.verificationMethod: %w", err)
	}
	if signature == "jws" {
		return p, p.readJWS(text(m["jws"]))
	}
	return p, checkProofValue(text(m["proofValue"]))
}

func checkProofValue(s string) error {
	if len(s) > 1+88 { // digits of 64 bytes
		return errors.New("proofValue is longer than a signature")
	}
	if b, err := did.DecodeBase58(s); err != nil || len(b) != ed25519.SignatureSize {
		return errors.New("proofValue is not the base58btc of 64 bytes")
	}
	return nil
}

// readJWS reads a JWS with detached, unencoded content (RFC 7797), and checks its header.
func (p *embedded) readJWS(jws string) error {
	header, rest, _ := strings.Cut(jws, ".")
	content, signature, ok := strings.Cut(rest, ".")
	if !ok || content != "" || len(jws) > 1024 {
		return errors.New("jws is not one with detached content")
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(header)
	if err != nil {
		return errors.New("the header of jws is not base64url")
	}
	h, err := jcs.Object(raw, 512)
	if err != nil {
		return fmt.Errorf("the header of jws: %w", err)
	}
	crit, _ := h["crit"].([]any)
	if p.alg = text(h["alg"]); len(h) != 3 || h["b64"] != false || len(crit) != 1 || crit[0] != "b64" {
		return errors.New("the header of jws has other members than alg, b64: false and crit")
	}
	if _, err := base64.RawURLEncoding.Strict().DecodeString(signature); err != nil {
		return errors.New("the signature of jws is not base64url")
	}
	return nil
}

// fits returns an error unless a key can have made the proof.
func (p *embedded) fits(key *did.VerificationMethod) error {
	alg := key.Algorithm()
	if alg == "" || p.suite != "JsonWebSignature2020" && key.KeyType != did.Ed25519 {
		return fmt.Errorf("a key of type %.40q does not make proofs of type %s", key.KeyType, p.suite)
	}
	if p.alg != "" && p.alg != alg {
		return fmt.Errorf("the algorithm %.40q of jws is not %s, that of the key", p.alg, alg)
	}
	return nil
}

// read reads a credential and its proof, whose signature is not verified yet.
func read(doc map[string]any) (*Credential, *embedded, error) {
	if err := checkContext(doc["@context"]); err != nil {
		return nil, nil, err
	}
	p, err := readProof(doc["proof"])
	if err != nil {
		return nil, nil, err
	}
	for _, name := range []string{"validFrom", "validUntil"} {
		if _, ok := doc[name]; ok {
			return nil, nil, fmt.Errorf("%s is not part of the data model 1.1", name)
		}
	}
	w := walker{ids: map[string]bool{}}
	if err := w.document(doc); err != nil {
		return nil, nil, err
	}
	c := &Credential{ID: text(doc["id"]), Method: p.method.String()}
	if err := c.readBody(doc); err != nil {
		return nil, nil, err
	}
	if p.method.DID != c.Issuer {
		return nil, nil, fmt.Errorf("issued by %s, signed by %s", c.Issuer.Short(), p.method.DID.Short())
	}
	return c, p, nil
}

// checkContext refuses contexts that are not built in, or inline.
func checkContext(v any) error {
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	if len(list) > len(documentContexts) {
		return fmt.Errorf("it has %d contexts, expected at most %d", len(list), len(documentContexts))
	}
	for i, entry := range list {
		url, ok := entry.(string)
		switch {
		case !ok:
			return errors.New("its @context is inline, and may redefine terms: expected URLs only")
		case i == 0 && url != contextCredentials:
			return fmt.Errorf("its first context is %.200q, expected %s", url, contextCredentials)
		case !slices.Contains(documentContexts, url):
			return unknownContext(url)
		}
	}
	return nil
}

// maxBlank limits the objects without an id. The canonicalization takes a time that grows with the factorial of those that are alike.
const maxBlank = 6

// A walker refuses what has several forms with the same statements: then a form that reads differently has the same signature.
type walker struct {
	ids   map[string]bool
	blank int
}

// document checks a credential.
func (w *walker) document(doc map[string]any) error {
	for name, v := range doc {
		if name == "@context" || name == "proof" {
			continue
		}
		if err := w.member(name, v); err != nil {
			return err
		}
	}
	return w.identify(doc)
}

func (w *walker) member(name string, v any) error {
	if strings.HasPrefix(name, "@") || strings.Contains(name, ":") {
		return fmt.Errorf("the member %.80q is a keyword or an IRI: expected names that the contexts define", name)
	}
	if err := w.value(v); err != nil {
		return fmt.Errorf("%.80s: %w", name, err)
	}
	return nil
}

func (w *walker) value(v any) error {
	switch v := v.(type) {
	case nil:
		return errors.New("null is not signed")
	case string:
		if strings.HasPrefix(v, "_:") {
			return errors.New("the label of a blank node is not signed")
		}
	case float64:
		if v != float64(int64(v)) || v > 1<<53 || v < -1<<53 {
			return errors.New("a number that is not an integer is not signed exactly")
		}
	case []any:
		return w.array(v)
	case map[string]any:
		return w.object(v)
	}
	return nil
}

func (w *walker) array(all []any) error {
	if len(all) == 0 {
		return errors.New("an empty array is not signed")
	}
	for _, entry := range all {
		if _, nested := entry.([]any); nested {
			return errors.New("the form of an array in an array is not signed")
		}
		if err := w.value(entry); err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) object(m map[string]any) error {
	for name, v := range m {
		if err := w.member(name, v); err != nil {
			return err
		}
	}
	return w.identify(m)
}

// identify notes the id of an object. Two objects with one id are the same: their members could be exchanged.
func (w *walker) identify(m map[string]any) error {
	v, ok := m["id"]
	if !ok {
		if w.blank++; w.blank > maxBlank {
			return fmt.Errorf("more than %d objects have no id", maxBlank)
		}
		return nil
	}
	id := text(v)
	if w.ids[id] || id == "" {
		return fmt.Errorf("the id %.80q is repeated or no text", id)
	}
	w.ids[id] = true
	return nil
}

// readBody reads the members of a credential.
func (c *Credential) readBody(doc map[string]any) (err error) {
	if err := c.readTypes(doc["type"]); err != nil {
		return err
	}
	issuer := doc["issuer"]
	if m, ok := issuer.(map[string]any); ok {
		issuer = m["id"]
	}
	if c.Issuer, err = did.ParseForeign(text(issuer)); err != nil {
		return fmt.Errorf("issuer: %w", err)
	}
	if c.From, err = proof.DateTime(doc["issuanceDate"]); err != nil {
		return fmt.Errorf("issuanceDate: %w", err)
	}
	if _, ok := doc["expirationDate"]; !ok {
		return errors.New("it has no expirationDate: a credential without an end is not accepted")
	}
	if c.Until, err = proof.DateTime(doc["expirationDate"]); err != nil {
		return fmt.Errorf("expirationDate: %w", err)
	}
	if c.Until.Before(c.From) {
		return errors.New("it expires before it is issued")
	}
	if err := c.readSubject(doc["credentialSubject"]); err != nil {
		return err
	}
	if v, ok := doc["credentialStatus"]; ok {
		return c.readStatus(v)
	}
	return nil
}

func (c *Credential) readTypes(v any) error {
	list, _ := v.([]any)
	for _, entry := range list {
		name := text(entry)
		if name == "" {
			return errors.New("type is not an array of texts")
		}
		if name != "VerifiableCredential" {
			c.Types = append(c.Types, name)
		}
	}
	if len(c.Types) == len(list) && v != "VerifiableCredential" {
		return errors.New("its type is not VerifiableCredential")
	}
	return nil
}

// readSubject reads the one subject.
func (c *Credential) readSubject(v any) (err error) {
	if list, ok := v.([]any); ok && len(list) == 1 {
		v = list[0]
	}
	m, ok := v.(map[string]any)
	if !ok {
		return errors.New("credentialSubject is not one object")
	}
	if c.Subject, err = did.ParseForeign(text(m["id"])); err != nil {
		return fmt.Errorf("credentialSubject.id: %w", err)
	}
	c.Claims = maps.Clone(m)
	delete(c.Claims, "id")
	return nil
}

// readStatus reads an entry of a list (Status List 2021 §4.1, Bitstring Status List §2.1).
func (c *Credential) readStatus(v any) error {
	m, ok := v.(map[string]any)
	if typ := text(m["type"]); !ok || typ != "StatusList2021Entry" && typ != "BitstringStatusListEntry" {
		return fmt.Errorf("credentialStatus has the unsupported type %.80q", typ)
	}
	c.Status = &Status{List: text(m["statusListCredential"]), Index: text(m["statusListIndex"]), Purpose: text(m["statusPurpose"])}
	if c.Status.List == "" || c.Status.Index == "" || c.Status.Purpose == "" {
		return errors.New("credentialStatus names no place in a list")
	}
	return nil
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

var _ ld.DocumentLoader = loader{}
