//go:build noaries

package aries

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"time"

	"github.com/lmosd/lmosd/did"
)

// Resolver returns a resolver whose errors wrap [did.ErrLegacyUnsupported].
func Resolver() did.Resolver { return stub{} }

type stub struct{}

// Resolve returns an error.
func (stub) Resolve(_ context.Context, id did.DID) (*did.Document, error) {
	return nil, fmt.Errorf("%w: resolve %q", did.ErrLegacyUnsupported, id.Short())
}

// ReadDocument returns an error that wraps [did.ErrLegacyUnsupported].
func ReadDocument([]byte) (*did.Document, error) {
	return nil, fmt.Errorf("%w: read a legacy document", did.ErrLegacyUnsupported)
}

// VerifyCredential returns an error that wraps [did.ErrLegacyUnsupported].
func VerifyCredential(context.Context, []byte, Check) (*Credential, error) {
	return nil, fmt.Errorf("%w: verify a credential of the data model 1.1", did.ErrLegacyUnsupported)
}

// A Wallet issues no credentials in this build.
type Wallet struct{}

// NewWallet returns an error that wraps [did.ErrLegacyUnsupported].
func NewWallet(ed25519.PrivateKey) (*Wallet, error) {
	return nil, fmt.Errorf("%w: issue a credential of the data model 1.1", did.ErrLegacyUnsupported)
}

// As returns the same.
func (w *Wallet) As(did.DID, string) *Wallet { return w }

// DID returns nothing.
func (*Wallet) DID() did.DID { return "" }

// Issue returns nothing.
func (*Wallet) Issue(did.DID, time.Time, time.Time, ...string) (json.RawMessage, error) {
	return nil, did.ErrLegacyUnsupported
}

// Sign returns nothing.
func (*Wallet) Sign(map[string]any, time.Time) (json.RawMessage, error) {
	return nil, did.ErrLegacyUnsupported
}
