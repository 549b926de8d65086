package aries

import (
	"errors"
	"time"

	"github.com/lmosd/lmosd/did"
)

// MaxCredential limits a credential, in bytes.
const MaxCredential = 16 << 10

// Contexts that lmosd builds in besides those of the module.
const (
	// ContextRoles defines the terms role, roles and RoleCredential, which no common context has.
	ContextRoles = "https://lmosd.dev/ns/credentials/roles/v1"
	// ContextLinkage is that of DomainLinkageCredential (DIF Well Known DID Configuration 1.0).
	ContextLinkage = "https://identity.foundation/.well-known/did-configuration/v1"
)

// Errors of credentials. They are wrapped with the reason.
var (
	// ErrCredential means that the document is not a credential that its issuer signed, or that it uses what is not supported.
	ErrCredential = errors.New("credential refused")
	// ErrNotYet and ErrExpired mean that it is valid at another time.
	ErrNotYet  = errors.New("credential not valid yet")
	ErrExpired = errors.New("credential expired")
)

// Skew is the permitted difference of the clocks of issuer and verifier.
const Skew = 5 * time.Minute

// A Credential has what the issuer of a verified credential signed, and nothing else (Verifiable Credentials Data Model 1.1). It is immutable.
type Credential struct {
	ID      string // empty: none
	Issuer  did.DID
	Subject did.DID
	// Types are those besides VerifiableCredential, as the credential names them.
	Types []string
	// Claims are the members of the subject without its id, as decoded JSON. The order of an array is not signed, nor is the difference between
	// a value and an array of it.
	Claims map[string]any
	// From and Until are its issuanceDate and expirationDate.
	From, Until time.Time
	// Method is the DID URL of the key that signed it.
	Method string
	// Status is its credentialStatus, which is not checked; nil: it has none.
	Status *Status
}

// A Status is the place of a credential in a status list: a StatusList2021Entry or a BitstringStatusListEntry.
type Status struct {
	List    string // the URL of the list
	Index   string
	Purpose string // "revocation" or "suspension"
}

// A Check has the requirements for a credential.
type Check struct {
	// Resolver returns the documents of issuers. Required.
	Resolver did.Resolver
	// Subject is the only permitted subject; others are refused before the issuer is resolved. Empty: any.
	Subject did.DID
	// Now is the time of the check. Zero: the current time.
	Now time.Time
}
