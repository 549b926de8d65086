package did

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// Keys returns the resolver of did:key for Ed25519 keys. It computes the document, always with the same bytes. Its errors wrap
// [ErrInvalid], or [ErrMethod] for other methods and other algorithms. It is safe for concurrent use.
func Keys() Resolver { return keys{} }

type keys struct{}

// Resolve computes the document of a did:key.
func (keys) Resolve(_ context.Context, id DID) (*Document, error) {
	pub, err := id.Key()
	if err != nil {
		return nil, err
	}
	x, err := Agreement(pub)
	if err != nil {
		return nil, err
	}
	own := VerificationMethod{
		ID:         string(id) + "#" + id.Multibase(),
		Type:       "Multikey",
		Controller: id,
		KeyType:    Ed25519,
		PublicKey:  pub,
	}
	agree := own
	multibase := agreementMultibase(x)
	agree.ID, agree.KeyType, agree.PublicKey = string(id)+"#"+multibase, X25519, x
	return &Document{
		Raw:                  keyDocument(string(id), id.Multibase(), multibase),
		ID:                   id,
		VerificationMethod:   []VerificationMethod{own, agree},
		Authentication:       []string{own.ID},
		AssertionMethod:      []string{own.ID},
		KeyAgreement:         []string{agree.ID},
		CapabilityInvocation: []string{own.ID},
		CapabilityDelegation: []string{own.ID},
	}, nil
}

// keyDocument returns the JSON of the document. Base58 needs no escaping.
func keyDocument(id, key, agree string) json.RawMessage {
	method := func(fragment string) string {
		return `{"id":"` + id + `#` + fragment + `","type":"Multikey","controller":"` + id +
			`","publicKeyMultibase":"` + fragment + `"}`
	}
	own := `["` + id + `#` + key + `"]`
	return json.RawMessage(`{"@context":["https://www.w3.org/ns/did/v1","https://w3id.org/security/multikey/v1"],` +
		`"id":"` + id + `","verificationMethod":[` + method(key) + `],` +
		`"authentication":` + own + `,"assertionMethod":` + own +
		`,"capabilityInvocation":` + own + `,"capabilityDelegation":` + own +
		`,"keyAgreement":[` + method(agree) + `]}`)
}

// Resolvers returns a resolver that uses the resolver of the DID's method. The error for a method that is not in the map wraps [ErrMethod].
// The map must not change afterwards.
func Resolvers(byMethod map[string]Resolver) Resolver { return dispatch(byMethod) }

type dispatch map[string]Resolver

// Resolve uses the resolver of the method of id.
func (d dispatch) Resolve(ctx context.Context, id DID) (*Document, error) {
	r, ok := d[id.Method()]
	if !ok {
		return nil, fmt.Errorf("%w: resolve %q", ErrMethod, id.Short())
	}
	return r.Resolve(ctx, id)
}

// Fallback returns a resolver that uses rs in order, the next only after an error that wraps [ErrMethod]. All other results are final, so
// that a fallback never overrules a rejection.
func Fallback(rs ...Resolver) Resolver { return fallback(rs) }

type fallback []Resolver

// Resolve returns the first result that is not [ErrMethod].
func (f fallback) Resolve(ctx context.Context, id DID) (*Document, error) {
	for _, r := range f {
		doc, err := r.Resolve(ctx, id)
		if !errors.Is(err, ErrMethod) {
			return doc, err
		}
	}
	return nil, fmt.Errorf("%w: resolve %q", ErrMethod, id.Short())
}
