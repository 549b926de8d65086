package did

import (
	"encoding/json"
	"slices"
)

// A Document is a DID document: its raw JSON, and a typed view of the members that lmosd uses (DID Core §5).
type Document struct {
	Raw                json.RawMessage // as received or computed
	ID                 DID
	Controller         []DID
	AlsoKnownAs        []string
	VerificationMethod []VerificationMethod
	// The relationships hold ids of verification methods, absolute.
	Authentication       []string
	AssertionMethod      []string
	KeyAgreement         []string
	CapabilityInvocation []string
	CapabilityDelegation []string
	Service              []Service
}

// A VerificationMethod is a public key in a document.
type VerificationMethod struct {
	ID         string // absolute DID URL
	Type       string
	Controller DID
	// KeyType names the algorithm: "Ed25519", "X25519", "P-256", … ; PublicKey holds its raw bytes.
	KeyType   string
	PublicKey []byte
}

// A Service is an endpoint in a document.
type Service struct {
	ID       string
	Type     []string
	Endpoint json.RawMessage
}

// MeshService is the type of the service that lists nodes through which others join the mesh of an organization: its endpoint is a list of
// multiaddrs with /p2p.
const MeshService = "LmosMesh"

// Endpoints returns the endpoints of the services of a type that are texts, alone or in a list. Objects and empty texts are left out.
func (d *Document) Endpoints(typ string) (all []string) {
	for _, s := range d.Service {
		if !slices.Contains(s.Type, typ) {
			continue
		}
		var one any
		_ = json.Unmarshal(s.Endpoint, &one) // a document is valid JSON
		list, ok := one.([]any)
		if !ok {
			list = []any{one}
		}
		for _, e := range list {
			if text, _ := e.(string); text != "" {
				all = append(all, text)
			}
		}
	}
	return all
}

// relationships are the members that list the permitted uses of a key (DID Core §5.3).
var relationships = []string{
	"authentication", "assertionMethod", "keyAgreement", "capabilityInvocation", "capabilityDelegation",
}

// relationship returns the list of a relationship by its name in JSON, or nil.
func (d *Document) relationship(name string) *[]string {
	switch name {
	case "authentication":
		return &d.Authentication
	case "assertionMethod":
		return &d.AssertionMethod
	case "keyAgreement":
		return &d.KeyAgreement
	case "capabilityInvocation":
		return &d.CapabilityInvocation
	case "capabilityDelegation":
		return &d.CapabilityDelegation
	}
	return nil
}

// Method returns the verification method with the absolute id, or nil. It is part of d.
func (d *Document) Method(id string) *VerificationMethod {
	for i := range d.VerificationMethod {
		if d.VerificationMethod[i].ID == id {
			return &d.VerificationMethod[i]
		}
	}
	return nil
}

// Allows reports whether d lists the method with the absolute id under the relationship, for example [PurposeAssertion]. It returns false for
// an unknown relationship.
func (d *Document) Allows(relationship, id string) bool {
	ids := d.relationship(relationship)
	return ids != nil && slices.Contains(*ids, id)
}
