//go:build noaries

package aries

import (
	"context"
	"fmt"

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
