//go:build !noaries

package aries

import (
	"crypto/ed25519"
	"encoding/json"
	"maps"
	"time"

	"github.com/hyperledger/aries-framework-go/component/models/ld/processor"
	ldproof "github.com/hyperledger/aries-framework-go/component/models/ld/proof"

	"github.com/lmosd/lmosd/did"
)

// context2020 is that of Ed25519Signature2020.
const context2020 = "https://w3id.org/security/suites/ed25519-2020/v1"

// A Wallet issues credentials of the data model 1.1 as issuers of other projects do, for tests and demonstrations. Its key is never that of a
// node.
type Wallet struct {
	key    ed25519.PrivateKey
	id     did.DID
	method string // the DID URL of the key
}

// NewWallet returns a wallet with a key.
func NewWallet(key ed25519.PrivateKey) (*Wallet, error) {
	id, err := did.FromKey(key.Public().(ed25519.PublicKey))
	return &Wallet{key, id, string(id) + "#" + id.Multibase()}, err
}

// As returns a wallet with the same key for another issuer, whose document lists it under a DID URL.
func (w *Wallet) As(id did.DID, method string) *Wallet { return &Wallet{w.key, id, method} }

// DID returns the DID of the issuer, a did:key unless it is of [Wallet.As].
func (w *Wallet) DID() did.DID { return w.id }

// Issue returns a RoleCredential, signed as Ed25519Signature2020.
func (w *Wallet) Issue(subject did.DID, from, until time.Time, roles ...string) (json.RawMessage, error) {
	all := make([]any, len(roles))
	for i, role := range roles {
		all[i] = role
	}
	return w.Sign(map[string]any{
		"@context": []any{contextCredentials, context2020, ContextRoles}, "type": []any{"VerifiableCredential", "RoleCredential"},
		"issuer": string(w.id), "issuanceDate": from.UTC().Format(time.RFC3339), "expirationDate": until.UTC().Format(time.RFC3339),
		"credentialSubject": map[string]any{"id": string(subject), "roles": all},
	}, from)
}

// Sign returns a credential with a proof. As other implementations may, it signs what is left after the canonicalization.
func (w *Wallet) Sign(doc map[string]any, created time.Time) (json.RawMessage, error) {
	p, err := w.prove(doc, map[string]any{"created": created.UTC().Format(time.RFC3339)})
	if err != nil {
		return nil, err
	}
	out := maps.Clone(doc)
	out["proof"] = p
	return json.Marshal(out)
}

// prove returns a proof of a document, with some members in place of the usual ones.
func (w *Wallet) prove(doc, members map[string]any) (map[string]any, error) {
	all := map[string]any{"type": "Ed25519Signature2020", "created": "2026-11-20T12:00:00Z", "verificationMethod": w.method,
		"proofPurpose": "assertionMethod", "proofValue": did.EncodeBase58(make([]byte, ed25519.SignatureSize))}
	maps.Copy(all, members)
	p, err := ldproof.NewProof(all)
	if err != nil {
		return nil, err
	}
	hash, err := ldproof.CreateVerifyData(&careless{}, maps.Clone(doc), p, processor.WithDocumentLoader(loader{}))
	if err != nil {
		return nil, err
	}
	p.ProofValue = ed25519.Sign(w.key, hash)
	return p.JSONLdObject(), nil
}

// careless is a suite that ignores what the canonicalization drops.
type careless struct{ suite }

// GetCanonicalDocument returns the statements of a document.
func (c *careless) GetCanonicalDocument(doc map[string]any, opts ...processor.Opts) ([]byte, error) {
	return processor.Default().GetCanonicalDocument(doc, opts...)
}
