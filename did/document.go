package did

import "encoding/json"

// A Document is a DID document: its raw JSON and a typed view of what lmosd uses (DID Core §5).
type Document struct {
	Raw                json.RawMessage // as it was read or computed
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
